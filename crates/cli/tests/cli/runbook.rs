//! The runbook has every reason that the operators can report.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The source folders with reasons: the operators report only literals from there.
const SOURCES: [&str; 7] = [
    "crates/machines/src",
    "crates/plan/src/machine.rs",
    "crates/plan/src/machine",
    "crates/plan/src/join.rs",
    "crates/plan/src/join",
    "crates/kit/src/write.rs",
    "crates/kit/src/journal/act.rs",
];

/// Literals of the same form that belong to Kubernetes or are fields, and are not reasons.
const NO_REASONS: [&str; 23] = [
    "Approved",
    "Claimed",
    "Converging",
    "DaemonSet",
    "Degraded",
    "Deleting",
    "Denied",
    "DiskPressure",
    "Drain",
    "Failed",
    "Idle",
    "Lost",
    "Machine",
    "MemoryPressure",
    "NetworkUnavailable",
    "NoSchedule",
    "PIDPressure",
    "Ready",
    "Reboot",
    "Repairing",
    "Restart",
    "Succeeded",
    "True",
];

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            let path = entry.expect("an entry").path();
            if !path.ends_with("tests") && !path.ends_with("tests.rs") {
                files(&path, found);
            }
        }
    } else {
        found.push(path.to_owned());
    }
}

/// String literals that start with a capital letter and contain only letters, with their file. Tests are left out.
fn words() -> BTreeMap<String, PathBuf> {
    let mut paths = Vec::new();
    for source in SOURCES {
        files(&Path::new(ROOT).join(source), &mut paths);
    }
    let mut words = BTreeMap::new();
    // The objects of a policy for the API server have no reasons of the operator.
    for path in paths.into_iter().filter(|path| !path.ends_with("machines/src/access.rs")) {
        let text = fs::read_to_string(&path).expect("text");
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for word in line.split('"').skip(1).step_by(2) {
                let capital = word.len() > 1 && word.starts_with(|c: char| c.is_ascii_uppercase());
                if capital && word.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                    words.entry(word.to_owned()).or_insert_with(|| path.clone());
                }
            }
        }
    }
    words
}

#[test]
fn the_runbook_says_what_to_do_for_every_reason_of_the_machine_operator() {
    let runbook = fs::read_to_string(Path::new(ROOT).join("docs/runbook.md")).expect("the runbook is there");
    let known = |word: &str| runbook.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{word}`")));
    let words = words();
    assert!(words.contains_key("RolledBack") && words.contains_key("NoResponse"), "the reasons are not found any more");
    let idle: Vec<_> = NO_REASONS.iter().filter(|word| !words.contains_key(**word)).collect();
    assert!(idle.is_empty(), "nobody says these any more: {idle:?}");
    let missing: Vec<_> =
        words.iter().filter(|(word, _)| !NO_REASONS.contains(&word.as_str()) && !known(word)).collect();
    assert!(missing.is_empty(), "docs/runbook.md has no row with what to do for: {missing:#?}");
}

#[test]
fn the_reference_has_every_metric_of_the_operators() {
    let reference =
        fs::read_to_string(Path::new(ROOT).join("docs/reference/metrics.md")).expect("the reference is there");
    let mut paths = Vec::new();
    for operator in ["clusters", "machines", "readiness"] {
        files(&Path::new(ROOT).join("crates").join(operator).join("src"), &mut paths);
    }
    let texts: Vec<_> = paths.iter().map(|path| fs::read_to_string(path).expect("text")).collect();
    let quoted = texts.iter().flat_map(|text| text.split('"').skip(1).step_by(2));
    let names: BTreeSet<_> = quoted.filter(|text| text.starts_with("fleetwright_")).collect();
    assert!(names.len() > 20 && names.contains("fleetwright_clusters"), "{names:?}");
    let known = |name: &str| {
        let row = |cell: String| reference.lines().any(|line| line.starts_with(&format!("| `{cell}` |")));
        // The page uses these names for counters.
        row(name.to_owned()) || row(format!("{name}_total"))
    };
    let missing: Vec<_> = names.into_iter().filter(|name| !known(name)).collect();
    assert!(missing.is_empty(), "docs/reference/metrics.md has no row for: {missing:?}");
}

#[test]
fn the_runbook_says_what_to_do_for_every_reason_of_the_cluster_operator() {
    let runbook = fs::read_to_string(Path::new(ROOT).join("docs/runbook.md")).expect("the runbook is there");
    let known = |word: &str| runbook.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{word}`")));
    let names = fs::read_to_string(Path::new(ROOT).join("crates/api/src/names.rs")).expect("text");
    let (conditions, reasons) = names.split_once("pub mod reasons {").expect("the reasons are a module");
    let of = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.trim_start().starts_with("pub const "));
        lines.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
    };
    let conditions =
        conditions.split("/// Condition of a cluster").skip(1).flat_map(|text| of(text).into_iter().next());
    let words: Vec<_> = conditions.chain(of(reasons)).collect();
    assert!(words.len() > 30 && words.iter().any(|word| word == "Upgradable"), "{words:?}");
    let missing: Vec<_> = words.iter().filter(|word| !known(word)).collect();
    assert!(missing.is_empty(), "docs/runbook.md has no row with what to do for: {missing:?}");
}

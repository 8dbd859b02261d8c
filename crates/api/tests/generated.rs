//! Files made out of the types are as the types are.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use fleetwright_api::ControlPlaneComponent;
use fleetwright_lab::Binaries;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Compares a file of the repository with what it should hold; with `UPDATE=1` in the environment, writes it.
fn is_fresh(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().expect("a file is in a folder")).expect("the folder can be made");
        std::fs::write(&file, expected).expect("the file can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let line = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{path} is stale from line {} on: make it again with `UPDATE=1 cargo test -p fleetwright-api --test generated` and commit it",
        line.unwrap_or_else(|| found.lines().count().min(expected.lines().count())) + 1,
    );
}

#[test]
fn the_definitions_in_deploy_are_fresh() {
    is_fresh("deploy/crds.yaml", &fleetwright_api::crds_yaml());
}

#[test]
fn the_page_of_reference_is_fresh() {
    is_fresh("docs/reference/kinds.md", &fleetwright_api::kinds_markdown());
}

#[test]
fn the_definitions_read_back_as_they_are() {
    let yaml = fleetwright_api::crds_yaml();
    let read: Vec<serde_json::Value> = serde_saphyr::from_multiple(&yaml).expect("it is YAML");
    let read: Vec<_> = read.into_iter().filter(|document| !document.is_null()).map(as_definition).collect();
    assert_eq!(read, fleetwright_api::crds());
}

fn as_definition(value: serde_json::Value) -> CustomResourceDefinition {
    serde_json::from_value(value).expect("it is a definition")
}

const MINORS: [&str; 2] = ["1.36", "1.37"];
const ARGUMENTS: &str = "crates/api/src/arguments.txt";

/// The arguments of a component, what each takes, and the minors that have it.
type Arguments = BTreeMap<String, (String, Vec<&'static str>)>;

/// Arguments of real executables. What is known of a minor that is not built here is taken as it is.
#[test]
fn the_arguments_of_components_are_those_that_they_tell_on_real() {
    let mut out = format!(
        "# Generated from what the executables say of themselves; `make k8s MINOR=1.36 && make generate` makes it again.\n# minors: {}\n",
        MINORS.join(" "),
    );
    assert!(MINORS.into_iter().any(|minor| built(minor).is_some()), "no Kubernetes to ask: run `make k8s`");
    for component in ControlPlaneComponent::ALL {
        let mut all = Arguments::new();
        for minor in MINORS {
            let found = match built(minor) {
                Some(binaries) => told(component, &binaries),
                None => known(component, minor),
            };
            assert!(found.len() > 40, "{component} {minor}: {found:?}");
            for (name, takes) in found {
                all.entry(name).or_insert((takes, Vec::new())).1.push(minor);
            }
        }
        for (name, (takes, minors)) in all {
            out.push_str(&format!("{component} {name} {takes} {}\n", minors.join(" ")));
        }
    }
    is_fresh(ARGUMENTS, &out);
}

/// The executables of that minor, if they are here: those that `KUBEBUILDER_ASSETS` names may be of another.
fn built(minor: &str) -> Option<Binaries> {
    let binaries = Binaries::find(minor).ok()?;
    let output = Command::new(binaries.path("kube-apiserver").ok()?).arg("--version").output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).contains(&format!(" v{minor}.")).then_some(binaries)
}

fn told(component: ControlPlaneComponent, binaries: &Binaries) -> BTreeMap<String, String> {
    let path = binaries.path(component.binary()).expect("the executable is built");
    let output = Command::new(path).arg("--help").env_clear().output().expect("it runs");
    let help = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    help.lines().filter_map(|line| argument(component, line)).collect()
}

fn known(component: ControlPlaneComponent, minor: &str) -> BTreeMap<String, String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(ARGUMENTS);
    let table = std::fs::read_to_string(&file).expect("the table is there");
    let lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let own = lines.filter(|words| words[0] == component.binary() && words[3..].contains(&minor));
    own.map(|words| (words[1].to_owned(), words[2].to_owned())).collect()
}

/// The name and kind of the argument that a line of help begins with. Those that end the process are none to run with.
fn argument(component: ControlPlaneComponent, line: &str) -> Option<(String, String)> {
    // What is indented further goes on about the argument before.
    let deepest = if component == ControlPlaneComponent::Etcd { 2 } else { 6 };
    let trimmed = line.trim_start();
    if line.len() - trimmed.len() > deepest {
        return None;
    }
    let rest = match trimmed.strip_prefix("--") {
        Some(rest) => rest,
        None => trimmed.split_once(", --").filter(|(short, _)| short.starts_with('-') && short.len() == 2)?.1,
    };
    let end = rest.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-').unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    if name.is_empty() || ["help", "version"].contains(&name) {
        return None;
    }
    let word = after.strip_prefix(' ').and_then(|after| after.split(' ').next()).unwrap_or_default();
    let takes = match component {
        // etcd shows the default, if any, which tells switches alone: what looks like a number may be a length of time as well.
        ControlPlaneComponent::Etcd if ["'true'", "'false'"].contains(&word) => "switch",
        ControlPlaneComponent::Etcd => "text",
        _ => match word {
            "" => "switch",
            "int" | "int32" | "int64" | "uint" | "uint16" | "uint32" => "number",
            "duration" => "duration",
            _ => "text",
        },
    };
    Some((name.to_owned(), takes.to_owned()))
}

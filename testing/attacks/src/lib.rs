//! Attempts to break in, on the embedded API server and on kube-apiserver.
//!
//! An attempt is an async function whose name is a sentence with the expected result. It performs an attack, and then checks, as an administrator,
//! whether the attack had its effect: a status code alone shows nothing. It fails by returning an error or by panicking. `docs/threat-model.md` lists
//! the attempts between marks; a test compares the two.
//!
//! To add one: write the function in the module of its area and name it in that module's `attempts![…]`. Attempts that need operators get one of the
//! fixtures of the operators' own tests: a `JoinSite` (Machines that join), a `Meta` (Clusters) or a `Harness` (simulated hosts).

#[macro_use]
mod attempt;
mod certificates;
mod encoding;
mod exhaustion;
mod fixtures;
mod hosts;
mod identity;
mod raw;
mod references;
mod runner;
mod tenants;

// The fixtures of the operators' tests. No test uses all of their functions.
#[allow(dead_code)]
#[path = "../../../crates/machines/tests/scenarios/support.rs"]
mod harness;
#[allow(dead_code)]
#[path = "../../../crates/machines/tests/join/site.rs"]
mod site;
#[allow(dead_code)]
#[path = "../../../crates/clusters/tests/scenarios/support.rs"]
mod world;

pub use attempt::{Area, Attempt};
pub use fleetwright_lab::ServerKind;
pub use runner::{Report, run};

/// All attempts.
pub fn all() -> Vec<Attempt> {
    [
        identity::attempts(),
        references::attempts(),
        certificates::attempts(),
        encoding::attempts(),
        exhaustion::attempts(),
        hosts::attempts(),
        tenants::attempts(),
    ]
    .concat()
}

/// The list of attempts for the threat model.
pub fn listed() -> String {
    let mut text = String::new();
    let mut area = None;
    for attempt in all() {
        if area != Some(attempt.area) {
            area = Some(attempt.area);
            text.push_str(&format!("\n**{}**\n\n", attempt.area));
        }
        text.push_str(&format!("- {}\n", attempt.sentence()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/threat-model.md");

    #[test]
    fn the_threat_model_lists_these_attempts_and_no_others() {
        let page = std::fs::read_to_string(KEPT).expect("docs/threat-model.md");
        let (_, rest) = page.split_once("<!-- attacks -->\n").expect("the mark <!-- attacks -->");
        let (kept, _) = rest.split_once("\n<!-- end of attacks -->").expect("the mark <!-- end of attacks -->");
        let (kept, listed) = (kept.trim(), listed());
        assert_eq!(
            kept,
            listed.trim(),
            "docs/threat-model.md is stale: put the output of `cargo test -p fleetwright-attacks --test attacks -- --markdown` between the marks"
        );
    }

    #[test]
    fn there_are_at_least_forty_attempts_of_every_area_and_each_has_a_name_of_its_own() {
        let all = all();
        assert!(all.len() >= 40, "{}", all.len());
        for area in Area::ALL {
            assert!(all.iter().filter(|attempt| attempt.area == area).count() >= 3, "{area}");
        }
        let names: std::collections::BTreeSet<_> = all.iter().map(|attempt| attempt.name).collect();
        assert_eq!(names.len(), all.len());
    }
}

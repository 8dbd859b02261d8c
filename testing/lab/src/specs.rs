//! Kubernetes' own end-to-end specs, run on a cluster: those that `k8s/e2e/specs.txt` lists.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::hosts::command::aside;
use crate::hosts::modules;
use crate::{Binaries, DEFAULT_MINOR, Process};

/// The specs that pass in the lab. A plus marks the quick ones.
const LISTED: &str = include_str!("../../../k8s/e2e/specs.txt");

/// The names of the listed specs: all of them, or the quick ones.
pub fn listed(quick: bool) -> Vec<&'static str> {
    let lines = LISTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter(|line| !quick || line.starts_with('+')).map(|line| line.trim_start_matches(['+', ' '])).collect()
}

/// The result of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The name of the spec.
    pub name: String,
    /// The duration of the run.
    pub took: Duration,
    /// The message of a spec that did not pass.
    pub failure: Option<String>,
}

/// Builds the specs, once; it takes some minutes.
///
/// # Errors
/// When the build fails.
pub async fn build() -> Result<PathBuf> {
    aside(modules::specs).await
}

/// Runs specs against the cluster of a kubeconfig in this number of parallel processes; logs and reports go to a folder.
///
/// # Errors
/// When a process does not end within the limit, or a spec was not run.
pub async fn run(
    kubeconfig: &Path,
    specs: &[&str],
    at_once: usize,
    limit: Duration,
    folder: &Path,
) -> Result<Vec<Outcome>> {
    let program = build().await?;
    let kubectl = Binaries::find(DEFAULT_MINOR)?.path("kubectl")?;
    fs::create_dir_all(folder)?;
    let mut running = Vec::new();
    for number in 0..at_once.min(specs.len()) {
        let own: Vec<_> = specs.iter().skip(number).step_by(at_once).copied().collect();
        let report = folder.join(format!("specs-{number}.json"));
        let mut arguments = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--kubectl-path={}", kubectl.display()),
            "--provider=skeleton".to_owned(),
            "--minStartupPods=0".to_owned(),
            "--system-pods-startup-timeout=1m".to_owned(),
            "--num-nodes=2".to_owned(),
            // The report has the failures; the events of all namespaces would hide them.
            "--dump-logs-on-failure=false".to_owned(),
            "--ginkgo.no-color".to_owned(),
            "--ginkgo.v".to_owned(),
            format!("--ginkgo.timeout={}s", limit.as_secs()),
            format!("--ginkgo.json-report={}", report.display()),
        ];
        arguments.extend(own.iter().map(|name| format!("--ginkgo.focus={}$", escaped(name))));
        let process = Process::start(&format!("specs-{number}"), &program, arguments, folder)?;
        running.push((process, own, report));
    }
    let deadline = Instant::now() + limit;
    let mut outcomes = Vec::new();
    for (mut process, own, report) in running {
        while process.ended()?.is_none() {
            if Instant::now() > deadline {
                bail!(
                    "timed out after {limit:?}: {} is still running; its last output:\n{}",
                    process.name(),
                    process.tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let text = fs::read(&report).with_context(|| format!("no report; last output:\n{}", process.tail()))?;
        let found = outcomes_of(&serde_json::from_slice(&text)?);
        for name in own {
            let Some(outcome) = found.iter().find(|outcome| outcome.name == name) else {
                bail!("spec {name:?} not found; last output:\n{}", process.tail());
            };
            outcomes.push(outcome.clone());
        }
    }
    Ok(outcomes)
}

/// The specs of a report that were run.
fn outcomes_of(report: &Value) -> Vec<Outcome> {
    let specs = report.as_array().into_iter().flatten().filter_map(|suite| suite["SpecReports"].as_array()).flatten();
    let run = specs.filter(|spec| spec["LeafNodeType"] == "It" && spec["State"] != "skipped");
    run.map(|spec| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut words: Vec<_> = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().map(text).collect();
        words.push(text(&spec["LeafNodeText"]));
        let said = || format!("{}: {}", text(&spec["State"]), text(&spec["Failure"]["Message"]));
        Outcome {
            name: words.join(" "),
            took: Duration::from_nanos(spec["RunTime"].as_u64().unwrap_or_default()),
            failure: (spec["State"] != "passed").then(said),
        }
    })
    .collect()
}

/// A regular expression that matches this name only.
fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for letter in name.chars() {
        if !letter.is_alphanumeric() && letter != ' ' {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_names_the_specs_that_were_run_and_what_failed() {
        let spec = |leaf: &str, state: &str, message: &str| {
            json!({
                "ContainerHierarchyTexts": ["[sig-node] Pods"],
                "LeafNodeType": "It",
                "LeafNodeText": leaf,
                "State": state,
                "RunTime": 2_000_000_000,
                "Failure": { "Message": message },
            })
        };
        let report = json!([{ "SpecReports": [spec("runs", "passed", ""), spec("fails", "failed", "no"), spec("rests", "skipped", "")] }]);
        let outcomes = outcomes_of(&report);
        let told: Vec<_> = outcomes.iter().map(|one| (one.name.as_str(), one.failure.as_deref())).collect();
        assert_eq!(told, [("[sig-node] Pods runs", None), ("[sig-node] Pods fails", Some("failed: no"))]);
        assert_eq!(outcomes[0].took, Duration::from_secs(2));
    }

    #[test]
    fn a_name_is_matched_as_it_is_written() {
        assert_eq!(escaped("[sig-node] Pods should *not*"), r"\[sig\-node\] Pods should \*not\*");
    }

    #[test]
    fn the_list_names_each_spec_once_and_some_are_quick() {
        let all = listed(false);
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len());
        assert!(all.iter().all(|name| name.starts_with("[sig-") && name.ends_with("[Conformance]")));
        let quick = listed(true);
        assert!((1..=10).contains(&quick.len()) && quick.iter().all(|name| all.contains(name)));
    }
}

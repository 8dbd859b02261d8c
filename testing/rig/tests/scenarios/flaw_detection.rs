//! The rig detects flaws: a flawed operator fails, and the same operator without the flaw passes.
//!
//! This operator does not use the kit, so that its flaws are its own: every ten seconds it lists the parcels and delivers the undelivered
//! ones, by a line in a file.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use fleetwright_kit::Clock;
use fleetwright_rig::{
    FaultInjector, FaultRates, Harness, OperatorContext, OperatorInstance, Scenario, TestServer, crash_at_every_call,
    under_faults,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// Delivers before it records the intent, and does not check for an earlier delivery.
    ActsFirst,
    /// Assumes that a failed write has happened.
    IgnoresConflicts,
    /// Takes an error of a list for an empty list, and an empty list for the end of its work.
    GivesUp,
}

struct Delivery {
    flaw: Flaw,
}

impl Scenario for Delivery {
    const NAME: &'static str = "delivery";

    fn kinds(&self) -> Vec<CustomResourceDefinition> {
        Vec::new()
    }

    fn operator(&self, context: OperatorContext, outside: &Path) -> OperatorInstance {
        let idle = Arc::new(AtomicBool::new(false));
        let parcels = Api::namespaced(context.client.clone(), &context.namespace);
        let porter =
            FlawedOperator { flaw: self.flaw, parcels, file: outside.join("delivered"), forgotten: HashSet::new() };
        let run = porter.run(context.clock.clone(), idle.clone());
        OperatorInstance { run: Box::pin(run), idle: Box::new(move || idle.load(Ordering::SeqCst)) }
    }

    async fn perform(&self, harness: &Harness) -> Result<()> {
        let parcels: Api<ConfigMap> = harness.api();
        for name in ["a", "b"] {
            let parcel = json!({ "metadata": { "name": name, "labels": { "courier": "parcel" } } });
            parcels.create(&PostParams::default(), &serde_json::from_value(parcel)?).await?;
        }
        harness.start().await?;
        let delivered = || async {
            let all = parcels.list(&ListParams::default().labels("courier=parcel")).await.map_err(|e| e.to_string())?;
            match all.iter().find(|parcel| parcel.annotations().get("delivered").is_none()) {
                Some(parcel) => Err(format!("{} is not delivered", parcel.name_any())),
                None => Ok(()),
            }
        };
        harness.settle("both parcels are delivered", delivered).await
    }

    async fn final_state(&self, harness: &Harness) -> Result<Value> {
        harness.snapshot::<ConfigMap>().await
    }

    fn side_effects(&self, harness: &Harness) -> Result<Vec<String>> {
        let mut lines = lines(&harness.external_dir().join("delivered"));
        lines.sort();
        Ok(lines)
    }
}

struct FlawedOperator {
    flaw: Flaw,
    parcels: Api<ConfigMap>,
    file: PathBuf,
    forgotten: HashSet<String>,
}

impl FlawedOperator {
    async fn run(mut self, clock: Clock, idle: Arc<AtomicBool>) -> Result<(), String> {
        let params = ListParams::default().labels("courier=parcel");
        loop {
            idle.store(false, Ordering::SeqCst);
            let all = tokio::select! {
                all = self.parcels.list(&params) => all.map(|all| all.items),
                () = clock.sleep(Duration::from_secs(30)) => Ok(Vec::new()),
            };
            let all = match all {
                Err(_) if self.flaw == Flaw::GivesUp => std::future::pending().await,
                all => all.unwrap_or_default(),
            };
            for parcel in all {
                tokio::select! {
                    () = self.deliver(&parcel) => {}
                    () = clock.sleep(Duration::from_secs(30)) => {}
                }
            }
            idle.store(true, Ordering::SeqCst);
            clock.sleep(Duration::from_secs(10)).await;
        }
    }

    async fn deliver(&mut self, parcel: &ConfigMap) {
        let name = parcel.name_any();
        if parcel.annotations().contains_key("delivered") || self.forgotten.contains(&name) {
            return;
        }
        if self.flaw == Flaw::ActsFirst {
            append(&self.file, &name);
        } else {
            if !parcel.annotations().contains_key("intended") {
                if !self.annotate(parcel, "intended").await {
                    return;
                }
                // Conflict: continue in the next round.
                return;
            }
            if !lines(&self.file).contains(&name) {
                append(&self.file, &name);
            }
        }
        self.annotate(parcel, "delivered").await;
    }

    async fn annotate(&mut self, parcel: &ConfigMap, what: &str) -> bool {
        let patch = json!({ "metadata": {
            "resourceVersion": parcel.resource_version(), "annotations": { what: "yes" },
        } });
        let done = self.parcels.patch(&parcel.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
        if done.is_err() && self.flaw == Flaw::IgnoresConflicts {
            self.forgotten.insert(parcel.name_any());
        }
        done.is_ok()
    }
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn append(file: &Path, line: &str) {
    let mut file = fs::File::options().create(true).append(true).open(file).unwrap();
    writeln!(file, "{line}").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_without_a_flaw_survives_every_crash() {
    let report = crash_at_every_call(Delivery { flaw: Flaw::None }, &TestServer::InProcess).await.unwrap();
    report.unwrap();
    assert!(report.disturbed >= 12, "{report}: crashes must really have happened");
    assert_eq!(report.starts, 2 * report.disturbed + report.missed, "{report}: every crashed operator lived twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_acts_before_it_writes_is_caught_by_a_crash() {
    let report = crash_at_every_call(Delivery { flaw: Flaw::ActsFirst }, &TestServer::InProcess).await.unwrap();
    assert!(!report.failures.is_empty(), "{report}");
    // A crash before the patch causes a second delivery. A crash after it loses nothing.
    for failure in &report.failures {
        assert!(failure.contains("crash before call") && failure.contains("(patch configmaps"), "{failure}");
        assert!(failure.contains("the acts were"), "{failure}");
    }
    assert_eq!(report.failures.len(), 2, "one for each parcel: {:#?}", report.failures);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_without_a_flaw_survives_trouble() {
    let (seeds, rates) = (FaultInjector::seeds(40), FaultRates::mixed());
    let report = under_faults(Delivery { flaw: Flaw::None }, &TestServer::InProcess, &seeds, &rates).await.unwrap();
    report.unwrap();
    assert!(report.troubles.values().sum::<usize>() >= report.disturbed, "{report}: trouble must have struck");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_ignores_conflicts_is_caught_by_trouble() {
    let rates = FaultRates { conflict: 0.5, ..FaultRates::none() };
    let report = under_faults(Delivery { flaw: Flaw::IgnoresConflicts }, &TestServer::InProcess, &[1, 3, 5, 7], &rates);
    let report = report.await.unwrap();
    assert!(!report.failures.is_empty(), "{report}");
    assert!(report.failures[0].contains("is not delivered"), "{}", report.failures[0]);
    assert!(report.failures[0].contains("RIG_SEED="), "{}", report.failures[0]);
    // Without the flaw the same faults are harmless: the rig detected the flaw, not the faults.
    let report = under_faults(Delivery { flaw: Flaw::None }, &TestServer::InProcess, &[1, 3, 5, 7], &rates);
    report.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_gives_up_when_the_server_is_gone_is_caught() {
    let calm = FaultRates::none();
    // Even seeds have an outage of one minute.
    let report = under_faults(Delivery { flaw: Flaw::GivesUp }, &TestServer::InProcess, &[2, 4], &calm).await.unwrap();
    assert!(!report.failures.is_empty(), "{report}");
    let report = under_faults(Delivery { flaw: Flaw::None }, &TestServer::InProcess, &[2, 4], &calm).await.unwrap();
    report.unwrap();
    assert!(report.troubles.contains_key("server gone"), "{report}");
}

//! The operator has the rights that it uses, and no others.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Result;
use fleetwright_api::Phase;
use fleetwright_machines::rules;
use fleetwright_rig::scenario::{Disturbance, run};
use fleetwright_rig::{Ground, Stage};
use fleetwright_sim::Fleet;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::DeleteParams;
use serde_json::json;

use crate::support::{Allowing, Story, Telling, delete, in_service, seconds};

/// Everything that an operator ever does to the API server.
async fn a_full_life(stage: &Stage, fleet: &Fleet) -> Result<()> {
    in_service(stage, fleet, &["a", "b"]).await?;
    stage.pod("a", "web", json!({ "app": "web" })).await?;
    stage.budget("web", json!({ "app": "web" }), 0).await?;
    stage.allow("web", 1, None).await?;
    stage.refer("a", "containerd", "containerd-2.4.2").await?;
    stage.phase("a", Phase::Ready).await?;
    // A Node that somebody deleted is missed.
    stage.nodes().delete(&stage.node_name("b"), &DeleteParams::default()).await?;
    stage.linger(seconds(30)).await?;
    delete(stage, "a").await?;
    stage.gone("a").await
}

const FULL_LIFE: Story = Story::new(|stage, fleet| Box::pin(a_full_life(stage, fleet)));

/// A right: where, to what, and what to do with it.
type Right = (&'static str, String, String);

fn rights(place: &'static str, rules: &[PolicyRule]) -> Vec<Right> {
    let mut rights = Vec::new();
    for rule in rules {
        let group = rule.api_groups.iter().flatten().next().cloned().unwrap_or_default();
        for resource in rule.resources.iter().flatten() {
            let (name, sub) = resource.split_once('/').unwrap_or((resource, ""));
            let dot = if group.is_empty() { "" } else { "." };
            let sub = if sub.is_empty() { String::new() } else { format!("/{sub}") };
            for verb in &rule.verbs {
                rights.push((place, format!("{name}{dot}{group}{sub}"), verb.clone()));
            }
        }
    }
    rights
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call() {
    let (_, stage) = run(&Arc::new(FULL_LIFE), &Ground::InProcess, Disturbance::None).await.unwrap();
    let given = rules();
    let mut all = rights("namespace", &given.namespaced);
    all.extend(rights("kube-system", &given.tokens));
    all.extend(rights("cluster", &given.cluster));
    let mut used = BTreeSet::new();
    for record in stage.recorder().since(0) {
        let call = record.call;
        // The lease is the kit's, and its rights are given with it.
        if call.resource == "leases.coordination.k8s.io" {
            continue;
        }
        let sub = if call.subresource.is_empty() { String::new() } else { format!("/{}", call.subresource) };
        let verb = if call.verb == "apply" { "patch" } else { call.verb }.to_owned();
        let place = match &*call.namespace {
            "kube-system" => "kube-system",
            namespace if namespace == stage.namespace() => "namespace",
            _ => "cluster",
        };
        let (what, anywhere) = (format!("{}{sub}", call.resource), "cluster");
        let right = [place, anywhere].map(|place| (place, what.clone(), verb.clone()));
        let found = right.into_iter().find(|right| all.contains(right));
        used.insert(found.unwrap_or_else(|| panic!("nobody gives the right to {verb} {what} in {place}")));
    }
    // What the journal needs is shown where it is kept; approving for a signer is asked by the server when a request is approved; a window
    // of an old life and a withdrawn Operation are other stories.
    let elsewhere = |(_, what, _): &Right| what.starts_with("operation") || what.starts_with("signers.");
    // A server without streaming lists is asked for a list before it is watched.
    let watched =
        |(place, what, verb): &Right| verb == "list" && used.contains(&(*place, what.clone(), "watch".to_owned()));
    let unused: Vec<_> =
        all.iter().filter(|right| !(used.contains(*right) || elsewhere(right) || watched(right))).collect();
    assert!(unused.is_empty(), "nobody uses these rights: {unused:?}");
}

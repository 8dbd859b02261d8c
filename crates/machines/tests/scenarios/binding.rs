//! A Machine acts on the Node that is bound to it by uid, and on no other Node of that name.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use fleetwright_api::{Machine, NodeBinding, Phase, Status, names};
use fleetwright_rig::Harness;
use fleetwright_sim::{Fleet, demo};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{MachineSteps, delete, ensure, in_service, of, seconds, shown};

fn bound(machine: &Machine) -> Option<(String, NodeBinding)> {
    let node = machine.status.as_ref()?.node_ref.clone()?;
    Some((node.uid?, node.binding?))
}

/// The attack: a user with write access to Machines names a Machine after another host's Node, and deletes it again.
pub async fn a_machine_named_after_a_foreign_node_does_nothing_to_it(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let before = harness.foreign_node("a").await?;
    let pod = json!({
        "metadata": { "name": "web", "annotations": { names::EVICT: "true" } },
        "spec": { "nodeName": harness.node_name("a"), "containers": [{ "name": "c", "image": "i" }] },
    });
    harness.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let taints = json!([{ "key": "pool", "effect": "NoExecute" }]);
    let declared = json!({ "spec": { "nodeLabels": { "pool": "stolen" }, "taints": taints } });
    let host = harness.machine(fleet, "a", declared).await?;
    harness.start().await?;
    let said = harness.says("a", names::UP_TO_DATE, Status::False, "NodeNotBound").await?;
    ensure(said.message.contains("fleetwright machine bind-node a"), said.message)?;
    harness.run_for(seconds(1800)).await?;
    ensure(harness.tokens("a").await? == 0, "no token is given for the name of a foreign Node")?;
    ensure(host.journal().is_empty(), "its host was changed")?;
    let seen = harness.get("a").await?;
    ensure(bound(&seen).is_none(), shown(&seen))?;
    delete(harness, "a").await?;
    harness.gone("a").await?;
    let after = harness.nodes().get(&harness.node_name("a")).await.context("the Node was deleted")?;
    ensure(after.uid() == before.uid(), "it is another Node")?;
    ensure(after.labels() == before.labels(), format!("it was labelled: {:?}", after.labels()))?;
    ensure(after.spec == before.spec, format!("it was closed or tainted: {:?}", after.spec))?;
    let pod = harness.api::<Pod>().get("web").await.context("its pod was evicted")?;
    ensure(pod.metadata.deletion_timestamp.is_none(), "its pod was evicted")?;
    harness.nodes().delete(&harness.node_name("a"), &DeleteParams::default()).await?;
    Ok(())
}

pub async fn a_node_that_a_person_bound_joins_and_leaves_like_any_other(
    harness: &Harness,
    fleet: &Fleet,
) -> Result<()> {
    let node = harness.foreign_node("a").await?;
    harness.machine(fleet, "a", json!({})).await?;
    harness.start().await?;
    harness.says("a", names::UP_TO_DATE, Status::False, "NodeNotBound").await?;
    harness.bind_node("a").await?;
    let seen = harness.phase("a", Phase::Ready).await?;
    ensure(bound(&seen) == node.uid().map(|uid| (uid, NodeBinding::Adopted)), shown(&seen))?;
    delete(harness, "a").await?;
    harness.gone("a").await?;
    ensure(harness.nodes().get_opt(&harness.node_name("a")).await?.is_none(), "its Node is deleted with it")
}

/// The taints of a Node, as kubectl writes them.
fn taints_of(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut taints: Vec<String> =
        taints.map(|one| format!("{}={}:{}", one.key, one.value.as_deref().unwrap_or_default(), one.effect)).collect();
    taints.sort();
    taints
}

/// Waits until the Node of `a` has the taints of others, and these.
async fn tainted(harness: &Harness, others: &[String], ours: &[&str]) -> Result<()> {
    let mut wanted: Vec<String> = others.iter().cloned().chain(ours.iter().map(|&one| one.to_owned())).collect();
    wanted.sort();
    let (name, wanted) = (&harness.node_name("a"), &wanted);
    let reached = || async move {
        let found = taints_of(&harness.nodes().get(name).await.map_err(|error| error.to_string())?);
        if found == *wanted { Ok(()) } else { Err(format!("{found:?}")) }
    };
    harness.settle(&format!("the Node has the taints {wanted:?}"), reached).await
}

/// A label that a kubelet may not remove from its Node.
const KEPT: &str = "node-restriction.kubernetes.io/tier";

/// A machine in service is edited. Labels and taints of others on its Node stay.
pub async fn edits_of_labels_taints_and_provider_reach_the_bound_node(harness: &Harness, fleet: &Fleet) -> Result<()> {
    harness.foreign_node("a").await?;
    harness.machine(fleet, "a", json!({})).await?;
    harness.machine(fleet, "b", json!({})).await?;
    harness.start().await?;
    harness.says("a", names::UP_TO_DATE, Status::False, "NodeNotBound").await?;
    harness.bind_node("a").await?;
    harness.phase("a", Phase::Ready).await?;
    let name = harness.node_name("a");
    let mut taints = harness.nodes().get(&name).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.push(serde_json::from_value(json!({ "key": "quarantine", "effect": "NoExecute" }))?);
    // A kubelet may write annotations of its Node. Earlier versions removed the labels that this one names.
    let metadata = json!({ "labels": { KEPT: "1" }, "annotations": { names::NODE_LABELS: KEPT } });
    let by_hand = Patch::Merge(json!({ "metadata": metadata, "spec": { "taints": taints } }));
    let others = taints_of(&harness.nodes().patch(&name, &PatchParams::default(), &by_hand).await?);
    ensure(others.contains(&"quarantine=:NoExecute".to_owned()), format!("{others:?}"))?;
    // Afterwards the operator has seen the label, too.
    let node = &name;
    let removed = || async move {
        let node = harness.nodes().get(node).await.map_err(|error| error.to_string())?;
        if node.annotations().contains_key(names::NODE_LABELS) { Err("it is still there".to_owned()) } else { Ok(()) }
    };
    harness.settle("the annotation is removed", removed).await?;

    let taint = |value: &str| json!([{ "key": "gpu", "value": value, "effect": "NoSchedule" }]);
    let has =
        |labels: &BTreeMap<String, String>, key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    let labels = json!({ "pool": "gpu", KEPT: "2" });
    let declared = json!({ "nodeLabels": labels, "providerID": "bare://a", "taints": taint("yes") });
    harness.patch("a", json!({ "spec": declared })).await?;
    tainted(harness, &others, &["gpu=yes:NoSchedule"]).await?;
    let labels = harness.nodes().get(&name).await?.labels().clone();
    ensure(has(&labels, "pool", "gpu") && has(&labels, KEPT, "1"), format!("{labels:?}"))?;
    let said = harness.says("a", names::UP_TO_DATE, Status::False, "LabelMismatch").await?;
    ensure(said.message.contains(KEPT), said.message)?;
    harness.patch("a", json!({ "spec": { "nodeLabels": { "pool": "batch" }, "taints": taint("no") } })).await?;
    tainted(harness, &others, &["gpu=no:NoSchedule"]).await?;
    let labels = harness.nodes().get(&name).await?.labels().clone();
    ensure(has(&labels, "pool", "batch") && has(&labels, KEPT, "1"), format!("{labels:?}"))?;
    let by_hand = Patch::Merge(json!({ "spec": { "taints": taints } }));
    harness.nodes().patch(&name, &PatchParams::default(), &by_hand).await?;
    tainted(harness, &others, &["gpu=no:NoSchedule"]).await?;
    harness.patch("a", json!({ "spec": { "taints": null, "nodeLabels": null } })).await?;
    tainted(harness, &others, &[]).await?;
    let name = &name;
    let reached = || async move {
        let node = harness.nodes().get(name).await.map_err(|error| error.to_string())?;
        let (labels, annotated) = (node.labels().clone(), node.annotations().contains_key(names::NODE_LABELS));
        let is_left = !annotated && !labels.contains_key("pool") && has(&labels, KEPT, "1");
        match node.spec.unwrap_or_default().provider_id.as_deref() {
            Some("bare://a") if is_left => Ok(()),
            other => Err(format!("labels {labels:?}, annotated {annotated}, provider {other:?}")),
        }
    };
    harness.settle("the Node has the provider's name, and no label of the machine any more", reached).await?;

    // A kubelet gave this Node another provider id.
    harness.phase("b", Phase::Ready).await?;
    harness.patch("b", json!({ "spec": { "providerID": "bare://b" } })).await?;
    let said = harness.says("b", names::UP_TO_DATE, Status::False, "ProviderIDMismatch").await?;
    ensure(said.message.contains("sim://b") && said.message.contains("bare://b"), said.message)
}

/// A Node that was deleted, and that its kubelet registers again with its present certificate.
pub async fn a_node_that_registers_again_is_bound_again(harness: &Harness, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(harness, fleet, &["a"]).await?;
    let first = harness.nodes().get(&harness.node_name("a")).await?.uid().context("no uid")?;
    ensure(bound(&harness.get("a").await?) == Some((first.clone(), NodeBinding::Joined)), "it is bound")?;
    harness.nodes().delete(&harness.node_name("a"), &DeleteParams::default()).await?;
    hosts[0].reboot();
    let again = |seen: &Machine| match bound(seen) {
        Some((uid, NodeBinding::Joined)) if uid != first => Ok(()),
        _ => Err(shown(seen)),
    };
    harness.until("a", "is bound to its new Node", again).await?;
    // The operator uses the new Node: it is drained for an upgrade.
    harness.pod("a", "web", json!({ "app": "web" })).await?;
    harness.refer("a", "containerd", "containerd-2.4.2").await?;
    harness.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    // While the upgrade waits, the machine is Ready as before.
    let upgraded = |seen: &Machine| match of(seen, "kubelet").and_then(|found| found.observed).as_deref() {
        Some("1.37.1") => Ok(()),
        _ => Err(shown(seen)),
    };
    harness.until("a", "has its new kubelet", upgraded).await?;
    harness.phase("a", Phase::Ready).await?;
    ensure(harness.pods().await?.is_empty(), "the pod had to leave")?;
    harness.opened("a").await
}

//! A Machine acts on the Node that is bound to it by uid, and on no other Node of that name.

use anyhow::{Context, Result};
use fleetwright_api::{Machine, NodeBinding, Phase, Status, names};
use fleetwright_rig::Stage;
use fleetwright_sim::{Fleet, demo};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::support::{Telling, delete, ensure, in_service, of, seconds, shown};

fn bound(machine: &Machine) -> Option<(String, NodeBinding)> {
    let node = machine.status.as_ref()?.node_ref.clone()?;
    Some((node.uid?, node.binding?))
}

/// The attack: who may write Machines names one after a Node of somebody else, and deletes it again.
pub async fn a_machine_named_after_a_foreign_node_does_nothing_to_it(stage: &Stage, fleet: &Fleet) -> Result<()> {
    let before = stage.foreign_node("a").await?;
    let labels = json!({ "spec": { "nodeLabels": { "pool": "stolen" } } });
    let host = stage.machine(fleet, "a", labels).await?;
    stage.start().await?;
    let said = stage.says("a", names::UP_TO_DATE, Status::False, "NodeNotBound").await?;
    ensure(said.message.contains("fleetwright machine bind-node a"), said.message)?;
    stage.linger(seconds(1800)).await?;
    ensure(stage.tokens("a").await? == 0, "no token is given for the name of a foreign Node")?;
    ensure(host.journal().is_empty(), "its host was changed")?;
    let seen = stage.get("a").await?;
    ensure(bound(&seen).is_none(), shown(&seen))?;
    delete(stage, "a").await?;
    stage.gone("a").await?;
    let after = stage.nodes().get(&stage.node_name("a")).await.context("the Node was deleted")?;
    ensure(after.uid() == before.uid(), "it is another Node")?;
    ensure(after.labels().get("pool").is_none(), "it was labelled")?;
    let taints = |node: &k8s_openapi::api::core::v1::Node| node.spec.clone().and_then(|spec| spec.taints);
    ensure(taints(&after) == taints(&before), format!("it was tainted: {:?}", taints(&after)))?;
    stage.nodes().delete(&stage.node_name("a"), &DeleteParams::default()).await?;
    Ok(())
}

pub async fn a_node_that_a_person_bound_joins_and_leaves_like_any_other(stage: &Stage, fleet: &Fleet) -> Result<()> {
    let node = stage.foreign_node("a").await?;
    stage.machine(fleet, "a", json!({})).await?;
    stage.start().await?;
    stage.says("a", names::UP_TO_DATE, Status::False, "NodeNotBound").await?;
    stage.bind_node("a").await?;
    let seen = stage.phase("a", Phase::Ready).await?;
    ensure(bound(&seen) == node.uid().map(|uid| (uid, NodeBinding::Adopted)), shown(&seen))?;
    delete(stage, "a").await?;
    stage.gone("a").await?;
    ensure(stage.nodes().get_opt(&stage.node_name("a")).await?.is_none(), "its Node is deleted with it")
}

/// A Node that was deleted, and that its kubelet registers again with the certificate that it has.
pub async fn a_node_that_registers_again_is_bound_again(stage: &Stage, fleet: &Fleet) -> Result<()> {
    let hosts = in_service(stage, fleet, &["a"]).await?;
    let first = stage.nodes().get(&stage.node_name("a")).await?.uid().context("no uid")?;
    ensure(bound(&stage.get("a").await?) == Some((first.clone(), NodeBinding::Joined)), "it is bound")?;
    stage.nodes().delete(&stage.node_name("a"), &DeleteParams::default()).await?;
    hosts[0].reboot();
    let again = |seen: &Machine| match bound(seen) {
        Some((uid, NodeBinding::Joined)) if uid != first => Ok(()),
        _ => Err(shown(seen)),
    };
    stage.until("a", "is bound to its new Node", again).await?;
    // The operator works with the new one: it is drained for an upgrade.
    stage.pod("a", "web", json!({ "app": "web" })).await?;
    stage.refer("a", "containerd", "containerd-2.4.2").await?;
    stage.refer("a", "kubelet", demo::NEWER_KUBELET).await?;
    let seen = stage.phase("a", Phase::Ready).await?;
    ensure(of(&seen, "kubelet").and_then(|found| found.observed).as_deref() == Some("1.37.1"), shown(&seen))?;
    ensure(stage.pods().await?.is_empty(), "the pod had to leave")?;
    stage.opened("a").await
}

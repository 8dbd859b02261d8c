//! Machines and nodes that are joined hold a cluster that is to be deleted.

use fleetwright_api::{
    ClusterStatus, Condition, Machine, MachineSpec, Operation, OperationPhase, Status, condition, names,
};
use fleetwright_lab::{ServerKind, define};
use fleetwright_sim::meta::VersionDefect;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::{FLEET, TestFleet, not_accepted};
use crate::versions::{business, mend};

impl TestFleet {
    async fn held(&self, message: &str) -> Condition {
        self.until(&format!("it says {message}"), async || {
            let status = self.status("pay").await;
            let accepted = condition(&status.conditions, names::ACCEPTED).cloned();
            match accepted {
                Some(one)
                    if one.status == Status::False
                        && one.reason == names::reasons::MACHINES_JOINED
                        && one.message.contains(message) =>
                {
                    Ok(one)
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until it says that the pause blocks its deletion.
    async fn blocked(&self) -> ClusterStatus {
        self.until("it says that the pause blocks its deletion", async || {
            let status = self.status("pay").await;
            let accepted = condition(&status.conditions, names::ACCEPTED).cloned();
            match accepted {
                Some(one) if one.status == Status::False && one.reason == names::reasons::PAUSED => Ok(status),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// A cluster that releases its machines when it is deleted, with a machine and a disruption budget.
    async fn with_a_machine(&self) -> (Api<Machine>, Api<PodDisruptionBudget>) {
        self.create("pay", |spec| {
            spec.replicas = 1;
            spec.on_delete = fleetwright_api::ClusterOnDelete::ReleaseMachines;
        })
        .await;
        self.ready("pay").await;
        let client = business(self).await;
        let kind = fleetwright_api::crds().into_iter().find(|one| one.spec.names.kind == "Machine").unwrap();
        define(&client, &[kind]).await.unwrap();
        let machines: Api<Machine> = Api::default_namespaced(client.clone());
        let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client);
        let metadata = ObjectMeta { name: Some("keeps-the-last".to_owned()), ..ObjectMeta::default() };
        let budget = PodDisruptionBudget { metadata, ..PodDisruptionBudget::default() };
        budgets.create(&PostParams::default(), &budget).await.unwrap();
        let machine =
            Machine::new("host-17", MachineSpec { addresses: vec!["192.0.2.1".into()], ..MachineSpec::default() });
        machines.create(&PostParams::default(), &machine).await.unwrap();
        (machines, budgets)
    }

    pub async fn gone(&self) {
        self.until("it is gone", async || {
            let cluster = self.clusters().get_opt("pay").await.unwrap();
            let namespace = Api::<Namespace>::all(self.client.clone()).get_opt("fleet-pay").await.unwrap();
            match (cluster, namespace) {
                (None, None) => Ok(()),
                (cluster, _) => Err(format!("{:?}", cluster.map(|one| one.status))),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_nodes_is_not_deleted_until_they_are_gone() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let nodes: Api<Node> = Api::all(business(&world).await);
    let metadata = ObjectMeta { name: Some("host-17".to_owned()), ..ObjectMeta::default() };
    nodes.create(&PostParams::default(), &Node { metadata, ..Node::default() }).await.unwrap();
    world.delete("pay").await;
    let said = world.held("1 node ").await.message;
    assert!(said.contains("0 machines") && said.contains("ReleaseMachines"), "{said}");
    let events: Api<Event> = Api::namespaced(world.client.clone(), crate::support::FLEET);
    world
        .until("an event tells it", async || {
            let all = events.list(&Default::default()).await.unwrap().items;
            match all.iter().any(|one| one.reason.as_deref() == Some(names::reasons::MACHINES_JOINED)) {
                true => Ok(()),
                false => Err(format!("{} others", all.len())),
            }
        })
        .await;
    nodes.delete("host-17", &DeleteParams::default()).await.unwrap();
    world.gone().await;
}

async fn machines_are_released(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let client = business(&world).await;
    let kind = fleetwright_api::crds().into_iter().find(|one| one.spec.names.kind == "Machine").unwrap();
    define(&client, &[kind]).await.unwrap();
    let machines: Api<Machine> = Api::default_namespaced(client.clone());
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client);
    let metadata = ObjectMeta { name: Some("keeps-the-last".to_owned()), ..ObjectMeta::default() };
    let budget = PodDisruptionBudget { metadata, ..PodDisruptionBudget::default() };
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    let mut machine =
        Machine::new("host-17", MachineSpec { addresses: vec!["192.0.2.1".into()], ..MachineSpec::default() });
    machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
    machines.create(&PostParams::default(), &machine).await.unwrap();
    world.delete("pay").await;
    let said = world.held("1 machine ").await.message;
    assert!(said.contains("0 nodes"), "{said}");
    assert!(machines.get("host-17").await.unwrap().metadata.deletion_timestamp.is_none());
    assert!(budgets.get_opt("keeps-the-last").await.unwrap().is_some());
    world.change("pay", json!({ "spec": { "onDelete": "ReleaseMachines" } })).await;
    // Nothing passes the gate before somebody says how many may.
    let said = world.held(names::FORCE_RELEASE).await.message;
    let said = if said.contains("OperationPolicy") { said } else { world.held("OperationPolicy").await.message };
    assert!(said.contains("ReleaseMachines") && said.contains("1 machine "), "{said}");
    assert!(machines.get("host-17").await.unwrap().metadata.deletion_timestamp.is_none());
    assert!(budgets.get_opt("keeps-the-last").await.unwrap().is_some());
    world.allow("ReleaseMachines").await;
    world.seen(&machines, "host-17", |one| one.metadata.deletion_timestamp.is_some()).await;
    assert!(budgets.get_opt("keeps-the-last").await.unwrap().is_none(), "its pods have nowhere else to go");
    let operations: Api<Operation> = Api::namespaced(world.client.clone(), crate::support::FLEET);
    world
        .until("the Operation tells what became of it", async || {
            let all = operations.list(&Default::default()).await.unwrap().items;
            let released = all
                .iter()
                .filter(|one| one.spec.type_ == "ReleaseMachines")
                .map(|one| (one.spec.target.name.clone(), one.status.as_ref().map(|status| status.phase)));
            let released: Vec<_> = released.collect();
            match &released[..] {
                [(target, Some(OperationPhase::Succeeded))] if target == "pay" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    // What the Machine-Operator does when it has cleaned the host.
    let free = json!({ "metadata": { "finalizers": null } });
    machines.patch("host-17", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    world.gone().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_released_first_where_that_is_wanted() {
    machines_are_released(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_released_first_where_that_is_wanted_on_real() {
    machines_are_released(ServerKind::Real).await;
}

/// What the operator could write to: everything of the control plane and the Cluster itself, but not the Cluster's status.
pub async fn written(world: &TestFleet) -> Vec<String> {
    let mut all = applied(world).await;
    // One that is terminating already may be gone the next time.
    let pods = world.api::<Pod>("pay").list(&Default::default()).await.unwrap().items.into_iter();
    let pods = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    all.extend(pods.map(|pod| format!("{} {:?}", pod.name_any(), pod.metadata.uid)));
    all
}

/// The same without pods, which controllers may still replace.
pub async fn applied(world: &TestFleet) -> Vec<String> {
    let mut all = Vec::new();
    let cluster = world.clusters().get("pay").await.unwrap().metadata;
    all.push(format!("{:?} {:?} {:?}", cluster.generation, cluster.finalizers, cluster.annotations));
    macro_rules! each {
        ($part:ident of $($kind:ty),*) => {
            $(
                for object in world.api::<$kind>("pay").list(&Default::default()).await.unwrap() {
                    all.push(format!("{} {:?} {:?}", object.name_any(), object.metadata.uid, object.$part));
                }
            )*
        };
    }
    use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
    use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    each!(metadata of ConfigMap, Secret, Service, NetworkPolicy);
    // Their status belongs to others.
    each!(spec of StatefulSet, Deployment, PodDisruptionBudget, PersistentVolumeClaim);
    let operations: Api<Operation> = Api::namespaced(world.client.clone(), crate::support::FLEET);
    let operations = operations.list(&Default::default()).await.unwrap().items.into_iter();
    all.extend(operations.filter(|one| one.spec.target.name == "pay").map(|one| one.name_any()));
    all
}

async fn a_pause_blocks_a_deletion(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    let (machines, budgets) = world.with_a_machine().await;
    world.allow("ReleaseMachines").await;
    world.change("pay", json!({ "spec": { "paused": true } })).await;
    world.delete("pay").await;
    let said = world.blocked().await.waiting_for.unwrap_or_default();
    assert!(said.contains("spec.paused"), "{said}");
    let before = written(&world).await;
    // The operator is at work for others, and knows no package version of this one any more.
    world.create("shop", |spec| spec.replicas = 1).await;
    world.ready("shop").await;
    world.change("pay", json!({ "metadata": { "annotations": { names::SNAPSHOT: "now" } } })).await;
    let wakes = json!({ "metadata": { "labels": { "looked": "again" } } });
    world.api::<Pod>("pay").patch("etcd-0", &PatchParams::default(), &Patch::Merge(wakes)).await.unwrap();
    world.create("late", |spec| spec.replicas = 1).await;
    world.ready("late").await;
    world.blocked().await;
    let (mut before, mut after) = (before, written(&world).await);
    // The annotation is the test's own.
    before.remove(0);
    after.remove(0);
    assert_eq!(before, after);
    assert_eq!(world.clusters().get("pay").await.unwrap().metadata.finalizers.unwrap_or_default().len(), 1);
    assert!(machines.get("host-17").await.unwrap().metadata.deletion_timestamp.is_none());
    assert!(budgets.get_opt("keeps-the-last").await.unwrap().is_some());

    world.change("pay", json!({ "spec": { "paused": false } })).await;
    world.gone().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_cluster_is_not_deleted_and_its_machines_are_not_released() {
    a_pause_blocks_a_deletion(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_cluster_is_not_deleted_and_its_machines_are_not_released_on_real() {
    a_pause_blocks_a_deletion(ServerKind::Real).await;
}

/// The Operation waits for the gate when the pause comes, and the gate opens during the pause, which wakes the Cluster.
async fn a_pause_holds_a_release(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    let (machines, budgets) = world.with_a_machine().await;
    world.delete("pay").await;
    world.held("OperationPolicy").await;
    world.operations("ReleaseMachines", &[OperationPhase::Pending]).await;
    world.change("pay", json!({ "spec": { "paused": true } })).await;
    world.blocked().await;
    world.allow("ReleaseMachines").await;
    // The operator is at work meanwhile.
    world.create("shop", |spec| spec.replicas = 1).await;
    world.ready("shop").await;
    world.blocked().await;
    world.operations("ReleaseMachines", &[OperationPhase::Pending]).await;
    assert!(machines.get("host-17").await.unwrap().metadata.deletion_timestamp.is_none());
    assert!(budgets.get_opt("keeps-the-last").await.unwrap().is_some());

    world.change("pay", json!({ "spec": { "paused": false } })).await;
    world.gone().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_a_release_that_waits_for_the_gate() {
    a_pause_holds_a_release(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_a_release_that_waits_for_the_gate_on_real() {
    a_pause_holds_a_release(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_cluster_that_was_never_made_goes_without_a_write_of_the_operator() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.paused = true).await;
    world.paused("pay").await;
    assert_eq!(world.clusters().get("pay").await.unwrap().metadata.finalizers, None);
    assert!(Api::<Namespace>::all(world.client.clone()).get_opt("fleet-pay").await.unwrap().is_none());
    world.delete("pay").await;
    world.gone().await;
}

/// People delete Deployments because the operator recreates them, and remove labels by mistake: neither starts the deletion that machines block.
async fn a_hold_survives(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let nodes: Api<Node> = Api::all(business(&world).await);
    let metadata = ObjectMeta { name: Some("host-17".to_owned()), ..ObjectMeta::default() };
    nodes.create(&PostParams::default(), &Node { metadata, ..Node::default() }).await.unwrap();
    world.delete("pay").await;
    world.held("1 node ").await;
    let deployments: Api<Deployment> = world.api("pay");
    let is_labelled = |one: &Deployment| one.labels().contains_key(names::CLUSTER_NAMESPACE);
    let before = deployments.get("kube-apiserver").await.unwrap().uid();
    deployments.delete("kube-apiserver", &DeleteParams::default()).await.unwrap();
    world.seen(&deployments, "kube-apiserver", |one| one.uid() != before && is_labelled(one)).await;
    let unlabel = json!({ "metadata": { "labels": { names::CLUSTER_NAMESPACE: null } } });
    deployments.patch("kube-apiserver", &PatchParams::default(), &Patch::Merge(unlabel.clone())).await.unwrap();
    world.seen(&deployments, "kube-apiserver", is_labelled).await;

    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.patch("fleet-pay", &PatchParams::default(), &Patch::Merge(unlabel)).await.unwrap();
    not_accepted(&world, "pay", names::reasons::WRITE_REFUSED, names::CLUSTER_NAMESPACE).await;
    let keys: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    assert!(keys.get_opt("pay.sealed-keys").await.unwrap().is_some(), "the keys are kept");
    let relabel = json!({ "metadata": { "labels": { names::CLUSTER_NAMESPACE: FLEET } } });
    namespaces.patch("fleet-pay", &PatchParams::default(), &Patch::Merge(relabel)).await.unwrap();
    world.held("1 node ").await;
    assert_eq!(namespaces.get("fleet-pay").await.unwrap().metadata.deletion_timestamp, None);
    for claim in world.api::<PersistentVolumeClaim>("pay").list(&Default::default()).await.unwrap() {
        assert_eq!(claim.metadata.deletion_timestamp, None, "{}", claim.name_any());
    }
    // The Node outlives the API server that was replaced: the data is the same.
    nodes_of(&world).await.delete("host-17", &DeleteParams::default()).await.unwrap();
    world.gone().await;
    world.stop().await;
}

/// The Nodes of the business cluster, at its present API server.
async fn nodes_of(world: &TestFleet) -> Api<Node> {
    let nodes: Api<Node> = Api::all(business(world).await);
    world.until("an API server answers", async || nodes.get("host-17").await.map_err(|error| error.to_string())).await;
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_is_deleted_and_a_label_that_is_removed_start_no_deletion_that_machines_block() {
    a_hold_survives(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_is_deleted_and_a_label_that_is_removed_start_no_deletion_that_machines_block_on_real() {
    a_hold_survives(ServerKind::Real).await;
}

/// Its API server ends, and no other becomes ready.
async fn break_server(world: &TestFleet) {
    world.meta.declare("kube-apiserver", "v1.36.4", Some(VersionDefect::NeverReady));
    let pods: Api<Pod> = world.api("pay");
    for pod in pods.list(&Default::default()).await.unwrap().items {
        if pod.name_any().starts_with("kube-apiserver") {
            pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
        }
    }
    world
        .until("its API server is gone", async || {
            let all = pods.list(&Default::default()).await.unwrap().items;
            let ready = all.iter().filter(|pod| pod.name_any().starts_with("kube-apiserver")).any(|pod| {
                let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
                conditions.any(|one| one.type_ == "Ready" && one.status == "True")
            });
            if ready { Err("it is ready".to_owned()) } else { Ok(()) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_api_server_holds_a_cluster_only_until_somebody_says_otherwise() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    break_server(&world).await;
    world.delete("pay").await;
    world.held("cannot list").await;
    world.change("pay", json!({ "spec": { "onDelete": "ReleaseMachines" } })).await;
    // Several attempts over two minutes.
    world.held("lasts 2 minutes").await;
    world.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_for_a_moment_does_not_cost_the_machines_their_control_plane() {
    let world = TestFleet::start().await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.on_delete = fleetwright_api::ClusterOnDelete::ReleaseMachines;
        })
        .await;
    world.ready("pay").await;
    let client = business(&world).await;
    let kind = fleetwright_api::crds().into_iter().find(|one| one.spec.names.kind == "Machine").unwrap();
    define(&client, &[kind]).await.unwrap();
    let mut machine =
        Machine::new("host-17", MachineSpec { addresses: vec!["192.0.2.1".into()], ..MachineSpec::default() });
    machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
    Api::<Machine>::default_namespaced(client).create(&PostParams::default(), &machine).await.unwrap();
    break_server(&world).await;
    world.delete("pay").await;
    world.held("lasts 2 minutes").await;
    // More attempts fail, also those of an operator that was just started.
    let mut world = world;
    world.operator_stops().await;
    world.operator_starts();
    world.held("lasts 2 minutes").await;
    tokio::time::sleep(std::time::Duration::from_secs(25)).await;
    let cluster = world.clusters().get("pay").await.unwrap();
    assert!(cluster.metadata.deletion_timestamp.is_some());
    let namespace = Api::<Namespace>::all(world.client.clone()).get("fleet-pay").await.unwrap();
    assert_eq!(namespace.metadata.deletion_timestamp, None, "nothing of it is deleted");
    // It comes back: the machine is found, and released before anything else.
    mend(&world, "v1.36.4").await;
    let said = world.held(names::FORCE_RELEASE).await.message;
    assert!(said.contains("default/host-17"), "{said}");
    world.allow("ReleaseMachines").await;
    let machines: Api<Machine> = Api::default_namespaced(business(&world).await);
    world.seen(&machines, "host-17", |one| one.metadata.deletion_timestamp.is_some()).await;
    let free = json!({ "metadata": { "finalizers": null } });
    machines.patch("host-17", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    world.gone().await;
}

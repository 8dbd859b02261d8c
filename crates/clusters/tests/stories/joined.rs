//! Machines and nodes that are joined hold a cluster that is to be deleted.

use fleetwright_api::{Condition, Machine, MachineSpec, Status, condition, names};
use fleetwright_lab::define;
use fleetwright_sim::meta::Bad;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::World;
use crate::versions::business;

impl World {
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

    async fn gone(&self) {
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
    let world = World::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let nodes: Api<Node> = Api::all(business(&world).await);
    let metadata = ObjectMeta { name: Some("host-17".to_owned()), ..ObjectMeta::default() };
    nodes.create(&PostParams::default(), &Node { metadata, ..Node::default() }).await.unwrap();
    world.delete("pay").await;
    let said = world.held("0 machines and 1 node are joined: host-17").await.message;
    assert!(said.contains("set spec.onDelete to ReleaseMachines"), "{said}");
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

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_let_go_first_where_that_is_wanted() {
    let world = World::start().await;
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
    world.held("1 machine and 0 nodes are joined: default/host-17").await;
    assert!(machines.get("host-17").await.unwrap().metadata.deletion_timestamp.is_none());
    assert!(budgets.get_opt("keeps-the-last").await.unwrap().is_some());
    world.change("pay", json!({ "spec": { "onDelete": "ReleaseMachines" } })).await;
    world.held("1 machine must be let go first").await;
    world.seen(&machines, "host-17", |one| one.metadata.deletion_timestamp.is_some()).await;
    assert!(budgets.get_opt("keeps-the-last").await.unwrap().is_none(), "its pods have nowhere else to go");
    // What the Machine-Operator does when it has cleaned the host.
    let free = json!({ "metadata": { "finalizers": null } });
    machines.patch("host-17", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    world.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_api_server_holds_a_cluster_only_until_somebody_says_otherwise() {
    let world = World::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    world.meta.declare("kube-apiserver", "v1.36.4", Some(Bad::NeverReady));
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
    world.delete("pay").await;
    world.held("nobody can tell whether machines are joined").await;
    world.change("pay", json!({ "spec": { "onDelete": "ReleaseMachines" } })).await;
    world.gone().await;
}

//! Policies of control planes on a real API, and networks of the meta cluster.

use fleetwright_api::{Status, condition, names};
use fleetwright_lab::ServerKind;
use fleetwright_plan::cluster::networks::{MetaNetworks, Network};
use fleetwright_plan::cluster::policies::DEFAULT_DENY;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::TestFleet;

/// A control plane gets its policies and keeps its pods when networks become known. Pods at their addresses are refused if the cluster is new; Services are not.
async fn confined(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let policies: Api<NetworkPolicy> = world.api("pay");
    world.seen(&policies, DEFAULT_DENY, |one| one.metadata.deletion_timestamp.is_none()).await;
    let mut there: Vec<_> =
        policies.list(&Default::default()).await.unwrap().iter().map(|one| one.name_any()).collect();
    there.sort();
    let wanted =
        [DEFAULT_DENY, "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "names", "snapshot"];
    assert_eq!(there, wanted);
    let page = world.metrics.encode();
    assert!(page.contains("fleetwright_cluster_meta_networks 0"), "{page}");
    assert!(!page.contains(r#"repairs_total{kind="NetworkPolicy"}"#), "what was applied is not as it was said: {page}");

    // Somebody opens it; that does not last.
    let open = json!({ "spec": { "egress": [{}] } });
    policies.patch(DEFAULT_DENY, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(open)).await.unwrap();
    let rules = |one: &NetworkPolicy| json!(one.spec)["egress"].as_array().map_or(0, Vec::len);
    world.seen(&policies, DEFAULT_DENY, |one| rules(one) == 0).await;
    world
        .until("a repair is counted", async || {
            let page = world.metrics.encode();
            if page.contains(r#"repairs_total{kind="NetworkPolicy"} 1"#) { Ok(()) } else { Err(page) }
        })
        .await;

    let pods: Api<Pod> = world.api("pay");
    let uids = async |pods: &Api<Pod>| -> Vec<_> {
        let mut all: Vec<_> =
            pods.list(&Default::default()).await.unwrap().iter().filter_map(ResourceExt::uid).collect();
        all.sort();
        all
    };
    let before = uids(&pods).await;
    world.operator_stops().await;
    let networks = ["10.96.0.0/12", "10.244.0.0/24", "192.0.2.7"].map(|one| one.parse::<Network>().unwrap()).into();
    world.networks = Box::leak(Box::new(MetaNetworks { networks, ..MetaNetworks::default() }));
    world.operator_starts();
    let excepts = |one: &NetworkPolicy| {
        let text = json!(one.spec).to_string();
        ["10.96.0.0/12", "10.244.0.0/24", "192.0.2.7/32", "169.254.0.0/16"].iter().all(|one| text.contains(one))
    };
    world.seen(&policies, "kube-apiserver", excepts).await;
    assert!(world.metrics.encode().contains("fleetwright_cluster_meta_networks 3"));

    // By default pods and Services are at addresses of this meta cluster. The first cluster existed before that was known.
    world.create("shop", |spec| spec.replicas = 1).await;
    let message = world
        .until("a new one is refused", async || {
            let status = world.status("shop").await;
            match condition(&status.conditions, names::ACCEPTED) {
                Some(one) if one.status == Status::False => Ok((one.reason.clone(), one.message.clone())),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    assert_eq!(message.0, names::reasons::NETWORK_OVERLAPS);
    for part in ["spec.network.pods 10.244.0.0/16", "10.244.0.0/24", "spec.network.pods: 10.64.0.0/16"] {
        assert!(message.1.contains(part), "{part} in {}", message.1);
    }
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    assert!(namespaces.get_opt("fleet-shop").await.unwrap().is_none(), "something was made of it");
    let status = world.ready("pay").await;
    assert!(fleetwright_api::is_true(&status.conditions, names::ACCEPTED), "{status:#?}");
    assert_eq!(uids(&pods).await, before, "pods were made again");
    // With the pods that the message proposes and the Services of a meta cluster that kubeadm made, which are the default, it is accepted and works.
    world.create("till", |spec| (spec.replicas, spec.network.pods) = (1, "10.64.0.0/16".to_owned())).await;
    let status = world.ready("till").await;
    assert!(fleetwright_api::is_true(&status.conditions, names::ACCEPTED), "{status:#?}");
    world.delete("shop").await;
    world
        .until("it is gone", async || match world.clusters().get_opt("shop").await.unwrap() {
            None => Ok(()),
            Some(cluster) => Err(format!("{cluster:?}")),
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_are_confined_and_networks_of_the_meta_cluster_are_not_for_new_clusters() {
    confined(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_are_confined_and_networks_of_the_meta_cluster_are_not_for_new_clusters_on_real() {
    confined(ServerKind::Real).await;
}

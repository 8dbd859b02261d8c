//! Clusters and their package versions over time: what may change and what may not.

use serde_json::{Value, json};

use crate::changes::{allowed, create, denied};
use crate::cluster_packages::package;
use crate::clusters::cluster;
use crate::server::Server;

pub async fn all(server: &Server) {
    a_package_version_stays_as_it_is(server).await;
    a_cluster_keeps_its_networks(server).await;
    a_cluster_keeps_the_kind_of_its_datastore(server).await;
    volumes_grow_and_stay_what_they_are(server).await;
    the_volume_of_snapshots_grows_and_stays_what_it_is(server).await;
    an_external_datastore_keeps_its_prefix(server).await;
    what_may_change_changes(server).await;
    a_merge_patch_restores_an_own_snapshot_after_that_of_another_cluster(server).await;
    a_status_is_as_operators_write_it(server).await;
}

fn named(mut object: Value, name: &str) -> Value {
    object["metadata"]["name"] = name.into();
    object
}

async fn a_package_version_stays_as_it_is(server: &Server) {
    let schema = "type: object\nproperties: {replicas: {type: integer}}";
    let extension = |schema: &str| json!([{"name": "coredns", "template": "kind: Service", "valuesSchema": schema}]);
    let package = named(package(json!({"extensions": extension(schema)})), "fixed-cluster");
    create(server, &package).await;
    let part = "another ClusterPackageVersion";
    for patch in [
        json!({"spec": {"kubernetes": "1.36.5"}}),
        json!({"spec": {"components": {"etcd": {"image": "registry.example/etcd:v3.6.17"}}}}),
        json!({"spec": {"components": {"apiserver": {"args": {"v": "2"}}}}}),
        json!({"spec": {"upgradeFrom": ["1.36"]}}),
        json!({"spec": {"extensions": null}}),
        // Not even the name of a value, which no schema of Kubernetes could look at if this were not a text.
        json!({"spec": {"extensions": extension("type: object\nproperties: {count: {type: integer}}")}}),
    ] {
        denied(server, &package, None, patch, "spec", part).await;
    }
    allowed(server, &package, None, json!({"metadata": {"labels": {"channel": "stable"}}})).await;
}

async fn a_cluster_keeps_its_networks(server: &Server) {
    let cluster = named(cluster(json!({})), "networks");
    create(server, &cluster).await;
    let part = "networks wanted";
    for network in [
        json!({"pods": "10.245.0.0/16"}),
        json!({"services": "10.97.0.0/16"}),
        json!({"dnsDomain": "other.local"}),
        json!({"pods": "172.16.0.0/16", "services": null}),
    ] {
        denied(server, &cluster, None, json!({"spec": {"network": network}}), "spec.network", part).await;
    }
    // What is said is what was filled in.
    allowed(server, &cluster, None, json!({"spec": {"network": {"pods": "10.244.0.0/16"}}})).await;
    allowed(server, &cluster, None, json!({"spec": {"network": null}})).await;
}

async fn a_cluster_keeps_the_kind_of_its_datastore(server: &Server) {
    let external = json!({"endpoints": ["https://10.0.0.5:2379"], "secretRef": {"name": "etcd-client"}});
    let part = "datastore wanted";
    let own = named(cluster(json!({})), "own");
    create(server, &own).await;
    let patch = json!({"spec": {"datastore": {"etcd": null, "external": external}}});
    denied(server, &own, None, patch, "spec.datastore", part).await;
    let outside = named(cluster(json!({"datastore": {"external": external}})), "outside");
    create(server, &outside).await;
    let patch = json!({"spec": {"datastore": {"etcd": {"members": 3}, "external": null}}});
    denied(server, &outside, None, patch, "spec.datastore", part).await;
    denied(server, &outside, None, json!({"spec": {"datastore": null}}), "spec.datastore", part).await;
    let patch = json!({"spec": {"datastore": {"external": {"endpoints": ["https://10.0.0.6:2379"]}}}});
    allowed(server, &outside, None, patch).await;
    for members in [5, 7, 1, 3] {
        allowed(server, &own, None, json!({"spec": {"datastore": {"etcd": {"members": members}}}})).await;
    }
}

async fn volumes_grow_and_stay_what_they_are(server: &Server) {
    let storage = |storage: Value| json!({"spec": {"datastore": {"etcd": {"storage": storage}}}});
    let cluster =
        named(cluster(json!({"datastore": {"etcd": {"storage": {"size": "10Gi", "class": "fast"}}}})), "volumes");
    create(server, &cluster).await;
    let size = "spec.datastore.etcd.storage.size";
    denied(server, &cluster, None, storage(json!({"size": "9Gi"})), size, "not shrink").await;
    denied(server, &cluster, None, storage(json!({"size": "10G"})), size, "not shrink").await;
    allowed(server, &cluster, None, storage(json!({"size": "10240Mi"}))).await;
    allowed(server, &cluster, None, storage(json!({"size": "20Gi"}))).await;
    let class = "spec.datastore.etcd.storage.class";
    denied(server, &cluster, None, storage(json!({"class": "slow"})), class, "keeps its class").await;
    denied(server, &cluster, None, storage(json!({"class": null})), class, "keeps its class").await;
}

async fn the_volume_of_snapshots_grows_and_stays_what_it_is(server: &Server) {
    let snapshots = |snapshots: Value| json!({"spec": {"snapshots": snapshots}});
    let (size, shrinks) = ("spec.snapshots.volume.size", "not shrink");
    let (class, keeps) = ("spec.snapshots.volume.class", "keeps its class");
    let s3 = json!({"endpoint": "https://s3.example.com", "bucket": "fleet-snapshots", "secretRef": {"name": "s3"}});
    let given = json!({"snapshots": {"volume": {"size": "30Gi", "class": "fast"}}});
    let given = named(cluster(given), "snapshots-given");
    create(server, &given).await;
    let volume = |volume: Value| snapshots(json!({"volume": volume}));
    denied(server, &given, None, volume(json!({"size": "29Gi"})), size, shrinks).await;
    denied(server, &given, None, volume(json!({"class": "slow"})), class, keeps).await;
    denied(server, &given, None, volume(json!({"class": null})), class, keeps).await;
    // Left out, it is one of 20Gi and of the default class.
    denied(server, &given, None, volume(Value::Null), size, shrinks).await;
    denied(server, &given, None, snapshots(Value::Null), class, keeps).await;
    allowed(server, &given, None, volume(json!({"size": "40Gi"}))).await;
    allowed(server, &given, None, snapshots(json!({"volume": null, "s3": s3}))).await;

    let left_out = named(cluster(json!({})), "snapshots-left-out");
    create(server, &left_out).await;
    denied(server, &left_out, None, volume(json!({"size": "10Gi"})), size, shrinks).await;
    denied(server, &left_out, None, volume(json!({"class": "fast"})), class, keeps).await;
    allowed(server, &left_out, None, volume(json!({"size": "40Gi"}))).await;
}

async fn an_external_datastore_keeps_its_prefix(server: &Server) {
    let external =
        json!({"endpoints": ["https://10.0.0.5:2379"], "secretRef": {"name": "etcd-client"}, "prefix": "/registry"});
    let cluster = named(cluster(json!({"datastore": {"external": external}})), "prefix");
    create(server, &cluster).await;
    let prefix = |prefix: Value| json!({"spec": {"datastore": {"external": {"prefix": prefix}}}});
    let (field, part) = ("spec.datastore.external.prefix", "would be empty");
    denied(server, &cluster, None, prefix(json!("/other")), field, part).await;
    denied(server, &cluster, None, prefix(Value::Null), field, part).await;
    allowed(server, &cluster, None, prefix(json!("/registry"))).await;
}

async fn what_may_change_changes(server: &Server) {
    let cluster = named(cluster(json!({})), "changing");
    create(server, &cluster).await;
    for spec in [
        json!({"packageVersion": "k8s-1.37.1-r1"}),
        json!({"replicas": 3}),
        json!({"endpoint": {"type": "NodePort"}}),
        json!({"components": {"apiserver": {"args": {"v": "2"}}}}),
        json!({"certificates": {"rotateAuthorities": "1"}}),
        json!({"extensions": [{"name": "coredns", "values": {"replicas": 3}}]}),
        json!({"extensions": [{"name": "coredns", "values": {"count": 3}}]}),
        json!({"snapshots": {"every": "1h"}}),
        json!({"restore": {"snapshot": "a"}}),
        json!({"deletionProtection": false}),
        json!({"paused": true}),
    ] {
        allowed(server, &cluster, None, json!({"spec": spec})).await;
    }
}

/// The patch that `why` and `cluster plan` propose.
async fn a_merge_patch_restores_an_own_snapshot_after_that_of_another_cluster(server: &Server) {
    let bucket =
        json!({"endpoint": "https://s3.example.com", "bucket": "fleet-snapshots", "secretRef": {"name": "s3"}});
    let more = json!({"snapshots": {"s3": bucket}, "restore": {"snapshot": "a", "cluster": "shop-01"}});
    let cluster = named(cluster(more), "restored");
    create(server, &cluster).await;
    let own = json!({"spec": {"restore": {"cluster": null, "allowUnencrypted": null, "snapshot": "b"}}});
    let after = allowed(server, &cluster, None, own.clone()).await;
    assert_eq!(after["spec"]["restore"], json!({"snapshot": "b"}));
    // Also if there was no restore before, or one of a snapshot that was not encrypted.
    for before in [json!(null), json!({"snapshot": "old", "allowUnencrypted": true})] {
        allowed(server, &cluster, None, json!({"spec": {"restore": null}})).await;
        allowed(server, &cluster, None, json!({"spec": {"restore": before}})).await;
        let after = allowed(server, &cluster, None, own.clone()).await;
        assert_eq!(after["spec"]["restore"], json!({"snapshot": "b"}));
    }
}

async fn a_status_is_as_operators_write_it(server: &Server) {
    let cluster = named(cluster(json!({})), "observed");
    create(server, &cluster).await;
    let status = json!({
        "observedGeneration": 1, "phase": "Soaking", "waitingFor": "the soak ends", "endpoint": "https://198.18.0.1:30443",
        "namespace": "fleet-pay-01", "namespaceUid": "9f0e8c1a-7d52-4a0b-9a55-0c8f7f6b2d31", "packageVersion": "k8s-1.37.1-r1", "previous": "k8s-1.36.4-r1", "emulates": "1.36",
        "soakSince": "2026-11-15T08:00:00Z", "soakUntil": "2026-11-16T08:00:00Z",
        "finishing": {"packageVersion": "k8s-1.37.1-r1", "emulated": "1.36", "since": "2026-11-16T08:00:00Z"},
        "progress": {"step": "kube-scheduler 1.37.1", "since": "2026-11-15T08:00:00Z", "message": ""},
        "failed": {"packageVersion": "k8s-1.37.0-r1", "generation": 4, "at": "2026-11-14T08:00:00Z", "message": "kube-apiserver: not ready within 5m"},
        "components": [{"component": "apiserver", "desired": "1.37.1", "observed": "1.37.1", "replicas": [
            {"name": "kube-apiserver-5d9c-x", "version": "1.37.1", "ready": true, "verifiedAt": "2026-11-15T08:00:00Z"},
        ]}],
        "extensions": [{"name": "coredns", "ready": "True", "reason": "AllReady", "message": ""}],
        "certificates": [{"name": "apiserver-tls", "notAfter": "2027-02-13T08:00:00Z"}],
        "authorities": "1", "observedSnapshotRequest": "1", "observedRetry": "1",
        "lastSnapshot": {"name": "pay-01-1", "at": "2026-11-15T06:00:00Z", "size": "12Mi", "checked": true, "purpose": "soak/k8s-1.37.1-r1/2026-11-16T08:00:00Z"},
        "restored": {"snapshot": "pay-01-0", "at": "2026-11-15T07:00:00Z", "dataTime": "2026-11-15T00:00:00Z"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Verified", "message": "at 2 of 2 replicas", "lastTransitionTime": "2026-11-15T08:00:00Z"}],
    });
    let after = allowed(server, &cluster, Some("status"), json!({"status": status})).await;
    let typed: fleetwright_api::Cluster = serde_json::from_value(after).unwrap();
    assert_eq!(serde_json::to_value(typed.status).unwrap(), status);
    let phase = json!({"status": {"phase": "Fine"}});
    denied(server, &cluster, Some("status"), phase, "status.phase", "\"Creating\", \"Ready\", \"Upgrading\"").await;
    let component = json!({"status": {"components": [{"component": "kubelet"}]}});
    denied(server, &cluster, Some("status"), component, "status.components[0].component", "\"etcd\"").await;
    let restored = json!({"status": {"restored": {"at": null}}});
    denied(server, &cluster, Some("status"), restored, "status.restored.at", "Required").await;
}

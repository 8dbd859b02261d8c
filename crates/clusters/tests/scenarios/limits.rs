//! ClusterLimits: a spec that the fleet's owner does not allow is not applied, and the running cluster continues.

use fleetwright_api::{
    Cluster, ClusterLimits, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, ComponentOverrides,
    Condition, EtcdDatastore, Extension, Status, condition, names,
};
use fleetwright_lab::ServerKind;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, PodTemplateSpec, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::{FLEET, TestFleet, cluster_writer};
use crate::versions::business;

fn limits(world: &TestFleet) -> Api<ClusterLimits> {
    Api::namespaced(world.client.clone(), FLEET)
}

async fn limit(world: &TestFleet, name: &str, spec: Value) {
    let made = ClusterLimits::new(name, serde_json::from_value(spec).unwrap());
    limits(world).create(&PostParams::default(), &made).await.unwrap();
}

/// Waits until `Accepted` is false because of a limit, and names all of these.
async fn refused(world: &TestFleet, cluster: &str, parts: &[&str]) -> Condition {
    let what = format!("{cluster} says LimitExceeded and {parts:?}");
    world
        .until(&what, async || {
            let now = world.clusters().get(cluster).await.unwrap();
            let status = now.status.unwrap_or_default();
            match condition(&status.conditions, names::ACCEPTED) {
                Some(one)
                    if one.status == Status::False
                        && one.reason == names::reasons::LIMIT_EXCEEDED
                        && one.observed_generation == now.metadata.generation
                        && parts.iter().all(|part| one.message.contains(part)) =>
                {
                    Ok(one.clone())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
}

fn small(spec: &mut ClusterSpec) {
    spec.replicas = 1;
    spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
}

fn args(deployment: &Deployment) -> Vec<String> {
    let pod = deployment.spec.template.spec.as_ref().unwrap();
    pod.containers[0].args.clone().unwrap_or_default()
}

/// What loosens a control plane: a name, what the Cluster says of kube-apiserver, the argument that its pods then have, and the field.
fn loosening() -> [(&'static str, Value, &'static str, &'static str); 4] {
    let beside = "/etc/kubernetes/kube-apiserver-config";
    [
        (
            "allow",
            json!({ "config": [{ "name": "authorization.yaml", "content": "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: AlwaysAllow, name: all}]\n" }] }),
            "--authorization-config=/etc/kubernetes/kube-apiserver-config/authorization.yaml",
            "spec.components.apiserver.config[authorization.yaml]",
        ),
        (
            "token",
            json!({
                "args": { "token-auth-file": format!("{beside}/tokens") },
                "config": [{ "name": "tokens", "content": "secret,eve,eve,system:masters\n" }],
            }),
            "--token-auth-file=/etc/kubernetes/kube-apiserver-config/tokens",
            "spec.components.apiserver.args.token-auth-file",
        ),
        (
            "webhook",
            json!({
                "args": { "authentication-token-webhook-config-file": format!("{beside}/webhook") },
                "config": [{ "name": "webhook", "content": "kind: Config\n" }],
            }),
            "--authentication-token-webhook-config-file=/etc/kubernetes/kube-apiserver-config/webhook",
            "spec.components.apiserver.args.authentication-token-webhook-config-file",
        ),
        (
            "plugins",
            json!({ "args": { "disable-admission-plugins": "NodeRestriction" } }),
            "--disable-admission-plugins=NodeRestriction",
            "spec.components.apiserver.args.disable-admission-plugins",
        ),
    ]
}

async fn loosening_is_the_owners_to_deny(kind: ServerKind) {
    let world = TestFleet::on(kind).await;
    let create = async |name: &str, overrides: &Value| {
        let overrides: ComponentOverrides = serde_json::from_value(overrides.clone()).unwrap();
        world
            .create(name, |spec| {
                small(spec);
                spec.components.apiserver = Some(overrides);
            })
            .await;
    };
    // Without limits it is the Cluster's to say: who writes it is its administrator.
    for (name, overrides, argument, _) in loosening() {
        create(name, &overrides).await;
        let deployments: Api<Deployment> = world.api(name);
        world.seen(&deployments, "kube-apiserver", |one| args(one).iter().any(|arg| arg == argument)).await;
    }
    limit(&world, "floor", json!({ "clusters": ["*"], "preset": "Hardened" })).await;
    for (name, overrides, _, field) in loosening() {
        // What is there already was accepted.
        let accepted = refused(&world, name, &["ClusterLimits floor", field, "Hardened"]).await;
        assert!(accepted.message.contains("accepted before"), "{}", accepted.message);
        // Another name is no way around it.
        let other = format!("{name}-two");
        create(&other, &overrides).await;
        refused(&world, &other, &["ClusterLimits floor", field, "Hardened"]).await;
        // Nor are labels and annotations.
        let relabel = json!({ "metadata": { "labels": { "tier": "owner" }, "annotations": { "fleetwright.io/override": "LimitExceeded@v1.36" } } });
        world.change(&other, relabel).await;
        refused(&world, &other, &[field]).await;
        let namespace = Api::<Namespace>::all(world.client.clone()).get_opt(&format!("{FLEET}-{other}")).await.unwrap();
        assert!(namespace.is_none(), "nothing was made of {other}");
    }
    // One that keeps the limits is made beside them.
    world.create("good", small).await;
    world.ready("good").await;

    // Who may write Clusters is refused ClusterLimits.
    let eve = cluster_writer(&world).await;
    let own: Api<Cluster> = Api::namespaced(eve.clone(), FLEET);
    let label = json!({ "metadata": { "labels": { "of": "eve" } } });
    own.patch("plugins-two", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    let theirs: Api<ClusterLimits> = Api::namespaced(eve, FLEET);
    let loose = json!({ "spec": { "preset": null, "maxReplicas": 9 } });
    let answers = [
        theirs.patch("floor", &PatchParams::default(), &Patch::Merge(loose)).await.err(),
        theirs.delete("floor", &DeleteParams::default()).await.err(),
    ];
    for answer in answers {
        assert!(matches!(&answer, Some(kube::Error::Api(status)) if status.code == 403), "{answer:?}");
    }

    // Without the limits all are made.
    limits(&world).delete("floor", &DeleteParams::default()).await.unwrap();
    for (name, _, argument, _) in loosening() {
        let deployments: Api<Deployment> = world.api(&format!("{name}-two"));
        world.seen(&deployments, "kube-apiserver", |one| args(one).iter().any(|arg| arg == argument)).await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_loosens_a_control_plane_is_allowed_without_limits_and_refused_by_the_preset() {
    loosening_is_the_owners_to_deny(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_loosens_a_control_plane_is_allowed_without_limits_and_refused_by_the_preset_on_real() {
    loosening_is_the_owners_to_deny(ServerKind::Real).await;
}

/// The uids of its pods, and what its API servers are made from.
async fn running(world: &TestFleet) -> (Vec<Option<String>>, Vec<String>) {
    let pods: Api<Pod> = world.api("pay");
    let mut uids: Vec<_> = pods.list(&Default::default()).await.unwrap().items.iter().map(ResourceExt::uid).collect();
    uids.sort();
    let deployments: Api<Deployment> = world.api("pay");
    (uids, args(&deployments.get("kube-apiserver").await.unwrap()))
}

/// Takes away what the cluster needs, and waits until it is back.
async fn heals(world: &TestFleet) {
    let (deployments, secrets): (Api<Deployment>, Api<Secret>) = (world.api("pay"), world.api("pay"));
    let old = deployments.get("kube-scheduler").await.unwrap().uid();
    deployments.delete("kube-scheduler", &DeleteParams::default()).await.unwrap();
    world.seen(&deployments, "kube-scheduler", |one| one.uid() != old).await;
    secrets.delete("front-proxy-client", &DeleteParams::default()).await.unwrap();
    world.seen(&secrets, "front-proxy-client", |_| true).await;
    world
        .until("it works again", async || {
            let status = world.status("pay").await;
            let all = status.components.iter().flat_map(|one| &one.replicas).all(|one| one.ready);
            let works = fleetwright_api::is_true(&status.conditions, names::READY) && status.components.len() == 4;
            if works && all { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
}

async fn a_running_cluster_goes_on(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    world
        .create("pay", |spec| {
            small(spec);
            let args = [("v".to_owned(), "3".to_owned())].into();
            spec.components.apiserver = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
        })
        .await;
    world.ready("pay").await;
    let before = running(&world).await;
    assert!(before.1.contains(&"--v=3".to_owned()), "{before:?}");

    // Narrowed: nothing is taken away from what runs, and it is healed as it is.
    let only = json!({ "clusters": ["pa*"], "packageVersions": ["v1.36"], "components": { "apiserver": { "args": { "deny": ["v"] } } } });
    limit(&world, "narrow", only).await;
    let said = refused(&world, "pay", &["ClusterLimits narrow", "spec.components.apiserver.args.v"]).await;
    assert!(said.message.contains("accepted before"), "{}", said.message);
    assert_eq!(running(&world).await, before);
    world.told(names::reasons::LIMIT_EXCEEDED).await;
    heals(&world).await;
    assert_eq!(running(&world).await.1, before.1);

    // An upgrade does not start, neither by itself nor with another change, and a restart of the operator does not change that.
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37", "replicas": 2 } })).await;
    let said = refused(&world, "pay", &["spec.packageVersion", "allowed: v1.36"]).await;
    assert!(said.message.contains("last accepted"), "{}", said.message);
    let records: Api<ConfigMap> = world.api("pay");
    records.delete("accepted-spec", &DeleteParams::default()).await.unwrap();
    world.seen(&records, "accepted-spec", |_| true).await;
    world.operator_stops().await;
    world.operator_starts();
    heals(&world).await;
    let status = world.status("pay").await;
    assert_eq!(status.package_version.as_deref(), Some("v1.36"));
    assert_eq!(running(&world).await.1, before.1);
    let deployments: Api<Deployment> = world.api("pay");
    assert_eq!(deployments.get("kube-apiserver").await.unwrap().spec.replicas, Some(1));

    // A Cluster with a refused spec can be paused and deleted like any other; here its spec is fixed and applied.
    let comply =
        json!({ "spec": { "packageVersion": "v1.36", "components": { "apiserver": { "args": { "v": null } } } } });
    world.change("pay", comply).await;
    world.ready("pay").await;
    assert!(!running(&world).await.1.contains(&"--v=3".to_owned()));
    assert_eq!(deployments.get("kube-apiserver").await.unwrap().spec.replicas, Some(2));

    // Wider again, or without the limits, an upgrade goes its way.
    world.change("pay", json!({ "spec": { "packageVersion": "v1.37" } })).await;
    refused(&world, "pay", &["spec.packageVersion"]).await;
    limits(&world).delete("narrow", &DeleteParams::default()).await.unwrap();
    world.ready("pay").await;
    limit(&world, "narrow", json!({ "clusters": ["pay"], "maxReplicas": 1 })).await;
    refused(&world, "pay", &["spec.replicas"]).await;
    world.delete("pay").await;
    world
        .until("it is gone though it exceeds a limit", async || {
            let left = world.clusters().get_opt("pay").await.unwrap();
            left.map_or(Ok(()), |left| Err(format!("{:?}", left.status)))
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_cluster_that_is_narrowed_is_healed_and_not_upgraded() {
    a_running_cluster_goes_on(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_cluster_that_is_narrowed_is_healed_and_not_upgraded_on_real() {
    a_running_cluster_goes_on(ServerKind::Real).await;
}

/// A Cluster whose finalizers somebody removed leaves its control plane and the record of its spec behind. Another Cluster of that name has had nothing accepted.
async fn a_namesake_inherits_nothing(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    let verbose = |spec: &mut ClusterSpec| {
        small(spec);
        let args = [("v".to_owned(), "3".to_owned())].into();
        spec.components.apiserver = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
    };
    world.create("pay", verbose).await;
    let uid = world.ready("pay").await.namespace_uid;
    world.operator_stops().await;
    world.delete("pay").await;
    world.change("pay", json!({ "metadata": { "finalizers": null } })).await;
    world
        .until("it is gone", async || {
            let left = world.clusters().get_opt("pay").await.unwrap();
            left.map_or(Ok(()), |left| Err(format!("{:?}", left.metadata)))
        })
        .await;
    let records: Api<ConfigMap> = world.api("pay");
    records.get("accepted-spec").await.expect("the record of the first one");
    limit(&world, "narrow", json!({ "clusters": ["*"], "components": { "apiserver": { "args": { "deny": ["v"] } } } }))
        .await;
    world.create("pay", verbose).await;
    let given = Patch::Merge(json!({ "status": { "namespaceUid": uid } }));
    world.clusters().patch_status("pay", &PatchParams::default(), &given).await.unwrap();
    world.operator_starts();
    let said = refused(&world, "pay", &["ClusterLimits narrow", "spec.components.apiserver.args.v"]).await;
    assert!(!said.message.contains("accepted"), "{}", said.message);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_inherits_no_accepted_spec_of_another_one_of_its_name() {
    a_namesake_inherits_nothing(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_inherits_no_accepted_spec_of_another_one_of_its_name_on_real() {
    a_namesake_inherits_nothing(ServerKind::Real).await;
}

fn image(template: &PodTemplateSpec) -> String {
    template.spec.as_ref().unwrap().containers[0].image.clone().unwrap_or_default()
}

/// The images that its components are made from.
async fn images(world: &TestFleet) -> Vec<String> {
    let (deployments, sets): (Api<Deployment>, Api<StatefulSet>) = (world.api("pay"), world.api("pay"));
    let all = deployments.list(&Default::default()).await.unwrap().items;
    let mut images: Vec<_> = all.iter().map(|one| image(&one.spec.template)).collect();
    images.push(image(&sets.get("etcd").await.unwrap().spec.template));
    images
}

/// The template of an extension: a label of the Cluster selects this image, or one by tag.
fn by_label(digest: &str) -> String {
    let image = format!(
        "{{% if cluster.labels.agent == 'pinned' %}}{digest}{{% else %}}registry.example/agent:v1{{% endif %}}"
    );
    format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: agent, namespace: kube-system}}\n\
        spec:\n  schedule: '@yearly'\n  jobTemplate:\n    spec:\n      template:\n        spec:\n\
        \x20         restartPolicy: Never\n          containers: [{{name: agent, image: '{image}'}}]\n"
    )
}

/// Waits until the extension runs with that image.
async fn runs(world: &TestFleet, image: &str) {
    let agents: Api<CronJob> = Api::namespaced(business(world).await, "kube-system");
    world
        .until(&format!("the agent runs {image}"), async || {
            let agent = agents.get_opt("agent").await.unwrap();
            let spec = agent.and_then(|one| one.spec.job_template.spec);
            let is = spec.map(|spec| self::image(&spec.template));
            if is.as_deref() == Some(image) { Ok(()) } else { Err(format!("{is:?}")) }
        })
        .await;
}

async fn images_by_tag_are_refused(kind: ServerKind) {
    let mut world = TestFleet::on(kind).await;
    limit(&world, "pinned", json!({ "clusters": ["*"], "imageDigests": true })).await;
    world.create("pay", small).await;
    refused(&world, "pay", &["ClusterLimits pinned", "spec.packageVersion", "registry.example/etcd:v3.6.16"]).await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    assert!(namespaces.get_opt("fleet-pay").await.unwrap().is_none(), "something was made of it");
    let mut pinned = world.packages().get("v1.36").await.unwrap().spec;
    let parts = &mut pinned.components;
    for part in [&mut parts.etcd, &mut parts.apiserver, &mut parts.controller_manager, &mut parts.scheduler] {
        part.image += &format!("@sha256:{}", "a".repeat(64));
    }
    // Components by digest are not enough.
    let template = "apiVersion: v1\nkind: Pod\nmetadata: {name: agent, namespace: kube-system}\n\
        spec: {containers: [{name: agent, image: 'registry.example/agent:v1'}]}\n";
    let agent = Extension { name: "agent".to_owned(), template: template.to_owned(), ..Extension::default() };
    let extended = ClusterPackageVersionSpec { extensions: vec![agent], ..pinned.clone() };
    let extended = ClusterPackageVersion::new("v1.36-extended", extended);
    world.packages().create(&PostParams::default(), &extended).await.unwrap();
    world.change("pay", json!({ "spec": { "packageVersion": "v1.36-extended" } })).await;
    refused(&world, "pay", &["ClusterLimits pinned", "spec.extensions[agent]", "registry.example/agent:v1"]).await;
    assert!(namespaces.get_opt("fleet-pay").await.unwrap().is_none(), "something was made of it");
    let digest = format!("registry.example/agent@sha256:{}", "a".repeat(64));
    pinned.extensions =
        vec![Extension { name: "agent".to_owned(), template: by_label(&digest), ..Extension::default() }];
    let package = ClusterPackageVersion::new("v1.36-pinned", pinned);
    world.packages().create(&PostParams::default(), &package).await.unwrap();
    let metadata = json!({ "labels": { "agent": "pinned" } });
    world.change("pay", json!({ "metadata": metadata, "spec": { "packageVersion": "v1.36-pinned" } })).await;
    world.ready("pay").await;
    runs(&world, &digest).await;
    // An edit of a label is refused like one of the spec, also by an operator that is started again.
    world.change("pay", json!({ "metadata": { "labels": { "agent": "v1" } } })).await;
    refused(&world, "pay", &["imageDigests", "spec.extensions[agent]", "registry.example/agent:v1"]).await;
    world.operator_stops().await;
    let agents: Api<CronJob> = Api::namespaced(business(&world).await, "kube-system");
    agents.delete("agent", &DeleteParams::default()).await.unwrap();
    world.operator_starts();
    runs(&world, &digest).await;
    world.change("pay", json!({ "metadata": { "labels": { "agent": "pinned" } } })).await;
    world.ready("pay").await;

    // The same name with images by tag: what runs keeps those that were accepted.
    let before = images(&world).await;
    assert!(before.len() == 4 && before.iter().all(|image| image.contains("@sha256:")), "{before:?}");
    world.packages().delete("v1.36-pinned", &DeleteParams::default()).await.unwrap();
    let mut tagged = world.packages().get("v1.36").await.unwrap().spec;
    let parts = &mut tagged.components;
    for part in [&mut parts.etcd, &mut parts.apiserver, &mut parts.controller_manager, &mut parts.scheduler] {
        part.image = part.image.replace("registry.example", "registry.eve.example");
    }
    let again = ClusterPackageVersion::new("v1.36-pinned", tagged);
    world.packages().create(&PostParams::default(), &again).await.unwrap();
    for look in 1..=3 {
        world.change("pay", json!({ "metadata": { "labels": { "look": look.to_string() } } })).await;
        refused(&world, "pay", &["imageDigests", "registry.eve.example", "v1.36-pinned", "recreated"]).await;
        assert_eq!(images(&world).await, before);
    }
    // Nor is it rolled out when the operator is started again, or by an edit that is refused.
    world.operator_stops().await;
    world.change("pay", json!({ "spec": { "packageVersion": "v1.36" } })).await;
    world.operator_starts();
    refused(&world, "pay", &["registry.example/etcd", "v1.36-pinned", "recreated"]).await;
    assert_eq!(images(&world).await, before);
    // What is allowed is acted on, whatever was there under its name before.
    world.packages().delete("v1.36-pinned", &DeleteParams::default()).await.unwrap();
    let mut package = package;
    let scheduler = &mut package.spec.components.scheduler;
    scheduler.image = scheduler.image.replace(&"a".repeat(64), &"b".repeat(64));
    world.packages().create(&PostParams::default(), &package).await.unwrap();
    world.change("pay", json!({ "spec": { "packageVersion": "v1.36-pinned" } })).await;
    let deployments: Api<Deployment> = world.api("pay");
    let next = &package.spec.components.scheduler.image;
    world.seen(&deployments, "kube-scheduler", |one| image(&one.spec.template) == *next).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_version_with_images_by_tag_is_refused_where_digests_are_demanded() {
    images_by_tag_are_refused(ServerKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_version_with_images_by_tag_is_refused_where_digests_are_demanded_on_real() {
    images_by_tag_are_refused(ServerKind::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_cluster_whose_new_spec_is_invalid_is_healed_with_the_old_one() {
    let world = TestFleet::start().await;
    world.create("pay", small).await;
    world.ready("pay").await;
    for (patch, reason) in [
        (json!({ "spec": { "packageVersion": "v9" } }), names::reasons::PACKAGE_VERSION_NOT_FOUND),
        (
            // Only 1.37 would have it.
            json!({ "spec": { "packageVersion": "v1.36", "components": { "controllerManager": { "args": { "concurrent-disruption-syncs": "2" } } } } }),
            names::reasons::INVALID_ARGUMENT,
        ),
    ] {
        world.change("pay", patch).await;
        world
            .until("it is refused", async || {
                let status = world.status("pay").await;
                match condition(&status.conditions, names::ACCEPTED) {
                    Some(one) if one.reason == reason && one.message.contains("last accepted") => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        heals(&world).await;
    }
}

//! The operator has the rights that it uses, and no others: with them a cluster is made, upgraded, put right and deleted, and nothing is refused.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, EtcdDatastore, Extension,
    ExtensionPlacement, crds, is_true, names,
};
use fleetwright_clusters::{Options, rules};
use fleetwright_kit::{Clock, Operator, Settings};
use fleetwright_lab::{Kind, Target, define};
use fleetwright_rig::rights::{CLUSTER, grant_everywhere, grant_in, judge, rights};
use fleetwright_rig::{Call, Recorder};
use fleetwright_sim::meta::{Manner, Meta};
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::oneshot;

const FLEET: &str = "fleet";
const USER: &str = "cluster-operator";
const PATIENCE: Duration = Duration::from_secs(120);

/// Something of each kind that an extension may have beside a control plane.
fn beside() -> Extension {
    let pods = "selector: {matchLabels: {app: beside}}";
    let template = "template: {metadata: {labels: {app: beside}}, spec: {containers: [{name: beside, image: registry.example/beside:v1}]}}";
    let of = |version: &str, kind: &str, rest: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: beside}}\n{rest}\n")
    };
    let workload = format!("spec: {{replicas: 1, {pods}, {template}}}");
    let set = format!("spec: {{replicas: 1, serviceName: beside, {pods}, {template}}}");
    let all = [
        of("v1", "ConfigMap", "data: {text: some}"),
        of("v1", "Service", "spec: {selector: {app: beside}, ports: [{port: 80}]}"),
        of("networking.k8s.io/v1", "NetworkPolicy", "spec: {podSelector: {matchLabels: {app: beside}}}"),
        of("policy/v1", "PodDisruptionBudget", &format!("spec: {{maxUnavailable: 1, {pods}}}")),
        of("apps/v1", "Deployment", &workload),
        of("apps/v1", "StatefulSet", &set),
    ];
    Extension {
        name: "beside".to_owned(),
        placement: ExtensionPlacement::Meta,
        template: all.join("---\n"),
        ..Extension::default()
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<Result<(), String>>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match holds().await? {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() > deadline => bail!("{what}: {why}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The kinds, the namespace, package versions, and a user with the rights of the installation.
async fn prepare(admin: &Client) -> Result<()> {
    define(admin, &crds()).await?;
    let fleet: Namespace = serde_json::from_value(json!({ "metadata": { "name": FLEET } }))?;
    Api::all(admin.clone()).create(&PostParams::default(), &fleet).await?;
    let given = rules();
    grant_in(admin, FLEET, USER, &given.namespaced).await?;
    grant_everywhere(admin, USER, &given.cluster).await?;
    let packages: Api<ClusterPackageVersion> = Api::namespaced(admin.clone(), FLEET);
    // With another etcd, so that its members are replaced.
    for (name, kubernetes, etcd) in [("v1.36", "1.36.4", "3.6.16"), ("v1.37", "1.37.1", "3.6.17")] {
        let mut spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
        // The next one does not have it any more.
        if name == "v1.36" {
            spec.extensions = vec![beside()];
        }
        packages.create(&PostParams::default(), &ClusterPackageVersion::new(name, spec)).await?;
    }
    Ok(())
}

async fn ready(clusters: &Api<Cluster>) -> Result<()> {
    until("pay is ready", async || {
        let cluster = clusters.get("pay").await?;
        let status = cluster.status.unwrap_or_default();
        let there = status.observed_generation == cluster.metadata.generation
            && status.package_version.as_ref() == Some(&cluster.spec.package_version)
            && is_true(&status.conditions, names::READY)
            && is_true(&status.conditions, names::DATASTORE_HEALTHY)
            && is_true(&status.conditions, names::EXTENSIONS_READY)
            && status.waiting_for.is_none();
        Ok(if there { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await
}

/// Everything that an operator ever does to the API server.
async fn a_full_life(admin: &Client, meta: &Meta) -> Result<()> {
    let clusters: Api<Cluster> = Api::namespaced(admin.clone(), FLEET);
    let mut spec = ClusterSpec::of("v1.36");
    spec.replicas = 1;
    spec.datastore.etcd = Some(EtcdDatastore { members: 3, ..EtcdDatastore::default() });
    spec.deletion_protection = false;
    clusters.create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    ready(&clusters).await?;
    let within = format!("{FLEET}-pay");
    let (secrets, services): (Api<Secret>, Api<Service>) =
        (Api::namespaced(admin.clone(), &within), Api::namespaced(admin.clone(), &within));
    secrets.delete("front-proxy-client", &DeleteParams::default()).await?;
    let broken = json!({ "stringData": { "tls.key": "nothing" } });
    secrets.patch("scheduler-kubeconfig", &PatchParams::default(), &Patch::Merge(broken)).await?;
    services.delete("kube-apiserver", &DeleteParams::default()).await?;
    until("what was removed is back", async || {
        let (secret, service) =
            (secrets.get_opt("front-proxy-client").await?, services.get_opt("kube-apiserver").await?);
        Ok(if secret.is_some() && service.is_some() { Ok(()) } else { Err(format!("{secret:?} {service:?}")) })
    })
    .await?;
    // A member that lost its disk is replaced.
    ready(&clusters).await?;
    ensure!(meta.wipe(&within, "data-etcd-2"), "there is no such volume");
    until("its loss is seen", async || {
        let status = clusters.get("pay").await?.status.unwrap_or_default();
        let healthy = is_true(&status.conditions, names::DATASTORE_HEALTHY);
        Ok(if healthy { Err("all members are healthy".to_owned()) } else { Ok(()) })
    })
    .await?;
    ready(&clusters).await?;
    another_ones_secret(admin, &clusters).await?;
    let patch = json!({ "spec": { "packageVersion": "v1.37" } });
    clusters.patch("pay", &PatchParams::default(), &Patch::Merge(patch)).await?;
    ready(&clusters).await?;
    clusters.delete("pay", &DeleteParams::default()).await?;
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    until("everything is gone", async || {
        let left = (clusters.get_opt("pay").await?.map(|one| one.status), namespaces.get_opt(&within).await?);
        Ok(if left.0.is_none() && left.1.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
}

/// Who may write Clusters refers to the SSH key of the fleet: it says that the Secret is not shared, and nothing of it is copied.
async fn another_ones_secret(admin: &Client, clusters: &Api<Cluster>) -> Result<()> {
    let key = json!({
        "metadata": { "name": "fleet-ssh" }, "type": "kubernetes.io/ssh-auth",
        "stringData": { "ssh-privatekey": "the key of all hosts" },
    });
    let fleet: Api<Secret> = Api::namespaced(admin.clone(), FLEET);
    fleet.create(&PostParams::default(), &serde_json::from_value(key)?).await?;
    let mut spec = ClusterSpec::of("v1.36");
    spec.deletion_protection = false;
    let file = json!({ "config": [
        { "name": "notes", "secret": { "name": "fleet-ssh", "key": "ssh-privatekey" } },
    ] });
    spec.components.apiserver = Some(serde_json::from_value(file)?);
    clusters.create(&PostParams::default(), &Cluster::new("eve", spec)).await?;
    until("the Secret is refused", async || {
        let status = clusters.get("eve").await?.status.unwrap_or_default();
        let accepted = fleetwright_api::condition(&status.conditions, names::ACCEPTED).cloned();
        let refused = accepted.as_ref().is_some_and(|one| one.reason == names::reasons::SECRET_NOT_SHARED);
        Ok(if refused { Ok(()) } else { Err(format!("{accepted:?}")) })
    })
    .await?;
    let within: Api<Secret> = Api::namespaced(admin.clone(), &format!("{FLEET}-eve"));
    let secrets = within.list(&Default::default()).await?.items;
    let mut values = secrets.iter().flat_map(|secret| secret.data.iter().flatten());
    ensure!(!values.any(|(_, value)| value.0.starts_with(b"the key of all hosts")), "it was copied");
    clusters.delete("eve", &DeleteParams::default()).await?;
    until("it is gone", async || {
        let left = clusters.get_opt("eve").await?.map(|one| one.status);
        Ok(if left.is_none() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await
}

/// Every call was allowed, and every right was needed for one.
fn judged(recorder: &Recorder) -> Result<()> {
    let refused: Vec<_> = recorder.calls().into_iter().filter(|record| record.code == Some(403)).collect();
    ensure!(refused.is_empty(), "with all rights these were refused: {refused:#?}");
    let given = rules();
    let mut all = rights("namespace", &given.namespaced);
    all.extend(rights(CLUSTER, &given.cluster));
    let calls = recorder.calls().into_iter().map(|record| record.call);
    let place = |call: &Call| if *call.namespace == *FLEET { "namespace" } else { CLUSTER };
    // A replica that is not proven any more is taken out of its Service: the story of replicas. Volumes that grow: the story of the datastore. What the journal needs is shown
    // where it is kept.
    judge(&all, calls, place, |(_, what, verb)| {
        let patched = what == "pods" || what == "persistentvolumeclaims";
        patched && verb == "patch" || what.starts_with("operation")
    })
}

async fn lives_with_its_rights(kind: Kind) -> Result<()> {
    let target = Target::start(kind).await?;
    let admin = target.admin();
    prepare(&admin).await?;
    let manner = Manner { start: Duration::from_millis(10), stop: Duration::from_millis(50), ..Manner::default() };
    let meta = Meta::start(admin.clone(), Clock::system(), manner).await?;
    let recorder = Recorder::default();
    let client = recorder.around(target.client_as(USER, &[]).await?);
    let mut operator = Operator::new(Settings { strict_budgets: true, ..Settings::new("fleetwright", client) });
    fleetwright_clusters::add(&mut operator, FLEET, Options::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));
    let lived = a_full_life(&admin, &meta).await;
    drop(stop);
    running.await??;
    meta.stop().await;
    let came = lived.with_context(|| recorder.tail(60)).and_then(|()| judged(&recorder));
    target.stop(came.is_err()).await;
    came
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call() -> Result<()> {
    lives_with_its_rights(Kind::Embedded).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_right_and_every_right_its_call_on_real() -> Result<()> {
    lives_with_its_rights(Kind::Real).await
}

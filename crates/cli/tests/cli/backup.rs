//! A cluster's data on a real meta cluster: snapshots by pods with our own image, and a restore.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use fleetwright_api::{Cluster, ClusterSpec, ClusterStatus, EndpointType, EtcdDatastore, Status, condition, names};
use fleetwright_lab::hosts::Image;
use fleetwright_lab::meta::{Meta, Options};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret};
use kube::api::{DeleteParams, LogParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use crate::support::BINARY;

/// A generous timeout; an idle machine needs seconds.
const LONG: Duration = Duration::from_secs(420);
const IMAGE: &str = "fleetwright.local/fleetwright:test";
/// Data of the cluster that must not be readable in the snapshot store.
const MARKER: &str = "readable-data-of-the-cluster";

struct BackupFixture {
    meta: Meta,
    client: Client,
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Result<T, String>>) -> Result<T> {
    let deadline = Instant::now() + LONG;
    loop {
        match look().await? {
            Ok(found) => return Ok(found),
            Err(why) if Instant::now() > deadline => bail!("waited {LONG:?} for {what}: {why}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

impl BackupFixture {
    /// Runs our command.
    fn run(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(BINARY).args(args).arg("--kubeconfig").arg(self.meta.kubeconfig_path()).output()?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "fleetwright {args:?}: {text}");
        Ok(text)
    }

    fn clusters(&self) -> Api<Cluster> {
        Api::namespaced(self.client.clone(), "fleet")
    }

    async fn until(&self, what: &str, so: impl Fn(&Cluster, &ClusterStatus) -> bool) -> Result<ClusterStatus> {
        eventually(what, async || {
            let cluster = self.clusters().get("pay").await?;
            let status = cluster.status.clone().unwrap_or_default();
            Ok(if so(&cluster, &status) { Ok(status) } else { Err(format!("{status:#?}")) })
        })
        .await
    }

    async fn change(&self, change: serde_json::Value) -> Result<()> {
        self.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    async fn refer(&self, package: &str) -> Result<()> {
        self.change(json!({ "spec": { "packageVersion": package } })).await
    }

    /// Waits until a condition is False with this reason; returns its message.
    async fn says(&self, type_: &str, reason: &str) -> Result<String> {
        let so = |status: &ClusterStatus| {
            let one = condition(&status.conditions, type_)?;
            (one.status == Status::False && one.reason == reason).then(|| one.message.clone())
        };
        let status = self.until(&format!("{type_} to be false: {reason}"), |_, status| so(status).is_some()).await?;
        so(&status).context("it was seen")
    }

    /// The pods of the cluster, with their uids.
    async fn pods(&self) -> Result<BTreeMap<String, Option<String>>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "fleet-pay");
        let all = pods.list(&Default::default()).await?.items.into_iter();
        Ok(all.map(|pod| (pod.name_any(), pod.uid())).collect())
    }

    async fn maps(&self, endpoint: &str) -> Result<Api<ConfigMap>> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "fleet-pay");
        let data = secrets.get("operator-client").await?.data.unwrap_or_default();
        let text = |key: &str| base64::prelude::BASE64_STANDARD.encode(&data[key].0);
        let config: Kubeconfig = serde_json::from_value(json!({
            "clusters": [{ "name": "pay", "cluster": { "server": endpoint, "certificate-authority-data": text("ca.crt") } }],
            "users": [{ "name": "pay", "user": { "client-certificate-data": text("tls.crt"), "client-key-data": text("tls.key") } }],
            "contexts": [{ "name": "pay", "context": { "cluster": "pay", "user": "pay" } }],
            "current-context": "pay",
        }))?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Api::default_namespaced(Client::try_from(config)?))
    }
}

fn map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..ConfigMap::default() }
}

fn ready(cluster: &Cluster, status: &ClusterStatus) -> bool {
    status.observed_generation == cluster.metadata.generation
        && status.package_version.as_ref() == Some(&cluster.spec.package_version)
        && fleetwright_api::is_true(&status.conditions, names::READY)
        && status.waiting_for.is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_a_quorum_comes_back_to_a_snapshot_and_to_nothing_that_came_after_on_hosts() -> Result<()> {
    // With enforced policies, for the networks that `install` discovers.
    let meta = Meta::start(Options { enforce: true, ..Options::default() }).await?;
    meta.import(&Image::program(IMAGE, BINARY)?).await?;
    let client = meta.client();
    let mut world = BackupFixture { meta, client };
    let outcome = run_phases(&world).await;
    if let Err(error) = outcome {
        let seen = world.meta.seen().await;
        world.meta.keep_logs();
        return Err(error.context(seen));
    }
    Ok(())
}

async fn run_phases(world: &BackupFixture) -> Result<()> {
    // The operators run as pods, too, with only the rights of the manifest.
    world.run(&["install", "--image", IMAGE, "--replicas", "1", "--wait"])?;
    let packages = world.meta.package_versions("fleet")?;
    fleetwright_lab::hosts::apply(&world.client, &packages).await?;
    let name = |number: usize| packages[number]["metadata"]["name"].as_str().context("a package version has a name");
    let (package, next) = (name(0)?, name(1)?);
    let mut spec = ClusterSpec::of(package);
    spec.replicas = 1;
    spec.datastore.etcd = Some(EtcdDatastore { members: 3, ..EtcdDatastore::default() });
    spec.endpoint.type_ = EndpointType::NodePort;
    spec.endpoint.host = Some(world.meta.address().to_string());
    spec.deletion_protection = false;
    // The default networks. The meta cluster's Services have the same addresses, as the installation discovered.
    world.clusters().create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    let status = world.until("it to be ready", ready).await?;
    let maps = world.maps(&status.endpoint.context("it has an endpoint")?).await?;
    let marked = BTreeMap::from([("text".to_owned(), MARKER.to_owned())]);
    maps.create(&PostParams::default(), &ConfigMap { data: Some(marked), ..map("before") }).await?;

    let begun = Instant::now();
    let said = world.run(&["cluster", "snapshot", "pay", "-n", "fleet", "--wait"])?;
    eprintln!("a snapshot after {:?}: {said}", begun.elapsed());
    let last = world.clusters().get("pay").await?.status.and_then(|status| status.last_snapshot);
    let last = last.context("the status tells of it")?;
    ensure!(last.checked && said.contains(&last.name), "{said}: {last:?}");
    ensure!(last.key_id.is_some(), "it is not encrypted: {last:?}");
    let keys: Api<Secret> = Api::namespaced(world.client.clone(), "fleet");
    let key = keys.get("pay-snapshot-key").await?.data.unwrap_or_default();
    ensure!(key.get("key").is_some_and(|key| key.0.len() == 32), "its key is not in the fleet's namespace");
    encrypted(world, &last.name).await?;
    keys_of_snapshot(world, &last.name).await?;
    maps.create(&PostParams::default(), &map("after")).await?;
    held_back(world, package, next).await?;
    without_a_quorum(world, package, next).await?;

    let begun = Instant::now();
    world.change(json!({ "spec": { "restore": { "snapshot": last.name } } })).await?;
    let restored = |status: &ClusterStatus| status.restored.is_some() && status.restoring.is_none();
    let status = world.until("it to be restored", |cluster, status| restored(status) && ready(cluster, status)).await?;
    eprintln!("restored after {:?}", begun.elapsed());
    ensure!(status.restored.as_ref().is_some_and(|restored| restored.data_time == last.at), "{status:#?}");
    let there: Vec<_> = maps.list(&Default::default()).await?.items.iter().map(|map| map.name_any()).collect();
    ensure!(there.contains(&"before".to_owned()) && !there.contains(&"after".to_owned()), "{there:?}");
    // The restored cluster is an ordinary one: new writes are kept.
    maps.create(&PostParams::default(), &map("later")).await?;
    Ok(())
}

/// The folder of a claim's volume on the node.
async fn folder(world: &BackupFixture, claim: &str) -> Result<String> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), "fleet-pay");
    let volume = claims.get(claim).await?.spec.and_then(|spec| spec.volume_name).context("it has a volume")?;
    let volume = Api::<PersistentVolume>::all(world.client.clone()).get(&volume).await?;
    volume.spec.and_then(|spec| Some(spec.local?.path)).context("it is a folder of the node")
}

/// Checks that data which etcd stores in plain text is in no file of the snapshot store.
async fn encrypted(world: &BackupFixture, snapshot: &str) -> Result<()> {
    let (etcd, kept) = (folder(world, "data-etcd-0").await?, folder(world, "snapshots").await?);
    let look = format!("test -s {kept}/{snapshot}.db && {{ grep -rlaF {MARKER} {etcd} {kept} || true; }}");
    let found = world.meta.node().run(&look).await?;
    ensure!(found.lines().any(|file| file.starts_with(&etcd)), "etcd does not hold the marker: {found}");
    ensure!(!found.lines().any(|file| file.starts_with(&kept)), "a snapshot is not encrypted: {found}");
    Ok(())
}

/// The guide's manifest of the pod that prints the keys of a snapshot.
fn manifest_of_keys_pod() -> Result<&'static str> {
    let guide = include_str!("../../../../docs/guide/backup.md");
    let mut blocks = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.contains("name: snapshot-keys")).context("the guide has the manifest of the pod")
}

/// The Deployment from which the guide takes the image of that pod.
fn deployment_with_image() -> Result<&'static str> {
    let command = manifest_of_keys_pod()?.split_once("kubectl get deployment ");
    command.and_then(|(_, rest)| rest.split_whitespace().next()).context("the guide names a Deployment")
}

#[test]
fn the_guide_takes_the_image_for_keys_from_a_deployment_that_is_installed() -> Result<()> {
    let named = format!("\n  name: {}\n  namespace: fleetwright-system\n", deployment_with_image()?);
    let mut objects = include_str!("../../../../deploy/install.yaml").split("---\n");
    let installed = objects.any(|object| object.contains("\nkind: Deployment\n") && object.contains(&named));
    ensure!(installed, "deploy/install.yaml has no Deployment with{named}");
    Ok(())
}

/// Checks that the snapshot contains the keys of the cluster: the guide's pod prints the existing Secrets.
async fn keys_of_snapshot(world: &BackupFixture, snapshot: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(world.client.clone(), "fleetwright-system");
    let deployment = deployments.get(deployment_with_image()?).await?.spec;
    let image = deployment.template.spec.and_then(|spec| spec.containers.into_iter().next()?.image);
    let image = image.context("it has an image")?;
    let manifest = manifest_of_keys_pod()?.replace("pay-01", "pay").replace("20261116-120000", snapshot);
    let manifest = manifest.replace("IMAGE", &image);
    let manifest: serde_json::Value =
        serde_saphyr::from_str(&manifest).map_err(|error| anyhow::anyhow!("{error}: {manifest}"))?;
    let pod: Pod = serde_json::from_value(manifest)?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    pods.create(&PostParams::default(), &pod).await?;
    let printed = eventually("the keys of the snapshot", async || {
        let phase = pods.get("snapshot-keys").await?.status.and_then(|status| status.phase).unwrap_or_default();
        if !["Succeeded", "Failed"].contains(&phase.as_str()) {
            return Ok(Err(phase));
        }
        let said = pods.logs("snapshot-keys", &LogParams::default()).await?;
        ensure!(phase == "Succeeded", "{said}");
        Ok(Ok(said))
    })
    .await?;
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "fleet-pay");
    for (name, key) in [("ca", "tls.key"), ("etcd-ca", "tls.key"), ("service-account", "sa.key")] {
        let data = secrets.get(name).await?.data.unwrap_or_default();
        let value = base64::prelude::BASE64_STANDARD.encode(&data.get(key).context("it has its key")?.0);
        ensure!(printed.contains(&value), "{key} of {name} is not in the snapshot");
    }
    pods.delete("snapshot-keys", &DeleteParams::default()).await?;
    eventually("the pod to be gone", async || {
        Ok(if pods.get_opt("snapshot-keys").await?.is_none() { Ok(()) } else { Err("it is there".to_owned()) })
    })
    .await
}

/// Checks that without room for one more pod an upgrade is blocked, and nothing is changed.
async fn held_back(world: &BackupFixture, package: &str, next: &str) -> Result<()> {
    let before = world.pods().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.client.clone(), "fleet-pay");
    let pods = before.len().to_string();
    let quota = json!({ "metadata": { "name": "small" }, "spec": { "hard": { "pods": pods } } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    eventually("the quota to be counted", async || {
        let used = quotas.get("small").await?.status.and_then(|status| status.used);
        Ok(if used.as_ref().is_some_and(|used| !used.is_empty()) { Ok(()) } else { Err(format!("{used:?}")) })
    })
    .await?;
    world.refer(next).await?;
    let why = world.says(names::UPGRADABLE, names::reasons::INSUFFICIENT_RESOURCES).await?;
    ensure!(why.contains("ResourceQuota small ") && why.contains(&format!(" of {pods} used")), "{why}");
    world.refer(package).await?;
    let status = world.until("it to be ready", ready).await?;
    ensure!(status.previous.is_none(), "nothing was begun: {status:#?}");
    ensure!(world.pods().await? == before, "{before:?} became {:?}", world.pods().await?);
    quotas.delete("small", &DeleteParams::default()).await?;
    Ok(())
}

/// Checks that when two of three members lose their data, this is reported, an upgrade is blocked, and nothing is changed.
async fn without_a_quorum(world: &BackupFixture, package: &str, next: &str) -> Result<()> {
    let before = world.pods().await?;
    let begun = Instant::now();
    for member in ["etcd-1", "etcd-2"] {
        world.meta.break_member("fleet-pay", member).await?;
    }
    let why = world.says(names::DATASTORE_HEALTHY, names::reasons::QUORUM_LOST).await?;
    eprintln!("a lost quorum told after {:?}: {why}", begun.elapsed());
    world.refer(next).await?;
    world.says(names::UPGRADABLE, names::reasons::QUORUM_LOST).await?;
    world.refer(package).await?;
    let now = world.pods().await?;
    ensure!(now == before, "nothing is made worse: {before:?} became {now:?}");
    Ok(())
}

//! Clusters whose control planes are real pods of a real meta cluster.

mod bucket;
mod confined;
mod etcd;
mod external;
mod leaf_certificates;
mod members;
mod repair;
mod soak;
mod stages;
mod workers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterPhase, ClusterSpec, ClusterStatus,
    ControlPlaneComponent, EndpointType, EtcdDatastore, Operation, OperationPhase, names,
};
use fleetwright_clusters::Options;
use fleetwright_kit::{Operator, Settings};
use fleetwright_lab::hosts::Image;
use fleetwright_lab::meta::{self, Meta};
use fleetwright_lab::{Binaries, define};
use fleetwright_plan::cluster::members::OPERATIONS;
use fleetwright_plan::cluster::networks::{MetaNetworks, UNKNOWN_NETWORKS};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

/// Seconds, on a machine that does nothing else.
const LONG: Duration = Duration::from_secs(420);
const FLEET: &str = "fleet";

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

/// Of the pods that take snapshots.
const IMAGE: &str = "fleetwright.local/fleetwright:test";

/// What that image is made of: our own program, which is built beside the tests, and the helpers for hosts if they were built.
fn image() -> Result<Image> {
    let own = std::env::current_exe()?;
    let program = own.ancestors().nth(2).map(|folder| folder.join("fleetwright")).filter(|path| path.is_file());
    let missing = || format!("there is no fleetwright beside {}: cargo build -p fleetwright-cli", own.display());
    let program = program.with_context(missing)?;
    match helpers()? {
        helpers if helpers.is_dir() => Image::fleetwright(IMAGE, program, &helpers),
        _ => Image::program(IMAGE, program),
    }
}

/// The folder with the helpers for hosts, whether it is there or not.
fn helpers() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    // target/debug/deps/e2e-…
    own.ancestors().nth(3).map(|target| target.join("helpers")).context("this test is in no target folder")
}

/// The meta cluster with the operator beside it.
struct MetaFixture {
    meta: Meta,
    client: Client,
}

/// Starts a meta cluster with the operator, does something with it, and says what it saw if that fails.
async fn on_meta(test: impl AsyncFnOnce(&MetaFixture) -> Result<()>) -> Result<()> {
    on_meta_with(meta::Options::default(), |_| Ok(&UNKNOWN_NETWORKS), test).await
}

/// The same, with networks that control planes must not reach.
async fn on_meta_with(
    options: meta::Options,
    networks: impl FnOnce(&Meta) -> Result<&'static MetaNetworks>,
    test: impl AsyncFnOnce(&MetaFixture) -> Result<()>,
) -> Result<()> {
    let meta = Meta::start(options).await?;
    let networks = networks(&meta)?;
    meta.import(&image()?).await?;
    let client = meta.client();
    let mut world = MetaFixture { meta, client };
    world.prepare().await?;
    let mut operator = Operator::new(Settings::new("fleetwright", world.client.clone()));
    fleetwright_clusters::add(&mut operator, FLEET, Options { image: IMAGE, networks, ..Options::default() });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));
    let outcome = test(&world).await;
    drop(stop);
    running.await??;
    match outcome {
        Ok(()) => Ok(()),
        Err(error) => {
            let seen = world.meta.seen().await;
            world.meta.keep_logs();
            Err(error.context(seen))
        }
    }
}

impl MetaFixture {
    /// Deletes a cluster, and waits until nothing is left of it.
    async fn gone(&self, name: &str) -> Result<()> {
        self.clusters().delete(name, &DeleteParams::default()).await?;
        eventually("everything to be gone", async || {
            let cluster = self.clusters().get_opt(name).await?.map(|one| one.status);
            let own = format!("{FLEET}-{name}");
            let namespace = Api::<Namespace>::all(self.client.clone()).get_opt(&own).await?;
            let volumes = Api::<PersistentVolume>::all(self.client.clone()).list(&Default::default()).await?;
            let claim = |volume: &PersistentVolume| volume.spec.as_ref()?.claim_ref.as_ref()?.namespace.clone();
            let volumes = volumes.iter().filter(|volume| claim(volume).as_ref() == Some(&own)).count();
            Ok(if cluster.is_none() && namespace.is_none() && volumes == 0 {
                Ok(())
            } else {
                Err(format!("{cluster:#?}, {volumes} volumes, {namespace:?}"))
            })
        })
        .await
    }

    /// The kinds, the namespace, and a package version for each minor whose images are there.
    async fn prepare(&self) -> Result<()> {
        define(&self.client, &fleetwright_api::crds()).await?;
        let fleet = Namespace {
            metadata: ObjectMeta { name: Some(FLEET.to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &fleet).await?;
        for minor in ["1.36", "1.37"] {
            let image = |binary: &str, begins: &str| {
                let images = self.meta.images().iter();
                let mut of = images.filter(|image| image.contains(&format!("/{binary}:{begins}")));
                of.next().cloned().with_context(|| format!("no image of {binary} {begins} in {:?}", self.meta.images()))
            };
            let mut spec = ClusterPackageVersionSpec::of_images("registry.example", "0.0.0", "0.0.0");
            let begins = format!("v{minor}.");
            spec.components.apiserver.image = image(ControlPlaneComponent::Apiserver.binary(), &begins)?;
            spec.components.controller_manager.image =
                image(ControlPlaneComponent::ControllerManager.binary(), &begins)?;
            spec.components.scheduler.image = image(ControlPlaneComponent::Scheduler.binary(), &begins)?;
            spec.components.etcd.image = image(ControlPlaneComponent::Etcd.binary(), Binaries::etcd_version(minor)?)?;
            spec.kubernetes = spec.components.apiserver.version().context("its tag is its version")?.to_owned();
            let packages: Api<ClusterPackageVersion> = Api::namespaced(self.client.clone(), FLEET);
            packages.create(&PostParams::default(), &ClusterPackageVersion::new(&format!("v{minor}"), spec)).await?;
        }
        Ok(())
    }

    /// A cluster at v1.36 that is reached at a port of the node, and may be deleted.
    fn spec(&self, members: u32) -> ClusterSpec {
        let mut spec = ClusterSpec::of("v1.36");
        spec.datastore.etcd = Some(EtcdDatastore { members, ..EtcdDatastore::default() });
        spec.endpoint.type_ = EndpointType::NodePort;
        spec.endpoint.host = Some(self.meta.address().to_string());
        spec.deletion_protection = false;
        spec
    }

    fn clusters(&self) -> Api<Cluster> {
        Api::namespaced(self.client.clone(), FLEET)
    }

    /// Waits until it is Ready, proven and at the package version that it refers to.
    async fn ready(&self, name: &str) -> Result<ClusterStatus> {
        eventually(&format!("{name} to be Ready"), async || {
            let cluster = self.clusters().get(name).await?;
            let status = cluster.status.unwrap_or_default();
            let there = status.observed_generation == cluster.metadata.generation
                && status.package_version.as_ref() == Some(&cluster.spec.package_version)
                && fleetwright_api::is_true(&status.conditions, names::READY)
                && status.waiting_for.is_none();
            Ok(if there { Ok(status) } else { Err(format!("{status:#?}")) })
        })
        .await
    }

    /// A kubeconfig of the business cluster, for its endpoint and with the operator's certificate.
    async fn kubeconfig(&self, name: &str, endpoint: &str) -> Result<Value> {
        use base64::Engine as _;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &format!("{FLEET}-{name}"));
        let data = secrets.get("operator-client").await?.data.unwrap_or_default();
        let text = |key: &str| base64::prelude::BASE64_STANDARD.encode(&data[key].0);
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": name, "cluster": { "server": endpoint, "certificate-authority-data": text("ca.crt") } }],
            "users": [{ "name": name, "user": { "client-certificate-data": text("tls.crt"), "client-key-data": text("tls.key") } }],
            "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
            "current-context": name,
        }))
    }

    /// A client with that.
    async fn business(&self, name: &str, endpoint: &str) -> Result<Client> {
        let config: Kubeconfig = serde_json::from_value(self.kubeconfig(name, endpoint).await?)?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    async fn refer(&self, name: &str, package: &str) -> Result<()> {
        let patch: Value = json!({ "spec": { "packageVersion": package } });
        self.clusters().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

/// Writes and reads all along, and counts what failed.
struct LoadGenerator {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<Vec<String>>,
}

/// Asks again, once, if the connection was closed before the server took the request. By HTTP/2 a server that goes tells which requests it did not
/// take, and client-go repeats these by itself; ours does not. One that was taken would be noticed: the object is there already.
async fn again<T, F: Future<Output = kube::Result<T>>>(ask: impl Fn() -> F) -> kube::Result<T> {
    match ask().await {
        Err(kube::Error::Service(_)) => ask().await,
        answer => answer,
    }
}

impl LoadGenerator {
    fn start(client: Client) -> Self {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopping, counting) = (stop.clone(), written.clone());
        let task = tokio::spawn(async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let (mut failed, params) = (Vec::new(), PostParams::default());
            while !stopping.load(Ordering::Relaxed) {
                let name = format!("busy-{}", counting.load(Ordering::Relaxed));
                let map = ConfigMap {
                    metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                    ..ConfigMap::default()
                };
                match again(|| maps.create(&params, &map)).await {
                    Ok(_) => {
                        counting.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => failed.push(format!("creating {name}: {error}")),
                }
                if let Err(error) = again(|| maps.get_opt(&name)).await {
                    failed.push(format!("reading {name}: {error}"));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            failed
        });
        Self { stop, written, task }
    }

    async fn end(self) -> Result<(usize, Vec<String>)> {
        self.stop.store(true, Ordering::Relaxed);
        // The last one may be under way.
        let failed = self.task.await?;
        Ok((self.written.load(Ordering::Relaxed), failed))
    }

    /// Ends it: no request failed, and all that was written is there.
    async fn unharmed(self, client: Client) -> Result<()> {
        let (written, failed) = self.end().await?;
        ensure!(failed.is_empty(), "{} of {written} writes failed: {failed:#?}", failed.len());
        ensure!(written > 10, "{written} writes in all");
        let maps = Api::<ConfigMap>::default_namespaced(client).list(&Default::default()).await?;
        let there = maps.iter().filter(|one| one.name_any().starts_with("busy-")).count();
        ensure!(there == written, "{there} of {written} are there");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_made_of_pods_upgraded_rolled_back_and_rotated_under_load_and_goes_without_a_trace_on_hosts()
-> Result<()> {
    // Both wait most of the time.
    on_meta(async |world| tokio::try_join!(live(world), soak::ends(world)).map(drop)).await
}

/// Made, upgraded with a newer minor of etcd, rolled back without it, with other certificates, and deleted.
async fn live(world: &MetaFixture) -> Result<()> {
    let begun = Instant::now();
    world.clusters().create(&PostParams::default(), &Cluster::new("pay", world.spec(1))).await?;
    let status = world.ready("pay").await?;
    eprintln!("proven Ready after {:?}", begun.elapsed());
    let endpoint = status.endpoint.context("it has an endpoint")?;
    let client = world.business("pay", &endpoint).await?;

    etcd::newer(world).await?;
    let writer = members::Writer::start(Api::default_namespaced(client.clone()));
    let begun = Instant::now();
    world.refer("pay", etcd::NEWER).await?;
    etcd::upgraded(world, client.clone()).await?;
    eprintln!("etcd upgraded after {:?}", begun.elapsed());
    // From here on no member of etcd restarts, and so no request fails.
    let busy = LoadGenerator::start(client.clone());
    let status = world.ready("pay").await?;
    eprintln!("upgraded after {:?}", begun.elapsed());
    // An earlier connection may lead to a server that is shutting down.
    let version = world.business("pay", &endpoint).await?.apiserver_version().await?.git_version;
    ensure!(version.starts_with("v1.37."), "it says {version}");
    ensure!(status.previous.as_deref() == Some("v1.36"), "{status:#?}");
    ensure!(status.emulates.as_deref() == Some("1.36"), "{status:#?}");

    let begun = Instant::now();
    world.refer("pay", "v1.36").await?;
    world.ready("pay").await?;
    eprintln!("rolled back after {:?}", begun.elapsed());
    // An earlier connection may lead to a server that is shutting down.
    let version = world.business("pay", &endpoint).await?.apiserver_version().await;
    let version = version.context("cannot read the version after the rollback")?.git_version;
    ensure!(version.starts_with("v1.36."), "it says {version}");

    let begun = Instant::now();
    etcd::stays(world).await?;
    eprintln!("etcd stayed at its minor for {:?}", begun.elapsed());

    let begun = Instant::now();
    leaf_certificates::rotate(world).await?;
    eprintln!("all certificates rotated after {:?}", begun.elapsed());
    busy.unharmed(client).await?;
    writer.lost_nothing().await?;

    let begun = Instant::now();
    world.gone("pay").await?;
    eprintln!("gone after {:?}", begun.elapsed());
    Ok(())
}

/// How many Operations of each type on members of etcd succeeded for that member of `pay`, once none of them is open.
async fn operated(world: &MetaFixture, member: &str) -> Result<BTreeMap<&'static str, usize>> {
    let operations: Api<Operation> = Api::namespaced(world.client.clone(), FLEET);
    let own = |one: &Operation| {
        // A fingerprint starts with the name of the member.
        let of_member = one.spec.fingerprint.strip_prefix(member).is_some_and(|rest| rest.starts_with('-'));
        of_member && one.spec.target.name == "pay"
    };
    eventually(&format!("no Operation on {member} to be open"), async || {
        let mut succeeded: BTreeMap<_, usize> = OPERATIONS.into_iter().map(|type_| (type_, 0)).collect();
        for one in operations.list(&Default::default()).await?.iter().filter(|one| own(one)) {
            let Some(count) = succeeded.get_mut(one.spec.type_.as_str()) else { continue };
            match one.status.as_ref().map(|status| status.phase) {
                Some(OperationPhase::Succeeded) => *count += 1,
                Some(phase) if phase.ended() => {}
                _ => return Ok(Err(format!("{one:#?}"))),
            }
        }
        Ok(Ok(succeeded))
    })
    .await
}

/// Since when its datastore is healthy, if it is.
async fn healthy_since(world: &MetaFixture) -> Result<Option<String>> {
    let status = world.clusters().get("pay").await?.status.unwrap_or_default();
    let healthy = fleetwright_api::condition(&status.conditions, names::DATASTORE_HEALTHY);
    let healthy = healthy.filter(|healthy| healthy.status == fleetwright_api::Status::True);
    Ok(healthy.map(|healthy| healthy.last_transition_time.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_etcd_that_lost_its_data_is_replaced_on_hosts() -> Result<()> {
    on_meta(async |world| {
        let spec = ClusterSpec { replicas: 1, ..world.spec(3) };
        world.clusters().create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
        let status = world.ready("pay").await?;
        let client = world.business("pay", &status.endpoint.context("it has an endpoint")?).await?;
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let map = ConfigMap {
            metadata: ObjectMeta { name: Some("kept".to_owned()), ..ObjectMeta::default() },
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map).await?;

        let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), "fleet-pay");
        // First as a member that began with the others, then as one that joined them, which fails in another way.
        for _ in 0..2 {
            let before = healthy_since(world).await?;
            let (volume, mut expected) = (claims.get("data-etcd-2").await?.uid(), operated(world, "etcd-2").await?);
            let begun = Instant::now();
            world.meta.lose_member("fleet-pay", "etcd-2").await?;
            eventually("all members to be healthy again", async || {
                let now = healthy_since(world).await?;
                Ok(if now.is_some() && now != before {
                    Ok(())
                } else {
                    Err(format!("{:?}", pods.get_opt("etcd-2").await?))
                })
            })
            .await?;
            let status = world.ready("pay").await?;
            eprintln!("a member that lost its data was replaced after {:?}", begun.elapsed());
            ensure!(fleetwright_api::is_true(&status.conditions, names::DATASTORE_HEALTHY), "{status:#?}");
            ensure!(maps.get_opt("kept").await?.is_some(), "what was written is there");
            // Each act happened once: the member was removed, its volume deleted, and it was added and promoted.
            expected.values_mut().for_each(|count| *count += 1);
            let succeeded = operated(world, "etcd-2").await?;
            ensure!(succeeded == expected, "Operations {succeeded:?} succeeded, and {expected:?} are expected");
            ensure!(claims.get("data-etcd-2").await?.uid() != volume, "the volume of etcd-2 is the old one");
        }
        // Not before: what is done to a member above is done to all members of that name.
        tokio::try_join!(members::resize(world, &maps), members::grow(world))?;
        ensure!(maps.get_opt("kept").await?.is_some(), "what was written is there");
        Ok(())
    })
    .await
}

//! Clusters and their package versions, and what is seen of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, EtcdDatastore, is_true, names,
};
use fleetwright_lab::define;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Where the clusters are.
pub(crate) const NAMESPACE: &str = "fleet";
/// Requests at the same time while something is asked for of all.
const AT_ONCE: usize = 32;
/// So old are certificates of ten minutes that are due: those are back-dated by five, and due after two thirds of their life.
const OLD_ENOUGH: Duration = Duration::from_secs(105);
/// How long anything may take.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// The clusters and what is seen of them.
pub(crate) struct Fleet {
    client: Client,
    size: usize,
    /// The package version that all are to have.
    package: &'static str,
    /// The generation that all are to have.
    generation: i64,
    /// When the last was added.
    grown: Instant,
    seen: Arc<ObservedClusters>,
    watching: JoinHandle<()>,
}

#[derive(Default)]
struct ObservedClusters {
    /// The clusters that were Ready.
    ready: Mutex<HashMap<String, Ready>>,
    changed: tokio::sync::Notify,
}

struct Ready {
    generation: i64,
    /// When the last of its certificates ends, authorities aside.
    end: Timestamp,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn name(number: usize) -> String {
    format!("c-{number:05}")
}

impl Fleet {
    /// The kinds, a namespace, package versions, and no cluster.
    pub(crate) async fn new(client: Client) -> Result<Self> {
        define(&client, &fleetwright_api::crds()).await?;
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let packages: Api<ClusterPackageVersion> = Api::namespaced(client.clone(), NAMESPACE);
        for (name, kubernetes) in [("v1.36", "1.36.4"), ("v1.36-next", "1.36.5")] {
            let spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, "3.6.16");
            packages.create(&PostParams::default(), &ClusterPackageVersion::new(name, spec)).await?;
        }
        let seen = Arc::new(ObservedClusters::default());
        let watching = tokio::spawn(watch(client.clone(), seen.clone()));
        Ok(Self { client, size: 0, package: "v1.36", generation: 1, grown: Instant::now(), seen, watching })
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn clusters(&self) -> Api<Cluster> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Adds clusters up to that number.
    pub(crate) async fn grow_to(&mut self, size: usize) -> Result<()> {
        let (clusters, package) = (&self.clusters(), self.package);
        futures::stream::iter(self.size..size)
            .map(|number| async move {
                let mut spec = ClusterSpec::of(package);
                spec.replicas = 1;
                spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
                clusters.create(&PostParams::default(), &Cluster::new(&name(number), spec)).await?;
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await
            .context("creating clusters")?;
        (self.size, self.grown) = (self.size.max(size), Instant::now());
        Ok(())
    }

    /// Waits until all are proven. Those that were added late have fewer generations behind them, and are as they were declared.
    pub(crate) async fn all_ready(&self) -> Result<()> {
        self.ready_with(|_| true).await
    }

    async fn ready_with(&self, wanted: impl Fn(&Ready) -> bool) -> Result<()> {
        let (deadline, mut told) = (Instant::now() + WAIT_TIMEOUT, Instant::now());
        loop {
            let changed = self.seen.changed.notified();
            let ready = self.seen.ready.lock().unwrap().values().filter(|seen| wanted(seen)).count();
            if ready >= self.size {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{ready} of {} clusters are Ready", self.size);
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                eprintln!("bench: {ready} of {}", self.size);
            }
            let _ = tokio::time::timeout(Duration::from_secs(1), changed).await;
        }
    }

    async fn patch_all(&mut self, patch: Value) -> Result<()> {
        let (clusters, patch) = (&self.clusters(), &patch);
        futures::stream::iter(0..self.size)
            .map(|number| async move {
                clusters.patch(&name(number), &PatchParams::default(), &Patch::Merge(patch)).await?;
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.generation += 1;
        Ok(())
    }

    /// Waits until all certificates are old enough for [`Fleet::rotate`].
    pub(crate) async fn until_due(&self) {
        tokio::time::sleep_until((self.grown + OLD_ENOUGH).into()).await;
    }

    /// Certificates last as short as makes all of them due: those of servers and clients of all clusters are replaced.
    pub(crate) async fn rotate(&mut self) -> Result<()> {
        self.patch_all(json!({ "spec": { "certificates": { "leafLifetime": "10m" } } })).await?;
        let (generation, soon) = (self.generation, Timestamp::now() + Duration::from_secs(7200));
        self.ready_with(|seen| seen.generation >= generation && seen.end < soon).await
    }

    /// Another version for all; returns when all have it.
    pub(crate) async fn upgrade(&mut self) -> Result<()> {
        self.package = "v1.36-next";
        self.patch_all(json!({ "spec": { "packageVersion": self.package } })).await?;
        let generation = self.generation;
        self.ready_with(|seen| seen.generation >= generation).await
    }
}

/// Notes which clusters are Ready, and with what.
async fn watch(client: Client, seen: Arc<ObservedClusters>) {
    let clusters: Api<Cluster> = Api::namespaced(client, NAMESPACE);
    let mut events = std::pin::pin!(watcher(clusters, watcher::Config::default().streaming_lists()));
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(cluster) | watcher::Event::InitApply(cluster)) = event else { continue };
        let (name, generation) = (cluster.name_any(), cluster.metadata.generation);
        let Some(status) = cluster.status else { continue };
        let there = status.observed_generation == generation
            && status.package_version.as_ref() == Some(&cluster.spec.package_version)
            && is_true(&status.conditions, names::READY)
            && is_true(&status.conditions, names::CERTIFICATES_VALID)
            && status.waiting_for.is_none();
        if there {
            let leaves = status.certificates.iter().filter(|one| one.name != "ca" && !one.name.ends_with("-ca"));
            let end = leaves.map(|one| one.not_after).max().unwrap_or(Timestamp::MAX);
            seen.ready.lock().unwrap().insert(name, Ready { generation: generation.unwrap_or_default(), end });
            seen.changed.notify_waiters();
        }
    }
}

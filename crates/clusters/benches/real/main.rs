//! Control planes as pods of a real meta cluster, against the same four programs started by hand on the same machine in the same run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleetwright_api::{Cluster, ClusterPackageVersion, ClusterSpec, EndpointType, EtcdDatastore, is_true, names};
use fleetwright_clusters::Options;
use fleetwright_kit::{Operator, Settings};
use fleetwright_lab::hosts::Image;
use fleetwright_lab::measure::{fleetwright, format_number, machine, write};
use fleetwright_lab::meta::{self, Meta};
use fleetwright_lab::{ControlPlane, define};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, ResourceQuotaSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

const FLEET: &str = "fleet";
const IMAGE: &str = "fleetwright.local/fleetwright:bench";
/// The Kubernetes of the processes, and of the clusters that are compared with them.
const MINOR: &str = "1.36";
const LONG: Duration = Duration::from_secs(600);

fn main() -> Result<()> {
    let (mut rounds, mut json) = (5, PathBuf::from("target/bench-clusters-real.json"));
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => rounds = value()?.parse()?,
            "--json" => json = value()?.into(),
            // Cargo says it to every bench.
            "--bench" => {}
            other => bail!("unknown argument {other}; use --rounds N, --json FILE"),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(rounds, &json))
}

async fn measure(rounds: usize, json: &Path) -> Result<()> {
    let machine = machine::describe("cargo bench -p fleetwright-clusters --bench real")?;
    eprintln!("bench: starting the meta cluster");
    let meta = Meta::start(meta::Options::default()).await?;
    meta.import(&Image::program(IMAGE, fleetwright()?)?).await?;
    let bench = Bench { client: meta.client(), address: meta.address().to_string() };
    let versions = bench.prepare(&meta).await?;
    let mut operator = Operator::new(Settings::new("fleetwright", bench.client.clone()));
    fleetwright_clusters::add(&mut operator, FLEET, Options { image: IMAGE, ..Options::default() });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { drop(stopped.await) }));

    let [old, new] = versions.as_slice() else { bail!("two versions are needed, there are {versions:?}") };
    let (mut by_hand, mut made, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    let (mut on_the_way, mut pods_gone) = (Timeline::<Vec<f64>>::new(), Vec::new());
    for round in 1..=rounds {
        let time = processes().await?;
        eprintln!("bench: round {round} of {rounds}: four processes work after {time:.2} s");
        by_hand.push(time);
        let (time, way) = bench.create("one", old, 1).await?;
        eprintln!("bench: round {round} of {rounds}: a cluster is proven Ready after {time:.2} s; {}", told(&way));
        made.push(time);
        for (what, time) in way {
            on_the_way.entry(what).or_default().push(time);
        }
        let (time, pods) = bench.delete("one").await?;
        eprintln!("bench: round {round} of {rounds}: and gone after {time:.2} s, its pods after {pods:.2} s");
        gone.push(time);
        pods_gone.push(pods);
    }
    let (two, _) = bench.create("two", old, 2).await?;
    let there = bench.change("two", new).await?;
    let back = bench.change("two", old).await?;
    bench.delete("two").await?;
    drop(stop);
    running.await??;

    let (floor, made) = (median(by_hand), median(made));
    println!("{}; medians of {rounds} rounds\n", machine::line(&machine));
    println!("| what | s | times the processes |\n|---|--:|--:|");
    let mut rows = Vec::new();
    let mut row = |what: &str, seconds: f64| {
        println!("| {what} | {} | {}× |", format_number(seconds), format_number(seconds / floor));
        rows.push(json!({ "what": what, "seconds": seconds, "ratio": seconds / floor }));
    };
    row("etcd, kube-apiserver, kube-controller-manager, kube-scheduler as processes, until they work", floor);
    row("a Cluster of the same four, one of each, until it is proven Ready", made);
    let mut steps: Vec<_> = on_the_way.into_iter().map(|(what, times)| (median(times), what)).collect();
    steps.sort_by(|one, other| one.0.total_cmp(&other.0));
    for (time, what) in steps {
        row(&format!("on the way there: {what}"), time);
    }
    row("a Cluster with two replicas", two);
    row("delete, until no pod is left", median(pods_gone));
    row("delete, until nothing is left", median(gone));
    for (name, stages) in [("upgrade to the next minor", there), ("rollback", back)] {
        row(&format!("{name}, two replicas"), stages.iter().map(|(_, seconds)| seconds).sum());
        for (stage, seconds) in stages {
            row(&format!("{name}: {stage}"), seconds);
        }
    }
    let all = json!({ "machine": machine, "rounds": rounds, "rows": rows });
    write(json, &all)
}

/// What happened on the way, and when.
type Timeline<T> = BTreeMap<String, T>;

fn told(way: &Timeline<f64>) -> String {
    let mut steps: Vec<_> = way.iter().collect();
    steps.sort_by(|one, other| one.1.total_cmp(other.1));
    let steps: Vec<_> = steps.into_iter().map(|(what, time)| format!("{what} {time:.2}")).collect();
    steps.join(", ")
}

/// How far a pod has come.
fn marks(pod: &Pod) -> Vec<String> {
    let component = pod.labels().get(names::COMPONENT).cloned().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let holds = |type_: &str| {
        status.conditions.iter().flatten().any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    let runs = status
        .container_statuses
        .iter()
        .flatten()
        .any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()));
    let steps = [("has a node", holds("PodScheduled")), ("runs", runs), ("is ready", holds("Ready"))];
    steps.into_iter().filter(|(_, reached)| *reached).map(|(step, _)| format!("{component} {step}")).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Waits until something holds.
async fn until(what: &str, mut look: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LONG;
    while !look().await? {
        ensure!(Instant::now() < deadline, "waited {LONG:?} for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The same four programs with the same arguments and without pods, until they do what the operator asks of a cluster: an object is written, read and deleted, the
/// controller-manager acts on a quota in a new namespace, and the scheduler has its lease.
async fn processes() -> Result<f64> {
    let begun = Instant::now();
    let plane =
        ControlPlane::builder().minor(MINOR).controller_manager(["*"]).scheduler(true).production_arguments(true);
    let plane = plane.start().await?;
    let client = plane.client();
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &named("proof")).await?;
    ensure!(maps.get_opt("proof").await?.is_some(), "the created ConfigMap does not exist");
    maps.delete("proof", &DeleteParams::default()).await?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &named("proof")).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "proof");
    let mut quota: ResourceQuota = named("proof");
    let hard = BTreeMap::from([("count/configmaps".to_owned(), Quantity("1000".to_owned()))]);
    quota.spec = Some(ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() });
    quotas.create(&PostParams::default(), &quota).await?;
    until("the controller-manager", async || {
        Ok(quotas.get("proof").await?.status.is_some_and(|status| status.hard.is_some()))
    })
    .await?;
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    until("the scheduler", async || Ok(leases.get_opt("kube-scheduler").await?.is_some())).await?;
    Ok(begun.elapsed().as_secs_f64())
}

fn named<T: Default + kube::Resource>(name: &str) -> T {
    let mut object = T::default();
    *object.meta_mut() = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    object
}

/// The meta cluster.
struct Bench {
    client: Client,
    address: String,
}

impl Bench {
    fn clusters(&self) -> Api<Cluster> {
        Api::namespaced(self.client.clone(), FLEET)
    }

    fn pods(&self, cluster: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &format!("{FLEET}-{cluster}"))
    }

    /// The kinds, the namespace, and a package version for each minor; their names, the oldest first.
    async fn prepare(&self, meta: &Meta) -> Result<Vec<String>> {
        define(&self.client, &fleetwright_api::crds()).await?;
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &named(FLEET)).await?;
        let packages: Api<ClusterPackageVersion> = Api::namespaced(self.client.clone(), FLEET);
        let mut all = Vec::new();
        for version in meta.package_versions(FLEET)? {
            let version: ClusterPackageVersion = serde_json::from_value(version)?;
            all.push(packages.create(&PostParams::default(), &version).await?.name_any());
        }
        all.sort();
        let begins = format!("k8s-{MINOR}.");
        all.retain(|name| *name > begins);
        Ok(all)
    }

    /// Makes a cluster; how long it took until it was proven Ready, and until its first pods were where they had to come.
    async fn create(&self, name: &str, version: &str, replicas: u32) -> Result<(f64, Timeline<f64>)> {
        let mut spec = ClusterSpec::of(version);
        spec.replicas = replicas;
        spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
        spec.endpoint.type_ = EndpointType::NodePort;
        spec.endpoint.host = Some(self.address.clone());
        spec.deletion_protection = false;
        let begun = Instant::now();
        self.clusters().create(&PostParams::default(), &Cluster::new(name, spec)).await?;
        let pods = self.pods(name);
        let mut way = Timeline::new();
        until("the cluster to be Ready", async || {
            for mark in pods.list(&ListParams::default()).await?.iter().flat_map(marks) {
                way.entry(mark).or_insert_with(|| begun.elapsed().as_secs_f64());
            }
            Ok(ready(&self.clusters().get(name).await?))
        })
        .await?;
        Ok((begun.elapsed().as_secs_f64(), way))
    }

    /// Refers a cluster to another version: what was done, and how long each of it took.
    async fn change(&self, name: &str, version: &str) -> Result<Vec<(String, f64)>> {
        let patch: Value = json!({ "spec": { "packageVersion": version } });
        let mut since = Instant::now();
        self.clusters().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        let (mut stages, mut now) = (Vec::<(String, f64)>::new(), "before it".to_owned());
        until("the change", async || {
            let cluster = self.clusters().get(name).await?;
            let done = ready(&cluster);
            let progress = cluster.status.and_then(|status| status.progress);
            let stage = match progress {
                Some(progress) => progress.step,
                None if now == "before it" => now.clone(),
                None => "after it".to_owned(),
            };
            if done || stage != now {
                stages.push((std::mem::replace(&mut now, stage), since.elapsed().as_secs_f64()));
                since = Instant::now();
            }
            Ok(done)
        })
        .await?;
        Ok(stages)
    }

    /// Deletes a cluster; how long it took until nothing was left, and until none of its pods was.
    async fn delete(&self, name: &str) -> Result<(f64, f64)> {
        let begun = Instant::now();
        self.clusters().delete(name, &DeleteParams::default()).await?;
        let namespace = format!("{FLEET}-{name}");
        let (namespaces, pods) = (Api::<Namespace>::all(self.client.clone()), self.pods(name));
        let mut without = None;
        until("everything to be gone", async || {
            if without.is_none() && pods.list(&ListParams::default()).await?.items.is_empty() {
                without = Some(begun.elapsed().as_secs_f64());
            }
            let there = self.clusters().get_opt(name).await?.is_some();
            Ok(!there && namespaces.get_opt(&namespace).await?.is_none())
        })
        .await?;
        let gone = begun.elapsed().as_secs_f64();
        Ok((gone, without.unwrap_or(gone)))
    }
}

/// It is proven to be what its spec says.
fn ready(cluster: &Cluster) -> bool {
    cluster.status.as_ref().is_some_and(|status| {
        status.observed_generation == cluster.metadata.generation
            && status.package_version.as_ref() == Some(&cluster.spec.package_version)
            && is_true(&status.conditions, names::READY)
            && status.waiting_for.is_none()
    })
}

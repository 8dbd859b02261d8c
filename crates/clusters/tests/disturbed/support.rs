//! A simulated meta cluster for each run, and what a person would see of its clusters.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, ControlPlaneComponent, EtcdDatastore, crds,
    is_true, names,
};
use fleetwright_clusters::Options;
use fleetwright_kit::Operator;
use fleetwright_rig::normal::normalised;
use fleetwright_rig::{Call, Life, Outfit, Pace, Scenario, Side, Stage};
use fleetwright_sim::meta::{Manner, Meta};
use futures::future::BoxFuture;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::witness::Witness;

/// What happens in a story.
pub type Play = for<'a> fn(&'a Stage) -> BoxFuture<'a, Result<()>>;

/// A scenario of the Cluster-Operator.
#[derive(Clone, Copy)]
pub struct Story {
    play: Play,
    /// Two operators work at once, and each believes that it leads.
    twice: bool,
    /// Members of etcd, and replicas of the others.
    size: (u32, u32),
    /// So many times as fast as on the wall.
    pace: u32,
}

impl Story {
    pub const fn new(play: Play) -> Self {
        Self { play, twice: false, size: (1, 1), pace: 10 }
    }

    pub const fn twice(self) -> Self {
        Self { twice: true, ..self }
    }

    /// In more of a hurry: for where most of the time is spent waiting.
    pub const fn hurried(self) -> Self {
        Self { pace: 30, ..self }
    }

    /// With three members of etcd and two replicas of the others.
    pub const fn large(self) -> Self {
        Self { size: (3, 2), ..self }
    }
}

/// What belongs to a run, by its namespace.
static SITES: Mutex<BTreeMap<String, Site>> = Mutex::new(BTreeMap::new());

struct Site {
    size: (u32, u32),
    witness: Arc<Witness>,
    /// Once the play is over, so that it goes on until all is told.
    meta: Option<Meta>,
}

fn manner() -> Manner {
    Manner {
        start: Duration::from_millis(50),
        stop: Duration::from_millis(200),
        refresh: Duration::from_millis(500),
        backoff: Duration::from_millis(500),
        longest_backoff: Duration::from_secs(2),
        // Longer than any pause of a busy machine, even in hurried time.
        node_grace: Duration::from_secs(3600),
        ..Manner::default()
    }
}

impl Scenario for Story {
    const NAME: &'static str = "clusters";

    fn kinds(&self) -> Vec<CustomResourceDefinition> {
        let ours = |one: &CustomResourceDefinition| one.spec.names.kind.starts_with("Cluster");
        crds().into_iter().filter(ours).collect()
    }

    /// Control planes really listen, and certificates are of today.
    fn pace(&self) -> Pace {
        Pace::Hurried(self.pace)
    }

    fn operator(&self, outfit: Outfit, _: &Path) -> Life {
        let life = || {
            let mut operator = Operator::new(outfit.settings("fleetwright-clusters"));
            fleetwright_clusters::add(&mut operator, &outfit.namespace, Options::default());
            Life::of(operator, &outfit)
        };
        if !self.twice {
            return life();
        }
        let (one, two) = (life(), life());
        let run = async move { futures::try_join!(one.run, two.run).map(drop) };
        Life { run: Box::pin(run), idle: Box::new(move || (one.idle)() && (two.idle)()) }
    }

    async fn play(&self, stage: &Stage) -> Result<()> {
        let witness = Arc::new(Witness::start(stage.admin()));
        let site = Site { size: self.size, witness: witness.clone(), meta: None };
        sites().insert(stage.namespace().to_owned(), site);
        let meta = Meta::start(stage.admin(), stage.clock().clone(), manner()).await?;
        for (name, kubernetes, etcd) in [("v1.36", "1.36.4", "3.6.16"), ("v1.37", "1.37.1", "3.6.17")] {
            let spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
            let package = ClusterPackageVersion::new(name, spec);
            stage.api::<ClusterPackageVersion>().create(&PostParams::default(), &package).await?;
        }
        let played = (self.play)(stage).await;
        if let Some(site) = sites().get_mut(stage.namespace()) {
            site.meta = Some(meta);
        }
        played
    }

    async fn end(&self, stage: &Stage) -> Result<Value> {
        let mut clusters = serde_json::Map::new();
        for cluster in stage.api::<Cluster>().list(&ListParams::default()).await? {
            clusters.insert(cluster.name_any(), stage.told(&cluster.name_any()).await?);
        }
        let objects = objects(stage, &format!("{}={}", names::FLEET, stage.namespace())).await?;
        Ok(json!({ "clusters": clusters, "objects": objects }))
    }

    /// What happened to keys and to members of etcd is not compared: it must never have happened.
    fn acts(&self, stage: &Stage) -> Result<Vec<String>> {
        let site = sites().remove(stage.namespace()).context("no site")?;
        site.witness.judge()?;
        Ok(Vec::new())
    }
}

fn sites() -> std::sync::MutexGuard<'static, BTreeMap<String, Site>> {
    SITES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is of a control plane, and not one that takes a snapshot of it when its time has come.
fn of_component(pod: &Pod) -> bool {
    pod.labels().get(names::COMPONENT).is_some_and(|name| ControlPlaneComponent::of_binary(name).is_some())
}

/// Everything in the meta cluster with that label, without what depends on the run.
async fn objects(stage: &Stage, label: &str) -> Result<Value> {
    let label = ListParams::default().labels(label);
    let mut objects = serde_json::Map::new();
    for namespace in Api::<Namespace>::all(stage.admin()).list(&label).await? {
        objects.insert(format!("Namespace {}", namespace.name_any()), json!(namespace.labels()));
    }
    objects.extend(snapshot::<ConfigMap>(stage, &label).await?);
    objects.extend(snapshot::<Service>(stage, &label).await?);
    objects.extend(snapshot::<NetworkPolicy>(stage, &label).await?);
    objects.extend(snapshot::<PodDisruptionBudget>(stage, &label).await?);
    objects.extend(snapshot::<StatefulSet>(stage, &label).await?);
    objects.extend(snapshot::<Deployment>(stage, &label).await?);
    for secret in Api::<Secret>::all(stage.admin()).list(&label).await? {
        let keys: Vec<String> = secret.data.clone().unwrap_or_default().into_keys().collect();
        let name = format!("Secret {}/{}", secret.namespace().unwrap_or_default(), secret.name_any());
        objects.insert(name, json!([secret.labels(), keys]));
    }
    let mut pods: BTreeMap<String, usize> = BTreeMap::new();
    for pod in Api::<Pod>::all(stage.admin()).list(&label).await?.into_iter().filter(of_component) {
        let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone()).unwrap_or_default();
        *pods.entry(format!("{} {image}", pod.namespace().unwrap_or_default())).or_default() += 1;
    }
    objects.insert("pods".to_owned(), json!(pods));
    // Names of objects are keys here, and have the namespace in them as well.
    let text = Value::Object(objects).to_string().replace(stage.namespace(), "NAMESPACE");
    Ok(normalised(&serde_json::from_str(&text)?, "NAMESPACE"))
}

/// What comes of a leg of a lap, with a cluster of that name.
pub type Leg = for<'a> fn(&'a Stage, &'a str) -> BoxFuture<'a, Result<Value>>;

/// So many laps in a row that end before the call at which the operator was to be stopped: there are no more calls.
const MISSES: usize = 2;

/// Lap after lap, stops the operator dead before a call of each leg, and then after those that change the world, and holds each leg to what came of an undisturbed one.
/// After all others is before the next one.
pub async fn at_every_call(stage: &Stage, legs: &[Leg]) -> Result<()> {
    let mut number = 0;
    let mut lap = async |at: Option<(usize, Side)>| -> Result<Vec<(Value, Option<Call>)>> {
        let name = format!("lap{number}");
        number += 1;
        let mut came = Vec::new();
        for leg in legs {
            stage.crash().again(at);
            let value = leg(stage, &name).await.with_context(|| format!("{name}, stopped at {at:?}"))?;
            // Names are the same in all laps but for the number.
            let value = serde_json::from_str(&value.to_string().replace(&name, "lap"))?;
            came.push((value, stage.crash().at_call()));
        }
        stage.crash().again(None);
        Ok(came)
    };
    let expected = lap(None).await?;
    let (mut killed, mut after, mut missed) = (0, Vec::new(), 0);
    for call in 0.. {
        let came = lap(Some((call, Side::Before))).await?;
        let calls: Vec<&Call> = came.iter().filter_map(|(_, call)| call.as_ref()).collect();
        let changes = |call: &Call| call.writes() && call.subresource.is_empty() && call.resource != "events";
        if calls.iter().any(|call| changes(call)) {
            after.push(call);
        }
        killed += calls.len();
        hold(&expected, &came, &format!("before call {call}"))?;
        missed = if calls.is_empty() { missed + 1 } else { 0 };
        if missed > MISSES {
            break;
        }
    }
    for call in after {
        let came = lap(Some((call, Side::After))).await?;
        killed += came.iter().filter(|(_, call)| call.is_some()).count();
        hold(&expected, &came, &format!("after call {call}"))?;
    }
    eprintln!("clusters: stopped dead at {killed} calls in {number} laps: the same end each time");
    anyhow::ensure!(killed > 20, "it was stopped at {killed} calls only: that is no lap");
    Ok(())
}

type Came = [(Value, Option<Call>)];

fn hold(expected: &Came, came: &Came, at: &str) -> Result<()> {
    for ((expected, _), (came, call)) in expected.iter().zip(came) {
        let call = call.as_ref().map(ToString::to_string).unwrap_or_default();
        anyhow::ensure!(
            expected == came,
            "stopped dead {at} ({call}), what came of it was {came:#}\nbut undisturbed {expected:#}"
        );
    }
    Ok(())
}

/// Objects of a kind, with what was declared of them and nothing that depends on the run.
async fn snapshot<K>(stage: &Stage, label: &ListParams) -> Result<Vec<(String, Value)>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let mut all = Vec::new();
    for object in Api::<K>::all(stage.admin()).list(label).await? {
        let name = format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any());
        let mut value = serde_json::to_value(&object)?;
        for given in ["clusterIP", "clusterIPs"] {
            if let Some(spec) = value["spec"].as_object_mut() {
                spec.remove(given);
            }
        }
        // Digests of what has the namespace's name and the keys of this run in it.
        if let Some(template) = value["spec"]["template"]["metadata"]["annotations"].as_object_mut() {
            template.retain(|name, _| !name.starts_with("fleetwright.io/"));
        }
        let annotations: BTreeMap<_, _> =
            object.annotations().iter().filter(|(name, _)| name.starts_with("fleetwright.io/")).collect();
        all.push((name, json!([object.labels(), annotations, value["spec"], value["data"]])));
    }
    Ok(all)
}

/// What is worth comparing of a cluster.
fn outline(cluster: &Cluster) -> Value {
    let status = cluster.status.clone().unwrap_or_default();
    let components: Vec<Value> = status
        .components
        .iter()
        .map(|one| {
            let replicas = one.replicas.iter().map(|one| (&one.version, one.ready, one.proven.is_some()));
            json!([one.component, one.desired, one.observed, replicas.collect::<Vec<_>>()])
        })
        .collect();
    let conditions: BTreeMap<String, String> = status
        .conditions
        .iter()
        .map(|one| (one.type_.clone(), format!("{} {}", one.status.as_str(), one.reason)))
        .collect();
    let certificates: Vec<String> = status.certificates.iter().map(|one| one.name.clone()).collect();
    json!({
        "spec": cluster.spec, "finalizers": cluster.metadata.finalizers,
        "phase": status.phase, "waits": status.waiting_for, "package": status.package_version, "previous": status.previous,
        "emulates": status.emulates, "soaks": status.soak_until.is_some(), "components": components,
        "conditions": conditions, "certificates": certificates,
    })
}

/// What a story needs to say.
pub trait Telling {
    fn within<K>(&self, cluster: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>;
    async fn declare(&self, cluster: &str) -> Result<()>;
    async fn refer(&self, cluster: &str, package: &str) -> Result<()>;
    async fn remove(&self, cluster: &str) -> Result<()>;
    async fn ready(&self, cluster: &str) -> Result<()>;
    async fn gone(&self, cluster: &str) -> Result<()>;
    async fn told(&self, cluster: &str) -> Result<Value>;
    async fn of(&self, cluster: &str) -> Result<Value>;
}

impl Telling for Stage {
    /// Of the control plane of that cluster.
    fn within<K>(&self, cluster: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.admin(), &format!("{}-{cluster}", self.namespace()))
    }

    async fn declare(&self, cluster: &str) -> Result<()> {
        let (members, replicas) = sites().get(self.namespace()).context("no site")?.size;
        let mut spec = ClusterSpec::of("v1.36");
        spec.replicas = replicas;
        spec.datastore.etcd = Some(EtcdDatastore { members, ..EtcdDatastore::default() });
        spec.deletion_protection = false;
        self.api::<Cluster>().create(&PostParams::default(), &Cluster::new(cluster, spec)).await?;
        Ok(())
    }

    async fn refer(&self, cluster: &str, package: &str) -> Result<()> {
        let patch = json!({ "spec": { "packageVersion": package } });
        self.api::<Cluster>().patch(cluster, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn remove(&self, cluster: &str) -> Result<()> {
        let witness = sites().get(self.namespace()).context("no site")?.witness.clone();
        witness.let_go(&format!("{}-{cluster}", self.namespace()));
        self.api::<Cluster>().delete(cluster, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Proven, at what it refers to, and what is said of its pods is what they are.
    async fn ready(&self, cluster: &str) -> Result<()> {
        let reached = || async {
            let text = |error: kube::Error| error.to_string();
            let seen = self.api::<Cluster>().get(cluster).await.map_err(text)?;
            let status = seen.status.clone().unwrap_or_default();
            let there = status.observed_generation == seen.metadata.generation
                && status.package_version.as_ref() == Some(&seen.spec.package_version)
                && is_true(&status.conditions, names::READY)
                && is_true(&status.conditions, names::CERTIFICATES_VALID)
                && status.waiting_for.is_none();
            if !there {
                return Err(format!("{status:#?}"));
            }
            let mut told: Vec<String> =
                status.components.iter().flat_map(|one| one.replicas.iter().map(|one| one.name.clone())).collect();
            let pods = self.within::<Pod>(cluster).list(&ListParams::default()).await.map_err(text)?;
            let mut pods: Vec<String> = pods.into_iter().filter(of_component).map(|pod| pod.name_any()).collect();
            told.sort();
            pods.sort();
            let sets = self.within::<StatefulSet>(cluster).get_opt("etcd").await.map_err(text)?;
            let services = self.within::<Service>(cluster).get_opt("kube-apiserver").await.map_err(text)?;
            let secret = self.within::<Secret>(cluster).get_opt("front-proxy-client").await.map_err(text)?;
            match sets.is_some() && services.is_some() && secret.is_some() && told == pods {
                true => Ok(()),
                false => Err(format!("{told:?} are told, {pods:?} are there")),
            }
        };
        self.settle(&format!("{cluster} is ready"), reached).await
    }

    async fn gone(&self, cluster: &str) -> Result<()> {
        let namespace = format!("{}-{cluster}", self.namespace());
        let reached = || async {
            let text = |error: kube::Error| error.to_string();
            let seen = self.api::<Cluster>().get_opt(cluster).await.map_err(text)?;
            let namespace = Api::<Namespace>::all(self.admin()).get_opt(&namespace).await.map_err(text)?;
            match seen.is_none() && namespace.is_none() {
                true => Ok(()),
                false => Err(format!("{:?} {namespace:?}", seen.map(|seen| (seen.metadata, seen.status)))),
            }
        };
        self.settle(&format!("{cluster} is gone"), reached).await
    }

    /// What is said of it.
    async fn told(&self, cluster: &str) -> Result<Value> {
        Ok(outline(&self.api::<Cluster>().get(cluster).await?))
    }

    /// All its objects.
    async fn of(&self, cluster: &str) -> Result<Value> {
        objects(self, &format!("{}={cluster}", names::CLUSTER)).await
    }
}

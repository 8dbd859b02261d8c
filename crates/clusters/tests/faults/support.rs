//! A simulated meta cluster for each run, and what a person would see of its clusters.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ControlPlaneComponent, Extension, ExtensionPlacement,
    OperationPolicy, crds, names,
};
use fleetwright_clusters::Options;
use fleetwright_kit::Operator;
use fleetwright_rig::normalize::normalize;
use fleetwright_rig::{Harness, OperatorContext, OperatorInstance, Scenario, TimeMode};
use fleetwright_sim::meta::{Meta, MetaConfig};
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::invariants::DowntimeWatcher;
use crate::steps::ClusterSteps;

/// What happens in a scenario.
pub type ScenarioFn = for<'a> fn(&'a Harness) -> BoxFuture<'a, Result<()>>;

/// How clusters are declared.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Members of etcd.
    pub members: u32,
    /// Replicas of the others.
    pub replicas: u32,
    /// How long a new minor emulates the old one.
    pub soak: Duration,
    /// The package version.
    pub package: &'static str,
    /// The StorageClass of volumes; without one they cannot grow.
    pub class: Option<&'static str>,
}

/// A StorageClass whose volumes can grow.
const ELASTIC: &str = "elastic";

/// Objects in the business cluster, one of which stays whatever becomes of the extension.
const NOTES: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: first, namespace: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: second, namespace: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept, namespace: default, annotations: {fleetwright.io/keep: "true"}}
"#;

/// An object beside the control plane.
const BESIDE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: beside}\n";

fn extensions() -> Vec<Extension> {
    let extension = |name: &str, order, placement, template: &str| Extension {
        name: name.to_owned(),
        order,
        placement,
        template: template.to_owned(),
        ..Extension::default()
    };
    vec![
        extension("notes", 10, ExtensionPlacement::Cluster, NOTES),
        extension("beside", 20, ExtensionPlacement::Meta, BESIDE),
    ]
}

/// A scenario of the Cluster-Operator.
#[derive(Clone, Copy)]
pub struct ClusterScenario {
    play: ScenarioFn,
    /// Two operators work at once, and each believes that it leads.
    twice: bool,
    shape: Shape,
    /// So many times as fast as on the wall.
    pace: u32,
}

impl ClusterScenario {
    pub const fn new(play: ScenarioFn) -> Self {
        Self {
            play,
            twice: false,
            shape: Shape {
                members: 1,
                replicas: 1,
                soak: Duration::from_secs(24 * 3600),
                package: "v1.36",
                class: None,
            },
            pace: 10,
        }
    }

    pub const fn twice(self) -> Self {
        Self { twice: true, ..self }
    }

    /// In more of a hurry: for where most of the time is spent waiting.
    pub const fn hurried(self) -> Self {
        Self { pace: 60, ..self }
    }

    /// That many times as fast as on the wall.
    pub const fn paced(self, pace: u32) -> Self {
        Self { pace, ..self }
    }

    /// With that many members of etcd.
    pub const fn members(self, members: u32) -> Self {
        Self { shape: Shape { members, ..self.shape }, ..self }
    }

    /// With three members of etcd and two replicas of the others.
    pub const fn large(self) -> Self {
        Self { shape: Shape { members: 3, replicas: 2, ..self.shape }, ..self }
    }

    /// With volumes that can grow.
    pub const fn elastic(self) -> Self {
        Self { shape: Shape { class: Some(ELASTIC), ..self.shape }, ..self }
    }

    /// With extensions.
    pub const fn extended(self) -> Self {
        Self { shape: Shape { package: "extended", ..self.shape }, ..self }
    }

    /// With upgrades that are finished soon.
    pub const fn soaking(self, soak: Duration) -> Self {
        Self { shape: Shape { soak, ..self.shape }, ..self }
    }
}

/// What belongs to a run, by its namespace. It lives as long as its harness does, however the run ends.
static SITES: Mutex<BTreeMap<String, Weak<Site>>> = Mutex::new(BTreeMap::new());

pub struct Site {
    pub shape: Shape,
    pub witness: DowntimeWatcher,
    pub meta: Meta,
}

fn sites() -> MutexGuard<'static, BTreeMap<String, Weak<Site>>> {
    SITES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What belongs to that run.
pub fn site(harness: &Harness) -> Result<Arc<Site>> {
    sites().get(harness.namespace()).and_then(Weak::upgrade).context("no site")
}

fn config() -> MetaConfig {
    MetaConfig {
        start: Duration::from_millis(50),
        stop: Duration::from_millis(200),
        refresh: Duration::from_millis(500),
        backoff: Duration::from_millis(500),
        longest_backoff: Duration::from_secs(2),
        // Longer than any pause of a busy machine, even in hurried time.
        node_grace: Duration::from_secs(3600),
        ..MetaConfig::default()
    }
}

impl Scenario for ClusterScenario {
    const NAME: &'static str = "clusters";

    fn kinds(&self) -> Vec<CustomResourceDefinition> {
        let ours = |one: &CustomResourceDefinition| {
            ["Cluster", "Operation"].iter().any(|kind| one.spec.names.kind.starts_with(kind))
        };
        crds().into_iter().filter(ours).collect()
    }

    /// Control planes really listen, and certificates are of today.
    fn time_mode(&self) -> TimeMode {
        TimeMode::Accelerated(self.pace)
    }

    fn operator(&self, context: OperatorContext, _: &Path) -> OperatorInstance {
        let life = || {
            let mut operator = Operator::new(context.settings("fleetwright-clusters"));
            fleetwright_clusters::add(&mut operator, &context.namespace, Options::default());
            OperatorInstance::of(operator, &context)
        };
        if !self.twice {
            return life();
        }
        let (one, two) = (life(), life());
        let run = async move { futures::try_join!(one.run, two.run).map(drop) };
        OperatorInstance { run: Box::pin(run), idle: Box::new(move || (one.idle)() && (two.idle)()) }
    }

    async fn perform(&self, harness: &Harness) -> Result<()> {
        let witness = DowntimeWatcher::start(harness.admin());
        let meta = Meta::start(harness.admin(), harness.clock().clone(), config()).await?;
        let site = Arc::new(Site { shape: self.shape, witness, meta });
        sites().insert(harness.namespace().to_owned(), Arc::downgrade(&site));
        harness.require_idle(move || {
            // It is only held here: how the world outside is does not matter to time that passes anyway.
            let _held = &site.meta;
            true
        });
        let packages = [("v1.36", "1.36.4", "3.6.16"), ("v1.37", "1.37.1", "3.6.17"), ("extended", "1.36.4", "3.6.16")];
        for (name, kubernetes, etcd) in packages {
            let mut spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
            if name == "extended" {
                spec.extensions = extensions();
            }
            let package = ClusterPackageVersion::new(name, spec);
            harness.api::<ClusterPackageVersion>().create(&PostParams::default(), &package).await?;
        }
        let class = json!({
            "metadata": { "name": ELASTIC }, "provisioner": "example.com/disks", "allowVolumeExpansion": true,
        });
        let class: StorageClass = serde_json::from_value(class)?;
        Api::all(harness.admin()).create(&PostParams::default(), &class).await?;
        let limit = json!({ "operations": ["ReleaseMachines"], "max": 5 });
        let limit = OperationPolicy::new("releases", serde_json::from_value(limit)?);
        harness.api::<OperationPolicy>().create(&PostParams::default(), &limit).await?;
        (self.play)(harness).await
    }

    async fn final_state(&self, harness: &Harness) -> Result<Value> {
        let mut clusters = serde_json::Map::new();
        for cluster in harness.api::<Cluster>().list(&ListParams::default()).await? {
            clusters.insert(cluster.name_any(), harness.told(&cluster.name_any()).await?);
        }
        let objects = objects(harness, &format!("{}={}", names::CLUSTER_NAMESPACE, harness.namespace())).await?;
        Ok(json!({ "clusters": clusters, "objects": objects }))
    }

    /// What happened to keys and to members of etcd is not compared: it must never have happened.
    fn side_effects(&self, harness: &Harness) -> Result<Vec<String>> {
        site(harness)?.witness.judge()?;
        Ok(Vec::new())
    }
}

/// Whether it is of a control plane, and not one that takes a snapshot of it when its time has come.
pub fn of_component(pod: &Pod) -> bool {
    pod.labels().get(names::COMPONENT).is_some_and(|name| ControlPlaneComponent::of_binary(name).is_some())
}

/// Everything in the meta cluster with that label, without what depends on the run.
pub async fn objects(harness: &Harness, label: &str) -> Result<Value> {
    let label = ListParams::default().labels(label);
    let mut objects = serde_json::Map::new();
    for namespace in Api::<Namespace>::all(harness.admin()).list(&label).await? {
        objects.insert(format!("Namespace {}", namespace.name_any()), json!(namespace.labels()));
    }
    objects.extend(snapshot::<ConfigMap>(harness, &label).await?);
    objects.extend(snapshot::<Service>(harness, &label).await?);
    objects.extend(snapshot::<NetworkPolicy>(harness, &label).await?);
    objects.extend(snapshot::<PodDisruptionBudget>(harness, &label).await?);
    objects.extend(snapshot::<StatefulSet>(harness, &label).await?);
    objects.extend(snapshot::<Deployment>(harness, &label).await?);
    for secret in Api::<Secret>::all(harness.admin()).list(&label).await? {
        let keys: Vec<String> = secret.data.clone().unwrap_or_default().into_keys().collect();
        let name = format!("Secret {}/{}", secret.namespace().unwrap_or_default(), secret.name_any());
        objects.insert(name, json!([secret.labels(), keys]));
    }
    let mut pods: BTreeMap<String, usize> = BTreeMap::new();
    for pod in Api::<Pod>::all(harness.admin()).list(&label).await?.into_iter().filter(of_component) {
        let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone()).unwrap_or_default();
        *pods.entry(format!("{} {image}", pod.namespace().unwrap_or_default())).or_default() += 1;
    }
    objects.insert("pods".to_owned(), json!(pods));
    // Names of objects are keys here, and have the namespace in them as well.
    let text = Value::Object(objects).to_string().replace(harness.namespace(), "NAMESPACE");
    Ok(normalize(&serde_json::from_str(&text)?, "NAMESPACE"))
}

/// Objects of a kind, with what was declared of them and nothing that depends on the run.
async fn snapshot<K>(harness: &Harness, label: &ListParams) -> Result<Vec<(String, Value)>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let mut all = Vec::new();
    for object in Api::<K>::all(harness.admin()).list(label).await? {
        let name = format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any());
        let mut value = serde_json::to_value(&object)?;
        for given in ["clusterIP", "clusterIPs"] {
            if let Some(spec) = value["spec"].as_object_mut() {
                spec.remove(given);
            }
        }
        // The record of the accepted spec has the uids of its Cluster and of package versions.
        if let Some(data) = value["data"].as_object_mut() {
            data.retain(|name, _| !["uid", "packages.json"].contains(&name.as_str()));
        }
        // Digests of what has the namespace's name and the keys of this run in it.
        if let Some(template) = value["spec"]["template"]["metadata"]["annotations"].as_object_mut() {
            template.retain(|name, _| !name.starts_with("fleetwright.io/"));
        }
        let own = |name: &str| name.starts_with("fleetwright.io/") && name != names::APPLIED_HASH;
        let annotations: BTreeMap<_, _> = object.annotations().iter().filter(|(name, _)| own(name)).collect();
        all.push((name, json!([object.labels(), annotations, value["spec"], value["data"]])));
    }
    Ok(all)
}

/// What is worth comparing of a cluster.
pub fn outline(cluster: &Cluster) -> Value {
    let status = cluster.status.clone().unwrap_or_default();
    let components: Vec<Value> = status
        .components
        .iter()
        .map(|one| {
            let replicas = one.replicas.iter().map(|one| (&one.version, one.ready, one.verified_at.is_some()));
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

//! Plans a change of a cluster, for people: observed with the rights of the caller, decided by the same functions as in the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use fleetwright_api::{
    Cluster, ClusterLimits, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, ControlPlaneComponent, names,
};
use fleetwright_kit::View;
use fleetwright_plan::cluster::cluster_plan::{ClusterPlan, rehearse};
use fleetwright_plan::cluster::limits::{CheckedCluster, Violation, violations};
use fleetwright_plan::cluster::members::VolumeClaim;
use fleetwright_plan::cluster::networks::MetaNetworks;
use fleetwright_plan::cluster::objects::Kind;
use fleetwright_plan::cluster::preflight::PreflightInputs;
use fleetwright_plan::cluster::restore::RestoreOperation;
use fleetwright_plan::cluster::snapshots::SnapshotInputs;
use fleetwright_plan::cluster::{LiveObject, Names, Objects, Observed, Workload, extensions};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::caches::workloads;
use crate::view::{ClaimView, ClassView, ObjectView, PodView, package};

/// The observed state of a cluster, without Secrets.
pub struct ClusterSnapshot {
    cluster: Cluster,
    names: Names,
    /// The uid of the namespace of its control plane.
    namespace: Option<String>,
    packages: BTreeMap<String, Arc<ClusterPackageVersionSpec>>,
    limits: Option<Vec<ClusterLimits>>,
    objects: Objects,
    workloads: BTreeMap<ControlPlaneComponent, Workload>,
    claims: Option<Vec<VolumeClaim>>,
}

impl ClusterSnapshot {
    /// Observes that cluster in the meta cluster.
    ///
    /// # Errors
    /// The meta cluster does not answer or refuses a request.
    pub async fn look(client: &Client, cluster: Cluster) -> kube::Result<Self> {
        let names = Names::of(&cluster.namespace().unwrap_or_default(), &cluster.name_any());
        let packages: Api<ClusterPackageVersion> = Api::namespaced(client.clone(), &names.fleet);
        let packages = packages.list(&ListParams::default()).await?.items;
        let limits = limits(client, &names.fleet).await?;
        let (names, namespace) = match own(client, &cluster, &names).await? {
            Some((own, uid)) => (own, Some(uid)),
            None => (names, None),
        };
        let (mut objects, mut pods, mut volumes) = (Objects::default(), Vec::new(), Some(Vec::new()));
        // Objects in a namespace of another Cluster do not belong to this one.
        if namespace.is_some() {
            list::<ConfigMap>(client, &names, Kind::ConfigMap, &mut objects).await?;
            list::<Service>(client, &names, Kind::Service, &mut objects).await?;
            list::<NetworkPolicy>(client, &names, Kind::NetworkPolicy, &mut objects).await?;
            list::<PodDisruptionBudget>(client, &names, Kind::PodDisruptionBudget, &mut objects).await?;
            list::<StatefulSet>(client, &names, Kind::StatefulSet, &mut objects).await?;
            list::<Deployment>(client, &names, Kind::Deployment, &mut objects).await?;
            let all = Api::<Pod>::namespaced(client.clone(), &names.namespace).list(&ListParams::default()).await?;
            pods.extend(all.items.into_iter().map(PodView::of));
            volumes = claims(client, &names.namespace).await?;
        }
        let package = |object: &dyn LiveObject| package(&object.value()).unwrap_or_default().to_owned();
        let workloads = workloads(|kind, name| objects.get(kind, name).map(package), pods.iter());
        let packages = packages.into_iter().map(|package| (package.name_any(), Arc::new(package.spec))).collect();
        Ok(Self { cluster, names, namespace, packages, limits, objects, workloads, claims: volumes })
    }

    /// The plan of a change to that package version; by default the declared one. `None` if the package version does not exist.
    pub fn rehearse(&self, to: Option<&str>, now: Timestamp) -> Option<ClusterPlan> {
        let mut spec = self.cluster.spec.clone();
        if let Some(to) = to {
            to.clone_into(&mut spec.package_version);
        }
        let target = Arc::clone(self.packages.get(&spec.package_version)?);
        let mut rehearsal = rehearse(&self.observed(spec.clone(), Arc::clone(&target), now), now);
        match &self.limits {
            Some(limits) => {
                let present = self.cluster.status.as_ref().and_then(|status| status.package_version.as_deref());
                let present = present.and_then(|name| Some((name, &**self.packages.get(name)?)));
                let checked =
                    CheckedCluster { names: &self.names, labels: self.cluster.labels(), spec: &spec, present };
                rehearsal.violations = limit_violations(checked, Some(&target), limits);
            }
            None => rehearsal.later.push("ClusterLimits are checked by the operator: you may not list them".to_owned()),
        }
        if self.claims.is_none() {
            let why = "volumes are checked by the operator: you may not list PersistentVolumeClaims or StorageClasses";
            rehearsal.later.push(why.to_owned());
        }
        Some(rehearsal)
    }

    /// The observed state of the cluster with that spec. Data that only the operator has, such as Secrets, proofs and answers of members, is missing
    /// here.
    fn observed(&self, spec: ClusterSpec, target: Arc<ClusterPackageVersionSpec>, now: Timestamp) -> Observed {
        let status = self.cluster.status.clone().unwrap_or_default();
        let annotation = |name: &str| self.cluster.annotations().get(name).cloned();
        let same = spec.package_version == self.cluster.spec.package_version;
        let backup = SnapshotInputs {
            // No pod is created from it here.
            image: String::new(),
            created: self.cluster.creation_timestamp().map_or(now, |time| time.0),
            // A change that is not declared yet has no snapshot.
            generation: self.cluster.metadata.generation.filter(|_| same),
            asked: None,
            tasks: Vec::new(),
            restore: RestoreOperation::default(),
        };
        Observed {
            names: self.names.clone(),
            generation: self.cluster.metadata.generation,
            retry: annotation(names::RETRY),
            target,
            packages: self.packages.clone(),
            namespace: self.namespace.clone(),
            keys: None,
            anchors: Vec::new(),
            due: Vec::new(),
            due_next: None,
            objects: self.objects.clone(),
            rested: BTreeMap::new(),
            workloads: self.workloads.clone(),
            // The records of the operator count.
            proofs: BTreeMap::new(),
            members: None,
            claims: self.claims.clone().unwrap_or_default(),
            backup,
            extensions: extensions::ExtensionKnowledge::default(),
            endpoint: status.endpoint.clone(),
            preflight: PreflightInputs { overrides: annotation(names::OVERRIDE), ..PreflightInputs::default() },
            followers: None,
            // The operators' flags are unknown here, and policies are not planned.
            meta: MetaNetworks::default(),
            spec,
            status,
        }
    }
}

/// The names with the namespace of the control plane and its uid, if a namespace of this Cluster exists: the recorded one, or else the one with its
/// future name.
async fn own(client: &Client, cluster: &Cluster, names: &Names) -> kube::Result<Option<(Names, String)>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let recorded = cluster.status.as_ref().and_then(|status| status.namespace.as_deref());
    let recorded = recorded.filter(|recorded| *recorded != names.namespace).map(|recorded| names.within(recorded));
    for one in recorded.into_iter().chain([names.clone()]) {
        let Some(namespace) = namespaces.get_opt(&one.namespace).await? else { continue };
        let uid = namespace.uid().unwrap_or_default();
        if one.owns(namespace.labels()) && one.is_recorded(cluster.status.as_ref(), &uid) {
            return Ok(Some((one, uid)));
        }
    }
    Ok(None)
}

/// The ClusterLimits of a namespace; none if the caller may not list them, or if the meta cluster does not have the kind yet.
///
/// # Errors
/// The meta cluster does not answer.
pub async fn limits(client: &Client, namespace: &str) -> kube::Result<Option<Vec<ClusterLimits>>> {
    let api: Api<ClusterLimits> = Api::namespaced(client.clone(), namespace);
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(Some(list.items)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Some(Vec::new())),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The volume claims of a control plane; none if the caller may not list them, or may not list the StorageClasses, which tell whether claims can be
/// expanded.
async fn claims(client: &Client, namespace: &str) -> kube::Result<Option<Vec<VolumeClaim>>> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let classes: Api<StorageClass> = Api::all(client.clone());
    let Some(claims) = permitted(claims.list(&ListParams::default()).await)? else { return Ok(None) };
    let Some(classes) = permitted(classes.list(&ListParams::default()).await)? else { return Ok(None) };
    let classes = classes.items.into_iter().map(|class| (class.name_any(), ClassView::of(class)));
    let expands: BTreeSet<_> = classes.filter(|(_, class)| class.0).map(|(name, _)| name).collect();
    let claims = claims.items.into_iter().map(ClaimView::of);
    Ok(Some(claims.map(|claim| claim.with_class(|class| expands.contains(class))).collect()))
}

/// The answer to a request; none if the caller lacks the right.
fn permitted<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Violations of these limits by that Cluster, which refers to that package version.
pub fn limit_violations(
    cluster: CheckedCluster<'_>,
    package: Option<&ClusterPackageVersionSpec>,
    limits: &[ClusterLimits],
) -> Vec<Violation> {
    let limits = limits.iter().filter_map(|one| Some((one.metadata.name.as_deref()?, &one.spec)));
    violations(cluster, package, limits)
}

async fn list<K>(client: &Client, names: &Names, kind: Kind, objects: &mut Objects) -> kube::Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug
        + Send
        + Sync
        + 'static,
{
    let all = Api::<K>::namespaced(client.clone(), &names.namespace).list(&ListParams::default()).await?;
    for object in all.items {
        objects.insert(kind, &object.name_any(), Arc::new(ObjectView::of(object)));
    }
    Ok(())
}

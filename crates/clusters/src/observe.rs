//! Gathers the observed state of a cluster, once in a pass: from caches, background tasks and the journal. Decisions are made from that value alone.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{
    CertificateStatus, ClusterPackageVersionSpec, ClusterSpec, ClusterStatus, ControlPlaneComponent, names,
};
use fleetwright_kit::Key;
use fleetwright_plan::cluster::certificates::{Authority, OPERATOR};
use fleetwright_plan::cluster::objects::Kind;
use fleetwright_plan::cluster::snapshots::SnapshotInputs;
use fleetwright_plan::cluster::{Names, Objects, Observed, Workload, certificates, datastore, extensions, preflight};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::caches::CertificateState;
use crate::cluster::Clusters;
use crate::view::{ClusterView, PackageView};

impl Clusters {
    /// The observed state of a cluster with that package version, and the expiry of each of its certificates.
    pub(crate) fn observe(
        &self,
        names: &Names,
        cluster: &ClusterView,
        package: &PackageView,
        now: Timestamp,
    ) -> (Observed, Vec<CertificateStatus>) {
        let key = Key::new(&names.fleet, &names.name);
        let (metadata, spec) = (&cluster.0.metadata, &cluster.0.spec);
        let status = cluster.0.status.clone().unwrap_or_default();
        let annotation = |name: &str| cluster.0.annotations().get(name).cloned();
        let objects = self.caches.objects(&names.namespace);
        let (endpoint, addresses) = self.caches.endpoint(names, cluster);
        let named = with_running_members(spec, &status, &objects);
        let mut wanted = certificates::required_certificates(names, &named, &addresses);
        wanted.extend(certificates::of_extensions(&package.spec));
        let certificate_state = self.caches.certificate_state(names, wanted, spec.certificates.leaf_lifetime.0, now);
        let CertificateState { mut keys, anchors, due, due_next, ends } = certificate_state;
        keys.replace = annotation(names::REPLACE_KEY);
        let workloads = self.caches.workloads(&names.namespace);
        let servers = workloads.get(&ControlPlaneComponent::Apiserver).map(|one| &one.replicas[..]).unwrap_or_default();
        let uids: Vec<_> = servers.iter().map(|replica| replica.uid.as_str()).collect();
        let observed = Observed {
            names: names.clone(),
            spec: spec.clone(),
            generation: metadata.generation,
            retry: annotation(names::RETRY),
            target: Arc::clone(&package.spec),
            packages: self.packages(&key, &status, &workloads),
            namespace: self.caches.namespace(names).filter(|one| !one.ending).map(|one| one.uid.to_string()),
            keys: Some(keys),
            anchors,
            due,
            due_next,
            objects,
            rested: self.rested().get(&key).cloned().unwrap_or_default(),
            proofs: self.provers.known(&key, &uids),
            workloads,
            members: self.last_answer(&key),
            claims: self.caches.claims(&names.namespace),
            backup: SnapshotInputs {
                image: self.image.to_owned(),
                created: cluster.0.creation_timestamp().map_or(now, |time| time.0),
                generation: metadata.generation,
                asked: annotation(names::SNAPSHOT),
                tasks: self.caches.tasks(&names.namespace),
                restore: self.restore_started(&names.name, status.restoring.as_ref()),
            },
            endpoint,
            extensions: self.extensions_known(&key, names, cluster),
            preflight: preflight::PreflightInputs {
                survey: self.surveys.answer(&key),
                overrides: annotation(names::OVERRIDE),
            },
            followers: self.followers.answer(&key),
            meta: self.networks.clone(),
            status,
        };
        let ends = ends.into_iter().map(|(name, not_after)| CertificateStatus { name, not_after });
        (observed, ends.collect())
    }

    /// The present and former package versions of the cluster and its components: during a change, they differ from the declared one.
    fn packages(
        &self,
        key: &Key,
        status: &ClusterStatus,
        workloads: &BTreeMap<ControlPlaneComponent, Workload>,
    ) -> BTreeMap<String, Arc<ClusterPackageVersionSpec>> {
        let running = workloads.values().filter_map(|workload| workload.package.clone());
        let recorded = recorded(status).cloned();
        let known = |name: String| {
            let package = self.package(key, &name)?;
            Some((name, Arc::clone(&package.spec)))
        };
        running.chain(recorded).filter_map(known).collect()
    }

    fn extensions_known(&self, key: &Key, names: &Names, cluster: &ClusterView) -> extensions::ExtensionKnowledge {
        let (since, reports, in_meta) = self.extenders.known(key);
        let secret = |name: &str| self.caches.secrets.get(&Key::new(&names.namespace, name));
        // While the authority is missing, a certificate that it signed has the same bundle.
        let authority = secret(Authority::Cluster.secret()).or_else(|| secret(OPERATOR));
        extensions::ExtensionKnowledge {
            labels: cluster.0.metadata.labels.clone().unwrap_or_default(),
            ca_bundle: authority.and_then(|authority| authority.trusts.as_deref().map(str::to_owned)),
            every: self.look_after,
            since: Some(since),
            reports,
            in_meta,
        }
    }
}

/// The package versions of a cluster: the present and the previous one, that of its etcd, and the one with which it starts after a restore.
pub(crate) fn recorded(status: &ClusterStatus) -> impl Iterator<Item = &String> {
    let etcd = status.etcd.as_ref().and_then(|etcd| etcd.package_version.as_ref());
    let restored = status.restoring.as_ref().and_then(|restoring| restoring.package_version.as_ref());
    status.package_version.iter().chain(&status.previous).chain(etcd).chain(restored)
}

/// The spec with the number of etcd members that run: members that are no longer declared need their names in the certificates until they are
/// removed.
fn with_running_members<'a>(spec: &'a ClusterSpec, status: &ClusterStatus, objects: &Objects) -> Cow<'a, ClusterSpec> {
    let set = || objects.get(Kind::StatefulSet, ControlPlaneComponent::Etcd.binary()).map(|set| set.value());
    let set = if status.etcd.is_none() { set() } else { None };
    let running = datastore::recorded(spec, status, set.as_ref()).members;
    let mut named = Cow::Borrowed(spec);
    if spec.datastore.etcd.as_ref().is_some_and(|etcd| etcd.members < running)
        && let Some(etcd) = &mut named.to_mut().datastore.etcd
    {
        etcd.members = running;
    }
    named
}

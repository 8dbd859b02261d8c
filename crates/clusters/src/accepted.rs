//! Selects the spec that is reconciled: the declared one if it is valid, else the last accepted one. An invalid edit therefore changes nothing, and
//! the running cluster is healed, proven, snapshotted and gets new certificates as before.
//!
//! The last accepted spec is written to a ConfigMap beside the control plane before any object of it is applied, and after the Secrets that it refers
//! to were found. `paused`, `deletionProtection` and `onDelete` are always the declared ones, and no restore starts that is not declared any more.
//!
//! The ConfigMap also has the labels with which extensions are rendered, and the uids of the package versions that the spec was accepted with. A package version that is deleted and created again with
//! the same name changes nothing either: while the declared spec is not valid, the new one counts as missing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};

use fleetwright_api::{Cluster, ClusterSpec, Status, condition, names};
use fleetwright_kit::{Key, Pass, StepError as _, WriteError};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::arguments::unknown;
use fleetwright_plan::cluster::copied_secrets::required_copies;
use fleetwright_plan::cluster::limits::{CheckedCluster, violations};
use fleetwright_plan::cluster::networks::Network;
use fleetwright_plan::cluster::objects::{Kind, Object};
use fleetwright_plan::cluster::restore::is_completed;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{Clusters, Found};
use crate::errors::Invalid;
use crate::view::{ClusterView, PackageView};
use crate::{observe, secret_copies};

/// The ConfigMap that holds the last accepted spec, in the namespace of the control plane.
const RECORD: &str = "accepted-spec";
/// Data key of the spec in that ConfigMap.
const SPEC: &str = "spec.json";
/// Data key of the uid of the Cluster in that ConfigMap: another Cluster of the same name starts with its own spec.
const UID: &str = "uid";
/// Data key of the labels of the Cluster in that ConfigMap.
const LABELS: &str = "labels.json";
/// Data key of the uids of package versions by their names in that ConfigMap.
const PACKAGES: &str = "packages.json";

/// Accepted specs of Clusters whose declared spec is invalid: the ConfigMap is recreated from here when somebody deletes it.
pub type AcceptedSpecs = HashMap<Key, Accepted>;

/// An accepted spec, and the labels of the Cluster.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The uid of the Cluster.
    uid: String,
    spec: ClusterSpec,
    /// The labels that the Cluster then had: extensions are rendered with them.
    labels: BTreeMap<String, String>,
    /// The uids of the package versions that the Cluster then referred to, by their names.
    packages: BTreeMap<String, String>,
}

/// Why the declared spec is not reconciled.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Error in the spec.
    pub why: Invalid,
    /// The accepted spec that is reconciled instead, if there is one.
    pub instead: Option<FallbackSpec>,
}

/// The spec that is reconciled instead of an invalid one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackSpec {
    /// The declared one: it was accepted before something else made it invalid.
    Declared,
    /// An earlier one.
    LastAccepted,
}

impl Refused {
    /// Whether a Secret that a person creates is missing: no cache has those.
    pub fn awaits_secret(&self) -> bool {
        matches!(self.why, Invalid::Secret { .. })
    }

    /// Message for people: the error, and its effect on the cluster.
    pub fn message(&self) -> String {
        let more = match self.instead {
            Some(FallbackSpec::Declared) => {
                ". It was accepted before: the cluster keeps running unchanged, and no later change of the spec is applied until all of it is valid"
            }
            Some(FallbackSpec::LastAccepted) => ". This spec is not applied: the last accepted spec stays in effect",
            None => "",
        };
        format!("{}{more}", self.why)
    }
}

impl Clusters {
    fn kept(&self) -> MutexGuard<'_, AcceptedSpecs> {
        // No panic leaves the map half changed, so a poisoned lock is usable.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a Cluster that does not exist.
    pub(crate) fn forget_accepted(&self, key: &Key) {
        self.kept().remove(key);
    }

    /// A Secret that the declared spec refers to and that is missing or not shared, if pods would wait for it. Nothing is read for a Cluster that is
    /// paused or being deleted.
    pub(crate) async fn lacks(&self, pass: &Pass, names: &Names, declared: &Cluster) -> Option<Invalid> {
        if declared.spec.paused || declared.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let error = secret_copies::missing(&self.caches, pass, names, &required_copies(&declared.spec)).await?;
        Some(Invalid::Secret { reason: error.reason(), message: error.to_string() })
    }

    /// The Cluster with the spec that is reconciled, the uids of the package versions that it is accepted with, and why it is not the declared one.
    /// `lacks` is the Secret that pods of the declared one would wait for.
    pub(crate) fn acted_on(
        &self,
        key: &Key,
        names: &Names,
        declared: Arc<ClusterView>,
        lacks: Option<Invalid>,
    ) -> (Arc<ClusterView>, BTreeMap<String, String>, Option<Refused>) {
        // Read before the specs are validated: a package version that is replaced meanwhile, or later in the pass, was not accepted.
        let packages = self.uids(names, &declared.0.spec, &declared.0);
        let Some(why) = self.invalid(key, names, &declared.0).or(lacks) else {
            self.kept().remove(key);
            return (declared, packages, None);
        };
        let Some(Accepted { spec, labels, packages, .. }) = self.accepted(key, names, &declared.0, &packages) else {
            // Objects that need no Secret are created all the same.
            let refused = Some(Refused { why, instead: None }).filter(|refused| !refused.awaits_secret());
            return (declared, packages, refused);
        };
        let spec = self.in_force(names, spec, &declared.0);
        let package = spec.package_version.clone();
        let exists = self.caches.packages.get(&Key::new(&key.namespace, &package)).is_some();
        let why = match exists && self.package(key, &package).is_none() {
            true => Invalid::Replaced { package, why: Box::new(why) },
            false => why,
        };
        let instead = if spec == declared.0.spec { FallbackSpec::Declared } else { FallbackSpec::LastAccepted };
        let mut cluster = declared.0.clone();
        cluster.spec = spec;
        cluster.metadata.labels = Some(labels);
        (Arc::new(ClusterView(cluster)), packages, Some(Refused { why, instead: Some(instead) }))
    }

    /// The package version of that name. If the declared spec of the Cluster is not valid, only one that the Cluster was accepted with.
    pub(crate) fn package(&self, key: &Key, name: &str) -> Option<Arc<PackageView>> {
        let package = self.caches.packages.get(&Key::new(&key.namespace, name))?;
        let accepted = self.kept().get(key).and_then(|kept| kept.packages.get(name).cloned());
        accepted.is_none_or(|uid| *uid == *package.uid).then_some(package)
    }

    /// The error in the declared spec.
    fn invalid(&self, key: &Key, names: &Names, cluster: &Cluster) -> Option<Invalid> {
        let spec = &cluster.spec;
        let all: Vec<_> =
            self.caches.limits.keys().into_iter().filter_map(|key| self.caches.limits.get(&key)).collect();
        let limits = all.iter().filter_map(|one| Some((one.0.metadata.name.as_deref()?, &one.0.spec)));
        let package = self.caches.packages.get(&Key::new(&key.namespace, &spec.package_version));
        let present = cluster.status.as_ref().and_then(|status| status.package_version.as_deref());
        let known = present.and_then(|name| self.caches.packages.get(&Key::new(&key.namespace, name)));
        let present = present.zip(known.as_ref().map(|package| &*package.spec));
        let checked = CheckedCluster { names, labels: cluster.labels(), spec, present };
        let violations = violations(checked, package.as_ref().map(|package| &*package.spec), limits);
        if !violations.is_empty() {
            return Some(Invalid::Limits(violations));
        }
        let overlap = self.overlap(&Names::of(&key.namespace, &key.name), cluster);
        if overlap.is_some() {
            return overlap;
        }
        let Some(package) = package else {
            return Some(Invalid::NoPackage(spec.package_version.clone()));
        };
        let has = cluster.status.as_ref().and_then(|status| status.package_version.as_ref());
        // Before a change of the version the preflight checks find this, and the running cluster is kept unchanged.
        if has.is_some_and(|has| *has != spec.package_version) {
            return None;
        }
        unknown(spec, (&spec.package_version, &package.spec)).into_iter().next().map(Invalid::Argument)
    }

    /// A network of pods of a new cluster that overlaps a network of the meta cluster. API servers connect to pods by routes of the meta cluster's nodes, and there can be no
    /// routes to addresses that these nodes have themselves. A cluster that exists is kept: its networks cannot be changed, and policies keep its API servers from the meta
    /// cluster.
    ///
    /// Services may overlap, as they do by default where kubeadm made the meta cluster: kube-proxy on nodes of the business cluster gives their addresses a meaning, and API
    /// servers, which run elsewhere, do not reach them without further means.
    fn overlap(&self, names: &Names, cluster: &Cluster) -> Option<Invalid> {
        let status = cluster.status.as_ref();
        let made = status.is_some_and(|status| status.package_version.is_some());
        if made || self.caches.namespace(names).is_some() {
            return None;
        }
        let network = &cluster.spec.network;
        let meta = self.networks.overlapped(&network.pods)?;
        let services = network.services.parse::<Network>().ok();
        let mut all = (64..=127).filter_map(|number| format!("10.{number}.0.0/16").parse::<Network>().ok());
        let free = all.find(|one| !self.networks.networks.iter().chain(&services).any(|taken| taken.overlaps(one)));
        let free = free.map_or_else(|| "a network that is not used elsewhere".to_owned(), |free| free.to_string());
        Some(Invalid::Overlap { network: network.pods.clone(), meta, free })
    }

    /// The last accepted spec of a Cluster whose declared spec is not valid.
    fn accepted(
        &self,
        key: &Key,
        names: &Names,
        cluster: &Cluster,
        packages: &BTreeMap<String, String>,
    ) -> Option<Accepted> {
        let uid = cluster.uid()?;
        let kept = self.kept().get(key).filter(|kept| kept.uid == uid).cloned();
        let accepted = kept
            .or_else(|| self.recorded(names, cluster, &uid))
            // A cluster of an earlier version of the operator has no record: the status tells whether this spec was reconciled.
            .or_else(|| was_acted_on(cluster).then(|| accept(cluster, packages)))?;
        self.kept().insert(key.clone(), accepted.clone());
        Some(accepted)
    }

    fn recorded(&self, names: &Names, cluster: &Cluster, uid: &str) -> Option<Accepted> {
        let record = self.caches.object(&names.namespace, Kind::ConfigMap, RECORD)?;
        let data = &record["data"];
        if data[UID] != uid {
            return None;
        }
        let spec: ClusterSpec = serde_json::from_str(data[SPEC].as_str()?).ok()?;
        // An earlier version recorded no labels and no uids: the present labels count, and the package versions that exist now.
        let labels = data[LABELS].as_str().and_then(|labels| serde_json::from_str(labels).ok());
        let labels = labels.unwrap_or_else(|| cluster.labels().clone());
        let packages = data[PACKAGES].as_str().and_then(|packages| serde_json::from_str(packages).ok());
        let packages = packages.unwrap_or_else(|| self.uids(names, &spec, cluster));
        Some(Accepted { uid: uid.to_owned(), spec, labels, packages })
    }

    /// The uids of the package versions that the spec and the status of the Cluster refer to, by their names.
    fn uids(&self, names: &Names, spec: &ClusterSpec, cluster: &Cluster) -> BTreeMap<String, String> {
        let all = cluster.status.iter().flat_map(observe::recorded).chain([&spec.package_version]);
        let uid = |name: &String| Some(self.caches.packages.get(&Key::new(&names.fleet, name))?.uid.to_string());
        all.filter_map(|name| Some((name.clone(), uid(name)?))).collect()
    }

    /// The accepted spec with the fields that are always the declared ones. A change of the version that has not started does not start.
    fn in_force(&self, names: &Names, mut spec: ClusterSpec, declared: &Cluster) -> ClusterSpec {
        // If a followed restore were removed, it would count as a new one when it is declared again, and replace all data.
        let followed = declared.status.as_ref().is_some_and(|status| is_completed(&spec, &names.name, status));
        as_declared(&mut spec, &declared.spec, followed);
        let has = declared.status.as_ref().and_then(|status| status.package_version.as_ref());
        if let Some(has) = has.filter(|has| **has != spec.package_version) {
            let workloads = self.caches.workloads(&names.namespace);
            let begun = workloads.values().any(|one| one.package.as_ref() == Some(&spec.package_version));
            if !begun {
                spec.package_version.clone_from(has);
            }
        }
        spec
    }

    /// Writes the accepted spec to the ConfigMap, before any object of it is applied.
    pub(crate) async fn record_accepted(&self, pass: &Pass, found: &Found) -> Result<(), WriteError> {
        let kept = self.kept().get(pass.key()).cloned().filter(|_| found.refused.is_some());
        let object = record(&found.names, &kept.unwrap_or_else(|| accept(&found.cluster.0, &found.packages)));
        let live = self.caches.object(&found.names.namespace, Kind::ConfigMap, RECORD);
        if live.is_some_and(|live| live["data"] == object.body["data"]) {
            return Ok(());
        }
        self.apply(pass, &found.names, &object).await
    }
}

/// Copies the fields that are always the declared ones. A restore that was removed from the spec and not `followed` yet is withdrawn, even if the
/// rest is invalid: it would replace all data.
fn as_declared(spec: &mut ClusterSpec, declared: &ClusterSpec, followed: bool) {
    spec.paused = declared.paused;
    spec.deletion_protection = declared.deletion_protection;
    spec.on_delete = declared.on_delete;
    if declared.restore.is_none() && !followed {
        spec.restore = None;
    }
}

/// The accepted record of the present spec and labels, with these package versions.
fn accept(cluster: &Cluster, packages: &BTreeMap<String, String>) -> Accepted {
    Accepted {
        uid: cluster.uid().unwrap_or_default(),
        spec: cluster.spec.clone(),
        labels: cluster.labels().clone(),
        packages: packages.clone(),
    }
}

/// Whether the status shows that the operator reconciled this generation.
fn was_acted_on(cluster: &Cluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    condition(conditions, names::ACCEPTED).is_some_and(|accepted| {
        accepted.status == Status::True
            && accepted.reason == names::reasons::ACCEPTED
            && accepted.observed_generation == cluster.metadata.generation
    })
}

fn record(names: &Names, accepted: &Accepted) -> Object {
    let Accepted { uid, spec, labels, packages } = accepted;
    let text = |value: Value| value.to_string();
    let data =
        json!({ UID: uid, SPEC: text(json!(spec)), LABELS: text(json!(labels)), PACKAGES: text(json!(packages)) });
    let metadata: Value = json!({ "name": RECORD, "namespace": names.namespace, "labels": names.labels() });
    let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    Object { kind: Kind::ConfigMap, name: RECORD.to_owned(), body }
}

#[cfg(test)]
mod tests {
    use fleetwright_api::ClusterStatus;

    use super::*;

    #[test]
    fn a_restore_is_withdrawn_by_a_spec_that_is_not_valid_and_not_exchanged() {
        let restore = |snapshot: &str| Some(serde_json::from_value(json!({ "snapshot": snapshot })).unwrap());
        let accepted = ClusterSpec { restore: restore("a"), ..ClusterSpec::of("v1") };
        for (declared, expected) in [(None, None), (restore("b"), restore("a")), (restore("a"), restore("a"))] {
            let mut spec = accepted.clone();
            as_declared(&mut spec, &ClusterSpec { restore: declared, paused: true, ..ClusterSpec::of("typo") }, false);
            assert_eq!((&spec.restore, spec.paused, &*spec.package_version), (&expected, true, "v1"));
        }
        let mut spec = accepted.clone();
        let status = ClusterStatus { observed_restore: Some("a".to_owned()), ..ClusterStatus::default() };
        let followed = is_completed(&spec, "pay", &status);
        as_declared(&mut spec, &ClusterSpec::of("typo"), followed);
        assert_eq!(spec.restore, restore("a"), "what was done is not done again when the edit is taken back");
    }
}

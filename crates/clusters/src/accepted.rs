//! Which spec is acted on: the declared one if it is valid, else the last one that was accepted. So an edit that is refused changes nothing, and what runs is
//! healed, proven, snapshotted and gets new certificates as before.
//!
//! The last accepted spec is written to a ConfigMap beside the control plane before anything of it is applied. `paused`, `deletionProtection` and `onDelete`
//! are always those declared.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use fleetwright_api::{Cluster, ClusterSpec, Status, condition, names};
use fleetwright_kit::{Key, Pass, WriteError};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::arguments::unknown;
use fleetwright_plan::cluster::limits::violations;
use fleetwright_plan::cluster::objects::{Kind, Object};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{Clusters, Found};
use crate::errors::Invalid;
use crate::view::ClusterView;

/// The ConfigMap that holds the last accepted spec, in the namespace of the control plane.
const RECORD: &str = "accepted-spec";
/// The spec, in that ConfigMap.
const SPEC: &str = "spec.json";
/// The uid of the Cluster, in that ConfigMap: another Cluster of the same name starts with its own spec.
const UID: &str = "uid";

/// Accepted specs of Clusters whose declared spec is invalid, with the uid of the Cluster: the record is recreated from here when it is deleted by hand.
pub type Kept = HashMap<Key, (String, ClusterSpec)>;

/// Why the declared spec is not acted on.
#[derive(Clone, Debug)]
pub struct Refused {
    /// What is wrong with it.
    pub why: Invalid,
    /// The accepted spec that is acted on instead, if there is one.
    pub instead: Option<Instead>,
}

/// The spec that is acted on instead of one that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The same: it was accepted before something else made it invalid.
    Same,
    /// An earlier one.
    Earlier,
}

impl Refused {
    /// For people: what is wrong, and what that means for the cluster.
    pub fn message(&self) -> String {
        let more = match self.instead {
            Some(Instead::Same) => {
                ". It was accepted before: what runs goes on unchanged, and no later change of spec is applied until all of it is allowed"
            }
            Some(Instead::Earlier) => ". Nothing of this spec is applied: the last accepted spec stays in force",
            None => "",
        };
        format!("{}{more}", self.why)
    }
}

impl Clusters {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Every change is whole before the lock is given back.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a Cluster that does not exist.
    pub(crate) fn forget_accepted(&self, key: &Key) {
        self.kept().remove(key);
    }

    /// The Cluster with the spec that is acted on, and why that is not the declared one.
    pub(crate) fn acted_on(
        &self,
        key: &Key,
        names: &Names,
        declared: Arc<ClusterView>,
    ) -> (Arc<ClusterView>, Option<Refused>) {
        let Some(why) = self.invalid(key, &declared.0) else {
            self.kept().remove(key);
            return (declared, None);
        };
        let Some(accepted) = self.accepted(key, names, &declared.0) else {
            return (declared, Some(Refused { why, instead: None }));
        };
        let spec = self.in_force(names, accepted, &declared.0);
        let instead = if spec == declared.0.spec { Instead::Same } else { Instead::Earlier };
        let mut cluster = declared.0.clone();
        cluster.spec = spec;
        (Arc::new(ClusterView(cluster)), Some(Refused { why, instead: Some(instead) }))
    }

    /// What is wrong with what is declared.
    fn invalid(&self, key: &Key, cluster: &Cluster) -> Option<Invalid> {
        let spec = &cluster.spec;
        let all: Vec<_> = self.eyes.limits.keys().into_iter().filter_map(|key| self.eyes.limits.get(&key)).collect();
        let limits = all.iter().filter_map(|one| Some((one.0.metadata.name.as_deref()?, &one.0.spec)));
        let violations = violations(spec, &key.name, limits);
        if !violations.is_empty() {
            return Some(Invalid::Limits(violations));
        }
        let overlap = self.overlap(&Names::of(&key.namespace, &key.name), cluster);
        if overlap.is_some() {
            return overlap;
        }
        let Some(package) = self.eyes.packages.get(&Key::new(&key.namespace, &spec.package_version)) else {
            return Some(Invalid::NoPackage(spec.package_version.clone()));
        };
        let has = cluster.status.as_ref().and_then(|status| status.package_version.as_ref());
        // Before a change of the version it is found by its preflight, and what is there is kept as it is.
        if has.is_some_and(|has| *has != spec.package_version) {
            return None;
        }
        unknown(spec, (&spec.package_version, &package.spec)).into_iter().next().map(Invalid::Argument)
    }

    /// A network of a new cluster that is one of the meta cluster as well. One that is there already is kept: its networks cannot be changed, and its
    /// API servers do not reach the meta cluster by them.
    fn overlap(&self, names: &Names, cluster: &Cluster) -> Option<Invalid> {
        let status = cluster.status.as_ref();
        let made = status.is_some_and(|status| status.package_version.is_some());
        if made || self.eyes.namespace(names).is_some() {
            return None;
        }
        let network = &cluster.spec.network;
        let own = [("spec.network.pods", &network.pods), ("spec.network.services", &network.services)];
        own.into_iter().find_map(|(field, own)| {
            let meta = self.networks.overlapped(own)?;
            let all = (64..=127).map(|number| format!("10.{number}.0.0/16"));
            let mut free = all.filter(|one| *one != network.pods && *one != network.services);
            let free = free.find(|one| self.networks.overlapped(one).is_none());
            let free = free.unwrap_or_else(|| "one that you use nowhere else".to_owned());
            Some(Invalid::Overlap { field, network: own.clone(), meta, free })
        })
    }

    /// The last accepted spec of a Cluster whose declared spec is not valid.
    fn accepted(&self, key: &Key, names: &Names, cluster: &Cluster) -> Option<ClusterSpec> {
        let uid = cluster.uid()?;
        let kept = self.kept().get(key).filter(|(of, _)| *of == uid).map(|(_, spec)| spec.clone());
        let spec = kept
            .or_else(|| self.recorded(names, &uid))
            // There is no record of a cluster that an earlier version of the operator made: the status tells whether this spec was acted on.
            .or_else(|| was_acted_on(cluster).then(|| cluster.spec.clone()))?;
        self.kept().insert(key.clone(), (uid, spec.clone()));
        Some(spec)
    }

    fn recorded(&self, names: &Names, uid: &str) -> Option<ClusterSpec> {
        let record = self.eyes.object(&names.namespace, Kind::ConfigMap, RECORD)?;
        if record["data"][UID] != uid {
            return None;
        }
        serde_json::from_str(record["data"][SPEC].as_str()?).ok()
    }

    /// The accepted spec with what is always as declared. A change of the version that has not begun does not begin.
    fn in_force(&self, names: &Names, mut spec: ClusterSpec, declared: &Cluster) -> ClusterSpec {
        spec.paused = declared.spec.paused;
        spec.deletion_protection = declared.spec.deletion_protection;
        spec.on_delete = declared.spec.on_delete;
        let has = declared.status.as_ref().and_then(|status| status.package_version.as_ref());
        if let Some(has) = has.filter(|has| **has != spec.package_version) {
            let workloads = self.eyes.workloads(&names.namespace);
            let begun = workloads.values().any(|one| one.package.as_ref() == Some(&spec.package_version));
            if !begun {
                spec.package_version.clone_from(has);
            }
        }
        spec
    }

    /// Writes the accepted spec down, before anything of it is applied.
    pub(crate) async fn record_accepted(&self, pass: &Pass, found: &Found) -> Result<(), WriteError> {
        let kept = self.kept().get(pass.key()).map(|(_, spec)| spec.clone());
        let spec = match (&found.refused, &kept) {
            (Some(_), Some(kept)) => kept,
            _ => found.spec(),
        };
        let object = record(&found.names, found.uid(), spec);
        let live = self.eyes.object(&found.names.namespace, Kind::ConfigMap, RECORD);
        if live.is_some_and(|live| live["data"] == object.body["data"]) {
            return Ok(());
        }
        self.apply(pass, &found.names, &object).await
    }
}

/// Whether the operator said of this generation that it is acted on.
fn was_acted_on(cluster: &Cluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    condition(conditions, names::ACCEPTED).is_some_and(|accepted| {
        accepted.status == Status::True
            && accepted.reason == names::reasons::UNDERSTOOD
            && accepted.observed_generation == cluster.metadata.generation
    })
}

fn record(names: &Names, uid: &str, spec: &ClusterSpec) -> Object {
    let data = json!({ UID: uid, SPEC: json!(spec).to_string() });
    let metadata: Value = json!({ "name": RECORD, "namespace": names.namespace, "labels": names.labels() });
    let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    Object { kind: Kind::ConfigMap, name: RECORD.to_owned(), body }
}

//! The observed state of a cluster in one pass.
//!
//! Expected flow: a pass of the operator, or a plan, gathers one [`Observed`] value, and every decision is made from that value alone.
//!
//! Guarantees: the value owns all its data, so that nothing in it changes while a decision is made. Its objects are behind `Arc`s and are parsed only
//! when a decision reads them: gathering an [`Observed`] of a cluster in which nothing changed serialises nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ClusterStatus, ControlPlaneComponent};
use jiff::Timestamp;
use serde_json::Value;

use super::certificates::{CertificateSpec, RenewalReason};
use super::members::{MemberQueryResult, VolumeClaim};
use super::networks::MetaNetworks;
use super::objects::Kind;
use super::preflight;
use super::rotation::{ObservedAuthority, TrustDistribution};
use super::snapshots::SnapshotInputs;
use super::unchanged::UnchangedComponent;
use super::{Names, extensions, keys};

/// The observed state of a cluster.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Names of the cluster and its parts.
    pub names: Names,
    /// The spec that is reconciled.
    pub spec: ClusterSpec,
    /// The status as it was last written.
    pub status: ClusterStatus,
    /// The generation of the Cluster.
    pub generation: Option<i64>,
    /// The value of the annotation by which a person requests the retry of a failed change.
    pub retry: Option<String>,
    /// The package version that `spec.packageVersion` names.
    pub target: Arc<ClusterPackageVersionSpec>,
    /// Other package versions of the namespace, by name: the present and the previous one of the cluster, and those of its components.
    pub packages: BTreeMap<String, Arc<ClusterPackageVersionSpec>>,
    /// The uid of the namespace of the control plane, if it exists and is not terminating.
    pub namespace: Option<String>,
    /// The authorities and the key of service-account tokens; `None` if the observer may not read Secrets.
    pub keys: Option<keys::ObservedKeys>,
    /// The authorities that exist.
    pub anchors: Vec<ObservedAuthority>,
    /// The certificates that are due, and why.
    pub due: Vec<(CertificateSpec, RenewalReason)>,
    /// When the next certificate is due.
    pub due_next: Option<Timestamp>,
    /// The live objects of the control plane and of its extensions.
    pub objects: Objects,
    /// Components whose objects were all as declared in the last pass.
    pub rested: BTreeMap<ControlPlaneComponent, UnchangedComponent>,
    /// The workload of each component.
    pub workloads: BTreeMap<ControlPlaneComponent, Workload>,
    /// The last proof of each API server by this process, by the uid of the pod.
    pub proofs: BTreeMap<String, Proof>,
    /// The answers of the members of etcd to the last query.
    pub members: Option<MemberQueryResult>,
    /// The volume claims of the members of etcd.
    pub claims: Vec<VolumeClaim>,
    /// Inputs for snapshots.
    pub backup: SnapshotInputs,
    /// Address of the API servers for clients, if it is known.
    pub endpoint: Option<String>,
    /// Inputs for extensions.
    pub extensions: extensions::ExtensionKnowledge,
    /// Inputs for preflight checks.
    pub preflight: preflight::PreflightInputs,
    /// The machines that lack the trust bundle, if they were queried.
    pub followers: Option<TrustDistribution>,
    /// The networks of the meta cluster, which control planes must not reach.
    pub meta: MetaNetworks,
}

impl Observed {
    /// The package version that the Cluster refers to, with its name.
    pub fn target(&self) -> (&str, &ClusterPackageVersionSpec) {
        (&self.spec.package_version, &self.target)
    }

    /// The package version of that name, if it is among those that are known, see [`Observed::packages`].
    pub fn package(&self, name: &str) -> Option<&ClusterPackageVersionSpec> {
        self.packages.get(name).map(|spec| &**spec)
    }

    /// The live object of that kind and name. Each call parses it.
    pub fn object(&self, kind: Kind, name: &str) -> Option<Value> {
        self.objects.get(kind, name).map(LiveObject::value)
    }

    /// The content hash of the live object of that kind and name.
    pub fn print(&self, kind: Kind, name: &str) -> Option<u64> {
        self.objects.get(kind, name).map(LiveObject::print)
    }
}

/// A live object, which is parsed only when it is read.
pub trait LiveObject: Debug + Send + Sync {
    /// The object as JSON.
    fn value(&self) -> Value;

    /// A content hash of the object. It costs nothing where the object is cached.
    fn print(&self) -> u64;

    /// The extension that the object belongs to, by its label. It costs nothing where the object is cached.
    fn extension(&self) -> Option<&str>;
}

impl LiveObject for Value {
    fn value(&self) -> Value {
        self.clone()
    }

    fn print(&self) -> u64 {
        super::content_hash(self)
    }

    fn extension(&self) -> Option<&str> {
        self["metadata"]["labels"][extensions::EXTENSION].as_str()
    }
}

/// The live objects of a cluster, by kind and name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Objects(BTreeMap<Kind, BTreeMap<Box<str>, Arc<dyn LiveObject>>>);

impl Objects {
    /// Adds an object, in place of one of the same kind and name.
    pub fn insert(&mut self, kind: Kind, name: &str, object: Arc<dyn LiveObject>) {
        self.0.entry(kind).or_default().insert(name.into(), object);
    }

    /// The object of that kind and name.
    pub fn get(&self, kind: Kind, name: &str) -> Option<&dyn LiveObject> {
        self.0.get(&kind)?.get(name).map(|object| &**object)
    }

    /// The objects of extensions, with the name of the extension.
    pub(super) fn of_extensions(&self) -> impl Iterator<Item = (&str, Kind, &str, &dyn LiveObject)> {
        let all = self.0.iter().flat_map(|(kind, all)| all.iter().map(move |(name, live)| (*kind, &**name, &**live)));
        all.filter_map(|(kind, name, live)| Some((live.extension()?, kind, name, live)))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The pods of a component, and its package version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// The package version of the last apply; `None` if the workload does not exist.
    pub package: Option<String>,
    /// Its pods, also those that are terminating.
    pub replicas: Vec<Replica>,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    pub name: String,
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// The digest of the pod template that it was made from.
    pub template: Option<String>,
    /// Digest of the authorities with which the pod started, see [`TRUST_BUNDLE_HASH`](super::objects::TRUST_BUNDLE_HASH).
    pub trusts: Option<String>,
    /// The version in the name of its image.
    pub runs: Option<String>,
    /// Whether its condition Ready is true.
    pub ready: bool,
    /// It is terminating.
    pub ending: bool,
    /// Its container was started at least once, whether or not it runs now.
    pub has_run: bool,
    /// Restart count of its container. A proof counts for one restart count.
    pub restarts: i32,
    /// Why it does not run, if it does not.
    pub message: String,
    /// Its termination message says that it lost its data, see [`is_data_loss`](super::datastore::is_data_loss).
    pub lost: bool,
    /// Whether its label allows it to serve clients, if it has the label.
    pub serves: Option<bool>,
    /// Its container is in CrashLoopBackOff.
    pub looping: bool,
    /// Whether it was ready before its last termination: its restart count then proves nothing about its data.
    pub was_ready: bool,
    /// Whether it is unschedulable.
    pub unplaced: bool,
    /// Since when it is on a node and not ready.
    pub unready_since: Option<Timestamp>,
}

/// The outcome of a proof of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// When it ended.
    pub at: Timestamp,
    /// Container restart count the proof belongs to.
    pub restarts: i32,
    /// The version that the API server reports, or why it is not proven.
    pub outcome: Result<String, String>,
    /// The minor that the API server reports to emulate, if that is not its own.
    pub emulates: Option<String>,
    /// The failed proofs in a row that end with this one, if it failed.
    pub failing: Option<FailedProofs>,
}

/// Proofs of one container, with one restart count, that failed in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedProofs {
    /// When the first of them ended.
    pub since: Timestamp,
    /// When the last of them started.
    pub began: Timestamp,
    /// How many.
    pub times: u32,
}

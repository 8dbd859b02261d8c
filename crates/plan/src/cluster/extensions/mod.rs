//! The extensions of a cluster: what they are for this one, and what becomes of them.

mod decide;
pub mod health;
mod inventory;
mod render;
mod restrictions;
mod shipped;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ExtensionHealth, ExtensionPlacement};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Names, PROVE_EVERY};

pub use decide::{EXTENSION_PRUNE, ExtensionDecision, ExtensionWork, Removal};
pub(super) use decide::{choose, condition, servers};
pub use inventory::INVENTORY;
pub use render::{MOST_IN_META, render};
pub(super) use shipped::keeps_endpoint;
pub use shipped::{MACHINE_OPERATOR, shipped};

/// Label of everything that an extension has: the extension's name.
pub const EXTENSION: &str = "fleetwright.io/extension";
/// Annotation of an object in a template: `true` if it stays when the extension no longer has it. CustomResourceDefinitions and Namespaces stay unless it is `false`,
/// because what people made of them or in them would be lost.
pub const KEEP: &str = "fleetwright.io/keep";

/// What extensions are rendered from.
#[derive(Clone, Copy, Debug)]
pub struct ExtensionInputs<'a> {
    /// What the cluster is called.
    pub names: &'a Names,
    /// The labels of the Cluster.
    pub labels: &'a BTreeMap<String, String>,
    /// What is declared.
    pub spec: &'a ClusterSpec,
    /// The package version, by its name.
    pub package: (&'a str, &'a ClusterPackageVersionSpec),
    /// Where clients reach its API servers.
    pub server: Option<&'a str>,
    /// What their certificates are checked with.
    pub ca_bundle: Option<&'a str>,
}

/// An extension as it is for one cluster: the same bytes for the same inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedExtension {
    /// What it is called.
    pub name: String,
    /// When it comes.
    pub order: u32,
    /// Where it is.
    pub placement: ExtensionPlacement,
    /// Its objects, in the order in which they are applied.
    pub objects: Vec<Value>,
    /// The digest of them.
    pub digest: String,
    /// How to tell that it works.
    pub health: ExtensionHealth,
}

/// Why an extension cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionError {
    /// Which.
    pub extension: String,
    /// Where: `template`, `valuesSchema`, `values`.
    pub place: String,
    /// What is wrong, what is allowed and what to do.
    pub message: String,
    /// It is in the Cluster; otherwise in the package version.
    pub chosen: bool,
}

impl fmt::Display for ExtensionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extension {}, {}: {}", self.extension, self.place, self.message)
    }
}

/// What says which object is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// As objects say it.
    pub api_version: String,
    /// As objects say it.
    pub kind: String,
    /// None for what is in no namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectRef {
    /// Of that object.
    pub fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let meta = &object["metadata"];
        Self {
            api_version: text(&object["apiVersion"]).unwrap_or_default(),
            kind: text(&object["kind"]).unwrap_or_default(),
            namespace: text(&meta["namespace"]),
            name: text(&meta["name"]).unwrap_or_default(),
        }
    }

    /// Its group; empty for the core.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether both are one object: it is the same in another version of its group.
    pub fn is(&self, other: &Self) -> bool {
        self.group() == other.group()
            && (&self.kind, &self.namespace, &self.name) == (&other.kind, &other.namespace, &other.name)
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// What is known of extensions besides what was seen of the control plane.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtensionKnowledge {
    /// The labels of the Cluster.
    pub labels: BTreeMap<String, String>,
    /// What the certificates of its API servers are checked with.
    pub ca_bundle: Option<String>,
    /// What is in place is looked at again about this often.
    pub every: Duration,
    /// When this process first looked at the cluster.
    pub since: Option<Timestamp>,
    /// What was found of each in the business cluster since then.
    pub reports: BTreeMap<String, ExtensionReport>,
}

impl Default for ExtensionKnowledge {
    fn default() -> Self {
        Self { labels: BTreeMap::new(), ca_bundle: None, every: PROVE_EVERY, since: None, reports: BTreeMap::new() }
    }
}

/// What was done with an extension in the business cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionReport {
    /// When.
    pub at: Timestamp,
    /// Since when it is of that digest.
    pub since: Timestamp,
    /// What it was rendered to.
    pub digest: String,
    /// What became of it.
    pub outcome: ExtensionOutcome,
    /// Objects that it no longer has and that are there: an Operation deletes them.
    pub surplus: Vec<OrphanedObject>,
    /// Objects that it no longer has and that are gone, are kept, or belong to somebody else: they are forgotten.
    pub pruned: Vec<ObjectRef>,
    /// Why its surplus is not deleted yet.
    pub waits: Option<String>,
    /// Look again at this time, before it is due: deleting its surplus failed.
    pub look_at: Option<Timestamp>,
}

/// An object of a business cluster that its extension no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanedObject {
    /// Which.
    pub object: ObjectRef,
    /// Its uid: another object of that name is not deleted in its place.
    pub uid: String,
}

/// What became of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtensionOutcome {
    /// It is in place, and its checks hold.
    Healthy,
    /// It is in place; which check does not hold.
    Waits(String),
    /// It could not be put in place.
    Failed(String),
}

//! The extensions of a cluster: rendering, decisions and status.

mod decide;
pub mod health;
mod images;
mod inventory;
mod render;
mod restrictions;
mod shipped;
#[cfg(test)]
mod tests;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ExtensionHealth, ExtensionPlacement};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::objects::Kind;
use super::{Names, PROVE_EVERY};

pub use decide::{EXTENSION_PRUNE, ExtensionDecision, ExtensionWork, Removal};
pub(super) use decide::{choose, condition, servers};
pub(super) use images::{TaggedImage, tagged_images};
pub use inventory::INVENTORY;
pub use render::{MAX_IN_META, render};
pub(super) use shipped::keeps_endpoint;
pub use shipped::{MACHINE_OPERATOR, shipped};

/// Label of all objects of an extension: the extension's name.
pub const EXTENSION: &str = "fleetwright.io/extension";
/// Annotation of an object in a template: `true` if the object is kept when the extension no longer has it. CustomResourceDefinitions and Namespaces
/// are kept unless it is `false`, because their deletion would delete people's objects of that kind or in that namespace.
pub const KEEP: &str = "fleetwright.io/keep";
/// Annotation of an object in a template: `true` if the object is left out where the API server of the business cluster does not serve its kind. Else
/// the extension cannot be applied there.
pub const IF_SERVED: &str = "fleetwright.io/if-served";

/// Inputs for rendering extensions.
#[derive(Clone, Copy, Debug)]
pub struct ExtensionInputs<'a> {
    /// Names of the parts of the cluster.
    pub names: &'a Names,
    /// The labels of the Cluster.
    pub labels: &'a BTreeMap<String, String>,
    /// Spec of the cluster.
    pub spec: &'a ClusterSpec,
    /// Package version, with its name.
    pub package: (&'a str, &'a ClusterPackageVersionSpec),
    /// Address of the API servers for clients.
    pub server: Option<&'a str>,
    /// Trust bundle for the certificates of the API servers.
    pub ca_bundle: Option<&'a str>,
}

/// An extension rendered for one cluster: the same bytes for the same inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedExtension {
    /// Name of the extension.
    pub name: String,
    /// Order number.
    pub order: u32,
    /// Cluster in which it is placed.
    pub placement: ExtensionPlacement,
    /// Its objects, in the order in which they are applied.
    pub objects: Vec<Value>,
    /// Digest of the objects.
    pub digest: String,
    /// Health checks.
    pub health: ExtensionHealth,
}

/// Why an extension cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionError {
    /// Name of the extension.
    pub extension: String,
    /// Invalid part: `template`, `valuesSchema`, `values`.
    pub place: String,
    /// The error, the allowed values and what to do.
    pub message: String,
    /// Whether the error is in the Cluster; otherwise it is in the package version.
    pub chosen: bool,
}

impl fmt::Display for ExtensionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extension {}, {}: {}", self.extension, self.place, self.message)
    }
}

/// Reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// `apiVersion` of the object.
    pub api_version: String,
    /// `kind` of the object.
    pub kind: String,
    /// Namespace; `None` for cluster-scoped kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectRef {
    /// Reference to that object.
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

    /// API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The kind, if extensions beside the control plane can have it.
    pub fn kind_in_meta(&self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == self.kind)
    }

    /// Whether both refer to one object, also in different versions of its group.
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

/// Inputs about extensions that are not observed from the control plane.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtensionKnowledge {
    /// The labels of the Cluster.
    pub labels: BTreeMap<String, String>,
    /// Trust bundle for the certificates of the API servers.
    pub ca_bundle: Option<String>,
    /// Approximate interval at which applied extensions are checked.
    pub every: Duration,
    /// When this process first observed the cluster.
    pub since: Option<Timestamp>,
    /// Report of each extension in the business cluster since then.
    pub reports: BTreeMap<String, ExtensionReport>,
    /// The deletion of orphaned objects in the meta cluster since then.
    pub in_meta: PruneInMeta,
}

/// State of the deletion of orphaned objects in the meta cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneInMeta {
    /// Uids of the objects that were deleted: the caches may still have them.
    pub deleted: BTreeSet<String>,
    /// Why orphaned objects are not deleted yet, by extension.
    pub waits: BTreeMap<String, String>,
    /// When each object may be deleted again, after a deletion that failed, or that was undone by whoever recreated the object: each attempt is an
    /// Operation, so attempts without a pause would be Operations without end.
    pub not_before: BTreeMap<ObjectRef, Timestamp>,
}

impl Default for ExtensionKnowledge {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            ca_bundle: None,
            every: PROVE_EVERY,
            since: None,
            reports: BTreeMap::new(),
            in_meta: PruneInMeta::default(),
        }
    }
}

/// Report about an extension in the business cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionReport {
    /// Time of the report.
    pub at: Timestamp,
    /// Since when the extension has that digest.
    pub since: Timestamp,
    /// Digest of the rendered extension.
    pub digest: String,
    /// Outcome of applying and checking.
    pub outcome: ExtensionOutcome,
    /// Orphaned objects that exist: an Operation deletes them.
    pub surplus: Vec<OrphanedObject>,
    /// Orphaned objects that are gone, are kept, or belong to somebody else: they are removed from the inventory.
    pub pruned: Vec<ObjectRef>,
    /// Objects with the annotation [`IF_SERVED`] whose kinds the API server does not serve.
    pub skipped: Vec<ObjectRef>,
    /// Why the orphaned objects are not deleted yet.
    pub waits: Option<String>,
    /// Earlier time of the next check, after a failed deletion of orphaned objects.
    pub look_at: Option<Timestamp>,
}

/// An object of a business cluster that its extension no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanedObject {
    /// Reference to the object.
    pub object: ObjectRef,
    /// Its uid: another object of that name is not deleted in its place.
    pub uid: String,
}

/// Outcome of applying and checking an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtensionOutcome {
    /// Applied, and all checks pass.
    Healthy,
    /// Applied; the check that does not pass.
    Waits(String),
    /// Not applied, with the error.
    Failed(String),
}

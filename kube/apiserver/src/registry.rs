//! The resources of a server: the built-in table, shared by every server of the process, and this server's
//! custom resources.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, RwLock};

use bytes::Bytes;
use fleetwright_builtins::strategy;
use fleetwright_builtins::table::{KINDS, Kind};
use fleetwright_schema::{FieldError, Schema};
use jiff::Timestamp;
use serde_json::Value;

use crate::column::Column;
use crate::crd::CustomVersion;
use crate::error::ApiError;
use crate::store::Object;

/// A subresource of a resource.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`, `scale`, `eviction`…
    pub name: Arc<str>,
    /// The group of its kind.
    pub group: Arc<str>,
    /// The version of its kind.
    pub version: Arc<str>,
    /// The kind of its objects.
    pub kind: Arc<str>,
    /// The supported verbs.
    pub verbs: Vec<&'static str>,
}

/// The origin of a resource.
#[derive(Clone)]
pub enum Origin {
    /// The built-in table.
    Builtin(&'static Kind),
    /// A CustomResourceDefinition.
    Custom(Arc<CustomVersion>),
}

/// One version of one resource, with everything needed to serve it.
pub struct Resource {
    /// The API group, empty for core.
    pub group: Arc<str>,
    /// The API version.
    pub version: Arc<str>,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    /// The plural, as in paths.
    pub plural: Arc<str>,
    pub singular: Arc<str>,
    pub short_names: Vec<Arc<str>>,
    /// Categories, such as `all`.
    pub categories: Vec<Arc<str>>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// The verbs of the main resource.
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    /// The name of the resource in the store; versions and aliases of a resource share it.
    pub storage: Arc<str>,
    /// The apiVersion in which the objects are stored.
    pub storage_api_version: Arc<str>,
    /// The version in which the objects are stored, where it is another one.
    pub stored_as: Option<Arc<CustomVersion>>,
    /// The apiVersion of this version.
    pub api_version: Arc<str>,
    /// The schema of the whole object.
    pub schema: Arc<Schema>,
    /// Objects that were written under another stamp are defaulted and pruned again when they are read.
    pub stamp: u64,
    /// The origin of the resource.
    pub origin: Origin,
}

fn strs(list: &[&'static str]) -> Vec<Arc<str>> {
    list.iter().map(|&s| s.into()).collect()
}

fn joined(group: &str, version: &str) -> Arc<str> {
    if group.is_empty() { version.into() } else { format!("{group}/{version}").into() }
}

impl Resource {
    fn builtin(kind: &'static Kind) -> Self {
        let subresources = kind
            .subresources
            .iter()
            .map(|sub| Subresource {
                name: sub.name.into(),
                group: if sub.version.is_empty() { kind.group } else { sub.group }.into(),
                version: if sub.version.is_empty() { kind.version } else { sub.version }.into(),
                kind: sub.kind.into(),
                verbs: sub.verbs.to_vec(),
            })
            .collect();
        // events.k8s.io shares the objects of core/v1 events, which are stored as core/v1.
        let events_alias = kind.group == "events.k8s.io";
        Self {
            group: kind.group.into(),
            version: kind.version.into(),
            kind: kind.kind.into(),
            list_kind: kind.list_kind().into(),
            plural: kind.plural.into(),
            singular: kind.singular().into(),
            short_names: strs(kind.short_names),
            categories: strs(kind.categories),
            namespaced: kind.namespaced,
            verbs: kind.verbs.to_vec(),
            subresources,
            storage: kind.storage.into(),
            storage_api_version: if events_alias { "v1".into() } else { joined(kind.group, kind.version) },
            stored_as: None,
            api_version: joined(kind.group, kind.version),
            schema: fleetwright_builtins::schemas::schema(kind),
            stamp: 0,
            origin: Origin::Builtin(kind),
        }
    }

    /// Whether this is the built-in resource `group`/`plural`.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        matches!(self.origin, Origin::Builtin(kind) if kind.group == group && kind.plural == plural)
    }

    /// The custom version, for custom resources.
    pub fn custom(&self) -> Option<&Arc<CustomVersion>> {
        match &self.origin {
            Origin::Custom(custom) => Some(custom),
            Origin::Builtin(_) => None,
        }
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| &*sub.name == name)
    }

    /// A stored object's bytes in this version.
    pub fn present<'a>(&self, object: &'a Object) -> Cow<'a, Bytes> {
        if object.stamp == self.stamp && *object.api_version == *self.api_version {
            return Cow::Borrowed(&object.json);
        }
        let value = self.value(object);
        Cow::Owned(serde_json::to_vec(&value).map(Bytes::from).unwrap_or_else(|_| object.json.clone()))
    }

    /// A stored object in this version.
    pub fn value(&self, object: &Object) -> Value {
        let mut value = object.value();
        if object.stamp == self.stamp && *object.api_version == *self.api_version {
            return value;
        }
        match &self.origin {
            Origin::Builtin(_) => {
                if *object.api_version != *self.api_version {
                    strategy::event_from_core(&mut value);
                }
            }
            Origin::Custom(custom) => custom.convert_stored(&mut value, &self.api_version),
        }
        value
    }

    /// An object of this version in its stored form.
    pub fn to_storage(&self, mut value: Value) -> Value {
        if self.storage_api_version == self.api_version {
            return value;
        }
        match &self.origin {
            Origin::Builtin(_) => strategy::event_to_core(&mut value),
            Origin::Custom(_) => {
                value["apiVersion"] = Value::from(&*self.storage_api_version);
                // Fields that the stored version does not have are lost.
                if let Some(stored) = &self.stored_as {
                    stored.default_and_prune(&mut value);
                }
            }
        }
        value
    }

    /// The values of selectable fields, beyond name and namespace.
    pub fn selectable_fields(&self, value: &Value) -> Vec<(Arc<str>, String)> {
        match &self.origin {
            Origin::Builtin(kind) => {
                strategy::selectable_fields(kind, value).into_iter().map(|(k, v)| (k.into(), v)).collect()
            }
            Origin::Custom(custom) => custom.selectable_fields(value).into_iter().map(|(k, v)| (k.into(), v)).collect(),
        }
    }

    /// Whether a field selector may name this field.
    pub fn field_is_selectable(&self, field: &str) -> bool {
        match &self.origin {
            _ if matches!(field, "metadata.name" | "metadata.namespace") => true,
            // An empty object has an entry, possibly empty, for each of its kind's selectable fields.
            Origin::Builtin(kind) => {
                strategy::selectable_fields(kind, &Value::Null).iter().any(|(name, _)| *name == field)
            }
            Origin::Custom(custom) => custom.selectable_field_names().iter().any(|name| name == field),
        }
    }

    /// The columns of a `Table`.
    pub fn columns(&self) -> Vec<Column> {
        match &self.origin {
            Origin::Builtin(kind) => Column::builtin(fleetwright_builtins::printers::columns(kind)),
            Origin::Custom(custom) => custom.columns(),
        }
    }

    /// The cells of one row of a `Table`.
    pub fn row(&self, value: &Value, now: Timestamp) -> Vec<Value> {
        match &self.origin {
            Origin::Builtin(kind) => fleetwright_builtins::printers::row(kind, value, now),
            Origin::Custom(custom) => custom.row(value, now),
        }
    }

    /// The conditions of a row beside its cells.
    pub fn row_conditions(&self, value: &Value) -> Vec<Value> {
        match &self.origin {
            Origin::Builtin(kind) => fleetwright_builtins::printers::row_conditions(kind, value),
            Origin::Custom(_) => Vec::new(),
        }
    }

    /// 404 for an object of this resource.
    pub fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(&self.group, &self.plural, name)
    }

    /// 409 for an object of this resource that changed in between.
    pub fn modified(&self, name: &str) -> ApiError {
        ApiError::modified(&self.group, &self.plural, name)
    }

    /// 422 for an object of this resource.
    pub fn invalid(&self, name: &str, errors: &[FieldError]) -> ApiError {
        // Events of both groups are one kind in the real server, the one of core.
        let group = if self.is("events.k8s.io", "events") { "" } else { &*self.group };
        ApiError::invalid(group, &self.kind, name, errors)
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.api_version, self.plural)
    }
}

/// Resources by their plural. Few share one, and the lookup of a path allocates no key.
type Index = HashMap<Arc<str>, Vec<Arc<Resource>>>;

/// Built-in resources are the same in every server, so that a thousand servers share one copy.
static BUILTINS: LazyLock<(Vec<Arc<Resource>>, Index)> = LazyLock::new(|| {
    let all: Vec<Arc<Resource>> = KINDS.iter().map(|kind| Arc::new(Resource::builtin(kind))).collect();
    let index = index(&all);
    (all, index)
});

fn index(resources: &[Arc<Resource>]) -> Index {
    let mut index = Index::new();
    for resource in resources {
        index.entry(resource.plural.clone()).or_default().push(resource.clone());
    }
    index
}

/// The resources of one server.
#[derive(Default)]
pub struct Registry {
    custom: RwLock<Arc<Custom>>,
}

/// The custom resources of one moment.
#[derive(Default)]
struct Custom {
    all: Vec<Arc<Resource>>,
    index: Index,
    /// Counts the changes, so that documents made from the registry can be cached.
    generation: u64,
}

impl Registry {
    fn custom(&self) -> Arc<Custom> {
        self.custom.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The resource of a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let found = |index: &Index| {
            let namesakes = index.get(plural)?;
            namesakes.iter().find(|r| *r.group == *group && *r.version == *version).cloned()
        };
        found(&BUILTINS.1).or_else(|| found(&self.custom().index))
    }

    /// The resource that serves a kind.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        let fits = |r: &&Arc<Resource>| *r.api_version == *api_version && *r.kind == *kind;
        BUILTINS.0.iter().find(fits).cloned().or_else(|| self.custom().all.iter().find(fits).cloned())
    }

    /// A resource of a group, in the preferred version.
    pub fn by_plural(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        let fits = |r: &&Arc<Resource>| *r.group == *group && *r.plural == *plural;
        BUILTINS.0.iter().find(fits).cloned().or_else(|| self.custom().all.iter().find(fits).cloned())
    }

    /// The built-in resources.
    pub fn builtins() -> &'static [Arc<Resource>] {
        &BUILTINS.0
    }

    /// The custom resources, in the order of discovery, and a number that changes with them.
    pub fn customs(&self) -> (Vec<Arc<Resource>>, u64) {
        let custom = self.custom();
        (custom.all.clone(), custom.generation)
    }

    /// One resource for each place in the store, for the garbage collector.
    pub fn stored(&self) -> Vec<Arc<Resource>> {
        let mut seen = std::collections::HashSet::new();
        let customs = self.customs().0;
        Self::builtins()
            .iter()
            .chain(&customs)
            .filter(|r| r.verbs.contains(&"list") && seen.insert(r.storage.clone()))
            .cloned()
            .collect()
    }

    /// Replaces the custom resources.
    pub fn set_customs(&self, all: Vec<Arc<Resource>>) {
        let mut custom = self.custom.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        *custom = Arc::new(Custom { index: index(&all), all, generation: custom.generation + 1 });
    }
}

//! Turns custom resource definitions into resources: accepts names, sets conditions, updates the registry.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fleetwright_rbac::User;
use serde_json::Value;

use super::actor::all;
use crate::crd::{self, CustomVersion};
use crate::registry::{Origin, Resource, Subresource};
use crate::state::Inner;
use crate::store::Object;
use crate::write::options::WriteOptions;
use crate::write::update::{Changed, change};
use crate::write_request::{Warnings, WriteRequest};

const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";
/// The last state of a definition. Cached between rounds, so that the cost of a round depends on the changes and not on the number of definitions.
struct Definition {
    object: Arc<Object>,
    /// The definition with its target status.
    crd: Value,
    /// The stored status.
    status: Value,
    /// The hash of the spec.
    spec: u64,
}

impl Definition {
    fn read(object: Arc<Object>, resource: &Resource) -> Self {
        let crd = resource.value(&object);
        Self { object, status: crd["status"].clone(), spec: hash(&crd["spec"].to_string()), crd }
    }
}

/// Follows the definitions while the server runs.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut known = Vec::new();
    loop {
        let from = inner.store.revision();
        settle(&inner, &mut known);
        let Ok(mut cursor) = inner.store.watch(STORAGE, from) else { continue };
        while cursor.next().await.is_ok() {
            settle(&inner, &mut known);
        }
    }
}

/// Updates statuses and the registry for the present definitions. Writes nothing when nothing changed.
fn settle(inner: &Arc<Inner>, known: &mut Vec<Definition>) {
    let Some(resource) = inner.registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions") else { return };
    let mut before: HashMap<u64, Definition> = known.drain(..).map(|d| (d.object.revision, d)).collect();
    for object in all(inner, STORAGE) {
        let same = before.remove(&object.revision);
        known.push(same.unwrap_or_else(|| Definition::read(object, &resource)));
    }
    for at in 0..known.len() {
        // Earlier definitions already hold their new names: of two that want one name, the first gets it.
        let others = known.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| &other.crd);
        let status = crd::status(&known[at].crd, others, inner.now());
        known[at].crd["status"] = status;
    }
    // Served first, Established after: a client that waited for the condition finds the resource.
    serve(inner, known);
    for Definition { object, crd, .. } in known.iter().filter(|d| d.status != d.crd["status"]) {
        if let Err(error) = write_status(inner, &resource, &object.key.name, &crd["status"]) {
            tracing::debug!(%error, crd = &*object.key.name, "status of a definition not written; it changed in between");
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn write_status(
    inner: &Arc<Inner>,
    resource: &Arc<Resource>,
    name: &str,
    status: &Value,
) -> Result<(), crate::error::ApiError> {
    let user = User::new("system:apiserver", ["system:masters"]);
    let warnings = Warnings::default();
    let op = WriteRequest {
        server: inner,
        resource,
        user: &user,
        namespace: "",
        subresource: "status",
        options: WriteOptions { manager: "kube-apiserver".into(), ..WriteOptions::default() },
        warnings: &warnings,
    };
    change(&op, name, |live| {
        let mut object = live.clone();
        object["status"] = status.clone();
        Ok(Changed { object, owned: false })
    })
    .map(|_| ())
}

/// Rebuilds the custom part of the registry. Versions that did not change keep their resource.
fn serve(inner: &Arc<Inner>, definitions: &[Definition]) {
    let (present, _) = inner.registry.customs();
    let mut all = Vec::new();
    let mut changed = false;
    for Definition { object, crd, spec, .. } in definitions {
        let established = crd::has_condition(crd, "Established");
        for version in crd["spec"]["versions"].as_array().into_iter().flatten() {
            let name = version["name"].as_str().unwrap_or_default();
            if !established || version["served"] != true {
                continue;
            }
            // Changes with every property of the version's service.
            let stamp = hash(&(name, *spec, crd["status"]["acceptedNames"].to_string())).max(1);
            let group = crd["spec"]["group"].as_str().unwrap_or_default();
            let plural = crd["status"]["acceptedNames"]["plural"].as_str().unwrap_or_default();
            let known = present
                .iter()
                .find(|r| *r.group == *group && *r.version == *name && *r.plural == *plural && r.stamp == stamp);
            match known {
                Some(known) => all.push(known.clone()),
                None => match build(crd, name, stamp) {
                    Ok(resource) => {
                        changed = true;
                        all.push(Arc::new(resource));
                    }
                    Err(error) => {
                        tracing::warn!(crd = &*object.key.name, version = name, error, "cannot serve a custom resource")
                    }
                },
            }
        }
    }
    if changed || all.len() != present.len() {
        inner.registry.set_customs(all);
    }
    // The store drops a resource with its definition, which is deleted only after its instances.
    for gone in present.iter().filter(|r| !definitions.iter().any(|definition| defines(&definition.crd, r))) {
        inner.store.drop_resource(&gone.storage);
    }
}

fn defines(crd: &Value, resource: &Resource) -> bool {
    crd["spec"]["group"] == *resource.group && crd["status"]["acceptedNames"]["plural"] == *resource.plural
}

fn build(crd: &Value, version: &str, stamp: u64) -> Result<Resource, String> {
    let custom = Arc::new(CustomVersion::build(crd, version)?);
    let text = |value: &Value| -> Arc<str> { value.as_str().unwrap_or_default().into() };
    let list = |value: &Value| -> Vec<Arc<str>> { value.as_array().into_iter().flatten().map(text).collect() };
    let names = &crd["status"]["acceptedNames"];
    let group = text(&crd["spec"]["group"]);
    let storage_version = crd["spec"]["versions"]
        .as_array()
        .and_then(|versions| versions.iter().find(|v| v["storage"] == true))
        .and_then(|v| v["name"].as_str())
        .ok_or("no storage version")?;
    let other = storage_version != version;
    let stored_as = if other { Some(Arc::new(CustomVersion::build(crd, storage_version)?)) } else { None };
    let mut subresources = Vec::new();
    if custom.has_scale() {
        subresources.push(Subresource {
            name: "scale".into(),
            group: "autoscaling".into(),
            version: "v1".into(),
            kind: "Scale".into(),
            verbs: vec!["get", "patch", "update"],
        });
    }
    if custom.has_status() {
        subresources.push(Subresource {
            name: "status".into(),
            group: group.clone(),
            version: version.into(),
            kind: text(&names["kind"]),
            verbs: vec!["get", "patch", "update"],
        });
    }
    Ok(Resource {
        version: version.into(),
        kind: text(&names["kind"]),
        list_kind: text(&names["listKind"]),
        plural: text(&names["plural"]),
        singular: text(&names["singular"]),
        short_names: list(&names["shortNames"]),
        categories: list(&names["categories"]),
        namespaced: crd["spec"]["scope"] == "Namespaced",
        verbs: vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        subresources,
        storage: format!("{group}/{}", names["plural"].as_str().unwrap_or_default()).into(),
        storage_api_version: format!("{group}/{storage_version}").into(),
        stored_as,
        api_version: format!("{group}/{version}").into(),
        schema: custom.schema(),
        stamp,
        origin: Origin::Custom(custom),
        group,
    })
}

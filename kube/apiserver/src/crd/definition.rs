//! CustomResourceDefinitions before they are stored: defaults, status, generation.

use serde_json::{Map, Value, json};

use fleetwright_schema::structural;

/// The name of the version that objects are stored in.
pub(super) fn storage_version(crd: &Value) -> Option<&str> {
    versions(crd).find(|version| version["storage"] == true)?["name"].as_str()
}

/// The versions of a CRD.
pub(super) fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

/// Sets a CRD's defaults: names that follow from the kind, no conversion, the first stored version.
pub fn default(crd: &mut Value) {
    prune(crd);
    let storage = storage_version(crd).map(str::to_owned);
    if let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) {
        if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
            let kind = names.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
            let unset = |names: &Map<String, Value>, field: &str| {
                names.get(field).and_then(Value::as_str).is_none_or(str::is_empty)
            };
            if !kind.is_empty() && unset(names, "singular") {
                names.insert("singular".into(), kind.to_lowercase().into());
            }
            if !kind.is_empty() && unset(names, "listKind") {
                names.insert("listKind".into(), format!("{kind}List").into());
            }
        }
        if spec.get("conversion").is_none_or(Value::is_null) {
            spec.insert("conversion".into(), json!({"strategy": "None"}));
        }
    }
    let stored = crd["status"]["storedVersions"].as_array().is_some_and(|stored| !stored.is_empty());
    if let (Some(storage), Some(object)) = (storage.filter(|_| !stored), crd.as_object_mut()) {
        let status = object.entry("status").or_insert_with(|| json!({}));
        if let Some(status) = status.as_object_mut() {
            status.insert("storedVersions".into(), json!([storage]));
        }
    }
}

/// Removes fields that a schema cannot have from every version's schema and returns their paths, as the typed decoder reports them.
pub fn prune(crd: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    let versions = crd.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for (at, version) in versions.into_iter().flatten().enumerate() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            let path = format!("spec.versions[{at}].schema.openAPIV3Schema");
            dropped.extend(structural::prune_unknown(schema, &path));
        }
    }
    dropped
}

/// Before a create: removes the client's status and sets the generation to 1.
pub fn prepare_create(crd: &mut Value) {
    let stored: Vec<Value> = storage_version(crd).map(Value::from).into_iter().collect();
    if let Some(object) = crd.as_object_mut() {
        let status = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
        object.insert("status".into(), status);
        set_generation(object, 1);
    }
}

/// Before a CRD is updated through the main resource (`None`) or its status.
pub fn prepare_update(subresource: Option<&str>, old: &Value, new: &mut Value) {
    let Some(object) = new.as_object_mut() else { return };
    if subresource == Some("status") {
        keep(old, object, "spec");
        return;
    }
    keep(old, object, "status");
    if old.get("spec") != object.get("spec") {
        set_generation(object, old["metadata"]["generation"].as_i64().unwrap_or(0).wrapping_add(1));
    }
    let Some(storage) = storage_version(new).map(str::to_owned) else { return };
    if let Some(stored) = new.pointer_mut("/status/storedVersions").and_then(Value::as_array_mut)
        && !stored.iter().any(|version| *version == storage)
    {
        stored.push(storage.into());
    }
}

pub(super) fn set_generation(object: &mut Map<String, Value>, generation: i64) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("generation".into(), generation.into());
    }
}

/// Restores the old value of a field.
pub(super) fn keep(old: &Value, new: &mut Map<String, Value>, field: &str) {
    match old.get(field) {
        Some(value) => new.insert(field.into(), value.clone()),
        None => new.remove(field),
    };
}

/// Warnings about a valid CRD; on update only new ones.
pub fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let before = old.map(found_warnings).unwrap_or_default();
    found_warnings(new).into_iter().filter(|warning| !before.contains(warning)).collect()
}

fn found_warnings(crd: &Value) -> Vec<String> {
    let (mut formats, mut sets) = (Vec::new(), Vec::new());
    for version in versions(crd) {
        visit(&version["schema"]["openAPIV3Schema"], 0, &mut |schema| {
            let ty = schema["type"].as_str().unwrap_or("");
            if let Some(format) = schema["format"].as_str().filter(|format| !format.is_empty())
                && !fleetwright_schema::formats::recognised(fleetwright_schema::Type::from_name(ty), format)
            {
                formats.push(format!("unrecognized format {}", fleetwright_schema::text::quote(format)));
            }
            let item = schema["items"]["type"].as_str().unwrap_or("");
            if schema["x-kubernetes-list-type"] == "set" && matches!(item, "object" | "array") {
                sets.push(format!(
                    "x-kubernetes-list-type: set for items of type \"{item}\" is not supported by server-side apply or CEL validation rules"
                ));
            }
        });
    }
    sets.sort();
    formats.extend(sets);
    let mut seen = std::collections::HashSet::new();
    formats.retain(|warning| seen.insert(warning.clone()));
    formats
}

/// Calls `look` for every schema of a tree.
fn visit(schema: &Value, depth: usize, look: &mut impl FnMut(&Value)) {
    if !schema.is_object() || depth > 100 {
        return;
    }
    look(schema);
    for name in ["items", "additionalProperties", "not"] {
        visit(&schema[name], depth + 1, look);
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        schema[name].as_array().into_iter().flatten().for_each(|one| visit(one, depth + 1, look));
    }
    for (_, field) in schema["properties"].as_object().into_iter().flatten() {
        visit(field, depth + 1, look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd() -> Value {
        json!({"metadata": {"name": "things.x.io", "generation": 1}, "spec": {"group": "x.io", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
    }

    #[test]
    fn names_follow_from_the_kind() {
        let mut crd = crd();
        default(&mut crd);
        assert_eq!(
            crd["spec"]["names"],
            json!({"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"})
        );
        assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    }

    #[test]
    fn a_new_storage_version_joins_the_stored_ones_and_bumps_the_generation() {
        let mut old = crd();
        prepare_create(&mut old);
        let mut new = old.clone();
        new["spec"]["versions"] = json!([{"name": "v1", "storage": false}, {"name": "v2", "storage": true}]);
        new["status"] = json!({});
        prepare_update(None, &old, &mut new);
        assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
        assert_eq!(new["metadata"]["generation"], 2);
    }

    #[test]
    fn an_unknown_format_is_warned_about_once() {
        let mut crd = crd();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] =
            json!({"a": {"type": "string", "format": "colour"}, "b": {"type": "string", "format": "colour"}});
        assert_eq!(warnings(&crd, None), ["unrecognized format \"colour\""]);
        assert!(warnings(&crd, Some(&crd)).is_empty());
    }
}

//! Generates the CustomResourceDefinitions from the types.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::{
    Cluster, ClusterLimits, ClusterPackageVersion, Machine, MachinePackageVersion, Operation, OperationPolicy,
    ReadinessGates,
};

/// Returns the definitions of all kinds, in the order of their names. Use these instead of `crd()` of a type, which lacks the changes of `finish`.
pub fn crds() -> Vec<CustomResourceDefinition> {
    // Deriving a schema is slow, so it is done once per process.
    static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
        vec![
            of::<ClusterLimits>(),
            of::<ClusterPackageVersion>(),
            of::<Cluster>(),
            of::<MachinePackageVersion>(),
            of::<Machine>(),
            of::<OperationPolicy>(),
            of::<Operation>(),
            of::<ReadinessGates>(),
        ]
    });
    CRDS.clone()
}

/// Returns the definitions of all kinds as they are written to an API server.
pub fn crds_json() -> Vec<Value> {
    let json = |crd| {
        let mut crd = serde_json::to_value(crd).expect("a definition is JSON");
        whole_numbers(&mut crd);
        crd
    };
    crds().into_iter().map(json).collect()
}

/// Returns the definitions of all kinds as YAML, for `kubectl apply`.
pub fn crds_yaml() -> String {
    let mut out = String::from("# Generated from crates/api; `make generate` makes it again.\n");
    for crd in crds_json() {
        out.push_str("---\n");
        out.push_str(&serde_saphyr::to_string(&crd).expect("JSON is YAML"));
    }
    out
}

/// Bounds in a definition are floating-point numbers. 65535 is easier to read than 65535.0.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e15) {
                *value = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

fn of<K: CustomResourceExt + JsonSchema>() -> CustomResourceDefinition {
    let mut crd = K::crd();
    let version = &mut crd.spec.versions[0];
    let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
    let props = schema.expect("a derived definition has a schema");
    let mut schema = serde_json::to_value(&*props).expect("a schema is JSON");
    finish(&mut schema, &plain::<K>());
    let root = schema.as_object_mut().expect("a schema is an object");
    root.insert("description".to_owned(), root["properties"]["spec"]["description"].clone());
    root.remove("title");
    root["properties"]["spec"]["description"] = "What is wanted.".into();
    if let Some(status) = root["properties"].get_mut("status") {
        status["description"] = "What is, as the operators see it.".into();
    }
    *props = serde_json::from_value(schema).expect("a schema is a schema");
    crd
}

/// The schema before kube makes it structural: enums still have a description of each value.
fn plain<K: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<K>().to_value()
}

/// Adds to the schema what the types define and kube omits.
///
/// - The meaning of each value of an enum, for `kubectl explain`.
/// - `null` is removed: it is not a valid value of any field, and a rule about a field that is present must find a value.
/// - Rust's integer formats are unknown to Kubernetes, which warns about each, so they are removed.
///   Their bounds remain, because a number that does not fit would keep every operator from reading the object.
fn finish(schema: &mut Value, plain: &Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("nullable");
    bounds(fields);
    meanings(fields, plain);
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            finish(property, &plain["properties"][name]);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get_mut(inner) {
            finish(schema, &plain[inner]);
        }
    }
}

fn bounds(fields: &mut Map<String, Value>) {
    let most = match fields.get("format").and_then(Value::as_str) {
        Some("uint8") => u64::from(u8::MAX),
        Some("uint16") => u64::from(u16::MAX),
        Some("uint32") => u64::from(u32::MAX),
        _ => return,
    };
    fields.remove("format");
    fields.entry("maximum").or_insert(most.into());
}

fn meanings(fields: &mut Map<String, Value>, plain: &Value) {
    // An optional enum is "one of its values, or null".
    let variants = [plain, &plain["anyOf"][0]].into_iter().find_map(|schema| schema["oneOf"].as_array());
    let (Some(variants), Some(Value::String(description))) = (variants, fields.get_mut("description")) else { return };
    for variant in variants {
        let name = variant["const"].as_str().or_else(|| variant["enum"][0].as_str());
        if let (Some(name), Some(meaning)) = (name, variant["description"].as_str()) {
            description.push_str(&format!("\n{name}: {meaning}"));
        }
    }
}

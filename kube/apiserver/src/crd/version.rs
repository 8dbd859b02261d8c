//! One version of a custom resource, ready to serve: schema, rules, columns and subresources.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use fleetwright_schema::{ErrorType, FieldError, Schema, default, embedded, list_types, prune, prune_nulls};
use fleetwright_schema::{Type, text, validate, validate_update};

use super::columns::Columns;
use super::definition::{keep, set_generation, versions};
use super::json_path::JsonPath;
use super::rules::Rules;
use crate::column::Column;

/// The paths of the scale subresource.
struct Scale {
    spec: String,
    status: String,
    selector: Option<String>,
}

/// One version of a custom resource.
pub struct CustomVersion {
    /// The schema of the CRD, for validation, defaults and pruning.
    own: Schema,
    /// The schemas of the other versions, in which objects may be stored.
    others: Vec<(String, Schema)>,
    /// The same schema with the metadata of every object.
    whole: Arc<Schema>,
    rules: Option<Rules>,
    columns: Columns,
    has_status: bool,
    scale: Option<Scale>,
    selectable_names: Vec<String>,
    selectable_paths: Vec<JsonPath>,
    deprecation: Option<String>,
}

impl CustomVersion {
    /// Reads one version of a CRD.
    ///
    /// # Errors
    /// When the version does not exist or has no usable schema. A validated CRD has neither problem.
    pub fn build(crd: &Value, version: &str) -> Result<Self, String> {
        let definition = versions(crd)
            .find(|found| found["name"] == version)
            .ok_or_else(|| format!("version {version} not found in the CustomResourceDefinition"))?;
        let schema = &definition["schema"]["openAPIV3Schema"];
        let own = Schema::from_openapi(schema)?;
        let scale = &definition["subresources"]["scale"];
        let path = |field: &str| scale[field].as_str().map(str::to_owned);
        let scale = match (path("specReplicasPath"), path("statusReplicasPath")) {
            (Some(spec), Some(status)) => Some(Scale { spec, status, selector: path("labelSelectorPath") }),
            _ => None,
        };
        let selectable = definition["selectableFields"].as_array().into_iter().flatten();
        let selectable: Vec<&str> = selectable.filter_map(|field| field["jsonPath"].as_str()).collect();
        let others = versions(crd).filter(|other| other["name"] != version).filter_map(|other| {
            let schema = Schema::from_openapi(&other["schema"]["openAPIV3Schema"]).ok()?;
            Some((other["name"].as_str()?.to_owned(), schema))
        });
        Ok(Self {
            others: others.collect(),
            whole: Arc::new(with_metadata(&own)),
            rules: Rules::build(schema, &own),
            columns: Columns::read(&definition["additionalPrinterColumns"])?,
            has_status: !definition["subresources"]["status"].is_null(),
            scale,
            selectable_names: selectable.iter().map(|path| path.trim_start_matches('.').to_owned()).collect(),
            selectable_paths: selectable.iter().map(|path| JsonPath::parse(path)).collect::<Result<_, _>>()?,
            deprecation: deprecation(crd, definition),
            own,
        })
    }

    /// The schema of whole objects.
    pub fn schema(&self) -> Arc<Schema> {
        self.whole.clone()
    }

    /// Whether the status subresource is on.
    pub fn has_status(&self) -> bool {
        self.has_status
    }

    /// Whether the scale subresource is on.
    pub fn has_scale(&self) -> bool {
        self.scale.is_some()
    }

    /// The warning for a deprecated version, if it is deprecated.
    pub fn deprecation_warning(&self) -> Option<String> {
        self.deprecation.clone()
    }

    /// Prepares a create: drops the status if it is a subresource, and sets generation 1.
    pub fn prepare_create(&self, object: &mut Value) {
        let Some(fields) = object.as_object_mut() else { return };
        if self.has_status {
            fields.remove("status");
        }
        set_generation(fields, 1);
    }

    /// Prepares an update: keeps the old status, or takes only the new one; increments the generation when the rest changed.
    pub fn prepare_update(&self, subresource: Option<&str>, old: &Value, new: &mut Value) {
        let Some(fields) = new.as_object_mut() else { return };
        if subresource == Some("status") {
            only_status(old, fields);
            return;
        }
        if self.has_status {
            keep(old, fields, "status");
        }
        let differs = |name: &String| name != "metadata" && fields.get(name) != old.get(name);
        let old_names = old.as_object().into_iter().flat_map(|old| old.keys());
        if fields.keys().chain(old_names).any(differs) {
            set_generation(fields, old["metadata"]["generation"].as_i64().unwrap_or(0).wrapping_add(1));
        }
    }

    /// All errors of an object: schema, scale paths, embedded resources, list types and rules. Unchanged old errors are
    /// tolerated; tolerated rule failures are returned as texts for warnings.
    pub fn validate_object(&self, new: &Value, old: Option<&Value>) -> (Vec<FieldError>, Vec<String>) {
        let mut errors = match old {
            Some(old) => validate_update(&self.own, new, old, ""),
            None => validate(&self.own, new, ""),
        };
        errors.extend(self.check_scale(new));
        errors.extend(embedded::check(&self.own, new, ""));
        let lists_were_valid = old.is_none_or(|old| list_types::check(&self.own, old, "").is_empty());
        if lists_were_valid {
            errors.extend(list_types::check(&self.own, new, ""));
        }
        let Some(rules) = &self.rules else { return (errors, Vec::new()) };
        let blocking = |error: &FieldError| {
            matches!(
                error.ty,
                ErrorType::NotSupported
                    | ErrorType::Required
                    | ErrorType::TooLong
                    | ErrorType::TooMany
                    | ErrorType::TypeInvalid
            )
        };
        if errors.iter().any(blocking) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", Value::Null, detail));
            return (errors, Vec::new());
        }
        let (broken, forgiven) = rules.check(new, old);
        errors.extend(broken);
        (errors, forgiven)
    }

    /// Defaults and prunes a whole object (the caller decodes its own metadata); returns the paths of unknown fields.
    /// Errors in embedded metadata are reported by the validation.
    pub fn default_and_prune(&self, value: &mut Value) -> Vec<String> {
        self.decode(value).unwrap_or_else(|_| prune(&self.own, value, true))
    }

    /// Converts a stored object to this version: fields that the stored version does not have are absent, and
    /// this version's defaults are set.
    pub fn convert_stored(&self, value: &mut Value, api_version: &str) {
        let stored = self.other(value["apiVersion"].as_str().unwrap_or_default());
        value["apiVersion"] = api_version.into();
        match stored {
            None => {
                self.default_and_prune(value);
            }
            Some(stored) => {
                prune_nulls(stored, value);
                default(stored, value);
                prune(stored, value, true);
                prune(&self.own, value, true);
            }
        }
    }

    fn other(&self, api_version: &str) -> Option<&Schema> {
        let version = api_version.rsplit('/').next().unwrap_or_default();
        self.others.iter().find(|(name, _)| name == version).map(|(_, schema)| schema)
    }

    /// Like [`default_and_prune`](Self::default_and_prune), for an object that a client sent.
    ///
    /// # Errors
    /// When the apiVersion, kind or metadata of an embedded resource has the wrong type. The real server answers 400 with
    /// `<Kind> in version "<v>" cannot be handled as a <Kind>: ` before it.
    pub fn decode(&self, value: &mut Value) -> Result<Vec<String>, String> {
        prune_nulls(&self.own, value);
        default(&self.own, value);
        let mut unknown = embedded::coerce(&self.own, value, false).map_err(|error| error.to_string())?;
        unknown.extend(prune(&self.own, value, true));
        unknown.sort();
        Ok(unknown)
    }

    /// The values of the selectable fields; paths without the leading dot (`spec.color`).
    pub fn selectable_fields(&self, value: &Value) -> Vec<(String, String)> {
        let text = |found: &Value| match found {
            Value::String(text) => text.clone(),
            Value::Number(number) => text::number(number),
            Value::Bool(flag) => flag.to_string(),
            _ => String::new(),
        };
        let paths = self.selectable_names.iter().zip(&self.selectable_paths);
        paths.map(|(name, path)| (name.clone(), path.first(value).map(text).unwrap_or_default())).collect()
    }

    /// The paths of the selectable fields.
    pub fn selectable_field_names(&self) -> &[String] {
        &self.selectable_names
    }

    /// The columns of a Table.
    pub fn columns(&self) -> Vec<Column> {
        self.columns.headings()
    }

    /// The cells of a row.
    pub fn row(&self, value: &Value, now: Timestamp) -> Vec<Value> {
        self.columns.row(value, now)
    }

    /// (spec replicas, status replicas, selector text) for the scale subresource.
    ///
    /// # Errors
    /// When a path leads to something that is not a number, or there are no replicas in the spec.
    pub fn scale(&self, object: &Value) -> Result<(i64, i64, String), String> {
        let Some(scale) = &self.scale else { return Err("the scale subresource is not enabled".to_owned()) };
        let spec = nested_int(object, &scale.spec)?
            .ok_or_else(|| format!("the spec replicas field {} does not exist", text::quote(&scale.spec)))?;
        let status = nested_int(object, &scale.status)?.unwrap_or(0);
        let selector = scale.selector.as_deref().map(|path| nested_text(object, path)).transpose()?;
        Ok((spec, status, selector.unwrap_or_default()))
    }

    /// Sets the replicas at the scale subresource's path.
    ///
    /// # Errors
    /// When the path leads through something that is not an object.
    pub fn apply_scale(&self, object: &mut Value, replicas: i64) -> Result<(), String> {
        let Some(scale) = &self.scale else { return Err("the scale subresource is not enabled".to_owned()) };
        let mut slot = object;
        for (at, name) in steps(&scale.spec).enumerate() {
            if slot.is_null() && at > 0 {
                *slot = Value::Object(Map::new());
            }
            let Value::Object(fields) = slot else {
                let walked = steps(&scale.spec).take(at).map(|name| format!(".{name}")).collect::<String>();
                return Err(format!("value cannot be set because {walked} is not a map[string]interface{{}}"));
            };
            slot = fields.entry(name.to_owned()).or_insert(Value::Null);
        }
        *slot = replicas.into();
        Ok(())
    }

    fn check_scale(&self, object: &Value) -> Vec<FieldError> {
        let Some(scale) = &self.scale else { return Vec::new() };
        let mut errors = Vec::new();
        for path in [&scale.spec, &scale.status] {
            match nested_int(object, path) {
                Err(why) => errors.push(FieldError::invalid(path.as_str(), 0, why)),
                Ok(Some(n)) if n < 0 => {
                    errors.push(FieldError::invalid(path.as_str(), n, "should be a non-negative integer"));
                }
                Ok(Some(n)) if n > i64::from(i32::MAX) => {
                    let detail = format!("should be less than or equal to {}", i32::MAX);
                    errors.push(FieldError::invalid(path.as_str(), n, detail));
                }
                Ok(_) => {}
            }
        }
        if let Some(Err(why)) = scale.selector.as_deref().map(|path| nested_text(object, path)) {
            errors.push(FieldError::invalid(scale.selector.clone().unwrap_or_default(), "", why));
        }
        errors
    }
}

/// Restricts a write to the status subresource to the status and managedFields.
fn only_status(old: &Value, new: &mut Map<String, Value>) {
    let status = new.remove("status");
    let metadata = new.remove("metadata").unwrap_or_default();
    *new = old.as_object().cloned().unwrap_or_default();
    match status {
        Some(status) => new.insert("status".into(), status),
        None => new.remove("status"),
    };
    if let Some(kept) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["managedFields", "resourceVersion"] {
            keep(&metadata, kept, field);
        }
    }
}

fn with_metadata(own: &Schema) -> Schema {
    let mut whole = own.clone();
    let text = |description: &str| {
        Arc::new(Schema { ty: Some(Type::String), description: Some(description.into()), ..Schema::default() })
    };
    let api_version = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
    let kind = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
    whole.properties.insert("apiVersion".into(), text(api_version));
    whole.properties.insert("kind".into(), text(kind));
    whole.properties.insert("metadata".into(), fleetwright_builtins::schemas::object_meta());
    whole
}

fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.trim_start_matches('.').split('.')
}

fn nested<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut value = object;
    for (at, name) in steps(path).enumerate() {
        let Value::Object(fields) = value else {
            let walked = steps(path).take(at).map(|name| format!(".{name}")).collect::<String>();
            let (shown, ty) = (go_shown(value), go_type(value));
            return Err(format!(
                "{walked} accessor error: {shown} is of the type {ty}, expected map[string]interface{{}}"
            ));
        };
        match fields.get(name) {
            Some(found) => value = found,
            None => return Ok(None),
        }
    }
    Ok(Some(value))
}

fn nested_int(object: &Value, path: &str) -> Result<Option<i64>, String> {
    let Some(value) = nested(object, path)? else { return Ok(None) };
    value.as_i64().map(Some).ok_or_else(|| accessor_error(path, value, "int64"))
}

fn nested_text(object: &Value, path: &str) -> Result<String, String> {
    let Some(value) = nested(object, path)? else { return Ok(String::new()) };
    value.as_str().map(str::to_owned).ok_or_else(|| accessor_error(path, value, "string"))
}

fn accessor_error(path: &str, value: &Value, wanted: &str) -> String {
    let path = steps(path).map(|name| format!(".{name}")).collect::<String>();
    format!("{path} accessor error: {} is of the type {}, expected {wanted}", go_shown(value), go_type(value))
}

fn go_shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => text::number(number),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The warning of a deprecated version.
fn deprecation(crd: &Value, definition: &Value) -> Option<String> {
    if definition["deprecated"] != true {
        return None;
    }
    if let Some(warning) = definition["deprecationWarning"].as_str() {
        return Some(warning.to_owned());
    }
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let (group, kind) = (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["kind"]));
    let name = text(&definition["name"]);
    let better = versions(crd)
        .filter(|version| version["served"] == true && version["deprecated"] != true)
        .filter_map(|version| version["name"].as_str())
        .filter(|other| rank(other) > rank(&name))
        .max_by_key(|other| rank(other));
    let mut warning = format!("{group}/{name} {kind} is deprecated");
    if let Some(better) = better {
        warning.push_str(&format!("; use {group}/{better} {kind}"));
    }
    Some(warning)
}

/// The sort key of versions: GA over beta over alpha, then by number; other names come last, by name.
fn rank(name: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let odd = (0, 0, 0, std::cmp::Reverse(name.to_owned()));
    let Some(rest) = name.strip_prefix('v') else { return odd };
    let split = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Ok(major) = rest[..split].parse::<u64>() else { return odd };
    let even = std::cmp::Reverse(String::new());
    let suffix = &rest[split..];
    if suffix.is_empty() {
        return (3, major, 0, even);
    }
    for (word, level) in [("beta", 2), ("alpha", 1)] {
        if let Some(Ok(minor)) = suffix.strip_prefix(word).map(str::parse::<u64>) {
            return (level, major, minor, even);
        }
    }
    odd
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn version(extra: Value) -> CustomVersion {
        let mut definition = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {
                "spec": {"type": "object", "properties": {
                    "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
                    "replicas": {"type": "integer", "minimum": 1},
                    "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}});
        definition.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        CustomVersion::build(&json!({"spec": {"group": "x.io", "names": {"kind": "Thing"}, "versions": [definition, {"name": "v2", "served": true}]}}), "v1").unwrap()
    }

    #[test]
    fn objects_are_defaulted_and_pruned() {
        let mut object = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"extra": 1, "color": null}});
        assert_eq!(version(json!({})).default_and_prune(&mut object), ["spec.extra"]);
        assert_eq!(object["spec"], json!({"color": "red"}));
    }

    #[test]
    fn the_status_subresource_separates_spec_and_status() {
        let version = version(json!({"subresources": {"status": {}}}));
        let old = json!({"metadata": {"name": "a", "generation": 1, "managedFields": []}, "spec": {"replicas": 1}, "status": {"n": 1}});
        let mut main = json!({"metadata": {"name": "a", "generation": 1}, "spec": {"replicas": 2}, "status": {"n": 2}});
        version.prepare_update(None, &old, &mut main);
        assert_eq!(main["status"], json!({"n": 1}));
        assert_eq!(main["metadata"]["generation"], 2);
        let mut status =
            json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"replicas": 2}, "status": {"n": 2}});
        version.prepare_update(Some("status"), &old, &mut status);
        assert_eq!(
            status,
            json!({"metadata": {"name": "a", "generation": 1}, "spec": {"replicas": 1}, "status": {"n": 2}})
        );
    }

    #[test]
    fn what_was_wrong_before_is_forgiven() {
        let version = version(json!({}));
        let old = json!({"spec": {"replicas": 0, "tags": ["a", "a"]}});
        let mut new = old.clone();
        new["spec"]["color"] = "blue".into();
        assert!(version.validate_object(&new, Some(&old)).0.is_empty());
        assert_eq!(version.validate_object(&new, None).0.len(), 2);
    }

    #[test]
    fn scale_reads_and_writes_at_its_paths() {
        let version = version(
            json!({"subresources": {"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.selector"}}}),
        );
        let mut object = json!({"spec": {"replicas": 3}, "status": {"n": 2, "selector": "a=b"}});
        assert_eq!(version.scale(&object).unwrap(), (3, 2, "a=b".to_owned()));
        version.apply_scale(&mut object, 5).unwrap();
        assert_eq!(object["spec"]["replicas"], 5);
        assert_eq!(version.scale(&json!({})).unwrap_err(), "the spec replicas field \".spec.replicas\" does not exist");
        let errors = version.validate_object(&json!({"spec": {"replicas": 1}, "status": {"n": "x"}}), None).0;
        assert_eq!(
            errors[0].to_string(),
            ".status.n: Invalid value: 0: .status.n accessor error: x is of the type string, expected int64"
        );
    }

    #[test]
    fn selectable_fields_have_their_values_as_text() {
        let version =
            version(json!({"selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.replicas"}]}));
        let fields = version.selectable_fields(&json!({"spec": {"replicas": 3}}));
        assert_eq!(fields, [("spec.color".to_owned(), String::new()), ("spec.replicas".to_owned(), "3".to_owned())]);
    }

    #[test]
    fn a_deprecated_version_names_a_better_one() {
        let version = version(json!({"deprecated": true}));
        assert_eq!(version.deprecation_warning().unwrap(), "x.io/v1 Thing is deprecated; use x.io/v2 Thing");
        assert!(rank("v1") > rank("v2beta1") && rank("v2beta1") > rank("v2alpha9") && rank("v1alpha1") > rank("foo"));
    }
}

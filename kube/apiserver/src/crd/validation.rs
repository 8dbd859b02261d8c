//! Validation of CustomResourceDefinitions.
//!
//! Errors in settings that all versions share are reported at the top of the spec (`spec.validation…`), like in the real server,
//! which stores them there internally.

use std::cell::Cell;

use serde_json::Value;

use fleetwright_builtins::meta;
use fleetwright_builtins::names::{NameRule, dns_1035_label, dns_subdomain};
use fleetwright_schema::{ErrorType, FieldError, Schema, Type, field_path, formats, structural, text};
use fleetwright_syntax::regexp::{TOTAL_EFFORT_LIMIT, total_too_large};

use super::definition::versions;
use super::rules;

/// The approval annotation of CRDs in protected groups.
pub(super) const APPROVED: &str = "api-approved.kubernetes.io";

const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const MAX_SELECTABLE_FIELDS: usize = 8;

/// All errors of a CRD, including its metadata on create; the caller checks the metadata of updates.
pub fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.is_none() {
        errors.extend(meta::validate_create(new, false, NameRule::Subdomain));
        let name = str(&new["metadata"]["name"]);
        let wanted = format!("{}.{}", str(&new["spec"]["names"]["plural"]), str(&new["spec"]["group"]));
        if name != wanted {
            let detail = "must be spec.names.plural+\".\"+spec.group";
            errors.push(FieldError::invalid("metadata.name", name, detail));
        }
    }
    check_spec(new, old, &mut errors);
    if let Some(old) = old {
        check_immutable(new, old, &mut errors);
    }
    check_names(&new["status"]["acceptedNames"], "status.acceptedNames", &mut errors);
    check_stored_versions(new, &mut errors);
    check_approval(new, old, &mut errors);
    let was_preserving = old.is_some_and(|old| old["spec"]["preserveUnknownFields"] == true);
    if !was_preserving && new["spec"]["preserveUnknownFields"] == true {
        let detail =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, detail));
    }
    errors
}

fn str(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn check_spec(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &crd["spec"];
    let group = str(&spec["group"]);
    let problems = dns_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !problems.is_empty() {
        errors.push(FieldError::invalid("spec.group", group, problems.join(",")));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid("spec.group", group, "should be a domain with at least one dot"));
    }
    match str(&spec["scope"]) {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    check_versions(crd, old, errors);
    for field in ["plural", "singular", "kind", "listKind"] {
        if str(&spec["names"][field]).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{field}"), ""));
        }
    }
    check_names(&spec["names"], "spec.names", errors);
    check_conversion(&spec["conversion"], errors);
}

fn check_versions(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let all: Vec<&Value> = versions(crd).collect();
    let shared = |field: &str| all.windows(2).all(|pair| pair[0][field] == pair[1][field]);
    let (schema_shared, columns_shared) = (shared("schema"), shared("additionalPrinterColumns"));
    let (subresources_shared, selectable_shared) = (shared("subresources"), shared("selectableFields"));
    let effort = Cell::new(0);
    // A schema that was accepted once stays valid: only a changed one is checked.
    let unchanged = |version: &Value| {
        let before = old.and_then(|old| versions(old).find(|before| before["name"] == version["name"]));
        before.is_some_and(|before| before["schema"] == version["schema"] && has_status(before) == has_status(version))
    };
    if !all.iter().all(|version| unchanged(version)) {
        // The others count beside it: each version is compiled again.
        let compiled = if schema_shared { 1 } else { all.len() };
        for version in all.iter().take(compiled).filter(|version| unchanged(version)) {
            let schema = &version["schema"]["openAPIV3Schema"];
            effort.set(effort.get() + structural::pattern_effort(schema));
            rules::check(schema, "", &effort);
        }
    }
    let any_status = all.iter().any(|version| has_status(version));
    for (at, version) in all.iter().enumerate() {
        if version["schema"]["openAPIV3Schema"].is_null() {
            errors.push(FieldError::required(format!("spec.versions[{at}].schema.openAPIV3Schema"), ""));
        }
    }
    for (at, version) in all.iter().enumerate() {
        let place = format!("spec.versions[{at}]");
        let name = str(&version["name"]);
        let problems = dns_1035_label(name);
        if !problems.is_empty() {
            errors.push(FieldError::invalid(format!("{place}.name"), name, problems.join(",")));
        }
        check_deprecation(version, &place, errors);
        let first = at == 0;
        let status = if schema_shared { any_status } else { has_status(version) };
        if !schema_shared || first {
            let path = if schema_shared { "spec.validation".to_owned() } else { format!("{place}.schema") };
            if !unchanged(version) {
                check_schema(version, &format!("{path}.openAPIV3Schema"), status, &effort, errors);
            }
        }
        if !subresources_shared || first {
            let path =
                if subresources_shared { "spec.subresources".to_owned() } else { format!("{place}.subresources") };
            check_scale(&version["subresources"]["scale"], &path, errors);
        }
        if !columns_shared || first {
            let base = if columns_shared { "spec" } else { place.as_str() };
            for (n, column) in list(&version["additionalPrinterColumns"]).iter().enumerate() {
                check_column(column, &format!("{base}.additionalPrinterColumns[{n}]"), errors);
            }
        }
        if !selectable_shared || first {
            let base = if selectable_shared { "spec" } else { place.as_str() };
            check_selectable(version, &format!("{base}.selectableFields"), errors);
        }
    }
    // Each version is compiled by itself later, also if all have one schema.
    let copies = if schema_shared { all.len() as u64 } else { 1 };
    if effort.get() <= TOTAL_EFFORT_LIMIT && effort.get() * copies > TOTAL_EFFORT_LIMIT {
        errors.push(FieldError::forbidden("spec.versions", total_too_large(rules::PATTERNS_OF, TOTAL_EFFORT_LIMIT)));
    }
    let names: Vec<&str> = all.iter().map(|version| str(&version["name"])).collect();
    let whole = |why: &str| {
        let shared = [schema_shared, subresources_shared, columns_shared, selectable_shared];
        let detail = format!("{}: {why}", shown_versions(&all, shared));
        FieldError { ty: ErrorType::Invalid, field: "spec.versions".to_owned(), value: None, detail }
    };
    if (1..names.len()).any(|at| names[..at].contains(&names[at])) {
        errors.push(whole("must contain unique version names"));
    }
    if all.iter().filter(|version| version["storage"] == true).count() != 1 {
        errors.push(whole("must have exactly one version marked as storage version"));
    }
    let problems = names.first().map(|name| dns_1035_label(name)).unwrap_or_default();
    if !problems.is_empty() {
        errors.push(FieldError::invalid("spec.version", names[0], problems.join(",")));
    }
}

/// The versions in the form of the real server, without the shared settings. Schemas that differ are shown as written.
fn shown_versions(versions: &[&Value], shared: [bool; 4]) -> String {
    let show = |version: &&Value| {
        let fields = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];
        let [schema, subresources, columns, selectable] = std::array::from_fn(|n| match shared[n] {
            true => "null".to_owned(),
            false => text::value(&version[fields[n]]),
        });
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{schema},\"Subresources\":{subresources},\"AdditionalPrinterColumns\":{columns},\"SelectableFields\":{selectable}}}",
            Value::from(str(&version["name"])),
            version["served"] == true,
            version["storage"] == true,
            version["deprecated"] == true,
            version["deprecationWarning"],
        )
    };
    format!("[{}]", versions.iter().map(show).collect::<Vec<_>>().join(","))
}

fn has_status(version: &Value) -> bool {
    !version["subresources"]["status"].is_null()
}

/// `effort` is that of the patterns of all versions, as they are compiled here.
fn check_schema(version: &Value, path: &str, status: bool, effort: &Cell<u64>, errors: &mut Vec<FieldError>) {
    let schema = &version["schema"]["openAPIV3Schema"];
    if schema.is_null() {
        return;
    }
    effort.set(effort.get() + structural::pattern_effort(schema));
    if effort.get() > TOTAL_EFFORT_LIMIT {
        errors.push(FieldError::forbidden(path, total_too_large(rules::PATTERNS_OF, TOTAL_EFFORT_LIMIT)));
        return;
    }
    let found = structural::check(schema, path, structural::Options { status });
    if found.is_empty() {
        errors.extend(rules::check(schema, path, effort));
    }
    errors.extend(found);
}

fn check_deprecation(version: &Value, place: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut problems = Vec::new();
    if version["deprecated"] != true {
        problems.push("can only be set for deprecated versions".to_owned());
    } else {
        if warning.len() > 256 {
            problems.push("must be <= 256 characters long".to_owned());
        }
        if warning.is_empty() {
            problems.push("must not be an empty string".to_owned());
        }
        if let Some((at, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
            problems.push(format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {at}"
            ));
        }
    }
    for problem in problems {
        errors.push(FieldError::invalid(format!("{place}.deprecationWarning"), warning, problem));
    }
}

/// A path that starts with a dot, below one of `roots`.
fn check_simple_path(path: &str, field: String, roots: &[&str], whose: &str, errors: &mut Vec<FieldError>) {
    if !path.starts_with('.') {
        errors.push(FieldError::invalid(field, path, "must be a simple json path starting with ."));
    } else if !roots.is_empty() && !roots.iter().any(|root| path.starts_with(root)) {
        errors.push(FieldError::invalid(field, path, format!("should be a json path under {whose}")));
    }
}

fn check_scale(scale: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if scale.is_null() {
        return;
    }
    for (field, root, whose) in [("specReplicasPath", ".spec.", ".spec"), ("statusReplicasPath", ".status.", ".status")]
    {
        let at = format!("{path}.scale.{field}");
        match str(&scale[field]) {
            "" => errors.push(FieldError::required(at, "")),
            given => check_simple_path(given, at, &[root], whose, errors),
        }
    }
    let selector = str(&scale["labelSelectorPath"]);
    if !selector.is_empty() {
        let at = format!("{path}.scale.labelSelectorPath");
        check_simple_path(selector, at, &[".spec.", ".status."], "either .spec or .status", errors);
    }
}

fn check_column(column: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if str(&column["name"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    match str(&column["type"]) {
        "" => errors.push(FieldError::required(format!("{path}.type"), types)),
        ty if !COLUMN_TYPES.contains(&ty) => errors.push(FieldError::invalid(format!("{path}.type"), ty, types)),
        _ => {}
    }
    let format = str(&column["format"]);
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(FieldError::invalid(format!("{path}.format"), format, detail));
    }
    match str(&column["jsonPath"]) {
        "" => errors.push(FieldError::required(format!("{path}.JSONPath"), "")),
        given => check_simple_path(given, format!("{path}.JSONPath"), &[], "", errors),
    }
}

fn check_selectable(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let fields = list(&version["selectableFields"]);
    if fields.is_empty() || version["schema"]["openAPIV3Schema"].is_null() {
        return;
    }
    // Errors of the schema itself are reported elsewhere.
    let Ok(schema) = Schema::from_openapi(&version["schema"]["openAPIV3Schema"]) else { return };
    let mut seen = Vec::new();
    for (n, field) in fields.iter().enumerate() {
        let at = format!("{path}[{n}].jsonPath");
        let given = str(&field["jsonPath"]);
        if given.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let found = match field_path::resolve(given, &schema, false) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(at, given, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if found.steps.first().is_some_and(|step| step.name == "metadata") {
            errors.push(FieldError::invalid(at.as_str(), given, "must not point to fields in metadata"));
        }
        let ty = found.schema.and_then(|schema| schema.ty);
        if !matches!(ty, Some(Type::String | Type::Boolean | Type::Integer)) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(at.as_str(), given, detail));
        }
        let resolved = found.path("");
        if seen.contains(&resolved) {
            errors.push(FieldError::duplicate(at, given));
        } else {
            seen.push(resolved);
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS {
        errors.push(FieldError::too_many(path, seen.len() as u64, MAX_SELECTABLE_FIELDS as u64));
    }
}

fn check_names(names: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mixed = "may have mixed case, but should otherwise match: ";
    for (field, any_case) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let name = str(&names[field]);
        let checked = if any_case { name.to_lowercase() } else { name.to_owned() };
        let problems = dns_1035_label(&checked);
        if !name.is_empty() && !problems.is_empty() {
            let prefix = if any_case { mixed } else { "" };
            let detail = format!("{prefix}{}", problems.join(","));
            errors.push(FieldError::invalid(format!("{path}.{field}"), name, detail));
        }
    }
    let kind = str(&names["kind"]);
    for (field, after) in [("shortNames", false), ("categories", true)] {
        if after && !kind.is_empty() && kind == str(&names["listKind"]) {
            let detail = "kind and listKind may not be the same";
            errors.push(FieldError::invalid(format!("{path}.listKind"), kind, detail));
        }
        for (n, name) in list(&names[field]).iter().enumerate() {
            let problems = dns_1035_label(str(name));
            if !problems.is_empty() {
                errors.push(FieldError::invalid(format!("{path}.{field}[{n}]"), str(name), problems.join(",")));
            }
        }
    }
}

fn check_conversion(conversion: &Value, errors: &mut Vec<FieldError>) {
    if conversion.is_null() {
        return;
    }
    let at = "spec.conversion.strategy";
    match str(&conversion["strategy"]) {
        "" => errors.push(FieldError::required(at, "")),
        "None" => {}
        "Webhook" => errors.push(FieldError::forbidden(
            at,
            "conversion webhooks are not supported by this server; use None, which changes only the apiVersion",
        )),
        other => errors.push(FieldError::not_supported(at, other, &["None", "Webhook"])),
    }
    if str(&conversion["strategy"]) != "Webhook" && !conversion["webhook"].is_null() {
        let detail = "should not be set when strategy is not set to Webhook";
        if !conversion["webhook"]["clientConfig"].is_null() {
            errors.push(FieldError::forbidden("spec.conversion.webhookClientConfig", detail));
        }
        if !list(&conversion["webhook"]["conversionReviewVersions"]).is_empty() {
            errors.push(FieldError::forbidden("spec.conversion.conversionReviewVersions", detail));
        }
    }
}

fn check_immutable(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let established = list(&old["status"]["conditions"])
        .iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    let always = [("/spec/group", "spec.group"), ("/spec/names/plural", "spec.names.plural")];
    let then = [("/spec/scope", "spec.scope"), ("/spec/names/kind", "spec.names.kind")];
    let fields = then.iter().filter(|_| established).chain(&always);
    for (pointer, field) in fields {
        let value = new.pointer(pointer);
        if value != old.pointer(pointer) {
            let value = value.cloned().unwrap_or_else(|| "".into());
            errors.push(FieldError::invalid(*field, value, "field is immutable"));
        }
    }
}

fn check_stored_versions(crd: &Value, errors: &mut Vec<FieldError>) {
    let at = "status.storedVersions";
    let stored = list(&crd["status"]["storedVersions"]);
    if stored.is_empty() {
        errors.push(FieldError::invalid(at, Value::Null, "must have at least one stored version"));
        return;
    }
    for version in versions(crd).filter(|version| version["storage"] == true) {
        if !stored.contains(&version["name"]) {
            let detail = format!("must have the storage version {}", str(&version["name"]));
            errors.push(FieldError::invalid(at, stored.to_vec(), detail));
        }
    }
    for (n, name) in stored.iter().enumerate() {
        if !versions(crd).any(|version| version["name"] == *name) {
            let v = str(name);
            let detail = format!(
                "missing from spec.versions; {v} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {v} and removes {v} from status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{at}[{n}]"), v, detail));
        }
    }
}

/// Whether a group belongs to the Kubernetes project.
pub(super) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}")))
}

/// The state of the approval annotation, with the server's message.
#[derive(PartialEq)]
pub(super) enum Approval {
    Missing(String),
    Invalid(String),
    Bypassed(String),
    Approved(String),
}

pub(super) fn approval(annotation: &str) -> Approval {
    let name = text::quote(APPROVED);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let is_url = annotation.contains("://") && formats::holds("uri", annotation);
    if annotation.is_empty() {
        Approval::Missing(format!("protected groups must have approval annotation {name}, {see}"))
    } else if annotation.starts_with("unapproved") {
        Approval::Bypassed(format!("not approved: {}", text::quote(annotation)))
    } else if is_url {
        Approval::Approved(format!("approved in {annotation}"))
    } else {
        Approval::Invalid(format!(
            "protected groups must have approval annotation {name} with either a URL or a reason starting with \"unapproved\", {see}"
        ))
    }
}

fn check_approval(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if !is_protected(str(&new["spec"]["group"])) {
        return;
    }
    let state = |crd: &Value| approval(str(&crd["metadata"]["annotations"][APPROVED]));
    let found = state(new);
    let same = |old: &Value| std::mem::discriminant(&state(old)) == std::mem::discriminant(&found);
    if old.is_some_and(same) {
        return;
    }
    let at = format!("metadata.annotations[{APPROVED}]");
    match found {
        Approval::Missing(why) => errors.push(FieldError::required(at, why)),
        Approval::Invalid(why) => {
            errors.push(FieldError::invalid(at, str(&new["metadata"]["annotations"][APPROVED]), why));
        }
        Approval::Bypassed(_) | Approval::Approved(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd() -> Value {
        let mut crd = json!({"metadata": {"name": "things.x.io"}, "spec": {
            "group": "x.io", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": {"color": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}}}}}}]}});
        super::super::default(&mut crd);
        crd
    }

    fn errors(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut crd = crd();
        change(&mut crd);
        validate(&crd, None).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_definition_has_no_errors() {
        assert_eq!(errors(|_| {}), [] as [&str; 0]);
    }

    #[test]
    fn the_name_is_plural_and_group() {
        assert_eq!(
            errors(|crd| crd["metadata"]["name"] = "other.x.io".into()),
            [r#"metadata.name: Invalid value: "other.x.io": must be spec.names.plural+"."+spec.group"#]
        );
    }

    #[test]
    fn exactly_one_version_is_stored() {
        let found = errors(|crd| crd["spec"]["versions"][0]["storage"] = false.into());
        assert!(found[0].starts_with("spec.versions: Invalid value: "), "{found:?}");
        assert!(found[0].ends_with("must have exactly one version marked as storage version"));
    }

    #[test]
    fn a_schema_shared_by_all_versions_is_reported_at_the_top() {
        assert_eq!(
            errors(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({})),
            [
                "spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields"
            ]
        );
    }

    #[test]
    fn the_patterns_of_a_definition_are_limited_together() {
        let text = json!({"type": "string", "pattern": "^.{1000}$"});
        let why = "Forbidden: the patterns of this CustomResourceDefinition together take more than 2000000 units";
        let found = errors(|crd| {
            let properties = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
            for n in 0..60 {
                properties[format!("p{n}")] = text.clone();
            }
        });
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("spec.validation.openAPIV3Schema: {why}")), "{found:?}");
        let found = errors(|crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["p"] = text.clone();
            let first = crd["spec"]["versions"][0].clone();
            for n in 2..=60 {
                let mut version = first.clone();
                version["name"] = format!("v{n}").into();
                version["storage"] = false.into();
                crd["spec"]["versions"].as_array_mut().unwrap().push(version);
            }
        });
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("spec.versions: {why}")), "{found:?}");
        // A version that an update adds counts with those that stay.
        let mut old = crd();
        for n in 0..40 {
            old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][format!("p{n}")] = text.clone();
        }
        assert_eq!(validate(&old, None), []);
        let mut new = old.clone();
        new["spec"]["names"]["shortNames"] = json!(["other"]);
        assert_eq!(validate(&new, Some(&old)), []);
        for same in [true, false] {
            let mut new = old.clone();
            let mut version = old["spec"]["versions"][0].clone();
            (version["name"], version["storage"]) = ("v2".into(), false.into());
            if !same {
                version["schema"]["openAPIV3Schema"]["properties"]["q"] = json!({"type": "string"});
            }
            new["spec"]["versions"].as_array_mut().unwrap().push(version);
            let found: Vec<_> = validate(&new, Some(&old)).iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(why), "{found:?}");
        }
    }

    #[test]
    fn columns_and_scale_paths_are_checked() {
        let found = errors(|crd| {
            crd["spec"]["versions"][0]["additionalPrinterColumns"] =
                json!([{"name": "A", "type": "colour", "jsonPath": "spec"}]);
            crd["spec"]["versions"][0]["subresources"] =
                json!({"scale": {"specReplicasPath": ".status.n", "statusReplicasPath": ".status.n"}});
        });
        assert_eq!(
            found,
            [
                r#"spec.subresources.scale.specReplicasPath: Invalid value: ".status.n": should be a json path under .spec"#,
                r#"spec.additionalPrinterColumns[0].type: Invalid value: "colour": must be one of boolean,date,integer,number,string"#,
                r#"spec.additionalPrinterColumns[0].JSONPath: Invalid value: "spec": must be a simple json path starting with ."#,
            ]
        );
    }

    #[test]
    fn selectable_fields_lead_to_scalars() {
        let found = errors(|crd| {
            crd["spec"]["versions"][0]["selectableFields"] =
                json!([{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.list"}, {"jsonPath": ".spec.no"}]);
        });
        assert_eq!(
            found,
            [
                r#"spec.selectableFields[1].jsonPath: Invalid value: ".spec.list": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."#,
                r#"spec.selectableFields[2].jsonPath: Invalid value: ".spec.no": is an invalid path: does not refer to a valid field"#,
            ]
        );
    }

    #[test]
    fn webhook_conversion_is_refused() {
        let found = errors(|crd| crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {}}));
        assert!(found[0].contains("conversion webhooks"), "{found:?}");
    }

    #[test]
    fn a_group_of_kubernetes_needs_approval() {
        let found = errors(|crd| {
            crd["spec"]["group"] = "x.k8s.io".into();
            crd["metadata"]["name"] = "things.x.k8s.io".into();
        });
        assert!(found[0].starts_with("metadata.annotations[api-approved.kubernetes.io]: Required value"), "{found:?}");
    }

    #[test]
    fn the_plural_never_changes_and_the_kind_not_once_established() {
        let mut old = crd();
        old["status"] = super::super::status(&old, [].iter(), jiff::Timestamp::UNIX_EPOCH);
        let mut new = old.clone();
        new["spec"]["names"]["kind"] = "Other".into();
        new["spec"]["group"] = "y.io".into();
        let fields: Vec<String> = validate(&new, Some(&old)).into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["spec.names.kind", "spec.group"]);
    }

    #[test]
    fn a_stored_version_may_not_vanish() {
        let found = errors(|crd| crd["status"]["storedVersions"] = json!(["v1", "v0"]));
        assert!(
            found[0].starts_with(r#"status.storedVersions[1]: Invalid value: "v0": missing from spec.versions"#),
            "{found:?}"
        );
    }
}

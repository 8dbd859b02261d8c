//! That defaults are values which their own schema accepts and would not prune.

use serde_json::{Value, json};

use crate::props::Props;
use crate::{FieldError, embedded, prune, text, validate};

/// Defaults that are invalid or have unknown fields.
pub(super) fn check(props: &Props, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    visit(props, true, None, path, &mut errors);
    errors
}

/// `meta` is the place of the node inside an object's apiVersion, kind or metadata.
fn visit(p: &Props, is_resource: bool, meta: Option<&[String]>, path: &str, errors: &mut Vec<FieldError>) {
    let meta = if is_resource || p.embedded_resource { None } else { meta };
    if let Some(default) = &p.default {
        check_default(p, default, meta, &text::child(path, "default"), errors);
    }
    if let Some(item) = p.item() {
        // Items of metadata's lists (finalizers, ownerReferences) have no place that a default could take.
        visit(item, false, None, &text::child(path, "items"), errors);
    }
    for (name, field) in &p.properties {
        let below = text::key(&text::child(path, "properties"), name);
        let is_meta =
            (is_resource || p.embedded_resource) && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        let place = match meta {
            Some(outer) => Some([outer, std::slice::from_ref(name)].concat()),
            None => is_meta.then(|| vec![name.clone()]),
        };
        visit(field, false, place.as_deref(), &below, errors);
    }
}

fn check_default(p: &Props, default: &Value, meta: Option<&[String]>, path: &str, errors: &mut Vec<FieldError>) {
    let schema = p.to_schema();
    if let Some(place) = meta {
        let mut object = json!({"apiVersion": "validation/v1", "kind": "Validation"});
        let mut slot = &mut object;
        for name in place {
            if !slot.is_object() {
                *slot = json!({});
            }
            slot = match slot {
                Value::Object(fields) => fields.entry(name.clone()).or_insert(Value::Null),
                _ => return,
            };
        }
        *slot = default.clone();
        let problems = embedded::check_resource(&object, "");
        if !problems.is_empty() {
            let all = problems.iter().map(ToString::to_string).collect::<Vec<_>>();
            let all = if all.len() == 1 { all.join("") } else { format!("[{}]", all.join(", ")) };
            errors.push(FieldError::invalid(path, default.clone(), format!("must result in valid metadata: {all}")));
            return;
        }
        errors.extend(validate(&schema, default, path));
        return;
    }
    let mut pruned = default.clone();
    prune(&schema, &mut pruned, schema.embedded_resource);
    if pruned != *default {
        errors.push(FieldError::invalid(path, default.clone(), "must not have unknown fields"));
    }
    let problems = embedded::check(&schema, default, path);
    if problems.is_empty() {
        errors.extend(validate(&schema, default, path));
    } else {
        errors.extend(problems);
    }
}

//! The values of an extension, validated by its schema.

use fleetwright_api::{Extension, ExtensionChoice};
use fleetwright_schema::{Schema, default, prune, prune_nulls, structural, validate};
use fleetwright_syntax::regexp::{TOTAL_EFFORT_LIMIT, total_too_large};
use serde_json::{Value, json};

use super::ExtensionError;

/// The values of that extension: those of the cluster, with the defaults of the schema.
pub(super) fn values(extension: &Extension, choice: Option<&ExtensionChoice>) -> Result<Value, ExtensionError> {
    let mistake = |place: &str, message: String, chosen| ExtensionError {
        extension: extension.name.clone(),
        place: place.to_owned(),
        message,
        chosen,
    };
    let mut values = choice.and_then(|choice| choice.values.clone()).unwrap_or_else(|| json!({}));
    let Some(schema) = &extension.values_schema else {
        let none = values.as_object().is_some_and(serde_json::Map::is_empty);
        let message = "this extension takes no values; remove them".to_owned();
        return if none { Ok(values) } else { Err(mistake("values", message, true)) };
    };
    let wrong = |message| mistake("valuesSchema", message, false);
    let mut schema: Value = serde_saphyr::from_str(schema).map_err(|error| wrong(format!("invalid YAML: {error}")))?;
    if schema["type"] != "object" {
        return Err(wrong("the schema must have type: object".to_owned()));
    }
    // Unknown schema keywords, which clusters ignore, are mostly typing errors.
    if let Some(unknown) = structural::prune_unknown(&mut schema, "").first() {
        return Err(wrong(format!("unknown schema keyword {}", unknown.trim_start_matches('.'))));
    }
    if structural::pattern_effort(&schema) > TOTAL_EFFORT_LIMIT {
        return Err(wrong(total_too_large("this schema", TOTAL_EFFORT_LIMIT)));
    }
    let schema = Schema::from_openapi(&schema).map_err(wrong)?;
    prune_nulls(&schema, &mut values);
    default(&schema, &mut values);
    let known = || schema.properties.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let unknown = ["apiVersion", "kind", "metadata"]
        .into_iter()
        .find(|name| values.get(name).is_some() && !schema.properties.contains_key(*name) && !schema.preserve_unknown);
    let unknown = unknown.map(str::to_owned).or_else(|| prune(&schema, &mut values, false).first().cloned());
    if let Some(unknown) = unknown {
        return Err(mistake("values", format!("unknown value {unknown}; known values: {}", known()), true));
    }
    match validate(&schema, &values, "").first() {
        None => Ok(values),
        Some(error) => {
            let field = error.field.trim_start_matches('.');
            let field = if field.is_empty() { "values" } else { field };
            Err(mistake("values", format!("{field}: {}", error.detail), true))
        }
    }
}

//! Definitions that the server refuses, and why.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Cause, DEFINITIONS, cause, refused, spec_cause, with_a, with_properties, with_spec};
use crate::{Case, Crd, Ctx, ServerKind};

pub(super) fn cases() -> Vec<Case> {
    cases!["crds";
        a_definition_without_a_storage_version_is_refused,
        a_definition_with_two_storage_versions_is_refused,
        a_definition_names_each_version_once,
        a_definition_is_named_by_plural_and_group,
        a_version_without_a_schema_is_refused,
        the_names_of_a_definition_are_labels,
        a_group_is_a_domain,
        a_scope_is_one_of_two,
        a_protected_group_needs_an_approval,
        a_schema_has_a_type_everywhere,
        a_schema_has_no_types_within_logical_junctors,
        a_schema_keeps_to_the_structural_subset,
        the_schema_of_metadata_says_little,
        preserving_unknown_fields_is_set_in_the_schema,
        a_default_keeps_to_its_schema,
        a_pattern_is_a_regular_expression,
        a_list_type_is_one_that_exists_and_fits,
        the_keys_of_a_list_map_are_its_items_fields,
        a_set_has_comparable_items,
        an_embedded_resource_is_an_object_with_fields,
        an_unknown_conversion_is_refused,
        a_conversion_webhook_is_refused(differs "the embedded server has no webhooks and says so"),
        printer_columns_are_checked,
        scale_paths_are_checked,
        selectable_fields_lead_to_scalars,
        a_deprecation_warning_needs_a_deprecated_version,
        an_unknown_format_is_warned_of,
        an_unknown_keyword_is_warned_of_and_dropped,
    ]
}

/// `spec.versions` as errors show it, for versions with a common schema.
fn shown(versions: &[(&str, bool)]) -> String {
    let versions: Vec<String> = versions
        .iter()
        .map(|(name, storage)| {
            format!(
                "{{\"Name\":\"{name}\",\"Served\":true,\"Storage\":{storage},\"Deprecated\":false,\
                 \"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\
                 \"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}"
            )
        })
        .collect();
    format!("[{}]", versions.join(","))
}

fn one_storage_version(versions: &[(&str, bool)]) -> Cause {
    let shown = shown(versions);
    let message = format!("Invalid value: {shown}: must have exactly one version marked as storage version");
    cause("Invalid", "spec.versions", &message)
}

/// A label's rule, as errors tell it.
const LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                     character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
                     validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

async fn a_definition_without_a_storage_version_is_refused(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["storage"] = json!(false);
    let stored =
        cause("Invalid", "status.storedVersions", "Invalid value: null: must have at least one stored version");
    refused(&ctx, &crd, &[one_storage_version(&[("v1", false)]), stored]).await?;
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["versions"] = json!([]);
    let stored =
        cause("Invalid", "status.storedVersions", "Invalid value: null: must have at least one stored version");
    refused(&ctx, &crd, &[one_storage_version(&[]), stored]).await
}

/// Adds a copy of the first version.
fn add_version(crd: &mut Crd, name: &str, storage: bool) {
    let mut version = crd.version().clone();
    version["name"] = json!(name);
    version["storage"] = json!(storage);
    if let Some(versions) = crd.body["spec"]["versions"].as_array_mut() {
        versions.push(version);
    }
}

async fn a_definition_with_two_storage_versions_is_refused(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    add_version(&mut crd, "v2", true);
    let message = "Invalid value: [\"v1\"]: must have the storage version v2";
    let stored = cause("Invalid", "status.storedVersions", message);
    refused(&ctx, &crd, &[one_storage_version(&[("v1", true), ("v2", true)]), stored]).await
}

async fn a_definition_names_each_version_once(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    add_version(&mut crd, "v1", false);
    let shown = shown(&[("v1", true), ("v1", false)]);
    let message = format!("Invalid value: {shown}: must contain unique version names");
    refused(&ctx, &crd, &[cause("Invalid", "spec.versions", &message)]).await?;
    let mut crd = Crd::open(&ctx);
    crd.version()["name"] = json!("V_1");
    let message = format!("Invalid value: \"V_1\": {LABEL}");
    let wanted = [cause("Invalid", "spec.versions[0].name", &message), cause("Invalid", "spec.version", &message)];
    refused(&ctx, &crd, &wanted).await
}

async fn a_definition_is_named_by_plural_and_group(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    let name = format!("gadgets.{}", crd.group);
    crd.body["metadata"]["name"] = json!(name);
    let message = format!("Invalid value: \"{name}\": must be spec.names.plural+\".\"+spec.group");
    refused(&ctx, &crd, &[cause("Invalid", "metadata.name", &message)]).await
}

async fn a_version_without_a_schema_is_refused(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["schema"] = Value::Null;
    refused(&ctx, &crd, &[cause("Required", "spec.versions[0].schema.openAPIV3Schema", "Required value")]).await
}

async fn the_names_of_a_definition_are_labels(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["names"] = json!({
        "plural": "widgets", "singular": "A", "kind": "not a kind", "listKind": "WidgetList",
        "shortNames": ["a_b"], "categories": ["C"],
    });
    let message = |value: &str| format!("Invalid value: \"{value}\": {LABEL}");
    let kind = format!("Invalid value: \"not a kind\": may have mixed case, but should otherwise match: {LABEL}");
    let wanted = [
        cause("Invalid", "spec.names.singular", &message("A")),
        cause("Invalid", "spec.names.kind", &kind),
        cause("Invalid", "spec.names.shortNames[0]", &message("a_b")),
        cause("Invalid", "spec.names.categories[0]", &message("C")),
    ];
    refused(&ctx, &crd, &wanted).await?;
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["names"]["listKind"] = json!("Widget");
    let message = "Invalid value: \"Widget\": kind and listKind may not be the same";
    refused(&ctx, &crd, &[cause("Invalid", "spec.names.listKind", message)]).await
}

async fn a_group_is_a_domain(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["group"] = json!("foo");
    crd.body["metadata"]["name"] = json!("widgets.foo");
    let message = "Invalid value: \"foo\": should be a domain with at least one dot";
    refused(&ctx, &crd, &[cause("Invalid", "spec.group", message)]).await
}

async fn a_scope_is_one_of_two(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["scope"] = json!("Global");
    let message = "Unsupported value: \"Global\": supported values: \"Cluster\", \"Namespaced\"";
    refused(&ctx, &crd, &[cause("NotSupported", "spec.scope", message)]).await?;
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["scope"] = Value::Null;
    refused(&ctx, &crd, &[cause("Required", "spec.scope", "Required value")]).await
}

async fn a_protected_group_needs_an_approval(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["group"] = json!("fleet.k8s.io");
    crd.body["metadata"]["name"] = json!("widgets.fleet.k8s.io");
    let message = "Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see \
                   https://github.com/kubernetes/enhancements/pull/1111";
    refused(&ctx, &crd, &[cause("Required", "metadata.annotations[api-approved.kubernetes.io]", message)]).await
}

async fn a_schema_has_a_type_everywhere(ctx: Ctx) -> Result<()> {
    let crd = with_properties(&ctx, json!({"a": {}, "b": {"type": "array", "items": {}}}));
    let field = "Required value: must not be empty for specified object fields";
    let item = "Required value: must not be empty for specified array items";
    let wanted = [
        spec_cause("Required", ".properties[a].type", field),
        spec_cause("Required", ".properties[b].items.type", item),
    ];
    refused(&ctx, &crd, &wanted).await?;
    let mut crd = Crd::open(&ctx);
    crd.version()["schema"]["openAPIV3Schema"]["type"] = json!("string");
    let root = "spec.validation.openAPIV3Schema.type";
    let with_status = "Invalid value: \"string\": only \"object\" is allowed as the type at the root of the schema if the \
                       status subresource is enabled";
    let wanted = [
        cause("Invalid", root, with_status),
        cause("Invalid", root, "Invalid value: \"string\": must be object at the root"),
    ];
    refused(&ctx, &crd, &wanted).await
}

async fn a_schema_has_no_types_within_logical_junctors(ctx: Ctx) -> Result<()> {
    let junctor = json!([{"type": "object", "properties": {"zz": {"type": "string"}}}]);
    let crd = with_spec(&ctx, json!({"type": "object", "anyOf": junctor}));
    let message = "Forbidden: must be empty to be structural";
    let wanted = [
        spec_cause("Forbidden", ".anyOf[0].properties[zz].type", message),
        spec_cause("Forbidden", ".anyOf[0].type", message),
    ];
    refused(&ctx, &crd, &wanted).await
}

async fn a_schema_keeps_to_the_structural_subset(ctx: Ctx) -> Result<()> {
    let text = json!({"type": "string"});
    let bad: [(Value, Cause); 6] = [
        (
            json!({"type": "array", "items": [text]}),
            spec_cause(
                "Forbidden",
                ".properties[a].items",
                "Forbidden: items must be a schema object and not an array",
            ),
        ),
        (json!({"type": "array"}), spec_cause("Required", ".properties[a].items", "Required value: must be specified")),
        (
            json!({"type": "object", "properties": {"b": text}, "additionalProperties": text}),
            spec_cause(
                "Forbidden",
                ".properties[a].additionalProperties",
                "Forbidden: additionalProperties and properties are mutual exclusive",
            ),
        ),
        (
            json!({"type": "array", "items": text, "uniqueItems": true}),
            spec_cause(
                "Forbidden",
                ".properties[a].uniqueItems",
                "Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ),
        ),
        (json!({"$ref": "#/x"}), spec_cause("Forbidden", ".properties[a].$ref", "Forbidden: $ref is not supported")),
        (
            json!({"type": "thing"}),
            spec_cause(
                "NotSupported",
                ".properties[a].type",
                "Unsupported value: \"thing\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \
                 \"object\", \"string\"",
            ),
        ),
    ];
    for (schema, wanted) in bad {
        refused(&ctx, &with_a(&ctx, schema), &[wanted]).await?;
    }
    Ok(())
}

async fn the_schema_of_metadata_says_little(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["schema"]["openAPIV3Schema"]["properties"]["metadata"] =
        json!({"type": "object", "properties": {"labels": {"type": "object"}}});
    let message =
        "Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";
    let wanted = [cause("Forbidden", "spec.validation.openAPIV3Schema.properties[metadata]", message)];
    refused(&ctx, &crd, &wanted).await
}

async fn preserving_unknown_fields_is_set_in_the_schema(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["preserveUnknownFields"] = json!(true);
    let message = "Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
    refused(&ctx, &crd, &[cause("Invalid", "spec.preserveUnknownFields", message)]).await?;
    let crd = with_spec(&ctx, json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}));
    let message = "Invalid value: false: must be true or undefined";
    refused(&ctx, &crd, &[spec_cause("Invalid", ".x-kubernetes-preserve-unknown-fields", message)]).await
}

async fn a_default_keeps_to_its_schema(ctx: Ctx) -> Result<()> {
    let bad = [
        (
            json!({"type": "string", "default": 5}),
            "TypeInvalid",
            "Invalid value: \"integer\":  in body must be of type string: \"integer\"",
        ),
        (
            json!({"type": "integer", "minimum": 3, "default": 1}),
            "Invalid",
            "Invalid value: 1:  in body should be greater than or equal to 3",
        ),
        (
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "default": {"y": 1}}),
            "Invalid",
            "Invalid value: {\"y\":1}: must not have unknown fields",
        ),
    ];
    for (schema, reason, message) in bad {
        let wanted = spec_cause(reason, ".properties[a].default", message);
        refused(&ctx, &with_a(&ctx, schema), &[wanted]).await?;
    }
    Ok(())
}

async fn a_pattern_is_a_regular_expression(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "string", "pattern": "["}));
    let message = "Invalid value: \"[\": must be a valid regular expression, but isn't: error parsing regexp: missing \
                   closing ]: `[`";
    refused(&ctx, &crd, &[spec_cause("Invalid", ".properties[a].pattern", message)]).await
}

async fn a_list_type_is_one_that_exists_and_fits(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"}));
    let message = "Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"";
    refused(&ctx, &crd, &[spec_cause("NotSupported", ".properties[a].x-kubernetes-list-type", message)]).await?;
    let crd = with_a(&ctx, json!({"type": "object", "x-kubernetes-list-type": "atomic"}));
    let message = "Invalid value: \"object\": must be array if x-kubernetes-list-type is specified";
    refused(&ctx, &crd, &[spec_cause("Invalid", ".properties[a].type", message)]).await?;
    let crd = with_a(&ctx, json!({"type": "object", "x-kubernetes-map-type": "x"}));
    let message = "Unsupported value: \"x\": supported values: \"atomic\", \"granular\"";
    refused(&ctx, &crd, &[spec_cause("NotSupported", ".properties[a].x-kubernetes-map-type", message)]).await
}

async fn the_keys_of_a_list_map_are_its_items_fields(ctx: Ctx) -> Result<()> {
    let item = json!({"type": "object", "properties": {"n": {"type": "string"}}});
    let list = |item: &Value, keys: Option<&str>| {
        let mut list = json!({"type": "array", "items": item, "x-kubernetes-list-type": "map"});
        if let Some(key) = keys {
            list["x-kubernetes-list-map-keys"] = json!([key]);
        }
        with_a(&ctx, list)
    };
    let bad = [
        (
            list(&item, None),
            spec_cause(
                "Required",
                ".properties[a].x-kubernetes-list-map-keys",
                "Required value: must not be empty if x-kubernetes-list-type is map",
            ),
        ),
        (
            list(&item, Some("z")),
            spec_cause(
                "Invalid",
                ".properties[a].x-kubernetes-list-map-keys",
                "Invalid value: [\"z\"]: entries must all be names of item properties",
            ),
        ),
        (
            list(&item, Some("n")),
            spec_cause(
                "Required",
                ".properties[a].items.properties[n].default",
                "Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
                 required property",
            ),
        ),
        (
            list(&json!({"type": "string"}), Some("n")),
            spec_cause(
                "Invalid",
                ".properties[a].items.type",
                "Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
            ),
        ),
    ];
    for (crd, wanted) in bad {
        refused(&ctx, &crd, &[wanted]).await?;
    }
    Ok(())
}

async fn a_set_has_comparable_items(ctx: Ctx) -> Result<()> {
    let set = |items: Value| with_a(&ctx, json!({"type": "array", "items": items, "x-kubernetes-list-type": "set"}));
    let message = "Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set";
    let crd = set(json!({"type": "object", "properties": {"n": {"type": "string"}}}));
    refused(&ctx, &crd, &[spec_cause("Invalid", ".properties[a].items.x-kubernetes-map-type", message)]).await?;
    let message = "Forbidden: cannot be nullable when x-kubernetes-list-type is set";
    let crd = set(json!({"type": "string", "nullable": true}));
    refused(&ctx, &crd, &[spec_cause("Forbidden", ".properties[a].items.nullable", message)]).await
}

async fn an_embedded_resource_is_an_object_with_fields(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "string", "x-kubernetes-embedded-resource": true}));
    let fields = "Required value: must not be empty if x-kubernetes-embedded-resource is true without \
                  x-kubernetes-preserve-unknown-fields";
    let kind = "Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true";
    let wanted = [
        spec_cause("Required", ".properties[a].properties", fields),
        spec_cause("Invalid", ".properties[a].type", kind),
    ];
    refused(&ctx, &crd, &wanted).await
}

async fn an_unknown_conversion_is_refused(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["conversion"] = json!({"strategy": "Magic"});
    let message = "Unsupported value: \"Magic\": supported values: \"None\", \"Webhook\"";
    refused(&ctx, &crd, &[cause("NotSupported", "spec.conversion.strategy", message)]).await
}

async fn a_conversion_webhook_is_refused(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.body["spec"]["conversion"] = json!({"strategy": "Webhook"});
    let wanted = match ctx.kind() {
        // The real server accepts webhooks; this one is refused because it is incomplete.
        ServerKind::Real => vec![
            cause(
                "Required",
                "spec.conversion.webhookClientConfig",
                "Required value: required when strategy is set to Webhook",
            ),
            cause("Required", "spec.conversion.conversionReviewVersions", "Required value"),
        ],
        ServerKind::Embedded => vec![cause(
            "Forbidden",
            "spec.conversion.strategy",
            "Forbidden: conversion webhooks are not supported by this server; use None, which changes only the apiVersion",
        )],
    };
    refused(&ctx, &crd, &wanted).await
}

async fn printer_columns_are_checked(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["additionalPrinterColumns"] = json!([
        {"name": "A", "type": "colour", "format": "zz", "jsonPath": "spec"},
        {"name": "", "type": "string", "jsonPath": ""},
    ]);
    let at = |field: &str| format!("spec.additionalPrinterColumns{field}");
    let ty = "Invalid value: \"colour\": must be one of boolean,date,integer,number,string";
    let format = "Invalid value: \"zz\": must be one of byte,date,date-time,double,float,int32,int64,password";
    let path = "Invalid value: \"spec\": must be a simple json path starting with .";
    let wanted = [
        cause("Invalid", &at("[0].type"), ty),
        cause("Invalid", &at("[0].format"), format),
        cause("Invalid", &at("[0].JSONPath"), path),
        cause("Required", &at("[1].name"), "Required value"),
        cause("Required", &at("[1].JSONPath"), "Required value"),
    ];
    refused(&ctx, &crd, &wanted).await
}

async fn scale_paths_are_checked(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["subresources"]["scale"] =
        json!({"specReplicasPath": ".status.n", "statusReplicasPath": "x", "labelSelectorPath": ".spec[0]"});
    let at = |field: &str| format!("spec.subresources.scale.{field}");
    let spec = "Invalid value: \".status.n\": should be a json path under .spec";
    let status = "Invalid value: \"x\": must be a simple json path starting with .";
    let selector = "Invalid value: \".spec[0]\": should be a json path under either .spec or .status";
    let wanted = [
        cause("Invalid", &at("specReplicasPath"), spec),
        cause("Invalid", &at("statusReplicasPath"), status),
        cause("Invalid", &at("labelSelectorPath"), selector),
    ];
    refused(&ctx, &crd, &wanted).await
}

async fn selectable_fields_lead_to_scalars(ctx: Ctx) -> Result<()> {
    let mut crd =
        with_properties(&ctx, json!({"a": {"type": "string"}, "l": {"type": "array", "items": {"type": "string"}}}));
    let paths = [".spec.a", ".spec.a", ".spec.l", ".spec.no", ".metadata.name", ""];
    crd.version()["selectableFields"] = paths.iter().map(|path| json!({"jsonPath": path})).collect();
    let at = |n: usize| format!("spec.selectableFields[{n}].jsonPath");
    let kind = "Invalid value: \".spec.l\": must point to a field of type string, boolean or integer. Enum string fields and \
                strings with formats are allowed.";
    let unknown =
        |path: &str| format!("Invalid value: \"{path}\": is an invalid path: does not refer to a valid field");
    let wanted = [
        cause("Duplicate", &at(1), "Duplicate value: \".spec.a\""),
        cause("Invalid", &at(2), kind),
        cause("Invalid", &at(3), &unknown(".spec.no")),
        cause("Invalid", &at(4), &unknown(".metadata.name")),
        cause("Required", &at(5), "Required value"),
    ];
    refused(&ctx, &crd, &wanted).await
}

async fn a_deprecation_warning_needs_a_deprecated_version(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["deprecationWarning"] = json!("x");
    let message = "Invalid value: \"x\": can only be set for deprecated versions";
    refused(&ctx, &crd, &[cause("Invalid", "spec.versions[0].deprecationWarning", message)]).await
}

async fn an_unknown_format_is_warned_of(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "string", "format": "colour"}));
    let reply = ctx.post(DEFINITIONS, &crd.body).await?;
    assert_eq!(reply.warnings(), ["unrecognized format \"colour\""]);
    reply.code(201)?;
    Ok(())
}

async fn an_unknown_keyword_is_warned_of_and_dropped(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["schema"]["openAPIV3Schema"]["colour"] = json!("red");
    let reply = ctx.post(DEFINITIONS, &crd.body).await?;
    assert_eq!(reply.warnings(), ["unknown field \"spec.versions[0].schema.openAPIV3Schema.colour\""]);
    let made = reply.code(201)?;
    assert_eq!(made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["colour"], Value::Null);
    Ok(())
}

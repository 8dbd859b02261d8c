use super::*;
use serde_json::json;

fn errors(schema: Value) -> Vec<String> {
    check(&schema, "s", Options::default()).iter().map(ToString::to_string).collect()
}

fn field(schema: Value) -> Vec<String> {
    errors(json!({"type": "object", "properties": {"f": schema}}))
}

#[test]
fn a_good_schema_has_no_errors() {
    let schema = json!({
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}},
            "spec": {"type": "object", "required": ["n"], "default": {"n": 1}, "properties": {
                "n": {"type": "integer", "minimum": 1},
                "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}
            }, "oneOf": [{"required": ["n"]}, {"properties": {"n": {"minimum": 2}}, "required": ["port"]}]}
        }
    });
    assert_eq!(errors(schema), [] as [&str; 0]);
}

#[test]
fn every_field_needs_a_type() {
    assert_eq!(errors(json!({})), ["s.type: Required value: must not be empty at the root"]);
    assert_eq!(
        field(json!({})),
        ["s.properties[f].type: Required value: must not be empty for specified object fields"]
    );
    assert_eq!(
        field(json!({"type": "array", "items": {}})),
        ["s.properties[f].items.type: Required value: must not be empty for specified array items"]
    );
    assert_eq!(field(json!({"type": "array"})), ["s.properties[f].items: Required value: must be specified"]);
}

#[test]
fn quantifiers_may_not_describe_structure() {
    let found = field(json!({"type": "object", "properties": {"a": {"type": "string"}},
        "anyOf": [{"type": "object", "description": "x", "properties": {"b": {"minLength": 1}}}]}));
    assert_eq!(
        found,
        [
            "s.properties[f].anyOf[0].description: Forbidden: must be empty to be structural",
            "s.properties[f].anyOf[0].type: Forbidden: must be empty to be structural",
        ]
    );
    let incomplete = errors(json!({"type": "object", "anyOf": [{"properties": {"b": {"minLength": 1}}}]}));
    assert_eq!(incomplete, ["s.properties[b]: Required value: because it is defined in s.anyOf[0].properties[b]"]);
}

#[test]
fn what_no_crd_may_use_is_forbidden() {
    assert_eq!(
        field(json!({"type": "string", "$ref": "#/x"})),
        ["s.properties[f].$ref: Forbidden: $ref is not supported"]
    );
    assert_eq!(
        field(json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}})),
        [
            "s.properties[f].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        ]
    );
    assert_eq!(
        field(
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}})
        ),
        ["s.properties[f].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"]
    );
    assert_eq!(
        field(json!({"type": "blob"})),
        [
            r#"s.properties[f].type: Unsupported value: "blob": supported values: "array", "boolean", "integer", "number", "object", "string""#
        ]
    );
    assert_eq!(
        field(json!({"type": "string", "pattern": "(a"})),
        [
            r#"s.properties[f].pattern: Invalid value: "(a": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(a`"#
        ]
    );
}

#[test]
fn metadata_may_only_restrict_names() {
    let found = errors(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
    );
    assert_eq!(
        found,
        [
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"
        ]
    );
}

#[test]
fn keys_of_a_map_list_are_required_scalars() {
    let list = |item: Value| {
        field(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item}),
        )
    };
    assert_eq!(
        list(json!({"type": "object", "properties": {"k": {"type": "string"}}})),
        [
            "s.properties[f].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
        ]
    );
    assert_eq!(
        list(json!({"type": "object", "properties": {"z": {"type": "string"}}})),
        [
            r#"s.properties[f].x-kubernetes-list-map-keys: Invalid value: ["k"]: entries must all be names of item properties"#
        ]
    );
}

#[test]
fn defaults_are_valid_pruned_and_outside_of_metadata() {
    assert_eq!(
        field(json!({"type": "integer", "default": "x"})),
        [r#"s.properties[f].default: Invalid value: "string":  in body must be of type integer: "string""#]
    );
    assert_eq!(
        field(json!({"type": "object", "default": {"zz": 1}, "properties": {"a": {"type": "string"}}})),
        [r#"s.properties[f].default: Invalid value: {"zz":1}: must not have unknown fields"#]
    );
    let meta = errors(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "a"}}}}}),
    );
    assert_eq!(
        meta,
        ["s.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata"]
    );
}

#[test]
fn rules_are_well_formed() {
    let rule = |rule: Value| {
        field(json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [rule]}))
    };
    let at = "s.properties[f].x-kubernetes-validations[0]";
    assert_eq!(rule(json!({"rule": " "})), [format!("{at}.rule: Required value: rule is not specified")]);
    assert_eq!(
        rule(json!({"rule": "true", "fieldPath": ".b"})),
        [format!(r#"{at}.fieldPath: Invalid value: ".b": must be a valid path"#)]
    );
    assert!(rule(json!({"rule": "true", "fieldPath": ".a", "reason": "FieldValueRequired"})).is_empty());
}

#[test]
fn a_status_subresource_restricts_the_root() {
    let schema = json!({"type": "object", "minProperties": 1});
    let found = check(&schema, "s", Options { status: true });
    assert!(
        found[0]
            .to_string()
            .contains("fields are allowed at the root of the schema if the status subresource is enabled")
    );
}

#[test]
fn unknown_keywords_are_dropped_and_named() {
    let mut schema =
        json!({"type": "object", "x-other": 1, "properties": {"a": {"type": "string", "const": 1, "default": null}}});
    assert_eq!(prune_unknown(&mut schema, "s"), ["s.x-other", "s.properties.a.const"]);
    assert_eq!(schema, json!({"type": "object", "properties": {"a": {"type": "string"}}}));
}

#[test]
fn the_effort_of_patterns_is_counted_in_every_part_of_a_schema() {
    let pattern = json!({"pattern": "^.{1000}$"});
    let one = pattern_effort(&pattern);
    let schema = json!({
        "pattern": "^.{1000}$", "items": pattern, "properties": {"a": pattern, "b": {"items": pattern}},
        "additionalProperties": pattern, "allOf": [pattern, pattern], "anyOf": [pattern], "oneOf": [pattern],
        "not": pattern
    });
    assert!(one > 30_000);
    assert_eq!(pattern_effort(&schema), 10 * one);
    let many = json!({"allOf": vec![schema; 100]});
    assert!((regexp::TOTAL_EFFORT_LIMIT + 1..=regexp::TOTAL_EFFORT_LIMIT + one).contains(&pattern_effort(&many)));
}

#[test]
fn a_pattern_that_takes_too_much_effort_is_refused() {
    let found = field(json!({"type": "string", "pattern": r"(?i)^(\pL{30}\d){30}$"}));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("s.properties[f].pattern: Invalid value: "), "{found:?}");
    assert!(found[0].contains("expression too large") && found[0].contains("smaller repeat counts"), "{found:?}");
}

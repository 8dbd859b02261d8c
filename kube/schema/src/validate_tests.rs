use super::*;
use serde_json::json;

fn schema(value: Value) -> Schema {
    Schema::from_openapi(&value).unwrap()
}

fn messages(of: &Value, value: Value) -> Vec<String> {
    validate(&schema(of.clone()), &value, "").iter().map(ToString::to_string).collect()
}

fn spec(field: Value, value: Value) -> Vec<String> {
    let of = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"f": field}}}});
    messages(&of, json!({"spec": {"f": value}}))
}

#[test]
fn a_wrong_type_names_the_field_and_both_types() {
    assert_eq!(
        spec(json!({"type": "integer"}), json!("x")),
        [r#"spec.f: Invalid value: "string": spec.f in body must be of type integer: "string""#]
    );
    assert_eq!(
        spec(json!({"type": "integer", "format": "int32"}), json!(true)),
        [r#"spec.f: Invalid value: "": spec.f in body must be of type int32: """#]
    );
    assert_eq!(
        spec(json!({"x-kubernetes-int-or-string": true}), json!(true)),
        [r#"spec.f: Invalid value: "boolean": spec.f in body must be of type integer,string: "boolean""#]
    );
    assert!(spec(json!({"type": "integer"}), json!(3.0)).is_empty());
    assert!(spec(json!({"type": "number"}), json!(3)).is_empty());
}

#[test]
fn null_needs_a_nullable_field() {
    assert_eq!(
        spec(json!({"type": "string"}), Value::Null),
        [r#"spec.f: Invalid value: "null": spec.f in body must be of type string: "null""#]
    );
    assert!(spec(json!({"type": "string", "nullable": true}), Value::Null).is_empty());
}

#[test]
fn a_missing_field_is_required_at_its_own_path() {
    let of = json!({"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object"}}});
    assert_eq!(messages(&of, json!({})), ["spec: Required value"]);
}

#[test]
fn bounds_speak_of_the_bound() {
    let table = [
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            r#"spec.f: Invalid value: 0: spec.f in body should be greater than or equal to 1"#,
        ),
        (
            json!({"type": "number", "maximum": 1.5, "exclusiveMaximum": true}),
            json!(1.5),
            "spec.f: Invalid value: 1.5: spec.f in body should be less than 1.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 2}),
            json!(3),
            "spec.f: Invalid value: 3: spec.f in body should be a multiple of 2",
        ),
        (json!({"type": "string", "maxLength": 2}), json!("abc"), "spec.f: Too long: may not be more than 2 bytes"),
        (
            json!({"type": "string", "minLength": 2}),
            json!("a"),
            r#"spec.f: Invalid value: "a": spec.f in body should be at least 2 chars long"#,
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            r#"spec.f: Invalid value: "b": spec.f in body should match '^a+$'"#,
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            r#"spec.f: Unsupported value: "c": supported values: "a", "b""#,
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "integer"}}),
            json!([1, 2]),
            "spec.f: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "integer"}}),
            json!([]),
            "spec.f: Invalid value: 0: spec.f in body should have at least 1 items",
        ),
        (
            json!({"type": "object", "maxProperties": 0}),
            json!({"a": 1}),
            "spec.f: Too many: 1: must have at most 0 items",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("x"),
            r#"spec.f: Invalid value: "x": spec.f in body must be of type date-time: "x""#,
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(1i64 << 40),
            r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.f"#,
        ),
    ];
    for (field, value, message) in table {
        assert_eq!(spec(field, value), [message]);
    }
}

#[test]
fn alternatives_report_the_nearest_miss() {
    let any =
        json!({"x-kubernetes-preserve-unknown-fields": true, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_eq!(
        spec(any, json!({})),
        [r#"<nil>: Invalid value: "": "spec.f" must validate at least one schema (anyOf)"#, "spec.f.a: Required value"]
    );
    let one = json!({"type": "integer", "oneOf": [{"minimum": 1}, {"minimum": 2}]});
    assert_eq!(
        spec(one, json!(3)),
        [
            r#"<nil>: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). Found 2 valid alternatives"#
        ]
    );
    let not = json!({"type": "integer", "not": {"minimum": 5}});
    assert_eq!(spec(not, json!(6)), [r#"<nil>: Invalid value: "": "spec.f" must not validate the schema (not)"#]);
}

#[test]
fn an_update_may_keep_what_was_already_wrong() {
    let of = schema(json!({"type": "object", "properties": {
        "a": {"type": "integer", "minimum": 5}, "b": {"type": "integer", "minimum": 5}}}));
    let old = json!({"a": 1, "b": 1});
    let errors = validate_update(&of, &json!({"a": 1, "b": 2}), &old, "");
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].field, "b");
}

#[test]
fn items_of_a_map_list_are_forgiven_by_key_and_of_an_atomic_list_never() {
    let list = |extra: Value| {
        let mut list = json!({"type": "array", "items": {"type": "object", "properties": {
            "name": {"type": "string"}, "n": {"type": "integer", "minimum": 5}}}});
        list.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        schema(json!({"type": "object", "properties": {"l": list}}))
    };
    let map = list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}));
    let old = json!({"l": [{"name": "a", "n": 1}]});
    let new = json!({"l": [{"name": "b", "n": 6}, {"name": "a", "n": 1}]});
    assert!(validate_update(&map, &new, &old, "").is_empty());
    let atomic = list(json!({}));
    assert_eq!(validate_update(&atomic, &new, &old, "")[0].field, "l[1].n");
}

#[test]
fn values_of_a_map_are_checked_under_their_keys() {
    let of = json!({"type": "object", "additionalProperties": {"type": "string"}});
    assert_eq!(
        spec(of, json!({"k": 1})),
        [r#"spec.f.k: Invalid value: "integer": spec.f.k in body must be of type string: "integer""#]
    );
}

//! What a schema does to objects: validation, defaults, pruning.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Cause, accepted, cause, invalid, widget_refused, with_a, with_properties, with_spec};
use crate::{Case, Crd, Ctx, PatchType, eventually};

pub(super) fn cases() -> Vec<Case> {
    cases!["crds";
        strings_are_held_to_length_pattern_and_enum,
        numbers_are_held_to_bounds_and_multiples,
        lists_and_maps_are_held_to_their_sizes,
        required_fields_are_asked_for_one_by_one,
        junctors_are_explained,
        a_value_of_another_type_is_refused,
        an_integer_has_no_fraction,
        formats_are_checked,
        an_unchecked_format_lets_everything_pass,
        a_number_or_a_text_is_either,
        null_is_kept_where_it_is_allowed_and_dropped_elsewhere,
        defaults_fill_what_is_missing,
        a_null_takes_the_default_unless_it_is_allowed,
        a_default_that_came_later_shows_on_reading,
        unknown_fields_are_pruned_with_a_warning,
        unknown_fields_are_refused_when_validation_is_strict,
        unknown_fields_stay_where_they_are_preserved,
        known_fields_within_preserved_ones_are_pruned,
        everything_stays_when_the_root_preserves,
        a_set_has_no_item_twice,
        a_list_map_has_no_key_twice,
        an_embedded_resource_says_what_it_is,
        the_metadata_of_an_embedded_resource_is_typed,
        the_metadata_of_a_custom_object_is_typed,
        a_custom_object_of_another_kind_is_refused,
        a_custom_object_of_another_version_is_refused,
        what_was_wrong_before_may_stay,
    ]
}

/// Several properties, each with a wrong value, its reason and its message.
async fn all_wrong(ctx: &Ctx, properties: &[(&str, Value, Value, &str, &str)]) -> Result<()> {
    let schemas: serde_json::Map<_, _> =
        properties.iter().map(|(name, schema, ..)| ((*name).to_owned(), schema.clone())).collect();
    let crd = with_properties(ctx, schemas.into()).make(ctx).await?;
    for (name, _, value, reason, message) in properties {
        let wanted = [cause(reason, &format!("spec.{name}"), message)];
        widget_refused(ctx, &crd, json!({*name: value}), &wanted).await?;
    }
    Ok(())
}

/// A cause that has no field of its own.
fn nowhere(message: &str) -> Cause {
    cause("Invalid", "<nil>", &format!("Invalid value: \"\": {message}"))
}

async fn strings_are_held_to_length_pattern_and_enum(ctx: Ctx) -> Result<()> {
    let text = |key: &str, value: Value| json!({"type": "string", key: value});
    all_wrong(
        &ctx,
        &[
            ("long", text("maxLength", json!(3)), json!("abcd"), "TooLong", "Too long: may not be more than 3 bytes"),
            (
                "short",
                text("minLength", json!(3)),
                json!("a"),
                "Invalid",
                "Invalid value: \"a\": spec.short in body should be at least 3 chars long",
            ),
            (
                "pattern",
                text("pattern", json!("^a+$")),
                json!("b"),
                "Invalid",
                "Invalid value: \"b\": spec.pattern in body should match '^a+$'",
            ),
            (
                "choice",
                text("enum", json!(["x", "y"])),
                json!("z"),
                "NotSupported",
                "Unsupported value: \"z\": supported values: \"x\", \"y\"",
            ),
        ],
    )
    .await
}

async fn numbers_are_held_to_bounds_and_multiples(ctx: Ctx) -> Result<()> {
    let message = |value: i64, rest: &str| format!("Invalid value: {value}: spec.{rest}");
    all_wrong(
        &ctx,
        &[
            (
                "most",
                json!({"type": "integer", "maximum": 3}),
                json!(4),
                "Invalid",
                &message(4, "most in body should be less than or equal to 3"),
            ),
            (
                "least",
                json!({"type": "integer", "minimum": 3}),
                json!(2),
                "Invalid",
                &message(2, "least in body should be greater than or equal to 3"),
            ),
            (
                "below",
                json!({"type": "integer", "maximum": 3, "exclusiveMaximum": true}),
                json!(3),
                "Invalid",
                &message(3, "below in body should be less than 3"),
            ),
            (
                "above",
                json!({"type": "number", "minimum": 3, "exclusiveMinimum": true}),
                json!(3),
                "Invalid",
                &message(3, "above in body should be greater than 3"),
            ),
            (
                "fives",
                json!({"type": "number", "multipleOf": 5}),
                json!(7),
                "Invalid",
                &message(7, "fives in body should be a multiple of 5"),
            ),
        ],
    )
    .await
}

async fn lists_and_maps_are_held_to_their_sizes(ctx: Ctx) -> Result<()> {
    let (number, text) = (json!({"type": "integer"}), json!({"type": "string"}));
    all_wrong(
        &ctx,
        &[
            (
                "many",
                json!({"type": "array", "items": number, "maxItems": 1}),
                json!([1, 2]),
                "TooMany",
                "Too many: 2: must have at most 1 item",
            ),
            (
                "few",
                json!({"type": "array", "items": number, "minItems": 2}),
                json!([1]),
                "Invalid",
                "Invalid value: 1: spec.few in body should have at least 2 items",
            ),
            (
                "big",
                json!({"type": "object", "additionalProperties": text, "maxProperties": 1}),
                json!({"a": "1", "b": "2"}),
                "TooMany",
                "Too many: 2: must have at most 1 item",
            ),
            (
                "small",
                json!({"type": "object", "additionalProperties": text, "minProperties": 1}),
                json!({}),
                "Invalid",
                "Invalid value: 0: spec.small in body should have at least 1 properties",
            ),
        ],
    )
    .await
}

async fn required_fields_are_asked_for_one_by_one(ctx: Ctx) -> Result<()> {
    let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x", "y"]});
    let crd = with_a(&ctx, schema).make(&ctx).await?;
    let wanted = [cause("Required", "spec.a.x", "Required value"), cause("Required", "spec.a.y", "Required value")];
    widget_refused(&ctx, &crd, json!({"a": {}}), &wanted).await
}

async fn junctors_are_explained(ctx: Ctx) -> Result<()> {
    let number = |junctor: &str, value: Value| json!({"type": "integer", junctor: value});
    let properties = json!({
        "all": number("allOf", json!([{"minimum": 3}, {"minimum": 5}])),
        "any": number("anyOf", json!([{"maximum": 3}, {"minimum": 5}])),
        "one": number("oneOf", json!([{"maximum": 5}, {"minimum": 3}])),
        "no": number("not", json!({"enum": [1]})),
    });
    let crd = with_properties(&ctx, properties).make(&ctx).await?;
    let least = |name: &str, value: i64, bound: i64| {
        let message = format!("Invalid value: {value}: spec.{name} in body should be greater than or equal to {bound}");
        cause("Invalid", &format!("spec.{name}"), &message)
    };
    let all = nowhere("\"spec.all\" must validate all the schemas (allOf). None validated");
    widget_refused(&ctx, &crd, json!({"all": 2}), &[least("all", 2, 3), least("all", 2, 5), all]).await?;
    let any = nowhere("\"spec.any\" must validate at least one schema (anyOf)");
    let most = "Invalid value: 4: spec.any in body should be less than or equal to 3";
    widget_refused(&ctx, &crd, json!({"any": 4}), &[any, cause("Invalid", "spec.any", most)]).await?;
    let one = nowhere("\"spec.one\" must validate one and only one schema (oneOf). Found 2 valid alternatives");
    widget_refused(&ctx, &crd, json!({"one": 4}), &[one]).await?;
    let no = nowhere("\"spec.no\" must not validate the schema (not)");
    widget_refused(&ctx, &crd, json!({"no": 1}), &[no]).await
}

async fn a_value_of_another_type_is_refused(ctx: Ctx) -> Result<()> {
    let kinds = [
        ("string", json!(5), "integer"),
        ("integer", json!("x"), "string"),
        ("number", json!("x"), "string"),
        ("boolean", json!("true"), "string"),
        ("object", json!([]), "array"),
    ];
    let properties: serde_json::Map<_, _> =
        kinds.iter().map(|(kind, ..)| ((*kind).to_owned(), json!({"type": kind}))).collect();
    let crd = with_properties(&ctx, properties.into()).make(&ctx).await?;
    for (kind, value, found) in kinds {
        let message = format!("Invalid value: \"{found}\": spec.{kind} in body must be of type {kind}: \"{found}\"");
        let wanted = [cause("TypeInvalid", &format!("spec.{kind}"), &message)];
        widget_refused(&ctx, &crd, json!({kind: value}), &wanted).await?;
    }
    let message = "Invalid value: \"string\": spec in body must be of type object: \"string\"";
    widget_refused(&ctx, &crd, json!("hello"), &[cause("TypeInvalid", "spec", message)]).await
}

async fn an_integer_has_no_fraction(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "integer"})).make(&ctx).await?;
    let message = "Invalid value: \"number\": spec.a in body must be of type integer: \"number\"";
    let format = nowhere("Checked value must be of type integer (default format) in spec.a");
    widget_refused(&ctx, &crd, json!({"a": 1.5}), &[cause("TypeInvalid", "spec.a", message), format]).await?;
    assert_eq!(accepted(&ctx, &crd, json!({"a": 1.0})).await?.to_string(), r#"{"a":1}"#);
    Ok(())
}

async fn formats_are_checked(ctx: Ctx) -> Result<()> {
    let formats = [
        ("date-time", "yesterday", "2020-01-01T00:00:00Z"),
        ("date", "2020-13-01", "2020-12-01"),
        ("uuid", "x", "c0ffee00-0000-4000-8000-000000000000"),
        ("ipv4", "300.0.0.1", "10.0.0.1"),
        ("cidr", "10.0.0.1", "10.0.0.0/8"),
        ("email", "x", "a@example.com"),
        ("byte", "*", "aGVsbG8="),
        ("duration", "long", "1h30m"),
        ("uri", "x", "https://example.com/a"),
        ("hostname", "_", "example.com"),
        ("mac", "x", "00:00:5e:00:53:01"),
    ];
    let properties: serde_json::Map<_, _> = formats
        .iter()
        .map(|(format, ..)| ((*format).to_owned(), json!({"type": "string", "format": format})))
        .collect();
    let crd = with_properties(&ctx, properties.into()).make(&ctx).await?;
    for (format, bad, good) in formats {
        let message = format!("Invalid value: \"{bad}\": spec.{format} in body must be of type {format}: \"{bad}\"");
        let wanted = [cause("TypeInvalid", &format!("spec.{format}"), &message)];
        widget_refused(&ctx, &crd, json!({format: bad}), &wanted).await?;
        accepted(&ctx, &crd, json!({format: good})).await?;
    }
    let crd = with_a(&ctx, json!({"type": "integer", "format": "int32"})).make(&ctx).await?;
    let wanted = [nowhere("Checked value must be of type integer with format int32 in spec.a")];
    widget_refused(&ctx, &crd, json!({"a": 3_000_000_000_i64}), &wanted).await
}

async fn an_unchecked_format_lets_everything_pass(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "string", "format": "colour"})).make(&ctx).await?;
    accepted(&ctx, &crd, json!({"a": "anything"})).await?;
    Ok(())
}

async fn a_number_or_a_text_is_either(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"x-kubernetes-int-or-string": true})).make(&ctx).await?;
    assert_eq!(accepted(&ctx, &crd, json!({"a": "50%"})).await?, json!({"a": "50%"}));
    assert_eq!(accepted(&ctx, &crd, json!({"a": 50})).await?, json!({"a": 50}));
    let message = "Invalid value: \"number\": spec.a in body must be of type integer,string: \"number\"";
    widget_refused(&ctx, &crd, json!({"a": 1.5}), &[cause("TypeInvalid", "spec.a", message)]).await
}

async fn null_is_kept_where_it_is_allowed_and_dropped_elsewhere(ctx: Ctx) -> Result<()> {
    let properties = json!({"free": {"type": "string", "nullable": true}, "strict": {"type": "string"}});
    let crd = with_properties(&ctx, properties).make(&ctx).await?;
    assert_eq!(accepted(&ctx, &crd, json!({"free": null, "strict": null})).await?, json!({"free": null}));
    Ok(())
}

/// Defaults at every kind of place.
fn with_defaults(ctx: &Ctx) -> Crd {
    with_properties(
        ctx,
        json!({
            "a": {"type": "string", "default": "x"},
            "o": {"type": "object", "default": {}, "properties": {
                "n": {"type": "integer", "default": 3}, "m": {"type": "string"}}},
            "bare": {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}},
            "l": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
            "m": {"type": "object", "additionalProperties": {
                "type": "object", "properties": {"q": {"type": "integer", "default": 1}}}},
        }),
    )
}

async fn defaults_fill_what_is_missing(ctx: Ctx) -> Result<()> {
    let crd = with_defaults(&ctx).make(&ctx).await?;
    assert_eq!(accepted(&ctx, &crd, json!({})).await?, json!({"a": "x", "o": {"n": 3}}));
    let given =
        json!({"a": "own", "o": {"m": "z"}, "bare": {}, "l": [{}, {"p": "UDP"}], "m": {"k": {}, "j": {"q": 5}}});
    let wanted = json!({
        "a": "own", "o": {"n": 3, "m": "z"}, "bare": {"n": 3}, "l": [{"p": "TCP"}, {"p": "UDP"}],
        "m": {"k": {"q": 1}, "j": {"q": 5}},
    });
    assert_eq!(accepted(&ctx, &crd, given).await?, wanted);
    Ok(())
}

async fn a_null_takes_the_default_unless_it_is_allowed(ctx: Ctx) -> Result<()> {
    let properties = json!({
        "free": {"type": "string", "nullable": true, "default": "d"},
        "strict": {"type": "string", "default": "d"},
    });
    let crd = with_properties(&ctx, properties).make(&ctx).await?;
    let given = json!({"free": null, "strict": null});
    assert_eq!(accepted(&ctx, &crd, given).await?, json!({"free": null, "strict": "d"}));
    Ok(())
}

async fn a_default_that_came_later_shows_on_reading(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "string"})).make(&ctx).await?;
    let made = ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({}))).await?.code(201)?;
    let change = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/late",
        "value": {"type": "string", "default": "later"},
    }]);
    ctx.patch(crd.definition(), PatchType::Json, &change).await?.code(200)?;
    let read = eventually("the new default", async || {
        let read = ctx.get(crd.path(&ctx, "/one")).await?.ok()?;
        anyhow::ensure!(read["spec"] == json!({"late": "later"}), "{read}");
        Ok(read)
    })
    .await?;
    assert_eq!(read["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"], "nothing was written");
    Ok(())
}

async fn unknown_fields_are_pruned_with_a_warning(ctx: Ctx) -> Result<()> {
    let crd = with_properties(&ctx, json!({"o": {"type": "object", "properties": {"m": {"type": "string"}}}}));
    let crd = crd.make(&ctx).await?;
    let reply = ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"gone": 1, "o": {"m": "x", "n": 1}}))).await?;
    assert_eq!(reply.warnings(), ["unknown field \"spec.gone\"", "unknown field \"spec.o.n\""]);
    assert_eq!(reply.code(201)?["spec"], json!({"o": {"m": "x"}}));
    Ok(())
}

async fn unknown_fields_are_refused_when_validation_is_strict(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "string"})).make(&ctx).await?;
    let mut body = crd.widget("one", json!({"a": "x", "zz": 1}));
    body["foo"] = json!(1);
    let message = "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"foo\", \
                   unknown field \"spec.zz\"";
    let reply = ctx.post(crd.path(&ctx, "?fieldValidation=Strict"), &body).await?;
    reply.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn unknown_fields_stay_where_they_are_preserved(ctx: Ctx) -> Result<()> {
    let crd = with_a(&ctx, json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})).make(&ctx).await?;
    let spec = json!({"a": {"any": {"thing": [1, null, {"deep": true}]}}});
    assert_eq!(accepted(&ctx, &crd, spec.clone()).await?, spec);
    Ok(())
}

async fn known_fields_within_preserved_ones_are_pruned(ctx: Ctx) -> Result<()> {
    let schema = json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"known": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    });
    let crd = with_spec(&ctx, schema).make(&ctx).await?;
    let spec = accepted(&ctx, &crd, json!({"any": 1, "known": {"x": 1, "y": 2}})).await?;
    assert_eq!(spec, json!({"any": 1, "known": {"x": 1}}));
    Ok(())
}

async fn everything_stays_when_the_root_preserves(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    crd.version()["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = crd.make(&ctx).await?;
    let mut body = crd.widget("one", json!("any"));
    body["other"] = json!({"a": [1]});
    let reply = ctx.post(crd.path(&ctx, ""), &body).await?;
    assert_eq!(reply.warnings(), [] as [&str; 0]);
    let made = reply.code(201)?;
    assert_eq!((&made["spec"], &made["other"]), (&json!("any"), &json!({"a": [1]})));
    Ok(())
}

async fn a_set_has_no_item_twice(ctx: Ctx) -> Result<()> {
    let schema = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let crd = with_a(&ctx, schema).make(&ctx).await?;
    let wanted = [cause("Duplicate", "spec.a[2]", "Duplicate value: \"x\"")];
    widget_refused(&ctx, &crd, json!({"a": ["x", "y", "x"]}), &wanted).await
}

async fn a_list_map_has_no_key_twice(ctx: Ctx) -> Result<()> {
    let text = json!({"type": "string"});
    let schema = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": text, "v": text}, "required": ["k"]},
    });
    let crd = with_a(&ctx, schema).make(&ctx).await?;
    let wanted = [cause("Duplicate", "spec.a[1]", "Duplicate value: {\"k\":\"1\"}")];
    widget_refused(&ctx, &crd, json!({"a": [{"k": "1"}, {"k": "1", "v": "2"}]}), &wanted).await?;
    let wanted = [cause("Required", "spec.a[0].k", "Required value")];
    widget_refused(&ctx, &crd, json!({"a": [{"v": "1"}]}), &wanted).await
}

/// A free embedded resource.
fn embedding(ctx: &Ctx) -> Crd {
    let schema = json!({
        "type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
    });
    with_a(ctx, schema)
}

async fn an_embedded_resource_says_what_it_is(ctx: Ctx) -> Result<()> {
    let crd = embedding(&ctx).make(&ctx).await?;
    let wanted =
        [cause("Required", "spec.a.apiVersion", "Required value"), cause("Required", "spec.a.kind", "Required value")];
    widget_refused(&ctx, &crd, json!({"a": {}}), &wanted).await?;
    let body = json!({"a": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n", "zz": 1}, "spec": {"any": 1}}});
    let reply = ctx.post(crd.path(&ctx, ""), &crd.widget("one", body)).await?;
    assert_eq!(reply.warnings(), ["unknown field \"spec.a.metadata.zz\""]);
    let wanted = json!({"a": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": {"any": 1}}});
    assert_eq!(reply.code(201)?["spec"], wanted);
    Ok(())
}

async fn the_metadata_of_an_embedded_resource_is_typed(ctx: Ctx) -> Result<()> {
    let crd = embedding(&ctx).make(&ctx).await?;
    let body = json!({"a": {"apiVersion": "v1", "kind": "X", "metadata": {"labels": {"a": 5}}}});
    let message = "Widget in version \"v1\" cannot be handled as a Widget: spec.a.metadata: Invalid value: \
                   {\"labels\":{\"a\":5}}: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string";
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", body)).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn the_metadata_of_a_custom_object_is_typed(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut body = crd.widget("one", json!({}));
    body["metadata"]["labels"] = json!({"a": 5});
    let message = "Widget in version \"v1\" cannot be handled as a Widget: json: cannot unmarshal number into Go struct \
                   field ObjectMeta.labels of type string";
    ctx.post(crd.path(&ctx, ""), &body).await?.refused_with(400, "BadRequest", message)?;
    Ok(())
}

async fn a_custom_object_of_another_kind_is_refused(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut body = crd.widget("one", json!({}));
    body["kind"] = json!("Gadget");
    let reply = ctx.post(crd.path(&ctx, ""), &body).await?;
    let wanted = [cause("Invalid", "kind", "Invalid value: \"Gadget\": must be Widget")];
    invalid(reply, &format!("Gadget.{} \"one\"", crd.group), &wanted)
}

async fn a_custom_object_of_another_version_is_refused(ctx: Ctx) -> Result<()> {
    let crd = Crd::open(&ctx).make(&ctx).await?;
    let mut body = crd.widget("one", json!({}));
    body["apiVersion"] = json!("other.io/v1");
    let message =
        format!("the API version in the data (other.io/v1) does not match the expected API version ({}/v1)", crd.group);
    ctx.post(crd.path(&ctx, ""), &body).await?.refused_with(400, "BadRequest", &message)?;
    Ok(())
}

async fn what_was_wrong_before_may_stay(ctx: Ctx) -> Result<()> {
    let crd = with_properties(&ctx, json!({"a": {"type": "string"}, "b": {"type": "string"}})).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": "long", "b": "x"}))).await?.code(201)?;
    let change = json!([{
        "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a/maxLength", "value": 1,
    }]);
    ctx.patch(crd.definition(), PatchType::Json, &change).await?.code(200)?;
    let too_long = [cause("TooLong", "spec.a", "Too long: may not be more than 1 byte")];
    eventually("the new bound", async || {
        let reply = ctx.post(crd.path(&ctx, "?dryRun=All"), &crd.widget("two", json!({"a": "long"}))).await?;
        reply.code(422)
    })
    .await?;
    let other = json!({"spec": {"b": "y"}});
    ctx.patch(crd.path(&ctx, "/one"), PatchType::Merge, &other).await?.code(200)?;
    let same = json!({"spec": {"a": "longer"}});
    let reply = ctx.patch(crd.path(&ctx, "/one"), PatchType::Merge, &same).await?;
    invalid(reply, &format!("Widget.{} \"one\"", crd.group), &too_long)
}

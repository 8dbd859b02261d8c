//! CEL rules: those that a definition may not have, and what the others do.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Cause, accepted, cause, invalid, refused, spec_cause, widget_refused, with_a, with_properties, with_spec};
use crate::{Case, Crd, Ctx, PatchType, eventually};

pub(super) fn cases() -> Vec<Case> {
    cases!["crds";
        a_rule_that_does_not_parse_is_refused,
        a_rule_about_an_unknown_field_is_refused,
        a_rule_that_compares_apples_with_pears_is_refused,
        a_rule_must_be_true_or_false,
        a_message_expression_must_be_a_text,
        the_parts_of_a_rule_are_checked,
        a_rule_sees_little_of_the_metadata,
        a_rule_that_may_cost_too_much_is_refused,
        old_values_cannot_be_used_within_lists_without_keys,
        a_default_keeps_to_the_rules,
        a_failed_rule_is_shown_when_it_has_no_message,
        a_rule_chooses_its_reason_and_field,
        a_message_expression_speaks_of_the_value,
        a_message_falls_back_when_its_expression_fails,
        a_rule_that_fails_at_run_time_is_an_error,
        rules_are_not_run_on_values_of_wrong_types,
        rules_use_macros_over_lists_and_maps,
        rules_know_quantities_urls_and_times,
        sets_are_compared_without_order,
        a_rule_at_the_root_sees_the_name,
        a_transition_rule_compares_with_the_old_value,
        an_optional_old_value_may_be_absent,
        items_of_list_maps_are_compared_by_key,
        a_rule_forgives_what_did_not_change,
    ]
}

/// A rule as errors show it whole.
fn shown(rule: &str, expression: &str) -> String {
    let quote = |text: &str| json!(text).to_string().replace('>', "\\u003e").replace('<', "\\u003c");
    format!(
        "Invalid value: {{\"Rule\":{},\"Message\":\"\",\"MessageExpression\":{},\"Reason\":null,\"FieldPath\":\"\",\
         \"OptionalOldSelf\":null}}",
        quote(rule),
        quote(expression)
    )
}

/// `spec` with a number, a text and a list, and this rule.
fn ruled(ctx: &Ctx, rule: Value) -> Crd {
    let properties = json!({
        "a": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array", "items": {"type": "string"}},
    });
    with_spec(ctx, json!({"type": "object", "properties": properties, "x-kubernetes-validations": [rule]}))
}

/// The rule is refused with this about it.
async fn rule_refused(ctx: &Ctx, rule: &str, why: &str) -> Result<()> {
    let message = format!("{}: {why}", shown(rule, ""));
    let wanted = [spec_cause("Invalid", ".x-kubernetes-validations[0].rule", &message)];
    refused(ctx, &ruled(ctx, json!({"rule": rule})), &wanted).await
}

async fn a_rule_that_does_not_parse_is_refused(ctx: Ctx) -> Result<()> {
    let why = "compilation failed: ERROR: <input>:1:9: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', \
               '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n \
               | self.a >\n | ........^";
    rule_refused(&ctx, "self.a >", why).await
}

async fn a_rule_about_an_unknown_field_is_refused(ctx: Ctx) -> Result<()> {
    let why = "compilation failed: ERROR: <input>:1:5: undefined field 'zz'\n | self.zz > 1\n | ....^";
    rule_refused(&ctx, "self.zz > 1", why).await
}

async fn a_rule_that_compares_apples_with_pears_is_refused(ctx: Ctx) -> Result<()> {
    let why = "compilation failed: ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(int, string)'\n \
               | self.a == 'x'\n | .......^";
    rule_refused(&ctx, "self.a == 'x'", why).await
}

async fn a_rule_must_be_true_or_false(ctx: Ctx) -> Result<()> {
    rule_refused(&ctx, "self.a + 1", "cel expression must evaluate to a bool").await
}

async fn a_message_expression_must_be_a_text(ctx: Ctx) -> Result<()> {
    let unknown = "messageExpression compilation failed: ERROR: <input>:1:5: undefined field 'q'\n | self.q\n | ....^";
    for (expression, why) in [("1", "messageExpression must evaluate to a string"), ("self.q", unknown)] {
        let crd = ruled(&ctx, json!({"rule": "true", "messageExpression": expression}));
        let message = format!("{}: {why}", shown("true", expression));
        refused(&ctx, &crd, &[spec_cause("Invalid", ".x-kubernetes-validations[0].messageExpression", &message)])
            .await?;
    }
    Ok(())
}

async fn the_parts_of_a_rule_are_checked(ctx: Ctx) -> Result<()> {
    let reasons = "Unsupported value: \"Bad\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \
                   \"FieldValueInvalid\", \"FieldValueRequired\"";
    let bad = [
        (json!({"rule": ""}), "Required", "rule", "Required value: rule is not specified"),
        (
            json!({"rule": "true", "message": "a\nb"}),
            "Invalid",
            "message",
            "Invalid value: \"a\\nb\": must not contain line breaks",
        ),
        (
            json!({"rule": "true", "message": "  "}),
            "Invalid",
            "message",
            "Invalid value: \"  \": must be non-empty if specified",
        ),
        (
            json!({"rule": "true\n&& true"}),
            "Required",
            "message",
            "Required value: message must be specified if rule contains line breaks",
        ),
        (json!({"rule": "true", "reason": "Bad"}), "NotSupported", "reason", reasons),
        (
            json!({"rule": "true", "fieldPath": ".zz"}),
            "Invalid",
            "fieldPath",
            "Invalid value: \".zz\": must be a valid path",
        ),
        (
            json!({"rule": "true", "optionalOldSelf": true}),
            "Invalid",
            "optionalOldSelf",
            "Invalid value: true: may not be set if oldSelf is not used in rule",
        ),
    ];
    for (rule, reason, field, message) in bad {
        let wanted = spec_cause(reason, &format!(".x-kubernetes-validations[0].{field}"), message);
        refused(&ctx, &ruled(&ctx, rule), &[wanted]).await?;
    }
    Ok(())
}

async fn a_rule_sees_little_of_the_metadata(ctx: Ctx) -> Result<()> {
    let rule = "self.metadata.labels.size() > 0";
    let mut crd = Crd::open(&ctx);
    crd.version()["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = json!([{"rule": rule}]);
    let why = "compilation failed: ERROR: <input>:1:14: undefined field 'labels'\n | self.metadata.labels.size() > 0\n \
               | .............^";
    let message = format!("{}: {why}", shown(rule, ""));
    let wanted = [cause("Invalid", "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule", &message)];
    refused(&ctx, &crd, &wanted).await
}

async fn a_rule_that_may_cost_too_much_is_refused(ctx: Ctx) -> Result<()> {
    let advice = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings \
                  are declared)";
    let rule = format!("Forbidden: estimated rule cost exceeds budget by factor of more than 100x {advice}");
    let share = "Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
    let total = format!(
        "Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor \
         of more than 100x {advice}"
    );
    let wanted = [
        spec_cause("Forbidden", ".x-kubernetes-validations[0].rule", &rule),
        spec_cause("Forbidden", ".x-kubernetes-validations[0].rule", share),
        cause("Forbidden", "spec.validation.openAPIV3Schema", &total),
    ];
    refused(&ctx, &ruled(&ctx, json!({"rule": "self.l.all(x, self.l.all(y, x == y))"})), &wanted).await
}

async fn old_values_cannot_be_used_within_lists_without_keys(ctx: Ctx) -> Result<()> {
    let item = json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]});
    let crd = with_a(&ctx, json!({"type": "array", "maxItems": 10, "items": item}));
    let message = format!(
        "Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within \
         {}.properties[a]",
        super::SPEC
    );
    let wanted = [spec_cause("Invalid", ".properties[a].items.x-kubernetes-validations[0].rule", &message)];
    refused(&ctx, &crd, &wanted).await
}

async fn a_default_keeps_to_the_rules(ctx: Ctx) -> Result<()> {
    let rule = json!([{"rule": "self > 3", "message": "too small"}]);
    let crd = with_a(&ctx, json!({"type": "integer", "default": 1, "x-kubernetes-validations": rule}));
    let wanted = [spec_cause("Invalid", ".properties[a].default", "Invalid value: 1: too small")];
    refused(&ctx, &crd, &wanted).await
}

/// `spec` with these properties and rules, served.
async fn spec_with_rules(ctx: &Ctx, properties: Value, rules: Value) -> Result<Crd> {
    let spec = json!({"type": "object", "properties": properties, "x-kubernetes-validations": rules});
    with_spec(ctx, spec).make(ctx).await
}

async fn a_failed_rule_is_shown_when_it_has_no_message(ctx: Ctx) -> Result<()> {
    let number = json!({"type": "integer"});
    let rules = json!([{"rule": "!has(self.max) || self.min <= self.max"}]);
    let two = json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1"}, {"rule": "self > 2"}]});
    let crd = spec_with_rules(&ctx, json!({"min": number, "max": number, "two": two}), rules).await?;
    let wanted = [cause("Invalid", "spec", "Invalid value: failed rule: !has(self.max) || self.min <= self.max")];
    widget_refused(&ctx, &crd, json!({"min": 5, "max": 3}), &wanted).await?;
    let wanted = [
        cause("Invalid", "spec.two", "Invalid value: 0: failed rule: self > 1"),
        cause("Invalid", "spec.two", "Invalid value: 0: failed rule: self > 2"),
    ];
    widget_refused(&ctx, &crd, json!({"two": 0}), &wanted).await?;
    accepted(&ctx, &crd, json!({"min": 3, "max": 5, "two": 3})).await?;
    Ok(())
}

async fn a_rule_chooses_its_reason_and_field(ctx: Ctx) -> Result<()> {
    let text = json!({"type": "string", "maxLength": 10});
    let properties = json!({"opt": text, "req": text, "no": text, "dup": text, "plain": text});
    let rule = |rule: &str, reason: &str, field: &str| json!({"rule": rule, "message": "because", "reason": format!("FieldValue{reason}"), "fieldPath": field});
    let rules = json!([
        rule("!has(self.opt) || has(self.req)", "Required", ".req"),
        rule("!has(self.no)", "Forbidden", ".no"),
        {"rule": "!has(self.dup)", "message": "because", "reason": "FieldValueDuplicate"},
        {"rule": "!has(self.plain)", "message": "because", "fieldPath": ".plain"},
    ]);
    let crd = spec_with_rules(&ctx, properties, rules).await?;
    let refusals = [
        ("opt", cause("Required", "spec.req", "Required value: because")),
        ("no", cause("Forbidden", "spec.no", "Forbidden: because")),
        ("dup", cause("Duplicate", "spec", "Duplicate value")),
        ("plain", cause("Invalid", "spec.plain", "Invalid value: because")),
    ];
    for (field, wanted) in refusals {
        widget_refused(&ctx, &crd, json!({field: "x"}), &[wanted]).await?;
    }
    Ok(())
}

async fn a_message_expression_speaks_of_the_value(ctx: Ctx) -> Result<()> {
    let rule = json!([{"rule": "self.startsWith('a')", "messageExpression": "'must start with a, got ' + self"}]);
    let crd = with_a(&ctx, json!({"type": "string", "maxLength": 20, "x-kubernetes-validations": rule}));
    let crd = crd.make(&ctx).await?;
    let wanted = [cause("Invalid", "spec.a", "Invalid value: \"bob\": must start with a, got bob")];
    widget_refused(&ctx, &crd, json!({"a": "bob"}), &wanted).await
}

async fn a_message_falls_back_when_its_expression_fails(ctx: Ctx) -> Result<()> {
    let text = |rule: Value| json!({"type": "string", "maxLength": 5, "x-kubernetes-validations": [rule]});
    let properties = json!({
        "fails": text(json!({"rule": "false", "messageExpression": "self.substring(10)", "message": "the fallback"})),
        "empty": text(json!({"rule": "false", "messageExpression": "''"})),
    });
    let crd = with_properties(&ctx, properties).make(&ctx).await?;
    let wanted = [cause("Invalid", "spec.fails", "Invalid value: \"x\": the fallback")];
    widget_refused(&ctx, &crd, json!({"fails": "x"}), &wanted).await?;
    let wanted = [cause("Invalid", "spec.empty", "Invalid value: \"x\": failed rule: false")];
    widget_refused(&ctx, &crd, json!({"empty": "x"}), &wanted).await
}

async fn a_rule_that_fails_at_run_time_is_an_error(ctx: Ctx) -> Result<()> {
    let schema = json!({
        "type": "array", "maxItems": 5, "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": "self[3] > 0"}],
    });
    let crd = with_a(&ctx, schema).make(&ctx).await?;
    let message = "Invalid value: \"array\": index out of bounds: 3 evaluating rule: self[3] > 0";
    widget_refused(&ctx, &crd, json!({"a": [1]}), &[cause("Invalid", "spec.a", message)]).await
}

async fn rules_are_not_run_on_values_of_wrong_types(ctx: Ctx) -> Result<()> {
    let rule = json!([{"rule": "self > 1"}]);
    let crd = with_a(&ctx, json!({"type": "integer", "x-kubernetes-validations": rule})).make(&ctx).await?;
    let wrong = "Invalid value: \"string\": spec.a in body must be of type integer: \"string\"";
    let skipped = "Invalid value: null: some validation rules were not checked because the object was invalid; correct the \
                   existing errors to complete validation";
    let wanted = [cause("TypeInvalid", "spec.a", wrong), cause("Invalid", "<nil>", skipped)];
    widget_refused(&ctx, &crd, json!({"a": "x"}), &wanted).await
}

/// Each of these specs breaks the rule `bad`.
async fn all_break(ctx: &Ctx, crd: &Crd, specs: &[Value]) -> Result<()> {
    for spec in specs {
        widget_refused(ctx, crd, spec.clone(), &[cause("Invalid", "spec", "Invalid value: bad")]).await?;
    }
    Ok(())
}

async fn rules_use_macros_over_lists_and_maps(ctx: Ctx) -> Result<()> {
    let properties = json!({
        "l": {"type": "array", "maxItems": 5, "items": {"type": "integer"}},
        "m": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 9}},
    });
    let list =
        "!has(self.l) || self.l.sum() < 10 && self.l.all(x, x > 0) && self.l.isSorted() && self.l.exists(x, x == 1)";
    let map = "!has(self.m) || self.m.all(k, k.matches('^[a-z]+$')) && !('zz' in self.m) && \
               self.m.map(k, self.m[k].size()).max() < 4";
    let rules = json!([{"rule": list, "message": "bad"}, {"rule": map, "message": "bad"}]);
    let crd = spec_with_rules(&ctx, properties, rules).await?;
    let bad = [
        json!({"l": [1, 9]}),
        json!({"l": [-1, 1]}),
        json!({"l": [2, 1]}),
        json!({"l": [2]}),
        json!({"m": {"A1": "x"}}),
        json!({"m": {"zz": "x"}}),
        json!({"m": {"a": "long"}}),
    ];
    all_break(&ctx, &crd, &bad).await?;
    accepted(&ctx, &crd, json!({"l": [1, 2], "m": {"a": "b"}})).await?;
    Ok(())
}

async fn rules_know_quantities_urls_and_times(ctx: Ctx) -> Result<()> {
    let text = json!({"type": "string", "maxLength": 40});
    let properties = json!({
        "q": text, "u": text, "at": {"type": "string", "format": "date-time"},
        "for": {"type": "string", "format": "duration"},
    });
    let rules = [
        "!has(self.q) || isQuantity(self.q) && quantity(self.q).isLessThan(quantity('10Gi'))",
        "!has(self.u) || isURL(self.u) && url(self.u).getScheme() == 'https'",
        "!has(self.at) || self.at > timestamp('2020-01-01T00:00:00Z')",
        "!has(self.__for__) || self.__for__ < duration('1h')",
    ];
    let rules: Value = rules.iter().map(|rule| json!({"rule": rule, "message": "bad"})).collect();
    let crd = spec_with_rules(&ctx, properties, rules).await?;
    let bad = [
        json!({"q": "20Gi"}),
        json!({"q": "many"}),
        json!({"u": "http://example.com"}),
        json!({"u": "nowhere"}),
        json!({"at": "2019-12-31T23:59:59Z"}),
        json!({"for": "2h"}),
    ];
    all_break(&ctx, &crd, &bad).await?;
    let good = json!({"q": "1500Mi", "u": "https://example.com", "at": "2021-01-01T00:00:00Z", "for": "5m"});
    accepted(&ctx, &crd, good).await?;
    Ok(())
}

async fn sets_are_compared_without_order(ctx: Ctx) -> Result<()> {
    let set = json!({"type": "array", "maxItems": 5, "items": {"type": "integer"}, "x-kubernetes-list-type": "set"});
    let rules = json!([{"rule": "self.s == [1, 2, 3]", "message": "bad"}]);
    let crd = spec_with_rules(&ctx, json!({"s": set}), rules).await?;
    accepted(&ctx, &crd, json!({"s": [3, 1, 2]})).await?;
    all_break(&ctx, &crd, &[json!({"s": [3, 1]})]).await
}

async fn a_rule_at_the_root_sees_the_name(ctx: Ctx) -> Result<()> {
    let mut crd = Crd::open(&ctx);
    let rule = json!([{"rule": "self.metadata.name != 'one'", "message": "not that one"}]);
    crd.version()["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = rule;
    let crd = crd.make(&ctx).await?;
    widget_refused(&ctx, &crd, json!({}), &[cause("Invalid", "<nil>", "Invalid value: not that one")]).await
}

/// Merges this into the spec of `one`.
async fn change(ctx: &Ctx, crd: &Crd, spec: Value) -> Result<crate::Reply> {
    ctx.patch(crd.path(ctx, "/one"), PatchType::Merge, &json!({"spec": spec})).await
}

async fn change_refused(ctx: &Ctx, crd: &Crd, spec: Value, wanted: &[Cause]) -> Result<()> {
    invalid(change(ctx, crd, spec).await?, &format!("Widget.{} \"one\"", crd.group), wanted)
}

async fn a_transition_rule_compares_with_the_old_value(ctx: Ctx) -> Result<()> {
    let rule = json!([{"rule": "self == oldSelf", "message": "a is immutable"}]);
    let crd = with_a(&ctx, json!({"type": "string", "x-kubernetes-validations": rule})).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": "x"}))).await?.code(201)?;
    let wanted = [cause("Invalid", "spec.a", "Invalid value: \"y\": a is immutable")];
    change_refused(&ctx, &crd, json!({"a": "y"}), &wanted).await?;
    change(&ctx, &crd, json!({"a": null})).await?.code(200)?;
    change(&ctx, &crd, json!({"a": "z"})).await?.code(200)?;
    Ok(())
}

async fn an_optional_old_value_may_be_absent(ctx: Ctx) -> Result<()> {
    let rule = "oldSelf.hasValue() ? oldSelf.value() == self : self == 'first'";
    let rule = json!([{"rule": rule, "optionalOldSelf": true, "message": "once"}]);
    let crd = with_a(&ctx, json!({"type": "string", "maxLength": 9, "x-kubernetes-validations": rule}));
    let crd = crd.make(&ctx).await?;
    let wanted = [cause("Invalid", "spec.a", "Invalid value: \"second\": once")];
    widget_refused(&ctx, &crd, json!({"a": "second"}), &wanted).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": "first"}))).await?.code(201)?;
    change_refused(&ctx, &crd, json!({"a": "second"}), &wanted).await
}

async fn items_of_list_maps_are_compared_by_key(ctx: Ctx) -> Result<()> {
    let properties = json!({"k": {"type": "string", "maxLength": 5}, "v": {"type": "integer"}});
    let rule = json!([{"rule": "self.v >= oldSelf.v", "message": "v may not shrink"}]);
    let item = json!({
        "type": "object", "required": ["k"], "properties": properties, "x-kubernetes-validations": rule,
    });
    let list = json!({
        "type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item,
    });
    let crd = with_a(&ctx, list).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": [{"k": "x", "v": 5}]}))).await?.code(201)?;
    let wanted = [cause("Invalid", "spec.a[1]", "Invalid value: v may not shrink")];
    change_refused(&ctx, &crd, json!({"a": [{"k": "new", "v": 1}, {"k": "x", "v": 4}]}), &wanted).await?;
    change(&ctx, &crd, json!({"a": [{"k": "new", "v": 1}, {"k": "x", "v": 6}]})).await?.code(200)?;
    Ok(())
}

async fn a_rule_forgives_what_did_not_change(ctx: Ctx) -> Result<()> {
    let text = json!({"type": "string", "maxLength": 5});
    let crd = with_properties(&ctx, json!({"a": text, "b": text})).make(&ctx).await?;
    ctx.post(crd.path(&ctx, ""), &crd.widget("one", json!({"a": "x"}))).await?.code(201)?;
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a/x-kubernetes-validations";
    let rule = json!([{"op": "add", "path": at, "value": [{"rule": "self == 'y'"}]}]);
    ctx.patch(crd.definition(), PatchType::Json, &rule).await?.code(200)?;
    eventually("the new rule", async || {
        ctx.post(crd.path(&ctx, "?dryRun=All"), &crd.widget("two", json!({"a": "x"}))).await?.code(422)
    })
    .await?;
    let reply = change(&ctx, &crd, json!({"b": "z"})).await?;
    assert_eq!(reply.warnings(), ["spec.a: Invalid value: \"x\": failed rule: self == 'y'"]);
    reply.code(200)?;
    let wanted = [cause("Invalid", "spec.a", "Invalid value: \"z\": failed rule: self == 'y'")];
    change_refused(&ctx, &crd, json!({"a": "z"}), &wanted).await
}

//! The CEL rules of a custom resource: compiled with the schema, bounded in cost, run on every write.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use fleetwright_cel::{
    Activation, CompileFailure, Decl, Env, EvalError, Program, RUNTIME_BUDGET, STATIC_CRD_LIMIT, STATIC_RULE_LIMIT,
    Type,
};
use fleetwright_schema::{Correlation, ErrorType, FieldError, ListType, Rule, Schema, field_path, text};
use fleetwright_syntax::regexp::{EFFORT_LIMIT, TOTAL_EFFORT_LIMIT, total_too_large};

/// The length limit of a message from a message expression.
const MAX_MESSAGE: usize = 5 * 1024;
/// What the limit on the effort of patterns applies to.
pub(super) const PATTERNS_OF: &str = "this CustomResourceDefinition";
/// The number of the most expensive rules named when the total cost is too high.
const MAX_EXPENSIVE: usize = 4;

/// A rule's programs.
struct CompiledRule {
    rule: Rule,
    program: Result<Program, String>,
    message: Option<Result<Program, String>>,
    uses_old_self: bool,
    /// `fieldPath` as errors print it.
    field: Option<String>,
}

/// Compiles an expression and adds the effort of its patterns, unless that of the patterns before exceeds the limit.
fn compile_program(env: &Env, source: &str, ty: Type, effort: &Cell<u64>) -> Result<Program, String> {
    if effort.get() > TOTAL_EFFORT_LIMIT {
        return Err(total_too_large(PATTERNS_OF, TOTAL_EFFORT_LIMIT));
    }
    let is_message = matches!(ty, Type::String);
    let compiled = Program::compile(env, source, ty);
    let spent = match &compiled {
        Ok(program) => program.pattern_effort(),
        Err(CompileFailure::Instantiation(_)) => EFFORT_LIMIT,
        Err(_) => 0,
    };
    effort.set(effort.get() + spent);
    compiled.map_err(|failure| failure.detail(is_message))
}

/// Compiles the rules of one node. None when rules cannot access values of its schema.
fn compile(
    raw: &Value,
    schema: &Schema,
    is_resource: bool,
    effort: &Cell<u64>,
) -> Option<(Arc<Decl>, Vec<CompiledRule>)> {
    let decl = Decl::from_schema(raw, is_resource)?;
    let env = Env::new().var("self", decl.clone());
    let compile_rule = |rule: &Rule| {
        let env = match rule.optional_old_self {
            Some(true) => env.clone().optional_var("oldSelf", decl.clone()),
            _ => env.clone().var("oldSelf", decl.clone()),
        };
        let program = compile_program(&env, &rule.rule, Type::Bool, effort);
        let expression = rule.message_expression.as_deref().filter(|expression| !expression.is_empty());
        let message = expression
            .filter(|_| program.is_ok())
            .map(|expression| compile_program(&env, expression, Type::String, effort));
        let given = rule.field_path.as_deref().filter(|path| !path.is_empty());
        let field = given.and_then(|path| Some(field_path::resolve(path, schema, true).ok()?.path("")));
        let uses_old_self = program.as_ref().is_ok_and(|program| program.uses("oldSelf"));
        CompiledRule { rule: rule.clone(), program, message, uses_old_self, field }
    };
    Some((decl.clone(), schema.rules.iter().map(compile_rule).collect()))
}

/// All errors in the rules of a schema: they do not compile, cost too much, or use an old value that
/// cannot be correlated. Adds the effort of all their patterns.
pub(super) fn check(schema: &Value, path: &str, effort: &Cell<u64>) -> Vec<FieldError> {
    let Ok(root) = Schema::from_openapi(schema) else { return Vec::new() };
    let mut checker = Checker { errors: Vec::new(), total: 0, costs: Vec::new(), effort };
    let place = NodeContext { path: path.to_owned(), cardinality: Some(1), uncorrelatable: None, is_resource: true };
    check_defaults(schema, &root, path, effort, &mut checker.errors);
    if !checker.errors.is_empty() {
        return checker.errors;
    }
    checker.visit(schema, &root, &place);
    if checker.total > STATIC_CRD_LIMIT {
        checker.costs.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, rule) in checker.costs.iter().take(MAX_EXPENSIVE) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            checker.errors.push(FieldError::forbidden(rule.as_str(), detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        checker.errors.push(FieldError::forbidden(path, too_costly(what, checker.total, STATIC_CRD_LIMIT)));
    }
    checker.errors
}

/// Defaults must satisfy the rules of their own schema, both as a new value and as an unchanged one.
fn check_defaults(raw: &Value, schema: &Schema, path: &str, effort: &Cell<u64>, errors: &mut Vec<FieldError>) {
    if let Some(default) = &schema.default
        && let Some(rules) = Rules::node(raw, &Arc::new(schema.clone()), schema.embedded_resource, effort)
    {
        let at = text::child(path, "default");
        let runs = [Some(default), None].map(|old| {
            let mut run = RuleEvaluation::default();
            // An exhausted budget is one of the errors.
            let _ = run.visit(&rules, default, old, &at, Ratchet { current: None, parent: None });
            run.errors
        });
        errors.extend(runs.into_iter().find(|found| !found.is_empty()).into_iter().flatten());
    }
    if let Some(items) = &schema.items {
        check_defaults(&raw["items"], items, &text::child(path, "items"), effort, errors);
    }
    for (name, property) in &schema.properties {
        let below = text::key(&text::child(path, "properties"), name);
        check_defaults(&raw["properties"][name], property, &below, effort, errors);
    }
}

fn too_costly(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// The context of a node in the schema.
struct NodeContext {
    path: String,
    /// The maximal number of occurrences of the node in one object; none without a bound.
    cardinality: Option<u64>,
    /// The list above the node whose items cannot be correlated with those of an old object.
    uncorrelatable: Option<String>,
    is_resource: bool,
}

impl NodeContext {
    fn below(&self, path: String, parent: &Schema, child: &Schema) -> Self {
        let factor = match (parent.ty, parent.additional_allowed) {
            (Some(fleetwright_schema::Type::Object), Some(_)) => parent.max_properties,
            (Some(fleetwright_schema::Type::Array), _) => parent.max_items,
            _ => Some(1),
        };
        Self {
            path,
            cardinality: self.cardinality.zip(factor).map(|(many, factor)| many.saturating_mul(factor)),
            uncorrelatable: self.uncorrelatable.clone(),
            is_resource: child.embedded_resource,
        }
    }
}

struct Checker<'a> {
    errors: Vec<FieldError>,
    total: u64,
    costs: Vec<(u64, String)>,
    effort: &'a Cell<u64>,
}

impl Checker<'_> {
    fn visit(&mut self, raw: &Value, schema: &Schema, place: &NodeContext) {
        let at = |name: &str| text::child(&place.path, name);
        if let Some(additional) = &schema.additional {
            let below = place.below(at("additionalProperties"), schema, additional);
            self.visit(&raw["additionalProperties"], additional, &below);
        }
        for (name, property) in &schema.properties {
            let below = place.below(text::key(&at("properties"), name), schema, property);
            self.visit(&raw["properties"][name], property, &below);
        }
        if let Some(items) = &schema.items {
            let mut below = place.below(at("items"), schema, items);
            if !matches!(schema.list_type, ListType::Map(_)) && below.uncorrelatable.is_none() {
                below.uncorrelatable = Some(place.path.clone());
            }
            self.visit(&raw["items"], items, &below);
        }
        if schema.rules.is_empty() {
            return;
        }
        let rules_at = at("x-kubernetes-validations");
        let Some((decl, compiled)) = compile(raw, schema, place.is_resource, self.effort) else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            self.errors.push(FieldError::internal(rules_at, detail));
            return;
        };
        let often = place.cardinality.unwrap_or_else(|| decl.max_cardinality());
        for (n, compiled) in compiled.iter().enumerate() {
            self.check_rule(compiled, &text::index(&rules_at, n), often, place);
        }
    }

    fn check_rule(&mut self, compiled: &CompiledRule, path: &str, often: u64, place: &NodeContext) {
        let at = |name: &str| text::child(path, name);
        match &compiled.program {
            Ok(program) => {
                let cost = program.estimated_cost().saturating_mul(often);
                if cost > STATIC_RULE_LIMIT {
                    let detail = too_costly("estimated rule cost", cost, STATIC_RULE_LIMIT);
                    self.errors.push(FieldError::forbidden(at("rule"), detail));
                }
                self.observe(at("rule"), cost);
            }
            Err(why) => self.errors.push(bad_rule(at("rule"), &compiled.rule, why)),
        }
        match &compiled.message {
            Some(Ok(program)) => {
                let cost = program.estimated_cost();
                if cost > STATIC_RULE_LIMIT {
                    let detail = too_costly("estimated messageExpression cost", cost, STATIC_RULE_LIMIT);
                    self.errors.push(FieldError::forbidden(at("messageExpression"), detail));
                }
                self.observe(at("messageExpression"), cost);
            }
            Some(Err(why)) => self.errors.push(bad_rule(at("messageExpression"), &compiled.rule, why)),
            None => {}
        }
        match (compiled.uses_old_self, &place.uncorrelatable, compiled.rule.optional_old_self) {
            (true, Some(list), _) => {
                let detail =
                    format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
                self.errors.push(FieldError::invalid(at("rule"), compiled.rule.rule.as_str(), detail));
            }
            (false, _, Some(optional)) => {
                let detail = "may not be set if oldSelf is not used in rule";
                self.errors.push(FieldError::invalid(at("optionalOldSelf"), optional, detail));
            }
            _ => {}
        }
    }

    fn observe(&mut self, path: String, cost: u64) {
        self.total = self.total.saturating_add(cost);
        // A rule with less than a hundredth of the limit is not reported.
        if cost >= STATIC_CRD_LIMIT / 100 {
            self.costs.push((cost, path));
        }
    }
}

/// The error of a rule that does not compile, with the whole rule as in the real server.
fn bad_rule(at: String, rule: &Rule, why: &str) -> FieldError {
    let quote = |text: &str| text::value(&serde_json::json!([text])).trim_matches(['[', ']']).to_owned();
    let text_of = |text: &Option<String>| quote(text.as_deref().unwrap_or(""));
    let shown = format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        quote(&rule.rule),
        text_of(&rule.message),
        text_of(&rule.message_expression),
        rule.reason.as_deref().map_or_else(|| "null".to_owned(), quote),
        text_of(&rule.field_path),
        rule.optional_old_self.map_or_else(|| "null".to_owned(), |optional| optional.to_string()),
    );
    FieldError { ty: ErrorType::Invalid, field: at, value: None, detail: format!("{shown}: {why}") }
}

/// The rules of a schema by node; nodes without rules in or below them are left out.
pub(super) struct Rules {
    schema: Arc<Schema>,
    compiled: Vec<CompiledRule>,
    items: Option<Box<Rules>>,
    additional: Option<Box<Rules>>,
    properties: BTreeMap<String, Rules>,
}

impl Rules {
    /// Compiles the rules of a version's schema, given as JSON and as parsed. None without rules.
    pub fn build(raw: &Value, schema: &Schema) -> Option<Self> {
        Self::node(raw, &Arc::new(schema.clone()), true, &Cell::new(0))
    }

    fn node(raw: &Value, schema: &Arc<Schema>, is_resource: bool, effort: &Cell<u64>) -> Option<Self> {
        let child = |raw: &Value, schema: &Arc<Schema>| Self::node(raw, schema, schema.embedded_resource, effort);
        let items = schema.items.as_ref().and_then(|items| child(&raw["items"], items)).map(Box::new);
        let additional = schema.additional.as_ref();
        let additional = additional.and_then(|values| child(&raw["additionalProperties"], values)).map(Box::new);
        let properties: BTreeMap<String, Rules> = schema
            .properties
            .iter()
            .filter_map(|(name, property)| Some((name.clone(), child(&raw["properties"][name], property)?)))
            .collect();
        let compiled = match schema.rules.is_empty() {
            true => Vec::new(),
            false => compile(raw, schema, is_resource, effort).map(|(_, compiled)| compiled).unwrap_or_default(),
        };
        if compiled.is_empty() && items.is_none() && additional.is_none() && properties.is_empty() {
            return None;
        }
        Some(Self { schema: schema.clone(), compiled, items, additional, properties })
    }

    /// Runs the rules on an object. Failures in an unchanged part are ratcheted (tolerated), unless the rule uses the
    /// old value itself; the second result lists them.
    pub fn check(&self, new: &Value, old: Option<&Value>) -> (Vec<FieldError>, Vec<String>) {
        let mut run = RuleEvaluation::default();
        let current = old.map(|old| Correlation { schema: &self.schema, new, old });
        // An exhausted budget ends the run; the errors found before it are kept.
        let _ = run.visit(self, new, old, "", Ratchet { current, parent: None });
        (run.errors, run.forgiven)
    }
}

/// The old values that decide whether an error is new.
#[derive(Clone, Copy)]
struct Ratchet<'a> {
    current: Option<Correlation<'a>>,
    parent: Option<Correlation<'a>>,
}

impl<'a> Ratchet<'a> {
    fn forgives(self) -> bool {
        self.current.or(self.parent).is_some_and(Correlation::equal)
    }

    fn below(self, child: Option<Correlation<'a>>) -> Self {
        match self.current {
            Some(current) => Self { current: child, parent: Some(current) },
            None => self,
        }
    }

    fn field(self, name: &str) -> Self {
        // A change of apiVersion is not visible here.
        if self.current.is_some() && self.parent.is_none() && matches!(name, "apiVersion" | "kind") {
            return Self { current: None, parent: None };
        }
        self.below(self.current.and_then(|current| current.field(name)))
    }
}

/// The cost budget is exhausted.
struct Exhausted;

struct RuleEvaluation {
    errors: Vec<FieldError>,
    /// Tolerated errors in unchanged parts, as texts for warnings.
    forgiven: Vec<String>,
    budget: u64,
}

impl Default for RuleEvaluation {
    fn default() -> Self {
        Self { errors: Vec::new(), forgiven: Vec::new(), budget: RUNTIME_BUDGET }
    }
}

impl RuleEvaluation {
    fn visit<'a>(
        &mut self,
        rules: &Rules,
        new: &'a Value,
        old: Option<&'a Value>,
        path: &str,
        ratchet: Ratchet<'a>,
    ) -> Result<(), Exhausted> {
        if new.is_null() {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        for compiled in &rules.compiled {
            self.run(compiled, rules, new, old, path, ratchet)?;
        }
        match new {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let was = old.and_then(|old| old.get(name));
                    if let Some(additional) = &rules.additional {
                        self.visit(additional, value, was, &text::key(path, name), ratchet.field(name))?;
                    }
                    if let Some(property) = rules.properties.get(name) {
                        self.visit(property, value, was, &text::child(path, name), ratchet.field(name))?;
                    }
                }
            }
            Value::Array(items) => {
                let Some(item_rules) = &rules.items else { return Ok(()) };
                let by_key = OldItems::new(&rules.schema, old);
                for (at, item) in items.iter().enumerate() {
                    let was = by_key.find(item);
                    let child = was.and_then(|old| {
                        Some(Correlation { schema: ratchet.current?.schema.items.as_deref()?, new: item, old })
                    });
                    self.visit(item_rules, item, was, &text::index(path, at), ratchet.below(child))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn run(
        &mut self,
        compiled: &CompiledRule,
        rules: &Rules,
        new: &Value,
        old: Option<&Value>,
        path: &str,
        ratchet: Ratchet<'_>,
    ) -> Result<(), Exhausted> {
        let rule = &compiled.rule;
        let ty = rules.schema.ty.map_or("", |ty| ty.name());
        let place = if path.is_empty() { "<nil>" } else { path };
        let program = match &compiled.program {
            Ok(program) => program,
            Err(why) => {
                // A rule that was accepted may be refused by a later version of this server: finalizers can be removed nevertheless.
                let error = FieldError::invalid(place, ty, format!("rule compile error: {why}"));
                match ratchet.forgives() {
                    true => self.forgiven.push(error.to_string()),
                    false => self.errors.push(error),
                }
                return Ok(());
            }
        };
        if compiled.uses_old_self && old.is_none() && rule.optional_old_self != Some(true) {
            return Ok(());
        }
        let mut activation = Activation::new().set("self", new);
        if let Some(old) = old {
            activation = activation.set("oldSelf", old);
        }
        let name = match rule.message.as_deref().map(str::trim) {
            Some(message) if !message.is_empty() => message,
            _ => rule.rule.trim(),
        };
        let out_of_budget =
            "validation failed due to running out of cost budget, no further validation rules will be run";
        match program.eval(&activation, &mut self.budget) {
            Ok(Value::Bool(true)) => return Ok(()),
            Ok(_) => {}
            Err(EvalError::BudgetExhausted) => {
                self.errors.push(FieldError::invalid(place, ty, out_of_budget));
                return Err(Exhausted);
            }
            Err(error @ EvalError::CostLimitExceeded) => {
                let detail = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                );
                self.errors.push(FieldError::invalid(place, ty, detail));
                return Err(Exhausted);
            }
            Err(error) => {
                let why = error.to_string();
                let detail = if why.starts_with("no such overload") {
                    format!(
                        "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                    )
                } else {
                    format!("{why} evaluating rule: {name}")
                };
                self.errors.push(FieldError::invalid(place, ty, detail));
                return Ok(());
            }
        }
        self.failed(compiled, &activation, (ty, new, path), !compiled.uses_old_self && ratchet.forgives())
    }

    /// Reports a failed rule.
    fn failed(
        &mut self,
        compiled: &CompiledRule,
        activation: &Activation<'_>,
        (ty, value, path): (&str, &Value, &str),
        forgiven: bool,
    ) -> Result<(), Exhausted> {
        let rule = &compiled.rule;
        let place = match &compiled.field {
            Some(field) => text::child(path, field),
            None if path.is_empty() => "<nil>".to_owned(),
            None => path.to_owned(),
        };
        let mut detail = match rule.message.as_deref() {
            Some(message) if !message.is_empty() => message.trim().to_owned(),
            _ => format!("failed rule: {}", rule.rule.trim()),
        };
        if let Some(Ok(program)) = &compiled.message {
            let stop = match program.eval(activation, &mut self.budget) {
                Ok(Value::String(message)) => {
                    let message = message.trim();
                    if !message.is_empty() && message.len() <= MAX_MESSAGE && !message.contains('\n') {
                        detail = message.to_owned();
                    }
                    None
                }
                Err(EvalError::BudgetExhausted) => Some(
                    "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
                        .to_owned(),
                ),
                Err(EvalError::CostLimitExceeded) => Some(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                    text::quote(rule.message_expression.as_deref().unwrap_or(""))
                )),
                // If the message expression fails, the plain message is used.
                Ok(_) | Err(_) => None,
            };
            if let Some(why) = stop {
                if !forgiven {
                    self.errors.push(FieldError::invalid(place, ty, why));
                }
                return Err(Exhausted);
            }
        }
        let omitted = matches!(ty, "object" | "array");
        let error_ty = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => ErrorType::Forbidden,
            Some("FieldValueRequired") => ErrorType::Required,
            Some("FieldValueDuplicate") => ErrorType::Duplicate,
            _ => ErrorType::Invalid,
        };
        // A duplicate is reported without the rule's message.
        let detail = if error_ty == ErrorType::Duplicate { String::new() } else { detail };
        let value = (!omitted).then(|| value.clone());
        let error = FieldError { ty: error_ty, field: place, value, detail };
        if forgiven {
            self.forgiven.push(error.to_string());
        } else {
            self.errors.push(error);
        }
        Ok(())
    }
}

/// The items of an old map list by their keys.
struct OldItems<'a> {
    keys: &'a [String],
    items: HashMap<String, &'a Value>,
}

impl<'a> OldItems<'a> {
    fn new(schema: &'a Schema, old: Option<&'a Value>) -> Self {
        let mut found = Self { keys: &[], items: HashMap::new() };
        if let (ListType::Map(keys), Some(Value::Array(old))) = (&schema.list_type, old) {
            found.keys = keys;
            for item in old.iter().filter(|item| item.is_object()).rev() {
                found.items.insert(found.key(item), item);
            }
        }
        found
    }

    fn key(&self, item: &Value) -> String {
        let part = |key: &String| item.get(key).map_or_else(|| "-".to_owned(), Value::to_string);
        self.keys.iter().map(part).collect::<Vec<_>>().join("\n")
    }

    fn find(&self, item: &Value) -> Option<&'a Value> {
        if self.keys.is_empty() || !item.is_object() {
            return None;
        }
        self.items.get(&self.key(item)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(rules: &Rules, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        rules.check(new, old).0
    }

    fn rules(schema: Value) -> Rules {
        Rules::build(&schema, &Schema::from_openapi(&schema).unwrap()).unwrap()
    }

    fn messages(errors: Vec<FieldError>) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn spec(extra: Value) -> Value {
        let mut spec = json!({"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"},
            "name": {"type": "string", "maxLength": 10}}});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"type": "object", "properties": {"spec": spec}})
    }

    #[test]
    fn a_rule_that_does_not_hold_is_reported_with_its_message() {
        let rules = rules(spec(json!({"x-kubernetes-validations": [
            {"rule": "self.min <= self.max"},
            {"rule": "self.min > 0", "message": "must be positive", "fieldPath": ".min", "reason": "FieldValueForbidden"},
            {"rule": "self.max < 5", "messageExpression": "'max is ' + string(self.max)"}]})));
        let found = messages(check(&rules, &json!({"spec": {"min": 0, "max": 7}}), None));
        assert_eq!(found, ["spec.min: Forbidden: must be positive", "spec: Invalid value: max is 7"]);
        let found = messages(check(&rules, &json!({"spec": {"min": 8, "max": 1}}), None));
        assert_eq!(found, ["spec: Invalid value: failed rule: self.min <= self.max"]);
    }

    #[test]
    fn a_transition_rule_runs_only_on_updates() {
        let rules = rules(spec(
            json!({"x-kubernetes-validations": [{"rule": "self.max >= oldSelf.max", "message": "may not shrink"}]}),
        ));
        let (small, large) = (json!({"spec": {"max": 1}}), json!({"spec": {"max": 2}}));
        assert!(check(&rules, &small, None).is_empty());
        assert!(check(&rules, &large, Some(&small)).is_empty());
        assert_eq!(messages(check(&rules, &small, Some(&large))), ["spec: Invalid value: may not shrink"]);
    }

    #[test]
    fn a_rule_with_an_optional_old_self_runs_on_creates_too() {
        let rules = rules(spec(json!({"x-kubernetes-validations": [
            {"rule": "oldSelf.hasValue() || self.max == 1", "optionalOldSelf": true, "message": "starts at one"}]})));
        assert_eq!(messages(check(&rules, &json!({"spec": {"max": 2}}), None)), ["spec: Invalid value: starts at one"]);
        assert!(check(&rules, &json!({"spec": {"max": 2}}), Some(&json!({"spec": {"max": 1}}))).is_empty());
    }

    #[test]
    fn what_did_not_change_is_forgiven() {
        let rules = rules(spec(json!({"x-kubernetes-validations": [{"rule": "self.min <= self.max"}]})));
        let old = json!({"spec": {"min": 2, "max": 1}, "status": {}});
        assert!(check(&rules, &old, Some(&old)).is_empty());
        assert_eq!(check(&rules, &json!({"spec": {"min": 3, "max": 1}}), Some(&old)).len(), 1);
    }

    #[test]
    fn items_of_a_map_list_meet_their_old_selves() {
        let rules = rules(
            json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["n"], "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]}}}}}}),
        );
        let old = json!({"l": [{"n": "a", "v": 1}, {"n": "b", "v": 2}]});
        let new = json!({"l": [{"n": "b", "v": 3}, {"n": "c", "v": 9}, {"n": "a", "v": 1}]});
        assert_eq!(messages(check(&rules, &new, Some(&old))), ["l[0].v: Invalid value: 3: fixed"]);
    }

    #[test]
    fn a_rule_that_does_not_compile_is_refused() {
        let schema = spec(json!({"x-kubernetes-validations": [{"rule": "self.nothing > 1"}]}));
        let found = messages(super::check(&schema, "s", &Cell::new(0)));
        assert_eq!(found.len(), 1);
        let start = "s.properties[spec].x-kubernetes-validations[0].rule: Invalid value: {\"Rule\":\"self.nothing \\u003e 1\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: compilation failed: ERROR: <input>:1:5: undefined field 'nothing'";
        assert!(found[0].starts_with(start), "{}", found[0]);
    }

    #[test]
    fn a_rule_that_may_cost_too_much_is_refused() {
        let schema = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a == b || a.contains(b)))"}]}}});
        let found = messages(super::check(&schema, "s", &Cell::new(0)));
        assert!(found[0].starts_with("s.properties[l].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x"), "{found:?}");
    }

    #[test]
    fn the_patterns_of_all_rules_are_limited_together() {
        let schema = spec(json!({"x-kubernetes-validations": [{"rule": "self.name.matches('^.{1000}$')"}]}));
        let effort = Cell::new(0);
        assert_eq!(messages(super::check(&schema, "s", &effort)), [] as [&str; 0]);
        assert!(effort.get() > 30_000);
        effort.set(TOTAL_EFFORT_LIMIT + 1);
        let found = messages(super::check(&schema, "s", &effort));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("s.properties[spec].x-kubernetes-validations[0].rule: Invalid value: "),
            "{found:?}"
        );
        let limit = "the patterns of this CustomResourceDefinition together take more than 2000000 units";
        assert!(found[0].contains(limit), "{found:?}");
    }

    #[test]
    fn a_default_keeps_to_its_rules() {
        let schema = spec(
            json!({"default": {"min": 2, "max": 1}, "x-kubernetes-validations": [{"rule": "self.min <= self.max"}]}),
        );
        let found = messages(super::check(&schema, "s", &Cell::new(0)));
        assert_eq!(found, ["s.properties[spec].default: Invalid value: failed rule: self.min <= self.max"]);
    }

    #[test]
    fn an_old_self_that_cannot_be_found_is_refused() {
        let schema = json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 3, "items": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
        let found = messages(super::check(&schema, "s", &Cell::new(0)));
        assert_eq!(
            found,
            [
                r#"s.properties[l].items.x-kubernetes-validations[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]"#
            ]
        );
    }
}

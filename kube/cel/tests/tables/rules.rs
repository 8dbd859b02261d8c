//! Programs as the server uses them for rules.

use fleetwright_cel::{Activation, CompileFailure, Decl, Env, Program, RUNTIME_BUDGET, Type};
use serde_json::json;

#[test]
fn a_rule_must_be_a_bool_and_a_message_a_string() {
    let env = Env::new().var("self", Decl::from_schema(&json!({"type": "integer"}), false).unwrap());
    let wrong = Program::compile(&env, "self + 1", Type::Bool).unwrap_err();
    assert_eq!(wrong.detail(false), "cel expression must evaluate to a bool");
    let wrong = Program::compile(&env, "self + 1", Type::String).unwrap_err();
    assert_eq!(wrong.detail(true), "messageExpression must evaluate to a string");
    let wrong = Program::compile(&env, "nope", Type::Bool).unwrap_err();
    assert!(matches!(wrong, CompileFailure::Invalid(_)));
    assert!(wrong.detail(false).starts_with("compilation failed: ERROR: <input>:1:1: undeclared reference to 'nope'"));
    assert!(wrong.detail(true).starts_with("messageExpression compilation failed: ERROR: <input>:1:1: "));
}

#[test]
fn a_program_knows_which_variables_it_uses() {
    let decl = Decl::from_schema(&json!({"type": "integer"}), false).unwrap();
    let env = Env::new().var("self", decl.clone()).var("oldSelf", decl);
    assert!(Program::compile(&env, "self >= oldSelf", Type::Bool).unwrap().uses("oldSelf"));
    assert!(!Program::compile(&env, "[1].all(oldSelf, oldSelf == self)", Type::Bool).unwrap().uses("oldSelf"));
}

#[test]
fn an_optional_old_value_is_none_on_create() {
    let decl = Decl::from_schema(&json!({"type": "integer"}), false).unwrap();
    let env = Env::new().var("self", decl.clone()).optional_var("oldSelf", decl);
    let program = Program::compile(&env, "oldSelf.optMap(o, o < self).orValue(self == 1)", Type::Bool).unwrap();
    let (one, two) = (json!(1), json!(2));
    let mut budget = RUNTIME_BUDGET;
    assert_eq!(program.eval(&Activation::new().set("self", &one), &mut budget), Ok(json!(true)));
    assert_eq!(program.eval(&Activation::new().set("self", &two), &mut budget), Ok(json!(false)));
    let update = Activation::new().set("self", &two).set("oldSelf", &one);
    assert_eq!(program.eval(&update, &mut budget), Ok(json!(true)));
}

#[test]
fn the_root_of_a_resource_shows_its_names() {
    let decl = Decl::from_schema(&json!({"type": "object", "properties": {}}), true).unwrap();
    let env = Env::new().var("self", decl);
    let program = Program::compile(&env, "self.metadata.name.startsWith('a') && self.kind == 'K'", Type::Bool).unwrap();
    let object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "abc", "labels": {}}});
    assert_eq!(program.eval(&Activation::new().set("self", &object), &mut RUNTIME_BUDGET.clone()), Ok(json!(true)));
    assert!(Program::compile(&env, "has(self.metadata.labels)", Type::Bool).is_err());
}

#[test]
fn programs_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Program>();
}

#[test]
fn cardinality_follows_from_the_smallest_serialised_form() {
    let schema =
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
    let decl = Decl::from_schema(&schema, false).unwrap();
    assert_eq!(decl.min_serialized_size, 2 + 1 + 2 + 4);
    assert_eq!(decl.max_cardinality(), 3 * 1024 * 1024 / 10);
}

//! Expressions and data that want to hurt: an error, never a panic, never an endless run.

use crate::common::{compile, run, schema};
use fleetwright_cel::{Activation, Decl, Env, PER_CALL_LIMIT, Program, Type};
use serde_json::{Value, json};

#[test]
fn nesting_beyond_the_limit_is_an_error() {
    let deep = [
        format!("{}1{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000)),
        "[".repeat(50_000),
        format!("1{}", " + 1".repeat(5_000)),
        format!("self{}", ".o".repeat(20_000)),
        format!("self{}", "[0]".repeat(20_000)),
        format!("{}true", "true ? true : ".repeat(3_000)),
    ];
    for expression in deep {
        let error = compile(&expression).err().unwrap_or_default();
        assert!(error.contains("expression recursion limit exceeded: 250"), "{}", &expression[..20]);
    }
}

#[test]
fn an_expression_that_is_too_long_is_an_error() {
    let error = compile(&" ".repeat(100_001)).err().unwrap_or_default();
    assert_eq!(error, "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100001, limit 100000");
}

#[test]
fn a_long_chain_of_alternatives_is_not_deep() {
    let expression = vec!["self.i == 1"; 5_000].join(" || ");
    assert_eq!(run(&expression).as_deref(), Ok("false"));
}

#[test]
fn a_macro_that_doubles_its_target_does_not_explode() {
    let expression = format!("optional.of(1){}.value()", ".optMap(x, x)".repeat(40));
    assert!(compile(&expression).is_err());
}

#[test]
fn types_that_double_do_not_explode() {
    let expression = format!("[1]{}.size() == 1", ".map(x, {x: x})".repeat(40));
    let _ = compile(&expression);
}

#[test]
fn lists_that_double_do_not_fill_memory() {
    let expression = format!("[self.ul]{}.size() > 0", ".map(x, x + x)".repeat(60));
    assert!(run(&expression).is_err());
}

#[test]
fn numbers_beyond_their_type_are_errors() {
    for expression in [
        "99999999999999999999999 > 0",
        "1e999 > 0.0",
        "0xffffffffffffffffff > 0",
        "18446744073709551616u > 0u",
        "9223372036854775807 + self.i > 0",
        "-9223372036854775808 - self.i > 0",
        "-9223372036854775808 % -1 == 0",
        "int('99999999999999999999') > 0",
        "duration('99999999999999999999h') > duration('1s')",
        "timestamp(9223372036854775807) > timestamp(0)",
        "quantity('1e99999999999') == quantity('1')",
    ] {
        assert!(run(expression).is_err(), "{expression}");
    }
}

#[test]
fn huge_exponents_of_quantities_stay_finite() {
    assert_eq!(run("quantity('1e2000000000').isGreaterThan(quantity('1Ei'))").as_deref(), Ok("true"));
    assert_eq!(run("sign(quantity('1e-2000000000'))").as_deref(), Ok("1"));
}

#[test]
fn patterns_are_linear_and_bounded() {
    let text = "a".repeat(30_000);
    let decl = Decl::from_schema(&json!({"type": "string"}), false).unwrap();
    let program = Program::compile(&Env::new().var("self", decl), "self.matches('^(a+)+$')", Type::Bool).unwrap();
    let value = json!(format!("{text}!"));
    let (result, _) = program.eval_with_cost(&Activation::new().set("self", &value), PER_CALL_LIMIT);
    assert_eq!(result, Ok(json!(false)));
    assert!(compile("self.s.matches('((a{1000}){1000}){1000}')").is_err());
    assert!(run("self.s.matches('(' + self.s)").is_err());
}

#[test]
fn the_effort_to_compile_patterns_is_limited() {
    let literals = |count| vec!["self.s.matches('^.{1000}$')"; count].join(" || ");
    assert_eq!(run(&literals(2)).as_deref(), Ok("false"));
    let error = compile(&literals(10)).err().unwrap_or_default();
    assert!(error.starts_with("the patterns of this expression together take more than 250000 units"), "{error}");

    // The effort of other patterns is a cost.
    let error = run("lists.range(100).all(i, !self.s.matches('^.{900}' + string(i)))").unwrap_err();
    assert_eq!(error, "operation cancelled: actual cost limit exceeded");
    for ordinary in [
        "lists.range(100).all(i, !self.s.matches('^.{900}' + self.u))",
        "lists.range(100).all(i, !self.s.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/' + string(i)))",
    ] {
        assert_eq!(run(ordinary).as_deref(), Ok("true"), "{ordinary}");
    }
    // So is the effort to search a long text with a large pattern, also one that was compiled before.
    let error = run("lists.range(20000).map(i, 'a').join().matches('(?s).*a.{900}b.{900}' + self.u)").unwrap_err();
    assert_eq!(error, "operation cancelled: actual cost limit exceeded");
}

#[test]
fn garbage_is_refused_without_a_panic() {
    for text in [
        "",
        " ",
        "\0",
        "'\\",
        "'\\u12'",
        "b'\\u0041'",
        "\"\"\"",
        "r'",
        "`",
        "`a`",
        "1u.",
        ".1.",
        "é",
        "'é",
        "😀",
        "a.`b`",
        "//x",
        "1 // x\n + 2",
    ] {
        let _ = compile(text);
    }
    let alphabet: Vec<&str> = "self . ( ) [ ] { } ? : , + - ! 'a' 1 in && all x == has".split(' ').collect();
    let mut seed = 1_u64;
    for _ in 0..3_000 {
        let mut text = String::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(alphabet[(seed >> 33) as usize % alphabet.len()]);
            text.push(' ');
        }
        let _ = run(&text);
    }
}

#[test]
fn data_that_contradicts_the_schema_is_an_error() {
    let expressions =
        ["self.i > 1", "self.l.all(x, x == 'a')", "self.t > self.t", "self.by.size() > 0", "self.o.x.y == ''"];
    let decl = Decl::from_schema(&schema(), false).unwrap();
    let env = Env::new().var("self", decl);
    for value in [Value::Null, json!(1), json!("x"), json!([]), json!({"i": "x", "l": 1, "t": "x", "by": "?", "o": 1})]
    {
        for expression in expressions {
            let program = Program::compile(&env, expression, Type::Bool).unwrap();
            let (result, _) = program.eval_with_cost(&Activation::new().set("self", &value), PER_CALL_LIMIT);
            assert!(result.is_err(), "{expression} on {value}");
        }
    }
}

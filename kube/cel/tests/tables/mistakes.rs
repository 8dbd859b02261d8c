//! Errors have the text and the position of the reference implementation.

use crate::common::compile;

#[test]
fn a_mistake_is_reported_with_its_place() {
    for (expression, want) in [
        ("9223372036854775808 > 0", &["ERROR: <input>:1:1: invalid int literal"] as &[&str]),
        (
            "1 == 1.0",
            &["ERROR: <input>:1:3: found no matching overload for '_==_' applied to '(int, double)'"] as &[&str],
        ),
        ("self.s.matches('(')", &["ERROR: <input>:1:16: invalid matches argument"] as &[&str]),
        ("'%s %s'.format(['a'])", &["ERROR: <input>:1:15: index 1 out of range"] as &[&str]),
        (
            "'%s'.format(['a', 'b'])",
            &["ERROR: <input>:1:12: too many arguments supplied to string.format (expected 1, got 2)"] as &[&str],
        ),
        (
            "'%d'.format(['a'])",
            &[
                "ERROR: <input>:1:14: error during formatting: decimal clause can only be used on integers, was given string",
            ] as &[&str],
        ),
        (
            "'%z'.format(['a'])",
            &[r#"ERROR: <input>:1:12: could not parse formatting clause: unrecognized formatting clause "z""#]
                as &[&str],
        ),
        ("duration('x') > duration('30m')", &["ERROR: <input>:1:10: invalid duration argument"] as &[&str]),
        (
            "timestamp('2021') < timestamp('2022-01-01T00:00:00Z')",
            &["ERROR: <input>:1:11: invalid timestamp argument"] as &[&str],
        ),
        ("{1: 'x', 2u: 'y'}", &["ERROR: <input>:1:10: expected type 'int' but found 'uint'"] as &[&str]),
        ("[1, 'a']", &["ERROR: <input>:1:5: expected type 'int' but found 'string'"] as &[&str]),
        ("[1, 2.0]", &["ERROR: <input>:1:5: expected type 'int' but found 'double'"] as &[&str]),
        ("{'a': 1, 'b': 'c'}", &["ERROR: <input>:1:15: expected type 'int' but found 'string'"] as &[&str]),
        (
            "1 + 'a'",
            &["ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'"] as &[&str],
        ),
        ("1 + 2u", &["ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, uint)'"] as &[&str]),
        ("self.nope", &["ERROR: <input>:1:5: undefined field 'nope'"] as &[&str]),
        ("self.s.nope", &["ERROR: <input>:1:7: type 'string' does not support field selection"] as &[&str]),
        ("self.i.nope", &["ERROR: <input>:1:7: type 'int' does not support field selection"] as &[&str]),
        ("nope", &["ERROR: <input>:1:1: undeclared reference to 'nope' (in container '')"] as &[&str]),
        ("nope()", &["ERROR: <input>:1:5: undeclared reference to 'nope' (in container '')"] as &[&str]),
        ("self.nope()", &["ERROR: <input>:1:10: undeclared reference to 'nope' (in container '')"] as &[&str]),
        (
            "self.s.size('a')",
            &["ERROR: <input>:1:12: found no matching overload for 'size' applied to 'string.(string)'"] as &[&str],
        ),
        ("self.i && true", &["ERROR: <input>:1:5: expected type 'bool' but found 'int'"] as &[&str]),
        ("!self.i", &["ERROR: <input>:1:1: found no matching overload for '!_' applied to '(int)'"] as &[&str]),
        (
            "self.b ? 1 : 'a'",
            &["ERROR: <input>:1:8: found no matching overload for '_?_:_' applied to '(bool, int, string)'"]
                as &[&str],
        ),
        (
            "self.i.all(x, x)",
            &[
                "ERROR: <input>:1:5: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
            ] as &[&str],
        ),
        ("self.l.all(1, true)", &["ERROR: <input>:1:12: argument must be a simple name"] as &[&str]),
        ("self.l.map(x.y, true)", &["ERROR: <input>:1:13: argument is not an identifier"] as &[&str]),
        ("has(self)", &["ERROR: <input>:1:5: invalid argument to has() macro"] as &[&str]),
        ("has(1)", &["ERROR: <input>:1:5: invalid argument to has() macro"] as &[&str]),
        (
            "1 +",
            &[
                "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        ("(1 + 2", &["ERROR: <input>:1:7: Syntax error: missing ')' at '<EOF>'"] as &[&str]),
        ("1 2", &["ERROR: <input>:1:3: Syntax error: extraneous input '2' expecting <EOF>"] as &[&str]),
        ("a b c", &["ERROR: <input>:1:3: Syntax error: mismatched input 'b' expecting <EOF>"] as &[&str]),
        ("[1, 2", &["ERROR: <input>:1:6: Syntax error: mismatched input '<EOF>' expecting {']', ','}"] as &[&str]),
        ("{'a' 1}", &["ERROR: <input>:1:6: Syntax error: missing ':' at '1'"] as &[&str]),
        ("self.", &["ERROR: <input>:1:6: Syntax error: no viable alternative at input '.'"] as &[&str]),
        (
            "self.s.startsWith(",
            &[
                "ERROR: <input>:1:19: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            "'abc",
            &[
                "ERROR: <input>:1:1: Syntax error: token recognition error at: ''abc'",
                "ERROR: <input>:1:5: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            "1 ~ 2",
            &[
                "ERROR: <input>:1:3: Syntax error: token recognition error at: '~'",
                "ERROR: <input>:1:5: Syntax error: extraneous input '2' expecting <EOF>",
            ] as &[&str],
        ),
        ("for > 1", &["ERROR: <input>:1:1: reserved identifier: for"] as &[&str]),
        ("self.for == 1", &["ERROR: <input>:1:5: undefined field 'for'"] as &[&str]),
        ("a ? b", &["ERROR: <input>:1:6: Syntax error: mismatched input '<EOF>' expecting ':'"] as &[&str]),
        (
            "cel.bind(x, 1, x)",
            &[
                "ERROR: <input>:1:1: undeclared reference to 'cel' (in container '')",
                "ERROR: <input>:1:9: undeclared reference to 'bind' (in container '')",
                "ERROR: <input>:1:10: undeclared reference to 'x' (in container '')",
                "ERROR: <input>:1:16: undeclared reference to 'x' (in container '')",
            ] as &[&str],
        ),
        (
            "null == self.s",
            &["ERROR: <input>:1:6: found no matching overload for '_==_' applied to '(null, string)'"] as &[&str],
        ),
        (
            "[1,2,3].exists(x, y == 1)",
            &["ERROR: <input>:1:19: undeclared reference to 'y' (in container '')"] as &[&str],
        ),
        ("Foo{a: 1}", &["ERROR: <input>:1:4: undeclared reference to 'Foo' (in container '')"] as &[&str]),
        (
            "self.s.reverse()",
            &["ERROR: <input>:1:15: found no matching overload for 'reverse' applied to 'string.()'"] as &[&str],
        ),
        ("-self.s", &["ERROR: <input>:1:1: found no matching overload for '-_' applied to '(string)'"] as &[&str]),
        ("true && 1", &["ERROR: <input>:1:9: expected type 'bool' but found 'int'"] as &[&str]),
        ("self.pu.zz == 1", &["ERROR: <input>:1:8: undefined field 'zz'"] as &[&str]),
        ("[1 2]", &["ERROR: <input>:1:4: Syntax error: extraneous input '2' expecting {']', ','}"] as &[&str]),
        (
            "[",
            &[
                "ERROR: <input>:1:2: Syntax error: mismatched input '<EOF>' expecting {'[', ']', '{', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            "{",
            &[
                "ERROR: <input>:1:2: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '}', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        ("{'a': 1", &["ERROR: <input>:1:8: Syntax error: mismatched input '<EOF>' expecting {'}', ','}"] as &[&str]),
        ("f(1", &["ERROR: <input>:1:4: Syntax error: missing ')' at '<EOF>'"] as &[&str]),
        ("f(1 2)", &["ERROR: <input>:1:5: Syntax error: extraneous input '2' expecting ')'"] as &[&str]),
        (
            "(",
            &[
                "ERROR: <input>:1:2: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            ")",
            &[
                "ERROR: <input>:1:1: Syntax error: mismatched input ')' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            "1 + * 2",
            &[
                "ERROR: <input>:1:5: Syntax error: extraneous input '*' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            "self.l.all(x, )",
            &[
                "ERROR: <input>:1:15: Syntax error: mismatched input ')' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            "self.l.all(x)",
            &[
                "ERROR: <input>:1:11: undeclared reference to 'all' (in container '')",
                "ERROR: <input>:1:12: undeclared reference to 'x' (in container '')",
            ] as &[&str],
        ),
        ("self.l.all()", &["ERROR: <input>:1:11: undeclared reference to 'all' (in container '')"] as &[&str]),
        ("'a' 'b'", &["ERROR: <input>:1:5: Syntax error: extraneous input ''b'' expecting <EOF>"] as &[&str]),
        (
            r#"self.s == "x"#,
            &[
                r#"ERROR: <input>:1:11: Syntax error: token recognition error at: '"x'"#,
                "ERROR: <input>:1:13: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        (
            "1 < 2 < 3",
            &["ERROR: <input>:1:7: found no matching overload for '_<_' applied to '(bool, int)'"] as &[&str],
        ),
        ("a.b.c", &["ERROR: <input>:1:1: undeclared reference to 'a' (in container '')"] as &[&str]),
        ("self..s", &["ERROR: <input>:1:6: Syntax error: no viable alternative at input '..'"] as &[&str]),
        ("self.s?.x", &["ERROR: <input>:1:10: Syntax error: mismatched input '<EOF>' expecting ':'"] as &[&str]),
        ("self.?nope", &["ERROR: <input>:1:5: undefined field 'nope'"] as &[&str]),
        (
            "self.l[?'a']",
            &["ERROR: <input>:1:7: found no matching overload for '_[?_]' applied to '(list(string), string)'"]
                as &[&str],
        ),
        (
            "self.?s.size()",
            &["ERROR: <input>:1:13: found no matching overload for 'size' applied to 'optional_type(string).()'"]
                as &[&str],
        ),
        ("true ? 1", &["ERROR: <input>:1:9: Syntax error: mismatched input '<EOF>' expecting ':'"] as &[&str]),
        (
            "true ? 1 : ",
            &[
                "ERROR: <input>:1:12: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        ("@foo", &["ERROR: <input>:1:1: Syntax error: token recognition error at: '@'"] as &[&str]),
        (
            "#",
            &[
                "ERROR: <input>:1:1: Syntax error: token recognition error at: '#'",
                "ERROR: <input>:1:2: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ] as &[&str],
        ),
        ("self.s.matches('[')", &["ERROR: <input>:1:16: invalid matches argument"] as &[&str]),
        ("self.o.x.y.z", &["ERROR: <input>:1:11: type 'string' does not support field selection"] as &[&str]),
        ("self.ml[0].q", &["ERROR: <input>:1:11: undefined field 'q'"] as &[&str]),
        ("self.m.a.b", &["ERROR: <input>:1:9: type 'string' does not support field selection"] as &[&str]),
        (
            "'abc'.sortBy(x, x)",
            &[
                "ERROR: <input>:1:1: sortBy can only be applied to a list, identifier, comprehension, call or select expression",
            ] as &[&str],
        ),
        ("'%'.format([5])", &["ERROR: <input>:1:11: unexpected end of string"] as &[&str]),
        (
            "'%s'.format([self.o])",
            &[
                "ERROR: <input>:1:18: error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given selfType.o",
            ] as &[&str],
        ),
        ("timestamp('0000-01-01T00:00:00Z')", &["ERROR: <input>:1:11: invalid timestamp argument"] as &[&str]),
        ("duration('10000000h')", &["ERROR: <input>:1:10: invalid duration argument"] as &[&str]),
        (
            "self.ml[0] == {'k': 'a', 'v': 1}",
            &[
                "ERROR: <input>:1:12: found no matching overload for '_==_' applied to '(selfType.ml.@idx, map(string, dyn))'",
            ] as &[&str],
        ),
        (
            "{'a': 1} == {'a': 1.0}",
            &[
                "ERROR: <input>:1:10: found no matching overload for '_==_' applied to '(map(string, int), map(string, double))'",
            ] as &[&str],
        ),
        (
            "[1] == [1.0]",
            &["ERROR: <input>:1:5: found no matching overload for '_==_' applied to '(list(int), list(double))'"]
                as &[&str],
        ),
        (
            "{1: 'a'}[1u] == 'a'",
            &["ERROR: <input>:1:9: found no matching overload for '_[_]' applied to '(map(int, string), uint)'"]
                as &[&str],
        ),
        ("[1,2].map(x, x.y)", &["ERROR: <input>:1:15: type 'int' does not support field selection"] as &[&str]),
        (
            "self.l.filter(x, x)",
            &[
                "ERROR: <input>:1:14: found no matching overload for '_?_:_' applied to '(string, list(string), list(string))'",
            ] as &[&str],
        ),
        (
            "self.l.filter(x, x == 1)",
            &["ERROR: <input>:1:20: found no matching overload for '_==_' applied to '(string, int)'"] as &[&str],
        ),
        ("self.l.exists(x, x)", &["ERROR: <input>:1:18: expected type 'bool' but found 'string'"] as &[&str]),
        (
            "self.l.exists_one(x, x)",
            &["ERROR: <input>:1:18: found no matching overload for '_?_:_' applied to '(string, int, int)'"]
                as &[&str],
        ),
        ("self.l.map(x, y, x)", &["ERROR: <input>:1:15: undeclared reference to 'y' (in container '')"] as &[&str]),
        (
            "self.l.all(x, x == 'a' || nope)",
            &["ERROR: <input>:1:27: undeclared reference to 'nope' (in container '')"] as &[&str],
        ),
        ("self.l.all(@x, true)", &["ERROR: <input>:1:12: Syntax error: token recognition error at: '@'"] as &[&str]),
        ("self.l.all(x, x, true)", &["ERROR: <input>:1:15: duplicate variable name: x"] as &[&str]),
        (
            "self.l.all(__result__, true)",
            &["ERROR: <input>:1:12: iteration variable overwrites accumulator variable"] as &[&str],
        ),
        (
            "[[1, [2]], [3]].flatten(2).size()",
            &[
                "ERROR: <input>:1:6: expected type 'int' but found 'list(int)'",
                "ERROR: <input>:1:12: expected type 'list(dyn)' but found 'list(int)'",
            ] as &[&str],
        ),
        (
            "[[1, [2]], [3]].flatten(-1).size()",
            &[
                "ERROR: <input>:1:6: expected type 'int' but found 'list(int)'",
                "ERROR: <input>:1:12: expected type 'list(dyn)' but found 'list(int)'",
            ] as &[&str],
        ),
        (
            "[1, 2].flatten()",
            &["ERROR: <input>:1:15: found no matching overload for 'flatten' applied to 'list(int).()'"] as &[&str],
        ),
        ("[3, 'a'].sort()", &["ERROR: <input>:1:5: expected type 'int' but found 'string'"] as &[&str]),
        ("self.pu.zz", &["ERROR: <input>:1:8: undefined field 'zz'"] as &[&str]),
        (
            "self.o.a-b",
            &[
                "ERROR: <input>:1:7: undefined field 'a'",
                "ERROR: <input>:1:10: undeclared reference to 'b' (in container '')",
            ] as &[&str],
        ),
        ("self.namespace", &["ERROR: <input>:1:5: undefined field 'namespace'"] as &[&str]),
    ] {
        let error = compile(expression).err().unwrap_or_default();
        let lines: Vec<&str> = error.lines().filter(|l| l.starts_with("ERROR")).collect();
        assert_eq!(lines, want, "{expression}");
    }
}

#[test]
fn the_place_is_shown_under_the_line() {
    let error = compile("self.s ==\n  nope").err().unwrap_or_default();
    assert_eq!(error, "ERROR: <input>:2:3: undeclared reference to 'nope' (in container '')\n |   nope\n | ..^");
}

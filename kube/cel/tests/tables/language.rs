//! The language itself: operators, macros, conversions, optional values.

use crate::common::{fails, gives};

#[test]
fn operators_do_as_in_the_reference() {
    gives(&[
        ("1 + 2 * 3 - 4 / 2 % 3", "5"),
        ("-9223372036854775808 < 0", "true"),
        ("0xFFu == 255u", "true"),
        ("1.5e3 == 1500.0", "true"),
        ("1 < 1.5", "true"),
        ("self.n * 2.0 == 5.0", "true"),
        (r#""abc" + 'd' == "abcd""#, "true"),
        (r"r'\d' == '\\d'", "true"),
        (r#""""multi"line""" == 'multi"line'"#, "true"),
        (r"'\u00e9\x41\101\n'.size()", "4"),
        (r"b'\xff\377'.size()", "2"),
        ("'a' in self.l", "true"),
        ("'k1' in self.m", "true"),
        ("5 in [1,2,5]", "true"),
        ("self.l[0] == 'a'", "true"),
        ("self.m.k1 == 'v1'", "true"),
        ("self.absent == 'x' || true", "true"),
        ("size(self.by)", "5"),
        ("self.ios == '50%'", "true"),
        ("self.o.a__dash__b == 'q' && self.o.__namespace__ == 7", "true"),
        ("self.set == ['y', 'x']", "true"),
        ("self.set + ['x', 'z'] == ['x', 'y', 'z']", "true"),
        ("(self.set + ['x', 'z']).size()", "3"),
        ("['y','x'] == self.set", "false"),
        ("self.ml == [self.ml[1], self.ml[0]]", "true"),
        ("self.e == 'aa'", "true"),
        ("{'a': 1, 'b': 2}['b']", "2"),
        ("{'a': 1}.a", "1"),
        ("[[], [1]].size()", "2"),
        ("self.o == null", "false"),
        ("!true || !!true", "true"),
        ("--1", "1"),
        ("- 1", "-1"),
        ("-self.i", "-5"),
        ("self.s == self.u", "false"),
        ("self.u == self.u", "true"),
        ("self.u in self.l", "false"),
        ("self.i in self.ul", "false"),
        ("self.s + self.u == 'x'", "false"),
        ("self.l + self.l == ['a']", "false"),
        ("(self.b ? self.s : self.u).size() > 0", "true"),
        ("self.by == b'hello'", "true"),
        ("self.pu == self.pu", "true"),
        ("self.o.x == self.o.x", "true"),
        ("self == self", "true"),
        ("{'a': self.i}.a == 5", "true"),
        ("[self.i][0] == 5", "true"),
        ("size(self.l) + size(self.m) + size(self.s)", "10"),
        ("self.b ? self.s : self.u", "hello"),
        ("self.b ? self.o.x.y : self.u", "z"),
        ("self.m[self.s] == 'x' || true", "true"),
        ("self.l[self.i - 5] == 'a'", "true"),
        ("self.s in ['a', 'hello']", "true"),
        ("self.s in []", "false"),
        ("self.i in [1, self.i]", "true"),
        ("1 == 1 == true", "true"),
        ("{'a': {'b': 1}}.a.b", "1"),
        ("0.0 / 0.0 == 0.0 / 0.0", "false"),
        ("null == null", "true"),
        ("[1, 2] == [2, 1]", "false"),
        ("{'a': 1} == {'b': 1}", "false"),
        ("{1: 'a', 1: 'b'}.size()", "1"),
        ("1 in {1: 'a'}", "true"),
        ("true || 1/0 == 1", "true"),
        ("1/0 == 1 || true", "true"),
        ("1/0 == 1 && false", "false"),
        ("self.ios in [1, 2]", "false"),
        ("self.ios == 5 || self.ios == '50%'", "true"),
        ("self.o.__namespace__", "7"),
    ]);
}

#[test]
fn operators_do_as_in_the_reference_and_fail_with_its_words() {
    fails(&[
        ("self.i + 9223372036854775807 > 0", "integer overflow"),
        ("1 / 0 == 1", "division by zero"),
        ("1 % 0 == 1", "modulus by zero"),
        ("-(-9223372036854775807 - 1) > 0", "integer overflow"),
        ("1u - 2u == 0u", "unsigned integer overflow"),
        ("self.l[5] == 'a'", "index out of bounds: 5"),
        ("self.m['nope'] == 'a'", "no such key: nope"),
        ("self.m.nope == 'v1'", "no such key: nope"),
        ("self.absent == 'x'", "no such key: absent"),
        ("self.ios > 5", "no such overload"),
        ("{}.a", "no such key: a"),
        ("0.0 / 0.0 < 1.0", "NaN values cannot be ordered"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("-9223372036854775808 / -1", "integer overflow"),
        ("9223372036854775807 * 2", "integer overflow"),
        ("1/0 == 1 || false", "division by zero"),
    ]);
}

#[test]
fn macros_fold_lists_and_maps() {
    gives(&[
        ("has(self.absent)", "false"),
        ("has(self.s) && !has(self.absent)", "true"),
        ("has(self.o.x.y)", "true"),
        ("self.l.all(x, x.size() == 1)", "true"),
        ("self.l.exists(x, x == 'c')", "true"),
        ("self.l.exists_one(x, x == 'c')", "true"),
        ("self.ul.filter(x, x > 1).size()", "3"),
        ("self.ul.map(x, x > 1, x + 1).size()", "3"),
        ("self.m.exists(k, self.m[k] == 'v2')", "true"),
        ("self.l.all(i, x, i < 3 && x != '')", "true"),
        ("self.l.exists(i, x, i == 2 && x == 'c')", "true"),
        ("self.um.transformMap(k, v, v + 1).size()", "2"),
        ("self.um.transformMap(k, v, v > 1, v + 1)['two']", "3"),
        ("self.um.transformMapEntry(k, v, {v: k})[1]", "one"),
        ("self.l.existsOne(i, x, x == 'a')", "true"),
        ("self.ml.exists(e, e.k == 'a' && e.v == 1)", "true"),
        ("self.ul.all(x, self.ul.all(y, x == y))", "false"),
        ("self.l.all(x, self.ml.all(y, y.k == x))", "false"),
        ("self.um.all(k, k == 'a')", "false"),
        ("self.um.all(k, v, v > 0)", "true"),
        ("self.ml.filter(x, x.v > 1).map(x, x.k) == ['b']", "true"),
        ("(self.b ? self.l : self.set).all(x, x == 'a')", "false"),
        ("self.ul.exists_one(x, x == 1)", "true"),
        ("self.ul.map(x, {'a': x}).size()", "4"),
        ("self.l.transformMap(i, v, v).size()", "3"),
        ("self.l.map(x, x)[0] == 'a'", "true"),
        ("self.l.map(x, x)[0].size() == 1", "true"),
        ("self.m.map(k, k).size()", "2"),
        ("self.l.map(x, self.m).size()", "3"),
        ("self.l.map(x, self.o)[0].x.y", "z"),
        ("[self.u, self.s].exists(x, x == 'a')", "false"),
        ("[self.u, 'abc'].map(x, x + 'a').exists(x, x == 'a')", "false"),
        ("{'a': self.u}.all(k, v, v == k)", "false"),
        ("[1,2,3].all(x, x > 0) && [1,2,3].exists(x, x > 2)", "true"),
        ("self.m.transformMap(k, v, v + 'a')['k1'].size()", "3"),
        ("dyn([1]).all(x, x == 1)", "true"),
        ("has({'a': 1}.b)", "false"),
        ("has(dyn(1).b)", "false"),
        ("[0, 5].all(x, 1/x == 1)", "false"),
        ("[0, 1].exists(x, 1/x == 1)", "true"),
    ]);
}

#[test]
fn macros_fold_lists_and_maps_and_fail_with_its_words() {
    fails(&[("[1, 0].all(x, 1/x == 1)", "division by zero"), ("[0, 2].exists(x, 1/x == 1)", "division by zero")]);
}

#[test]
fn conversions_and_dynamic_values_are_checked_when_they_run() {
    gives(&[
        ("dyn(1) == 1u", "true"),
        ("b'abc' == bytes('abc')", "true"),
        ("string(self.by)", "hello"),
        ("int('12') + int(3.9) + int(2u)", "17"),
        ("double('1.5')", "1.5"),
        ("bool('true')", "true"),
        ("string(1.0)", "1"),
        ("string(1e100)", "1e+100"),
        ("string(true)", "true"),
        ("type(self.i) == int", "true"),
        ("type(self.ios) == string", "true"),
        ("type(self.l) == list", "true"),
        ("type(1u) == uint && type(null) == null_type", "true"),
        ("dyn(self.s) == 1", "false"),
        ("dyn(self.u) == 'a'", "false"),
        ("bytes(self.u).size()", "11"),
        ("string(bytes(self.u)) == self.u", "true"),
        ("self.l[int(self.n) - 2] == 'a'", "true"),
        ("type(type(1)) == type", "true"),
        ("type(self) == type(self)", "true"),
        ("string(123456789.0)", "1.23456789e+08"),
        ("string(0.1)", "0.1"),
        ("string(1e21)", "1e+21"),
        ("string(1e20)", "1e+20"),
        ("string(-0.0)", "-0"),
        ("string(1.0e-7)", "1e-07"),
        ("uint('12')", "12"),
        ("2.0 == dyn(2u)", "true"),
        ("dyn(1) < dyn(2u)", "true"),
        ("dyn({'a': 1}).a", "1"),
    ]);
}

#[test]
fn conversions_and_dynamic_values_are_checked_when_they_run_and_fail_with_its_words() {
    fails(&[
        ("int('x')", "type conversion error from 'string' to 'int'"),
        ("int(1e30)", "integer overflow"),
        ("uint(-1)", "unsigned integer overflow"),
        ("bool('yes')", "type conversion error from 'string' to 'bool'"),
        (r"string(b'\xff')", "invalid UTF-8 in bytes, cannot convert to string"),
        ("double('abc')", "type conversion error from 'string' to 'double'"),
        ("double('NaN') > 1.0", "NaN values cannot be ordered"),
        ("dyn('a') < dyn(1)", "no such overload"),
        ("dyn('a') + dyn(1)", "no such overload"),
        ("dyn(1) && true", "no such overload"),
        ("dyn(1).size()", "no such overload: size"),
        ("dyn({'a': 1}).b", "no such key: b"),
        ("dyn(1).b", "no such key: b"),
        ("int(self.ios) > 5", "type conversion error from 'string' to 'int'"),
    ]);
}

#[test]
fn optional_values_stand_for_what_may_be_absent() {
    gives(&[
        ("self.?absent.orValue('d')", "d"),
        ("self.?s.orValue('d')", "hello"),
        ("self.?s.hasValue()", "true"),
        ("self.m[?'nope'].orValue('zz')", "zz"),
        ("self.l[?7].hasValue()", "false"),
        ("optional.of(1).value()", "1"),
        ("optional.ofNonZeroValue('').hasValue()", "false"),
        ("optional.of(2).optMap(x, x * 2).value()", "4"),
        ("self.?o.?x.?y.orValue('n')", "z"),
        ("self.?o.x.y.orValue('n')", "z"),
        ("[?optional.of(1), ?optional.none()].size()", "1"),
        ("{?'a': optional.of(1)}.size()", "1"),
        ("optional.none().or(optional.of(3)).value()", "3"),
        ("optional.of(self.u).optMap(x, x + x).orValue('')", "wörld/pathwörld/path"),
        ("optional.of(self.l).optMap(x, x.size()).value()", "3"),
    ]);
}

#[test]
fn optional_values_stand_for_what_may_be_absent_and_fail_with_its_words() {
    fails(&[("optional.none().value()", "optional.none() dereference")]);
}

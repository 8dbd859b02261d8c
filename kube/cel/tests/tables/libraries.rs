//! The function libraries.

use crate::common::{fails, gives};

#[test]
fn the_string_functions_do_as_in_the_reference() {
    gives(&[
        ("self.i > 3 && self.s.startsWith('he')", "true"),
        ("self.m.all(k, k.startsWith('k'))", "true"),
        ("self.ul.indexOf(2)", "2"),
        ("self.l.lastIndexOf('c')", "2"),
        ("self.l.join(',')", "a,b,c"),
        ("self.l.join()", "abc"),
        ("self.u.split('/').size()", "2"),
        ("self.u.split('').size()", "10"),
        ("self.s.split('l', 2)[1]", "lo"),
        ("self.u.replace('w', 'WW')", "WWörld/path"),
        ("self.u.replace('', '-')", "-w-ö-r-l-d-/-p-a-t-h-"),
        ("self.u.substring(1, 3)", "ör"),
        ("self.u.substring(9)", "h"),
        ("self.u.charAt(1)", "ö"),
        ("self.u.indexOf('r')", "2"),
        ("self.u.lastIndexOf('r')", "2"),
        ("self.u.indexOf('r', 20)", "-1"),
        ("self.u.upperAscii()", "WöRLD/PATH"),
        ("self.u.lowerAscii()", "wörld/path"),
        ("' x '.trim()", "x"),
        ("self.s.matches('^h.*o$')", "true"),
        ("self.s.find('l+')", "ll"),
        ("self.s.findAll('l').size()", "2"),
        ("self.s.findAll('l', 1).size()", "1"),
        ("self.s.contains('ell')", "true"),
        ("self.s.endsWith('lo')", "true"),
        (r#"strings.quote('a"b\n')"#, r#""a\"b\n""#),
        ("sets.contains([1,2],[1])", "true"),
        ("self.ios.matches('[0-9]+%')", "true"),
        ("type(self.ios) == int ? self.ios < 5 : self.ios.endsWith('%')", "true"),
        ("self.u.matches(self.u)", "true"),
        ("self.u.contains(self.u)", "true"),
        ("self.l.map(x, x + 'y').join(',')", "ay,by,cy"),
        ("self.u.split(',').all(x, x.size() > 2)", "true"),
        ("self.u.split(',').map(x, x == 'foo').size()", "1"),
        ("[self.s, self.u].all(x, x.matches('a+'))", "false"),
        ("self.u.replace('ab', 'c').size()", "10"),
        ("self.u.lowerAscii() == 'x'", "false"),
        ("self.s.lowerAscii().upperAscii().contains('X')", "false"),
        ("self.l.indexOf('a') == 0", "true"),
        ("self.u.indexOf('a') == 0", "false"),
        ("self.s.find('a+') == ''", "true"),
        ("sets.contains(self.l, self.set)", "false"),
        ("self.l.filter(x, x.matches('^a')).size() == 1", "true"),
        ("self.ul.map(x, string(x)).join()", "3122"),
        ("self.u.matches('a') ? self.u : self.s", "wörld/path"),
        ("(self.u.matches('a') ? self.u : self.s).contains('b')", "false"),
        ("self.l.transformList(i, v, v + self.u).join()", "awörld/pathbwörld/pathcwörld/path"),
        ("self.u.split('/').map(x, x.size()).sum()", "9"),
        ("self.u.findAll('[a-z]+').join('-')", "w-rld-path"),
        ("self.ml.map(x, x.k).sort().join()", "ab"),
        ("self.s.charAt(5)", ""),
        ("self.s.replace('l', 'L', 1)", "heLlo"),
        ("self.s.lastIndexOf('l', 2)", "2"),
        ("self.s.lastIndexOf('')", "5"),
        ("self.s.indexOf('', 10)", "5"),
        ("'a,b,c'.split(',', 0).size()", "0"),
        ("'a,b,c'.split(',', -1).size()", "3"),
        ("''.split(',').size()", "1"),
        ("''.split('').size()", "0"),
    ]);
}

#[test]
fn the_string_functions_do_as_in_the_reference_and_fail_with_its_words() {
    fails(&[
        ("self.u.substring(19)", "index out of range: 19"),
        ("self.s.substring(3, 1)", "invalid substring range. start: 3, end: 1"),
        ("self.s.substring(-1)", "index out of range: -1"),
        ("self.s.charAt(6)", "index out of range: 6"),
        ("self.s.indexOf('a', -1)", "index out of range: -1"),
    ]);
}

#[test]
fn format_prints_each_clause() {
    gives(&[
        ("'%s is %d or %f'.format(['a', 1, 2.5])", "a is 1 or 2.500000"),
        (
            "'%.2f %e %x %X %b %o'.format([1234.567, 1234.567, 255, 'hi', 5, 8])",
            "1,234.57 1.234567×10⁰³ ff 6869 101 10",
        ),
        ("'%s'.format([[1, 2]])", "[1, 2]"),
        ("'%s'.format([self.d])", "5400s"),
        ("'%s'.format([self.t])", "2024-02-29T12:34:56.789Z"),
        ("'%s'.format([self.u]).size()", "10"),
        ("'%s'.format([b'ab'])", "ab"),
        ("'%s|%s|%s'.format([null, true, 1u])", "null|true|1"),
        ("'%s'.format([type(1)])", "int"),
        (
            "'%s'.format([[self.s, self.t, self.d, 1.5, null, true]])",
            r#"["hello", timestamp("2024-02-29T12:34:56.789Z"), duration("5400s"), 1.500000, null, true]"#,
        ),
        ("'%x'.format([-255])", "-ff"),
        ("'%b'.format([true])", "1"),
        ("'%.3e'.format([0.00012345])", "1.234500×10⁻⁰⁴"),
        ("'%f'.format([1234567.0])", "1,234,567.000000"),
        ("'%.0f'.format([2.5])", "2"),
        ("'%d%%'.format([5])", "5%"),
    ]);
}

#[test]
fn the_list_and_set_functions_do_as_in_the_reference() {
    gives(&[
        ("self.ul.map(x, x * 2).sum()", "16"),
        ("self.ul.transformList(i, v, i * v).sum()", "11"),
        ("[1,2,3].map(x, [x]).flatten().size()", "3"),
        ("self.ul.sort()[0]", "1"),
        ("self.ul.distinct().size()", "3"),
        ("self.ul.reverse()[0]", "2"),
        ("self.ul.slice(1,3).size()", "2"),
        ("self.ul.sortBy(x, -x)[0]", "3"),
        ("lists.range(4).sum()", "6"),
        ("self.ml.sortBy(x, -x.v)[0].k", "b"),
        ("self.ul.min() + self.ul.max()", "4"),
        ("self.ul.isSorted()", "false"),
        ("self.l.isSorted()", "true"),
        ("sets.equivalent([1,2],[2,1,1])", "true"),
        ("sets.intersects([1],[2])", "false"),
        ("self.ml.map(e, e.v).sum()", "3"),
        ("optional.of([1,2]).optFlatMap(l, l.first()).value()", "1"),
        ("self.l.first().value() + self.l.last().value()", "ac"),
        ("[optional.of(1), optional.none()].unwrapOpt().size()", "1"),
        ("self.ul.sum() > 3", "true"),
        ("self.l.sort().size()", "3"),
        ("self.um.map(k, self.um[k]).sum()", "3"),
        ("self.l.max() == 'c'", "true"),
        ("self.l.distinct().size() == self.l.size()", "true"),
        ("self.ul.map(x, [x, x]).flatten().sum()", "16"),
        ("[duration('1s'), duration('2s')].max() == duration('2s')", "true"),
        ("lists.range(self.i).map(x, x * x).sum()", "30"),
        ("self.ul.slice(0, 2).reverse().sum()", "4"),
        ("self.ml.sortBy(x, x.k).size()", "2"),
        ("[[self.u]].flatten()[0] == 'a'", "false"),
        ("self.l.first().optMap(x, x + '!').orValue('none')", "a!"),
    ]);
}

#[test]
fn the_list_and_set_functions_do_as_in_the_reference_and_fail_with_its_words() {
    fails(&[
        ("self.ul.slice(1,30).size()", "cannot slice(1, 30), list is length 4"),
        ("[].min()", "min called on empty list"),
        ("lists.range(1000000000)", "lists.range: size 1000000000 exceeds maximum allowed (1000000)"),
        ("lists.range(-1)", "lists.range: size must be non-negative, got -1"),
        ("self.l.slice(2, 1)", "cannot slice(2, 1), start index must be less than or equal to end index"),
        ("self.l.slice(-1, 1)", "cannot slice(-1, 1), negative indexes not supported"),
        ("[null].sort()", "list elements must be comparable"),
    ]);
}

#[test]
fn quantities_compare_and_add() {
    gives(&[
        ("quantity('1.5Gi').isGreaterThan(quantity('1Gi'))", "true"),
        ("quantity('200m').add(quantity('1')).compareTo(quantity('1200m'))", "0"),
        ("quantity('1k').asInteger()", "1000"),
        ("quantity('1000m').isInteger()", "false"),
        ("quantity('1.5').asApproximateFloat()", "1.5"),
        ("sign(quantity('-1'))", "-1"),
        ("quantity('1').sub(1).isLessThan(quantity('1'))", "true"),
        ("isQuantity('1x')", "false"),
        ("quantity('1') == quantity('1000m')", "true"),
        ("quantity('1Ki').asInteger()", "1024"),
        ("quantity('1.5Ki').isInteger()", "false"),
        ("quantity('1e3').asInteger()", "1000"),
        ("quantity('1E').asInteger()", "1000000000000000000"),
        ("quantity('.5').asApproximateFloat()", "0.5"),
        ("quantity('5.').asInteger()", "5"),
        ("quantity('99999999999999999999').isInteger()", "false"),
        ("quantity('50k').add(20).asInteger()", "50020"),
        ("quantity('500m').add(quantity('500m')).isInteger()", "false"),
        ("quantity('500m') == quantity('0.5')", "true"),
        ("quantity('+1').asInteger()", "1"),
    ]);
}

#[test]
fn quantities_compare_and_add_and_fail_with_its_words() {
    fails(&[
        ("quantity('1.5').asInteger()", "cannot convert value to integer"),
        (
            "quantity('abc').isInteger()",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "quantity('').isInteger()",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "quantity(self.u).isInteger()",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("quantity('1e').asInteger()", "unable to parse quantity's suffix"),
        (
            "quantity('1Kx').asInteger()",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("quantity('--1').asInteger()", "unable to parse quantity's suffix"),
    ]);
}

#[test]
fn versions_compare_by_precedence() {
    gives(&[
        ("semver('1.2.3').isLessThan(semver('1.10.0'))", "true"),
        ("semver('1.2.3-alpha.1').compareTo(semver('1.2.3'))", "-1"),
        ("semver('v1.2', true).patch()", "0"),
        ("isSemver('v1.2')", "false"),
        ("semver('1.2.3+build').compareTo(semver('1.2.3'))", "0"),
        ("semver('v01.02', true).minor()", "2"),
        ("isSemver('1.2.3-rc.1')", "true"),
    ]);
}

#[test]
fn versions_compare_by_precedence_and_fail_with_its_words() {
    fails(&[
        ("semver('1.2').major()", "No Major.Minor.Patch elements found"),
        ("semver('01.2.3').major()", r#"Major number must not contain leading zeroes "01""#),
        ("semver('1.2.3-').major()", "Prerelease is empty"),
        ("semver('1.2.3-01').major()", r#"Numeric PreRelease version must not contain leading zeroes "01""#),
        ("semver('v1-a', true).minor()", "short version cannot contain PreRelease/Build meta data"),
        ("semver('').major()", "Version string empty"),
        ("semver('a.b.c').major()", r#"Invalid character(s) found in major number "a""#),
    ]);
}

#[test]
fn addresses_and_networks_are_parsed_strictly() {
    gives(&[
        ("ip('10.0.0.1').family()", "4"),
        ("ip('::1').isLoopback()", "true"),
        ("isIP('1.2.3.4') && !isIP('::ffff:1.2.3.4')", "true"),
        ("ip.isCanonical('2001:db8::0')", "false"),
        ("cidr('10.0.0.0/8').containsIP('10.1.2.3')", "true"),
        ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')", "true"),
        ("cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')", "true"),
        ("cidr('10.1.2.3/8').prefixLength()", "8"),
        ("string(cidr('10.1.2.3/8').ip())", "10.1.2.3"),
        ("isCIDR('10.0.0.0/33')", "false"),
        ("isIP(self.u) || isCIDR(self.s)", "false"),
        ("isIP('fe80::1%eth0')", "false"),
        ("ip('224.0.0.1').isLinkLocalMulticast()", "true"),
        ("ip('255.255.255.255').isGlobalUnicast()", "false"),
        ("ip('10.0.0.1').isGlobalUnicast()", "true"),
        ("ip('1.2.3.4') == ip('1.2.3.4')", "true"),
        ("cidr('::1/64').containsIP('::2')", "true"),
        ("cidr('::1/64').containsIP('1.2.3.4')", "false"),
        ("string(ip('2001:DB8::0'))", "2001:db8::"),
        ("type(ip('1.2.3.4')) == net.IP", "true"),
    ]);
}

#[test]
fn addresses_and_networks_are_parsed_strictly_and_fail_with_its_words() {
    fails(&[
        (
            "ip('nope').family()",
            r#"IP Address "nope" parse error during conversion from string: ParseAddr("nope"): unable to parse IP"#,
        ),
        (
            "cidr('10.1.2.3').prefixLength()",
            r#"network address parse error during conversion from string: network address parse error during conversion from string: netip.ParsePrefix("10.1.2.3"): no '/'"#,
        ),
        (
            "cidr(self.u).ip().family()",
            r#"network address parse error during conversion from string: network address parse error during conversion from string: netip.ParsePrefix("wörld/path"): ParseAddr("wörld"): unable to parse IP"#,
        ),
        ("ip('fe80::1%eth0').family()", r#"IP address "fe80::1%eth0" with zone value is not allowed"#),
        ("ip('::ffff:1.2.3.4').family()", r#"IPv4-mapped IPv6 address "::ffff:1.2.3.4" is not allowed"#),
        (
            "cidr('10.0.0.0/08').prefixLength()",
            r#"network address parse error during conversion from string: network address parse error during conversion from string: netip.ParsePrefix("10.0.0.0/08"): bad bits after slash: "08""#,
        ),
        (
            "cidr('::ffff:1.2.3.4/100').prefixLength()",
            r#"network address parse error during conversion from string: IPv4-mapped IPv6 address "::ffff:1.2.3.4/100" is not allowed"#,
        ),
    ]);
}

#[test]
fn urls_are_taken_apart() {
    gives(&[
        ("url('https://user@example.com:80/a/b?c=d&c=e#f').getHostname()", "example.com"),
        ("url('https://user@example.com:80/a/b?c=d&c=e#f').getQuery()['c'].size()", "2"),
        ("url('https://[::1]:80/a b').getEscapedPath()", "/a%20b"),
        ("url('/path').getHost() == ''", "true"),
        ("isURL('foo')", "false"),
        ("isURL('https://a:b')", "false"),
        ("url('https://example.com') == url('https://example.com')", "true"),
        ("url('https://example.com').getScheme()", "https"),
        ("url('mailto:a@b.c').getHost()", ""),
        ("url('https://example.com/a%20b').getEscapedPath()", "/a%20b"),
        ("url('https://example.com/ä').getEscapedPath()", "/%C3%A4"),
        ("isURL('//host/path')", "true"),
        ("isURL('a:b')", "true"),
    ]);
}

#[test]
fn urls_are_taken_apart_and_fail_with_its_words() {
    fails(&[
        (
            "url('foo').getHost()",
            r#"URL parse error during conversion from string: parse "foo": invalid URI for request"#,
        ),
        (
            "url(self.u).getHost() == 'x'",
            r#"URL parse error during conversion from string: parse "wörld/path": invalid URI for request"#,
        ),
        (
            "url('https://ex ample.com').getHost()",
            r#"URL parse error during conversion from string: parse "https://ex ample.com": invalid character " " in host name"#,
        ),
        (
            "url('https://example.com/%zz').getHost()",
            r#"URL parse error during conversion from string: parse "https://example.com/%zz": invalid URL escape "%zz""#,
        ),
        (
            "url('http://a:80x/').getPort()",
            r#"URL parse error during conversion from string: parse "http://a:80x/": invalid port ":80x" after host"#,
        ),
        (
            "url(':foo').getPort()",
            r#"URL parse error during conversion from string: parse ":foo": missing protocol scheme"#,
        ),
        ("url('').getPort()", r#"URL parse error during conversion from string: parse "": empty url"#),
    ]);
}

#[test]
fn named_formats_say_what_is_wrong() {
    gives(&[
        ("!format.dns1123Label().validate('A').hasValue()", "false"),
        (
            "format.dns1123Label().validate('Ab').value()[0]",
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
        ("format.named('dns1123Subdomain').value().validate('a.b').hasValue()", "false"),
        ("format.named('nope').hasValue()", "false"),
        ("format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()", "false"),
        ("format.date().validate('2021-01-01').hasValue()", "false"),
        (
            "format.qualifiedName().validate('a/b/c').value()[0]",
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
        ),
        ("format.dns1123Label().validate(self.u).hasValue()", "true"),
        (
            "format.dns1035Label().validate('1a').value()[0]",
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
        ),
        (
            "format.dns1123Subdomain().validate('A').value()[0]",
            r"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ),
        (
            "format.labelValue().validate('-').value()[0]",
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        ),
        ("format.dns1123LabelPrefix().validate('a-').hasValue()", "false"),
        ("format.uri().validate('x').value()[0]", r#"parse "x": invalid URI for request"#),
        ("format.byte().validate('x').value()[0]", "invalid base64"),
        ("format.datetime().validate('2021-01-01T00:00:00Z').hasValue()", "false"),
        ("format.uuid().validate('x').value()[0]", "does not match the UUID format"),
        ("format.dns1123Label() == format.dns1123Label()", "true"),
        ("format.dns1123Label().validate('a.b').value()[0]", "must not contain dots"),
    ]);
}

#[test]
fn times_and_durations_keep_their_bounds() {
    gives(&[
        ("duration('1h') > duration('30m')", "true"),
        ("timestamp('2021-01-01T00:00:00Z') < timestamp('2022-01-01T00:00:00Z')", "true"),
        ("self.t.getFullYear()", "2024"),
        ("self.t.getMonth()", "1"),
        ("self.t.getDayOfYear()", "59"),
        ("self.t.getDate()", "29"),
        ("self.t.getDayOfWeek()", "4"),
        ("self.t.getHours('America/New_York')", "7"),
        ("self.t.getHours('+02:30')", "15"),
        ("self.t.getMilliseconds()", "789"),
        ("self.d.getMinutes()", "90"),
        ("self.d == duration('90m')", "true"),
        ("self.t + self.d > self.t", "true"),
        ("string(self.t)", "2024-02-29T12:34:56.789Z"),
        ("string(self.d)", "5400s"),
        ("string(self.t - timestamp('2024-01-01T00:00:00Z'))", "5142896.789s"),
        ("self.date.getDate()", "1"),
        ("type(self.t) == google.protobuf.Timestamp", "true"),
        ("self.t == null", "false"),
        ("self.t < self.t", "false"),
        ("timestamp(0).getFullYear()", "1970"),
        ("duration('1s').getMilliseconds()", "1000"),
        ("string(duration('1.5s'))", "1.5s"),
        ("string(timestamp('2021-01-01T00:00:00.1+02:00'))", "2021-01-01T00:00:00.1+02:00"),
        ("timestamp('2021-01-01T00:00:00+02:00').getHours()", "22"),
        ("int(timestamp('2021-01-01T00:00:00Z'))", "1609459200"),
        ("int(duration('1s'))", "1000000000"),
        ("self.d > duration('1h') && self.t > timestamp('2000-01-01T00:00:00Z')", "true"),
        ("self.date == timestamp('2024-03-01T00:00:00Z')", "true"),
    ]);
}

#[test]
fn times_and_durations_keep_their_bounds_and_fail_with_its_words() {
    fails(&[
        ("self.t.getHours('Nope/Zone')", "unknown time zone Nope/Zone"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s')", "timestamp overflow"),
        ("duration('9223372036s') + duration('1000s')", "integer overflow"),
    ]);
}

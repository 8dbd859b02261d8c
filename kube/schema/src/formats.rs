//! String formats.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use crate::Type;

/// The formats of strings that are checked; every other one is ignored. Dashes do not count.
const STRING_FORMATS: &[&str] = &[
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "k8sshortname",
    "k8slongname",
];

/// Whether the server checks `format` on values of type `ty`; what it does not check is only a hint.
pub fn recognised(ty: Option<Type>, format: &str) -> bool {
    match ty {
        None | Some(Type::String) => STRING_FORMATS.contains(&format.replace('-', "").as_str()),
        Some(Type::Integer) => matches!(format, "int32" | "int64"),
        Some(Type::Number) => matches!(format, "float" | "double"),
        Some(Type::Object | Type::Array | Type::Boolean) => false,
    }
}

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new($text).ok());
    };
}

pattern!(UUID, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$");
pattern!(UUID3, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$");
pattern!(UUID4, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$");
pattern!(UUID5, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$");
pattern!(
    HOSTNAME,
    r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
);
pattern!(BASE64, r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$");
pattern!(HEX_COLOR, "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$");
pattern!(
    RGB_COLOR,
    r"^rgb\(\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*\)$"
);
pattern!(
    CREDIT_CARD,
    "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
);
pattern!(SSN, "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$");
pattern!(SHORT_NAME, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$");
pattern!(LONG_NAME, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$");
pattern!(TIME, r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$");
pattern!(EMAIL_ATOMS, r"^[^\s<>()\[\]\\,;:@\x22.]+(\.[^\s<>()\[\]\\,;:@\x22.]+)*$");
pattern!(DURATION_WORDS, r"([0-9]+)\s*([A-Za-zµ]+)");
pattern!(GO_DURATION, r"^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$");

fn matches(pattern: &LazyLock<Option<Regex>>, text: &str) -> bool {
    pattern.as_ref().is_some_and(|regex| regex.is_match(text))
}

/// Whether `text` has the format. Formats that are not checked hold for any text.
pub fn holds(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_request_uri(text),
        "email" => is_email(text),
        "hostname" => matches(&HOSTNAME, text) && text.len() <= 255 && text.split('.').all(|label| label.len() <= 63),
        "ipv4" => text.contains('.') && is_ip(text),
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => matches(&UUID, text),
        "uuid3" => matches(&UUID3, text),
        "uuid4" => matches(&UUID4, text),
        "uuid5" => matches(&UUID5, text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => text.len() == 11 && matches(&SSN, text),
        "hexcolor" => matches(&HEX_COLOR, text),
        "rgbcolor" => matches(&RGB_COLOR, text),
        "byte" => matches(&BASE64, text),
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => is_duration(text),
        "k8sshortname" => text.len() <= 63 && matches(&SHORT_NAME, text),
        "k8slongname" => text.len() <= 253 && matches(&LONG_NAME, text),
        _ => true,
    }
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.is_ascii() && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    if !is_date(date) {
        return false;
    }
    TIME.as_ref().and_then(|regex| regex.captures(time)).is_some_and(|found| {
        let part = |n: usize| found.get(n).map_or("", |m| m.as_str());
        part(1) <= "23" && part(2) <= "59" && part(3) <= "59"
    })
}

/// Go's notation (`1h30m`) or words (`2 days`).
fn is_duration(text: &str) -> bool {
    const UNITS: &[&[&str]] = &[
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    if matches(&GO_DURATION, text) {
        return true;
    }
    let Some(words) = DURATION_WORDS.as_ref() else { return false };
    let mut found = false;
    for word in words.captures_iter(text) {
        let part = |n: usize| word.get(n).map_or("", |m| m.as_str());
        if part(1).parse::<i64>().is_err() {
            return false;
        }
        let unit = part(2).to_lowercase();
        found |= UNITS.iter().any(|variants| {
            variants.iter().any(|variant| *variant == unit)
                || variants.last().is_some_and(|longest| unit.starts_with(longest))
        });
    }
    found
}

/// Like Go's sloppy parser: octets may carry leading zeros.
fn sloppy_ipv4(text: &str) -> bool {
    let octets: Vec<&str> = text.split('.').collect();
    let octet = |part: &&str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_digit())
            && part.trim_start_matches('0').len() <= 3
            && part.parse::<u64>().is_ok_and(|n| n <= 255)
    };
    octets.len() == 4 && octets.iter().all(octet)
}

fn is_ip(text: &str) -> bool {
    sloppy_ipv4(text) || text.parse::<Ipv4Addr>().is_ok() || text.parse::<Ipv6Addr>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let max = if sloppy_ipv4(address) {
        32
    } else if address.parse::<Ipv6Addr>().is_ok() {
        128
    } else {
        return false;
    };
    !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u32>().is_ok_and(|n| n <= max)
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
    for separator in [':', '-'] {
        let parts: Vec<&str> = text.split(separator).collect();
        if matches!(parts.len(), 6 | 8 | 20) && parts.iter().all(|part| hex(part, 2)) {
            return true;
        }
    }
    let parts: Vec<&str> = text.split('.').collect();
    matches!(parts.len(), 3 | 4 | 10) && parts.iter().all(|part| hex(part, 4))
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter(|c| !c.is_whitespace() && *c != '-').map(|c| c.to_digit(10).unwrap_or(99)).collect()
}

fn is_isbn10(text: &str) -> bool {
    let mut all = digits(text);
    if all.len() == 10 && text.ends_with('X') && all.last() == Some(&99) {
        all[9] = 10;
    } else if all.contains(&99) {
        return false;
    }
    let sum: u32 = all.iter().zip(1..).map(|(digit, at)| digit.min(&10) * at).sum();
    all.len() == 10 && all[..9].iter().all(|d| *d < 10) && sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let all = digits(text);
    if all.len() != 13 || all.contains(&99) {
        return false;
    }
    let sum: u32 = all[..12].iter().zip([1, 3].iter().cycle()).map(|(digit, factor)| digit * factor).sum();
    all[12] == (10 - sum % 10) % 10
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let double = |n: u32| if n >= 5 { n * 2 - 9 } else { n * 2 };
    let sum: u32 = digits
        .chars()
        .rev()
        .filter_map(|c| c.to_digit(10))
        .enumerate()
        .map(|(at, n)| if at % 2 == 1 { double(n) } else { n })
        .sum();
    matches(&CREDIT_CARD, &digits) && sum.is_multiple_of(10)
}

fn is_email(text: &str) -> bool {
    let address = match (text.find('<'), text.strip_suffix('>')) {
        (Some(start), Some(rest)) => rest.get(start + 1..).unwrap_or(""),
        (None, None) => text.trim(),
        _ => return false,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.starts_with('[') && domain.ends_with(']');
    (quoted || matches(&EMAIL_ATOMS, local)) && (literal || matches(&EMAIL_ATOMS, domain))
}

/// An absolute URI or an absolute path.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let is_scheme = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphabetic())
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    };
    let (scheme, rest) = match text.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
        Some(("", _)) => return false,
        _ => ("", text),
    };
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !rest.starts_with('/') {
        return !scheme.is_empty();
    }
    let (authority, path) = match (scheme.is_empty(), rest.strip_prefix("//")) {
        (false, Some(after)) => after.split_at(after.find('/').unwrap_or(after.len())),
        _ => ("", rest),
    };
    escapes_are_whole(path) && is_authority(authority)
}

fn escapes_are_whole(text: &str) -> bool {
    text.split('%').skip(1).all(|after| after.len() >= 2 && after.bytes().take(2).all(|b| b.is_ascii_hexdigit()))
}

fn is_authority(text: &str) -> bool {
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let port_is_number = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let Some((_, port)) = rest.split_once(']') else { return false };
        return port.is_empty() || port.strip_prefix(':').is_some_and(port_is_number);
    }
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let allowed = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:%<>\"[]".contains(c);
    port_is_number(port) && name.chars().all(allowed) && escapes_are_whole(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_takes_its_values_and_refuses_others() {
        let table: &[(&str, &[&str], &[&str])] = &[
            (
                "date-time",
                &["2014-12-15T19:30:20.000Z", "2014-12-15t19:30:20+02:00"],
                &["2014-12-15", "2014-13-15T19:30:20Z"],
            ),
            ("date", &["2014-02-28"], &["2014-02-30", "2014-2-3"]),
            ("duration", &["1h30m", "0", "-1.5s", "2 days"], &["", "abc", "5"]),
            ("byte", &["aGk=", "YWJj"], &["a", "a===", ""]),
            ("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["123e4567"]),
            ("ipv4", &["10.0.0.1", "010.0.0.1"], &["256.0.0.1", "1.2.3", "::1"]),
            ("ipv6", &["::1", "fe80::1"], &["10.0.0.1", "fe80::1%eth0"]),
            ("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0", "10.0.0.0/33"]),
            ("email", &["a@b.c", "Ann <a@b.c>"], &["a", "a@", "a@@b"]),
            ("hostname", &["example.com", "a"], &["-a.com", "a_b.com"]),
            ("uri", &["http://a/b?c", "/a", "mailto:x"], &["a/b", "", "http://[::1", "/%zz"]),
            ("mac", &["01:23:45:67:89:ab", "0123.4567.89ab"], &["01:23", "01-23:45-67-89-ab"]),
            ("isbn", &["0321751043", "978-0321751041"], &["0321751044", "abc"]),
            ("creditcard", &["4111-1111-1111-1111"], &["4111-1111-1111-1112"]),
            ("k8s-short-name", &["a-b"], &["A", "a.b", "-a"]),
            ("k8s-long-name", &["a.b-c"], &["a..b"]),
            ("anything-else", &["x"], &[]),
        ];
        for (format, good, bad) in table {
            good.iter().for_each(|text| assert!(holds(format, text), "{format} takes {text:?}"));
            bad.iter().for_each(|text| assert!(!holds(format, text), "{format} refuses {text:?}"));
        }
    }
}

//! Kubernetes' named string formats.

use crate::time::parse_timestamp;
use crate::url::Url;

/// A format and what is wrong with a text that does not follow it.
#[derive(Debug)]
pub(crate) struct Format {
    pub name: &'static str,
    /// How long the pattern is, for costs.
    pub regex_size: u64,
    check: fn(&str) -> Vec<String>,
}

impl Format {
    pub fn validate(&self, text: &str) -> Vec<String> {
        (self.check)(text)
    }
}

static FORMATS: [(&str, Format); 13] = [
    ("dns1123Label", Format { name: "DNS1123Label", regex_size: 30, check: dns1123_label }),
    ("dns1123Subdomain", Format { name: "DNS1123Subdomain", regex_size: 60, check: dns1123_subdomain }),
    ("dns1035Label", Format { name: "DNS1035Label", regex_size: 30, check: dns1035_label }),
    ("qualifiedName", Format { name: "QualifiedName", regex_size: 60, check: qualified_name }),
    ("dns1123LabelPrefix", Format { name: "DNS1123LabelPrefix", regex_size: 30, check: |s| dns1123_label(&mask(s)) }),
    (
        "dns1123SubdomainPrefix",
        Format { name: "DNS1123SubdomainPrefix", regex_size: 60, check: |s| dns1123_subdomain(&mask(s)) },
    ),
    ("dns1035LabelPrefix", Format { name: "DNS1035LabelPrefix", regex_size: 30, check: |s| dns1035_label(&mask(s)) }),
    ("labelValue", Format { name: "LabelValue", regex_size: 40, check: label_value }),
    ("uri", Format { name: "URI", regex_size: 1103, check: |s| Url::parse(s).err().into_iter().collect() }),
    (
        "uuid",
        Format { name: "uuid", regex_size: 70, check: |s| error_unless(uuid(s), "does not match the UUID format") },
    ),
    (
        "byte",
        Format { name: "byte", regex_size: 84, check: |s| error_unless(decode_base64(s).is_some(), "invalid base64") },
    ),
    ("date", Format { name: "date", regex_size: 71, check: |s| error_unless(date(s), "invalid date") }),
    (
        "datetime",
        Format { name: "datetime", regex_size: 71, check: |s| error_unless(date_time(s), "invalid datetime") },
    ),
];

pub(crate) fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|(n, _)| *n == name).map(|(_, f)| f)
}

fn error_unless(ok: bool, message: &str) -> Vec<String> {
    if ok { Vec::new() } else { vec![message.into()] }
}

/// What is generated follows the prefix, so that it may end in a dash.
fn mask(s: &str) -> String {
    match s.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let end = rest.char_indices().next_back().map_or(0, |(i, _)| i);
            format!("{}a", &rest[..end])
        }
        _ => s.to_owned(),
    }
}

fn alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_label(s: &str) -> bool {
    let b = s.as_bytes();
    let (Some(first), Some(last)) = (b.first(), b.last()) else { return false };
    alnum(*first) && alnum(*last) && b.iter().all(|b| alnum(*b) || *b == b'-')
}

fn is_subdomain(s: &str) -> bool {
    s.split('.').all(is_label)
}

fn too_long(s: &str, max: usize) -> Option<String> {
    (s.len() > max).then(|| format!("must be no more than {max} characters"))
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const KEY: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn dns1123_label(s: &str) -> Vec<String> {
    let mut errors: Vec<String> = too_long(s, 63).into_iter().collect();
    if !is_label(s) {
        errors.push(if is_subdomain(s) { "must not contain dots".into() } else { LABEL.into() });
    }
    errors
}

fn dns1123_subdomain(s: &str) -> Vec<String> {
    let wrong = (!is_subdomain(s)).then(|| SUBDOMAIN.to_owned());
    too_long(s, 253).into_iter().chain(wrong).collect()
}

fn dns1035_label(s: &str) -> Vec<String> {
    let fine = is_label(s) && s.starts_with(|c: char| c.is_ascii_lowercase());
    too_long(s, 63).into_iter().chain((!fine).then(|| LABEL_1035.to_owned())).collect()
}

fn is_key(s: &str) -> bool {
    let b = s.as_bytes();
    let (Some(first), Some(last)) = (b.first(), b.last()) else { return false };
    let ends = first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric();
    ends && b.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

fn qualified_name(s: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = s.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(dns1123_subdomain(prefix).into_iter().map(|e| format!("prefix part {e}")));
            }
            *name
        }
        _ => {
            let tail = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {KEY} {tail}")];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    }
    errors.extend(too_long(name, 63).map(|e| format!("name part {e}")));
    if !is_key(name) {
        errors.push(format!("name part {KEY}"));
    }
    errors
}

fn label_value(s: &str) -> Vec<String> {
    let wrong = (!s.is_empty() && !is_key(s)).then(|| VALUE.to_owned());
    too_long(s, 63).into_iter().chain(wrong).collect()
}

fn uuid(s: &str) -> bool {
    let mut rest = s;
    for (i, len) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((part, after)) = rest.split_at_checked(len) else { return false };
        if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

fn date(s: &str) -> bool {
    s.len() == 10 && parse_timestamp(&format!("{s}T00:00:00Z")).is_some()
}

fn date_time(s: &str) -> bool {
    parse_timestamp(&s.to_uppercase()).is_some()
}

/// Standard base64 with padding.
pub(crate) fn decode_base64(s: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = s.bytes().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let last = text.len() / 4;
    for (i, chunk) in text.chunks(4).enumerate() {
        let padding = chunk.iter().rev().take_while(|b| **b == b'=').count();
        if padding > 2 || (padding > 0 && i + 1 != last) {
            return None;
        }
        let mut bits = 0_u32;
        for b in &chunk[..4 - padding] {
            let six = match b {
                b'A'..=b'Z' => b - b'A',
                b'a'..=b'z' => b - b'a' + 26,
                b'0'..=b'9' => b - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(six);
        }
        bits <<= 6 * padding as u32;
        out.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(out)
}

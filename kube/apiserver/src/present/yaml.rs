//! JSON values as YAML, in the style of the real server: two spaces, list items level with their key, quotes only where
//! a text would be read as something else.

use serde_json::Value;

/// A value as a YAML document.
pub(super) fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => write(value, 0, false, &mut out),
        Value::Array(items) if !items.is_empty() => write(value, 0, false, &mut out),
        scalar => {
            inline(scalar, 0, &mut out);
            out.push('\n');
        }
    }
    out
}

/// Writes the lines of a map or a list; `open` means that the first line is started already.
fn write(value: &Value, indent: usize, mut open: bool, out: &mut String) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if !std::mem::take(&mut open) {
                    pad(indent, out);
                }
                text(key, out);
                out.push(':');
                let inner = if value.is_array() { indent } else { indent + 2 };
                if nested(value) {
                    out.push('\n');
                    write(value, inner, false, out);
                } else {
                    out.push(' ');
                    inline(value, indent + 2, out);
                    out.push('\n');
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                if !std::mem::take(&mut open) {
                    pad(indent, out);
                }
                out.push_str("- ");
                if nested(item) {
                    write(item, indent + 2, true, out);
                } else {
                    inline(item, indent + 2, out);
                    out.push('\n');
                }
            }
        }
        scalar => inline(scalar, indent, out),
    }
}

fn nested(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn inline(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::String(string) if is_block(string) => block(string, indent, out),
        Value::String(string) => text(string, out),
        other => out.push_str(&other.to_string()),
    }
}

/// Whether a text of several lines can be written as a block scalar.
fn is_block(string: &str) -> bool {
    string.contains('\n')
        && !string.starts_with([' ', '\n', '\t'])
        && string
            .chars()
            .all(|c| c == '\n' || (!c.is_control() && c != '\u{feff}' && c != '\u{2028}' && c != '\u{2029}'))
}

fn block(string: &str, indent: usize, out: &mut String) {
    let body = string.trim_end_matches('\n');
    let ends = string.len() - body.len();
    out.push_str(match ends {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(indent, out);
            out.push_str(line);
        }
    }
    out.extend(std::iter::repeat_n('\n', ends.saturating_sub(1)));
}

fn text(string: &str, out: &mut String) {
    if is_plain(string) {
        out.push_str(string);
    } else if means_something_else(string) || string.chars().any(|c| c.is_control() || !c.is_ascii()) {
        // JSON's escapes are valid in YAML.
        out.push_str(&Value::from(string).to_string());
    } else {
        out.push('\'');
        out.push_str(&string.replace('\'', "''"));
        out.push('\'');
    }
}

fn is_plain(string: &str) -> bool {
    let first = string.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || "/_.(\\$^+~;<=".contains(c));
    first
        && !string.ends_with([' ', ':'])
        && !string.contains(": ")
        && !string.contains(" #")
        && string.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        && !means_something_else(string)
}

/// Whether a parser would take the plain text for a null, a boolean, a number or a time.
fn means_something_else(string: &str) -> bool {
    let words = [
        "", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".nan", ".inf", "-.inf", "+.inf", "<<",
        "=",
    ];
    if words.contains(&string.to_ascii_lowercase().as_str()) {
        return true;
    }
    let unsigned = string.trim_start_matches(['+', '-']);
    if ["0x", "0o", "0b"].iter().any(|radix| unsigned.starts_with(radix)) {
        return true;
    }
    unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.contains(|c: char| c.is_ascii_digit())
        && unsigned.chars().all(|c| c.is_ascii_digit() || "+-._: eETZ".contains(c))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_looks_as_the_real_servers_does() {
        let value = json!({"apiVersion": "v1", "items": [{"metadata": {"labels": {}, "name": "x", "resourceVersion": "22"},
            "spec": {"list": [], "nested": [["a", 1]], "on": true, "none": null}}]});
        let expected = "apiVersion: v1\nitems:\n- metadata:\n    labels: {}\n    name: x\n    resourceVersion: \"22\"\n  spec:\n    \
            list: []\n    nested:\n    - - a\n      - 1\n    none: null\n    \"on\": true\n";
        assert_eq!(to_string(&value), expected);
    }

    #[test]
    fn every_text_is_read_back_as_it_was() {
        for string in [
            "",
            " ",
            "true",
            "null",
            "~",
            "1",
            "1e3",
            "0x1f",
            "1:30",
            "2026-11-15T23:28:13Z",
            "a: b",
            "a #b",
            "#",
            "- a",
            "-",
            "é",
            "it's",
            "\"q\"",
            "a\nb",
            "a\nb\n",
            "a\nb\n\n",
            "\na",
            "a\n\nb",
            " a\nb",
            "a\r\nb",
            "tab\t",
            "{}",
            "[a]",
            "*x",
            "&x",
            "!x",
            "%x",
            "@x",
            "`x`",
            "?",
            "a:",
            ":a",
            "'",
            "system:masters",
            "k8s.io/a",
            "|",
            ">",
            "=",
            "<<",
            "\u{feff}",
            "a\u{2028}\nb",
            "-1_000",
            ".5",
            "+",
        ] {
            let value = json!({"outer": [{"key": string, string: "v"}]});
            let yaml = to_string(&value);
            let read: Value =
                serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{string:?}: {error}\n{yaml}"));
            assert_eq!(read, value, "{string:?}\n{yaml}");
        }
    }
}

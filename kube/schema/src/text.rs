//! Values and paths in the notation of Go and of Kubernetes' error messages.

use serde_json::Value;

/// A string as Go's `%q` prints it.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() || c == '\u{feff}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A float as Go's `%v` prints it: the shortest digits, an exponent below 1e-4 and from 1e21 on.
pub fn float(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let size = number.abs();
    if (1e-4..1e21).contains(&size) {
        return format!("{number}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, digits_of_exponent) = match exponent.strip_prefix('-') {
                Some(rest) => ('-', rest),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{digits_of_exponent:0>2}")
        }
        None => text,
    }
}

/// A number as Go prints an `int64` or a `float64`.
pub fn number(number: &serde_json::Number) -> String {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(int), _, _) => int.to_string(),
        (_, Some(int), _) => int.to_string(),
        (_, _, Some(real)) => float(real),
        _ => number.to_string(),
    }
}

/// A value as `field.Error` prints it: strings quoted, scalars bare, objects as JSON.
pub fn value(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        Value::Number(n) => number(n),
        Value::Null | Value::Bool(_) => value.to_string(),
        // Go's encoder escapes what HTML would trip over.
        other => other.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"),
    }
}

/// The path of a field below `parent`.
pub fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// The path of a map's entry below `parent`.
pub fn key(parent: &str, name: &str) -> String {
    format!("{parent}[{name}]")
}

/// The path of a list's item below `parent`.
pub fn index(parent: &str, at: usize) -> String {
    format!("{parent}[{at}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_look_as_go_prints_them() {
        assert_eq!(float(1.5), "1.5");
        assert_eq!(float(1.0), "1");
        assert_eq!(float(1e21), "1e+21");
        assert_eq!(float(-2.5e-7), "-2.5e-07");
        assert_eq!(quote("a\"b\n\u{1}"), "\"a\\\"b\\n\\x01\"");
    }
}

//! The pieces that cells are made of.

use jiff::Timestamp;
use serde_json::Value;

use crate::access::{entries, get, list, text};

/// A span of time in the two or three figures that people read, as Kubernetes writes ages.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |big: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        // Clocks that differ by less than two seconds agree.
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(days, 'd', hours % 24, 'h'),
        _ if years < 2 => format!("{days}d"),
        _ if years < 8 => two(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}

/// The time at a path; none when it is absent or not a time.
pub(super) fn time(object: &Value, path: &str) -> Option<Timestamp> {
    text(object, path).parse().ok()
}

/// How long ago a time was.
pub(super) fn since(then: Option<Timestamp>, now: Timestamp) -> String {
    match then {
        // Whole seconds toward zero, as Go's duration counts them.
        Some(then) => human_duration(now.duration_since(then).as_secs()),
        None => "<unknown>".into(),
    }
}

/// The `NAME` cell.
pub(super) fn name(object: &Value) -> Value {
    text(object, "metadata.name").into()
}

/// The `AGE` cell.
pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    since(time(object, "metadata.creationTimestamp"), now).into()
}

/// The string at a path, or what stands for its absence.
pub(super) fn text_or<'a>(object: &'a Value, path: &str, absent: &'a str) -> &'a str {
    match text(object, path) {
        "" => absent,
        found => found,
    }
}

/// The strings at a path.
pub(super) fn strings<'a>(object: &'a Value, path: &str) -> Vec<&'a str> {
    list(object, path).iter().filter_map(Value::as_str).collect()
}

/// Whether a condition of this type is `True`; the first of the type decides.
pub(super) fn condition(object: &Value, ty: &str) -> bool {
    let found = list(object, "status.conditions").iter().find(|condition| text(condition, "type") == ty);
    found.is_some_and(|condition| text(condition, "status") == "True")
}

/// Whether the object is being deleted.
pub(super) fn is_deleting(object: &Value) -> bool {
    get(object, "metadata.deletionTimestamp").is_some()
}

/// An annotation; its key has dots, so it is no path.
pub(super) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    get(object, "metadata.annotations")?.get(key)?.as_str()
}

/// The names and images of a pod template's containers.
pub(super) fn containers(object: &Value, path: &str) -> [Value; 2] {
    let of = |field: &str| list(object, path).iter().map(|c| text(c, field)).collect::<Vec<_>>().join(",");
    [of("name").into(), of("image").into()]
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(object: &Value, path: &str) -> String {
    let pairs = entries(object, path).map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    none_if_empty(pairs.collect::<Vec<_>>().join(","))
}

/// A label selector as one would type it; empty when it selects nothing or everything.
pub(super) fn selector(object: &Value, path: &str) -> String {
    let Some(selector) = get(object, path) else { return String::new() };
    let mut parts: Vec<(String, String)> = entries(selector, "matchLabels")
        .map(|(key, value)| (key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    for expression in list(selector, "matchExpressions") {
        let key = text(expression, "key");
        let mut values = strings(expression, "values");
        values.sort_unstable();
        let values = values.join(",");
        let part = match text(expression, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".into(),
        };
        parts.push((key.to_owned(), part));
    }
    parts.sort_by(|a, b| a.0.cmp(&b.0));
    parts.into_iter().map(|(_, part)| part).collect::<Vec<_>>().join(",")
}

/// `<none>` instead of nothing.
pub(super) fn none_if_empty(text: String) -> String {
    if text.is_empty() { "<none>".into() } else { text }
}

/// The first three of a list, and how many more there are.
pub(super) fn first_three(all: &[String]) -> String {
    match all.len().checked_sub(3) {
        Some(more @ 1..) => format!("{} + {more} more...", all.iter().take(3).cloned().collect::<Vec<_>>().join(",")),
        _ => all.join(","),
    }
}

//! The syntax of names: DNS labels and subdomains, label keys and values, ports, environment variables.
//!
//! Every function returns the errors of a value, in the API server's words; none for a valid value.

pub use fleetwright_schema::names::{
    dns1035_label as dns_1035_label, dns1123_label as dns_label, dns1123_subdomain as dns_subdomain, label_value,
};

const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const WILDCARD_MESSAGE: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_MESSAGE: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn is_label(value: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    edge(value.chars().next())
        && edge(value.chars().next_back())
        && value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_qualified(value: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(value.chars().next())
        && edge(value.chars().next_back())
        && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn too_long(most: usize) -> String {
    format!("must be no more than {most} characters")
}

fn bytes_too_long(most: usize) -> String {
    format!("must be no more than {most} bytes")
}

fn regex_error(message: &str, regex: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{regex}')");
    }
    let examples = examples.iter().map(|example| format!("'{example}', ")).collect::<Vec<_>>().join(" or ");
    format!("{message} (e.g. {examples}regex used for validation is '{regex}')")
}

/// The message for a number outside of its range.
pub(crate) fn range_error(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// A subdomain behind `*.`: an ingress host.
pub fn wildcard_subdomain(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 253 {
        wrong.push(too_long(253));
    }
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        wrong.push(regex_error(WILDCARD_MESSAGE, &format!(r"\*\.{SUBDOMAIN}"), &["*.example.com"]));
    }
    wrong
}

/// Anything that can stand between two slashes of a URL: RBAC names, custom metrics.
pub fn path_segment(value: &str, prefix: bool) -> Vec<String> {
    if !prefix && (value == "." || value == "..") {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"].iter().filter(|part| value.contains(**part)).map(|part| format!("may not contain '{part}'")).collect()
}

/// A label key, annotation key (in lower case) or finalizer: a name with an optional DNS prefix.
pub fn qualified_name(value: &str) -> Vec<String> {
    let examples = ["MyName", "my.name", "123-abc"];
    let mut wrong = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > 253 {
                    wrong.push(format!("prefix part {}", bytes_too_long(253)));
                }
                if !is_subdomain(prefix) {
                    let message = regex_error(SUBDOMAIN_MESSAGE, SUBDOMAIN, &["example.com"]);
                    wrong.push(format!("prefix part {message}"));
                }
            }
            name
        }
        _ => {
            let message = regex_error(QUALIFIED_MESSAGE, QUALIFIED, &examples);
            let hint = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {message} {hint}")];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        wrong.push(format!("name part {}", bytes_too_long(63)));
    }
    if !is_qualified(name) {
        wrong.push(format!("name part {}", regex_error(QUALIFIED_MESSAGE, QUALIFIED, &examples)));
    }
    wrong
}

/// A number that can be a port.
pub fn port_number(value: i64) -> Vec<String> {
    if (1..=65535).contains(&value) { Vec::new() } else { vec![range_error(1, 65535)] }
}

/// The name of a port (IANA service name).
pub fn port_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 15 {
        wrong.push(too_long(15));
    }
    if value.is_empty() || !value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.contains(|c: char| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// The name of an environment variable.
pub fn env_name(value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if value.chars().any(|c| !(' '..='~').contains(&c) || c == '=') {
        let message =
            "a valid environment variable name must consist only of printable ASCII characters other than '='";
        return vec![message.to_owned()];
    }
    Vec::new()
}

/// A key of a config map or secret.
pub fn config_key(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 253 {
        wrong.push(too_long(253));
    }
    if value.is_empty() || !value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        let message = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        wrong.push(regex_error(message, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    match value {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        _ if value.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// The name of an HTTP header.
pub fn http_header(value: &str) -> Vec<String> {
    if !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Vec::new();
    }
    let message = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![regex_error(message, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// A share such as `25%`.
pub fn percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()) {
        return Vec::new();
    }
    let message = "a valid percent string must be a numeric string followed by an ending '%'";
    vec![regex_error(message, "[0-9]+%", &["1%", "93%"])]
}

/// The name format of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A DNS-1123 subdomain.
    Subdomain,
    /// A DNS-1123 label.
    Label,
    /// A DNS-1035 label.
    Label1035,
    PathSegment,
    /// A DNS-1123 subdomain of at most 52 bytes: a cron job, whose jobs get a suffix.
    CronJob,
}

impl NameRule {
    /// The errors of a name; `prefix` for a generateName, to which characters will be added.
    pub fn check(self, name: &str, prefix: bool) -> Vec<String> {
        if self == Self::PathSegment {
            return path_segment(name, prefix);
        }
        // A trailing dash of a prefix is followed by the random suffix, so it is not the end of the name.
        let masked = match name.strip_suffix('-') {
            Some(start) if prefix && !start.is_empty() => {
                let mut start: String = start.to_owned();
                start.pop();
                start.push('a');
                start
            }
            _ => name.to_owned(),
        };
        match self {
            Self::Label => dns_label(&masked),
            Self::Label1035 => dns_1035_label(&masked),
            Self::Subdomain | Self::CronJob | Self::PathSegment => dns_subdomain(&masked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_capitals_is_refused_with_the_regex() {
        let error_text = dns_subdomain("Bad_Name").join("");
        assert_eq!(
            error_text,
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        );
    }

    #[test]
    fn a_label_with_dots_is_refused() {
        assert_eq!(dns_label("a.b"), vec!["must not contain dots"]);
    }

    #[test]
    fn a_generate_name_may_end_with_a_dash() {
        assert!(NameRule::Subdomain.check("web-", true).is_empty());
        assert!(!NameRule::Subdomain.check("web-", false).is_empty());
    }

    #[test]
    fn a_label_key_has_at_most_one_slash() {
        assert!(qualified_name("example.com/app").is_empty());
        assert!(qualified_name("a/b/c").join("").starts_with("a valid label key must consist"));
        assert_eq!(qualified_name("/x"), vec!["prefix part must be non-empty"]);
    }

    #[test]
    fn a_two_byte_name_before_the_dash_is_cut_without_a_panic() {
        assert!(!NameRule::Subdomain.check("Éé-", true).is_empty());
    }
}

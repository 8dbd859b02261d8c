//! Which Clusters and Machines may use the content of a Secret. An annotation of the Secret lists them; without it no object may use the content.

/// Returns true if the value of an annotation of a Secret ([`ALLOWED_CLUSTERS`](crate::names::ALLOWED_CLUSTERS),
/// [`READABLE_BY_CLUSTERS`](crate::names::READABLE_BY_CLUSTERS) or [`ALLOWED_MACHINES`](crate::names::ALLOWED_MACHINES)) lists the object.
/// The value is a comma-separated list of names; a name that ends with `*` matches all names with that prefix. Without the annotation the Secret is not shared.
pub fn is_shared(allowed: Option<&str>, name: &str) -> bool {
    allowed.unwrap_or_default().split(',').map(str::trim).any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => !pattern.is_empty() && pattern == name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shared_only_with_those_that_it_names() {
        for (value, name) in [("*", "blue"), ("blue", "blue"), ("green, blue", "blue"), ("rack-1-*", "rack-1-a")] {
            assert!(is_shared(Some(value), name), "{value} {name}");
        }
        let others = [("", "blue"), ("", ""), (",", ""), ("blu", "blue"), ("blue", "blu"), ("green,", "blue")];
        for (value, name) in others.into_iter().chain([("rack-1-*", "rack-2-a"), ("*-a", "rack-2-a")]) {
            assert!(!is_shared(Some(value), name), "{value} {name}");
        }
        assert!(!is_shared(None, "blue"));
    }
}

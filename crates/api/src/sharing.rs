//! Which Clusters and Machines may use the content of a Secret: a Secret names them in an annotation, or none gets it.

/// Whether the value of a Secret's annotation ([`ALLOWED_CLUSTERS`](crate::names::ALLOWED_CLUSTERS),
/// [`READABLE_BY_CLUSTERS`](crate::names::READABLE_BY_CLUSTERS) or [`ALLOWED_MACHINES`](crate::names::ALLOWED_MACHINES)) names this object. The value is a list of names, separated by commas; a name that ends with `*`
/// stands for all names with that prefix. Without the annotation nothing is shared.
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
    fn a_secret_is_shared_with_those_that_it_names_and_with_nobody_else() {
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

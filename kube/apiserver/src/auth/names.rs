//! User names with a structure: service accounts and nodes.

/// Whether the text is a DNS label of RFC 1123.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether the text is a DNS subdomain of RFC 1123.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(small) && text.ends_with(small) && text.chars().all(|c| small(c) || c == '-')
}

/// Namespace and name of the service account that has this user name.
pub(super) fn service_account(username: &str) -> Option<(&str, &str)> {
    let (namespace, name) = username.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (is_label(namespace) && is_subdomain(name)).then_some((namespace, name))
}

/// The name of the node that has this user name.
pub(super) fn node(username: &str) -> Option<&str> {
    username.strip_prefix("system:node:").filter(|name| is_subdomain(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_user_names_are_service_accounts() {
        assert_eq!(service_account("system:serviceaccount:a:b.c"), Some(("a", "b.c")));
        for wrong in ["system:serviceaccount:a", "system:serviceaccount:a:b:c", "system:serviceaccount:a.b:c", "a:b"] {
            assert_eq!(service_account(wrong), None, "{wrong}");
        }
    }
}

//! The sentences that clients read, and Go's way of quoting in them.

pub use fleetwright_schema::text::quote;

use crate::Attributes;

/// A list of strings as Go's `%q` prints it: `["a" "b"]`.
pub fn quote_list<S: AsRef<str>>(items: &[S]) -> String {
    format!("[{}]", items.iter().map(|item| quote(item.as_ref())).collect::<Vec<_>>().join(" "))
}

/// Why the request is refused: `User "x" cannot list resource "pods" in API group "" in the namespace "y"`,
/// followed by the authorizer's own reason when it gave one.
pub fn forbidden_reason(attributes: &Attributes<'_>, reason: &str) -> String {
    let user = quote(&attributes.user.name);
    let verb = attributes.verb;
    let sentence = if !attributes.resource_request {
        format!("User {user} cannot {verb} path {}", quote(attributes.path))
    } else {
        let resource = if attributes.subresource.is_empty() {
            quote(attributes.resource)
        } else {
            quote(&format!("{}/{}", attributes.resource, attributes.subresource))
        };
        let scope = if attributes.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {}", quote(attributes.namespace))
        };
        format!("User {user} cannot {verb} resource {resource} in API group {} {scope}", quote(attributes.group))
    };
    // The sentence repeats what the client sent; it must not read as HTML in a browser.
    let sentence = sentence.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    if reason.is_empty() { sentence } else { format!("{sentence}: {reason}") }
}

/// The whole message of the 403: `pods "a" is forbidden: User …`.
pub fn forbidden_message(attributes: &Attributes<'_>, reason: &str) -> String {
    let reason = forbidden_reason(attributes, reason);
    let resource = match (attributes.resource, attributes.group) {
        ("", _) => return format!("forbidden: {reason}"),
        (resource, "") => resource.to_owned(),
        (resource, group) => format!("{resource}.{group}"),
    };
    if attributes.name.is_empty() {
        format!("{resource} is forbidden: {reason}")
    } else {
        format!("{resource} {} is forbidden: {reason}", quote(attributes.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::User;

    #[test]
    fn a_refused_list_names_user_resource_group_and_namespace() {
        let user = User::new("x", ["dev"]);
        let attributes = Attributes::resource(&user, "list", "", "pods").in_namespace("y");
        assert_eq!(
            forbidden_message(&attributes, ""),
            r#"pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y""#
        );
    }

    #[test]
    fn a_refused_object_at_the_cluster_scope_is_named_with_its_group() {
        let user = User::new("x", ["dev"]);
        let attributes = Attributes { subresource: "status", ..Attributes::resource(&user, "get", "a.io", "things") };
        assert_eq!(
            forbidden_message(&attributes.named("one"), "RBAC: no"),
            r#"things.a.io "one" is forbidden: User "x" cannot get resource "things/status" in API group "a.io" at the cluster scope: RBAC: no"#
        );
    }

    #[test]
    fn a_refused_path_has_no_resource_before_it() {
        let user = User::anonymous();
        assert_eq!(
            forbidden_message(&Attributes::path(&user, "get", "/a<b"), ""),
            r#"forbidden: User "system:anonymous" cannot get path "/a&lt;b""#
        );
    }

    #[test]
    fn quoting_follows_go() {
        assert_eq!(quote("a\"\\\n\u{1}ü"), "\"a\\\"\\\\\\n\\x01ü\"");
        assert_eq!(quote_list(&["a", "b"]), r#"["a" "b"]"#);
    }
}

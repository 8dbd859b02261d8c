//! Parsed API requests.

use std::fmt;

use http::{Method, Request};

/// One call to an API server, parsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `apply`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The plural of the kind, with the group for all but the core group: `configmaps`, `leases.coordination.k8s.io`.
    /// For a path that is not a resource, the path.
    pub resource: String,
    /// The subresource, such as `status` or `scale`; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty for cluster-wide calls.
    pub namespace: String,
    /// The name of the object; empty for lists, watches and creates.
    pub name: String,
    /// The name to which the field selector of a list or watch restricts it: RBAC treats it like the name of an object. Otherwise empty.
    pub selected: String,
    /// The user agent of the caller.
    pub agent: String,
}

impl Call {
    /// Parses the request's method, path, query and headers.
    pub fn of<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => ("", [].as_slice()),
        };
        // `namespaces/x` alone is the Namespace itself.
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !matches!(rest[0], "status" | "finalize") => {
                (*namespace, rest)
            }
            _ => ("", rest),
        };
        let resource = match (rest.first(), group) {
            (None, _) => path.to_owned(),
            (Some(plural), "") => (*plural).to_owned(),
            (Some(plural), group) => format!("{plural}.{group}"),
        };
        let name = rest.get(1).copied().unwrap_or_default();
        let query = request.uri().query().unwrap_or_default();
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self {
            verb: verb(request.method(), name, query, header("content-type")),
            resource,
            subresource: rest.get(2).copied().unwrap_or_default().to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            selected: if name.is_empty() { selected(query).to_owned() } else { String::new() },
            agent: header("user-agent").to_owned(),
        }
    }

    /// Whether the call writes.
    pub fn writes(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// Whether the call is about a Lease, that is leader election.
    pub fn leases(&self) -> bool {
        self.resource == "leases.coordination.k8s.io"
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.namespace.is_empty() || !self.name.is_empty() {
            f.write_str(" ")?;
        }
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)?;
        if self.subresource.is_empty() { Ok(()) } else { write!(f, " ({})", self.subresource) }
    }
}

/// The name in a field selector that has no other term.
fn selected(query: &str) -> &str {
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=")).unwrap_or_default();
    let name = selector.strip_prefix("metadata.name%3D").or_else(|| selector.strip_prefix("metadata.name="));
    name.filter(|name| !name.contains(['%', ','])).unwrap_or_default()
}

fn verb(method: &Method, name: &str, query: &str, content: &str) -> &'static str {
    let watch = query.split('&').any(|pair| matches!(pair, "watch" | "watch=1" | "watch=true"));
    match (method.as_str(), name.is_empty()) {
        ("GET" | "HEAD", _) if watch => "watch",
        ("GET" | "HEAD", true) => "list",
        ("GET" | "HEAD", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) if content.starts_with("application/apply-patch") => "apply",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        _ => "delete",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(method: &str, uri: &str, content: &str) -> String {
        let request = Request::builder().method(method).uri(uri).header("content-type", content).body(()).unwrap();
        Call::of(&request).to_string()
    }

    #[test]
    fn calls_are_read_from_their_paths() {
        assert_eq!(said("GET", "/api/v1/namespaces/a/configmaps/b", ""), "get configmaps a/b");
        assert_eq!(said("GET", "/api/v1/namespaces/a/configmaps?watch=true&limit=5", ""), "watch configmaps a/");
        assert_eq!(said("GET", "/api/v1/nodes", ""), "list nodes");
        assert_eq!(said("GET", "/api/v1/namespaces/a", ""), "get namespaces a");
        assert_eq!(said("DELETE", "/api/v1/namespaces/a", ""), "delete namespaces a");
        assert_eq!(
            said(
                "PATCH",
                "/apis/fleetwright.io/v1alpha1/namespaces/a/machines/m/status",
                "application/apply-patch+yaml"
            ),
            "apply machines.fleetwright.io a/m (status)"
        );
        assert_eq!(
            said("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", ""),
            "update leases.coordination.k8s.io a/l"
        );
        assert_eq!(said("GET", "/readyz", ""), "list /readyz");
    }

    #[test]
    fn a_field_selector_names_an_object_if_it_has_no_other_term() {
        let selected = |query: &str| {
            let uri = format!("/api/v1/namespaces/a/configmaps{query}");
            Call::of(&Request::builder().uri(uri).body(()).unwrap()).selected
        };
        assert_eq!(selected("?watch=true&fieldSelector=metadata.name%3Db"), "b");
        assert_eq!(selected("?fieldSelector=metadata.name=b"), "b");
        for other in ["", "?fieldSelector=metadata.name%3Db%2Ca%3Dc", "?fieldSelector=spec.nodeName%3Db"] {
            assert_eq!(selected(other), "", "{other}");
        }
        assert_eq!(selected("/c?fieldSelector=metadata.name%3Db"), "");
    }
}

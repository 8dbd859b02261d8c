//! The verb, resource and object of a request to the API server.

use http::{Method, Request, header};

/// A request, for people and for budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `apply`, `delete` or `deletecollection`; for paths that are no objects, the
    /// method in lower case.
    pub verb: &'static str,
    /// Resource as `kubectl` names it, with the subresource: `configmaps`, `machines.fleetwright.io/status`. `other` for paths that are no objects.
    pub resource: String,
    /// Namespace; empty for all namespaces, and for cluster-scoped kinds.
    pub namespace: String,
    /// Name of the object; empty for calls on collections.
    pub name: String,
}

impl Call {
    /// Derived from the method, the path, the query and the content type.
    pub fn of<B>(request: &Request<B>) -> Self {
        let place = RequestPath::of(request.uri().path());
        let named = !place.name.is_empty();
        let verb = match *request.method() {
            // Watching one object by its path was removed from Kubernetes; watching by a query parameter was not.
            Method::GET if watches(request.uri().query()) => "watch",
            Method::GET if place.resource == OTHER || named => "get",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH if applies(request) => "apply",
            Method::PATCH => "patch",
            Method::DELETE if place.resource == OTHER || named => "delete",
            Method::DELETE => "deletecollection",
            Method::HEAD => "head",
            Method::OPTIONS => "options",
            _ => "other",
        };
        Self { verb, resource: place.resource, namespace: place.namespace, name: place.name }
    }

    /// Whether the call only reads. An unknown verb counts as a write.
    pub fn reads(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }

    /// Whether the call is a watch, which is long-lived.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }
}

const OTHER: &str = "other";

fn watches(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch" | "watch=true" | "watch=1")))
}

fn applies<B>(request: &Request<B>) -> bool {
    let content = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    content.starts_with(b"application/apply-patch")
}

struct RequestPath {
    resource: String,
    namespace: String,
    name: String,
}

impl RequestPath {
    fn of(path: &str) -> Self {
        let none = || Self { resource: OTHER.into(), namespace: String::new(), name: String::new() };
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let group = match segments.next() {
            Some("api") => "",
            Some("apis") => segments.next().unwrap_or_default(),
            _ => return none(),
        };
        // The version.
        segments.next();
        let rest: Vec<&str> = segments.collect();
        let (namespace, resource, name, subresource) = match rest.as_slice() {
            [] => return none(),
            // The two subresources of namespaces themselves, whose paths look like resources within a namespace.
            ["namespaces", name, sub @ ("status" | "finalize")] => ("", "namespaces", *name, *sub),
            ["namespaces", namespace, resource, rest @ ..] => (
                *namespace,
                *resource,
                rest.first().copied().unwrap_or_default(),
                rest.get(1).copied().unwrap_or_default(),
            ),
            [resource, rest @ ..] => {
                ("", *resource, rest.first().copied().unwrap_or_default(), rest.get(1).copied().unwrap_or_default())
            }
        };
        let mut full = resource.to_owned();
        for (separator, part) in [('.', group), ('/', subresource)] {
            if !part.is_empty() {
                full.push(separator);
                full.push_str(part);
            }
        }
        Self { resource: full, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_kubernetes_reads_it() {
        let cases = [
            ("GET", "/api/v1/namespaces/a/configmaps/x", "", "get configmaps a x"),
            ("GET", "/api/v1/namespaces/a/configmaps?limit=5", "", "list configmaps a "),
            ("GET", "/api/v1/configmaps?watch=true&limit=5", "", "watch configmaps  "),
            ("GET", "/api/v1/configmaps?labelSelector=watch%3Dtrue", "", "list configmaps  "),
            ("GET", "/api/v1/namespaces", "", "list namespaces  "),
            ("GET", "/api/v1/namespaces/a", "", "get namespaces  a"),
            ("PUT", "/api/v1/namespaces/a/finalize", "", "update namespaces/finalize  a"),
            ("POST", "/apis/fleetwright.io/v1alpha1/namespaces/a/machines", "", "create machines.fleetwright.io a "),
            (
                "PATCH",
                "/apis/fleetwright.io/v1alpha1/namespaces/a/machines/x/status?fieldManager=k&force=true",
                "application/apply-patch+yaml",
                "apply machines.fleetwright.io/status a x",
            ),
            ("PATCH", "/api/v1/nodes/n", "application/json-patch+json", "patch nodes  n"),
            ("DELETE", "/api/v1/nodes/n", "", "delete nodes  n"),
            ("DELETE", "/api/v1/nodes", "", "deletecollection nodes  "),
            ("POST", "/api/v1/namespaces/a/pods/p/eviction", "", "create pods/eviction a p"),
            ("GET", "/version", "", "get other  "),
            ("GET", "/apis", "", "get other  "),
            ("GET", "/apis/apps/v1", "", "get other  "),
        ];
        for (method, uri, content, expected) in cases {
            let request = Request::builder().method(method).uri(uri).header("content-type", content).body(()).unwrap();
            let call = Call::of(&request);
            let seen = format!("{} {} {} {}", call.verb, call.resource, call.namespace, call.name);
            assert_eq!(seen, expected, "{method} {uri}");
        }
    }

    #[test]
    fn an_unknown_method_is_taken_to_write() {
        let request = Request::builder().method("PURGE").uri("/api/v1/nodes/n").body(()).unwrap();
        assert!(!Call::of(&request).reads());
    }
}

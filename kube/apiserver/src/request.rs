//! Parses requests: method, path and query.

use std::borrow::Cow;

use http::Method;

/// The query of a request, decoded.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`. Broken escapes are taken literally, as clients of the real server expect no error here.
    pub fn parse(raw: Option<&str>) -> Self {
        let pairs = raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key, true).into_owned(), decode(value, true).into_owned())
                })
                .collect(),
        )
    }

    /// The first value of a key; an empty value counts as absent.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    /// Every value of a key, including empty ones.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Whether a flag is set: `watch`, `watch=1`, `watch=true`. As the real server's conversion of booleans has it:
    /// present and neither `false` nor `0`.
    pub fn flag(&self, key: &str) -> bool {
        self.optional_flag(key).unwrap_or(false)
    }

    pub fn optional_flag(&self, key: &str) -> Option<bool> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| !matches!(v.to_ascii_lowercase().as_str(), "false" | "0"))
    }
}

/// Percent-decodes; `+` is a space in queries.
fn decode(text: &str, plus: bool) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = (byte == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match hex {
            Some(value) => {
                out.push(value);
                at += 3;
            }
            None => {
                out.push(if byte == b'+' && plus { b' ' } else { byte });
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// A parsed request, as in kube-apiserver's request info.
#[derive(Clone, Debug, Default)]
pub struct RequestInfo {
    /// The decoded path.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for other paths the lower-case method.
    pub verb: &'static str,
    /// Whether the path names a resource.
    pub is_resource: bool,
    /// The API group, empty for core.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The namespace, empty for none.
    pub namespace: String,
    /// The plural resource.
    pub resource: String,
    /// The subresource, empty for none.
    pub subresource: String,
    /// The object's name, empty for a collection.
    pub name: String,
    /// The name in the field selector of a collection request: rights by name apply to it.
    pub selected: String,
    /// The node in the field selector of a collection request.
    pub selected_node: String,
    /// Path segments after the subresource: only proxies have them, and they are not served.
    pub excess: bool,
}

impl RequestInfo {
    /// Takes a request apart.
    pub fn new(method: &Method, path: &str, query: &Query) -> Self {
        // Decoded first and split after, as Go's URL does: an encoded slash separates.
        let decoded = decode(path, false);
        let mut info = Self { verb: plain_verb(method), path: decoded.clone().into_owned(), ..Self::default() };
        let segments: Vec<&str> = decoded.trim_matches('/').split('/').collect();
        let mut rest = segments.as_slice();
        match rest {
            ["api", version, tail @ ..] => {
                info.version = (*version).to_owned();
                rest = tail;
            }
            ["apis", group, version, tail @ ..] => {
                info.group = (*group).to_owned();
                info.version = (*version).to_owned();
                rest = tail;
            }
            _ => return info,
        }
        let mut watch_prefix = false;
        if let ["watch", tail @ ..] = rest
            && !tail.is_empty()
        {
            watch_prefix = true;
            rest = tail;
        }
        if rest.is_empty() {
            return info;
        }
        info.is_resource = true;
        if let ["namespaces", namespace, tail @ ..] = rest {
            info.namespace = (*namespace).to_owned();
            // `/namespaces/x`, `/namespaces/x/status` and `/finalize` are about the namespace itself.
            if let [first, ..] = tail
                && !matches!(*first, "status" | "finalize")
            {
                rest = tail;
            }
        }
        let part = |at: usize| rest.get(at).copied().unwrap_or_default().to_owned();
        (info.resource, info.name, info.subresource) = (part(0), part(1), part(2));
        info.excess = rest.len() > 3;
        let collection = info.name.is_empty();
        info.verb = resource_verb(method, collection, watch_prefix || (collection && query.flag("watch")));
        if matches!(info.verb, "list" | "watch" | "deletecollection") && collection {
            info.selected = selected(query, "metadata.name=").unwrap_or_default();
            info.selected_node = selected(query, "spec.nodeName=").unwrap_or_default();
        }
        info
    }
}

fn selected(query: &Query, field: &str) -> Option<String> {
    let terms = query.get("fieldSelector")?.split(',');
    let mut names = terms.filter_map(|term| term.strip_prefix(field)).map(|name| name.trim_start_matches('='));
    names.next().map(str::to_owned)
}

fn plain_verb(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "get",
        "HEAD" => "head",
        "POST" => "post",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        "OPTIONS" => "options",
        _ => "other",
    }
}

fn resource_verb(method: &Method, collection: bool, watch: bool) -> &'static str {
    match method.as_str() {
        "GET" | "HEAD" if collection && watch => "watch",
        "GET" | "HEAD" if collection => "list",
        "GET" | "HEAD" if watch => "watch",
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if collection => "deletecollection",
        "DELETE" => "delete",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &str, target: &str) -> RequestInfo {
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        RequestInfo::new(&method.parse().unwrap(), path, &Query::parse(query))
    }

    #[test]
    fn a_namespace_is_an_object_and_a_place() {
        let object = info("GET", "/api/v1/namespaces/pay/status");
        assert_eq!(
            (object.resource.as_str(), object.name.as_str(), object.subresource.as_str()),
            ("namespaces", "pay", "status")
        );
        let place = info("GET", "/api/v1/namespaces/pay/pods/web");
        assert_eq!((place.resource.as_str(), place.namespace.as_str(), place.name.as_str()), ("pods", "pay", "web"));
    }

    #[test]
    fn the_verb_follows_method_name_and_watch() {
        assert_eq!(info("GET", "/apis/apps/v1/deployments?watch=true").verb, "watch");
        assert_eq!(info("GET", "/apis/apps/v1/deployments?watch=false").verb, "list");
        assert_eq!(info("GET", "/api/v1/watch/namespaces/x/pods").verb, "watch");
        assert_eq!(info("GET", "/api/v1/watch/namespaces/x/pods/p").verb, "watch");
        assert_eq!(info("GET", "/api/v1/namespaces/x/pods/p?watch=true").verb, "get");
        assert_eq!(info("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dp").selected, "p");
        assert_eq!(info("DELETE", "/api/v1/namespaces/x/pods").verb, "deletecollection");
        assert_eq!(info("POST", "/api/v1/namespaces/x/pods/p/eviction").subresource, "eviction");
    }

    #[test]
    fn escapes_are_decoded_and_broken_ones_kept() {
        assert_eq!(Query::parse(Some("labelSelector=a%3Db+c%zz")).get("labelSelector"), Some("a=b c%zz"));
        assert!(!info("GET", "/livez").is_resource);
    }
}

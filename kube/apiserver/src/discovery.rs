//! Discovery: groups, versions and resources of a server, in the unaggregated form (`/api`, `/apis`, one list per
//! version) and in the aggregated one (everything in one answer), the index of its OpenAPI documents, and its version.
//!
//! Every function builds a document from resources; the caller caches and serves it.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::config::{KUBERNETES_VERSION, Version};
use crate::registry::{Origin, Resource, Subresource};

/// The media type of aggregated discovery.
pub(crate) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A group and its versions, the preferred one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The name; never empty, the core group is not listed.
    pub name: Arc<str>,
    /// Its versions, the preferred one first.
    pub versions: Vec<Arc<str>>,
}

/// The named groups of these resources: built-in ones in the table's order, then custom ones by name.
pub(crate) fn groups(resources: &[Arc<Resource>]) -> Vec<Group> {
    let mut groups: Vec<(bool, Group)> = Vec::new();
    for resource in resources.iter().filter(|resource| !resource.group.is_empty()) {
        let custom = resource.custom().is_some();
        let at = groups.iter().position(|(_, group)| group.name == resource.group).unwrap_or_else(|| {
            groups.push((custom, Group { name: Arc::clone(&resource.group), versions: Vec::new() }));
            groups.len() - 1
        });
        if let Some((_, group)) = groups.get_mut(at)
            && !group.versions.contains(&resource.version)
        {
            group.versions.push(Arc::clone(&resource.version));
        }
    }
    let own = groups.iter().position(|(custom, _)| *custom).unwrap_or(groups.len());
    groups[own..].sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, group)| group).collect();
    for group in &mut groups {
        group.versions.sort_by(|a, b| compare_versions(b, a));
    }
    groups
}

/// Compares versions as Kubernetes ranks them: stable before beta before alpha, then newer, then by name; greater is better.
pub(crate) fn compare_versions(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => Reverse(a).cmp(&Reverse(b)),
    }
}

/// Parses a version: `v2beta1` is (beta, 2, 1); none for other names.
fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (major, rest) = rest.split_at(digits(rest));
    let major = major.parse().ok()?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        _ => return None,
    };
    let minor = minor.split_at_checked(digits(minor)).filter(|(_, rest)| rest.is_empty())?.0;
    Some((stability, major, minor.parse().ok()?))
}

/// `/api`. `host` is the address at which clients reach the server.
pub(crate) fn core_versions(host: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    })
}

/// `/apis`.
pub(crate) fn group_list(resources: &[Arc<Resource>]) -> Value {
    let groups: Vec<Value> = groups(resources).iter().map(|group| describe(group).into()).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`; none when the group does not exist.
pub(crate) fn group(resources: &[Arc<Resource>], name: &str) -> Option<Value> {
    let groups = groups(resources);
    let mut value = describe(groups.iter().find(|group| &*group.name == name)?);
    value.insert("kind".into(), "APIGroup".into());
    value.insert("apiVersion".into(), "v1".into());
    Some(value.into())
}

fn describe(group: &Group) -> Map<String, Value> {
    let version =
        |version: &Arc<str>| json!({"groupVersion": format!("{}/{version}", group.name), "version": &**version});
    let mut value = Map::new();
    value.insert("name".into(), (*group.name).into());
    value.insert("versions".into(), group.versions.iter().map(version).collect());
    value.insert("preferredVersion".into(), group.versions.first().map(version).into());
    value
}

/// `/api/v1` and `/apis/GROUP/VERSION`; none when the version does not exist.
pub(crate) fn resource_list(resources: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for resource in resources.iter().filter(|resource| &*resource.group == group && &*resource.version == version) {
        list.push(describe_resource(resource));
        list.extend(resource.subresources.iter().map(|sub| describe_subresource(resource, sub)));
    }
    let group_version =
        resources.iter().find(|r| &*r.group == group && &*r.version == version)?.api_version.to_string();
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

fn describe_resource(resource: &Resource) -> Value {
    let mut value = json!({
        "name": &*resource.plural,
        "singularName": &*resource.singular,
        "namespaced": resource.namespaced,
        "kind": &*resource.kind,
        "verbs": resource.verbs,
    });
    add_names(&mut value, resource);
    if resource.verbs.contains(&"list") {
        value["storageVersionHash"] = storage_version_hash(resource).into();
    }
    value
}

fn describe_subresource(resource: &Resource, sub: &Subresource) -> Value {
    let mut value = json!({
        "name": format!("{}/{}", resource.plural, sub.name),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": &*sub.kind,
        "verbs": sub.verbs,
    });
    if (&sub.group, &sub.version) != (&resource.group, &resource.version) {
        value["group"] = (*sub.group).into();
        value["version"] = (*sub.version).into();
    }
    value
}

fn add_names(value: &mut Value, resource: &Resource) {
    if !resource.short_names.is_empty() {
        value["shortNames"] = resource.short_names.iter().map(|name| &**name).collect();
    }
    if !resource.categories.is_empty() {
        value["categories"] = resource.categories.iter().map(|name| &**name).collect();
    }
}

/// A hash that changes when objects are stored in another version.
fn storage_version_hash(resource: &Resource) -> String {
    let (group, version) = match resource.storage_api_version.split_once('/') {
        // kube-apiserver still writes definitions of custom resources in the version in which they first appeared.
        Some((group @ "apiextensions.k8s.io", _)) => (group, "v1beta1"),
        Some(found) => found,
        None => ("", &*resource.storage_api_version),
    };
    let digest = digest::digest(&digest::SHA256, format!("{group}/{version}/{}", resource.kind).as_bytes());
    BASE64_STANDARD.encode(&digest.as_ref()[..8])
}

/// `/api` (core) or `/apis` in the aggregated form.
pub(crate) fn aggregated(resources: &[Arc<Resource>], core: bool) -> Value {
    let groups = if core { vec![Group { name: "".into(), versions: vec!["v1".into()] }] } else { groups(resources) };
    let items: Vec<Value> = groups.iter().map(|group| aggregated_group(resources, group)).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_group(resources: &[Arc<Resource>], group: &Group) -> Value {
    let versions = group.versions.iter().map(|version| {
        let mut of_version: Vec<&Arc<Resource>> =
            resources.iter().filter(|r| r.group == group.name && r.version == *version).collect();
        of_version.sort_by(|a, b| a.plural.cmp(&b.plural));
        let list: Vec<Value> = of_version.into_iter().map(|resource| aggregated_resource(resource)).collect();
        json!({"version": &**version, "resources": list, "freshness": "Current"})
    });
    let versions: Vec<Value> = versions.collect();
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": &*group.name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    // Built-in kinds inherit group and version from the enclosing list; custom ones always have their own.
    let kind = |group: &str, version: &str, kind: &str| {
        let own = group == &*resource.group && version == &*resource.version;
        let (group, version) = match resource.origin {
            Origin::Builtin(_) if own => ("", ""),
            _ => (group, version),
        };
        json!({"group": group, "version": version, "kind": kind})
    };
    let mut value = json!({
        "resource": &*resource.plural,
        "responseKind": kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": &*resource.singular,
        "verbs": resource.verbs,
    });
    add_names(&mut value, resource);
    let subresources = resource.subresources.iter().map(|sub| {
        json!({"subresource": &*sub.name, "responseKind": kind(&sub.group, &sub.version, &sub.kind), "verbs": sub.verbs})
    });
    if !resource.subresources.is_empty() {
        value["subresources"] = subresources.collect();
    }
    value
}

/// The hash of a document: part of OpenAPI addresses and, in quotes, its ETag.
pub(crate) fn content_hash(document: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA512, document);
    digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The ETag of a document.
pub(crate) fn etag(document: &[u8]) -> String {
    format!("\"{}\"", content_hash(document))
}

/// The path of a version's OpenAPI document below `/openapi/v3/`, also its key in the index.
pub(crate) fn openapi_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// `/openapi/v3`: the index of the documents; each address changes with the content, so that clients can cache without expiry.
pub(crate) fn openapi_index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a Bytes)>) -> Value {
    let paths = documents.into_iter().map(|(path, document)| {
        let url = format!("/openapi/v3/{path}?hash={}", content_hash(document));
        (path.to_owned(), json!({"serverRelativeURL": url}))
    });
    json!({"paths": paths.collect::<Map<_, _>>()})
}

/// `/`: all served paths. `others` are the paths outside of groups.
pub(crate) fn root_paths(resources: &[Arc<Resource>], others: &[&str]) -> Value {
    let mut paths: Vec<String> = others.iter().map(|path| (*path).to_owned()).collect();
    paths.extend(["/api".into(), "/api/v1".into(), "/apis".into(), "/apis/".into()]);
    for group in groups(resources) {
        paths.push(format!("/apis/{}", group.name));
        paths.extend(group.versions.iter().map(|version| format!("/apis/{}/{version}", group.name)));
    }
    paths.sort_unstable();
    json!({"paths": paths})
}

/// `/version`: the Kubernetes version of the API, with this server named in it.
pub(crate) fn version(told: Option<&Version>) -> Value {
    let git = told.map_or(KUBERNETES_VERSION, |told| &told.git);
    let mut numbers = git.trim_start_matches('v').split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let (as_major, as_minor) = told.and_then(|told| told.emulated).unwrap_or((major, minor));
    json!({
        "major": major.to_string(),
        "minor": minor.to_string(),
        "emulationMajor": as_major.to_string(),
        "emulationMinor": as_minor.to_string(),
        "minCompatibilityMajor": as_major.to_string(),
        "minCompatibilityMinor": as_minor.saturating_sub(1).to_string(),
        "gitVersion": told.map_or_else(|| format!("{git}+fleetwright"), |told| told.git.clone()),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform_arch()),
    })
}

/// The processor architecture in the notation of Go.
fn platform_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    fn core(name: &str) -> Value {
        let list = resource_list(Registry::builtins(), "", "v1").unwrap();
        list["resources"].as_array().unwrap().iter().find(|r| r["name"] == name).cloned().unwrap()
    }

    #[test]
    fn stable_versions_come_before_beta_and_alpha() {
        let mut versions = ["foo", "v1alpha1", "v10", "v2beta1", "v1", "v1beta2", "bar", "v2beta10"];
        versions.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(versions, ["v10", "v1", "v2beta10", "v2beta1", "v1beta2", "v1alpha1", "bar", "foo"]);
    }

    #[test]
    fn a_resource_is_listed_as_the_real_server_lists_it() {
        let expected = json!({
            "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["po"], "categories": ["all"], "storageVersionHash": "xPOwRZ+Yhw8=",
        });
        assert_eq!(core("pods"), expected);
    }

    #[test]
    fn a_subresource_of_another_group_names_it() {
        let expected = json!({
            "name": "pods/eviction", "singularName": "", "namespaced": true, "kind": "Eviction", "group": "policy",
            "version": "v1", "verbs": ["create"],
        });
        assert_eq!(core("pods/eviction"), expected);
    }

    #[test]
    fn both_kinds_of_events_have_one_storage_version() {
        let list = resource_list(Registry::builtins(), "events.k8s.io", "v1").unwrap();
        assert_eq!(list["resources"][0]["storageVersionHash"], core("events")["storageVersionHash"]);
    }

    #[test]
    fn a_virtual_resource_has_no_storage_version() {
        assert_eq!(core("bindings").get("storageVersionHash"), None);
    }

    #[test]
    fn groups_come_in_the_order_of_the_real_server() {
        let list = group_list(Registry::builtins());
        let names: Vec<&str> = list["groups"].as_array().unwrap().iter().filter_map(|g| g["name"].as_str()).collect();
        assert_eq!(names[..3], ["apps", "events.k8s.io", "authentication.k8s.io"]);
        assert_eq!(list["groups"][0]["preferredVersion"], json!({"groupVersion": "apps/v1", "version": "v1"}));
    }

    #[test]
    fn aggregated_discovery_holds_the_subresources_inside_their_parent() {
        let document = aggregated(Registry::builtins(), false);
        let apps = &document["items"][0];
        assert_eq!(apps["metadata"]["name"], "apps");
        let deployments = &apps["versions"][0]["resources"][2];
        assert_eq!(deployments["responseKind"], json!({"group": "", "version": "", "kind": "Deployment"}));
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        assert_eq!(deployments["subresources"][0]["responseKind"], scale);
    }

    #[test]
    fn an_openapi_address_changes_with_its_document() {
        let index = |text: &'static str| openapi_index([("apis/apps/v1", &Bytes::from_static(text.as_bytes()))]);
        assert_ne!(index("a"), index("b"));
        let url = index("a")["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
        assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash=1F40FC92DA24169475"), "{url}");
    }

    #[test]
    fn an_unknown_version_has_no_list() {
        assert_eq!(resource_list(Registry::builtins(), "apps", "v2"), None);
    }
}

//! The paths of a document: a resource's operations with their parameters and results.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::{ResourceDoc, SubresourceDoc, root};
use crate::facts;
use crate::schemas::REF_PREFIX;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const MEDIA: &[&str] = &["application/json", "application/yaml"];

static QUERY: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| facts::query_parameters(facts::committed()));

const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
];
const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "patch.fieldManager", "fieldValidation", "force"];

/// The path that lists a version's resources.
pub(super) fn resource_list(group: &str, version: &str) -> Value {
    json!({"get": {
        "tags": [tag(group, version)],
        "description": "get available resources",
        "operationId": format!("get{}APIResources", id_part(group, version)),
        "responses": responses(&[("200", "OK")], &format!("{META}APIResourceList"), MEDIA),
    }})
}

/// Adds a resource's paths and those of its subresources.
pub(super) fn add(paths: &mut Map<String, Value>, resource: &ResourceDoc<'_>) {
    let base = root(resource.group, resource.version);
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{base}{scope}/{}", resource.plural);
    let ops = Operations { resource, sub: None };
    if resource.namespaced && ops.has("list") {
        paths.insert(format!("{base}/{}", resource.plural), ops.everywhere());
    }
    paths.insert(collection.clone(), ops.collection());
    if ops.has("get") {
        paths.insert(format!("{collection}/{{name}}"), ops.item());
    }
    for sub in &resource.subresources {
        let ops = Operations { resource, sub: Some(sub) };
        paths.insert(format!("{collection}/{{name}}/{}", sub.name), ops.item());
    }
}

/// The operations of a resource, or of one of its subresources.
struct Operations<'a> {
    resource: &'a ResourceDoc<'a>,
    sub: Option<&'a SubresourceDoc<'a>>,
}

impl Operations<'_> {
    fn has(&self, verb: &str) -> bool {
        let verbs = self.sub.map_or(&self.resource.verbs, |sub| &sub.verbs);
        verbs.contains(&verb)
    }

    fn everywhere(&self) -> Value {
        let id = format!("list{}{}ForAllNamespaces", self.part(), self.resource.kind);
        path([("get", self.list(&id))], &[])
    }

    fn collection(&self) -> Value {
        let kind = self.resource.kind;
        let namespaced = self.namespaced();
        let mut methods = Vec::new();
        if self.has("list") {
            methods.push(("get", self.list(&format!("list{}{namespaced}{kind}", self.part()))));
        }
        if self.has("create") {
            methods.push(("post", self.create()));
        }
        if self.has("deletecollection") {
            let id = format!("delete{}Collection{namespaced}{kind}", self.part());
            let custom = self.resource.is_custom();
            let query = if custom { LIST } else { DELETE_COLLECTION };
            let mut operation = self.operation("deletecollection", &format!("delete collection of {kind}"), &id, query);
            if !custom {
                operation["requestBody"] = json!({"content": self.bodies(&format!("{META}DeleteOptions"))});
            }
            operation["responses"] = responses(&[("200", "OK")], &format!("{META}Status"), MEDIA);
            methods.push(("delete", operation));
        }
        let scope: &[Value] = if self.resource.namespaced { &[namespace_parameter()] } else { &[] };
        path(methods, scope)
    }

    fn item(&self) -> Value {
        let of = self.sub.map_or(String::new(), |sub| format!("{} of ", sub.name));
        let kind = self.resource.kind;
        let mut methods = Vec::new();
        let id = |verb: &str| format!("{verb}{}{}{kind}{}", self.part(), self.namespaced(), self.sub_part());
        let ok: &[(&str, &str)] = &[("200", "OK")];
        let ok_or_created: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
        let custom = self.resource.is_custom();
        if self.has("get") {
            let query: &[&str] = if custom { &["resourceVersion"] } else { &[] };
            let mut operation = self.operation("get", &format!("read {of}the specified {kind}"), &id("read"), query);
            operation["responses"] = responses(ok, &self.type_name(), MEDIA);
            methods.push(("get", operation));
        }
        if self.has("update") {
            let text = format!("replace {of}the specified {kind}");
            let mut operation = self.operation("put", &text, &id("replace"), WRITE);
            operation["requestBody"] = json!({"content": self.bodies(&self.type_name()), "required": true});
            operation["responses"] = responses(ok_or_created, &self.type_name(), MEDIA);
            methods.push(("put", operation));
        }
        if self.has("delete") {
            let mut operation =
                self.operation("delete", &format!("delete {}", with_article(kind)), &id("delete"), DELETE);
            operation["requestBody"] = json!({"content": self.bodies(&format!("{META}DeleteOptions"))});
            let answer = if self.resource.returns_deleted { self.type_name() } else { format!("{META}Status") };
            operation["responses"] = responses(&[("200", "OK"), ("202", "Accepted")], &answer, MEDIA);
            methods.push(("delete", operation));
        }
        if self.has("patch") {
            let text = format!("partially update {of}the specified {kind}");
            let mut operation = self.operation("patch", &text, &id("patch"), PATCH);
            operation["requestBody"] = json!({"content": self.patch_bodies(), "required": true});
            let codes = if custom { ok } else { ok_or_created };
            operation["responses"] = responses(codes, &self.type_name(), MEDIA);
            methods.push(("patch", operation));
        }
        if self.sub.is_some() && self.has("create") {
            methods.push(("post", self.create()));
        }
        let named = self.sub.filter(|_| !custom).map_or(kind, |sub| sub.gvk.2);
        let mut scope = vec![json!({
            "name": "name", "in": "path", "description": format!("name of the {named}"), "required": true,
            "schema": {"type": "string", "uniqueItems": true},
        })];
        if self.resource.namespaced {
            scope.push(namespace_parameter());
        }
        path(methods, &scope)
    }

    fn list(&self, id: &str) -> Value {
        let (word, media): (_, &[&str]) = if self.resource.is_custom() {
            ("list", MEDIA)
        } else {
            ("list or watch", &["application/json", "application/json;stream=watch", "application/yaml"])
        };
        let mut operation = self.operation("list", &format!("{word} objects of kind {}", self.resource.kind), id, LIST);
        operation["responses"] = responses(&[("200", "OK")], &self.resource.list_type_name(), media);
        operation
    }

    fn create(&self) -> Value {
        let kind = self.resource.kind;
        let text = match self.sub {
            Some(sub) => format!("create {} of {}", sub.name, with_article(kind)),
            None => format!("create {}", with_article(kind)),
        };
        let id = format!("create{}{}{kind}{}", self.part(), self.namespaced(), self.sub_part());
        let mut operation = self.operation("post", &text, &id, WRITE);
        operation["requestBody"] = json!({"content": self.bodies(&self.type_name()), "required": true});
        let codes = [("200", "OK"), ("201", "Created"), ("202", "Accepted")];
        operation["responses"] = responses(&codes, &self.type_name(), MEDIA);
        operation
    }

    fn operation(&self, action: &str, description: &str, id: &str, query: &[&str]) -> Value {
        let resource = self.resource;
        let (group, version, kind) = match self.sub {
            Some(sub) if !resource.is_custom() => sub.gvk,
            _ => (resource.group, resource.version, resource.kind),
        };
        let parameters: Vec<&Value> = query.iter().chain(&["pretty"]).filter_map(|name| QUERY.get(*name)).collect();
        json!({
            "tags": [tag(resource.group, resource.version)],
            "description": description,
            "operationId": id,
            "parameters": parameters,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        })
    }

    fn type_name(&self) -> String {
        match self.sub.and_then(|sub| sub.type_name) {
            Some(name) => name.to_owned(),
            None => self.resource.type_name(),
        }
    }

    fn bodies(&self, type_name: &str) -> Value {
        let media: &[&str] = if self.resource.is_custom() { MEDIA } else { &["*/*"] };
        content(media, type_name)
    }

    fn patch_bodies(&self) -> Value {
        let all = [
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
        ];
        let count = if self.resource.is_custom() { 3 } else { 4 };
        content(&all[..count], &format!("{META}Patch"))
    }

    fn part(&self) -> String {
        id_part(self.resource.group, self.resource.version)
    }

    fn namespaced(&self) -> &'static str {
        if self.resource.namespaced { "Namespaced" } else { "" }
    }

    fn sub_part(&self) -> String {
        self.sub.map_or(String::new(), |sub| capital(sub.name))
    }
}

/// A path item: parameters that all its operations take stand beside them, not in each.
fn path<'a>(methods: impl IntoIterator<Item = (&'a str, Value)>, scope: &[Value]) -> Value {
    let mut methods: Vec<(&str, Value)> = methods.into_iter().collect();
    let taken = |operation: &Value| operation["parameters"].as_array().cloned().unwrap_or_default();
    let mut shared = methods.first().map(|(_, operation)| taken(operation)).unwrap_or_default();
    shared.retain(|parameter| methods.iter().all(|(_, operation)| taken(operation).contains(parameter)));
    for (_, operation) in &mut methods {
        let mut own = taken(operation);
        own.retain(|parameter| !shared.contains(parameter));
        if let Some(operation) = operation.as_object_mut() {
            operation.remove("parameters");
            if !own.is_empty() {
                operation.insert("parameters".into(), own.into());
            }
        }
    }
    shared.extend_from_slice(scope);
    shared.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let mut item: Map<String, Value> = methods.into_iter().map(|(method, value)| (method.to_owned(), value)).collect();
    item.insert("parameters".into(), shared.into());
    item.into()
}

fn namespace_parameter() -> Value {
    json!({
        "name": "namespace", "in": "path", "required": true,
        "description": "object name and auth scope, such as for teams and projects",
        "schema": {"type": "string", "uniqueItems": true},
    })
}

fn responses(codes: &[(&str, &str)], type_name: &str, media: &[&str]) -> Value {
    let mut out = Map::new();
    for (code, description) in codes {
        out.insert((*code).into(), json!({"description": description, "content": content(media, type_name)}));
    }
    out.insert("401".into(), json!({"description": "Unauthorized"}));
    out.into()
}

fn content(media: &[&str], type_name: &str) -> Value {
    let schema = json!({"schema": {"$ref": format!("{REF_PREFIX}{type_name}")}});
    media.iter().map(|media| ((*media).to_owned(), schema.clone())).collect::<Map<_, _>>().into()
}

/// `a Pod`, `an Event`, and `Endpoints` without an article.
fn with_article(kind: &str) -> String {
    match kind.chars().next() {
        _ if kind.ends_with('s') && !kind.ends_with("ss") => kind.to_owned(),
        Some('A' | 'E' | 'I' | 'O' | 'U' | 'a' | 'e' | 'i' | 'o' | 'u') => format!("an {kind}"),
        _ => format!("a {kind}"),
    }
}

/// `apps_v1`, `core_v1`, `rbacAuthorization_v1`.
fn tag(group: &str, version: &str) -> String {
    let name = group_name(group);
    let mut letters = name.chars();
    let first = letters.next().map(|c| c.to_ascii_lowercase());
    format!("{}{}_{version}", first.map(String::from).unwrap_or_default(), letters.as_str())
}

/// `AppsV1`, `CoreV1`, `RbacAuthorizationV1`.
fn id_part(group: &str, version: &str) -> String {
    format!("{}{}", group_name(group), capital(version))
}

fn group_name(group: &str) -> String {
    match group.strip_suffix(".k8s.io").unwrap_or(group) {
        "" => "Core".to_owned(),
        name => name.split('.').map(capital).collect(),
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    format!("{}{}", first.map(String::from).unwrap_or_default(), letters.as_str())
}

//! OpenAPI v3 documents, one per group and version, as kube-apiserver serves them under `/openapi/v3`.
//!
//! The same code describes built-in kinds and custom resources. What this server does not speak (protobuf, the old
//! `/watch/` paths) is not in the documents.

mod custom;
mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, OnceLock};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::schemas::{REF_PREFIX, definitions};
use crate::table::{KINDS, Kind};

/// The description of a resource's objects in a document.
#[derive(Clone, Copy, Debug)]
pub enum Definition<'a> {
    /// A built-in type, by its OpenAPI name.
    BuiltIn(&'a str),
    /// A custom resource: the `openAPIV3Schema` of one version.
    Custom(&'a Value),
}

/// One subresource in a document.
#[derive(Clone, Debug)]
pub struct SubresourceDoc<'a> {
    /// The last segment of its path.
    pub name: &'a str,
    /// Group, version and kind of its object.
    pub gvk: (&'a str, &'a str, &'a str),
    /// The OpenAPI name of its type; none for the parent's.
    pub type_name: Option<&'a str>,
    pub verbs: Vec<&'a str>,
}

/// One resource in a document.
#[derive(Clone, Debug)]
pub struct ResourceDoc<'a> {
    /// API group; empty for the core group.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    pub kind: &'a str,
    pub list_kind: &'a str,
    /// The plural, as in paths.
    pub plural: &'a str,
    /// Whether it lives in namespaces.
    pub namespaced: bool,
    /// Its verbs, as discovery lists them.
    pub verbs: Vec<&'a str>,
    /// Whether deleting one answers with the deleted object instead of a `Status`.
    pub returns_deleted: bool,
    pub subresources: Vec<SubresourceDoc<'a>>,
    /// Its objects.
    pub definition: Definition<'a>,
}

impl ResourceDoc<'_> {
    fn is_custom(&self) -> bool {
        matches!(self.definition, Definition::Custom(_))
    }

    /// The name of the object's definition; a custom kind's is its group turned around.
    fn type_name(&self) -> String {
        match self.definition {
            Definition::BuiltIn(name) => name.to_owned(),
            Definition::Custom(_) => format!("{}.{}", self.custom_prefix(), self.kind),
        }
    }

    fn list_type_name(&self) -> String {
        match self.definition {
            Definition::BuiltIn(name) => format!("{name}List"),
            Definition::Custom(_) => format!("{}.{}", self.custom_prefix(), self.list_kind),
        }
    }

    fn custom_prefix(&self) -> String {
        let group: Vec<&str> = self.group.rsplit('.').collect();
        format!("{}.{}", group.join("."), self.version)
    }
}

/// The document of a group and version.
pub fn document(group: &str, version: &str, resources: &[ResourceDoc<'_>]) -> Value {
    let custom = resources.iter().any(ResourceDoc::is_custom);
    let mut paths = Map::new();
    if !custom {
        paths.insert(format!("{}/", root(group, version)), paths::resource_list(group, version));
    }
    let mut wanted = BTreeSet::new();
    let mut schemas = BTreeMap::new();
    for resource in resources {
        paths::add(&mut paths, resource);
        if let Definition::Custom(schema) = resource.definition {
            schemas.insert(resource.type_name(), custom::object(resource, schema));
            schemas.insert(resource.list_type_name(), custom::list(resource));
        }
    }
    references(&Value::Object(paths.clone()), &mut wanted);
    for schema in schemas.values() {
        references(schema, &mut wanted);
    }
    add_definitions(&mut schemas, wanted, (group, version));
    let info = if custom {
        json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"})
    } else {
        json!({"title": "Kubernetes", "version": "1.37"})
    };
    let mut components = json!({"schemas": schemas});
    if !custom {
        components["securitySchemes"] = json!({"BearerToken": {
            "type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header",
        }});
    }
    json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": components})
}

/// The document of a built-in group and version, made when first asked for and then shared by the whole process.
pub fn built_in(group: &str, version: &str) -> Option<Bytes> {
    type Cell = OnceLock<Bytes>;
    static DOCUMENTS: LazyLock<BTreeMap<(&str, &str), Cell>> =
        LazyLock::new(|| KINDS.iter().map(|kind| ((kind.group, kind.version), Cell::new())).collect());
    // The key's lifetime is the table's, so a lookup goes through the table's own strings.
    let row = KINDS.iter().find(|kind| kind.group == group && kind.version == version)?;
    let cell = DOCUMENTS.get(&(row.group, row.version))?;
    Some(cell.get_or_init(|| Bytes::from(document_of_table(group, version).to_string())).clone())
}

fn document_of_table(group: &str, version: &str) -> Value {
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| kind.group == group && kind.version == version).collect();
    let list_kinds: Vec<String> = kinds.iter().map(|kind| kind.list_kind()).collect();
    let resources: Vec<ResourceDoc<'_>> =
        kinds.iter().zip(&list_kinds).map(|(kind, list_kind)| resource_of(kind, list_kind)).collect();
    document(group, version, &resources)
}

fn resource_of<'a>(kind: &'a Kind, list_kind: &'a str) -> ResourceDoc<'a> {
    let subresources = kind.subresources.iter().map(|sub| SubresourceDoc {
        name: sub.name,
        gvk: if sub.version.is_empty() {
            (kind.group, kind.version, sub.kind)
        } else {
            (sub.group, sub.version, sub.kind)
        },
        type_name: Some(sub.type_name),
        verbs: sub.verbs.to_vec(),
    });
    ResourceDoc {
        group: kind.group,
        version: kind.version,
        kind: kind.kind,
        list_kind,
        plural: kind.plural,
        namespaced: kind.namespaced,
        verbs: kind.verbs.to_vec(),
        returns_deleted: kind.returns_deleted,
        subresources: subresources.collect(),
        definition: Definition::BuiltIn(kind.type_name),
    }
}

/// The path under which a group and version is served.
pub(crate) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// Collects the names of the definitions that a value refers to.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value.as_str().and_then(|text| text.strip_prefix(REF_PREFIX)) {
                    Some(name) if key == "$ref" => {
                        found.insert(name.to_owned());
                    }
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// Adds the required built-in definitions, and those that they refer to.
fn add_definitions(schemas: &mut BTreeMap<String, Value>, mut wanted: BTreeSet<String>, document: (&str, &str)) {
    while let Some(name) = wanted.pop_first() {
        let Some(definition) = definitions().get(&name).filter(|_| !schemas.contains_key(&name)) else { continue };
        let mut definition = definition.clone();
        references(&definition, &mut wanted);
        let kinds = kinds_of(&name, document);
        if let (false, Some(object)) = (kinds.is_empty(), definition.as_object_mut()) {
            object.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        schemas.insert(name, definition);
    }
}

/// The kinds that a built-in definition stands for in a document.
fn kinds_of(type_name: &str, (group, version): (&str, &str)) -> Vec<Value> {
    let gvk = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    for kind in KINDS {
        if kind.type_name == type_name {
            return vec![gvk(kind.group, kind.version, kind.kind)];
        }
        if type_name.strip_suffix("List") == Some(kind.type_name) && kind.is_stored() {
            return vec![gvk(kind.group, kind.version, &kind.list_kind())];
        }
        if let Some(sub) = kind.subresources.iter().find(|sub| sub.type_name == type_name && !sub.version.is_empty()) {
            return vec![gvk(sub.group, sub.version, sub.kind)];
        }
    }
    match type_name.strip_prefix("io.k8s.apimachinery.pkg.apis.meta.v1.") {
        Some(kind @ ("Status" | "APIResourceList" | "APIGroup" | "APIGroupList")) => vec![gvk("", "v1", kind)],
        Some(kind @ ("DeleteOptions" | "WatchEvent")) => {
            let mut kinds = vec![gvk("", "v1", kind)];
            if !group.is_empty() {
                kinds.push(gvk(group, version, kind));
            }
            kinds
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(group: &str, version: &str) -> Value {
        serde_json::from_slice(&built_in(group, version).unwrap()).unwrap()
    }

    #[test]
    fn every_reference_in_every_document_leads_somewhere() {
        for kind in KINDS {
            let document = parsed(kind.group, kind.version);
            let mut found = BTreeSet::new();
            references(&document, &mut found);
            for name in found {
                assert!(document["components"]["schemas"].get(&name).is_some(), "{}: {name}", kind.group);
            }
        }
    }

    #[test]
    fn a_patch_operation_says_its_kind_and_takes_field_validation() {
        let document = parsed("apps", "v1");
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "apps", "version": "v1", "kind": "Deployment"})
        );
        let names: Vec<&str> =
            patch["parameters"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
        assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    }

    #[test]
    fn operation_ids_are_those_of_the_real_server() {
        let core = parsed("", "v1");
        let id = |path: &str, method: &str| core["paths"][path][method]["operationId"].as_str().unwrap().to_owned();
        assert_eq!(id("/api/v1/pods", "get"), "listCoreV1PodForAllNamespaces");
        assert_eq!(id("/api/v1/namespaces/{namespace}/pods", "delete"), "deleteCoreV1CollectionNamespacedPod");
        assert_eq!(
            id("/api/v1/namespaces/{namespace}/pods/{name}/eviction", "post"),
            "createCoreV1NamespacedPodEviction"
        );
        assert_eq!(id("/api/v1/nodes/{name}", "put"), "replaceCoreV1Node");
        let rbac = parsed("rbac.authorization.k8s.io", "v1");
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        assert_eq!(rbac["paths"][path]["get"]["operationId"], "listRbacAuthorizationV1ClusterRole");
    }

    #[test]
    fn a_custom_resource_gets_metadata_a_list_and_its_kind() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "port": {"x-kubernetes-int-or-string": true},
        }}}});
        let resource = ResourceDoc {
            group: "example.com",
            version: "v1",
            kind: "Widget",
            list_kind: "WidgetList",
            plural: "widgets",
            namespaced: true,
            verbs: vec!["create", "get", "list", "patch", "update", "watch", "delete", "deletecollection"],
            returns_deleted: false,
            subresources: vec![],
            definition: Definition::Custom(&schema),
        };
        let document = document("example.com", "v1", &[resource]);
        let widget = &document["components"]["schemas"]["com.example.v1.Widget"];
        assert_eq!(widget["x-kubernetes-group-version-kind"][0]["kind"], "Widget");
        assert!(widget["properties"]["metadata"]["allOf"][0]["$ref"].as_str().unwrap().ends_with("ObjectMeta"));
        assert_eq!(widget["properties"]["spec"]["properties"]["port"]["anyOf"][1]["type"], "string");
        let list = &document["components"]["schemas"]["com.example.v1.WidgetList"];
        assert_eq!(list["description"], "WidgetList is a list of Widget");
        let path = "/apis/example.com/v1/namespaces/{namespace}/widgets";
        assert_eq!(document["paths"][path]["get"]["operationId"], "listExampleComV1NamespacedWidget");
    }
}

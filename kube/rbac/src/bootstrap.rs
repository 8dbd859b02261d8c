//! The roles and bindings that every server starts with.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};

use crate::policy::text;
use crate::{GROUP, Rule, aggregate};

const FACTS: &str = include_str!("bootstrap.txt");
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
const CONTROLLER: &str = "system:controller:";

type RulesByRole = HashMap<(String, String), Arc<[Rule]>>;

static RULES: LazyLock<RulesByRole> = LazyLock::new(|| {
    let mut roles = objects().into_iter().filter(|object| object.get("rules").is_some()).collect::<Vec<_>>();
    // Gathered rules are worth sharing too, once they have settled.
    while let stale @ [_, ..] = &aggregate(&roles)[..] {
        for role in &mut roles {
            if let Some((_, rules)) = stale.iter().find(|(name, _)| role["metadata"]["name"] == **name) {
                role["rules"] = json!(rules);
            }
        }
    }
    let keyed = roles.iter().map(|role| {
        let name = |pointer| text(role, pointer).to_owned();
        ((name("/metadata/namespace"), name("/metadata/name")), Rule::of_role(role).into())
    });
    keyed.collect()
});

/// The rules that the role of this name starts with, one copy for all servers of the process.
pub(crate) fn shared_rules(namespace: &str, name: &str) -> Option<Arc<[Rule]>> {
    RULES.get(&(namespace.to_owned(), name.to_owned())).cloned()
}

/// The objects, as they would be created: ClusterRoles, Roles and their bindings. Those in a namespace are in
/// `kube-system` and `kube-public`. The rules of aggregated roles are left for [`aggregate`](crate::aggregate).
pub fn objects() -> Vec<Value> {
    let mut objects: Vec<Value> = Vec::new();
    let mut bindings = Vec::new();
    for line in FACTS.lines().filter(|line| !line.starts_with('#')) {
        if let Some(rule) = line.strip_prefix("  ") {
            let rules = objects.last_mut().and_then(|role| role.get_mut("rules")).and_then(Value::as_array_mut);
            if let Some(rules) = rules {
                rules.push(rule_fact(rule));
            }
            continue;
        }
        let words = line.split(' ').collect::<Vec<_>>();
        match words[..] {
            ["clusterrole", name, ref marks @ ..] => {
                objects.push(cluster_role(name, marks));
                if let Some(account) = name.strip_prefix(CONTROLLER) {
                    let subject = format!("sa:kube-system/{account}");
                    bindings.push(binding("ClusterRole", "", name, &[&subject]));
                }
            }
            ["role", name, ..] => {
                let (namespace, name) = name.split_once('/').unwrap_or(("", name));
                objects.push(object("Role", namespace, name, json!({"rules": []})));
            }
            ["clusterrolebinding", name, ref rest @ ..] => bindings.push(binding("ClusterRole", "", name, rest)),
            ["rolebinding", name, ref rest @ ..] => {
                let (namespace, name) = name.split_once('/').unwrap_or(("", name));
                bindings.push(binding("Role", namespace, name, rest));
            }
            _ => {}
        }
    }
    objects.append(&mut bindings);
    objects
}

fn object(kind: &str, namespace: &str, name: &str, content: Value) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        },
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if let (Some(object), Value::Object(mut content)) = (object.as_object_mut(), content) {
        object.append(&mut content);
    }
    object
}

fn cluster_role(name: &str, marks: &[&str]) -> Value {
    let mut role = object("ClusterRole", "", name, json!({"rules": []}));
    for mark in marks.chunks(2) {
        match mark {
            ["feeds", other] => role["metadata"]["labels"][format!("{AGGREGATE}{other}")] = json!("true"),
            ["gathers", own] => {
                let labels = Map::from_iter([(format!("{AGGREGATE}{own}"), json!("true"))]);
                role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
                role["rules"] = Value::Null;
            }
            _ => {}
        }
    }
    role
}

fn binding(role_kind: &str, namespace: &str, name: &str, words: &[&str]) -> Value {
    let (role, subjects) = match words {
        ["of", role, subjects @ ..] => (*role, subjects),
        subjects => (name, subjects),
    };
    let subjects = subjects.iter().filter_map(|word| {
        let (kind, name) = word.split_once(':')?;
        match kind {
            "user" => Some(json!({"kind": "User", "apiGroup": GROUP, "name": name})),
            "group" => Some(json!({"kind": "Group", "apiGroup": GROUP, "name": name})),
            _ => {
                let (namespace, name) = name.split_once('/')?;
                Some(json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}))
            }
        }
    });
    let subjects = subjects.collect::<Vec<_>>();
    let mut content = json!({"roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role}});
    if !subjects.is_empty() {
        content["subjects"] = Value::Array(subjects);
    }
    object(&format!("{role_kind}Binding"), namespace, name, content)
}

fn list(words: &str) -> Vec<&str> {
    words.split(',').map(|word| if word == "core" { "" } else { word }).collect()
}

fn rule_fact(line: &str) -> Value {
    let words = line.split(' ').collect::<Vec<_>>();
    let verbs = list(match words[0] {
        "READ" => "get,list,watch",
        "WRITE" => "create,delete,deletecollection,patch,update",
        "READWRITE" => "create,delete,deletecollection,get,list,patch,update,watch",
        "RECORD" => "create,patch,update",
        given => given,
    });
    match words[1..] {
        ["url", paths] => json!({"verbs": verbs, "nonResourceURLs": list(paths)}),
        [groups, resources, "named", names] => {
            json!({"verbs": verbs, "apiGroups": list(groups), "resources": list(resources), "resourceNames": list(names)})
        }
        [groups, resources, ..] => json!({"verbs": verbs, "apiGroups": list(groups), "resources": list(resources)}),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attributes, Policy, User};

    #[test]
    fn every_fact_becomes_an_object_with_whole_rules() {
        let objects = objects();
        let count = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!(
            [count("ClusterRole"), count("ClusterRoleBinding"), count("Role"), count("RoleBinding")],
            [73, 54, 7, 7]
        );
        for object in &objects {
            let rules = object.get("rules").and_then(Value::as_array).into_iter().flatten();
            assert!(rules.into_iter().all(Value::is_object), "{object}");
        }
    }

    #[test]
    fn every_binding_leads_to_a_role() {
        let objects = objects();
        let policy = Policy::from_objects(&objects);
        for binding in objects.iter().filter(|object| object.get("roleRef").is_some()) {
            for subject in binding["subjects"].as_array().into_iter().flatten() {
                let user = User::new(
                    subject["name"].as_str().unwrap_or_default(),
                    [subject["name"].as_str().unwrap_or_default()],
                );
                assert_eq!(policy.rules_for(&user, "kube-system").errors, Vec::<String>::new());
            }
        }
    }

    #[test]
    fn strangers_may_read_health_and_version_and_nothing_else() {
        let policy = Policy::from_objects(&objects());
        let user = User::anonymous();
        for path in ["/healthz", "/livez", "/readyz", "/version", "/version/"] {
            assert!(policy.authorize(&Attributes::path(&user, "get", path)).allowed, "{path}");
        }
        for path in ["/api", "/apis", "/metrics", "/openapi/v3", "/livez/etcd"] {
            assert!(!policy.authorize(&Attributes::path(&user, "get", path)).allowed, "{path}");
        }
        assert!(!policy.authorize(&Attributes::resource(&user, "list", "", "pods")).allowed);
    }

    #[test]
    fn unchanged_rules_are_shared() {
        let first = shared_rules("", "view").zip(shared_rules("", "view"));
        assert!(first.is_some_and(|(a, b)| Arc::ptr_eq(&a, &b)));
    }
}

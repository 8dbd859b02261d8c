//! The node authorizer: a kubelet's rights on its own Node, its own pods and the objects that those refer to. Like the authorization mode Node of
//! kube-apiserver, without the resources of storage drivers and devices that it supports as well.

use std::sync::LazyLock;

use fleetwright_rbac::{Attributes, Policy, User, bootstrap};
use serde_json::{Value, json};

use super::text;

const NODES: &str = "system:nodes";

/// The rules of the role `system:node`, for all nodes. The role's own binding has no subjects: the node authorizer narrows the rules.
static RULES: LazyLock<Policy> = LazyLock::new(|| {
    let role = bootstrap::objects()
        .into_iter()
        .find(|object| text(object, "/kind") == "ClusterRole" && text(object, "/metadata/name") == "system:node");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "nodes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NODES}],
    });
    Policy::from_objects(&role.into_iter().chain([binding]).collect::<Vec<_>>())
});

/// The node that a user is, if it is one.
pub fn node_of(user: &User) -> Option<&str> {
    user.name.strip_prefix("system:node:").filter(|name| !name.is_empty() && user.is_in(NODES))
}

/// The objects that the node authorizer reads.
pub trait Graph {
    /// The pods that are bound to a node.
    fn pods_on(&self, node: &str) -> Vec<Value>;
    fn pod(&self, namespace: &str, name: &str) -> Option<Value>;
    /// A claim of storage.
    fn claim(&self, namespace: &str, name: &str) -> Option<Value>;
}

/// Whether the node authorizer allows the request. `selected_node` is `spec.nodeName` in the request's field selector.
pub fn node_may(attributes: &Attributes<'_>, selected_node: &str, graph: &dyn Graph) -> bool {
    let Some(node) = node_of(attributes.user) else { return false };
    if !attributes.resource_request || !RULES.authorize(attributes).allowed {
        return false;
    }
    let (namespace, name) = (attributes.namespace, attributes.name);
    let own = name == node;
    let refers = |what: &dyn Fn(&Value) -> bool| {
        let pods = graph.pods_on(node);
        !name.is_empty() && pods.iter().filter(|pod| text(pod, "/metadata/namespace") == namespace).any(what)
    };
    match (attributes.group, attributes.resource, attributes.subresource, attributes.verb) {
        ("", "nodes", _, "create") => true,
        // Admission refuses writes to another node's object with a better message.
        ("", "nodes", _, "update" | "patch") => true,
        ("", "nodes", ..) => own,
        ("", "pods", "", "get") => graph.pod(namespace, name).is_some_and(|pod| text(&pod, "/spec/nodeName") == node),
        ("", "pods", "eviction", _) => {
            graph.pod(namespace, name).is_some_and(|pod| text(&pod, "/spec/nodeName") == node)
        }
        ("", "pods", "", "list" | "watch") => selected_node == node,
        ("", "secrets", ..) => refers(&|pod| secrets(pod).any(|secret| secret == name)),
        ("", "configmaps", ..) => refers(&|pod| config_maps(pod).any(|map| map == name)),
        ("", "serviceaccounts", ..) => refers(&|pod| text(pod, "/spec/serviceAccountName") == name),
        ("", "persistentvolumeclaims", ..) => refers(&|pod| claims(pod).any(|claim| claim == name)),
        ("", "persistentvolumes", ..) => graph.pods_on(node).iter().any(|pod| {
            let namespace = text(pod, "/metadata/namespace");
            claims(pod).filter_map(|claim| graph.claim(namespace, claim)).any(|c| text(&c, "/spec/volumeName") == name)
        }),
        ("coordination.k8s.io", "leases", _, verb) => namespace == "kube-node-lease" && (own || verb == "create"),
        ("storage.k8s.io", "csinodes", _, verb) => own || verb == "create",
        // The node of these objects is not known here.
        ("storage.k8s.io", "volumeattachments", ..) | ("resource.k8s.io", ..) => false,
        _ => true,
    }
}

/// An object that a pod refers to and that a node could read by creating the pod itself; none without references.
pub fn reference_of(pod: &Value) -> Option<&'static str> {
    let account = text(pod, "/spec/serviceAccountName");
    let kinds = [
        ("serviceaccounts", !account.is_empty()),
        ("secrets", secrets(pod).next().is_some()),
        ("configmaps", config_maps(pod).next().is_some()),
        ("persistentvolumeclaims", claims(pod).next().is_some()),
    ];
    kinds.into_iter().find(|(_, found)| *found).map(|(kind, _)| kind)
}

fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"].into_iter().flat_map(|at| list(pod, at))
}

fn claims(pod: &Value) -> impl Iterator<Item = &str> {
    list(pod, "/spec/volumes")
        .map(|volume| text(volume, "/persistentVolumeClaim/claimName"))
        .filter(|name| !name.is_empty())
}

/// The names of one kind that a pod refers to: from its environment, its volumes, and projected volumes.
fn referred<'a>(pod: &'a Value, kind: [&'static str; 4]) -> impl Iterator<Item = &'a str> + use<'a> {
    let [env_from, env, volume, projected] = kind;
    let environment = containers(pod).flat_map(move |container| {
        let whole = list(container, "/envFrom").map(move |from| text(from, env_from));
        whole.chain(list(container, "/env").map(move |entry| text(entry, env)))
    });
    let volumes = list(pod, "/spec/volumes").flat_map(move |entry| {
        let parts = list(entry, "/projected/sources").map(move |source| text(source, projected));
        parts.chain([text(entry, volume)])
    });
    environment.chain(volumes).filter(|name| !name.is_empty())
}

fn secrets(pod: &Value) -> impl Iterator<Item = &str> {
    let kind = ["/secretRef/name", "/valueFrom/secretKeyRef/name", "/secret/secretName", "/secret/name"];
    let pulls = list(pod, "/spec/imagePullSecrets").map(|entry| text(entry, "/name"));
    referred(pod, kind).chain(pulls).filter(|name| !name.is_empty())
}

fn config_maps(pod: &Value) -> impl Iterator<Item = &str> {
    referred(pod, ["/configMapRef/name", "/valueFrom/configMapKeyRef/name", "/configMap/name", "/configMap/name"])
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(Value);

    impl Graph for One {
        fn pods_on(&self, node: &str) -> Vec<Value> {
            if text(&self.0, "/spec/nodeName") == node { vec![self.0.clone()] } else { Vec::new() }
        }

        fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
            let found = text(&self.0, "/metadata/namespace") == namespace && text(&self.0, "/metadata/name") == name;
            found.then(|| self.0.clone())
        }

        fn claim(&self, _: &str, name: &str) -> Option<Value> {
            (name == "claim").then(|| json!({"spec": {"volumeName": "volume"}}))
        }
    }

    fn graph() -> One {
        One(json!({
            "metadata": {"namespace": "a", "name": "web"},
            "spec": {
                "nodeName": "host-17", "serviceAccountName": "bot", "imagePullSecrets": [{"name": "pull"}],
                "containers": [{
                    "envFrom": [{"secretRef": {"name": "env"}}],
                    "env": [{"valueFrom": {"configMapKeyRef": {"name": "map", "key": "k"}}}],
                }],
                "volumes": [
                    {"secret": {"secretName": "mounted"}},
                    {"projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "part"}}]}},
                    {"persistentVolumeClaim": {"claimName": "claim"}},
                ],
            },
        }))
    }

    fn may(node: &str, verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let user = User::new(format!("system:node:{node}"), [NODES]);
        let attributes = Attributes::resource(&user, verb, group, resource).in_namespace(namespace).named(name);
        node_may(&attributes, "", &graph())
    }

    #[test]
    fn a_node_reads_what_its_pods_refer_to_and_nothing_else() {
        for name in ["env", "mounted", "part", "pull"] {
            assert!(may("host-17", "get", "", "secrets", "a", name), "{name}");
            assert!(!may("host-18", "get", "", "secrets", "a", name), "{name}");
        }
        assert!(!may("host-17", "get", "", "secrets", "a", "other"));
        assert!(!may("host-17", "get", "", "secrets", "b", "env"));
        assert!(!may("host-17", "list", "", "secrets", "a", ""));
        assert!(may("host-17", "watch", "", "configmaps", "a", "kube-root-ca.crt"));
        assert!(may("host-17", "get", "", "configmaps", "a", "map"));
        assert!(may("host-17", "get", "", "persistentvolumes", "", "volume"));
        assert!(!may("host-17", "get", "", "persistentvolumes", "", "other"));
    }

    #[test]
    fn a_node_reads_its_own_node_and_pods_and_writes_its_own_lease() {
        assert!(may("host-17", "get", "", "nodes", "", "host-17"));
        assert!(!may("host-17", "get", "", "nodes", "", "host-18"));
        assert!(!may("host-17", "list", "", "nodes", "", ""));
        assert!(!may("host-17", "delete", "", "nodes", "", "host-17"));
        assert!(may("host-17", "get", "", "pods", "a", "web"));
        assert!(!may("host-18", "get", "", "pods", "a", "web"));
        assert!(!may("host-17", "list", "", "pods", "", ""));
        assert!(may("host-17", "update", "coordination.k8s.io", "leases", "kube-node-lease", "host-17"));
        assert!(!may("host-17", "update", "coordination.k8s.io", "leases", "kube-node-lease", "host-18"));
        assert!(!may("host-17", "update", "coordination.k8s.io", "leases", "a", "host-17"));
        assert!(may("host-17", "create", "certificates.k8s.io", "certificatesigningrequests", "", ""));
        assert!(!may("host-17", "create", "", "secrets", "a", ""));
    }

    #[test]
    fn no_other_user_is_a_node() {
        for (name, groups) in [("system:node:host-17", &[][..]), ("host-17", &[NODES]), ("system:node:", &[NODES])] {
            let user = User::new(name, groups.iter().copied());
            let attributes = Attributes::resource(&user, "get", "", "nodes").named("host-17");
            assert!(!node_may(&attributes, "", &graph()), "{name}");
        }
    }
}

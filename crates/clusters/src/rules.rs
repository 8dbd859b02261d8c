use fleetwright_api::GROUP;
use fleetwright_kit::journal::Journal;
use fleetwright_kit::rights::rule;
use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::access::control_plane_role;

/// The RBAC rules of the operator: the least that it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// In the namespace of the Clusters.
    pub namespaced: Vec<PolicyRule>,
    /// In the namespace of the operator's own account, which holds the sealed copies of keys.
    pub keys: Vec<PolicyRule>,
    /// In each namespace of a control plane, by a RoleBinding that the operator creates with the namespace.
    pub control_plane: Vec<PolicyRule>,
    /// In the whole meta cluster.
    pub cluster: Vec<PolicyRule>,
}

/// The RBAC rules of the operator, with an account in that namespace.
pub fn rules(account_namespace: &str) -> Rules {
    const WATCHED: &[&str] = &["list", "watch"];
    // Extensions with placement Meta have these kinds too, and their objects are deleted.
    const APPLIED: &[&str] = &["create", "patch", "delete"];
    const WORKLOADS: &[&str] = &["create", "patch", "delete", "deletecollection"];
    let role = control_plane_role(account_namespace);
    Rules {
        namespaced: [
            vec![
                rule(GROUP, &["clusters"], &["list", "watch", "patch"]),
                rule(GROUP, &["clusters/status"], &["patch"]),
                rule(GROUP, &["clusterpackageversions", "clusterlimits"], WATCHED),
                // Secrets in the spec of a Cluster, and the keys of snapshots.
                rule("", &["secrets"], &["get", "create"]),
                rule("", &["events"], &["create"]),
            ],
            Journal::rules(),
            vec![rule(GROUP, &["operationpolicies"], &["create"])],
        ]
        .concat(),
        keys: vec![rule("", &["secrets"], &["get", "list", "watch", "create", "patch", "delete"])],
        control_plane: vec![
            // A RoleBinding in a namespace grants its own Namespace, too.
            rule("", &["namespaces"], &["delete"]),
            rule("", &["secrets"], &["get", "list", "watch", "create", "patch"]),
            rule("", &["configmaps", "services"], APPLIED),
            rule("", &["resourcequotas"], &["list"]),
            rule("networking.k8s.io", &["networkpolicies"], APPLIED),
            rule("policy", &["poddisruptionbudgets"], APPLIED),
            rule("apps", &["statefulsets", "deployments"], WORKLOADS),
            rule("apps", &["replicasets"], &["deletecollection"]),
            rule("", &["pods"], &["get", "create", "patch", "delete"]),
            // Events of snapshots, of members of etcd that are removed or replaced, and of clusters that are deleted.
            rule("", &["persistentvolumeclaims"], WORKLOADS),
        ],
        cluster: vec![
            rule("", &["namespaces"], &["get", "list", "watch", "create"]),
            rule("", &["configmaps", "services", "pods", "persistentvolumeclaims"], WATCHED),
            rule("networking.k8s.io", &["networkpolicies"], WATCHED),
            rule("policy", &["poddisruptionbudgets"], WATCHED),
            rule("apps", &["statefulsets", "deployments"], WATCHED),
            // To read whether volumes can be expanded.
            rule("storage.k8s.io", &["storageclasses"], WATCHED),
            // The RoleBinding that grants the rights in a control plane's namespace, and no other role.
            rule("rbac.authorization.k8s.io", &["rolebindings"], &["list", "watch", "create"]),
            PolicyRule {
                resource_names: Some(vec![role]),
                ..rule("rbac.authorization.k8s.io", &["clusterroles"], &["bind"])
            },
        ],
    }
}

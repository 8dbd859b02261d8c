use fleetwright_api::GROUP;
use fleetwright_kit::journal::Journal;
use k8s_openapi::api::rbac::v1::PolicyRule;

/// What the operator may do: the least it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// In the namespace of the Clusters.
    pub namespaced: Vec<PolicyRule>,
    /// In the whole meta cluster: each cluster has a namespace of its own.
    pub cluster: Vec<PolicyRule>,
}

/// The exact rules that the operator needs.
pub fn rules() -> Rules {
    // Extensions with placement Meta have these kinds too, and lose them.
    const APPLIED: &[&str] = &["list", "watch", "create", "patch", "delete"];
    Rules {
        namespaced: [
            vec![
                rule(GROUP, &["clusters"], &["list", "watch", "patch"]),
                rule(GROUP, &["clusters/status"], &["patch"]),
                rule(GROUP, &["clusterpackageversions", "clusterlimits"], &["list", "watch"]),
                // The sealed copies of keys.
                rule("", &["secrets"], &["delete"]),
                rule("", &["events"], &["create"]),
            ],
            Journal::rules(),
            vec![rule(GROUP, &["operationpolicies"], &["create"])],
        ]
        .concat(),
        cluster: vec![
            rule("", &["namespaces"], &["get", "list", "watch", "create", "delete"]),
            rule("", &["secrets"], &["get", "list", "watch", "create", "patch"]),
            rule("", &["configmaps", "services"], APPLIED),
            rule("", &["resourcequotas"], &["list"]),
            rule("networking.k8s.io", &["networkpolicies"], APPLIED),
            rule("policy", &["poddisruptionbudgets"], APPLIED),
            rule(
                "apps",
                &["statefulsets", "deployments"],
                &["list", "watch", "create", "patch", "delete", "deletecollection"],
            ),
            rule("apps", &["replicasets"], &["deletecollection"]),
            rule("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
            // Of snapshots, of members of etcd that are removed or replaced, and of clusters that are deleted.
            rule("", &["persistentvolumeclaims"], &["list", "watch", "create", "patch", "delete", "deletecollection"]),
            // Whether volumes can grow.
            rule("storage.k8s.io", &["storageclasses"], &["list", "watch"]),
        ],
    }
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

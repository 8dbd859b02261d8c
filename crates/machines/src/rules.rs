use fleetwright_api::GROUP;
use fleetwright_kit::journal::Journal;
use fleetwright_kit::rights::rule;
use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::join;

/// The rights of the operator: the least that it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// In the namespace of the machines.
    pub namespaced: Vec<PolicyRule>,
    /// In kube-system, the namespace of bootstrap tokens, whose uid identifies the cluster.
    pub tokens: Vec<PolicyRule>,
    /// In the whole cluster.
    pub cluster: Vec<PolicyRule>,
}

/// The exact rules that the operator needs, joining included.
pub fn rules() -> Rules {
    let mut namespaced = vec![
        rule(GROUP, &["machines"], &["list", "watch", "patch"]),
        rule(GROUP, &["machines/status"], &["patch"]),
        rule(GROUP, &["machinepackageversions"], &["list", "watch"]),
        rule("", &["secrets", "configmaps"], &["list", "watch"]),
    ];
    namespaced.extend(Journal::rules());
    let joining = join::rules();
    let mut cluster = vec![
        rule("", &["nodes"], &["get", "list", "watch", "patch", "delete"]),
        // Pods are deleted only where a Machine declares it, with spec.drain.deleteAfter.
        rule("", &["pods"], &["list", "delete"]),
        rule("", &["pods/eviction"], &["create"]),
    ];
    for one in joining.cluster {
        // Nodes are in the list above.
        if one.resources.as_deref() != Some(&["nodes".to_owned()]) {
            cluster.push(one);
        }
    }
    let mut tokens = joining.tokens;
    // The namespace's uid identifies the API server. A Role in a namespace grants its own Namespace, too.
    tokens.push(rule("", &["namespaces"], &["get"]));
    Rules { namespaced, tokens, cluster }
}

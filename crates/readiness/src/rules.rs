use fleetwright_api::GROUP;
use fleetwright_kit::rights::rule;
use k8s_openapi::api::rbac::v1::PolicyRule;

/// The rights of the operator: the least that it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// In the namespace of the machines.
    pub namespaced: Vec<PolicyRule>,
    /// In the whole cluster.
    pub cluster: Vec<PolicyRule>,
}

/// The exact rules that the operator needs, besides those on its Lease ([`fleetwright_kit::leader::rules`]).
pub fn rules() -> Rules {
    Rules {
        namespaced: vec![
            rule(GROUP, &["machines"], &["get", "list", "watch"]),
            rule(GROUP, &["machines/status"], &["patch"]),
            rule(GROUP, &["readinessgates"], &["list", "watch"]),
            rule(GROUP, &["readinessgates/status"], &["patch"]),
            rule("", &["configmaps"], &["list", "watch"]),
            rule("", &["events"], &["create"]),
        ],
        cluster: vec![rule("", &["nodes"], &["get", "list", "watch", "patch"])],
    }
}

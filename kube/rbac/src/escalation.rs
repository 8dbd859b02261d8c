//! Privilege escalation checks: users cannot grant more rights than their own.
//!
//! Writing a role needs every permission in it, or the verb `escalate` on it; writing a binding needs every permission
//! of the role it binds, or the verb `bind` on that role.

use serde_json::Value;

use crate::messages::{quote, quote_list};
use crate::policy::{RoleRef, text};
use crate::rule::missing_lines;
use crate::{Attributes, GROUP, Policy, Rule, User};

/// Why a role or binding may not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A 403 about the written object; this is the text after `is forbidden: `.
    Forbidden(String),
    /// A 404 about the role of this name, which a binding refers to. kube-apiserver words it as if an object of the
    /// request's own resource were missing: `clusterrolebindings.rbac.authorization.k8s.io "x" not found`.
    RoleNotFound(String),
    /// A 500 without a reason: the reference is of a kind that is no role.
    Internal(String),
}

/// A write of a role or a binding, as the escalation checks see it.
#[derive(Clone, Copy, Debug)]
pub struct RoleWrite<'a> {
    /// The user of the write.
    pub user: &'a User,
    /// The resource in the request's path: `roles`, `clusterroles`, `rolebindings`, `clusterrolebindings`.
    pub resource: &'a str,
    /// The name in the request's path; empty on create.
    pub name: &'a str,
    /// The namespace in the request's path; empty at the cluster's scope.
    pub namespace: &'a str,
    /// The present object; `None` on create.
    pub old: Option<&'a Value>,
    /// The object to write.
    pub new: &'a Value,
}

impl Policy {
    /// Checks a write of a role or binding, by its resource; other resources pass.
    pub fn check_write(&self, write: &RoleWrite<'_>) -> Result<(), Refusal> {
        if write.user.is_master() || write.old.is_some_and(|old| only_collector_fields_differ(old, write.new)) {
            return Ok(());
        }
        match write.resource {
            "roles" | "clusterroles" => self.check_role(write),
            "rolebindings" | "clusterrolebindings" => self.check_binding(write),
            _ => Ok(()),
        }
    }

    fn check_role(&self, write: &RoleWrite<'_>) -> Result<(), Refusal> {
        let escalate = Attributes::resource(write.user, "escalate", GROUP, write.resource);
        if self.authorize(&escalate.named(write.name).in_namespace(write.namespace)).allowed {
            return Ok(());
        }
        self.holds(write, &Rule::of_role(write.new))?;
        let gathers = [Some(write.new), write.old].into_iter().flatten().any(has_aggregation);
        if write.resource == "clusterroles" && gathers {
            let everything = "must have cluster-admin privileges to use the aggregationRule";
            self.holds(write, &full_authority()).map_err(|_| Refusal::Forbidden(everything.to_owned()))?;
        }
        Ok(())
    }

    fn check_binding(&self, write: &RoleWrite<'_>) -> Result<(), Refusal> {
        let role = RoleRef::of_binding(write.new);
        let resource = match role.kind.as_str() {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            other => return Err(Refusal::Internal(format!("unsupported role reference kind: {}", quote(other)))),
        };
        let group = match text(write.new, "/roleRef/apiGroup") {
            "" => GROUP,
            given => given,
        };
        let bind = Attributes::resource(write.user, "bind", group, resource);
        if self.authorize(&bind.named(&role.name).in_namespace(write.namespace)).allowed {
            return Ok(());
        }
        let rules = self.resolve(&role, write.namespace);
        let rules = rules.map_err(|_| Refusal::RoleNotFound(role.name.clone()))?;
        self.holds(write, rules)
    }

    /// Refuses unless the user holds every one of the rules where they write.
    fn holds(&self, write: &RoleWrite<'_>, rules: &[Rule]) -> Result<(), Refusal> {
        let held = self.rules_for(write.user, write.namespace);
        let missing = missing_lines(&held.rules, rules);
        if missing.is_empty() {
            return Ok(());
        }
        let mut message = format!(
            "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            quote(&write.user.name),
            quote_list(&write.user.groups),
            missing.join("\n")
        );
        if let Some(error) = held.error() {
            message.push_str(&format!("; resolution errors: [{error}]"));
        }
        Err(Refusal::Forbidden(message))
    }
}

fn has_aggregation(role: &Value) -> bool {
    role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

fn full_authority() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}

/// Whether a write changes only what the garbage collector must be able to change in order to delete the object.
fn only_collector_fields_differ(old: &Value, new: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "selfLink", "managedFields"] {
                metadata.remove(field);
            }
        }
        object
    };
    stripped(old) == stripped(new)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy() -> Policy {
        let bind = |name: &str, user: &str| {
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": user},
                "roleRef": {"kind": "ClusterRole", "name": name}, "subjects": [{"kind": "User", "name": user}]})
        };
        let role =
            |name: &str, rules: Value| json!({"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
        let on_roles = |verb: &str| json!([{"verbs": [verb], "apiGroups": [GROUP], "resources": ["clusterroles"]}]);
        Policy::from_objects(&[
            role("pods", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}])),
            role(
                "all",
                json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]}]),
            ),
            role("binder", on_roles("bind")),
            role("escalator", on_roles("escalate")),
            bind("pods", "amy"),
            bind("all", "boss"),
            bind("binder", "bea"),
            bind("escalator", "eli"),
        ])
    }

    fn write_role(user: &str, role: Value) -> Result<(), Refusal> {
        let user = User::new(user, ["system:authenticated"]);
        let write = RoleWrite { user: &user, resource: "clusterroles", name: "", namespace: "", old: None, new: &role };
        policy().check_write(&write)
    }

    fn bind_role(user: &str, role: &str) -> Result<(), Refusal> {
        let user = User::new(user, ["system:authenticated"]);
        let new = json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}});
        policy().check_write(&RoleWrite {
            user: &user,
            resource: "rolebindings",
            name: "",
            namespace: "a",
            old: None,
            new: &new,
        })
    }

    fn secrets() -> Value {
        json!({"metadata": {"name": "s"},
            "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["secrets"]}]})
    }

    #[test]
    fn a_role_may_hold_only_what_its_writer_holds() {
        assert_eq!(
            write_role("amy", secrets()),
            Err(Refusal::Forbidden(
                "user \"amy\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently \
                 held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"
                    .to_owned()
            ))
        );
        assert_eq!(write_role("boss", secrets()), Ok(()));
    }

    #[test]
    fn who_may_escalate_writes_any_role() {
        assert_eq!(write_role("eli", secrets()), Ok(()));
    }

    #[test]
    fn an_aggregation_rule_needs_every_permission() {
        let role = json!({"aggregationRule": {"clusterRoleSelectors": [{}]}});
        let refusal = "must have cluster-admin privileges to use the aggregationRule".to_owned();
        assert_eq!(write_role("amy", role.clone()), Err(Refusal::Forbidden(refusal)));
        assert_eq!(write_role("boss", role), Ok(()));
    }

    #[test]
    fn a_role_is_bound_by_who_holds_it_or_may_bind_it() {
        assert_eq!(bind_role("amy", "pods"), Ok(()));
        assert_eq!(bind_role("bea", "all"), Ok(()));
        assert!(matches!(bind_role("amy", "all"), Err(Refusal::Forbidden(_))));
    }

    #[test]
    fn a_binding_to_a_role_that_does_not_exist_is_not_found() {
        assert_eq!(bind_role("amy", "gone"), Err(Refusal::RoleNotFound("gone".to_owned())));
    }

    #[test]
    fn a_finalizer_may_be_taken_off_a_role_that_is_more_than_the_writer_holds() {
        let user = User::new("amy", ["dev"]);
        let mut old = secrets();
        old["metadata"]["finalizers"] = json!(["x"]);
        let new = secrets();
        let write =
            RoleWrite { user: &user, resource: "clusterroles", name: "s", namespace: "", old: Some(&old), new: &new };
        assert_eq!(policy().check_write(&write), Ok(()));
    }
}

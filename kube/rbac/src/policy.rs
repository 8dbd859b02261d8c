//! Roles and bindings compiled for fast answers.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::messages::quote;
use crate::{Attributes, GROUP, Rule, User, bootstrap, service_account_username};

/// A decision. A request that is not allowed is not denied either: RBAC has no deny rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The binding that allowed it, or the errors of unresolved roles.
    pub reason: String,
}

/// All rules that apply to a user in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rules, cluster-wide ones first.
    pub rules: Vec<Rule>,
    /// Bindings that lead nowhere.
    pub errors: Vec<String>,
}

/// The compiled roles and bindings of one server.
#[derive(Debug, Default)]
pub struct Policy {
    cluster_roles: HashMap<String, Arc<[Rule]>>,
    roles: HashMap<(String, String), Arc<[Rule]>>,
    cluster: Bindings,
    namespaces: HashMap<String, Bindings>,
}

/// The bindings of one scope, sorted by name, with their subjects.
#[derive(Debug, Default)]
struct Bindings {
    all: Vec<Binding>,
    by_user: HashMap<String, Vec<u32>>,
    by_group: HashMap<String, Vec<u32>>,
}

#[derive(Debug)]
struct Binding {
    name: String,
    namespace: String,
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// The role of a binding.
#[derive(Debug)]
pub(crate) struct RoleRef {
    pub(crate) kind: String,
    pub(crate) name: String,
}

#[derive(Debug)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String, username: String },
}

pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

impl RoleRef {
    pub(crate) fn of_binding(binding: &Value) -> Self {
        Self { kind: text(binding, "/roleRef/kind").to_owned(), name: text(binding, "/roleRef/name").to_owned() }
    }
}

impl Subject {
    fn parse(subject: &Value, binding_namespace: &str) -> Option<Self> {
        let name = text(subject, "/name").to_owned();
        match text(subject, "/kind") {
            "User" => Some(Self::User(name)),
            "Group" => Some(Self::Group(name)),
            "ServiceAccount" => {
                let namespace = match text(subject, "/namespace") {
                    "" => binding_namespace,
                    given => given,
                };
                let username = service_account_username(namespace, &name);
                (!namespace.is_empty()).then(|| Self::ServiceAccount {
                    namespace: namespace.to_owned(),
                    name,
                    username,
                })
            }
            _ => None,
        }
    }

    fn is(&self, user: &User) -> bool {
        match self {
            Self::User(name) => *name == user.name,
            Self::Group(name) => user.is_in(name),
            Self::ServiceAccount { username, .. } => *username == user.name,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::User(name) => format!("User {}", quote(name)),
            Self::Group(name) => format!("Group {}", quote(name)),
            Self::ServiceAccount { namespace, name, .. } => {
                format!("ServiceAccount {}", quote(&format!("{name}/{namespace}")))
            }
        }
    }
}

impl Binding {
    fn parse(binding: &Value, namespace: &str) -> Self {
        let subjects = binding.get("subjects").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Self {
            name: text(binding, "/metadata/name").to_owned(),
            namespace: namespace.to_owned(),
            role: RoleRef::of_binding(binding),
            subjects: subjects.iter().filter_map(|subject| Subject::parse(subject, namespace)).collect(),
        }
    }

    fn describe(&self, user: &User) -> String {
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.name.clone())
        } else {
            ("RoleBinding", format!("{}/{}", self.name, self.namespace))
        };
        let subject = self.subjects.iter().find(|subject| subject.is(user)).map(Subject::describe).unwrap_or_default();
        format!("{kind} {} of {} {} to {subject}", quote(&name), self.role.kind, quote(&self.role.name))
    }
}

impl Bindings {
    fn index(&mut self) {
        self.all.sort_by(|a, b| a.name.cmp(&b.name));
        for (number, binding) in (0u32..).zip(&self.all) {
            for subject in &binding.subjects {
                match subject {
                    Subject::User(name) => self.by_user.entry(name.clone()),
                    Subject::ServiceAccount { username, .. } => self.by_user.entry(username.clone()),
                    Subject::Group(name) => self.by_group.entry(name.clone()),
                }
                .or_default()
                .push(number);
            }
        }
    }

    fn of<'a>(&'a self, user: &User) -> impl Iterator<Item = &'a Binding> + use<'a> {
        let mut numbers = self.by_user.get(&user.name).cloned().unwrap_or_default();
        for group in &user.groups {
            numbers.extend(self.by_group.get(group).into_iter().flatten());
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().filter_map(|number| self.all.get(number as usize))
    }
}

/// The rules of a role, shared between servers while they are what every server starts with.
fn rules_of(role: &Value) -> Arc<[Rule]> {
    let rules = Rule::of_role(role);
    match bootstrap::shared_rules(text(role, "/metadata/namespace"), text(role, "/metadata/name")) {
        Some(shared) if *shared == rules[..] => shared,
        _ => rules.into(),
    }
}

impl Policy {
    /// Compiles roles and bindings of the four kinds; objects of other kinds are passed over.
    pub fn from_objects<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut policy = Self::default();
        for object in objects {
            let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
            match text(object, "/kind") {
                "ClusterRole" => {
                    policy.cluster_roles.insert(name.to_owned(), rules_of(object));
                }
                "Role" => {
                    policy.roles.insert((namespace.to_owned(), name.to_owned()), rules_of(object));
                }
                "ClusterRoleBinding" => policy.cluster.all.push(Binding::parse(object, "")),
                "RoleBinding" => {
                    let bindings = policy.namespaces.entry(namespace.to_owned()).or_default();
                    bindings.all.push(Binding::parse(object, namespace));
                }
                _ => {}
            }
        }
        policy.cluster.index();
        policy.namespaces.values_mut().for_each(Bindings::index);
        policy
    }

    /// Whether the request is allowed, and why.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.is_master() {
            return Decision { allowed: true, reason: String::new() };
        }
        let mut errors = Vec::new();
        for binding in self.bindings_of(attributes.user, attributes.namespace) {
            match self.resolve(&binding.role, &binding.namespace) {
                Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                    let reason = format!("RBAC: allowed by {}", binding.describe(attributes.user));
                    return Decision { allowed: true, reason };
                }
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        let reason = if errors.is_empty() { String::new() } else { format!("RBAC: {}", together(errors)) };
        Decision { allowed: false, reason }
    }

    /// Everything that the user may do in the namespace, or cluster-wide when it is empty.
    pub fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let mut found = Rules::default();
        for binding in self.bindings_of(user, namespace) {
            match self.resolve(&binding.role, &binding.namespace) {
                Ok(rules) => found.rules.extend(rules.iter().cloned()),
                Err(error) => found.errors.push(error),
            }
        }
        found
    }

    /// The rules of the role that a binding refers to, or the error that the lookup gives.
    pub(crate) fn resolve(&self, role: &RoleRef, namespace: &str) -> Result<&Arc<[Rule]>, String> {
        let missing = |kind: &str| format!("{kind}.{GROUP} {} not found", quote(&role.name));
        match role.kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(&role.name).ok_or_else(|| missing("clusterrole")),
            "Role" => {
                let key = (namespace.to_owned(), role.name.clone());
                self.roles.get(&key).ok_or_else(|| missing("role"))
            }
            other => Err(format!("unsupported role reference kind: {}", quote(other))),
        }
    }

    fn bindings_of<'a>(&'a self, user: &User, namespace: &str) -> impl Iterator<Item = &'a Binding> + use<'a> {
        let local = if namespace.is_empty() { None } else { self.namespaces.get(namespace) };
        let local = local.map(|bindings| bindings.of(user));
        self.cluster.of(user).chain(local.into_iter().flatten())
    }
}

impl Rules {
    /// The errors as one sentence; `None` when there were none.
    pub fn error(&self) -> Option<String> {
        (!self.errors.is_empty()).then(|| together(self.errors.clone()))
    }
}

/// Several errors as one: each once, in brackets when there is more than one.
fn together(errors: Vec<String>) -> String {
    let mut unique: Vec<String> = Vec::new();
    for error in errors {
        if !unique.contains(&error) {
            unique.push(error);
        }
    }
    if unique.len() == 1 { unique.remove(0) } else { format!("[{}]", unique.join(", ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy() -> Policy {
        Policy::from_objects(&[
            json!({"kind": "ClusterRole", "metadata": {"name": "reader"},
                "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]}),
            json!({"kind": "Role", "metadata": {"name": "writer", "namespace": "a"},
                "rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]}]}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "readers"},
                "roleRef": {"kind": "ClusterRole", "name": "reader"},
                "subjects": [{"kind": "Group", "name": "dev"}]}),
            json!({"kind": "RoleBinding", "metadata": {"name": "bots", "namespace": "a"},
                "roleRef": {"kind": "Role", "name": "writer"},
                "subjects": [{"kind": "User", "name": "zoe"}, {"kind": "ServiceAccount", "name": "bot"}]}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "lost"},
                "roleRef": {"kind": "ClusterRole", "name": "gone"}, "subjects": [{"kind": "User", "name": "eve"}]}),
        ])
    }

    #[test]
    fn a_group_bound_cluster_wide_is_allowed_in_every_namespace() {
        let user = User::new("amy", ["dev"]);
        let attributes = Attributes::resource(&user, "list", "", "pods").in_namespace("b");
        let decision = policy().authorize(&attributes);
        assert!(decision.allowed);
        assert_eq!(
            decision.reason,
            r#"RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to Group "dev""#
        );
    }

    #[test]
    fn a_service_account_without_a_namespace_is_of_the_bindings_namespace() {
        let user = User::service_account("a", "bot", "1");
        let create = Attributes::resource(&user, "create", "", "pods");
        let decision = policy().authorize(&create.in_namespace("a"));
        assert_eq!(
            decision.reason,
            r#"RBAC: allowed by RoleBinding "bots/a" of Role "writer" to ServiceAccount "bot/a""#
        );
        assert!(!policy().authorize(&create.in_namespace("b")).allowed);
        assert!(!policy().authorize(&create).allowed);
    }

    #[test]
    fn a_binding_to_a_role_that_is_gone_says_so_in_the_refusal() {
        let user = User::new("eve", ["dev2"]);
        let decision = policy().authorize(&Attributes::resource(&user, "get", "", "pods"));
        assert!(!decision.allowed);
        assert_eq!(decision.reason, r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#);
    }

    #[test]
    fn masters_need_no_rule() {
        let user = User::new("root", [crate::MASTERS]);
        assert!(Policy::default().authorize(&Attributes::path(&user, "get", "/x")).allowed);
    }

    #[test]
    fn a_user_in_two_groups_of_one_binding_has_its_rules_once() {
        let user = User::new("zoe", ["dev", "dev"]);
        assert_eq!(policy().rules_for(&user, "a").rules.len(), 2);
    }
}

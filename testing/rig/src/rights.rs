//! RBAC rights of an operator: to grant them to a test user, and to check them against the recorded calls.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Call;

/// The time limit for an API server to apply a new binding, on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// One right: a scope, a resource and a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The scope: a namespace or the cluster.
    pub place: &'static str,
    /// The API group; empty for the core one.
    pub group: String,
    /// The plural, with the subresource: `machines/status`.
    pub resource: String,
    /// The verb, such as `get`.
    pub verb: String,
    /// The object names that the right is limited to; none for all.
    pub names: Option<Vec<String>>,
}

/// The scope of rights of a ClusterRole: the whole cluster.
pub const CLUSTER: &str = "cluster";

impl Right {
    /// Whether this right allows the call in this scope.
    pub fn allows(&self, call: &Call, place: &str) -> bool {
        let verb = if call.verb == "apply" { "patch" } else { call.verb };
        self.allows_verb(call, place, verb)
    }

    fn allows_verb(&self, call: &Call, place: &str, verb: &str) -> bool {
        let (plural, subresource) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        let resource = if self.group.is_empty() { plural.to_owned() } else { format!("{plural}.{}", self.group) };
        (self.place == CLUSTER || self.place == place)
            && call.resource == resource
            && call.subresource == subresource
            && self.verb == verb
            && self.names.as_ref().is_none_or(|names| names.contains(&call.name) || names.contains(&call.selected))
    }
}

/// All rights that the rules give in this scope.
pub fn rights(place: &'static str, rules: &[PolicyRule]) -> Vec<Right> {
    let mut rights = Vec::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    let names = rule.resource_names.clone().filter(|names| !names.is_empty());
                    let (group, resource, verb) = (group.clone(), resource.clone(), verb.clone());
                    rights.push(Right { place, group, resource, verb, names });
                }
            }
        }
    }
    rights
}

/// The rules of this scope without one right.
pub fn without(place: &str, rules: &[PolicyRule], missing: Option<&Right>) -> Vec<PolicyRule> {
    let mut left = Vec::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                let taken = |verb: &String| {
                    missing.is_some_and(|missing| {
                        missing.place == place
                            && (&missing.group, &missing.resource, &missing.verb) == (group, resource, verb)
                    })
                };
                let verbs: Vec<_> = rule.verbs.iter().filter(|verb| !taken(verb)).cloned().collect();
                if !verbs.is_empty() {
                    let (api_groups, resources) = (Some(vec![group.clone()]), Some(vec![resource.clone()]));
                    left.push(PolicyRule { api_groups, resources, verbs, ..rule.clone() });
                }
            }
        }
    }
    left
}

/// Checks that each call is allowed by a right, and that each right is needed: without it some call is refused, or it is listed as needed elsewhere.
///
/// # Errors
/// A call without a right, or rights that no call needs.
pub fn check_rights(
    given: &[Right],
    calls: impl IntoIterator<Item = Call>,
    place: impl Fn(&Call) -> &'static str,
    elsewhere: impl Fn(&Right) -> bool,
) -> Result<()> {
    // A right is needed if it is the only one that allows some call.
    let mut missed = BTreeSet::new();
    let mut watched = BTreeSet::new();
    // Kubernetes allows every user to read its version (`system:public-info-viewer`).
    for call in calls.into_iter().filter(|call| call.resource != "/version") {
        let place = place(&call);
        let allowing = |verb: &str| -> Vec<usize> {
            let found = given.iter().enumerate().filter(|(_, right)| right.allows_verb(&call, place, verb));
            found.map(|(index, _)| index).collect()
        };
        let verb = if call.verb == "apply" { "patch" } else { call.verb };
        let what = || format!("{}/{}", call.resource, call.subresource).trim_end_matches('/').to_owned();
        match allowing(verb)[..] {
            [] => bail!("nobody gives the right to {verb} {} in {place}", what()),
            [only] => drop(missed.insert(only)),
            _ => {}
        }
        // An apply of an object that does not exist is a create.
        if let ("apply", [only]) = (call.verb, &allowing("create")[..]) {
            missed.insert(*only);
        }
        // On a server without streaming lists, a watch is preceded by a list.
        if let ("watch", [only]) = (call.verb, &allowing("list")[..]) {
            watched.insert(*only);
        }
    }
    let needless =
        |(index, right): &(usize, &Right)| !(missed.contains(index) || watched.contains(index) || elsewhere(right));
    let unused: Vec<_> = given.iter().enumerate().filter(needless).map(|(_, right)| right).collect();
    ensure!(unused.is_empty(), "nobody misses these rights when they are taken away: {unused:#?}");
    Ok(())
}

/// Grants a user these rules in one namespace, and waits until the server applies them. The role has the name of the user.
///
/// # Errors
/// The server refuses the role or its binding, or does not apply them in time.
pub async fn grant_in(admin: &Client, namespace: &str, user: &str, rules: &[PolicyRule]) -> Result<()> {
    create::<Role>(Api::namespaced(admin.clone(), namespace), role(user, rules)).await?;
    create::<RoleBinding>(Api::namespaced(admin.clone(), namespace), binding("Role", user)).await?;
    until_known(admin, namespace, user, rules).await
}

/// Grants a user these rules in the whole cluster, and waits until the server applies them.
///
/// # Errors
/// As [`grant_in`].
pub async fn grant_everywhere(admin: &Client, user: &str, rules: &[PolicyRule]) -> Result<()> {
    create::<ClusterRole>(Api::all(admin.clone()), role(user, rules)).await?;
    create::<ClusterRoleBinding>(Api::all(admin.clone()), binding("ClusterRole", user)).await?;
    until_known(admin, "", user, rules).await
}

/// Waits until the API server grants one of these.
/// kube-apiserver watches Roles, ClusterRoles and bindings separately: until each watch has the new object, it refuses.
async fn until_known(admin: &Client, namespace: &str, user: &str, rules: &[PolicyRule]) -> Result<()> {
    let whole = |rule: &&PolicyRule| rule.resource_names.is_none() && rule.resources.is_some();
    let Some(rule) = rules.iter().find(whole) else { return Ok(()) };
    let first = |of: &Option<Vec<String>>| of.iter().flatten().next().cloned().unwrap_or_default();
    let (group, resource) = (first(&rule.api_groups), first(&rule.resources));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource.as_str(), ""));
    let attributes = json!({
        "namespace": namespace, "verb": rule.verbs[0], "group": group, "resource": resource, "subresource": subresource,
    });
    let asked = json!({ "metadata": {}, "spec": { "user": user, "resourceAttributes": attributes } });
    let asked: SubjectAccessReview = serde_json::from_value(asked)?;
    let (reviews, begun) = (Api::<SubjectAccessReview>::all(admin.clone()), Instant::now());
    while !reviews.create(&PostParams::default(), &asked).await?.status.is_some_and(|status| status.allowed) {
        ensure!(
            begun.elapsed() < WAIT_TIMEOUT,
            "the API server does not know after {WAIT_TIMEOUT:?} that {user} may {asked:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn role(user: &str, rules: &[PolicyRule]) -> Value {
    json!({ "metadata": { "name": user }, "rules": rules })
}

fn binding(kind: &str, user: &str) -> Value {
    json!({
        "metadata": { "name": user },
        "subjects": [{ "kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io" }],
        "roleRef": { "kind": kind, "name": user, "apiGroup": "rbac.authorization.k8s.io" },
    })
}

async fn create<K: Clone + Debug + Resource + Serialize + DeserializeOwned>(api: Api<K>, object: Value) -> Result<()> {
    let what = object.to_string();
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await.context(what)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use fleetwright_kit::rights::rule;

    use super::*;

    fn rules() -> Vec<PolicyRule> {
        vec![rule("", &["pods"], &["list", "watch"]), rule("fleetwright.io", &["machines/status"], &["patch"])]
    }

    fn judged(paths: &[(&str, &str)]) -> Result<()> {
        let calls = paths.iter().map(|(method, path)| {
            Call::of(&http::Request::builder().method(*method).uri(*path).body(()).expect("a request"))
        });
        check_rights(&rights("namespace", &rules()), calls, |_| "namespace", |_| false)
    }

    const WATCH: (&str, &str) = ("GET", "/api/v1/namespaces/a/pods?watch=true");
    const PATCH: (&str, &str) = ("PATCH", "/apis/fleetwright.io/v1alpha1/namespaces/a/machines/m/status");

    #[test]
    fn every_call_needs_a_right_and_every_right_a_call() {
        judged(&[WATCH, PATCH]).unwrap();
        judged(&[WATCH, PATCH, ("GET", "/version")]).unwrap();
        let unused = judged(&[WATCH]).unwrap_err().to_string();
        assert!(unused.contains("machines/status") && !unused.contains("pods"), "{unused}");
        let missing = judged(&[WATCH, PATCH, ("DELETE", "/api/v1/namespaces/a/pods/p")]).unwrap_err().to_string();
        assert!(missing.contains("delete pods"), "{missing}");
    }

    #[test]
    fn a_right_that_another_one_holds_too_is_not_missed() {
        let mut given = rights("namespace", &rules());
        given.extend(rights(CLUSTER, &rules()[..1]));
        let calls = [WATCH, PATCH].map(|(method, path)| {
            Call::of(&http::Request::builder().method(method).uri(path).body(()).expect("a request"))
        });
        let twice = check_rights(&given, calls, |_| "namespace", |_| false).unwrap_err().to_string();
        assert!(twice.contains("pods"), "{twice}");
    }

    #[test]
    fn a_right_to_one_object_allows_no_other_one() {
        let mut named = rules();
        named[1].resource_names = Some(vec!["m".to_owned()]);
        let right = &rights("namespace", &named)[2];
        let call =
            |path: &str| Call::of(&http::Request::builder().method("PATCH").uri(path).body(()).expect("a request"));
        assert!(right.allows(&call(PATCH.1), "namespace"));
        assert!(!right.allows(&call(&PATCH.1.replace("/m/", "/n/")), "namespace"));
        assert!(!right.allows(&call(PATCH.1), "elsewhere"));
        assert_eq!(without("namespace", &named, Some(right)).len(), 1);
        assert_eq!(without("elsewhere", &named, Some(right)).len(), 2);
    }

    #[test]
    fn a_right_to_one_object_allows_a_watch_that_selects_it() {
        let mut named = rules();
        named[0].resource_names = Some(vec!["p".to_owned()]);
        let right = &rights("namespace", &named)[1];
        let allows = |more: &str| {
            let uri = format!("{}{more}", WATCH.1);
            right.allows(&Call::of(&http::Request::builder().uri(uri).body(()).expect("a request")), "namespace")
        };
        assert!(allows("&fieldSelector=metadata.name%3Dp"));
        assert!(!allows("&fieldSelector=metadata.name%3Dq") && !allows(""));
    }
}

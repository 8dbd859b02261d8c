//! The rights that an operator is given: to give them to a user of a test, and to hold them against the calls that it made.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Call;

/// A right: where, to what, and what to do with it.
pub type Right = (&'static str, String, String);

/// Where the rights of a ClusterRole hold: everywhere.
pub const CLUSTER: &str = "cluster";

/// What rules give, in that place.
pub fn rights(place: &'static str, rules: &[PolicyRule]) -> Vec<Right> {
    let mut rights = Vec::new();
    for rule in rules {
        let group = rule.api_groups.iter().flatten().next().cloned().unwrap_or_default();
        for resource in rule.resources.iter().flatten() {
            let (name, sub) = resource.split_once('/').unwrap_or((resource, ""));
            let dot = if group.is_empty() { "" } else { "." };
            let sub = if sub.is_empty() { String::new() } else { format!("/{sub}") };
            for verb in &rule.verbs {
                rights.push((place, format!("{name}{dot}{group}{sub}"), verb.clone()));
            }
        }
    }
    rights
}

/// Every call was made by a right, and every right was needed for a call, or is said to be needed elsewhere.
///
/// # Errors
/// A call for which nobody gives a right, or rights that nobody uses.
pub fn judge(
    given: &[Right],
    calls: impl IntoIterator<Item = Call>,
    place: impl Fn(&Call) -> &'static str,
    elsewhere: impl Fn(&Right) -> bool,
) -> Result<()> {
    let mut used = BTreeSet::new();
    // Kubernetes lets everybody read its version (`system:public-info-viewer`).
    for call in calls.into_iter().filter(|call| call.resource != "/version") {
        let sub = if call.subresource.is_empty() { String::new() } else { format!("/{}", call.subresource) };
        let verb = if call.verb == "apply" { "patch" } else { call.verb }.to_owned();
        let (place, what) = (place(&call), format!("{}{sub}", call.resource));
        let found = [place, CLUSTER].map(|place| (place, what.clone(), verb.clone()));
        let found = found.into_iter().find(|right| given.contains(right));
        used.insert(found.with_context(|| format!("nobody gives the right to {verb} {what} in {place}"))?);
        // To apply what is not there is to make it.
        if call.verb == "apply" {
            used.insert((place, what, "create".to_owned()));
        }
    }
    // A server without streaming lists is asked for a list before it is watched.
    let watched =
        |(place, what, verb): &Right| verb == "list" && used.contains(&(*place, what.clone(), "watch".to_owned()));
    let needless = |right: &&Right| !(used.contains(*right) || watched(right) || elsewhere(right));
    let unused: Vec<_> = given.iter().filter(needless).collect();
    ensure!(unused.is_empty(), "nobody uses these rights: {unused:?}");
    Ok(())
}

/// Gives a user what the rules say, in one namespace. The role has the name of the user.
///
/// # Errors
/// The server does not take the role or its binding.
pub async fn grant_in(admin: &Client, namespace: &str, user: &str, rules: &[PolicyRule]) -> Result<()> {
    create::<Role>(Api::namespaced(admin.clone(), namespace), role(user, rules)).await?;
    create::<RoleBinding>(Api::namespaced(admin.clone(), namespace), binding("Role", user)).await
}

/// Gives a user what the rules say, everywhere.
///
/// # Errors
/// As [`grant_in`].
pub async fn grant_everywhere(admin: &Client, user: &str, rules: &[PolicyRule]) -> Result<()> {
    create::<ClusterRole>(Api::all(admin.clone()), role(user, rules)).await?;
    create::<ClusterRoleBinding>(Api::all(admin.clone()), binding("ClusterRole", user)).await
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
    use super::*;

    fn rules() -> Vec<PolicyRule> {
        let rule = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(vec![resource.to_owned()]),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..PolicyRule::default()
        };
        vec![rule("", "pods", &["list", "watch"]), rule("fleetwright.io", "machines/status", &["patch"])]
    }

    fn judged(paths: &[(&str, &str)]) -> Result<()> {
        let calls = paths.iter().map(|(method, path)| {
            Call::of(&http::Request::builder().method(*method).uri(*path).body(()).expect("a request"))
        });
        judge(&rights("namespace", &rules()), calls, |_| "namespace", |_| false)
    }

    const WATCH: (&str, &str) = ("GET", "/api/v1/namespaces/a/pods?watch=true");
    const PATCH: (&str, &str) = ("PATCH", "/apis/fleetwright.io/v1alpha1/namespaces/a/machines/m/status");

    #[test]
    fn every_call_needs_a_right_and_every_right_a_call() {
        judged(&[WATCH, PATCH]).unwrap();
        judged(&[WATCH, PATCH, ("GET", "/version")]).unwrap();
        let unused = judged(&[WATCH]).unwrap_err().to_string();
        assert!(unused.contains("machines.fleetwright.io/status") && !unused.contains("pods"), "{unused}");
        let missing = judged(&[WATCH, PATCH, ("DELETE", "/api/v1/namespaces/a/pods/p")]).unwrap_err().to_string();
        assert_eq!(missing, "nobody gives the right to delete pods in namespace");
    }
}

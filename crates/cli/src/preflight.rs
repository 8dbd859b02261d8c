//! Checks what operators need in a cluster before they start: a wrong set-up gives one clear error instead of endless ones.

use anyhow::bail;
use futures::StreamExt as _;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::cluster::{Cluster, is_not_found};

/// The number of concurrent access reviews.
const AT_ONCE: usize = 8;

/// A required right.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RequiredRight {
    group: String,
    resource: String,
    verb: String,
    /// The namespace; none for the whole cluster.
    namespace: Option<String>,
    /// The object name; none for all objects.
    name: Option<String>,
}

impl RequiredRight {
    fn words(&self) -> String {
        let resource = match self.group.as_str() {
            "" => self.resource.clone(),
            group => match self.resource.split_once('/') {
                Some((resource, sub)) => format!("{resource}.{group}/{sub}"),
                None => format!("{}.{group}", self.resource),
            },
        };
        let name = self.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        match &self.namespace {
            Some(namespace) => format!("{} {resource}{name} in namespace {namespace}", self.verb),
            None => format!("{} {resource}{name}", self.verb),
        }
    }

    fn review(&self) -> serde_json::Result<SelfSubjectAccessReview> {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        serde_json::from_value(json!({"spec": {"resourceAttributes": {
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "verb": self.verb,
            "namespace": self.namespace,
            "name": self.name,
        }}}))
    }
}

/// Checks that the kinds exist.
///
/// # Errors
/// Names the missing kinds and what to do.
pub(crate) async fn kinds(cluster: &Cluster, clusters: bool) -> anyhow::Result<()> {
    let served = format!("{}/{}", fleetwright_api::GROUP, fleetwright_api::VERSION);
    let found = match cluster.client.list_api_group_resources(&served).await {
        Ok(list) => list.resources,
        Err(error) if is_not_found(&error) => vec![],
        Err(error) => return Err(cluster.explain(error)),
    };
    // A business cluster has machines, and no clusters of its own.
    let of_clusters = |kind: &str| ["Cluster", "ClusterLimits", "ClusterPackageVersion"].contains(&kind);
    let wanted = fleetwright_api::crds().into_iter().map(|crd| crd.spec.names);
    let wanted = wanted.filter(|names| clusters || !of_clusters(&names.kind)).map(|names| names.plural);
    let missing: Vec<_> = wanted.filter(|plural| found.iter().all(|resource| resource.name != *plural)).collect();
    if !missing.is_empty() {
        bail!(
            "the cluster at {} does not serve {} of {served}: run `fleetwright install`, or \
             `fleetwright crds | kubectl apply --server-side -f -`",
            cluster.url,
            missing.join(", ")
        );
    }
    Ok(())
}

/// Checks that all rules are granted.
///
/// # Errors
/// Names the missing rights. If the server cannot be asked, the rights count as granted: the later calls will report errors.
pub(crate) async fn rights(cluster: &Cluster, rules: &[(Vec<PolicyRule>, Option<&str>)]) -> anyhow::Result<()> {
    let needs: Vec<RequiredRight> = rules.iter().flat_map(|(rules, namespace)| needs(rules, *namespace)).collect();
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let asked = futures::stream::iter(needs).map(move |need| {
        let api = api.clone();
        async move {
            let answer = api.create(&PostParams::default(), &need.review().ok()?).await.ok()?;
            let denied = !answer.status?.allowed;
            denied.then(|| need.words())
        }
    });
    let denied: Vec<String> = asked.buffered(AT_ONCE).filter_map(std::future::ready).collect().await;
    if !denied.is_empty() {
        bail!(
            "not allowed to:\n  {}\n`fleetwright install` gives the operators' service account these rights; \
             `kubectl auth whoami` shows your user",
            denied.join("\n  ")
        );
    }
    Ok(())
}

fn needs(rules: &[PolicyRule], namespace: Option<&str>) -> Vec<RequiredRight> {
    let mut all = vec![];
    for rule in rules {
        let named = rule.resource_names.iter().flatten().map(|name| Some(name.clone()));
        let names: Vec<Option<String>> = if rule.resource_names.is_some() { named.collect() } else { vec![None] };
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    all.extend(names.iter().map(|name| RequiredRight {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        namespace: namespace.map(str::to_owned),
                        name: name.clone(),
                    }));
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_read_as_kubectl_writes_them() {
        let rule = fleetwright_kit::rights::rule("fleetwright.io", &["machines/status"], &["patch"]);
        let needs = needs(&[rule], Some("fleet"));
        assert_eq!(needs[0].words(), "patch machines.fleetwright.io/status in namespace fleet");
        let review = serde_json::to_value(needs[0].review().expect("a review")).expect("JSON");
        assert_eq!(review["spec"]["resourceAttributes"]["subresource"], "status");
    }
}

//! Chooses the node of a pod: one that it may run on, away from pods of its own kind, with the fewest pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PodAffinityTerm, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};

/// A node that a pod could run on.
pub(super) struct Candidate {
    pub(super) name: Arc<str>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) pods: usize,
}

impl Candidate {
    pub(super) fn of(name: Arc<str>, node: &Node, pods: usize) -> Self {
        Self { name, labels: node.metadata.labels.clone().unwrap_or_default(), pods }
    }
}

/// A pod of the same namespace that is bound to a node.
pub(super) struct ScheduledPod<'a> {
    pub(super) node: &'a str,
    pub(super) labels: &'a BTreeMap<String, String>,
    pub(super) owner: Option<&'a str>,
}

/// The pod that needs a node.
pub(super) struct PendingPod<'a> {
    pub(super) spec: &'a PodSpec,
    pub(super) labels: &'a BTreeMap<String, String>,
    pub(super) owner: Option<&'a str>,
}

/// The best node for a pod.
///
/// # Errors
/// Explains why no node takes it, in the words of the real scheduler.
pub(super) fn choose(
    pod: &PendingPod<'_>,
    candidates: &[Candidate],
    placed: &[ScheduledPod<'_>],
) -> Result<Arc<str>, String> {
    let mut refused = BTreeMap::<&str, usize>::new();
    let mut best: Option<(Score, &Candidate)> = None;
    for place in candidates {
        match score(pod, place, candidates, placed) {
            Err(why) => *refused.entry(why).or_default() += 1,
            Ok(score) => {
                if best.as_ref().is_none_or(|(known, _)| score < *known) {
                    best = Some((score, place));
                }
            }
        }
    }
    best.map(|(_, place)| place.name.clone()).ok_or_else(|| {
        let told: Vec<String> = refused.iter().map(|(why, number)| format!("{number} {why}")).collect();
        let told = if told.is_empty() { "no node is ready and open for pods".to_owned() } else { told.join(", ") };
        format!("0/{} nodes are available: {told}.", candidates.len())
    })
}

/// Lower is better: the preference against the node, the number of similar pods, the number of all pods.
type Score = (usize, usize, usize);

fn score(
    pod: &PendingPod<'_>,
    place: &Candidate,
    candidates: &[Candidate],
    placed: &[ScheduledPod<'_>],
) -> Result<Score, &'static str> {
    let wanted = pod.spec.node_selector.iter().flatten();
    if wanted.into_iter().any(|(name, value)| place.labels.get(name) != Some(value)) {
        return Err("node(s) didn't match Pod's node affinity/selector");
    }
    let labels_of = |name: &str| candidates.iter().find(|place| *place.name == *name).map(|place| &place.labels);
    // Counts the pods in the same topology domain as this node.
    let near = |key: &str, domain: &str, selector: &Selector| {
        let here = |other: &&ScheduledPod<'_>| {
            labels_of(other.node).and_then(|labels| labels.get(key)).is_some_and(|value| value == domain)
                && selector.matches(other.labels)
        };
        placed.iter().filter(here).count()
    };
    let against = pod.spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let count = |term: &PodAffinityTerm| {
        let Some(domain) = place.labels.get(&term.topology_key) else { return 0 };
        near(&term.topology_key, domain, &selector(term.label_selector.as_ref(), term.match_label_keys.as_deref(), pod))
    };
    let required =
        against.iter().flat_map(|rules| rules.required_during_scheduling_ignored_during_execution.iter().flatten());
    if required.into_iter().any(|term| count(term) > 0) {
        return Err("node(s) didn't match pod anti-affinity rules");
    }
    let preferred =
        against.iter().flat_map(|rules| rules.preferred_during_scheduling_ignored_during_execution.iter().flatten());
    let mut unwanted: usize = preferred.into_iter().map(|term| count(&term.pod_affinity_term)).sum();
    for spread in pod.spec.topology_spread_constraints.iter().flatten() {
        let Some(domain) = place.labels.get(&spread.topology_key) else { continue };
        let selector = selector(spread.label_selector.as_ref(), spread.match_label_keys.as_deref(), pod);
        let here = near(&spread.topology_key, domain, &selector);
        let domains = candidates.iter().filter_map(|place| place.labels.get(&spread.topology_key));
        let least = domains.map(|domain| near(&spread.topology_key, domain, &selector)).min().unwrap_or_default();
        let skew = i32::try_from((here + 1).saturating_sub(least)).unwrap_or(i32::MAX);
        if skew > spread.max_skew && spread.when_unsatisfiable == "DoNotSchedule" {
            return Err("node(s) didn't match pod topology spread constraints");
        }
        unwanted += here;
    }
    let like =
        placed.iter().filter(|other| *other.node == *place.name && other.owner.is_some() && other.owner == pod.owner);
    Ok((unwanted, like.count(), place.pods))
}

/// A selector, extended by labels of the pod itself.
fn selector(given: Option<&LabelSelector>, keys: Option<&[String]>, pod: &PendingPod<'_>) -> Selector {
    // An invalid selector selects nothing; the API server does not accept one.
    let mut selector = given.cloned().and_then(|given| Selector::try_from(given).ok()).unwrap_or_default();
    let own = keys.into_iter().flatten().filter_map(|key| Some((key.clone(), pod.labels.get(key)?.clone())));
    selector.extend(own.map(|(key, value)| kube::core::Expression::Equal(key, value)));
    selector
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn candidates(pods: [usize; 3]) -> Vec<Candidate> {
        let place = |(number, pods): (usize, usize)| {
            let name = format!("n{number}");
            Candidate { name: name.clone().into(), labels: BTreeMap::from([("host".to_owned(), name)]), pods }
        };
        pods.into_iter().enumerate().map(place).collect()
    }

    fn labels() -> BTreeMap<String, String> {
        BTreeMap::from([("app".to_owned(), "etcd".to_owned())])
    }

    fn spec(of: serde_json::Value) -> PodSpec {
        let mut spec = json!({ "containers": [] });
        spec.as_object_mut().unwrap().extend(of.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn chosen(spec: &PodSpec, pods: [usize; 3], like: &[&str]) -> Result<String, String> {
        let labels = labels();
        let placed: Vec<ScheduledPod<'_>> =
            like.iter().map(|node| ScheduledPod { node, labels: &labels, owner: Some("o") }).collect();
        let pod = PendingPod { spec, labels: &labels, owner: Some("o") };
        choose(&pod, &candidates(pods), &placed).map(|name| name.to_string())
    }

    #[test]
    fn a_pod_goes_away_from_its_like_and_then_to_the_emptiest() {
        let plain = spec(json!({}));
        assert_eq!(chosen(&plain, [5, 1, 3], &[]).unwrap(), "n1");
        assert_eq!(chosen(&plain, [5, 1, 3], &["n1", "n2"]).unwrap(), "n0");
    }

    #[test]
    fn a_pod_that_must_be_alone_waits_when_every_node_has_one() {
        let alone =
            spec(json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "host", "labelSelector": { "matchLabels": { "app": "etcd" } } },
        ] } } }));
        assert_eq!(chosen(&alone, [0, 0, 0], &["n0", "n2"]).unwrap(), "n1");
        let why = chosen(&alone, [0, 0, 0], &["n0", "n1", "n2"]).unwrap_err();
        assert_eq!(why, "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.");
    }

    #[test]
    fn a_spread_is_kept_where_it_must_be_and_hoped_for_where_not() {
        let spread = |when: &str| {
            spec(json!({ "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": when, "labelSelector": { "matchLabels": { "app": "etcd" } },
            }] }))
        };
        assert_eq!(chosen(&spread("DoNotSchedule"), [0, 9, 0], &["n0", "n2"]).unwrap(), "n1");
        assert_eq!(chosen(&spread("ScheduleAnyway"), [9, 0, 0], &["n1", "n2"]).unwrap(), "n0");
        assert_eq!(chosen(&spec(json!({ "nodeSelector": { "host": "n2" } })), [0, 0, 9], &[]).unwrap(), "n2");
    }
}

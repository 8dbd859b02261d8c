//! Reconciles the status of PodDisruptionBudgets, which the API server checks before it evicts a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_kit::{Cache, Key, Next, Pass, write};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};
use serde_json::json;

use super::reconciler::{ReconcileError, Reconciler};
use super::view::{NAMESPACE, PodView, SerializedObject};
use super::workloads::part;

/// The controller of PodDisruptionBudgets.
pub(super) struct Budgets {
    pub(super) budgets: Cache<SerializedObject<PodDisruptionBudget>>,
    pub(super) pods: Cache<PodView>,
    pub(super) deployments: Cache<SerializedObject<Deployment>>,
    pub(super) replica_sets: Cache<SerializedObject<ReplicaSet>>,
    pub(super) stateful_sets: Cache<SerializedObject<StatefulSet>>,
}

impl Reconciler for Budgets {
    const NAME: &'static str = "disruption-budgets";
    type Kind = PodDisruptionBudget;

    fn exists(&self, key: &Key) -> bool {
        self.budgets.get(key).is_some()
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let Some(view) = self.budgets.get(pass.key()) else { return Ok(Next::AwaitChange) };
        let budget = view.read();
        let spec = budget.spec.clone().unwrap_or_default();
        // A budget without a selector selects nothing.
        let selector = spec.selector.clone().and_then(|selector| Selector::try_from(selector).ok());
        let mut pods = self.pods.by(NAMESPACE, &pass.key().namespace);
        pods.retain(|(_, pod)| pod.active() && selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels)));
        let expected = self.expected(&pods);
        let healthy = number(pods.iter().filter(|(_, pod)| pod.ready.is_some()).count());
        let desired = desired(&spec, expected);
        let allowed = if expected == 0 { 0 } else { (healthy - desired).max(0) };
        let known = budget.status.as_ref().and_then(|status| status.conditions.as_ref()?.first().cloned());
        let (status, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        let since =
            known.filter(|known| known.status == status).map_or(pass.now(), |known| known.last_transition_time.0);
        let since = jiff::Timestamp::from_second(since.as_second()).unwrap_or(since);
        let status = json!({
            "observedGeneration": budget.metadata.generation,
            "expectedPods": expected, "currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": allowed,
            "conditions": [{
                "type": "DisruptionAllowed", "status": status, "reason": reason, "message": "", "lastTransitionTime": since,
                "observedGeneration": budget.metadata.generation,
            }],
        });
        if !write::same(&part(&budget.status, &status), &status) {
            pass.writer().merge_status(&self.budgets, pass.key(), &view.version, status).await?;
        }
        Ok(Next::AwaitChange)
    }
}

impl Budgets {
    /// The number of pods that the controllers of these pods declare.
    fn expected(&self, pods: &[(Key, Arc<PodView>)]) -> i32 {
        let mut wanted: BTreeMap<Box<str>, i32> = BTreeMap::new();
        for (key, pod) in pods {
            let Some(owner) = &pod.owner else {
                wanted.insert(pod.uid.clone(), 1);
                continue;
            };
            let set = owner.key::<ReplicaSet>(key).and_then(|key| self.replica_sets.get(&key));
            let deployment = set.as_ref().and_then(|set| set.owner.as_ref()?.key::<Deployment>(key));
            let deployment = deployment.and_then(|key| self.deployments.get(&key));
            if let Some(deployment) = deployment {
                wanted.insert(deployment.uid.clone(), deployment.read().spec.replicas.unwrap_or(1));
            } else if let Some(set) = set {
                wanted.insert(set.uid.clone(), set.read().spec.replicas.unwrap_or(1));
            } else if let Some(set) = owner.key::<StatefulSet>(key).and_then(|key| self.stateful_sets.get(&key)) {
                wanted.insert(set.uid.clone(), set.read().spec.replicas.unwrap_or(1));
            }
        }
        wanted.values().sum()
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The number of pods that must be healthy.
fn desired(spec: &PodDisruptionBudgetSpec, expected: i32) -> i32 {
    let share = |value: &IntOrString| match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i32 = text.trim_end_matches('%').parse().unwrap_or_default();
            (percent * expected + 99) / 100
        }
    };
    match (&spec.min_available, &spec.max_unavailable) {
        (Some(least), _) => share(least),
        (None, Some(most)) => (expected - share(most)).max(0),
        (None, None) => expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_budget_are_rounded_up() {
        let percent = |text: &str| Some(IntOrString::String(text.to_owned()));
        let spec = |min_available, max_unavailable| PodDisruptionBudgetSpec {
            min_available,
            max_unavailable,
            ..PodDisruptionBudgetSpec::default()
        };
        assert_eq!(desired(&spec(percent("50%"), None), 3), 2);
        assert_eq!(desired(&spec(None, percent("50%")), 3), 1);
        assert_eq!(desired(&spec(None, Some(IntOrString::Int(1))), 3), 2);
        assert_eq!(desired(&spec(Some(IntOrString::Int(2)), None), 3), 2);
    }
}

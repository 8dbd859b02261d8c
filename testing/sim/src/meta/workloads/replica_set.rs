//! The ReplicaSet controller: it keeps the declared number of pods of one template.

use std::cmp::Reverse;
use std::sync::Arc;

use fleetwright_kit::{Cache, Key, Next, Pass, Random, write};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use serde_json::json;

use super::super::names::suffix;
use super::super::reconciler::{ReconcileError, Reconciler};
use super::super::view::{OWNER, PodView, SerializedObject};
use super::{count, delete, owned_by, part, pod};

/// The controller of ReplicaSets.
pub(in super::super) struct ReplicaSets {
    pub(in super::super) sets: Cache<SerializedObject<ReplicaSet>>,
    pub(in super::super) pods: Cache<PodView>,
    pub(in super::super) random: Random,
}

impl Reconciler for ReplicaSets {
    const NAME: &'static str = "replica-sets";
    type Kind = ReplicaSet;

    fn exists(&self, key: &Key) -> bool {
        self.sets.get(key).is_some()
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let key = pass.key();
        let Some(view) = self.sets.get(key) else { return Ok(Next::AwaitChange) };
        let set = view.read();
        let spec = set.spec;
        let mut pods = self.pods.by(OWNER, &view.uid);
        pods.retain(|(_, pod)| pod.active());
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
        if !view.deleting
            && let Some(template) = &spec.template
        {
            for _ in pods.len()..wanted {
                let name = format!("{}-{}", key.name, suffix(&self.random));
                let owner = owned_by::<ReplicaSet>(key, &view.uid);
                let pod = pod(template, &Key::new(&key.namespace, &name), owner, &[]);
                pass.writer().create_in(&self.pods, &pod).await?;
            }
            pods.sort_by_key(|(_, pod)| deletion_rank(pod));
            let excess = pods.len().saturating_sub(wanted);
            for (key, pod) in pods.drain(..excess).collect::<Vec<_>>() {
                delete(pass, &self.pods, &key, &pod).await?;
            }
        }
        let mut pods = self.pods.by(OWNER, &view.uid);
        pods.retain(|(_, pod)| pod.active());
        let Some(view) = self.sets.get(key) else { return Ok(Next::AwaitChange) };
        self.report(pass, &view, &pods).await
    }
}

/// The order of scale-down, as in the real controller: first pods that do not run yet, then unready ones, then the last that became ready, then the
/// youngest.
fn deletion_rank(pod: &PodView) -> impl Ord + use<> {
    (pod.node.is_some(), pod.running, pod.ready.is_some(), Reverse(pod.ready), Reverse(pod.created))
}

impl ReplicaSets {
    async fn report(
        &self,
        pass: &Pass,
        view: &SerializedObject<ReplicaSet>,
        pods: &[(Key, Arc<PodView>)],
    ) -> Result<Next, ReconcileError> {
        let set = view.read();
        let seconds = set.spec.min_ready_seconds.unwrap_or_default();
        let available: Vec<_> = pods.iter().map(|(_, pod)| pod.available(seconds, pass.now())).collect();
        let number = |length: usize| i32::try_from(length).unwrap_or(i32::MAX);
        let status = json!({
            "observedGeneration": set.metadata.generation,
            // The only count that the API also has when it is zero.
            "replicas": pods.len(),
            "fullyLabeledReplicas": count(number(pods.len())),
            "readyReplicas": count(number(pods.iter().filter(|(_, pod)| pod.ready.is_some()).count())),
            "availableReplicas": count(number(available.iter().filter(|available| available.is_ok()).count())),
        });
        if !write::same(&part(&set.status, &status), &status) {
            pass.writer().merge_status(&self.sets, pass.key(), &view.version, status).await?;
        }
        Ok(soonest(available.into_iter().filter_map(|available| available.err().flatten())))
    }
}

/// A requeue at the earliest of these times.
pub(super) fn soonest(times: impl Iterator<Item = Timestamp>) -> Next {
    times.min().map_or(Next::AwaitChange, Next::At)
}

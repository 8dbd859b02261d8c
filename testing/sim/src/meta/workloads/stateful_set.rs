//! The StatefulSet controller: it keeps pods with stable names and volumes, and updates them from the last to the first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fleetwright_kit::{Cache, JsonPatch, Key, Next, Pass, write};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use kube::Api;
use serde_json::json;

use super::super::delays::{Delays, Step as Delayed};
use super::super::names::digest;
use super::super::reconciler::{ReconcileError, Reconciler};
use super::super::view::{ClaimView, OWNER, PodView, SerializedObject};
use super::replica_set::soonest;
use super::{count, delete, owned_by, part, pod};

const HASH: &str = "controller-revision-hash";
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const INDEX: &str = "apps.kubernetes.io/pod-index";

/// The controller of StatefulSets.
pub(in super::super) struct StatefulSets {
    pub(in super::super) sets: Cache<SerializedObject<StatefulSet>>,
    pub(in super::super) pods: Cache<PodView>,
    pub(in super::super) claims: Cache<ClaimView>,
    /// The revision and the template before the running rollout: a pod that is not to be updated yet is recreated from it.
    /// The real controller keeps them as ControllerRevisions.
    pub(in super::super) previous_templates: Mutex<HashMap<Key, (String, Box<str>)>>,
    pub(in super::super) delays: Delays,
}

/// An action of the controller.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create(i32),
    Delete(i32),
}

/// The state of a pod that the decision needs.
#[derive(Clone, Copy, Debug)]
struct PodState {
    healthy: bool,
    leaving: bool,
    over: bool,
    current: bool,
}

/// The next actions for the existing pods `there`. `from` is the first ordinal that gets a new template.
fn steps(wanted: i32, parallel: bool, from: i32, rolling: bool, there: &BTreeMap<i32, PodState>) -> Vec<Step> {
    let mut steps = Vec::new();
    for ordinal in 0..wanted {
        match there.get(&ordinal) {
            None => steps.push(Step::Create(ordinal)),
            Some(seen) if seen.over && !seen.leaving => steps.push(Step::Delete(ordinal)),
            Some(seen) if seen.healthy => continue,
            Some(_) if parallel => continue,
            // In order: the next pod waits for this one.
            Some(_) => return steps,
        }
        if !parallel {
            return steps;
        }
    }
    for (ordinal, seen) in there.range(wanted..).rev() {
        if !seen.leaving {
            steps.push(Step::Delete(*ordinal));
        }
        if !parallel {
            return steps;
        }
    }
    if !rolling || !steps.is_empty() {
        return steps;
    }
    for ordinal in (from..wanted).rev() {
        let Some(seen) = there.get(&ordinal) else { continue };
        if !seen.current && !seen.leaving {
            return vec![Step::Delete(ordinal)];
        }
        if !seen.healthy {
            return Vec::new();
        }
    }
    steps
}

impl Reconciler for StatefulSets {
    const NAME: &'static str = "stateful-sets";
    type Kind = StatefulSet;

    fn exists(&self, key: &Key) -> bool {
        let there = self.sets.get(key).is_some();
        if !there {
            self.previous_templates.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        }
        there
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let key = pass.key();
        let Some(view) = self.sets.get(key) else { return Ok(Next::AwaitChange) };
        let set = view.read();
        let spec = set.spec.clone();
        let update = format!("{}-{}", key.name, digest(&spec.template));
        let told = set.status.as_ref().and_then(|status| status.current_revision.clone());
        let current = told.unwrap_or_else(|| update.clone());
        let mut late: Option<Duration> = None;
        if !view.deleting {
            let old = self.old_template(key, &current, &update, &spec);
            self.adopt(pass, &view, &spec).await?;
            let there = self.seen(&view.uid, &key.name, &update);
            let strategy = spec.update_strategy.clone().unwrap_or_default();
            let rolling = strategy.type_.as_deref() != Some("OnDelete");
            let from = strategy.rolling_update.and_then(|rolling| rolling.partition).unwrap_or_default();
            let parallel = spec.pod_management_policy.as_deref() == Some("Parallel");
            let wanted = spec.replicas.unwrap_or(1);
            for step in steps(wanted, parallel, from, rolling, &there) {
                match step {
                    Step::Create(ordinal) => {
                        let (template, revision) =
                            if rolling && ordinal < from { (&old, &current) } else { (&spec.template, &update) };
                        let wait = self.create(pass, &view, &spec, template, revision, ordinal).await?;
                        late = late.into_iter().chain(wait).min();
                    }
                    Step::Delete(ordinal) => {
                        let key = Key::new(&key.namespace, &format!("{}-{ordinal}", key.name));
                        if let Some(pod) = self.pods.get(&key) {
                            delete(pass, &self.pods, &key, &pod).await?;
                        }
                    }
                }
            }
        }
        let next = self.report(pass, &current, &update).await?;
        Ok(late.map_or(next, Next::After))
    }
}

impl StatefulSets {
    /// Adopts pods of this name and with these labels that have no controller.
    async fn adopt(
        &self,
        pass: &Pass,
        view: &SerializedObject<StatefulSet>,
        spec: &StatefulSetSpec,
    ) -> Result<(), ReconcileError> {
        let set = pass.key();
        let selects = spec.selector.match_labels.clone().unwrap_or_default();
        for ordinal in 0..spec.replicas.unwrap_or(1) {
            let key = Key::new(&set.namespace, &format!("{}-{ordinal}", set.name));
            let Some(pod) = self.pods.get(&key).filter(|pod| pod.owner.is_none() && pod.deleting.is_none()) else {
                continue;
            };
            if selects.iter().all(|(name, value)| pod.labels.get(name) == Some(value)) {
                // As the real controller does: a set that is deleted with orphaned pods, and that the cache still has, must not adopt them again.
                let fresh = Api::<StatefulSet>::namespaced(pass.client(), &set.namespace).get_opt(&set.name).await?;
                let meta = fresh.map(|fresh| fresh.metadata).unwrap_or_default();
                if meta.uid.as_deref() != Some(&*view.uid) || meta.deletion_timestamp.is_some() {
                    return Ok(());
                }
                let owner = json!([owned_by::<StatefulSet>(set, &view.uid)]);
                let patch = JsonPatch::new().test_version(&pod.version).add(&["metadata", "ownerReferences"], owner);
                pass.writer().json_patch(&self.pods, &key, patch).await?;
            }
        }
        Ok(())
    }

    /// The template of pods that are not to be updated yet.
    fn old_template(&self, key: &Key, current: &str, update: &str, spec: &StatefulSetSpec) -> PodTemplateSpec {
        let mut before = self.previous_templates.lock().unwrap_or_else(PoisonError::into_inner);
        if current == update {
            let text = serde_json::to_string(&spec.template).unwrap_or_default();
            before.insert(key.clone(), (update.to_owned(), text.into()));
        }
        let old = before.get(key).filter(|(revision, _)| revision == current);
        old.and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_else(|| spec.template.clone())
    }

    fn own(&self, uid: &str, name: &str) -> Vec<(i32, Arc<PodView>)> {
        let ordinal = |key: &Key| key.name.strip_prefix(name)?.strip_prefix('-')?.parse::<i32>().ok();
        self.pods.by(OWNER, uid).into_iter().filter_map(|(key, pod)| Some((ordinal(&key)?, pod))).collect()
    }

    fn seen(&self, uid: &str, name: &str, update: &str) -> BTreeMap<i32, PodState> {
        let seen = |pod: &PodView| PodState {
            healthy: pod.running && pod.ready.is_some() && pod.deleting.is_none(),
            leaving: pod.deleting.is_some(),
            over: pod.over,
            current: pod.labels.get(HASH).is_some_and(|hash| hash == update),
        };
        self.own(uid, name).into_iter().map(|(ordinal, pod)| (ordinal, seen(&pod))).collect()
    }

    /// Creates a pod and its claims; returns the remaining delay, if one is set.
    async fn create(
        &self,
        pass: &Pass,
        view: &SerializedObject<StatefulSet>,
        spec: &StatefulSetSpec,
        template: &PodTemplateSpec,
        revision: &str,
        ordinal: i32,
    ) -> Result<Option<Duration>, ReconcileError> {
        let set = pass.key();
        let key = Key::new(&set.namespace, &format!("{}-{ordinal}", set.name));
        let (name, index) = (key.name.to_string(), ordinal.to_string());
        let labels = [(HASH, revision), (POD_NAME, &*name), (INDEX, &*index)];
        let mut pod: Pod = pod(template, &key, owned_by::<StatefulSet>(set, &view.uid), &labels);
        let inner = pod.spec.get_or_insert_default();
        inner.hostname = Some(name.clone());
        inner.subdomain = spec.service_name.clone().filter(|service| !service.is_empty());
        for claim in spec.volume_claim_templates.iter().flatten() {
            let volume = claim.metadata.name.clone().unwrap_or_default();
            let claim_name = format!("{volume}-{name}");
            if let Some(wait) = self.claim(pass, view, spec, claim, &claim_name).await? {
                return Ok(Some(wait));
            }
            let volumes = inner.volumes.get_or_insert_default();
            volumes.retain(|known| known.name != volume);
            let source = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
            volumes.push(Volume { name: volume, persistent_volume_claim: Some(source), ..Volume::default() });
        }
        if let Some(wait) = self.delays.wait(Delayed::PodCreate, &key, pass.clock().monotonic()) {
            return Ok(Some(wait));
        }
        pass.writer().create_in(&self.pods, &pod).await?;
        Ok(None)
    }

    /// Creates the claim of a pod, which outlives the pod; returns the remaining delay, if one is set.
    async fn claim(
        &self,
        pass: &Pass,
        view: &SerializedObject<StatefulSet>,
        spec: &StatefulSetSpec,
        template: &PersistentVolumeClaim,
        name: &str,
    ) -> Result<Option<Duration>, ReconcileError> {
        let key = Key::new(&pass.key().namespace, name);
        match self.claims.get(&key) {
            // As the real controller does: a pod would hold a claim that is terminating.
            Some(known) if known.deleting => {
                return Err(ReconcileError::Machine(format!("persistentvolumeclaim {name:?} is being deleted")));
            }
            Some(_) => return Ok(None),
            None => {}
        }
        if let Some(wait) = self.delays.wait(Delayed::ClaimCreate, &key, pass.clock().monotonic()) {
            return Ok(Some(wait));
        }
        let mut claim = template.clone();
        claim.status = None;
        claim.metadata.name = Some(name.to_owned());
        claim.metadata.namespace = Some(key.namespace.to_string());
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        let retention = spec.persistent_volume_claim_retention_policy.as_ref();
        if retention.and_then(|policy| policy.when_deleted.as_deref()) == Some("Delete") {
            claim.metadata.owner_references = Some(vec![owned_by::<StatefulSet>(pass.key(), &view.uid)]);
        }
        pass.writer().create_in(&self.claims, &claim).await?;
        Ok(None)
    }

    async fn report(&self, pass: &Pass, current: &str, update: &str) -> Result<Next, ReconcileError> {
        let Some(view) = self.sets.get(pass.key()) else { return Ok(Next::AwaitChange) };
        let set = view.read();
        let spec = set.spec.clone();
        let pods = self.own(&view.uid, &pass.key().name);
        let seconds = spec.min_ready_seconds.unwrap_or_default();
        let available: Vec<_> = pods.iter().map(|(_, pod)| pod.available(seconds, pass.now())).collect();
        let number = |some: usize| i32::try_from(some).unwrap_or(i32::MAX);
        let with = |revision: &str| {
            let of = |pod: &PodView| pod.active() && pod.labels.get(HASH).is_some_and(|hash| hash == revision);
            number(pods.iter().filter(|(_, pod)| of(pod)).count())
        };
        let ready = number(pods.iter().filter(|(_, pod)| pod.active() && pod.ready.is_some()).count());
        let wanted = spec.replicas.unwrap_or(1);
        // All pods are updated: the update revision becomes the current one.
        let complete = with(update) == wanted && ready == wanted && number(pods.len()) == wanted;
        let current = if complete { update } else { current };
        let status = json!({
            "observedGeneration": set.metadata.generation,
            "replicas": pods.len(),
            "readyReplicas": count(ready),
            "currentReplicas": count(with(current)),
            "updatedReplicas": count(with(update)),
            "availableReplicas": number(available.iter().filter(|available| available.is_ok()).count()),
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": 0,
        });
        if !write::same(&part(&set.status, &status), &status) {
            pass.writer().merge_status(&self.sets, pass.key(), &view.version, status).await?;
        }
        Ok(soonest(available.into_iter().filter_map(|available| available.err().flatten())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: PodState = PodState { healthy: true, leaving: false, over: false, current: true };
    const OLD: PodState = PodState { current: false, ..GOOD };
    const BAD: PodState = PodState { healthy: false, ..GOOD };
    const LEAVING: PodState = PodState { leaving: true, healthy: false, ..GOOD };

    fn pods(seen: &[Option<PodState>]) -> BTreeMap<i32, PodState> {
        (0..).zip(seen).filter_map(|(ordinal, seen)| Some((ordinal, (*seen)?))).collect()
    }

    fn ordered(wanted: i32, seen: &[Option<PodState>]) -> Vec<Step> {
        steps(wanted, false, 0, true, &pods(seen))
    }

    #[test]
    fn in_order_the_next_pod_waits_for_the_one_before() {
        assert_eq!(ordered(3, &[]), [Step::Create(0)]);
        assert_eq!(ordered(3, &[Some(BAD)]), []);
        assert_eq!(ordered(3, &[Some(GOOD)]), [Step::Create(1)]);
        assert_eq!(ordered(3, &[Some(GOOD), None, Some(GOOD)]), [Step::Create(1)]);
    }

    #[test]
    fn in_parallel_all_come_at_once() {
        let all = steps(3, true, 0, true, &pods(&[None, Some(BAD)]));
        assert_eq!(all, [Step::Create(0), Step::Create(2)]);
        let fewer = steps(1, true, 0, true, &pods(&[Some(GOOD), Some(GOOD), Some(LEAVING), Some(BAD)]));
        assert_eq!(fewer, [Step::Delete(3), Step::Delete(1)]);
    }

    #[test]
    fn a_change_begins_with_the_last_and_waits_for_each() {
        assert_eq!(ordered(3, &[Some(OLD), Some(OLD), Some(OLD)]), [Step::Delete(2)]);
        assert_eq!(ordered(3, &[Some(OLD), Some(OLD), Some(LEAVING)]), []);
        assert_eq!(ordered(3, &[Some(OLD), Some(OLD), Some(BAD)]), []);
        assert_eq!(ordered(3, &[Some(OLD), Some(OLD), Some(GOOD)]), [Step::Delete(1)]);
        assert_eq!(steps(3, false, 2, true, &pods(&[Some(OLD), Some(OLD), Some(GOOD)])), []);
        assert_eq!(steps(3, false, 0, false, &pods(&[Some(OLD), Some(OLD), Some(OLD)])), []);
    }

    #[test]
    fn in_parallel_a_broken_pod_of_the_old_template_is_changed_all_the_same() {
        let broken = PodState { healthy: false, ..OLD };
        assert_eq!(steps(2, true, 0, true, &pods(&[Some(OLD), Some(broken)])), [Step::Delete(1)]);
        assert_eq!(steps(2, true, 0, true, &pods(&[Some(OLD), Some(BAD)])), []);
    }
}

//! The Deployment controller: it rolls pods from one template to another by ReplicaSets.

use std::sync::Arc;

use fleetwright_kit::{Cache, JsonPatch, Key, Next, Pass, write};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::super::names::digest;
use super::super::reconciler::{ReconcileError, Reconciler};
use super::super::view::{OWNER, PodView, SerializedObject};
use super::{count, owned_by, part};

const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

/// The controller of Deployments.
pub(in super::super) struct Deployments {
    pub(in super::super) deployments: Cache<SerializedObject<Deployment>>,
    pub(in super::super) sets: Cache<SerializedObject<ReplicaSet>>,
    pub(in super::super) pods: Cache<PodView>,
}

/// One of a Deployment's ReplicaSets.
struct OwnedReplicaSet {
    key: Key,
    view: Arc<SerializedObject<ReplicaSet>>,
    revision: i64,
    created: Timestamp,
    counts: Counts,
}

/// The declared number of pods of a ReplicaSet, and the numbers of existing ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    wanted: i32,
    replicas: i32,
    ready: i32,
    available: i32,
}

impl OwnedReplicaSet {
    fn of(key: Key, view: Arc<SerializedObject<ReplicaSet>>) -> Self {
        let set = view.read();
        let status = set.status.unwrap_or_default();
        let annotations = set.metadata.annotations.unwrap_or_default();
        Self {
            key,
            view,
            revision: annotations.get(REVISION).and_then(|revision| revision.parse().ok()).unwrap_or_default(),
            created: set.metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            counts: Counts {
                wanted: set.spec.replicas.unwrap_or(1),
                replicas: status.replicas,
                ready: status.ready_replicas.unwrap_or_default(),
                available: status.available_replicas.unwrap_or_default(),
            },
        }
    }
}

/// The surge and unavailability limits of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RolloutLimits {
    wanted: i32,
    surge: i32,
    unavailable: i32,
    recreate: bool,
}

impl RolloutLimits {
    fn of(spec: &DeploymentSpec) -> Self {
        let wanted = spec.replicas.unwrap_or(1);
        let strategy = spec.strategy.clone().unwrap_or_default();
        let recreate = strategy.type_.as_deref() == Some("Recreate");
        let rolling = strategy.rolling_update.unwrap_or_default();
        let surge = scaled_value(rolling.max_surge.as_ref(), wanted, true);
        let mut unavailable = scaled_value(rolling.max_unavailable.as_ref(), wanted, false);
        if surge == 0 && unavailable == 0 {
            // With both limits at 0 the rollout would never progress.
            unavailable = 1;
        }
        Self { wanted, surge, unavailable: unavailable.min(wanted), recreate }
    }

    /// The next size of each ReplicaSet: the new one, and the old ones in their order. One step at a time, as the real controller does.
    fn step(&self, new: Counts, olds: &[Counts], old_pods: usize) -> (i32, Vec<i32>) {
        let mut old: Vec<i32> = olds.iter().map(|old| old.wanted).collect();
        if self.recreate {
            let gone = old.iter().all(|wanted| *wanted == 0) && old_pods == 0;
            return (if gone { self.wanted } else { new.wanted }, vec![0; old.len()]);
        }
        let total = new.wanted + old.iter().sum::<i32>();
        if new.wanted > self.wanted {
            return (self.wanted, old);
        }
        let up = (self.wanted + self.surge - total).clamp(0, self.wanted - new.wanted);
        if up > 0 {
            return (new.wanted + up, old);
        }
        let least = self.wanted - self.unavailable;
        let mut down = total - least - (new.wanted - new.available).max(0);
        // Unavailable pods are scaled down first: no client uses them.
        for (wanted, counts) in old.iter_mut().zip(olds) {
            let idle = (counts.wanted - counts.available).clamp(0, down.max(0));
            *wanted -= idle;
            down -= idle;
        }
        let available = new.available + olds.iter().map(|old| old.available).sum::<i32>();
        let mut down = down.min(available - least);
        for wanted in &mut old {
            let some = (*wanted).clamp(0, down.max(0));
            *wanted -= some;
            down -= some;
        }
        (new.wanted, old)
    }
}

fn scaled_value(value: Option<&IntOrString>, of: i32, up: bool) -> i32 {
    let percent = match value {
        Some(IntOrString::Int(number)) => return *number,
        Some(IntOrString::String(text)) => text.trim_end_matches('%').parse().unwrap_or(25),
        None => 25,
    };
    let parts = percent * of;
    if up { (parts + 99) / 100 } else { parts / 100 }
}

impl Reconciler for Deployments {
    const NAME: &'static str = "deployments";
    type Kind = Deployment;

    fn exists(&self, key: &Key) -> bool {
        self.deployments.get(key).is_some()
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let Some(view) = self.deployments.get(pass.key()).filter(|view| !view.deleting) else {
            return Ok(Next::AwaitChange);
        };
        let deployment = view.read();
        let spec = deployment.spec.clone();
        let hash = digest(&spec.template);
        let name = format!("{}-{hash}", pass.key().name);
        let mut sets: Vec<OwnedReplicaSet> =
            self.sets.by(OWNER, &view.uid).into_iter().map(|(key, view)| OwnedReplicaSet::of(key, view)).collect();
        sets.sort_by_key(|set| (set.created, set.revision));
        let newest = sets.iter().map(|set| set.revision).max().unwrap_or_default();
        let at = sets.iter().position(|set| *set.key.name == *name);
        if spec.paused != Some(true) {
            let way = RolloutLimits::of(&spec);
            let old_pods =
                sets.iter().filter(|set| *set.key.name != *name).map(|set| self.pods.count(OWNER, &set.view.uid)).sum();
            let olds: Vec<&OwnedReplicaSet> = sets.iter().filter(|set| *set.key.name != *name).collect();
            let old_counts: Vec<Counts> = olds.iter().map(|set| set.counts).collect();
            let new = at.map(|at| &sets[at]);
            let (up, down) = way.step(new.map(|set| set.counts).unwrap_or_default(), &old_counts, old_pods);
            match new {
                None => self.create(pass, &view, &spec, &hash, (up, newest + 1)).await?,
                Some(new) => {
                    let revision = if new.revision == newest { newest } else { newest + 1 };
                    self.set(pass, new, up, Some(revision)).await?;
                    self.revise(pass, &view, &deployment, revision).await?;
                }
            }
            for (old, wanted) in olds.iter().zip(down) {
                self.set(pass, old, wanted, None).await?;
            }
            self.clean(pass, &olds, spec.revision_history_limit.unwrap_or(10)).await?;
        }
        self.report(pass, &name).await
    }
}

impl Deployments {
    async fn create(
        &self,
        pass: &Pass,
        view: &SerializedObject<Deployment>,
        spec: &DeploymentSpec,
        hash: &str,
        (replicas, revision): (i32, i64),
    ) -> Result<(), ReconcileError> {
        let name = format!("{}-{hash}", pass.key().name);
        let mut template = serde_json::to_value(&spec.template).unwrap_or_default();
        template["metadata"]["labels"][HASH] = hash.into();
        let mut selector = serde_json::to_value(&spec.selector).unwrap_or_default();
        selector["matchLabels"][HASH] = hash.into();
        let set = json!({
            "metadata": {
                "name": name, "namespace": &*pass.key().namespace, "labels": template["metadata"]["labels"],
                "annotations": { REVISION: revision.to_string() },
                "ownerReferences": [owned_by::<Deployment>(pass.key(), &view.uid)],
            },
            "spec": {
                "replicas": replicas, "minReadySeconds": spec.min_ready_seconds, "selector": selector, "template": template,
            },
        });
        let set: ReplicaSet = serde_json::from_value(set).map_err(kube::Error::SerdeError)?;
        pass.writer().create_in(&self.sets, &set).await?;
        Ok(())
    }

    /// Sets the size of a ReplicaSet and, on the current one, its revision.
    async fn set(
        &self,
        pass: &Pass,
        set: &OwnedReplicaSet,
        wanted: i32,
        revision: Option<i64>,
    ) -> Result<(), ReconcileError> {
        let unchanged = JsonPatch::new().test_version(&set.view.version);
        let mut patch = unchanged.clone();
        if set.counts.wanted != wanted {
            patch = patch.replace(&["spec", "replicas"], wanted);
        }
        if let Some(revision) = revision.filter(|revision| *revision != set.revision) {
            patch = patch.add(&["metadata", "annotations", REVISION], revision.to_string());
        }
        if patch != unchanged {
            pass.writer().json_patch(&self.sets, &set.key, patch).await?;
        }
        Ok(())
    }

    /// Writes the latest revision, which `kubectl rollout` shows.
    async fn revise(
        &self,
        pass: &Pass,
        view: &SerializedObject<Deployment>,
        deployment: &Deployment,
        revision: i64,
    ) -> Result<(), ReconcileError> {
        let annotations = deployment.metadata.annotations.as_ref();
        if annotations.and_then(|all| all.get(REVISION)).is_some_and(|told| *told == revision.to_string()) {
            return Ok(());
        }
        let patch = JsonPatch::new().test_version(&view.version);
        let patch = if annotations.is_some() {
            patch.add(&["metadata", "annotations", REVISION], revision.to_string())
        } else {
            patch.add(&["metadata", "annotations"], json!({ REVISION: revision.to_string() }))
        };
        pass.writer().json_patch(&self.deployments, pass.key(), patch).await?;
        Ok(())
    }

    /// Deletes old ReplicaSets beyond the revision history limit.
    async fn clean(&self, pass: &Pass, olds: &[&OwnedReplicaSet], kept: i32) -> Result<(), ReconcileError> {
        let mut empty: Vec<&&OwnedReplicaSet> =
            olds.iter().filter(|set| set.counts == Counts::default() && !set.view.deleting).collect();
        empty.sort_by_key(|set| set.revision);
        let excess = empty.len().saturating_sub(usize::try_from(kept).unwrap_or_default());
        for set in &empty[..excess] {
            pass.writer().delete(&self.sets, &set.key, &set.view.uid, &set.view.version).await?;
        }
        Ok(())
    }

    async fn report(&self, pass: &Pass, name: &str) -> Result<Next, ReconcileError> {
        // The Deployment as of the writes above.
        let Some(view) = self.deployments.get(pass.key()) else { return Ok(Next::AwaitChange) };
        let deployment = view.read();
        let spec = deployment.spec.clone();
        let way = RolloutLimits::of(&spec);
        let sets: Vec<OwnedReplicaSet> =
            self.sets.by(OWNER, &view.uid).into_iter().map(|(key, view)| OwnedReplicaSet::of(key, view)).collect();
        let sum = |of: fn(&Counts) -> i32| sets.iter().map(|set| of(&set.counts)).sum::<i32>();
        let updated = sets.iter().find(|set| *set.key.name == *name).map(|set| set.counts.replicas).unwrap_or_default();
        let (replicas, ready, available) = (sum(|c| c.replicas), sum(|c| c.ready), sum(|c| c.available));
        let before = deployment.status.clone().unwrap_or_default();
        let progressed = updated > before.updated_replicas.unwrap_or_default()
            || replicas - updated < before.replicas.unwrap_or_default() - before.updated_replicas.unwrap_or_default()
            || ready > before.ready_replicas.unwrap_or_default()
            || available > before.available_replicas.unwrap_or_default();
        let complete = updated == way.wanted && replicas == way.wanted && available == way.wanted;
        let now = Timestamp::from_second(pass.now().as_second()).unwrap_or_else(|_| pass.now());
        let known = |type_: &str| before.conditions.iter().flatten().find(|one| one.type_.as_deref() == Some(type_));
        let enough = available >= way.wanted - way.unavailable;
        let availability = if enough {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned())
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.".to_owned())
        };
        let last = known("Progressing");
        let began = last.and_then(|last| last.last_update_time.as_ref()).map(|time| time.0);
        let rolled = last.is_some_and(|last| last.reason.as_deref() == Some("NewReplicaSetAvailable"));
        let same_change = before.observed_generation == deployment.metadata.generation;
        let patience = SignedDuration::from_secs(spec.progress_deadline_seconds.unwrap_or(600).into());
        let deadline = began.map(|began| began + patience);
        let (progress, fresh) = if complete {
            let told = format!("ReplicaSet {name:?} has successfully progressed.");
            (("True", "NewReplicaSetAvailable", told), !rolled)
        } else if rolled && same_change {
            // The rollout had completed; a pod that fails later does not change that.
            (("True", "NewReplicaSetAvailable", format!("ReplicaSet {name:?} has successfully progressed.")), false)
        } else if progressed || last.is_none() || rolled || !same_change {
            (("True", "ReplicaSetUpdated", format!("ReplicaSet {name:?} is progressing.")), true)
        } else if deadline.is_some_and(|deadline| deadline <= now) {
            (("False", "ProgressDeadlineExceeded", format!("ReplicaSet {name:?} has timed out progressing.")), false)
        } else {
            (("True", "ReplicaSetUpdated", format!("ReplicaSet {name:?} is progressing.")), false)
        };
        let waits = !complete && progress.0 == "True" && progress.1 == "ReplicaSetUpdated";
        let conditions = [
            condition("Available", availability, known("Available"), false, now),
            condition("Progressing", progress, last, fresh, now),
        ];
        let status = json!({
            "observedGeneration": deployment.metadata.generation,
            "replicas": count(replicas), "updatedReplicas": count(updated), "readyReplicas": count(ready),
            "availableReplicas": count(available), "unavailableReplicas": count((replicas.max(way.wanted) - available).max(0)),
            "conditions": conditions,
        });
        if !write::same(&part(&deployment.status, &status), &status) {
            pass.writer().merge_status(&self.deployments, pass.key(), &view.version, status).await?;
        }
        let due = if fresh { now + patience } else { deadline.unwrap_or(now + patience) };
        Ok(if waits { Next::At(due) } else { Next::AwaitChange })
    }
}

fn condition(
    type_: &str,
    (status, reason, message): (&str, &str, String),
    before: Option<&DeploymentCondition>,
    fresh: bool,
    now: Timestamp,
) -> Value {
    let same = before.filter(|before| before.status.as_deref() == Some(status));
    let unchanged = same.filter(|before| before.reason.as_deref() == Some(reason) && !fresh);
    let text = |time: Option<&Time>| time.map_or(now, |time| time.0).to_string();
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": text(same.and_then(|before| before.last_transition_time.as_ref())),
        "lastUpdateTime": text(unchanged.and_then(|before| before.last_update_time.as_ref())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(wanted: i32, available: i32) -> Counts {
        Counts { wanted, replicas: wanted, ready: available, available }
    }

    #[test]
    fn with_a_surge_of_one_nothing_goes_before_something_new_is_there() {
        let way = RolloutLimits { wanted: 2, surge: 1, unavailable: 0, recreate: false };
        let old = counts(2, 2);
        assert_eq!(way.step(Counts::default(), &[old], 2), (1, vec![2]));
        assert_eq!(way.step(counts(1, 0), &[old], 2), (1, vec![2]));
        assert_eq!(way.step(counts(1, 1), &[old], 2), (1, vec![1]));
        // The old pod is being deleted, but still exists.
        assert_eq!(way.step(counts(1, 1), &[Counts { wanted: 1, ..old }], 2), (2, vec![1]));
        assert_eq!(way.step(counts(2, 1), &[counts(1, 1)], 1), (2, vec![1]));
        assert_eq!(way.step(counts(2, 2), &[counts(1, 1)], 1), (2, vec![0]));
    }

    #[test]
    fn old_pods_that_do_not_work_go_first_and_back_is_the_same_way() {
        let way = RolloutLimits { wanted: 2, surge: 1, unavailable: 0, recreate: false };
        // The pods of the newer template never become ready; the older template is wanted again.
        assert_eq!(way.step(counts(2, 2), &[counts(1, 0)], 1), (2, vec![0]));
        assert_eq!(way.step(counts(3, 3), &[], 0), (2, vec![]));
    }

    #[test]
    fn all_old_pods_are_gone_before_the_first_new_one_if_so_asked() {
        let way = RolloutLimits { wanted: 2, surge: 0, unavailable: 2, recreate: true };
        assert_eq!(way.step(Counts::default(), &[counts(2, 2)], 2), (0, vec![0]));
        assert_eq!(way.step(Counts::default(), &[counts(0, 0)], 1), (0, vec![0]));
        assert_eq!(way.step(Counts::default(), &[counts(0, 0)], 0), (2, vec![0]));
    }

    #[test]
    fn shares_are_rounded_up_for_more_and_down_for_less() {
        let quarter = IntOrString::String("25%".to_owned());
        assert_eq!((scaled_value(Some(&quarter), 2, true), scaled_value(Some(&quarter), 2, false)), (1, 0));
        assert_eq!(scaled_value(None, 8, false), 2);
        assert_eq!(scaled_value(Some(&IntOrString::Int(3)), 2, true), 3);
    }
}

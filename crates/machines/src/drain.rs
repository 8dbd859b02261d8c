//! Asks pods to leave a Node, by the Eviction API.
//!
//! Who must leave, and who does not, by default as with `kubectl drain --ignore-daemonsets --delete-emptydir-data`:
//! - pods of DaemonSets stay: they would come back at once;
//! - mirror pods stay: the kubelet alone decides on them;
//! - pods that have finished stay: nothing of them runs;
//! - pods that tolerate [`names::MAINTENANCE_TAINT`] by name stay, as they say: they would come back to the same Node. The operators themselves
//!   do, so that the only Node of a cluster is not left closed with nobody to open it;
//! - all others are evicted, so that PodDisruptionBudgets are respected; what is in their `emptyDir`s goes with them, as it is declared to;
//! - a pod without a controller holds the drain up: nobody would start it elsewhere. A person deletes it, lets it go with the annotation
//!   [`names::EVICT`], or sets `spec.drain.force` of the Machine.
//!
//! Unlike kubectl, one budget that has no room does not keep the others waiting, and a refused pod is asked again later each time.
//!
//! `spec.drain` of the Machine says where a drain ends that pods do not let end, as the options of `kubectl drain` do: `gracePeriod`
//! (`--grace-period`), `force` (`--force`), `deleteAfter` (`--disable-eviction`, after a deadline) and `skipTerminatingAfter`
//! (`--skip-wait-for-delete-timeout`). Unlike kubectl's, the last one has a default: a pod whose grace period is over has had all the time
//! that it was promised, and only a kubelet that does not work or a finalizer keeps its object.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{DrainOptions, names};
use fleetwright_kit::client::{CallError, retry_after};
use fleetwright_kit::{Remedy, StepError};
use fleetwright_plan::machine::Pods;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// So many evictions in one pass.
pub const MOST: usize = 16;
/// A pod that was held back is asked again after this long at first…
const FIRST: Duration = Duration::from_secs(5);
/// …and later each time, up to this.
const LONGEST: Duration = Duration::from_secs(60);
/// A pod that terminates for that long after its grace period is told to be stuck, and by which finalizers.
const STUCK: SignedDuration = SignedDuration::from_secs(30);
/// What a mirror pod has.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What is remembered of the pods of a Node while it is drained.
#[derive(Clone, Debug, Default)]
pub struct Tries {
    /// Pods whose eviction was refused: why, when each is asked again, and how long was waited.
    held: BTreeMap<String, (String, Timestamp, Duration)>,
    /// Since when pods are seen to terminate, by uid and our own clock: that of the API server, which writes their deletion timestamps, may
    /// differ. A pod of a StatefulSet that is recreated has the name of the one before.
    terminating: BTreeMap<String, Timestamp>,
}

/// Why nobody can say what the API server has: who is on a Node, or whether it is there.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {message}")]
pub struct Unseen {
    what: String,
    message: String,
    /// For how long the API server asks to wait.
    after: Option<Duration>,
}

impl Unseen {
    /// What was asked for, and the answer.
    pub fn of(what: String, error: &kube::Error) -> Self {
        let message = CallError::of(error).map_or_else(|| error.to_string(), |error| error.to_string());
        Self { what, message, after: retry_after(error) }
    }
}

impl StepError for Unseen {
    fn reason(&self) -> &'static str {
        "ReadFailed"
    }

    fn remedy(&self) -> Remedy {
        self.after.map_or(Remedy::Retry, Remedy::Wait)
    }
}

/// What is to be done about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it may stay.
    Stays,
    /// It is leaving.
    Leaving,
    /// It is asked to leave.
    Evict,
    /// It holds the drain up, and what a person can do about it.
    Holds(String),
}

/// Says what is to be done about a pod.
pub fn judge(pod: &Pod, options: &DrainOptions) -> Verdict {
    if pod.annotations().contains_key(MIRROR) {
        return Verdict::Stays;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Verdict::Stays;
    }
    let controller = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    if controller.is_some_and(|owner| owner.kind == "DaemonSet") {
        return Verdict::Stays;
    }
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    if tolerations.into_iter().any(|one| one.key.as_deref() == Some(names::MAINTENANCE_TAINT)) {
        return Verdict::Stays;
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Verdict::Leaving;
    }
    let allowed = options.force || pod.annotations().get(names::EVICT).is_some_and(|value| value == "true");
    if controller.is_none() && !allowed {
        return Verdict::Holds(format!(
            "it has no controller that would start it elsewhere: delete it, annotate it with {}=true, or set spec.drain.force of the Machine",
            names::EVICT
        ));
    }
    Verdict::Evict
}

/// What keeps a pod that terminates for that long; none if it is no longer waited for.
fn terminating(pod: &Pod, long: SignedDuration, options: &DrainOptions) -> Option<Option<String>> {
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0));
    let over = long.saturating_sub(grace);
    if over >= SignedDuration::try_from(options.skip_terminating_after.0).unwrap_or(SignedDuration::MAX) {
        return None;
    }
    if over < STUCK {
        return Some(None);
    }
    let finalizers = pod.finalizers().join(", ");
    Some(Some(match finalizers.is_empty() {
        true => format!("its grace period ended {} s ago and it is still terminating", over.as_secs()),
        false => format!(
            "its grace period ended {} s ago and finalizers keep it: {finalizers}; the controllers that set them must remove them",
            over.as_secs()
        ),
    }))
}

/// Looks who is on the Node and asks those to leave who must. `tries` remembers who was held back; `since` is when the window started.
///
/// # Errors
/// When the API server does not say who is there.
pub async fn drain(
    client: Client,
    node: &str,
    options: &DrainOptions,
    since: Timestamp,
    tries: &mut Tries,
    now: Timestamp,
) -> Result<Pods, Unseen> {
    let overdue = |after: &fleetwright_api::Span| {
        SignedDuration::try_from(after.0).is_ok_and(|after| now.duration_since(since) >= after)
    };
    let delete = options.delete_after.as_ref().is_some_and(overdue);
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Pod>::all(client.clone()).list(&on_node).await;
    let pods = pods.map_err(|error| Unseen::of(format!("pods of Node {node}"), &error))?;
    let mut left = Vec::new();
    let mut asked = 0;
    let names: Vec<String> = pods.iter().map(name).collect();
    tries.held.retain(|pod, _| names.contains(pod));
    let uids: Vec<String> = pods.iter().filter_map(ResourceExt::uid).collect();
    tries.terminating.retain(|pod, _| uids.contains(pod));
    for pod in &pods {
        let name = name(pod);
        match judge(pod, options) {
            Verdict::Stays => {}
            Verdict::Leaving => {
                let since = *tries.terminating.entry(pod.uid().unwrap_or_default()).or_insert(now);
                if let Some(why) = terminating(pod, now.duration_since(since), options) {
                    left.push((name, why));
                }
            }
            Verdict::Holds(why) => left.push((name, Some(why))),
            Verdict::Evict => {
                let held = tries.held.get(&name).filter(|(_, at, _)| *at > now && !delete).map(|(why, ..)| why.clone());
                if held.is_some() || asked == MOST {
                    left.push((name, held));
                    continue;
                }
                asked += 1;
                match leave(&client, pod, options, delete).await {
                    Evicted::Asked => {
                        tries.held.remove(&name);
                        left.push((name, None));
                    }
                    Evicted::Gone => {
                        tries.held.remove(&name);
                    }
                    Evicted::Held(why) => {
                        let waited = tries.held.get(&name).map_or(Duration::ZERO, |(.., waited)| *waited);
                        let wait = (2 * waited).clamp(FIRST, LONGEST);
                        tries.held.insert(name.clone(), (why.clone(), now + wait, wait));
                        left.push((name, Some(why)));
                    }
                }
            }
        }
    }
    Ok(Pods { at: now, left })
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

enum Evicted {
    /// It was told to leave.
    Asked,
    /// It is not there any more.
    Gone,
    /// It stays, and why.
    Held(String),
}

/// Evicts a pod, or deletes it: a deletion asks no disruption budget.
async fn leave(client: &Client, pod: &Pod, options: &DrainOptions, delete: bool) -> Evicted {
    let api = Api::<Pod>::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
    // Another pod of the same name, as those of StatefulSets are, was not meant.
    let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let mut how = DeleteParams::default().preconditions(preconditions);
    how.grace_period_seconds =
        options.grace_period.map(|span| u32::try_from(span.0.as_secs()).unwrap_or(u32::MAX).max(1));
    let asked = if delete {
        tracing::warn!(pod = name(pod), "delete: evictions were refused for as long as spec.drain.deleteAfter allows");
        api.delete(&pod.name_any(), &how).await.map(drop)
    } else {
        let eviction = eviction(pod, &how);
        api.create_subresource::<_, Value>("eviction", &pod.name_any(), &PostParams::default(), &eviction)
            .await
            .map(drop)
    };
    let Err(error) = asked else { return Evicted::Asked };
    match &error {
        kube::Error::Api(status) if status.code == 404 => Evicted::Gone,
        // Somebody changed it at this moment, or it is another one by now: the next look tells.
        kube::Error::Api(status) if status.code == 409 => Evicted::Asked,
        // A budget has no room, or several budgets select the pod, which nobody can decide on (500).
        kube::Error::Api(status) if status.code == 429 => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let budget = causes.filter_map(|cause| budget(&cause.message)).next();
            let namespace = pod.namespace().unwrap_or_default();
            Evicted::Held(match budget {
                Some(budget) => format!("PodDisruptionBudget {namespace}/{budget} has no room: {}", status.message),
                None => status.message.clone(),
            })
        }
        kube::Error::Api(status) => Evicted::Held(status.message.clone()),
        error => Evicted::Held(CallError::of(error).map_or_else(|| error.to_string(), |error| error.to_string())),
    }
}

/// `Api::evict` writes `delete_options`, a field that API servers do not know: neither the grace period nor the uid would count.
fn eviction(pod: &Pod, how: &DeleteParams) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": <k8s_openapi::api::policy::v1::Eviction as k8s_openapi::Resource>::KIND,
        "metadata": { "name": pod.name_any(), "namespace": pod.namespace() },
        "deleteOptions": how,
    })
}

/// The name in `The disruption budget NAME needs 2 healthy pods and has 2 currently`.
fn budget(cause: &str) -> Option<&str> {
    cause.split("disruption budget ").nth(1)?.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(metadata: Value, phase: &str) -> Pod {
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } })).unwrap()
    }

    fn owned(kind: &str) -> Value {
        json!({ "name": "p", "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true }] })
    }

    fn judged(pod: &Pod) -> Verdict {
        judge(pod, &DrainOptions::default())
    }

    #[test]
    fn a_pod_that_cannot_end_is_told_with_its_finalizers_and_then_not_waited_for() {
        let mut stuck = owned("ReplicaSet");
        stuck["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        stuck["deletionGracePeriodSeconds"] = json!(100);
        stuck["finalizers"] = json!(["example.com/volume"]);
        let (stuck, options) = (pod(stuck, "Running"), DrainOptions::default());
        let after = |seconds, options| terminating(&stuck, SignedDuration::from_secs(seconds), options);
        assert_eq!(after(129, &options), Some(None), "its grace period and a moment");
        let why = after(130, &options).flatten().unwrap();
        assert!(why.contains("example.com/volume"), "{why}");
        assert!(matches!(after(399, &options), Some(Some(_))));
        assert_eq!(after(400, &options), None);
        let patient = DrainOptions { skip_terminating_after: fleetwright_api::Span::minutes(60), ..options };
        assert!(matches!(after(3699, &patient), Some(Some(_))));
    }

    #[test]
    fn a_pod_without_a_controller_is_evicted_by_force() {
        let options = DrainOptions { force: true, ..DrainOptions::default() };
        assert_eq!(judge(&pod(json!({ "name": "p" }), "Running"), &options), Verdict::Evict);
    }

    #[test]
    fn who_must_leave_and_who_may_stay() {
        assert_eq!(judged(&pod(owned("ReplicaSet"), "Running")), Verdict::Evict);
        assert_eq!(judged(&pod(owned("DaemonSet"), "Running")), Verdict::Stays);
        assert_eq!(judged(&pod(owned("Job"), "Succeeded")), Verdict::Stays);
        let mut tolerant = pod(owned("ReplicaSet"), "Running");
        let toleration =
            json!({ "containers": [], "tolerations": [{ "key": names::MAINTENANCE_TAINT, "operator": "Exists" }] });
        tolerant.spec = serde_json::from_value(toleration).unwrap();
        assert_eq!(judged(&tolerant), Verdict::Stays);
        let mirror = json!({ "name": "p", "annotations": { MIRROR: "x" } });
        assert_eq!(judged(&pod(mirror, "Running")), Verdict::Stays);
        let mut leaving = owned("ReplicaSet");
        leaving["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        assert_eq!(judged(&pod(leaving, "Running")), Verdict::Leaving);
        let Verdict::Holds(why) = judged(&pod(json!({ "name": "p" }), "Running")) else { panic!("it holds") };
        assert!(why.contains(names::EVICT), "{why}");
        let allowed = json!({ "name": "p", "annotations": { names::EVICT: "true" } });
        assert_eq!(judged(&pod(allowed, "Running")), Verdict::Evict);
    }

    #[test]
    fn an_eviction_carries_the_grace_period_and_the_uid_as_api_servers_read_them() {
        let pod = pod(json!({ "name": "p", "namespace": "n", "uid": "u" }), "Running");
        let preconditions = Preconditions { uid: Some("u".to_owned()), resource_version: None };
        let how =
            DeleteParams { grace_period_seconds: Some(7), ..DeleteParams::default() }.preconditions(preconditions);
        let expected = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p", "namespace": "n" },
            "deleteOptions": { "gracePeriodSeconds": 7, "preconditions": { "uid": "u" } },
        });
        assert_eq!(eviction(&pod, &how), expected);
        let read: k8s_openapi::api::policy::v1::Eviction = serde_json::from_value(expected).unwrap();
        assert_eq!(read.delete_options.and_then(|options| options.grace_period_seconds), Some(7));
    }

    #[test]
    fn the_budget_is_named() {
        assert_eq!(budget("The disruption budget web needs 2 healthy pods and has 2 currently"), Some("web"));
        assert_eq!(budget("something else"), None);
    }
}

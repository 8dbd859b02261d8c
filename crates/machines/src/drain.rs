//! Asks pods to leave a Node, by the Eviction API.
//!
//! Who must leave, and who does not, by default as with `kubectl drain --ignore-daemonsets --delete-emptydir-data`:
//! - pods of DaemonSets stay: they would come back at once;
//! - mirror pods stay: the kubelet alone decides on them;
//! - pods that have finished stay: nothing of them runs;
//! - pods that tolerate [`names::MAINTENANCE_TAINT`] by name stay, as they say: they would come back to the same Node. The operators themselves
//!   do, so that the only Node of a cluster is not left closed with nobody to open it;
//! - all others are evicted, so that PodDisruptionBudgets are respected; what is in their `emptyDir`s goes with them, as it is declared to;
//! - a pod without a controller holds the drain up: nobody would start it elsewhere. A person deletes it, or lets it go with the annotation
//!   [`names::EVICT`].
//!
//! Unlike kubectl, one budget that has no room does not keep the others waiting, and a refused pod is asked again later each time.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::names;
use fleetwright_kit::client::{CallError, retry_after};
use fleetwright_kit::{Remedy, StepError};
use fleetwright_plan::machine::Pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, ListParams, Preconditions};
use kube::{Api, Client, ResourceExt};

/// So many evictions in one pass.
pub const MOST: usize = 16;
/// A pod that was held back is asked again after this long at first…
const FIRST: Duration = Duration::from_secs(5);
/// …and later each time, up to this.
const LONGEST: Duration = Duration::from_secs(60);
/// What a mirror pod has.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Pods that were held back: why, when each is asked again, and how long was waited.
pub type Tries = BTreeMap<String, (String, Timestamp, Duration)>;

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
pub fn judge(pod: &Pod) -> Verdict {
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
    let allowed = pod.annotations().get(names::EVICT).is_some_and(|value| value == "true");
    if controller.is_none() && !allowed {
        return Verdict::Holds(format!(
            "it has no controller that would start it elsewhere: delete it, or annotate it with {}=true",
            names::EVICT
        ));
    }
    Verdict::Evict
}

/// Looks who is on the Node and asks those to leave who must. `tries` remembers who was held back.
///
/// # Errors
/// When the API server does not say who is there.
pub async fn drain(client: Client, node: &str, tries: &mut Tries, now: Timestamp) -> Result<Pods, Unseen> {
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Pod>::all(client.clone()).list(&on_node).await;
    let pods = pods.map_err(|error| Unseen::of(format!("pods of Node {node}"), &error))?;
    let mut left = Vec::new();
    let mut asked = 0;
    let names: Vec<String> = pods.iter().map(name).collect();
    tries.retain(|pod, _| names.contains(pod));
    for pod in &pods {
        let name = name(pod);
        match judge(pod) {
            Verdict::Stays => {}
            Verdict::Leaving => left.push((name, None)),
            Verdict::Holds(why) => left.push((name, Some(why))),
            Verdict::Evict => {
                let held = tries.get(&name).filter(|(_, at, _)| *at > now).map(|(why, ..)| why.clone());
                if held.is_some() || asked == MOST {
                    left.push((name, held));
                    continue;
                }
                asked += 1;
                match evict(&client, pod).await {
                    Evicted::Asked => {
                        tries.remove(&name);
                        left.push((name, None));
                    }
                    Evicted::Gone => {
                        tries.remove(&name);
                    }
                    Evicted::Held(why) => {
                        let waited = tries.get(&name).map_or(Duration::ZERO, |(.., waited)| *waited);
                        let wait = (2 * waited).clamp(FIRST, LONGEST);
                        tries.insert(name.clone(), (why.clone(), now + wait, wait));
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

async fn evict(client: &Client, pod: &Pod) -> Evicted {
    let api = Api::<Pod>::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
    // Another pod of the same name, as those of StatefulSets are, was not meant.
    let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let delete = DeleteParams::default().preconditions(preconditions);
    let how = EvictParams { delete_options: Some(delete), ..EvictParams::default() };
    let error = match api.evict(&pod.name_any(), &how).await {
        Ok(_) => return Evicted::Asked,
        Err(error) => error,
    };
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

/// The name in `The disruption budget NAME needs 2 healthy pods and has 2 currently`.
fn budget(cause: &str) -> Option<&str> {
    cause.split("disruption budget ").nth(1)?.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value, phase: &str) -> Pod {
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } })).unwrap()
    }

    fn owned(kind: &str) -> Value {
        json!({ "name": "p", "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true }] })
    }

    #[test]
    fn who_must_leave_and_who_may_stay() {
        assert_eq!(judge(&pod(owned("ReplicaSet"), "Running")), Verdict::Evict);
        assert_eq!(judge(&pod(owned("DaemonSet"), "Running")), Verdict::Stays);
        assert_eq!(judge(&pod(owned("Job"), "Succeeded")), Verdict::Stays);
        let mut tolerant = pod(owned("ReplicaSet"), "Running");
        let toleration =
            json!({ "containers": [], "tolerations": [{ "key": names::MAINTENANCE_TAINT, "operator": "Exists" }] });
        tolerant.spec = serde_json::from_value(toleration).unwrap();
        assert_eq!(judge(&tolerant), Verdict::Stays);
        let mirror = json!({ "name": "p", "annotations": { MIRROR: "x" } });
        assert_eq!(judge(&pod(mirror, "Running")), Verdict::Stays);
        let mut leaving = owned("ReplicaSet");
        leaving["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        assert_eq!(judge(&pod(leaving, "Running")), Verdict::Leaving);
        let Verdict::Holds(why) = judge(&pod(json!({ "name": "p" }), "Running")) else { panic!("it holds") };
        assert!(why.contains(names::EVICT), "{why}");
        let allowed = json!({ "name": "p", "annotations": { names::EVICT: "true" } });
        assert_eq!(judge(&pod(allowed, "Running")), Verdict::Evict);
    }

    #[test]
    fn the_budget_is_named() {
        assert_eq!(budget("The disruption budget web needs 2 healthy pods and has 2 currently"), Some("web"));
        assert_eq!(budget("something else"), None);
    }
}

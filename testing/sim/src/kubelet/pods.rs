//! Pods that are bound to simulated Nodes: they run, and end when they are deleted.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// What a kubelet does with a pod.
pub(super) struct PodTask {
    namespace: String,
    name: String,
    uid: String,
    what: PodAction,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PodAction {
    Run,
    End,
}

type Id = (String, String);

#[derive(Clone, PartialEq, Eq)]
struct Bound {
    node: String,
    uid: String,
    what: Option<PodAction>,
}

/// All bound pods, and the pending work on them.
#[derive(Default)]
pub(super) struct Pods {
    bound: HashMap<Id, Bound>,
    by_node: HashMap<String, HashSet<Id>>,
    alive: HashSet<String>,
    due: Vec<PodTask>,
}

impl Pods {
    /// Takes note of a created or changed pod.
    pub(super) fn seen(&mut self, pod: &Pod) {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else { return };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        let what = match (pod.metadata.deletion_timestamp.is_some(), phase) {
            (true, _) => Some(PodAction::End),
            (false, "Pending") => Some(PodAction::Run),
            _ => None,
        };
        let id = (pod.namespace().unwrap_or_default(), pod.name_any());
        let bound = Bound { node: node.clone(), uid: pod.uid().unwrap_or_default(), what };
        if self.bound.get(&id) == Some(&bound) {
            return;
        }
        self.bound.insert(id.clone(), bound);
        self.by_node.entry(node.clone()).or_default().insert(id.clone());
        if self.alive.contains(&node) {
            self.want(&id);
        }
    }

    /// Takes note of a deleted pod.
    pub(super) fn gone(&mut self, pod: &Pod) {
        let id = (pod.namespace().unwrap_or_default(), pod.name_any());
        if let Some(bound) = self.bound.remove(&id)
            && let Some(ids) = self.by_node.get_mut(&bound.node)
        {
            ids.remove(&id);
        }
    }

    /// Sets whether the kubelet of a Node works.
    pub(super) fn alive(&mut self, node: &str, alive: bool) {
        if !alive {
            self.alive.remove(node);
        } else if self.alive.insert(node.to_owned()) {
            for id in self.by_node.get(node).cloned().unwrap_or_default() {
                self.want(&id);
            }
        }
    }

    fn want(&mut self, id: &Id) {
        if let Some(Bound { uid, what: Some(what), .. }) = self.bound.get(id) {
            self.due.push(PodTask { namespace: id.0.clone(), name: id.1.clone(), uid: uid.clone(), what: *what });
        }
    }

    /// The work that is due now.
    pub(super) fn due(&mut self) -> Vec<PodTask> {
        std::mem::take(&mut self.due)
    }
}

/// Carries out one task; returns the error message if it failed.
pub(super) async fn act(client: Client, act: PodTask) -> Option<String> {
    let PodTask { namespace, name, uid, what } = act;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let done = match what {
        PodAction::Run => {
            let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default().to_string();
            let on = |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": now });
            let status = json!({ "metadata": { "uid": uid }, "status": {
                "phase": "Running", "startTime": now,
                "conditions": [on("PodScheduled"), on("Initialized"), on("ContainersReady"), on("Ready")],
            } });
            pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await.map(drop)
        }
        PodAction::End => {
            let preconditions = Preconditions { uid: Some(uid), resource_version: None };
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(preconditions),
                ..Default::default()
            };
            pods.delete(&name, &params).await.map(drop)
        }
    };
    match done {
        Ok(()) => None,
        // The pod was deleted, or replaced by another one of the same name.
        Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => None,
        Err(error) => Some(format!("pod {namespace}/{name}: {error}")),
    }
}

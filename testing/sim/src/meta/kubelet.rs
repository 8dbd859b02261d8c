//! The kubelets of all simulated nodes, and the scheduler that binds pods to them.
//!
//! A pod has neither a task nor a timer of its own, unless it waits for something. Containers are not polled: a container reports when a probe would
//! get another answer, and then the kubelet runs the probes of its pod.

pub(super) mod files;
pub(super) mod sandbox;
mod schedule;
mod spec;
mod status;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::{Cache, Clock, Key, Next, Pass, Waker, WriteError};
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use serde_json::{Value, json};

use super::MetaConfig;
use super::delays::Step;
use super::names::digest;
use super::nodes::{NodeState, Nodes, UNREACHABLE, takes_pods, unreachable_at};
use super::process::{ContainerRuntime, Exit, StartRequest, VersionDefect, component};
use super::reconciler::{ReconcileError, Reconciler};
use super::view::{NAMESPACE, NODE, PodView, SerializedObject};
use files::{Missing, Sources};
use sandbox::{
    ContainerHandle, ContainerRole, PodSandbox, PodSandboxes, Running, SharedSandbox, Termination, containers, lock,
};
use schedule::{Candidate, PendingPod, ScheduledPod, choose};

/// A container that ran for this time is restarted without backoff, whatever came before.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(600);

/// The component whose steps can be delayed.
const ETCD: &str = "etcd";

/// The uid of a pod, and the node that it was bound to.
type PendingBinding = (Box<str>, Arc<str>);

/// The controller of pods.
pub(super) struct Kubelet {
    pub(super) pods: Cache<PodView>,
    pub(super) node_cache: Cache<SerializedObject<Node>>,
    pub(super) nodes: Nodes,
    pub(super) sources: Sources,
    pub(super) sandboxes: PodSandboxes,
    pub(super) runtime: Arc<ContainerRuntime>,
    pub(super) config: MetaConfig,
    pub(super) clock: Clock,
    pub(super) waker: Waker,
    /// Pods whose node is not in the cache yet. Locked during a choice, so that each choice sees the earlier ones.
    pub(super) pending_bindings: tokio::sync::Mutex<HashMap<Key, PendingBinding>>,
}

impl Reconciler for Kubelet {
    const NAME: &'static str = "kubelet";
    type Kind = Pod;

    fn exists(&self, key: &Key) -> bool {
        let pod = self.pods.get(key);
        self.sandboxes.remove_replaced(key, pod.as_ref().map(|pod| &*pod.uid));
        pod.is_some()
    }

    async fn reconcile(&self, pass: &Pass) -> Result<Next, ReconcileError> {
        let Some(pod) = self.pods.get(pass.key()) else { return Ok(Next::AwaitChange) };
        let Some(node) = &pod.node else {
            return if pod.active() { self.schedule(pass, &pod).await } else { Ok(Next::AwaitChange) };
        };
        let Some(node_state) = self.nodes.node_state(node) else { return Ok(Next::AwaitChange) };
        if self.node_cache.get(&Key::cluster(node)).is_none() {
            // As the pod garbage collector does.
            return self.remove(pass, &pod).await;
        }
        if let Some(lost) = node_state.lost {
            return self.handle_lost_node(pass, &pod, lost).await;
        }
        match pod.deleting {
            Some((_, grace)) => self.end(pass, &pod, grace).await,
            None if pod.over => Ok(Next::AwaitChange),
            None => self.run(pass, &pod, node, &node_state).await,
        }
    }
}

impl Kubelet {
    /// Binds a pod to a node.
    async fn schedule(&self, pass: &Pass, pod: &PodView) -> Result<Next, ReconcileError> {
        let key = pass.key();
        let mut pending_bindings = self.pending_bindings.lock().await;
        pending_bindings
            .retain(|key, (uid, _)| self.pods.get(key).is_some_and(|pod| pod.uid == *uid && pod.node.is_none()));
        if pending_bindings.contains_key(key) {
            return Ok(Next::AwaitChange);
        }
        let spec = pod.spec();
        let candidates: Vec<Candidate> = self
            .nodes
            .names()
            .into_iter()
            .filter_map(|name| {
                let node = self.node_cache.get(&Key::cluster(&name))?.read();
                let more = pending_bindings.values().filter(|(_, on)| *on == name).count();
                takes_pods(&node).then(|| Candidate::of(name.clone(), &node, self.pods.count(NODE, &name) + more))
            })
            .collect();
        let others = self.pods.by(NAMESPACE, &key.namespace);
        let placed: Vec<ScheduledPod<'_>> = others
            .iter()
            .filter(|(_, other)| other.active())
            .filter_map(|(key, other)| {
                let node = other.node.as_deref().or_else(|| pending_bindings.get(key).map(|(_, node)| &**node))?;
                let owner = other.owner.as_ref().map(|owner| &*owner.uid);
                Some(ScheduledPod { node, labels: &other.labels, owner })
            })
            .collect();
        let owner = pod.owner.as_ref().map(|owner| &*owner.uid);
        let chosen = choose(&PendingPod { spec: &spec, labels: &pod.labels, owner }, &candidates, &placed);
        let node = match chosen {
            Ok(node) => node,
            Err(why) => return self.unplaced(pass, pod, &why).await,
        };
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": &*key.name, "namespace": &*key.namespace, "uid": pod.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": &*node },
        });
        let uri = format!("/api/v1/namespaces/{}/pods/{}/binding", key.namespace, key.name);
        let request = http::Request::post(uri)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(binding.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        pass.client().request::<Value>(request).await?;
        pending_bindings.insert(key.clone(), (pod.uid.clone(), node));
        Ok(Next::AwaitChange)
    }

    /// Reports why a pod has no node; changes of nodes and pods requeue it.
    async fn unplaced(&self, pass: &Pass, pod: &PodView, why: &str) -> Result<Next, ReconcileError> {
        let about = reference::<Pod>(pass.key(), Some(&pod.uid));
        pass.events().publish(&about, Level::Warning, "FailedScheduling", why, "").await;
        let now = status::seconds(pass.now());
        let conditions = json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why, "lastTransitionTime": now,
        }]);
        if pod.unplaced.as_deref() != Some(why) {
            let status = json!({ "phase": "Pending", "conditions": conditions });
            pass.writer().merge_status(&self.pods, pass.key(), &pod.version, status).await?;
        }
        Ok(Next::AwaitChange)
    }

    /// Handles a pod on a node without heartbeats.
    async fn handle_lost_node(&self, pass: &Pass, pod: &PodView, lost: Timestamp) -> Result<Next, ReconcileError> {
        let gone = unreachable_at(lost, self.config.node_grace);
        if gone > pass.now() {
            return Ok(Next::At(gone));
        }
        if pod.ready.is_some() {
            let now = status::seconds(pass.now());
            let ready = json!([{
                "type": "Ready", "status": "False", "reason": "NodeNotReady", "message": "", "lastTransitionTime": now,
            }]);
            pass.writer().merge_status(&self.pods, pass.key(), &pod.version, json!({ "conditions": ready })).await?;
        }
        let Some(pod) = self.pods.get(pass.key()).filter(|pod| pod.active()) else { return Ok(Next::AwaitChange) };
        let tolerations = pod.spec().tolerations.unwrap_or_default();
        let tolerated = tolerations.iter().find(|toleration| {
            toleration.key.as_deref().is_none_or(|key| key == UNREACHABLE)
                && toleration.effect.as_deref().is_none_or(|effect| effect == "NoExecute")
        });
        let due = match tolerated {
            None => gone,
            Some(tolerated) => match tolerated.toleration_seconds {
                Some(seconds) => gone + SignedDuration::from_secs(seconds),
                None => return Ok(Next::AwaitChange),
            },
        };
        if due > pass.now() {
            return Ok(Next::At(due));
        }
        pass.writer().delete(&self.pods, pass.key(), &pod.uid, &pod.version).await?;
        Ok(Next::AwaitChange)
    }

    /// Deletes a pod gracefully, with an event.
    async fn end(&self, pass: &Pass, pod: &PodView, grace: i64) -> Result<Next, ReconcileError> {
        let Some(sandbox) = self.sandboxes.get(pass.key()) else { return self.remove(pass, pod).await };
        let now = self.clock.monotonic();
        let due = {
            let mut sandbox = lock(&sandbox);
            if sandbox.stop_at.is_none() {
                sandbox
                    .slots
                    .iter()
                    .filter_map(|slot| slot.running.as_ref())
                    .for_each(|running| running.process.drain());
            }
            let late = match sandbox.stop_at {
                None if of_etcd(&sandbox) => self.runtime.delays.take(Step::PodStop).unwrap_or_default(),
                _ => Duration::ZERO,
            };
            // The callers of this pod must see first that it is terminating.
            *sandbox.stop_at.get_or_insert(now + self.config.stop + late)
        };
        if now < due && grace > 0 {
            return Ok(Next::After(due - now));
        }
        let running: Vec<Running> = lock(&sandbox).slots.iter_mut().filter_map(|slot| slot.running.take()).collect();
        let stop = join_all(running.iter().map(|running| running.process.stop()));
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
        tokio::select! {
            _ = stop => {}
            () = self.clock.sleep(grace) => {}
        }
        drop(running);
        self.remove(pass, pod).await
    }

    /// Removes a pod from the API server.
    async fn remove(&self, pass: &Pass, pod: &PodView) -> Result<Next, ReconcileError> {
        let api: Api<Pod> = Api::namespaced(pass.client(), &pass.key().namespace);
        let preconditions = Preconditions { uid: Some(pod.uid.to_string()), resource_version: None };
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match api.delete(&pass.key().name, &now).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Next::AwaitChange)
    }

    async fn run(
        &self,
        pass: &Pass,
        pod: &PodView,
        node: &str,
        node_state: &NodeState,
    ) -> Result<Next, ReconcileError> {
        let key = pass.key();
        let spec = pod.spec();
        let now = self.clock.monotonic();
        let sandbox = self
            .sandboxes
            .ensure(key, pod, &spec, node, (pass.now(), now + self.config.start))
            .ok_or_else(|| ReconcileError::Machine("no address of the loopback network is free".to_owned()))?;
        let start_at = lock(&sandbox).start_at;
        if now < start_at {
            return Ok(Next::After(start_at - now));
        }
        let mut waits = Vec::new();
        match self.mount(pass, pod, &spec, &sandbox).await? {
            Ok(wait) => waits.extend(wait),
            Err(Missing(why)) => {
                let about = reference::<Pod>(key, Some(&pod.uid));
                pass.events().publish(&about, Level::Warning, "FailedMount", &why, "").await;
                let late = self.report_status(pass, &sandbox, node_state, true).await?;
                return Ok(late.map_or(Next::AwaitChange, Next::After));
            }
        }
        for slot in 0..containers(&spec).len() {
            if lock(&sandbox).slots.iter().take(slot).all(sandbox::ContainerState::passed) {
                waits.extend(self.sync_container(pass, &spec, &sandbox, slot, node_state).await);
            }
        }
        let left: Vec<Running> = {
            let mut sandbox = lock(&sandbox);
            let over = sandbox.over().is_some();
            sandbox.slots.iter_mut().filter(|_| over).filter_map(|slot| slot.running.take()).collect()
        };
        join_all(left.iter().map(|running| running.process.stop())).await;
        waits.extend(self.report_status(pass, &sandbox, node_state, false).await?);
        Ok(waits.into_iter().min().map_or(Next::AwaitChange, Next::After))
    }

    /// Mounts the volumes of a pod, and remounts them a moment after their objects changed; returns when to check again.
    async fn mount(
        &self,
        pass: &Pass,
        pod: &PodView,
        spec: &PodSpec,
        sandbox: &SharedSandbox,
    ) -> Result<Result<Option<Duration>, Missing>, ReconcileError> {
        let stamp = self.sources.stamp(pass.key(), pod);
        let now = self.clock.monotonic();
        let (dirs, first) = {
            let mut sandbox = lock(sandbox);
            if sandbox.mounted == Some(stamp) {
                sandbox.refresh = None;
                return Ok(Ok(None));
            }
            let first = sandbox.mounted.is_none();
            if !first {
                let due = match sandbox.refresh {
                    Some((known, due)) if known == stamp => due,
                    _ => now + self.config.refresh,
                };
                sandbox.refresh = Some((stamp, due));
                if now < due {
                    return Ok(Ok(Some(due - now)));
                }
            }
            (sandbox.dirs.clone(), first)
        };
        let contents = match self.sources.gather(&pass.key().namespace, spec, &dirs).await? {
            Ok(contents) => contents,
            Err(missing) if first => return Ok(Err(missing)),
            // As with a real kubelet, the present mounts stay unchanged.
            Err(_) => return Ok(Ok(None)),
        };
        let mut sandbox = lock(sandbox);
        for (slot, container) in sandbox.slots.iter().zip(containers(spec)) {
            slot.files.mount(container, &contents);
            if let Some(running) = slot.running.as_ref().filter(|_| !first) {
                running.process.refreshed();
            }
        }
        sandbox.mounted = Some(stamp);
        sandbox.refresh = None;
        Ok(Ok(None))
    }

    /// Keeps one container running; returns when to check again.
    async fn sync_container(
        &self,
        pass: &Pass,
        spec: &PodSpec,
        sandbox: &SharedSandbox,
        number: usize,
        node_state: &NodeState,
    ) -> Option<Duration> {
        // A container that ends at once is restarted at once, but only once.
        for _ in 0..2 {
            if let Some(wait) = self.wait_after_exit(pass, spec, sandbox, number) {
                return Some(wait);
            }
            let settled = {
                let slot = &lock(sandbox).slots[number];
                slot.running.is_some() || slot.done.is_some()
            };
            if settled {
                break;
            }
            let late = self.late(pass, sandbox, number);
            if late.is_some() {
                return late;
            }
            self.start(pass, spec, sandbox, number, node_state).await;
        }
        let wait = self.wait_after_exit(pass, spec, sandbox, number);
        if wait.is_some() {
            return wait;
        }
        self.probe(pass, spec, sandbox, number)
    }

    /// The remaining delay of a container's start, if it is delayed.
    fn late(&self, pass: &Pass, sandbox: &SharedSandbox, number: usize) -> Option<Duration> {
        let step = {
            let sandbox = lock(sandbox);
            let again = sandbox.slots[number].life > 0;
            let step = if again { Step::ContainerRestart } else { Step::ContainerStart };
            of_etcd(&sandbox).then_some(step)?
        };
        self.runtime.delays.wait(step, pass.key(), self.clock.monotonic())
    }

    /// Records that a container ended; returns the backoff until its restart.
    fn wait_after_exit(&self, pass: &Pass, spec: &PodSpec, sandbox: &SharedSandbox, number: usize) -> Option<Duration> {
        let now = self.clock.monotonic();
        let mut sandbox = lock(sandbox);
        let slot = &mut sandbox.slots[number];
        if let Some((exit, started, began)) = slot.exit.take() {
            // The first restart has no backoff; each later one waits longer.
            let first = slot.last.is_none() || now.saturating_sub(began) >= BACKOFF_RESET_AFTER;
            slot.backoff = match slot.backoff {
                _ if first => Duration::ZERO,
                Duration::ZERO => self.config.backoff,
                before => (before * 2).min(self.config.longest_backoff),
            };
            let again = match (slot.role, spec.restart_policy.as_deref()) {
                (ContainerRole::Sidecar, _) => true,
                (_, Some("Never")) => false,
                (ContainerRole::Init, _) | (_, Some("OnFailure")) => exit.code != 0,
                (ContainerRole::Main, _) => true,
            };
            if !again {
                (slot.done, slot.backoff) = (Some(exit.code), Duration::ZERO);
            }
            slot.restart_at = again.then(|| now + slot.backoff);
            slot.last = Some(Termination { exit, started, finished: pass.now() });
        }
        let due = slot.restart_at.filter(|_| slot.running.is_none())?;
        (due > now).then(|| due - now)
    }

    async fn start(&self, pass: &Pass, spec: &PodSpec, sandbox: &SharedSandbox, number: usize, node_state: &NodeState) {
        let container = containers(spec)[number];
        let (start, again) = {
            let mut held = lock(sandbox);
            let ip = held.address.ip();
            let slot = &mut held.slots[number];
            let again = slot.life > 0;
            slot.life += 1;
            slot.restarts += i32::from(again);
            slot.ready = false;
            slot.failing_since = None;
            let life = ContainerHandle {
                sandbox: Arc::downgrade(sandbox),
                slot: number,
                life: slot.life,
                key: pass.key().clone(),
                waker: self.waker.clone(),
            };
            let (component, version) = component(&slot.image);
            let bad = self.runtime.bad(&component, &version);
            let args = spec::args(container, pass.key(), ip, node_state.ip(), spec.node_name.as_deref());
            let files = slot.files.clone();
            (StartRequest { pod: pass.key().clone(), ip, component, version, args, files, life, bad }, again)
        };
        let (life, bad) = (start.life.clone(), start.bad);
        let started = self.runtime.start(start).await;
        let (since, began) = (self.clock.now(), self.clock.monotonic());
        let mut held = lock(sandbox);
        // The pod may have been stopped while the container started: its slot is gone, and dropping the process ends it.
        let Some(slot) = held.slots.get_mut(number) else { return };
        match started {
            Ok(process) => {
                let crash_task = match bad {
                    Some(VersionDefect::CrashesAfter(time)) => {
                        let clock = self.clock.clone();
                        let ends = async move {
                            clock.sleep(time).await;
                            life.end(Exit { code: 2, message: "panic: this version was declared bad".to_owned() });
                        };
                        Some(tokio::spawn(ends).abort_handle())
                    }
                    _ => None,
                };
                slot.running = Some(Running { process, since, began, crash_task });
                slot.restart_at = None;
            }
            Err(exit) => slot.exit = Some((exit, since, began)),
        }
        tracing::debug!(pod = %pass.key(), container = slot.name, again, "started a container");
    }

    /// Runs the probes of a container; returns when to run them again.
    fn probe(&self, pass: &Pass, spec: &PodSpec, sandbox: &SharedSandbox, number: usize) -> Option<Duration> {
        let container = containers(spec)[number];
        let now = self.clock.monotonic();
        let mut held = lock(sandbox);
        let slot = &mut held.slots[number];
        let Some(running) = &slot.running else {
            slot.ready = false;
            return None;
        };
        let (component, version) = component(&slot.image);
        let never = self.runtime.bad(&component, &version) == Some(VersionDefect::NeverReady);
        let asked = |probe: &Option<k8s_openapi::api::core::v1::Probe>| match probe {
            Some(probe) => running.process.probe(&spec::probe(container, probe)),
            None => Ok(()),
        };
        let ready = !never && asked(&container.startup_probe).is_ok() && asked(&container.readiness_probe).is_ok();
        let becomes = ready && !slot.ready && component == ETCD;
        let late = if becomes { self.runtime.delays.wait(Step::ContainerReady, pass.key(), now) } else { None };
        slot.ready = ready && late.is_none();
        let Err(why) = asked(&container.liveness_probe) else {
            slot.failing_since = None;
            return late;
        };
        let patience = container.liveness_probe.as_ref().map(spec::patience).unwrap_or_default();
        let since = *slot.failing_since.get_or_insert(now);
        if now < since + patience {
            return Some(since + patience - now);
        }
        tracing::debug!(pod = %pass.key(), container = slot.name, why, "liveness probe failed; stopping the container");
        slot.failing_since = None;
        slot.end(Exit { message: format!("Liveness probe failed: {why}"), ..Exit::killed() });
        // Check at once: the next pass handles the end of the container.
        Some(Duration::ZERO)
    }

    /// Writes the status of a pod if it changed; returns the remaining delay of the write, if it is delayed.
    async fn report_status(
        &self,
        pass: &Pass,
        sandbox: &SharedSandbox,
        node_state: &NodeState,
        missing: bool,
    ) -> Result<Option<Duration>, ReconcileError> {
        let (status, word, etcd) = {
            let mut sandbox = lock(sandbox);
            let status = status::status(pass.key(), &mut sandbox, node_state.ip(), missing, pass.now());
            let word = digest(&status);
            if sandbox.reported.as_ref() == Some(&word) {
                return Ok(None);
            }
            (status, word, of_etcd(&sandbox))
        };
        let late = || self.runtime.delays.wait(Step::PodStatus, pass.key(), self.clock.monotonic());
        if let Some(late) = etcd.then(late).flatten() {
            return Ok(Some(late));
        }
        let Some(pod) = self.pods.get(pass.key()) else { return Ok(None) };
        match pass.writer().merge_status(&self.pods, pass.key(), &pod.version, status).await {
            Ok(()) => lock(sandbox).reported = Some(word),
            Err(WriteError::Gone(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }
}

/// Whether a pod is a member of etcd, whose steps can be delayed.
fn of_etcd(sandbox: &PodSandbox) -> bool {
    sandbox.slots.iter().any(|slot| component(&slot.image).0 == ETCD)
}

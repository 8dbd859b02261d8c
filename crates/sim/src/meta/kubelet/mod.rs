//! The kubelets of all simulated nodes, and the scheduler that gives them their pods.
//!
//! A pod has neither a task nor a timer of its own, unless it waits for something. Nobody asks a container again and again how it is: it tells when it would
//! answer otherwise than before, and then the probes of its pod are looked at.

pub(super) mod files;
pub(super) mod room;
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

use super::Manner;
use super::delays::Step;
use super::keeper::{Failed, Keeper};
use super::names::digest;
use super::nodes::{Nodes, Seat, UNREACHABLE, takes_pods, unreachable_at};
use super::process::{Bad, Exit, Machinery, Start, component};
use super::view::{NAMESPACE, NODE, PodView, Text};
use files::{Missing, Sources};
use room::{Ended, Life, Part, Room, Rooms, Running, Shared, containers, lock};
use schedule::{Place, Placed, Unplaced, choose};

/// A container that ran for so long is started at once when it ends, whatever was before.
const FORGIVEN: Duration = Duration::from_secs(600);

/// The component whose steps can be delayed.
const ETCD: &str = "etcd";

/// The uid of a pod, and the node that it was given.
type Placing = (Box<str>, Arc<str>);

/// Keeps pods.
pub(super) struct Kubelet {
    pub(super) pods: Cache<PodView>,
    pub(super) node_cache: Cache<Text<Node>>,
    pub(super) nodes: Nodes,
    pub(super) sources: Sources,
    pub(super) rooms: Rooms,
    pub(super) machinery: Arc<Machinery>,
    pub(super) manner: Manner,
    pub(super) clock: Clock,
    pub(super) waker: Waker,
    /// Pods that were given a node that the cache does not show yet. Held while one is chosen, so that each sees what the others chose.
    pub(super) placing: tokio::sync::Mutex<HashMap<Key, Placing>>,
}

impl Keeper for Kubelet {
    const NAME: &'static str = "kubelet";
    type Kind = Pod;

    fn there(&self, key: &Key) -> bool {
        let pod = self.pods.get(key);
        self.rooms.leave_others(key, pod.as_ref().map(|pod| &*pod.uid));
        pod.is_some()
    }

    async fn keep(&self, pass: &Pass) -> Result<Next, Failed> {
        let Some(pod) = self.pods.get(pass.key()) else { return Ok(Next::Rest) };
        let Some(node) = &pod.node else {
            return if pod.active() { self.place(pass, &pod).await } else { Ok(Next::Rest) };
        };
        let Some(seat) = self.nodes.seat(node) else { return Ok(Next::Rest) };
        if self.node_cache.get(&Key::cluster(node)).is_none() {
            // As the garbage collector of pods does.
            return self.remove(pass, &pod).await;
        }
        if let Some(lost) = seat.lost {
            return self.strand(pass, &pod, lost).await;
        }
        match pod.deleting {
            Some((_, grace)) => self.end(pass, &pod, grace).await,
            None if pod.over => Ok(Next::Rest),
            None => self.run(pass, &pod, node, &seat).await,
        }
    }
}

impl Kubelet {
    /// Gives a pod a node.
    async fn place(&self, pass: &Pass, pod: &PodView) -> Result<Next, Failed> {
        let key = pass.key();
        let mut placing = self.placing.lock().await;
        placing.retain(|key, (uid, _)| self.pods.get(key).is_some_and(|pod| pod.uid == *uid && pod.node.is_none()));
        if placing.contains_key(key) {
            return Ok(Next::Rest);
        }
        let spec = pod.spec();
        let places: Vec<Place> = self
            .nodes
            .names()
            .into_iter()
            .filter_map(|name| {
                let node = self.node_cache.get(&Key::cluster(&name))?.read();
                let more = placing.values().filter(|(_, on)| *on == name).count();
                takes_pods(&node).then(|| Place::of(name.clone(), &node, self.pods.count(NODE, &name) + more))
            })
            .collect();
        let others = self.pods.by(NAMESPACE, &key.namespace);
        let placed: Vec<Placed<'_>> = others
            .iter()
            .filter(|(_, other)| other.active())
            .filter_map(|(key, other)| {
                let node = other.node.as_deref().or_else(|| placing.get(key).map(|(_, node)| &**node))?;
                let owner = other.owner.as_ref().map(|owner| &*owner.uid);
                Some(Placed { node, labels: &other.labels, owner })
            })
            .collect();
        let owner = pod.owner.as_ref().map(|owner| &*owner.uid);
        let chosen = choose(&Unplaced { spec: &spec, labels: &pod.labels, owner }, &places, &placed);
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
        placing.insert(key.clone(), (pod.uid.clone(), node));
        Ok(Next::Rest)
    }

    /// Says why a pod has no node; nodes and pods that change bring it back here.
    async fn unplaced(&self, pass: &Pass, pod: &PodView, why: &str) -> Result<Next, Failed> {
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
        Ok(Next::Rest)
    }

    /// What happens to a pod of whose node nothing is heard.
    async fn strand(&self, pass: &Pass, pod: &PodView, lost: Timestamp) -> Result<Next, Failed> {
        let gone = unreachable_at(lost, self.manner.node_grace);
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
        let Some(pod) = self.pods.get(pass.key()).filter(|pod| pod.active()) else { return Ok(Next::Rest) };
        let tolerations = pod.spec().tolerations.unwrap_or_default();
        let tolerated = tolerations.iter().find(|toleration| {
            toleration.key.as_deref().is_none_or(|key| key == UNREACHABLE)
                && toleration.effect.as_deref().is_none_or(|effect| effect == "NoExecute")
        });
        let due = match tolerated {
            None => gone,
            Some(tolerated) => match tolerated.toleration_seconds {
                Some(seconds) => gone + SignedDuration::from_secs(seconds),
                None => return Ok(Next::Rest),
            },
        };
        if due > pass.now() {
            return Ok(Next::At(due));
        }
        pass.writer().delete(&self.pods, pass.key(), &pod.uid, &pod.version).await?;
        Ok(Next::Rest)
    }

    /// Ends a pod in order, and says so.
    async fn end(&self, pass: &Pass, pod: &PodView, grace: i64) -> Result<Next, Failed> {
        let Some(room) = self.rooms.get(pass.key()) else { return self.remove(pass, pod).await };
        let now = self.clock.monotonic();
        let due = {
            let mut room = lock(&room);
            if room.stop_at.is_none() {
                room.slots.iter().filter_map(|slot| slot.running.as_ref()).for_each(|running| running.process.drain());
            }
            let late = match room.stop_at {
                None if of_etcd(&room) => self.machinery.delays.take(Step::PodStop).unwrap_or_default(),
                _ => Duration::ZERO,
            };
            // Those who send requests here hear of it first.
            *room.stop_at.get_or_insert(now + self.manner.stop + late)
        };
        if now < due && grace > 0 {
            return Ok(Next::After(due - now));
        }
        let running: Vec<Running> = lock(&room).slots.iter_mut().filter_map(|slot| slot.running.take()).collect();
        let stop = join_all(running.iter().map(|running| running.process.stop()));
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
        tokio::select! {
            _ = stop => {}
            () = self.clock.sleep(grace) => {}
        }
        drop(running);
        self.remove(pass, pod).await
    }

    /// Takes a pod from the API server for good.
    async fn remove(&self, pass: &Pass, pod: &PodView) -> Result<Next, Failed> {
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
        Ok(Next::Rest)
    }

    /// Runs a pod.
    async fn run(&self, pass: &Pass, pod: &PodView, node: &str, seat: &Seat) -> Result<Next, Failed> {
        let key = pass.key();
        let spec = pod.spec();
        let now = self.clock.monotonic();
        let room = self
            .rooms
            .ensure(key, pod, &spec, node, (pass.now(), now + self.manner.start))
            .ok_or_else(|| Failed::Machine("no address of the loopback network is free".to_owned()))?;
        let start_at = lock(&room).start_at;
        if now < start_at {
            return Ok(Next::After(start_at - now));
        }
        let mut waits = Vec::new();
        match self.mount(pass, pod, &spec, &room).await? {
            Ok(wait) => waits.extend(wait),
            Err(Missing(why)) => {
                let about = reference::<Pod>(key, Some(&pod.uid));
                pass.events().publish(&about, Level::Warning, "FailedMount", &why, "").await;
                let late = self.tell(pass, &room, seat, true).await?;
                return Ok(late.map_or(Next::Rest, Next::After));
            }
        }
        for slot in 0..containers(&spec).len() {
            if lock(&room).slots.iter().take(slot).all(room::Slot::passed) {
                waits.extend(self.keep_container(pass, &spec, &room, slot, seat).await);
            }
        }
        let left: Vec<Running> = {
            let mut room = lock(&room);
            let over = room.over().is_some();
            room.slots.iter_mut().filter(|_| over).filter_map(|slot| slot.running.take()).collect()
        };
        join_all(left.iter().map(|running| running.process.stop())).await;
        waits.extend(self.tell(pass, &room, seat, false).await?);
        Ok(waits.into_iter().min().map_or(Next::Rest, Next::After))
    }

    /// Mounts what a pod asks for, and mounts it anew a moment after it changed; says when to look again.
    async fn mount(
        &self,
        pass: &Pass,
        pod: &PodView,
        spec: &PodSpec,
        room: &Shared,
    ) -> Result<Result<Option<Duration>, Missing>, Failed> {
        let stamp = self.sources.stamp(pass.key(), pod);
        let now = self.clock.monotonic();
        let (dirs, first) = {
            let mut room = lock(room);
            if room.mounted == Some(stamp) {
                room.refresh = None;
                return Ok(Ok(None));
            }
            let first = room.mounted.is_none();
            if !first {
                let due = match room.refresh {
                    Some((known, due)) if known == stamp => due,
                    _ => now + self.manner.refresh,
                };
                room.refresh = Some((stamp, due));
                if now < due {
                    return Ok(Ok(Some(due - now)));
                }
            }
            (room.dirs.clone(), first)
        };
        let contents = match self.sources.gather(&pass.key().namespace, spec, &dirs).await? {
            Ok(contents) => contents,
            Err(missing) if first => return Ok(Err(missing)),
            // What is mounted stays as it was, as with a real kubelet.
            Err(_) => return Ok(Ok(None)),
        };
        let mut room = lock(room);
        for (slot, container) in room.slots.iter().zip(containers(spec)) {
            slot.files.mount(container, &contents);
            if let Some(running) = slot.running.as_ref().filter(|_| !first) {
                running.process.refreshed();
            }
        }
        room.mounted = Some(stamp);
        room.refresh = None;
        Ok(Ok(None))
    }

    /// Keeps one container going; says when to look again.
    async fn keep_container(
        &self,
        pass: &Pass,
        spec: &PodSpec,
        room: &Shared,
        number: usize,
        seat: &Seat,
    ) -> Option<Duration> {
        // A container that ends at once is started again at once, but only once.
        for _ in 0..2 {
            if let Some(wait) = self.wait_after_exit(pass, spec, room, number) {
                return Some(wait);
            }
            let settled = {
                let slot = &lock(room).slots[number];
                slot.running.is_some() || slot.done.is_some()
            };
            if settled {
                break;
            }
            let late = self.late(pass, room, number);
            if late.is_some() {
                return late;
            }
            self.start(pass, spec, room, number, seat).await;
        }
        let wait = self.wait_after_exit(pass, spec, room, number);
        if wait.is_some() {
            return wait;
        }
        self.probe(pass, spec, room, number)
    }

    /// How long the start of a container is still delayed, if it is.
    fn late(&self, pass: &Pass, room: &Shared, number: usize) -> Option<Duration> {
        let step = {
            let room = lock(room);
            let again = room.slots[number].life > 0;
            let step = if again { Step::ContainerRestart } else { Step::ContainerStart };
            of_etcd(&room).then_some(step)?
        };
        self.machinery.delays.wait(step, pass.key(), self.clock.monotonic())
    }

    /// Takes note that a container ended; says how long it waits until it is started again.
    fn wait_after_exit(&self, pass: &Pass, spec: &PodSpec, room: &Shared, number: usize) -> Option<Duration> {
        let now = self.clock.monotonic();
        let mut room = lock(room);
        let slot = &mut room.slots[number];
        if let Some((exit, started, began)) = slot.exit.take() {
            // The first time at once, then later each time.
            let first = slot.last.is_none() || now.saturating_sub(began) >= FORGIVEN;
            slot.backoff = match slot.backoff {
                _ if first => Duration::ZERO,
                Duration::ZERO => self.manner.backoff,
                before => (before * 2).min(self.manner.longest_backoff),
            };
            let again = match (slot.part, spec.restart_policy.as_deref()) {
                (Part::Beside, _) => true,
                (_, Some("Never")) => false,
                (Part::First, _) | (_, Some("OnFailure")) => exit.code != 0,
                (Part::Main, _) => true,
            };
            if !again {
                (slot.done, slot.backoff) = (Some(exit.code), Duration::ZERO);
            }
            slot.again_at = again.then(|| now + slot.backoff);
            slot.last = Some(Ended { exit, started, finished: pass.now() });
        }
        let due = slot.again_at.filter(|_| slot.running.is_none())?;
        (due > now).then(|| due - now)
    }

    async fn start(&self, pass: &Pass, spec: &PodSpec, room: &Shared, number: usize, seat: &Seat) {
        let container = containers(spec)[number];
        let (start, again) = {
            let mut held = lock(room);
            let ip = held.address.ip();
            let slot = &mut held.slots[number];
            let again = slot.life > 0;
            slot.life += 1;
            slot.restarts += i32::from(again);
            slot.ready = false;
            slot.sick = None;
            let life = Life {
                room: Arc::downgrade(room),
                slot: number,
                life: slot.life,
                key: pass.key().clone(),
                waker: self.waker.clone(),
            };
            let (component, version) = component(&slot.image);
            let bad = self.machinery.bad(&component, &version);
            let args = spec::args(container, pass.key(), ip, seat.ip(), spec.node_name.as_deref());
            let files = slot.files.clone();
            (Start { pod: pass.key().clone(), ip, component, version, args, files, life, bad }, again)
        };
        let (life, bad) = (start.life.clone(), start.bad);
        let started = self.machinery.start(start).await;
        let (since, began) = (self.clock.now(), self.clock.monotonic());
        let mut held = lock(room);
        // The pod may have been ended while this began: then there is no place for it any more, and dropping it ends it.
        let Some(slot) = held.slots.get_mut(number) else { return };
        match started {
            Ok(process) => {
                let fate = match bad {
                    Some(Bad::CrashesAfter(time)) => {
                        let clock = self.clock.clone();
                        let ends = async move {
                            clock.sleep(time).await;
                            life.end(Exit { code: 2, message: "panic: this version was declared bad".to_owned() });
                        };
                        Some(tokio::spawn(ends).abort_handle())
                    }
                    _ => None,
                };
                slot.running = Some(Running { process, since, began, fate });
                slot.again_at = None;
            }
            Err(exit) => slot.exit = Some((exit, since, began)),
        }
        tracing::debug!(pod = %pass.key(), container = slot.name, again, "started a container");
    }

    /// Looks at the probes of a container; says when to look again.
    fn probe(&self, pass: &Pass, spec: &PodSpec, room: &Shared, number: usize) -> Option<Duration> {
        let container = containers(spec)[number];
        let now = self.clock.monotonic();
        let mut held = lock(room);
        let slot = &mut held.slots[number];
        let Some(running) = &slot.running else {
            slot.ready = false;
            return None;
        };
        let (component, version) = component(&slot.image);
        let never = self.machinery.bad(&component, &version) == Some(Bad::NeverReady);
        let asked = |probe: &Option<k8s_openapi::api::core::v1::Probe>| match probe {
            Some(probe) => running.process.probe(&spec::probe(container, probe)),
            None => Ok(()),
        };
        let ready = !never && asked(&container.startup_probe).is_ok() && asked(&container.readiness_probe).is_ok();
        let becomes = ready && !slot.ready && component == ETCD;
        let late = if becomes { self.machinery.delays.wait(Step::ContainerReady, pass.key(), now) } else { None };
        slot.ready = ready && late.is_none();
        let Err(why) = asked(&container.liveness_probe) else {
            slot.sick = None;
            return late;
        };
        let patience = container.liveness_probe.as_ref().map(spec::patience).unwrap_or_default();
        let since = *slot.sick.get_or_insert(now);
        if now < since + patience {
            return Some(since + patience - now);
        }
        tracing::debug!(pod = %pass.key(), container = slot.name, why, "liveness probe failed; stopping the container");
        slot.sick = None;
        slot.end(Exit { message: format!("Liveness probe failed: {why}"), ..Exit::killed() });
        // At once: what comes after an end is for the next look.
        Some(Duration::ZERO)
    }

    /// Writes down how a pod is, if that is news; says how long that is still delayed, if it is.
    async fn tell(&self, pass: &Pass, room: &Shared, seat: &Seat, missing: bool) -> Result<Option<Duration>, Failed> {
        let (status, word, etcd) = {
            let mut room = lock(room);
            let status = status::status(pass.key(), &mut room, seat.ip(), missing, pass.now());
            let word = digest(&status);
            if room.told.as_ref() == Some(&word) {
                return Ok(None);
            }
            (status, word, of_etcd(&room))
        };
        let late = || self.machinery.delays.wait(Step::PodStatus, pass.key(), self.clock.monotonic());
        if let Some(late) = etcd.then(late).flatten() {
            return Ok(Some(late));
        }
        let Some(pod) = self.pods.get(pass.key()) else { return Ok(None) };
        match pass.writer().merge_status(&self.pods, pass.key(), &pod.version, status).await {
            Ok(()) => lock(room).told = Some(word),
            Err(WriteError::Gone(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }
}

/// Whether a pod is a member of etcd: its steps can be delayed.
fn of_etcd(room: &Room) -> bool {
    room.slots.iter().any(|slot| component(&slot.image).0 == ETCD)
}

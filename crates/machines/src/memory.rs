//! This process' memory about machines. Lost with the process, on purpose: all essential state is in the API and on the hosts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_api::Ssh;
use fleetwright_kit::Key;
use fleetwright_plan::machine::{ObservedScope, RemainingPods};
use fleetwright_wire::{ComponentSeen, Observation, StepRecord};
use jiff::Timestamp;

use crate::drain::EvictionAttempts;
use crate::hosts::HostState;
use crate::view::SpecVersion;

/// The memory of all machines. Cheap to clone.
#[derive(Clone, Default)]
pub struct MachineMemories {
    all: Arc<Mutex<HashMap<Key, MachineMemory>>>,
}

/// News from a host since it was last read.
#[derive(Default)]
pub struct HostNews {
    /// A step that has ended.
    pub step: Option<StepRecord>,
    /// The duration of an observation.
    pub observed: Option<Duration>,
}

/// The memory of one machine.
#[derive(Clone, Default)]
pub struct MachineMemory {
    /// The scope of the last request to its host.
    pub asked: ObservedScope,
    /// When the host was asked.
    pub asked_at: Option<Timestamp>,
    /// The version of the Machine's spec for that request.
    pub asked_for: SpecVersion,
    /// The declared route of that request.
    pub declared: Option<(String, Ssh)>,
    /// The last observation before the request: the answer is another one.
    before: Option<Arc<Observation>>,
    /// The observation that the streaks count.
    counted: Option<Arc<Observation>>,
    /// The last step whose outcome was received, and when.
    step: Option<(String, Timestamp)>,
    /// How often in a row the health checks of a component passed.
    pub streaks: BTreeMap<String, u32>,
    /// How often in a row they failed, counting only observations that ran them.
    pub failures: BTreeMap<String, u32>,
    /// The remaining pods on its Node, in the window with that uid.
    pub pods: Option<(String, RemainingPods)>,
    /// When the eviction of each refused pod is retried.
    pub tries: EvictionAttempts,
    /// When its status was last written.
    pub wrote: Option<Timestamp>,
    /// Since when this process knows the machine.
    since: Option<Timestamp>,
}

impl MachineMemories {
    /// The memory of a machine, brought up to date with its host.
    pub fn with(&self, key: &Key, host: &HostState, now: Timestamp) -> (MachineMemory, HostNews) {
        let mut all = self.lock();
        let memory = all.entry(key.clone()).or_default();
        memory.since.get_or_insert(now);
        let news = memory.update_from_host(host, now);
        (memory.clone(), news)
    }

    /// Changes the memory of a machine.
    pub fn change<R>(&self, key: &Key, change: impl FnOnce(&mut MachineMemory) -> R) -> R {
        change(self.lock().entry(key.clone()).or_default())
    }

    /// Drops the memory of a machine.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, MachineMemory>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MachineMemory {
    fn update_from_host(&mut self, host: &HostState, now: Timestamp) -> HostNews {
        let mut news = HostNews::default();
        if let Some((at, seen)) = &host.seen
            && !same(self.counted.as_ref(), seen)
        {
            self.counted = Some(Arc::clone(seen));
            news.observed = self.asked_at.and_then(|asked| Duration::try_from(at.duration_since(asked)).ok());
            let holds = |seen: &ComponentSeen| !seen.health.is_empty() && seen.health.iter().all(|check| check.holds);
            for component in &seen.components {
                if holds(component) {
                    *self.streaks.entry(component.component.clone()).or_default() += 1;
                    self.failures.remove(&component.component);
                } else {
                    self.streaks.remove(&component.component);
                    if !component.health.is_empty() {
                        *self.failures.entry(component.component.clone()).or_default() += 1;
                    }
                }
            }
        }
        match &host.step {
            Some(step) if self.step.as_ref().is_none_or(|(id, _)| *id != step.id) => {
                self.step = Some((step.id.clone(), now));
                news.step = Some(step.clone());
            }
            _ => {}
        }
        news
    }

    /// Records a request to the host.
    pub fn ask(&mut self, asked: ObservedScope, edition: SpecVersion, host: &HostState, now: Timestamp) {
        self.asked = asked;
        self.asked_at = Some(now);
        self.asked_for = edition;
        self.before = host.seen.as_ref().map(|(_, seen)| Arc::clone(seen));
    }

    /// Whether the observation answers the last request.
    pub fn answered(&self, seen: &Arc<Observation>) -> bool {
        !same(self.before.as_ref(), seen)
    }

    /// Since when this process knows the machine.
    pub fn since(&self) -> Timestamp {
        self.since.unwrap_or(Timestamp::MIN)
    }

    /// When the outcome of the last step was received.
    pub fn step_at(&self) -> Option<Timestamp> {
        self.step.as_ref().map(|(_, at)| *at)
    }
}

fn same(one: Option<&Arc<Observation>>, two: &Arc<Observation>) -> bool {
    one.is_some_and(|one| Arc::ptr_eq(one, two))
}

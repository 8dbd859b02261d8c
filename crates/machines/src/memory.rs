//! What this process remembers of machines. Gone with it, on purpose: everything that matters is in the API and on the hosts.

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

/// What is remembered of each machine. Cheap to clone.
#[derive(Clone, Default)]
pub struct MachineMemories {
    all: Arc<Mutex<HashMap<Key, MachineMemory>>>,
}

/// What was learnt from a host since it was last looked at.
#[derive(Default)]
pub struct HostNews {
    /// A step ended.
    pub step: Option<StepRecord>,
    /// It answered, and how long that took.
    pub observed: Option<Duration>,
}

/// What is remembered of one machine.
#[derive(Clone, Default)]
pub struct MachineMemory {
    /// What its host was asked last.
    pub asked: ObservedScope,
    /// When.
    pub asked_at: Option<Timestamp>,
    /// The edition of the Machine for which it was asked.
    pub asked_for: SpecVersion,
    /// How its host was reached when it was asked last, as it was declared.
    pub declared: Option<(String, Ssh)>,
    /// The observation that there was when it was asked: an answer is another one.
    before: Option<Arc<Observation>>,
    /// The observation that the streaks count.
    counted: Option<Arc<Observation>>,
    /// The last step whose outcome was learnt, and when.
    step: Option<(String, Timestamp)>,
    /// How often in a row the checks of a component held.
    pub streaks: BTreeMap<String, u32>,
    /// How often in a row they failed, of the looks that ran them.
    pub failures: BTreeMap<String, u32>,
    /// Who was on its Node, in the window with that uid.
    pub pods: Option<(String, RemainingPods)>,
    /// When each pod that was held back is asked again.
    pub tries: EvictionAttempts,
    /// When its status was last written.
    pub wrote: Option<Timestamp>,
    /// Since when it is known.
    since: Option<Timestamp>,
}

impl MachineMemories {
    /// What is remembered of a machine, brought up to date with its host.
    pub fn with(&self, key: &Key, host: &HostState, now: Timestamp) -> (MachineMemory, HostNews) {
        let mut all = self.lock();
        let memory = all.entry(key.clone()).or_default();
        memory.since.get_or_insert(now);
        let news = memory.update_from_host(host, now);
        (memory.clone(), news)
    }

    /// Changes what is remembered.
    pub fn change<R>(&self, key: &Key, change: impl FnOnce(&mut MachineMemory) -> R) -> R {
        change(self.lock().entry(key.clone()).or_default())
    }

    /// Forgets a machine.
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

    /// Remembers what is asked.
    pub fn ask(&mut self, asked: ObservedScope, edition: SpecVersion, host: &HostState, now: Timestamp) {
        self.asked = asked;
        self.asked_at = Some(now);
        self.asked_for = edition;
        self.before = host.seen.as_ref().map(|(_, seen)| Arc::clone(seen));
    }

    /// Whether what was seen answers what was asked last.
    pub fn answered(&self, seen: &Arc<Observation>) -> bool {
        !same(self.before.as_ref(), seen)
    }

    /// Since when the machine is known.
    pub fn since(&self) -> Timestamp {
        self.since.unwrap_or(Timestamp::MIN)
    }

    /// When the outcome of the last step was learnt.
    pub fn step_at(&self) -> Option<Timestamp> {
        self.step.as_ref().map(|(_, at)| *at)
    }
}

fn same(one: Option<&Arc<Observation>>, two: &Arc<Observation>) -> bool {
    one.is_some_and(|one| Arc::ptr_eq(one, two))
}

//! Delays that a test injects into steps of the meta cluster and of etcd.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_kit::Key;

/// A step that can be delayed. Steps of pods and containers apply to members of etcd only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// etcd lists its members.
    MemberList,
    /// etcd got a request to remove a member, and has not removed it.
    MemberRemove,
    /// etcd removed a member, and has not answered.
    MemberRemoved,
    /// etcd got a request to add a member, and has not added it.
    MemberAdd,
    /// etcd added a member, and has not answered.
    MemberAdded,
    /// etcd got a request to promote a learner, and has not promoted it.
    MemberPromote,
    /// etcd promoted a learner, and has not answered.
    MemberPromoted,
    /// The StatefulSet controller creates a volume claim.
    ClaimCreate,
    /// The StatefulSet controller creates a pod.
    PodCreate,
    /// A deleted pod stops.
    PodStop,
    /// A container of a new pod starts.
    ContainerStart,
    /// A container that ended restarts.
    ContainerRestart,
    /// A running container becomes ready.
    ContainerReady,
    /// The kubelet reports the status of a pod.
    PodStatus,
}

/// The requested delays. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Delays(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The delay of each step, and how many more times it applies.
    wanted: BTreeMap<Step, (Duration, usize)>,
    /// The number of delays of each step so far.
    happened: BTreeMap<Step, usize>,
    /// The end of the current delay of a step of an object.
    held: HashMap<(Step, Key), Duration>,
}

impl Delays {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delays the next `times` of this step.
    pub(super) fn set(&self, step: Step, time: Duration, times: usize) {
        self.state().wanted.insert(step, (time, times));
    }

    /// Removes all delays and resets the counts.
    pub(super) fn clear(&self) {
        *self.state() = State::default();
    }

    /// The number of times that a step was delayed.
    pub(super) fn happened(&self, step: Step) -> usize {
        self.state().happened.get(&step).copied().unwrap_or_default()
    }

    /// Consumes one delay of this step; none if the step is not delayed.
    pub(super) fn take(&self, step: Step) -> Option<Duration> {
        self.state().take(step)
    }

    /// The remaining delay of a step of an object; callers poll it until it is none.
    pub(super) fn wait(&self, step: Step, key: &Key, now: Duration) -> Option<Duration> {
        let mut state = self.state();
        let object = (step, key.clone());
        let due = match state.held.get(&object) {
            Some(due) => *due,
            None => {
                let due = now + state.take(step)?;
                state.held.insert(object.clone(), due);
                due
            }
        };
        if now < due {
            return Some(due - now);
        }
        state.held.remove(&object);
        None
    }
}

impl State {
    fn take(&mut self, step: Step) -> Option<Duration> {
        let (time, times) = self.wanted.get_mut(&step)?;
        *times = times.checked_sub(1)?;
        let time = *time;
        *self.happened.entry(step).or_default() += 1;
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_delayed_as_often_as_wanted_and_then_done() {
        let (delays, key) = (Delays::default(), Key::new("a", "b"));
        let second = Duration::from_secs(1);
        assert_eq!(delays.wait(Step::PodCreate, &key, second), None);
        delays.set(Step::PodCreate, 3 * second, 1);
        assert_eq!(delays.wait(Step::PodCreate, &key, second), Some(3 * second));
        assert_eq!(delays.wait(Step::PodCreate, &key, 2 * second), Some(2 * second));
        assert_eq!(delays.wait(Step::PodCreate, &key, 4 * second), None);
        assert_eq!(delays.wait(Step::PodCreate, &key, 5 * second), None);
        assert_eq!((delays.happened(Step::PodCreate), delays.happened(Step::PodStop)), (1, 0));
        delays.set(Step::MemberAdd, second, 2);
        assert_eq!([(); 3].map(|()| delays.take(Step::MemberAdd)), [Some(second), Some(second), None]);
        delays.clear();
        assert_eq!(delays.happened(Step::MemberAdd), 0);
    }
}

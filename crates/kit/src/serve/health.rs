//! Whether the process is alive and ready.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::leader::Leading;
use crate::{Clock, Key};

/// A pass that runs longer than this is stuck: calls time out after half a minute and acts are journaled, not awaited.
pub const MAX_PASS: Duration = Duration::from_secs(600);

/// State for the probes; cheap to clone, clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    inner: Arc<Inner>,
    /// Health of other operators in the same process.
    others: Vec<Self>,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    caches: BTreeMap<String, bool>,
    passes: BTreeMap<u64, (String, Duration)>,
    last_pass: u64,
    leading: Option<watch::Receiver<Leading>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Starting,
    Running,
    Ended,
}

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the probe succeeds.
    pub good: bool,
    /// For a person: one line for each relevant fact.
    pub text: String,
}

impl Health {
    /// Health of a process that has not started to run.
    pub fn new(clock: Clock) -> Self {
        Self { inner: Arc::new(Inner { clock, state: Mutex::default() }), others: Vec::new() }
    }

    /// Health of a process with several operators: good if each of them is good.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.others.push(other);
        self
    }

    /// The verdict on all operators of the process; lines that several of them have appear once.
    fn together(&self, own: Verdict, of: fn(&Self) -> Verdict) -> Verdict {
        self.others.iter().map(of).fold(own, |mut all, other| {
            // If one is bad, only its lines are shown.
            match (all.good, other.good) {
                (true, false) => all = other,
                (false, true) => {}
                _ => {
                    let news: Vec<_> =
                        other.text.lines().filter(|line| all.text.lines().all(|said| said != *line)).collect();
                    all.text.extend(news.iter().flat_map(|line| [*line, "\n"]));
                }
            }
            all
        })
    }

    /// Marks the process as running until the guard is dropped.
    #[must_use = "the process counts as ended when the guard is dropped"]
    pub fn running(&self) -> RunGuard {
        self.state().phase = Phase::Running;
        RunGuard(self.clone())
    }

    /// Records whether a cache is in sync with the API server. A cache that was never recorded is not waited for.
    pub fn cache(&self, kind: &str, synced: bool) {
        let mut state = self.state();
        if let Some(known) = state.caches.get_mut(kind) {
            *known = synced;
        } else {
            state.caches.insert(kind.to_owned(), synced);
        }
    }

    /// Marks a pass as running until the guard is dropped.
    #[must_use = "the pass counts as ended when the guard is dropped"]
    pub fn pass(&self, controller: &'static str, key: &Key) -> PassGuard {
        let started = self.inner.clock.monotonic();
        let mut state = self.state();
        state.last_pass += 1;
        let number = state.last_pass;
        state.passes.insert(number, (format!("{controller} of {key}"), started));
        PassGuard { health: self.clone(), number }
    }

    /// Adds the leadership state to the answers of the probes.
    pub fn follow(&self, leading: watch::Receiver<Leading>) {
        self.state().leading = Some(leading);
    }

    /// Liveness: if it is bad, the process should be restarted.
    pub fn alive(&self) -> Verdict {
        let now = self.inner.clock.monotonic();
        let state = self.state();
        let mut text = String::new();
        let mut good = true;
        if state.phase == Phase::Ended {
            good = false;
            text.push_str("the operator has stopped\n");
        }
        for (what, started) in state.passes.values() {
            let ran = now.saturating_sub(*started);
            if ran > MAX_PASS {
                good = false;
                let _ = writeln!(text, "the pass of {what} is stuck: running for {} seconds", ran.as_secs());
            }
        }
        if good {
            text.push_str("ok\n");
        }
        drop(state);
        self.together(Verdict { good, text }, Self::alive)
    }

    /// Readiness: whether the process works, or could work at once if it led.
    pub fn ready(&self) -> Verdict {
        let Verdict { mut good, mut text } = self.alive();
        if good {
            text.clear();
        }
        let state = self.state();
        if state.phase == Phase::Starting {
            good = false;
            text.push_str("the operator has not started yet\n");
        }
        for (kind, _) in state.caches.iter().filter(|(_, synced)| !**synced) {
            good = false;
            let _ = writeln!(text, "the cache of {kind} is not synced yet");
        }
        let leading = state.leading.as_ref().map(|leading| leading.borrow().clone());
        if let Some(Leading::Lost { why }) = &leading {
            good = false;
            let _ = writeln!(text, "the lease was lost: {why}");
        }
        if good {
            match leading {
                None => text.push_str("ready: leading, without a lease\n"),
                Some(Leading::Leading) => text.push_str("ready: leading\n"),
                Some(Leading::Standby { holder: Some(holder) }) => {
                    let _ = writeln!(text, "ready: standing by, {holder} holds the lease");
                }
                Some(_) => text.push_str("ready: standing by\n"),
            }
        }
        drop(state);
        self.together(Verdict { good, text }, Self::ready)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of the running process.
#[derive(Debug)]
pub struct RunGuard(Health);

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.state().phase = Phase::Ended;
    }
}

/// Guard of a running pass.
#[derive(Debug)]
pub struct PassGuard {
    health: Health,
    number: u64,
}

impl Drop for PassGuard {
    fn drop(&mut self) {
        self.health.state().passes.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> (Health, Clock) {
        let clock = Clock::manual("2026-11-16T12:00:00Z".parse().unwrap());
        (Health::new(clock.clone()), clock)
    }

    #[test]
    fn ready_means_running_with_full_caches() {
        let (health, _) = health();
        assert!(!health.ready().good && health.ready().text.contains("not started"), "{}", health.ready().text);
        assert!(health.alive().good);
        let running = health.running();
        health.cache("Machine", false);
        health.cache("Node", true);
        let verdict = health.ready();
        assert!(!verdict.good);
        assert_eq!(verdict.text.lines().count(), 1, "{}", verdict.text);
        assert!(verdict.text.contains("Machine"), "{}", verdict.text);
        health.cache("Machine", true);
        assert!(health.ready().good);
        drop(running);
        assert!(!health.ready().good && health.ready().text.contains("stopped"), "{}", health.ready().text);
        assert!(!health.alive().good);
    }

    #[test]
    fn one_that_stands_by_is_ready_and_says_who_leads() {
        let (health, _) = health();
        let _running = health.running();
        let (leading, follow) = watch::channel(Leading::Standby { holder: Some("other".into()) });
        health.follow(follow);
        let standby = health.ready();
        assert!(
            standby.good && standby.text.contains("standing by") && standby.text.contains("other"),
            "{}",
            standby.text
        );
        leading.send_replace(Leading::Leading);
        assert!(health.ready().good && health.ready().text.contains("leading"), "{}", health.ready().text);
        leading.send_replace(Leading::Lost { why: "taken by other".into() });
        assert!(!health.ready().good && health.ready().text.contains("taken by other"), "{}", health.ready().text);
    }

    #[test]
    fn a_stuck_pass_is_named_and_the_process_should_be_restarted() {
        let (health, clock) = health();
        let _running = health.running();
        let short = health.pass("readiness", &Key::new("fleet", "a"));
        let stuck = health.pass("readiness", &Key::new("fleet", "b"));
        clock.advance(MAX_PASS);
        drop(short);
        assert!(health.alive().good);
        clock.advance(Duration::from_secs(5));
        let stuck_now = health.alive();
        assert!(!stuck_now.good && stuck_now.text.lines().count() == 1, "{}", stuck_now.text);
        assert!(["readiness", "fleet/b", "605"].iter().all(|word| stuck_now.text.contains(word)), "{}", stuck_now.text);
        drop(stuck);
        assert!(health.alive().good);
    }
}

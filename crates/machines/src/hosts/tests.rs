//! Simulated hosts of these tests, reached in virtual time.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fleetwright_kit::{Clock, Key, Random, Waker};
use fleetwright_transport::{self as transport, Hop, Link, LinkError, Login, ReachError, Route, Transport, Trust};
use fleetwright_wire::{
    Answer, Apply, Claim, Facts, Failure, FailureKind, Observation, Observe, Outcome, Progress, Request, Step,
    StepRecord,
};
use futures::future::BoxFuture;

use super::{HostLocation, HostState, Hosts, Limits, Task, UnreachableCause};

/// The behavior of hosts, by address.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum HostBehavior {
    #[default]
    Fine,
    /// No answer; the connection fails after that time.
    Gone(Duration),
    /// The host never answers.
    Hangs,
    /// The host takes that long.
    Slow(Duration),
    /// The host sends another answer.
    Lies,
    /// The host rejects the request.
    Refuses,
    /// The transport itself panics.
    Panics,
}

#[derive(Clone)]
struct TestHosts {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    behaviors: Mutex<HashMap<String, HostBehavior>>,
    key: Mutex<String>,
    /// Addresses of connections, in order.
    connects: Mutex<Vec<String>>,
    links: AtomicUsize,
    asked: AtomicUsize,
    busy: AtomicUsize,
    busiest: AtomicUsize,
    /// Connections made before this one are dead, without either side knowing.
    cut: AtomicUsize,
}

impl TestHosts {
    fn new() -> Self {
        let clock = Clock::manual("2030-01-01T00:00:00Z".parse().unwrap());
        let inner = Inner {
            clock,
            behaviors: Mutex::default(),
            key: Mutex::new("ssh-ed25519 AAAA".into()),
            connects: Mutex::default(),
            links: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            busiest: AtomicUsize::new(0),
            cut: AtomicUsize::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    fn behave(&self, address: &str, behavior: HostBehavior) {
        self.inner.behaviors.lock().unwrap().insert(address.into(), behavior);
    }

    fn behavior(&self, address: &str) -> HostBehavior {
        self.inner.behaviors.lock().unwrap().get(address).copied().unwrap_or_default()
    }

    fn connects(&self) -> usize {
        self.inner.connects.lock().unwrap().len()
    }

    fn links(&self) -> usize {
        self.inner.links.load(Ordering::SeqCst)
    }

    /// Cuts all connections made so far.
    fn cut(&self) {
        self.inner.cut.store(self.connects(), Ordering::SeqCst);
    }

    fn hosts(&self, limits: Limits) -> (Hosts, Waker) {
        let waker = Waker::new();
        let (transport, random) = (Arc::new(self.clone()), Random::seeded(1));
        (Hosts::with_random(transport, limits, self.clock().clone(), waker.clone(), random), waker)
    }

    /// Lets time pass, from timer to timer, until the condition holds.
    async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
            if holds().await {
                return;
            }
            assert!(Instant::now() < deadline, "{what} did not come true");
            if let Some(timer) = self.clock().next_timer() {
                self.clock().advance(Duration::try_from(timer.duration_since(self.clock().now())).unwrap_or_default());
            }
        }
    }

    /// Runs everything that needs no time.
    async fn now(&self) {
        for _ in 0..512 {
            tokio::task::yield_now().await;
        }
    }

    async fn done(&self, hosts: &Hosts, key: &Key) -> HostState {
        self.until("the visit's end", || async { hosts.state(key).doing.is_none() }).await;
        hosts.state(key)
    }
}

impl Transport for TestHosts {
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>> {
        Box::pin(async move {
            let address = route.host.address.clone();
            let number = {
                let mut connects = self.inner.connects.lock().unwrap();
                connects.push(address.clone());
                connects.len()
            };
            match self.behavior(&address) {
                HostBehavior::Gone(after) => {
                    let _busy = Busy::new(&self.inner);
                    self.clock().sleep(after).await;
                    return Err(ReachError::Unreachable(format!("{address}: no route")));
                }
                HostBehavior::Panics => panic!("a transport that breaks"),
                _ => {}
            }
            let found = self.inner.key.lock().unwrap().clone();
            if let Trust::Keys(keys) = &route.host.trust
                && !keys.contains(&found)
            {
                return Err(ReachError::HostKeyChanged { address, found, known: keys.len() });
            }
            self.inner.links.fetch_add(1, Ordering::SeqCst);
            let link: Box<dyn Link> = Box::new(Wire { town: self.clone(), address, number, key: found });
            Ok(link)
        })
    }
}

struct Busy<'a>(&'a Inner);

impl<'a> Busy<'a> {
    fn new(inner: &'a Inner) -> Self {
        let busy = inner.busy.fetch_add(1, Ordering::SeqCst) + 1;
        inner.busiest.fetch_max(busy, Ordering::SeqCst);
        Self(inner)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Wire {
    town: TestHosts,
    address: String,
    number: usize,
    key: String,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.town.inner.links.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Link for Wire {
    fn ask<'a>(
        &'a self,
        request: &'a Request,
        within: Duration,
        on_progress: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<Answer, LinkError>> {
        Box::pin(async move {
            let town = &self.town;
            let _busy = Busy::new(&town.inner);
            if self.number <= town.inner.cut.load(Ordering::SeqCst) {
                return Err(LinkError::Lost("closed by the other side".into()));
            }
            town.inner.asked.fetch_add(1, Ordering::SeqCst);
            match town.behavior(&self.address) {
                HostBehavior::Hangs => {
                    town.clock().sleep(within).await;
                    return Err(LinkError::TimedOut(within));
                }
                HostBehavior::Slow(time) if matches!(request, Request::Apply(_)) => {
                    for part in 1..=60 {
                        on_progress(Progress { doing: format!("part {part} of 60") });
                        town.clock().sleep(time / 60).await;
                    }
                }
                HostBehavior::Lies => return Ok(Answer::Cleaned),
                HostBehavior::Refuses => {
                    return Ok(Answer::Failed(Failure { kind: FailureKind::Fenced, message: "a newer one".into() }));
                }
                _ => {}
            }
            Ok(match request {
                Request::Observe(_) => Answer::Observed(Box::new(Observation {
                    facts: Facts { hostname: self.address.clone(), ..Facts::default() },
                    ..Observation::default()
                })),
                Request::Apply(apply) => Answer::Ended(ended(&apply.id)),
                Request::Refuse { id, .. } => {
                    Answer::Recalled(Some(StepRecord { outcome: Outcome::Refused, ..ended(id) }))
                }
                _ => Answer::Cleaned,
            })
        })
    }

    fn host_key(&self) -> &str {
        &self.key
    }

    fn open(&self) -> bool {
        true
    }
}

fn ended(id: &str) -> StepRecord {
    StepRecord {
        id: id.to_owned(),
        verb: Step::Reboot.verb(),
        component: None,
        digest: None,
        boot_id: "b".into(),
        began: 0,
        ended: Some(1),
        outcome: Outcome::Done,
        untouched: false,
        message: String::new(),
        tail: String::new(),
    }
}

fn key(name: &str) -> Key {
    Key::new("fleet", name)
}

fn route(name: &str, trust: Trust) -> Arc<Route> {
    Arc::new(Route {
        machine: name.to_owned(),
        host: Hop {
            address: name.to_owned(),
            port: 22,
            user: "root".into(),
            login: Login { key: "k".into(), certificate: None },
            trust,
        },
        jumps: Vec::new(),
        limits: transport::TransportLimits::default(),
    })
}

fn ask(hosts: &Hosts, name: &str, place: HostLocation, task: Task) -> bool {
    hosts.ask(&key(name), route(name, Trust::FirstUse), place, task)
}

fn look(hosts: &Hosts, name: &str) -> bool {
    ask(hosts, name, HostLocation::default(), Task::Observe(Observe::default()))
}

fn step(id: &str) -> Task {
    let apply = Apply { id: id.into(), claim: Claim::default(), step: Step::Reboot, within: 600, unproven: false };
    Task::Apply { apply: Box::new(apply), then: Observe::default() }
}

fn place(zone: &str, rack: &str) -> HostLocation {
    HostLocation { zone: Some(zone.into()), rack: Some(rack.into()) }
}

#[tokio::test]
async fn a_host_is_looked_at_and_its_connection_kept() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits::default());
    assert!(look(&hosts, "a"));
    assert!(!look(&hosts, "a"), "one visit at a time");
    let seen = town.done(&hosts, &key("a")).await;
    assert_eq!(seen.seen.unwrap().1.facts.hostname, "a");
    assert_eq!(seen.host_key.as_deref(), Some("ssh-ed25519 AAAA"));
    // The first key is pinned from then on: the connection is the same.
    let pinned = route("a", Trust::Keys(vec!["ssh-ed25519 AAAA root@a".into(), "ssh-rsa BBBB".into()]));
    assert!(hosts.ask(&key("a"), pinned, HostLocation::default(), step("s-1")));
    let seen = town.done(&hosts, &key("a")).await;
    assert_eq!(seen.step.unwrap().id, "s-1");
    assert_eq!((town.connects(), town.links()), (1, 1));
    // Another route is another connection.
    let other = Route {
        host: Hop { port: 2222, ..route("a", Trust::FirstUse).host.clone() },
        ..(*route("a", Trust::FirstUse)).clone()
    };
    assert!(hosts.ask(&key("a"), Arc::new(other), HostLocation::default(), Task::Observe(Observe::default())));
    town.done(&hosts, &key("a")).await;
    assert_eq!((town.connects(), town.links()), (2, 1));
}

#[tokio::test]
async fn an_unused_connection_is_closed_and_the_oldest_goes_first() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits { idle_links: 2, ..Limits::default() });
    for name in ["a", "b", "c"] {
        look(&hosts, name);
        town.done(&hosts, &key(name)).await;
    }
    assert_eq!(town.links(), 2);
    look(&hosts, "b");
    look(&hosts, "c");
    town.done(&hosts, &key("c")).await;
    town.done(&hosts, &key("b")).await;
    assert_eq!(town.connects(), 3, "b and c are still connected, a is not");
    town.until("closed", || async { town.links() == 0 }).await;
    assert_eq!(hosts.counts().idle_links, 0);
    assert_eq!(town.clock().next_timer(), None, "a timer is left for hosts that nobody asks about");
}

#[tokio::test]
async fn a_kept_connection_that_is_gone_is_recreated_without_a_word() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits::default());
    look(&hosts, "a");
    town.done(&hosts, &key("a")).await;
    town.cut();
    ask(&hosts, "a", HostLocation::default(), step("s-1"));
    let seen = town.done(&hosts, &key("a")).await;
    assert_eq!(seen.unreachable, None);
    assert_eq!(seen.step.unwrap().id, "s-1");
    assert_eq!(town.connects(), 2);
}

#[tokio::test]
async fn a_host_that_is_gone_is_tried_ever_more_rarely_until_somebody_hurries() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits::default());
    town.behave("a", HostBehavior::Gone(Duration::from_secs(10)));
    let mut waits = Vec::new();
    for attempt in 1..=12 {
        assert!(look(&hosts, "a"));
        let gone = town.done(&hosts, &key("a")).await.unreachable.unwrap();
        assert_eq!(gone.attempts, attempt);
        assert!(matches!(gone.why, UnreachableCause::Reach(ReachError::Unreachable(_))));
        assert!(!look(&hosts, "a"), "its time has not come");
        let wait = Duration::try_from(gone.not_before.duration_since(town.clock().now())).unwrap();
        waits.push(wait);
        town.clock().advance(wait);
    }
    assert!(waits[0] <= Duration::from_millis(2500), "{waits:?}");
    assert!(waits.windows(2).take(6).all(|two| two[0] < two[1]), "{waits:?}");
    assert!(waits[11] >= Duration::from_secs(225) && waits[11] <= Duration::from_secs(375), "{waits:?}");
    let since = hosts.state(&key("a")).unreachable.unwrap().since;

    look(&hosts, "a");
    town.done(&hosts, &key("a")).await;
    town.behave("a", HostBehavior::Fine);
    assert!(!look(&hosts, "a"));
    hosts.hurry(&key("a"));
    let gone = hosts.state(&key("a")).unreachable.unwrap();
    assert_eq!((gone.since, gone.attempts), (since, 13));
    assert!(look(&hosts, "a"));
    assert_eq!(town.done(&hosts, &key("a")).await.unreachable, None);
}

#[tokio::test]
async fn another_route_than_the_one_that_failed_is_tried_at_once() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits::default());
    let (old, new) =
        (route("a", Trust::Keys(vec!["old".into()])), route("a", Trust::Keys(vec!["ssh-ed25519 AAAA".into()])));
    let observe = || Task::Observe(Observe::default());
    assert!(hosts.ask(&key("a"), old.clone(), HostLocation::default(), observe()));
    let gone = town.done(&hosts, &key("a")).await.unreachable.unwrap();
    assert!(matches!(gone.why, UnreachableCause::Reach(ReachError::HostKeyChanged { known: 1, .. })), "{gone:?}");
    let wait = Duration::try_from(gone.not_before.duration_since(town.clock().now())).unwrap();
    assert!(wait > Duration::from_secs(20), "only a person can help: {wait:?}");
    assert!(!hosts.ask(&key("a"), old, HostLocation::default(), observe()));
    assert!(hosts.ask(&key("a"), new, HostLocation::default(), observe()));
    assert_eq!(town.done(&hosts, &key("a")).await.unreachable, None);
}

#[tokio::test]
async fn hosts_that_hang_cost_the_others_nothing() {
    let town = TestHosts::new();
    let limits = Limits { overall: 4, zone: 3, rack: 2, ..Limits::default() };
    let (hosts, _) = town.hosts(limits);
    // A whole rack hangs during a step, a whole zone does not answer.
    for n in 0..20 {
        town.behave(&format!("hung-{n}"), HostBehavior::Hangs);
        assert!(ask(&hosts, &format!("hung-{n}"), place("z1", "r1"), step(&format!("s-{n}"))));
        town.behave(&format!("gone-{n}"), HostBehavior::Gone(Duration::from_secs(10)));
        assert!(ask(&hosts, &format!("gone-{n}"), place("z2", &format!("r{n}")), step(&format!("s-{n}"))));
    }
    let fine: Vec<String> = (0..50).map(|n| format!("fine-{n}")).collect();
    for name in &fine {
        assert!(ask(&hosts, name, place("z3", "r1"), Task::Observe(Observe::default())));
    }
    town.until("all that work", || async { fine.iter().all(|name| hosts.state(&key(name)).seen.is_some()) }).await;
    let passed = town.clock().monotonic();
    assert!(passed <= Duration::from_secs(120), "they waited for {passed:?}: a hung step may take 630 s");
    // The hung visits end, too.
    town.until("the end of all", || async { hosts.counts().visited + hosts.counts().waiting == 0 }).await;
    assert!(matches!(hosts.state(&key("hung-7")).unreachable.unwrap().why, UnreachableCause::Lost(_)));
    assert_eq!(hosts.counts().unreachable, 40);
}

#[tokio::test]
async fn no_more_hosts_than_allowed_are_visited_at_the_same_time() {
    let town = TestHosts::new();
    let limits = Limits { overall: 10, zone: 6, rack: 2, ..Limits::default() };
    let (hosts, _) = town.hosts(limits);
    let mut names = Vec::new();
    for (zone, rack, n) in (0..90).map(|n| (n % 3, n % 9, n)) {
        let name = format!("m-{n}");
        town.behave(&name, HostBehavior::Gone(Duration::from_secs(5)));
        ask(&hosts, &name, place(&format!("z{zone}"), &format!("r{rack}")), Task::Observe(Observe::default()));
        names.push(name);
    }
    town.now().await;
    assert_eq!((hosts.counts().visited, hosts.counts().waiting), (10, 80));
    town.until("all were tried", || async { names.iter().all(|name| hosts.state(&key(name)).unreachable.is_some()) })
        .await;
    assert_eq!(town.inner.busiest.load(Ordering::SeqCst), 10);
    // Racks had their turn one after the other: the first ten visits were spread.
    let first: HashSet<usize> = town.inner.connects.lock().unwrap()[..10]
        .iter()
        .map(|name| name.trim_start_matches("m-").parse::<usize>().unwrap() % 9)
        .collect();
    assert!(first.len() >= 5, "{first:?}");
}

#[tokio::test]
async fn a_long_step_reports_its_progress_and_lets_others_go_first() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits { overall: 1, ..Limits::default() });
    town.behave("a", HostBehavior::Slow(Duration::from_secs(300)));
    ask(&hosts, "a", HostLocation::default(), step("s-1"));
    look(&hosts, "b");
    assert_eq!(hosts.state(&key("b")).doing.unwrap().since, None, "it waits for its turn");
    town.until("b was seen", || async { hosts.state(&key("b")).seen.is_some() }).await;
    let doing = hosts.state(&key("a")).doing.unwrap();
    assert_eq!((doing.what.as_str(), doing.id.as_deref()), ("reboot", Some("s-1")));
    assert!(doing.message.starts_with("part "), "{doing:?}");
    assert!(town.clock().monotonic() < Duration::from_secs(60));
    let seen = town.done(&hosts, &key("a")).await;
    assert_eq!(seen.step.unwrap().outcome, Outcome::Done);
    assert!(seen.seen.is_some(), "it is looked at in the same visit");
}

#[tokio::test]
async fn who_answers_something_else_is_not_believed() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits::default());
    town.behave("a", HostBehavior::Lies);
    ask(&hosts, "a", HostLocation::default(), step("s-1"));
    let seen = town.done(&hosts, &key("a")).await;
    assert!(!seen.cleaned && seen.step.is_none() && seen.seen.is_none());
    let UnreachableCause::Lost(why) = seen.unreachable.unwrap().why else { panic!("it was reached") };
    assert!(why.contains("invalid"), "{why}");
    assert_eq!(town.links(), 0, "nothing more is asked over that connection");

    town.behave("b", HostBehavior::Refuses);
    ask(&hosts, "b", HostLocation::default(), step("s-1"));
    let seen = town.done(&hosts, &key("b")).await;
    assert_eq!(seen.refused.unwrap().1.kind, FailureKind::Fenced);
    assert!(seen.unreachable.is_none() && seen.seen.is_none(), "a host that says no is reached, and not looked at");
}

#[tokio::test]
async fn a_host_is_cleaned_and_nothing_of_it_is_believed_any_more() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits::default());
    ask(&hosts, "a", HostLocation::default(), step("s-1"));
    town.done(&hosts, &key("a")).await;
    ask(&hosts, "a", HostLocation::default(), Task::Refuse { id: "s-2".into(), claim: Claim::default() });
    let seen = town.done(&hosts, &key("a")).await;
    assert_eq!(seen.step.unwrap().outcome, Outcome::Refused);
    ask(&hosts, "a", HostLocation::default(), Task::Clean { claim: Claim::default() });
    let seen = town.done(&hosts, &key("a")).await;
    assert!(seen.cleaned && seen.seen.is_none() && seen.step.is_none());
    assert_eq!(town.links(), 0, "the helper is gone, and so is the connection to it");
    hosts.forget(&key("a"));
    assert!(!hosts.state(&key("a")).cleaned);
}

#[tokio::test]
async fn forgotten_and_dropped_hosts_leave_nothing_running() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits { overall: 1, ..Limits::default() });
    town.behave("a", HostBehavior::Hangs);
    look(&hosts, "a");
    look(&hosts, "b");
    look(&hosts, "c");
    town.now().await;
    hosts.forget(&key("b"));
    assert_eq!(hosts.counts().waiting, 1);
    hosts.forget(&key("a"));
    town.until("c was seen", || async { hosts.state(&key("c")).seen.is_some() }).await;
    assert!(hosts.state(&key("b")).seen.is_none());

    look(&hosts, "a");
    town.now().await;
    assert!(town.links() > 0);
    let clone = hosts.clone();
    drop(hosts);
    assert!(clone.state(&key("a")).doing.is_some(), "somebody still wants to know");
    drop(clone);
    town.now().await;
    assert_eq!((town.links(), town.clock().next_timer()), (0, None));
}

#[tokio::test]
async fn a_step_that_waits_for_its_turn_can_be_recalled_and_one_that_runs_goes_on() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits { overall: 1, ..Limits::default() });
    town.behave("a", HostBehavior::Slow(Duration::from_secs(10)));
    ask(&hosts, "a", HostLocation::default(), step("s-1"));
    ask(&hosts, "b", HostLocation::default(), step("s-2"));
    look(&hosts, "c");
    town.now().await;
    hosts.recall(&key("a"));
    hosts.recall(&key("b"));
    assert_eq!((hosts.state(&key("b")).doing, hosts.counts().waiting), (None, 1));
    town.until("c was seen", || async { hosts.state(&key("c")).seen.is_some() }).await;
    assert_eq!(town.done(&hosts, &key("a")).await.step.unwrap().id, "s-1");
    assert_eq!(*town.inner.connects.lock().unwrap(), ["a", "c"], "b was visited");
    assert!(look(&hosts, "b"), "it can be asked again");
    assert!(town.done(&hosts, &key("b")).await.seen.is_some());
}

#[tokio::test]
async fn a_transport_that_breaks_ends_one_visit_only() {
    let town = TestHosts::new();
    let (hosts, _) = town.hosts(Limits { overall: 1, ..Limits::default() });
    town.behave("a", HostBehavior::Panics);
    look(&hosts, "a");
    look(&hosts, "b");
    town.until("b was seen", || async { hosts.state(&key("b")).seen.is_some() }).await;
    assert!(hosts.state(&key("a")).unreachable.is_some());
}

#[test]
fn a_runtime_that_shuts_down_in_the_middle_is_no_trouble() {
    let town = TestHosts::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let hosts = runtime.block_on(async {
        let (hosts, _) = town.hosts(Limits { overall: 3, ..Limits::default() });
        for n in 0..20 {
            town.behave(&format!("m-{n}"), HostBehavior::Hangs);
            look(&hosts, &format!("m-{n}"));
        }
        town.now().await;
        hosts
    });
    runtime.shutdown_timeout(Duration::from_secs(20));
    assert_eq!(town.links(), 0);
    drop(hosts);
}

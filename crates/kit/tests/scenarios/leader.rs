//! One leader at a time: on the embedded server in virtual time, and on the real one.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use fleetwright_apiserver::{Config, Handle, Server};
use fleetwright_kit::client::Fence;
use fleetwright_kit::leader::{self, Leader, Leading, Lease, LeaseLost};
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::{Clock, Random};
use fleetwright_lab::Target;
use fleetwright_rig::rights::grant_in;
use futures::FutureExt;
use http::{Request, Response};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as Record;
use kube::Api;
use kube::client::Body;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

const DURATION: Duration = Duration::from_secs(15);

fn noon() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

async fn server() -> Handle {
    Server::start(Config::default()).await.unwrap()
}

fn records(client: kube::Client) -> Api<Record> {
    Api::namespaced(client, "default")
}

/// What lies between a contender and the API server.
#[derive(Clone, Default)]
struct FaultyConnection(Arc<AtomicU8>);

const UP: u8 = 0;
/// Requests vanish.
const CUT: u8 = 1;
/// Requests arrive, answers vanish.
const DEAF: u8 = 2;

impl FaultyConnection {
    fn set(&self, state: u8) {
        self.0.store(state, Ordering::SeqCst);
    }

    fn around(&self, client: kube::Client, trouble: Option<Random>) -> kube::Client {
        let link = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (link, client, trouble) = (link.clone(), client.clone(), trouble.clone());
            async move {
                let luck = trouble.map_or(9, |random| random.below(10));
                let state = match luck {
                    0 => CUT,
                    1 => DEAF,
                    _ => link.0.load(Ordering::SeqCst),
                };
                if state == CUT {
                    std::future::pending::<()>().await;
                }
                let answer: Result<Response<Body>, kube::Error> = client.send(request).await;
                if state == DEAF || link.0.load(Ordering::SeqCst) != UP {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        kube::Client::new(service, "default")
    }
}

/// Whether a process runs, or is stopped as by SIGSTOP.
#[derive(Clone, Default)]
struct Paused(Arc<Mutex<(bool, Option<Waker>)>>);

impl Paused {
    fn set(&self, paused: bool) {
        let mut state = self.0.lock().unwrap();
        state.0 = paused;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

    fn is(&self) -> bool {
        self.0.lock().unwrap().0
    }

    /// The future, which stands still while paused.
    async fn around<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            if state.0 {
                state.1 = Some(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            future.as_mut().poll(context)
        })
        .await
    }
}

/// One process that wants to lead.
struct Contender {
    paused: Paused,
    clock: Clock,
    fence: Fence,
    link: FaultyConnection,
    state: watch::Receiver<Leading>,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), LeaseLost>>,
}

impl Contender {
    fn start(client: kube::Client, identity: &str, clock: Clock, trouble: Option<Random>) -> Self {
        Self::with_duration(client, identity, clock, trouble, DURATION)
    }

    fn with_duration(
        client: kube::Client,
        identity: &str,
        clock: Clock,
        trouble: Option<Random>,
        duration: Duration,
    ) -> Self {
        let (link, fence) = (FaultyConnection::default(), Fence::closed());
        let lease = Lease { namespace: "default".into(), name: "test".into(), identity: identity.into(), duration };
        let client = link.around(client, trouble);
        let leader = Leader::new(client, lease, clock.clone(), Random::seeded(1), fence.clone(), Metrics::new());
        let state = leader.watch();
        let (stop, stopped) = oneshot::channel();
        let paused = Paused::default();
        let run = tokio::spawn(paused.clone().around(leader.run(async move {
            let _ = stopped.await;
        })));
        Self { paused, clock, fence, link, state, stop: Some(stop), run }
    }

    fn holds(&self) -> bool {
        self.fence.holds(&self.clock)
    }

    fn leads(&self) -> bool {
        *self.state.borrow() == Leading::Leading
    }

    async fn leading(&self) {
        until("it leads", async || self.leads()).await;
        assert!(self.holds());
    }

    async fn standing_by(&self, behind: &str) {
        let behind = Leading::Standby { holder: Some(behind.into()) };
        until("it stands by", async || *self.state.borrow() == behind).await;
        assert!(!self.holds());
    }

    async fn stop(mut self) -> Result<(), LeaseLost> {
        let _ = self.stop.take().unwrap().send(());
        self.run.await.unwrap()
    }

    /// Dead, without giving the lease back.
    fn kill(self) {
        self.run.abort();
    }
}

async fn until(what: &str, mut ready: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !ready().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Lets everybody do what they can do now.
async fn quiet() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Moves the clock in small steps, in which everybody acts.
async fn pass(clock: &Clock, duration: Duration) {
    let step = Duration::from_millis(250);
    let end = clock.monotonic() + duration;
    while clock.monotonic() < end {
        clock.advance(step.min(end - clock.monotonic()));
        quiet().await;
    }
}

#[tokio::test]
async fn a_clean_stop_hands_over_without_time_passing() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    let two = Contender::start(server.client(), "two", clock.clone(), None);
    two.standing_by("one").await;
    let fence = one.fence.clone();
    one.stop().await.unwrap();
    assert!(!fence.holds(&clock));
    two.leading().await;
    assert_eq!(clock.monotonic(), Duration::ZERO);
    let spec = records(server.client()).get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("two"));
    assert_eq!(spec.lease_transitions, Some(1));
    assert_eq!(spec.lease_duration_seconds, Some(15));
}

#[tokio::test]
async fn a_lease_that_is_renewed_stays() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    let two = Contender::start(server.client(), "two", clock.clone(), None);
    two.standing_by("one").await;
    for _ in 0..100 {
        pass(&clock, DURATION / 5).await;
        assert!(one.holds() && !two.holds());
    }
}

#[tokio::test]
async fn a_leader_that_is_cut_off_is_fenced_before_another_leads() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    let two = Contender::start(server.client(), "two", clock.clone(), None);
    two.standing_by("one").await;
    one.link.set(CUT);
    let mut fenced = None;
    while !two.leads() {
        assert!(clock.monotonic() < 3 * DURATION, "nobody takes over");
        pass(&clock, Duration::from_millis(250)).await;
        if !one.holds() {
            fenced.get_or_insert(clock.monotonic());
        }
    }
    let fenced = fenced.expect("the first was fenced when the second began to lead");
    assert!(fenced < clock.monotonic(), "there is a margin between the two");
    let lost = one.run.await.unwrap().unwrap_err();
    assert!(lost.to_string().contains("default/test") && lost.why.contains("13.5s"), "{lost}");
}

#[tokio::test]
async fn a_renewal_without_an_answer_does_not_count() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    one.link.set(DEAF);
    pass(&clock, DURATION).await;
    assert!(!one.holds());
    let renewed = records(server.client()).get("test").await.unwrap().spec.unwrap().renew_time.unwrap().0;
    assert!(renewed > noon(), "the API server has the renewal that nobody confirmed");
    one.run.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_renewal_without_an_answer_is_no_harm_when_the_next_is_answered() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    one.link.set(DEAF);
    // Long enough for a renewal to be sent and given up.
    pass(&clock, DURATION * 7 / 10).await;
    assert!(one.holds());
    one.link.set(UP);
    pass(&clock, DURATION).await;
    assert!(one.holds() && one.leads());
}

#[tokio::test]
async fn a_paused_leader_is_fenced_when_it_wakes_and_leads_on_only_if_no_other_took_over() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    clock.advance(10 * DURATION);
    assert!(!one.holds(), "before it did anything");
    until("nobody took over, it renews", async || one.holds()).await;

    let elsewhere = Clock::manual(noon());
    let two = Contender::start(server.client(), "two", elsewhere.clone(), None);
    two.standing_by("one").await;
    pass(&elsewhere, 2 * DURATION).await;
    two.leading().await;
    clock.advance(2 * DURATION);
    assert!(!one.holds());
    let lost = one.run.await.unwrap().unwrap_err();
    assert!(lost.why.starts_with("two "), "{lost}");
    assert!(two.holds());
}

#[tokio::test]
async fn the_time_of_day_elsewhere_does_not_matter() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    for wall in ["2020-01-01T00:00:00Z", "2040-01-01T00:00:00Z"] {
        let elsewhere = Clock::manual(wall.parse().unwrap());
        let two = Contender::start(server.client(), wall, elsewhere.clone(), None);
        two.standing_by("one").await;
        for _ in 0..20 {
            pass(&clock, DURATION / 5).await;
            pass(&elsewhere, DURATION / 5).await;
            assert!(one.holds() && !two.holds());
        }
        two.kill();
    }
}

#[tokio::test]
async fn a_deleted_lease_is_recreated_and_no_other_takes_it() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    let two = Contender::start(server.client(), "two", clock.clone(), None);
    two.standing_by("one").await;
    records(server.client()).delete("test", &Default::default()).await.unwrap();
    for _ in 0..20 {
        pass(&clock, DURATION / 5).await;
        assert!(one.holds() && !two.holds());
    }
    let spec = records(server.client()).get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("one"));
}

#[tokio::test]
async fn a_lease_that_was_edited_is_still_ours() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    let note = serde_json::json!({"metadata": {"annotations": {"note": "hands off"}}});
    let patch = kube::api::Patch::Merge(&note);
    records(server.client()).patch("test", &Default::default(), &patch).await.unwrap();
    pass(&clock, 2 * DURATION).await;
    assert!(one.holds());
    let record = records(server.client()).get("test").await.unwrap();
    assert_eq!(record.metadata.annotations.unwrap()["note"], "hands off");
}

#[tokio::test]
async fn a_restarted_process_takes_its_own_lease_at_once() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let one = Contender::start(server.client(), "one", clock.clone(), None);
    one.leading().await;
    let fence = one.fence.clone();
    one.kill();
    until("a killed leader holds nothing", async || !fence.holds(&clock)).await;
    let again = Contender::start(server.client(), "one", clock.clone(), None);
    again.leading().await;
    let spec = records(server.client()).get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.lease_transitions, Some(0), "it did not change hands");
}

#[tokio::test]
async fn each_leader_has_a_higher_number_than_all_before() {
    let server = server().await;
    numbers_grow(&server.client()).await;
}

#[tokio::test]
async fn each_leader_has_a_higher_number_than_all_before_on_real() {
    let target = Target::real().await.unwrap();
    let outcome = AssertUnwindSafe(numbers_grow(&target.admin())).catch_unwind().await;
    target.stop(outcome.is_err()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

async fn numbers_grow(client: &kube::Client) {
    let ahead = Clock::manual(noon() + 3600 * Duration::from_secs(1));
    let one = Contender::start(client.clone(), "one", ahead, None);
    one.leading().await;
    let first = one.fence.number();
    one.stop().await.unwrap();
    // A clock that is behind.
    let clock = Clock::manual(noon());
    let two = Contender::start(client.clone(), "two", clock.clone(), None);
    two.leading().await;
    let second = two.fence.number();
    assert!(second > first, "{second} after {first}");
    two.kill();
    // The same name again is another process.
    let again = Contender::start(client.clone(), "two", clock, None);
    again.leading().await;
    assert!(again.fence.number() > second);
    let third = again.fence.number();
    // Also when somebody deleted the Lease: its own counters begin again, those of the API server do not.
    again.kill();
    records(client.clone()).delete("test", &Default::default()).await.unwrap();
    let last = Contender::start(client.clone(), "three", Clock::manual(noon() - 3600 * Duration::from_secs(1)), None);
    last.leading().await;
    assert!(last.fence.number() > third, "{} after {third}", last.fence.number());
    let record = records(client.clone()).get("test").await.unwrap();
    assert_eq!(record.spec.unwrap().lease_transitions, Some(0), "it begins again");
}

#[tokio::test]
async fn two_processes_under_one_name_do_not_lead_for_long() {
    let server = server().await;
    let (here, there) = (Clock::manual(noon()), Clock::manual(noon()));
    let one = Contender::start(server.client(), "same", here.clone(), None);
    one.leading().await;
    there.advance(Duration::from_millis(5));
    let two = Contender::start(server.client(), "same", there.clone(), None);
    two.leading().await;
    pass(&here, DURATION / 2).await;
    let lost = one.run.await.unwrap().unwrap_err();
    assert!(lost.why.contains("another process") && lost.why.ends_with(" same"), "{lost}");
}

#[tokio::test]
async fn a_lease_shorter_than_a_second_is_respected_for_a_whole_one() {
    let server = server().await;
    let clock = Clock::manual(noon());
    let short = Duration::from_millis(600);
    let one = Contender::with_duration(server.client(), "one", clock.clone(), None, short);
    one.leading().await;
    let two = Contender::with_duration(server.client(), "two", clock.clone(), None, short);
    two.standing_by("one").await;
    one.kill();
    clock.advance(Duration::from_millis(999));
    quiet().await;
    assert!(!two.holds());
    until("the second leads", async || {
        clock.advance(Duration::from_millis(1));
        two.holds()
    })
    .await;
}

/// Seeded: contenders are paused, cut off, killed and restarted, requests and answers get lost, clocks differ and drift.
#[tokio::test]
async fn never_two_at_once_whatever_happens() {
    let seeds: u64 = std::env::var("LEADER_SEEDS").map_or(20, |seeds| seeds.parse().unwrap());
    let mut changes = 0;
    for seed in 0..seeds {
        changes += never_two(seed).await;
    }
    assert!(changes > seeds, "the lease changed hands only {changes} times: nothing was tested");
}

async fn never_two(seed: u64) -> u64 {
    let server = server().await;
    let random = Random::seeded(seed);
    let mut born = 0;
    let mut start = |clock: Clock| {
        born += 1;
        Contender::start(server.client(), &format!("c{born}"), clock, Some(random.clone()))
    };
    let walls = ["2026-11-16T12:00:00Z", "2031-01-01T00:00:00Z", "1999-01-01T00:00:00Z"];
    // Their speeds differ by less than the margin.
    let speeds = [1.0, 1.03, 0.97];
    let mut all: Vec<_> = walls.iter().map(|wall| start(Clock::manual(wall.parse().unwrap()))).collect();
    let mut asleep = [Duration::ZERO; 3];
    let mut leader = None;
    let mut changes = 0;
    for step in 0..400 {
        let n = usize::try_from(random.below(3)).unwrap();
        match random.below(40) {
            0..=1 => all[n].paused.set(true),
            2..=4 => all[n].paused.set(false),
            5..=6 => all[n].link.set(CUT),
            7 => all[n].link.set(DEAF),
            8..=13 => all[n].link.set(UP),
            14 => {
                let clock = all[n].clock.clone();
                std::mem::replace(&mut all[n], start(clock)).kill();
            }
            _ => {}
        }
        let time = Duration::from_millis(random.below(2500));
        for n in 0..3 {
            // Time continues for a stopped contender; it notices all of it at once.
            asleep[n] += time.mul_f64(speeds[n]);
            if !all[n].paused.is() {
                all[n].clock.advance(std::mem::take(&mut asleep[n]));
            }
            // A lost lease ends the process, which is restarted.
            if all[n].run.is_finished() {
                let clock = all[n].clock.clone();
                all[n] = start(clock);
            }
        }
        for _ in 0..random.below(60) {
            tokio::task::yield_now().await;
        }
        let holding: Vec<usize> = (0..3).filter(|n| !all[*n].paused.is() && all[*n].holds()).collect();
        assert!(holding.len() <= 1, "seed {seed}, step {step}: {holding:?} may write at the same time");
        if let Some(now) = holding.first().copied()
            && leader != Some(now)
        {
            leader = Some(now);
            changes += 1;
        }
    }
    changes
}

#[tokio::test]
async fn a_lease_is_handed_over_and_runs_out_on_real() {
    on(Target::real().await.unwrap()).await;
}

#[tokio::test]
async fn a_lease_is_handed_over_and_runs_out() {
    on(Target::embedded().await.unwrap()).await;
}

async fn on(target: Target) {
    let outcome = AssertUnwindSafe(handed_over(&target)).catch_unwind().await;
    target.stop(outcome.is_err()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// In real time, with exactly the permissions that the module's page names.
async fn handed_over(target: &Target) {
    let (admin, client) = (target.admin(), target.client_as("operator", &[]).await.unwrap());
    grant_in(&admin, "default", "operator", &leader::rules("test")).await.unwrap();
    let clock = Clock::system();
    let second = Duration::from_secs(1);
    let one = Contender::with_duration(client.clone(), "one", clock.clone(), None, 120 * second);
    one.leading().await;
    let two = Contender::with_duration(client.clone(), "two", clock.clone(), None, 8 * second);
    two.standing_by("one").await;
    one.stop().await.unwrap();
    // Far less than the 120 seconds for which the first lease lasts.
    let asked = Instant::now();
    two.leading().await;
    assert!(asked.elapsed() < 60 * second, "a hand-over takes {:?}", asked.elapsed());
    // And one that is not given back runs out.
    let three = Contender::with_duration(client, "three", clock, None, 8 * second);
    three.standing_by("two").await;
    two.link.set(CUT);
    until("the third leads", async || {
        assert!(!(two.holds() && three.holds()), "two at once");
        three.leads()
    })
    .await;
    two.run.await.unwrap().unwrap_err();
    three.stop().await.unwrap();
    let spec = records(admin).get("test").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref().unwrap_or_default(), "");
    assert_eq!(spec.lease_transitions, Some(2));
}

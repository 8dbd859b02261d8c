//! Runs attempts: first those that share a server, concurrently, then each fixture with its own.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fleetwright_conformance::Ctx;
use fleetwright_lab::{ServerKind, Target, define};
use fleetwright_rig::TestServer;
use fleetwright_rig::scenario::{self, Disturbance};
use futures::{FutureExt, StreamExt, stream};

use crate::Attempt;
use crate::attempt::Run;
use crate::harness::MachineScenario;
use crate::site::JoinSite;
use crate::world::TestFleet;

/// The number of attempts that share a server at the same time.
const AT_ONCE: usize = 4;
/// The timeout of an attempt.
const LIMIT: Duration = Duration::from_secs(120);
/// A server that was attacked answers an administrator within this time, on a busy machine.
const ANSWERS: Duration = Duration::from_secs(30);

/// The slots of kube-apiserver are so few that an attempt can take all of service accounts: 13 of 30, and at most 7 that other priority levels lend.
/// The server's own controllers and administrators need none.
const FEW_SLOTS: [&str; 2] = ["--max-requests-inflight=20", "--max-mutating-requests-inflight=10"];

thread_local! {
    /// The message of the last panic on this thread.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The outcome of an attempt on each server; none where it does not run.
type Outcomes = Vec<Option<Result<(), String>>>;

/// The results of all attempts.
pub struct Report {
    servers: Vec<ServerKind>,
    rows: Vec<(Attempt, Outcomes)>,
}

impl Report {
    fn add(&mut self, name: &str, kind: ServerKind, took: Duration, result: Result<()>) {
        let result = result.map_err(|error| format!("{error:#}"));
        let said =
            result.as_ref().err().map(|error| format!("\n  {}", error.replace('\n', "\n  "))).unwrap_or_default();
        let outcome = if result.is_ok() { "held" } else { "FAILED" };
        println!("{kind}: {outcome} ({:.1} s): {name}{said}", took.as_secs_f32());
        let column = self.servers.iter().position(|server| *server == kind);
        let row = self.rows.iter_mut().find(|(attempt, _)| attempt.name == name);
        if let (Some((_, outcomes)), Some(column)) = (row, column) {
            outcomes[column] = Some(result);
        }
    }

    /// The number of attempts that held on every server, and of those that did not.
    pub fn counts(&self) -> (usize, usize) {
        let held = |(_, outcomes): &&(Attempt, Vec<Option<Result<(), String>>>)| {
            outcomes.iter().all(|outcome| matches!(outcome, Some(Ok(()))))
        };
        let held = self.rows.iter().filter(held).count();
        (held, self.rows.len() - held)
    }

    /// The attempts with their outcome on each server.
    pub fn table(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        let mut text =
            format!("| area | attempt | {} |\n|---|---|{}\n", servers.join(" | "), "---|".repeat(servers.len()));
        for (attempt, outcomes) in &self.rows {
            let outcomes = outcomes.iter().map(|outcome| match outcome {
                Some(Ok(())) => "held",
                Some(Err(_)) => "FAILED",
                None => "-",
            });
            let outcomes: Vec<&str> = outcomes.collect();
            text.push_str(&format!("| {} | {} | {} |\n", attempt.area, attempt.sentence(), outcomes.join(" | ")));
        }
        text
    }
}

/// Runs attempts on each server, one server after the other.
///
/// # Errors
/// A server or a fixture does not start.
pub async fn run(attempts: Vec<Attempt>, servers: &[ServerKind]) -> Result<Report> {
    let rows = attempts.iter().map(|attempt| (*attempt, vec![None; servers.len()])).collect();
    let mut report = Report { servers: servers.to_vec(), rows };
    std::panic::set_hook(Box::new(|info| {
        let words = info.payload();
        let text = words.downcast_ref::<&str>().copied().or(words.downcast_ref::<String>().map(String::as_str));
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PANIC.set(Some(format!("{place}: {}", text.unwrap_or("a panic without a message"))));
    }));
    for kind in servers {
        let started = Instant::now();
        on_server(&attempts, *kind, &mut report).await?;
        on_site(&attempts, *kind, &mut report).await;
        on_meta(&attempts, *kind, &mut report).await;
        on_harness(&attempts, *kind, &mut report).await?;
        println!("{kind}: done in {:.1} s", started.elapsed().as_secs_f32());
    }
    drop(std::panic::take_hook());
    Ok(report)
}

async fn guarded(work: impl Future<Output = Result<()>>) -> (Duration, Result<()>) {
    let started = Instant::now();
    let result = match tokio::time::timeout(LIMIT, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(anyhow!(PANIC.take().unwrap_or_default())),
        Err(_) => Err(anyhow!("not done after {LIMIT:?}")),
    };
    (started.elapsed(), result)
}

async fn on_server(attempts: &[Attempt], kind: ServerKind, report: &mut Report) -> Result<()> {
    let mut chosen = Vec::new();
    for (number, attempt) in attempts.iter().enumerate() {
        if let Run::Server(run) = attempt.run {
            chosen.push((number, *attempt, run));
        }
    }
    if chosen.is_empty() {
        return Ok(());
    }
    let target = match kind {
        ServerKind::Embedded => Target::embedded().await?,
        ServerKind::Real => Target::real_with(&FEW_SLOTS).await?,
    };
    let target = Arc::new(target);
    define(&target.admin(), &fleetwright_api::crds()).await?;
    let before = panics(&target).await?;
    let mut failed = false;
    for (alone, at_once) in [(false, AT_ONCE), (true, 1)] {
        let work = chosen.iter().filter(|(_, attempt, _)| attempt.alone == alone).map(|(number, attempt, run)| {
            let target = target.clone();
            async move {
                let work = async {
                    run(Ctx::new(target.clone(), *number).await?).await?;
                    alive(&target).await
                };
                (attempt.name, guarded(work).await)
            }
        });
        let mut work = stream::iter(work.collect::<Vec<_>>()).buffer_unordered(at_once);
        while let Some((name, (took, result))) = work.next().await {
            failed |= result.is_err();
            report.add(name, kind, took, result);
        }
    }
    ensure!(panics(&target).await? == before, "{kind}: a controller of the server panicked");
    if let Some(target) = Arc::into_inner(target) {
        target.stop(failed).await;
    }
    Ok(())
}

/// Checks that the server answers after the attack.
async fn alive(target: &Target) -> Result<()> {
    let request = http::Request::get("/readyz").body(kube::client::Body::empty())?;
    let answer = tokio::time::timeout(ANSWERS, target.admin().send(request)).await;
    let answer = answer.context("the server does not answer any more")??;
    ensure!(answer.status() == 200, "/readyz is {} after the attack", answer.status());
    Ok(())
}

/// The panics of controllers, which the embedded server counts.
async fn panics(target: &Target) -> Result<Vec<String>> {
    if target.kind() == ServerKind::Real {
        return Ok(Vec::new());
    }
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let page = target.admin().request_text(request).await?;
    let counted = |line: &&str| line.starts_with("apiserver_controller_panics_total");
    Ok(page.lines().filter(counted).map(str::to_owned).collect())
}

async fn on_site(attempts: &[Attempt], kind: ServerKind, report: &mut Report) {
    if !attempts.iter().any(|attempt| matches!(attempt.run, Run::JoinSite(_))) {
        return;
    }
    JoinSite::run(kind, async |site| {
        for attempt in attempts {
            if let Run::JoinSite(run) = attempt.run {
                let (took, result) = guarded(run(site)).await;
                report.add(attempt.name, kind, took, result);
            }
        }
    })
    .await;
}

async fn on_meta(attempts: &[Attempt], kind: ServerKind, report: &mut Report) {
    if !attempts.iter().any(|attempt| matches!(attempt.run, Run::Meta(_))) {
        return;
    }
    let world = TestFleet::on(kind).await;
    for attempt in attempts {
        if let Run::Meta(run) = attempt.run {
            let (took, result) = guarded(run(&world)).await;
            report.add(attempt.name, kind, took, result);
        }
    }
    world.stop().await;
}

async fn on_harness(attempts: &[Attempt], kind: ServerKind, report: &mut Report) -> Result<()> {
    if !attempts.iter().any(|attempt| matches!(attempt.run, Run::Harness(_))) {
        return Ok(());
    }
    let test_server = TestServer::start(kind).await?;
    for attempt in attempts {
        if let Run::Harness(play) = attempt.run {
            let scenario = Arc::new(MachineScenario::new(play));
            let (took, result) =
                guarded(scenario::run(&scenario, &test_server, Disturbance::None).map(|ran| ran.map(drop))).await;
            report.add(attempt.name, kind, took, result);
        }
    }
    Ok(())
}

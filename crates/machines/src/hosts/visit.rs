//! One visit of one host: connects, sends the requests of a task, and disconnects.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_kit::Key;
use fleetwright_transport::{Link, LinkError, Route};
use fleetwright_wire::{Answer, Apply, Claim, Progress, Request, Step, Verb};

use super::pool::{Pool, VisitResult};
use super::{HostLocation, Task, UnreachableCause};

/// Timeout of an observation. Health checks may run commands.
const OBSERVE_WITHIN: Duration = Duration::from_secs(120);
/// Timeout of any short request.
const SHORT_WITHIN: Duration = Duration::from_secs(60);
/// Time added to a step's timeout until its end must be reported.
const SLACK: Duration = Duration::from_secs(30);
/// Time added to all timeouts of a route: whatever a transport does, a visit ends.
const CONNECT_SLACK: Duration = Duration::from_secs(10);

/// A visit. Dropping it ends the visit and frees its place.
pub(super) struct Visit {
    pool: Arc<Pool>,
    key: Key,
    number: u64,
    route: Arc<Route>,
    /// None once the place was freed.
    place: Option<HostLocation>,
    link: Option<Box<dyn Link>>,
    /// The connection existed before: its loss says nothing about the host.
    reused: bool,
    /// The result; none if the visit was dropped before it had one.
    end: Option<Option<UnreachableCause>>,
}

impl Visit {
    pub(super) fn new(
        pool: Arc<Pool>,
        key: Key,
        number: u64,
        route: Arc<Route>,
        place: HostLocation,
        link: Option<Box<dyn Link>>,
    ) -> Self {
        let reused = link.is_some();
        Self { pool, key, number, route, place: Some(place), link, reused, end: None }
    }

    pub(super) async fn run(mut self, task: Task) {
        let why = match task {
            Task::Observe(observe) => self.ask(&Request::Observe(Box::new(observe)), OBSERVE_WITHIN).await.err(),
            Task::Apply { apply, then } => self.apply(apply, then).await.err(),
            Task::Refuse { id, claim } => self.ask(&Request::Refuse { id, claim }, SHORT_WITHIN).await.err(),
            Task::Clean { claim } => self.clean(claim).await.err(),
            Task::Release { claim } => self.ask(&Request::Release { claim }, SHORT_WITHIN).await.err(),
            Task::Claim { claim } => self.own(Request::Claim { claim }).await.err(),
            Task::Adopt { claim, from } => self.own(Request::Adopt { claim, from }).await.err(),
        };
        self.end = Some(why);
    }

    async fn apply(&mut self, apply: Box<Apply>, then: fleetwright_wire::Observe) -> Result<(), UnreachableCause> {
        let within = Duration::from_secs(apply.within).saturating_add(SLACK);
        if self.ask(&Request::Apply(apply), within).await? {
            self.ask(&Request::Observe(Box::new(then)), OBSERVE_WITHIN).await?;
        }
        Ok(())
    }

    /// Sends a claim or an adoption, and observes the host.
    async fn own(&mut self, request: Request) -> Result<(), UnreachableCause> {
        if self.ask(&request, SHORT_WITHIN).await? {
            self.ask(&Request::Observe(Box::default()), OBSERVE_WITHIN).await?;
        }
        Ok(())
    }

    async fn clean(&mut self, claim: Claim) -> Result<(), UnreachableCause> {
        self.ask(&Request::Clean { claim }, SHORT_WITHIN).await?;
        // The helper was removed with everything else: the next visit copies it again.
        self.link = None;
        Ok(())
    }

    /// Sends a request, keeps the answer, and returns whether the host carried it out.
    async fn ask(&mut self, request: &Request, within: Duration) -> Result<bool, UnreachableCause> {
        loop {
            let learnt = match self.connect().await {
                Ok(()) => self.once(request, within).await,
                Err(why) => VisitResult::Unreachable(why),
            };
            match learnt {
                VisitResult::Answer(answer) => {
                    let done = !matches!(answer, Answer::Failed(_));
                    let host_key = self.link.as_ref().map(|link| link.host_key().to_owned()).unwrap_or_default();
                    self.pool.answered(&self.key, self.number, answer, &host_key);
                    return Ok(done);
                }
                // A kept connection may have ended long ago. Repeating the request is safe: the id of a step runs once.
                VisitResult::Unreachable(UnreachableCause::Lost(_)) if self.reused => {
                    self.link = None;
                    self.reused = false;
                }
                VisitResult::Unreachable(why) => {
                    self.link = None;
                    return Err(why);
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<(), UnreachableCause> {
        if self.link.is_some() {
            return Ok(());
        }
        let limits = self.route.limits;
        // Each jump host may need the whole timeout.
        let hops = self.route.jumps.len() as u32 + 1;
        let most = (limits.connect + limits.login).saturating_mul(hops) + limits.deliver + CONNECT_SLACK;
        let pool = self.pool.clone();
        let connected = tokio::select! {
            connected = pool.transport.connect(self.route.clone()) => connected.map_err(UnreachableCause::Reach)?,
            () = pool.clock.sleep(most) => {
                let address = &self.route.host.address;
                return Err(UnreachableCause::Lost(format!("timed out connecting to {address} after {most:?}")));
            }
        };
        self.link = Some(connected);
        Ok(())
    }

    async fn once(&mut self, request: &Request, within: Duration) -> VisitResult {
        let pool = self.pool.clone();
        let Some(link) = self.link.take() else {
            return VisitResult::Unreachable(UnreachableCause::Lost("no connection to the host".into()));
        };
        let on_progress = {
            let (pool, key, number) = (pool.clone(), self.key.clone(), self.number);
            move |progress: Progress| pool.progress(&key, number, progress)
        };
        let answer = {
            let mut answer = std::pin::pin!(link.ask(request, within, &on_progress));
            let mut late = std::pin::pin!(pool.clock.sleep(within.saturating_add(SLACK)));
            let mut long = std::pin::pin!(pool.clock.sleep(pool.limits.patience));
            loop {
                tokio::select! {
                    biased;
                    answer = &mut answer => break answer,
                    () = &mut late => break Err(LinkError::TimedOut(within)),
                    () = &mut long, if self.place.is_some() => self.give_back(),
                }
            }
        };
        self.link = Some(link);
        match answer {
            Ok(answer) if answers(request, &answer) => VisitResult::Answer(answer),
            Ok(_) => {
                let nonsense = LinkError::InvalidAnswer("the answer does not match the request".to_owned());
                VisitResult::Unreachable(UnreachableCause::Lost(nonsense.to_string()))
            }
            Err(error) => {
                // Only a lost connection may have been lost before this request.
                self.reused &= matches!(error, LinkError::Lost(_));
                VisitResult::Unreachable(UnreachableCause::Lost(error.to_string()))
            }
        }
    }

    fn give_back(&mut self) {
        if let Some(place) = self.place.take() {
            self.pool.give_back(&place);
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let why = self.end.take().unwrap_or_else(|| Some(UnreachableCause::Lost("the connection was aborted".into())));
        self.pool.visit_ended(&self.key, self.number, self.route.clone(), self.link.take(), why);
        self.give_back();
    }
}

/// Whether the answer fits the request. A host may send anything.
fn answers(request: &Request, answer: &Answer) -> bool {
    match (request, answer) {
        (_, Answer::Failed(_)) => true,
        (Request::Observe(_), Answer::Observed(_)) => true,
        (Request::Apply(apply), Answer::Ended(record)) => record.id == apply.id && record.verb == apply.step.verb(),
        (Request::Refuse { id, .. }, Answer::Recalled(Some(record))) => record.id == *id,
        (Request::Clean { .. }, Answer::Cleaned) | (Request::Release { .. }, Answer::Released) => true,
        (Request::Adopt { claim, .. }, Answer::Adopted(mark)) | (Request::Claim { claim }, Answer::Claimed(mark)) => {
            mark.owner.is(&claim.owner)
        }
        _ => false,
    }
}

/// A task in words, for people, and the id of its step.
pub(super) fn describe_task(task: &Task) -> (String, Option<String>) {
    match task {
        Task::Observe(_) => ("observe".to_owned(), None),
        Task::Apply { apply, .. } => (step(&apply.step), Some(apply.id.clone())),
        Task::Refuse { id, .. } => ("query the outcome of a step".to_owned(), Some(id.clone())),
        Task::Clean { .. } => ("clean up".to_owned(), None),
        Task::Release { .. } => ("release the host".to_owned(), None),
        Task::Claim { .. } => ("claim the host".to_owned(), None),
        Task::Adopt { .. } => ("adopt the host".to_owned(), None),
    }
}

fn step(step: &Step) -> String {
    let verb = match step.verb() {
        Verb::Install => "install",
        Verb::Repair => "repair",
        Verb::Remove => "remove",
        Verb::Back => "roll back",
        Verb::Reboot => "reboot",
    };
    match step {
        Step::Install(package) | Step::Repair(package) => format!("{verb} {} {}", package.component, package.version),
        Step::Remove { component } | Step::Back { component, .. } => format!("{verb} {component}"),
        Step::Reboot => verb.to_owned(),
    }
}

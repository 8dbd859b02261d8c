//! A connection to a simulated host.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use fleetwright_host::{Host, Memory, System};
use fleetwright_transport::{Link, LinkError, TransportLimits};
use fleetwright_wire::{Answer, Apply, ComponentSeen, MAX_LINE, Observation, Outcome, Progress, Request, StepRecord};
use futures::future::BoxFuture;
use tokio::sync::{mpsc as channel, oneshot};

use crate::fleet::Busy;
use crate::host::{HelperBehavior, Network, SimHost};

/// A connection, and the helper at its other end.
pub(crate) struct SimLink {
    host: SimHost,
    key: String,
    limits: TransportLimits,
    /// The host's count of cuts when this connection was made.
    cuts: u64,
    helper: Arc<Mutex<Host<Memory>>>,
}

impl SimLink {
    pub(crate) fn new(host: SimHost, key: String, limits: TransportLimits) -> Self {
        let (cuts, helper) = (host.cuts(), Host::new(host.process()));
        Self { host, key, limits, cuts, helper: Arc::new(Mutex::new(helper)) }
    }

    fn lost(&self) -> Option<LinkError> {
        (self.host.cuts() != self.cuts).then(|| LinkError::Lost("reset by peer".to_owned()))
    }

    async fn latency(&self) {
        let fleet = &self.host.inner.fleet;
        match self.host.network() {
            Network::Slow(latency) => fleet.wait(latency).await,
            _ => fleet.wait(fleet.timing().latency).await,
        }
    }

    async fn answer(
        &self,
        request: &Request,
        within: Duration,
        on_progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Answer, LinkError> {
        let fleet = &self.host.inner.fleet;
        fleet.count_request();
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        self.latency().await;
        let silence = within.min(self.limits.silence);
        if !matches!(self.host.network(), Network::Healthy | Network::Slow(_)) {
            fleet.wait(silence).await;
            return Err(LinkError::TimedOut(silence));
        }
        match self.host.helper_behavior() {
            HelperBehavior::Normal => {}
            HelperBehavior::InvalidOutput => {
                return Err(LinkError::InvalidAnswer("`%%%` is not a valid response".to_owned()));
            }
            HelperBehavior::FalseSuccess => {
                if let Request::Apply(apply) = request {
                    return Ok(Answer::Ended(claimed(apply)));
                }
            }
            HelperBehavior::OversizedOutput => return endless(request),
        }
        let step = if matches!(request, Request::Apply(_)) { self.host.step() } else { Duration::ZERO };
        let cut = matches!(request, Request::Apply(_)) && self.host.takes_cut();
        let answer = if step.is_zero() {
            self.at_once(request, on_progress)
        } else {
            self.over_time(request, step, within, cut, on_progress).await?
        };
        if cut {
            self.host.cut();
        }
        self.latency().await;
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        match answer {
            Some(answer) => Ok(answer),
            // The process hangs and sends nothing.
            None => {
                fleet.wait(silence).await;
                Err(LinkError::TimedOut(silence))
            }
        }
    }

    fn at_once(&self, request: &Request, on_progress: &(dyn Fn(Progress) + Send + Sync)) -> Option<Answer> {
        let _busy = Busy::new(&self.host.inner.fleet);
        ask(&self.host, &self.helper, request.clone(), &mut |progress| on_progress(progress))
    }

    /// Runs the step in a thread of its own, with the wait in its middle: it continues when the connection is cut or the caller is dropped.
    async fn over_time(
        &self,
        request: &Request,
        step: Duration,
        within: Duration,
        cut: bool,
        on_progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Option<Answer>, LinkError> {
        let fleet = self.host.inner.fleet.clone();
        let (answered, mut answer) = oneshot::channel();
        let (told, mut tells) = channel::unbounded_channel();
        let (host, helper, request) = (self.host.clone(), self.helper.clone(), request.clone());
        let mut busy = Some(Busy::new(&fleet));
        let runtime = fleet.runtime.clone();
        fleet.runtime.spawn_blocking(move || {
            let mut waited = false;
            let answer = ask(&host, &helper, request, &mut |progress| {
                let _ = told.send(progress);
                if std::mem::replace(&mut waited, true) {
                    return;
                }
                let (go_on, gone_on) = mpsc::channel();
                let (fleet, busy_now) = (host.inner.fleet.clone(), busy.take());
                runtime.spawn(async move {
                    let _ = go_on.send(fleet.rest(busy_now, step).await);
                });
                busy = gone_on.recv().ok();
            });
            let _ = answered.send((answer, busy));
        });
        let silence = within.min(self.limits.silence);
        loop {
            tokio::select! {
                biased;
                Some(progress) = tells.recv() => {
                    on_progress(progress);
                    if cut {
                        self.host.cut();
                        return Err(LinkError::Lost("reset by peer".to_owned()));
                    }
                }
                answer = &mut answer => return Ok(answer.ok().and_then(|(answer, _busy)| answer)),
                () = fleet.clock.sleep(silence.max(step + silence)) => return Err(LinkError::TimedOut(silence)),
            }
        }
    }
}

/// Sends a request to the helper. None if its process died before it answered.
fn ask(
    host: &SimHost,
    helper: &Arc<Mutex<Host<Memory>>>,
    request: Request,
    on_progress: &mut dyn FnMut(Progress),
) -> Option<Answer> {
    host.sync_clock();
    let changes = matches!(request, Request::Apply(_) | Request::Clean { .. });
    let mut on_progress = |answer: Answer| {
        if let Answer::Progress(progress) = answer {
            on_progress(progress);
        }
    };
    let mut work = |helper: &mut Host<Memory>| {
        let answer = helper.answer(request.clone(), &mut on_progress);
        let gone = helper.system().gone();
        (!gone).then_some(answer)
    };
    let answer = match helper.try_lock() {
        Ok(mut helper) => work(&mut helper),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
        // While one helper is busy with a step, another one can be started.
        Err(std::sync::TryLockError::WouldBlock) => work(&mut Host::new(host.process())),
    };
    if answer.is_none() {
        let hangs = helper.try_lock().is_ok_and(|helper| {
            let process = helper.system().own_process();
            helper.system().lives(&process)
        });
        if hangs {
            // The hung helper outlives its connection: only [`SimHost::modify`] or a power failure ends it.
            host.keep_hung(helper.clone());
        } else {
            host.crashed();
        }
    }
    if changes {
        if host.machine().boot_asked() {
            host.reboot_soon();
        } else {
            host.inner.fleet.host_changed(host);
        }
    }
    answer
}

impl Link for SimLink {
    fn ask<'a>(
        &'a self,
        request: &'a Request,
        within: Duration,
        on_progress: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<Answer, LinkError>> {
        Box::pin(self.answer(request, within, on_progress))
    }

    fn host_key(&self) -> &str {
        &self.key
    }

    fn open(&self) -> bool {
        self.lost().is_none()
    }
}

/// The false record of a step that did not run.
fn claimed(apply: &Apply) -> StepRecord {
    StepRecord {
        id: apply.id.clone(),
        verb: apply.step.verb(),
        component: apply.step.component().map(str::to_owned),
        digest: None,
        boot_id: "none".to_owned(),
        began: 0,
        ended: Some(0),
        outcome: Outcome::Done,
        untouched: false,
        message: String::new(),
        tail: String::new(),
    }
}

/// An answer beyond every limit: an observation of megabytes, or a line without an end.
fn endless(request: &Request) -> Result<Answer, LinkError> {
    if !matches!(request, Request::Observe(_)) {
        return Err(LinkError::InvalidAnswer(format!("a line of more than {MAX_LINE} bytes")));
    }
    let component = ComponentSeen { component: "x".repeat(100_000), ..ComponentSeen::default() };
    let components = vec![component; 40];
    Ok(Answer::Observed(Box::new(Observation { components, ..Observation::default() })))
}

//! The controller of machines: performs the decision, one action per pass, and writes the status.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{ComponentState, Machine, MachineStatus, NodeBinding, OperationPhase, names};
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::journal::{Journal, JournalError, Progress};
use fleetwright_kit::{
    Budget, Controller, JsonPatch, Key, Next, Outages, Outcome, Pass, Remedy, StepError, View, WriteError,
};
use fleetwright_plan::join::Binding;
use fleetwright_plan::machine::{self, Act, Decision, ObservedScope, RemainingPods, StepRun, WindowRequest};
use fleetwright_wire as wire;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::Api;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::drain::ReadError;
use crate::hosts::{Hosts, Task};
use crate::join::{Credentials, JoinError};
use crate::memory::MachineMemories;
use crate::meters::Meters;
use crate::observe::{Caches, Observed};
use crate::server::ServerVersion;
use crate::view::{MachineView, NodeView, ThinNode};
use crate::window::{WindowAct, existing, windows, wished};
use crate::{drain, join, route};

/// Shortest interval between writes of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Requeue interval when the host has another task.
const BUSY_REQUEUE: Duration = Duration::from_secs(1);

/// The controller of machines.
pub struct Machines {
    pub caches: Caches,
    /// Caches of the join controller: approved certificates show which Node is a machine's own.
    pub joining: join::view::JoinCaches,
    pub hosts: Hosts,
    pub journal: Journal,
    pub memories: MachineMemories,
    pub meters: Meters,
    /// Bootstrap credentials of kubelets.
    pub credentials: Credentials,
    /// The operator's name, under which it requests windows.
    pub requester: String,
    pub check_every: Duration,
    /// Identity of this API server, once it was read: see [`cluster_id`].
    pub cluster_id: OnceCell<String>,
    /// Times when the API server did not answer.
    pub outages: Outages,
    /// Version of the API server.
    pub server: ServerVersion,
}

/// The uid of the namespace kube-system identifies an API server: the namespace is created with it, and never again.
async fn cluster_id(pass: &Pass) -> Result<String, ReadError> {
    let name = "kube-system";
    let found = Api::<Namespace>::all(pass.client()).get(name).await;
    let found = found.map_err(|error| ReadError::of(format!("Namespace {name}"), &error))?;
    Ok(found.metadata.uid.unwrap_or_default())
}

/// The claim for a change on a host: the Machine, in the observed epoch, with the fencing token of this leader.
fn claim(pass: &Pass, look: &Observed) -> wire::Claim {
    let mark = look.host.seen.as_ref().and_then(|(_, seen)| seen.owner.as_ref());
    wire::Claim { owner: look.identity.clone(), epoch: mark.map_or(0, |mark| mark.epoch), fence: pass.fence() }
}

/// Why an action was not performed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// A write failed.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// Driving the window failed.
    #[error("window: {0}")]
    Window(#[from] JournalError),
    /// The pods on the Node could not be read.
    #[error("draining: {0}")]
    Pods(#[from] ReadError),
    /// The kubelet got no credential to join with.
    #[error("joining: {0}")]
    Join(#[from] JoinError),
    /// This replica does not lead, or may have stopped leading: no request was sent to the host.
    #[error("{0}: not requested, because this replica may no longer hold the Lease")]
    NotLeading(String),
}

impl StepError for ActError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Window(error) => error.reason(),
            Self::Pods(error) => error.reason(),
            Self::Join(error) => error.reason(),
            Self::NotLeading(_) => "NotLeading",
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::Write(error) => is_fixed_elsewhere(error.remedy()),
            Self::Window(error) => is_fixed_elsewhere(error.remedy()),
            Self::Pods(error) => error.remedy(),
            Self::Join(error) => error.remedy(),
            Self::NotLeading(_) => Remedy::Retry,
        }
    }
}

/// A refusal may be fixed by a role, which no informer watches.
fn is_fixed_elsewhere(remedy: Remedy) -> Remedy {
    match remedy {
        Remedy::NeedsPerson => Remedy::Wait(Duration::from_secs(60)),
        remedy => remedy,
    }
}

/// Why the status was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the status: {0}")]
pub struct ReportError(#[from] WriteError);

impl StepError for ReportError {
    fn reason(&self) -> &'static str {
        self.0.reason()
    }

    fn remedy(&self) -> Remedy {
        is_fixed_elsewhere(self.0.remedy())
    }
}

/// When to reconcile again after an action.
pub enum Done {
    /// The end of the action wakes the machine.
    WokenLater,
    /// After that duration.
    Requeue(Duration),
    /// As the window's progress says.
    Window(Progress),
    /// A step is requested, and the status was written before: when to reconcile again for either of them.
    Runs(Option<Duration>, Option<Timestamp>),
    /// The machine is gone.
    Gone,
}

impl Controller for Machines {
    const NAME: &'static str = crate::NAME;
    /// Reads: the pods of a Node that is drained, a Node missing from the cache, whether a foreign Node has the name that a token is for, once the
    /// namespace kube-system, the version of the API server, and the reads of the journal. Writes: a window, or evictions and the taint of a Node,
    /// and the status.
    const BUDGET: Budget = Budget {
        reads: Journal::BUDGET.reads + drain::PAGES + 4,
        writes: Journal::BUDGET.writes + drain::MAX_EVICTIONS as u32 + 4,
    };

    type Found = Arc<Observed>;
    type Valid = Arc<Observed>;
    type Decision = Decision;
    type Done = Done;
    type DereferenceError = ReadError;
    type ValidateError = Infallible;
    type ActError = ActError;
    type ReportError = ReportError;

    fn about(&self, key: &Key, found: Option<&Arc<Observed>>) -> ObjectReference {
        reference::<Machine>(key, found.and_then(|look| look.machine.0.metadata.uid.as_deref()))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Arc<Observed>>, ReadError> {
        let key = pass.key();
        let Some(machine) = self.caches.machines.get(key) else {
            self.hosts.forget(key);
            self.memories.forget(key);
            return Ok(None);
        };
        // A waiting task that was decided before an edit is withdrawn: a pause, a deletion and a reverted change stop it.
        if self.memories.change(key, |memory| memory.asked_for != machine.edition()) {
            self.hosts.recall(key);
        }
        // Observations at another address, and failures of another route, say nothing about the declared host. A running visit ends first.
        let declared = route::declared(&machine.0);
        let moved =
            |memory: &mut crate::memory::MachineMemory| memory.declared.is_some() && memory.declared != declared;
        if self.memories.change(key, moved) && self.hosts.state(key).doing.is_none() {
            self.hosts.forget(key);
            self.memories.change(key, |memory| memory.declared = None);
        }
        let host = self.hosts.state(key);
        let (memory, news) = self.memories.with(key, &host, pass.now());
        if let Some(step) = news.step {
            self.meters.step(&step);
        }
        if let Some(took) = news.observed {
            self.meters.observed(took);
        }
        let identity = self.identity(pass, &machine).await?;
        let cluster = self.caches.cluster(&key.namespace);
        let wanted = self.caches.wanted(&machine, &cluster, &host);
        let server = match &wanted {
            Ok(wanted) => self.server.of(pass, &machine, wanted).await?,
            Err(_) => None,
        };
        let route = route::route(&machine.0, |name| self.caches.secrets.get(&Key::new(&key.namespace, name)));
        let node = self.node(pass, &machine).await?;
        let certified = self.joining.certified(&machine);
        let binding = machine.bind(certified, node.as_deref());
        // A Node that joined under an earlier version has the machine's certificate as well.
        let joined = matches!(&binding, Binding::Bound(bound) if bound.binding == Some(NodeBinding::Joined));
        let certified = certified.or_else(|| node.as_ref().filter(|_| joined).and_then(|node| node.created));
        Ok(Some(Arc::new(Observed {
            // Every change to a Node depends on this field: a Node that is not bound is hidden from the decision.
            node: node.filter(|_| matches!(binding, Binding::Bound(_))),
            binding,
            certified,
            leaving: self.caches.leaving(&machine, &host),
            windows: windows(&self.journal, &self.requester, &key.name),
            route: route.map(Arc::new),
            same_address: self.caches.same_address(key, &machine),
            identity,
            fence: pass.fence(),
            wanted,
            host,
            memory,
            machine,
            cluster,
            check_every: self.check_every,
            server,
            outages: self.outages.until(pass.now()).into_iter().map(|outage| (outage.from, outage.to)).collect(),
        })))
    }

    fn validate(&self, found: &Arc<Observed>) -> Result<Arc<Observed>, Infallible> {
        // Nothing to reject: invalid packages are part of the decision, and the machine's status reports them.
        Ok(Arc::clone(found))
    }

    fn decide(&self, look: &Arc<Observed>, now: Timestamp) -> Decision {
        look.known(now, |known| machine::decide(known, now))
    }

    async fn act(&self, pass: &Pass, look: &Arc<Observed>, decision: &Decision) -> Result<Done, ActError> {
        if decision.withdraw
            && let Some((key, ..)) = &look.windows.open
        {
            self.journal.withdraw(pass, key, "no longer needed").await?;
        }
        if let Some(wish) = &decision.also_ask {
            self.wish(pass, look, wish).await?;
        }
        match &decision.act {
            Act::Nothing => Ok(Done::WokenLater),
            Act::Finalize => self.finalize(pass, look).await,
            Act::Observe(observe) => {
                Ok(self.ask(pass, look, ObservedScope::of(observe), Task::Observe(observe.as_ref().clone())))
            }
            Act::RunStep(run) => {
                // Written before the step, like a journal: after a crash, the next operator reads from it what has to prove itself, and what failed.
                let later = self.write(pass, look, &decision.status).await?;
                let busy = matches!(self.run(pass, look, run).await?, Done::Requeue(_));
                Ok(Done::Runs(busy.then_some(BUSY_REQUEUE), later))
            }
            Act::Clean => {
                self.leads(pass, "cleaning the host")?;
                Ok(self.ask(pass, look, ObservedScope::default(), Task::Clean { claim: claim(pass, look) }))
            }
            Act::Release => {
                self.leads(pass, "releasing the host")?;
                Ok(self.ask(pass, look, ObservedScope::default(), Task::Release { claim: claim(pass, look) }))
            }
            Act::Claim => {
                self.leads(pass, "claiming the host")?;
                Ok(self.ask(pass, look, ObservedScope::default(), Task::Claim { claim: claim(pass, look) }))
            }
            Act::Adopt { from } => {
                self.leads(pass, "adopting the host")?;
                let claim = claim(pass, look);
                tracing::warn!(from = %from, to = %claim.owner, epoch = claim.epoch, "adopting the host");
                Ok(self.ask(pass, look, ObservedScope::default(), Task::Adopt { claim, from: from.clone() }))
            }
            Act::RequestWindow(wish) => self.wish(pass, look, wish).await,
            Act::CloseNode => {
                let window = look.windows.open.as_ref().and_then(|(_, op, _)| op.0.metadata.uid.as_deref());
                let patch = look.node.as_ref().zip(window).map(|(node, window)| node.close_patch(window));
                let closed = self.patch_node(pass, look, patch).await;
                if closed.is_ok() {
                    // Pods may have arrived while the Node was open, also in a window that closed and drained it before. Pods known to remain are
                    // listed again anyway, and their entries must stay: they have the deadline of the drain.
                    self.memories.change(pass.key(), |memory| {
                        memory.pods.take_if(|(_, pods)| pods.left.is_empty() && pods.hindered.is_none());
                    });
                }
                closed.inspect_err(|error| self.hindered(pass, look, error))
            }
            Act::Drain => {
                let drained = self.drain(pass, look).await;
                drained.inspect_err(|error| self.hindered(pass, look, error))
            }
            Act::OpenNode => self.patch_node(pass, look, look.node.as_ref().map(|node| node.open_patch())).await,
            Act::Label { set, remove } => {
                let patch = look.node.as_ref().map(|node| node.label_patch(set, remove));
                self.patch_node(pass, look, patch).await
            }
            Act::Taint { set, remove } => {
                let patch = look.node.as_ref().map(|node| node.taint_patch(set, remove));
                self.patch_node(pass, look, patch).await
            }
            Act::SetProviderId => {
                let provider_id = look.machine.0.spec.provider_id.as_deref();
                let patch = look.node.as_ref().zip(provider_id).map(|(node, id)| node.provider_patch(id));
                self.patch_node(pass, look, patch).await
            }
            Act::EndWindow { open, well, text } => {
                if *open {
                    self.patch_node(pass, look, look.node.as_ref().map(|node| node.open_patch())).await?;
                }
                let Some((_, operation, _)) = &look.windows.open else { return Ok(Done::WokenLater) };
                let act = WindowAct { intent: existing(operation), ended: Some((*well, text.clone())) };
                Ok(Done::Window(self.journal.drive(pass, &act).await?))
            }
            Act::DeleteNode => self.delete_node(pass, look).await,
            Act::ReleaseMachine { node } => {
                if *node {
                    self.delete_node(pass, look).await?;
                }
                self.release_machine(pass, look).await
            }
        }
    }

    async fn report(&self, pass: &Pass, look: &Arc<Observed>, outcome: Outcome<'_, Self>) -> Result<Next, ReportError> {
        let Outcome::Done { decision, done, .. } = outcome else { return Ok(Next::AwaitChange) };
        if matches!(done, Done::Gone) {
            return Ok(Next::AwaitChange);
        }
        let later = match done {
            Done::Runs(_, later) => *later,
            _ => self.write(pass, look, &decision.status).await?,
        };
        let retried = look.machine.0.status.as_ref().and_then(|status| status.observed_retry.as_ref());
        if decision.status.observed_retry.as_ref() != retried {
            self.hosts.hurry(pass.key());
        }
        let soon = match done {
            Done::Requeue(after) | Done::Runs(Some(after), _) => Some(pass.now() + *after),
            Done::Window(progress) => match progress.next() {
                Next::At(at) => Some(at),
                Next::After(after) => Some(pass.now() + after),
                Next::AwaitChange => None,
            },
            Done::WokenLater | Done::Runs(None, _) | Done::Gone => None,
        };
        let next = [decision.next, soon, later].into_iter().flatten().min();
        Ok(next.map_or(Next::AwaitChange, Next::At))
    }
}

impl Machines {
    /// The machine's Node. A Node missing from the cache is read from the API server: right after a start the cache may be older than the join,
    /// and without a Node no pod would be evicted.
    async fn node(&self, pass: &Pass, machine: &MachineView) -> Result<Option<Arc<NodeView>>, ReadError> {
        let name = machine.node();
        let found = self.caches.nodes.get(&Key::cluster(name));
        let known = machine.0.status.as_ref().is_some_and(|status| status.node_ref.is_some());
        if found.is_some() || !known {
            return Ok(found);
        }
        let node = Api::<ThinNode>::all(pass.client()).get_opt(name).await;
        let node = node.map_err(|error| ReadError::of(format!("Node {name}"), &error))?;
        Ok(node.map(|node| Arc::new(NodeView::of(node))))
    }

    /// The identity by which the host of a machine knows it.
    async fn identity(&self, pass: &Pass, machine: &MachineView) -> Result<wire::Owner, ReadError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let meta = &machine.0.metadata;
        let mut owner = wire::Owner {
            cluster: String::new(),
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
        };
        if machine.0.spec.ssh.is_some() {
            owner.cluster = self.cluster_id.get_or_try_init(|| cluster_id(pass)).await?.clone();
        }
        Ok(owner)
    }

    fn leads(&self, pass: &Pass, what: &str) -> Result<(), ActError> {
        if pass.leads() { Ok(()) } else { Err(ActError::NotLeading(what.to_owned())) }
    }

    /// Sends a task to the host. The answer wakes the machine.
    fn ask(&self, pass: &Pass, look: &Observed, asked: ObservedScope, task: Task) -> Done {
        let Ok(route) = &look.route else { return Done::WokenLater };
        let place = route::place(&look.machine.0);
        let took = self.hosts.ask(pass.key(), Arc::clone(route), place, task);
        if !took {
            return Done::Requeue(BUSY_REQUEUE);
        }
        let edition = look.machine.edition();
        self.memories.change(pass.key(), |memory| {
            memory.ask(asked, edition, &look.host, pass.now());
            memory.declared = route::declared(&look.machine.0);
        });
        Done::WokenLater
    }

    async fn run(&self, pass: &Pass, look: &Observed, run: &StepRun) -> Result<Done, ActError> {
        self.leads(pass, &run.id)?;
        let mut step = run.step.clone();
        if run.needs_credential
            && let wire::Step::Install(package) = &mut step
        {
            let uid = look.machine.0.metadata.uid.as_deref().unwrap_or_default();
            let node = (look.machine.node(), look.node.as_ref().map(|node| &*node.uid));
            let kubeconfig = self.credentials.credential(pass, uid, &run.id, node, &look.cluster).await?;
            for file in package.files.iter_mut().filter(|file| file.once) {
                file.content = wire::Content::Text(kubeconfig.clone());
            }
        }
        if let Some(component) = run.step.component() {
            // Health checks of the installed version prove nothing about the next one.
            self.memories.change(pass.key(), |memory| {
                memory.streaks.remove(component);
                memory.failures.remove(component);
            });
        }
        let (claim, within) = (claim(pass, look), run.within.as_secs().max(1));
        let apply = wire::Apply { id: run.id.clone(), claim, step, within, unproven: run.unproven };
        tracing::info!(step = run.id, verb = ?apply.step.verb(), component = apply.step.component(), "running step");
        let task = Task::Apply { apply: Box::new(apply), then: run.then.clone() };
        Ok(self.ask(pass, look, ObservedScope::of(&run.then), task))
    }

    async fn wish(&self, pass: &Pass, look: &Observed, wish: &WindowRequest) -> Result<Done, ActError> {
        let intent = wished(&self.journal, wish, &pass.key().name, look.machine.scopes());
        if let Some((key, operation, _)) = &look.windows.open
            && *key != self.journal.key(&intent)
        {
            // The Operation waits for work that was wanted earlier.
            let phase = operation.0.status.as_ref().map(|status| status.phase).unwrap_or_default();
            if matches!(phase, OperationPhase::Pending | OperationPhase::Granted) {
                self.journal.withdraw(pass, key, "replaced by another window").await?;
            }
        }
        Ok(Done::Window(self.journal.drive(pass, &WindowAct { intent, ended: None }).await?))
    }

    async fn patch_node(&self, pass: &Pass, look: &Observed, patch: Option<JsonPatch>) -> Result<Done, ActError> {
        if let Some(patch) = patch {
            let key = Key::cluster(look.machine.node());
            pass.writer().json_patch(&self.caches.nodes, &key, patch).await?;
        }
        Ok(Done::WokenLater)
    }

    async fn drain(&self, pass: &Pass, look: &Observed) -> Result<Done, ActError> {
        let Some((_, operation, _)) = &look.windows.open else { return Ok(Done::WokenLater) };
        let window = operation.0.metadata.uid.clone().unwrap_or_default();
        let mut tries = look.memory.tries.clone();
        let since = operation.0.status.as_ref().and_then(|status| status.started_at).unwrap_or(pass.now());
        let options = &look.machine.0.spec.drain;
        let pods = drain::drain(pass.client(), look.machine.node(), options, since, &mut tries, pass.now()).await?;
        let held = pods.left.iter().filter(|(_, why)| why.is_some()).count();
        self.meters.held(held);
        let none = pods.left.is_empty();
        self.memories.change(pass.key(), |memory| {
            memory.pods = Some((window, pods));
            memory.tries = tries;
        });
        Ok(Done::Requeue(if none { Duration::ZERO } else { Duration::from_secs(2) }))
    }

    /// Records when closing the Node, or listing its pods, first failed in this window, so that the deadline of the drain applies.
    fn hindered(&self, pass: &Pass, look: &Observed, error: &ActError) {
        let Some((_, operation, _)) = &look.windows.open else { return };
        let window = operation.0.metadata.uid.clone().unwrap_or_default();
        self.memories.change(pass.key(), |memory| {
            if memory.pods.as_ref().is_none_or(|(of, _)| *of != window) {
                let pods = RemainingPods { at: pass.now(), left: Vec::new(), hindered: Some(error.to_string()) };
                memory.pods = Some((window, pods));
            }
        });
    }

    async fn delete_node(&self, pass: &Pass, look: &Observed) -> Result<Done, ActError> {
        if let Some(node) = &look.node {
            let key = Key::cluster(look.machine.node());
            match pass.writer().delete(&self.caches.nodes, &key, &node.uid, &node.version).await {
                Ok(()) | Err(WriteError::Gone(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Done::WokenLater)
    }

    async fn finalize(&self, pass: &Pass, look: &Observed) -> Result<Done, ActError> {
        let patch = JsonPatch::add_finalizer(&look.machine.0.metadata, names::MACHINE_FINALIZER);
        pass.writer().json_patch(&self.caches.machines, pass.key(), patch).await?;
        Ok(Done::WokenLater)
    }

    async fn release_machine(&self, pass: &Pass, look: &Observed) -> Result<Done, ActError> {
        let patch = JsonPatch::new().remove_finalizer(&look.machine.0.metadata, names::MACHINE_FINALIZER);
        let Some(patch) = patch else { return Ok(Done::Gone) };
        match pass.writer().json_patch(&self.caches.machines, pass.key(), patch).await {
            Ok(()) | Err(WriteError::Gone(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Done::Gone)
    }

    /// Writes our part of the status, if it changed. Returns when to reconcile again for a change that was not worth a write yet.
    async fn write(&self, pass: &Pass, look: &Observed, new: &MachineStatus) -> Result<Option<Timestamp>, WriteError> {
        let old = machine::owned_status(&look.machine.0);
        // An observation without a change is not written, nor is another schedule: either would write to the whole fleet at once.
        let quiet = |status: &MachineStatus| MachineStatus { next_check: None, check_every: None, ..status.clone() };
        let (mut before, mut after) = (quiet(&old), quiet(new));
        before.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        if before == after {
            return Ok(None);
        }
        if let (Some(one), Some(two)) = (&mut before.progress, &mut after.progress) {
            one.message.clear();
            two.message.clear();
        }
        let soon = look.memory.wrote.map(|wrote| wrote + PROGRESS_EVERY).filter(|at| *at > pass.now());
        if before == after && soon.is_some() {
            return Ok(soon);
        }
        let version = look.machine.0.metadata.resource_version.as_deref().unwrap_or_default();
        let cached = self.caches.machines.get(pass.key());
        // A write of this very pass, such as that of the finalizer, made another resourceVersion.
        let version = cached.as_ref().and_then(|now| now.0.metadata.resource_version.as_deref()).unwrap_or(version);
        let (current, desired) = (json!(old), json!(new));
        pass.writer().apply_status(&self.caches.machines, pass.key(), version, &current, desired).await?;
        self.memories.change(pass.key(), |memory| memory.wrote = Some(pass.now()));
        self.publish_events(pass, look, &old, new).await;
        Ok(None)
    }

    async fn publish_events(&self, pass: &Pass, look: &Observed, old: &MachineStatus, new: &MachineStatus) {
        let about = reference::<Machine>(pass.key(), look.machine.0.metadata.uid.as_deref());
        for told in machine::events_between(old, new) {
            let level = match told.level {
                machine::Level::Normal => Level::Normal,
                machine::Level::Warning => Level::Warning,
            };
            match told.reason {
                "Drifted" | "DriftRecurring" => self.meters.drift("detected"),
                "Repaired" => self.meters.drift("repaired"),
                _ => {}
            }
            pass.events().publish(&about, level, told.reason, &told.message, &told.once_for).await;
        }
        for entry in &new.components {
            let before = old.components.iter().find(|before| before.component == entry.component);
            if before.map(|before| before.state) != Some(entry.state) && entry.state == ComponentState::RolledBack {
                tracing::warn!(component = entry.component, "rolled back: {}", entry.message);
            }
        }
    }
}

//! The controller of machines: the verdict becomes a taint of the Node and a condition of the Machine.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{Machine, Status, names};
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::{
    Budget, Change, Controller, Key, Next, Outcome as Ended, Pass, Remedy, StepError, View, WriteError,
};
use fleetwright_plan::readiness::verdict::{NodeAction, reason};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::{Api, ResourceExt};

use crate::fleet_state::FleetState;
use crate::meters::Meters;
use crate::observe::{BY_NODE, Caches, NodeDecision, Observed, ObservedNode};
use crate::view::{GatesView, MachineView, NodeView, ReportView};

/// Requeue interval of a machine held by the safety net: it checks for room even if no other machine woke it.
const HELD_REQUEUE: Duration = Duration::from_secs(60);
/// Requeue interval of an error that a person must fix, possibly in an object that no informer watches, such as a role.
const REFUSED_REQUEUE: Duration = Duration::from_secs(60);

/// The controller of machines.
pub struct Machines {
    pub caches: Caches,
    pub board: FleetState,
    pub meters: Meters,
}

/// Why a machine could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DereferenceError {
    /// A read from the API server failed.
    #[error("deep check: cannot read {what}: {source}")]
    ReadFailed {
        /// The object.
        what: String,
        /// The error of the API server.
        source: kube::Error,
    },
}

impl StepError for DereferenceError {
    fn reason(&self) -> &'static str {
        "DeepCheckFailed"
    }

    fn remedy(&self) -> Remedy {
        Remedy::Retry
    }
}

/// Why the Node was not opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Writing the taint failed.
    #[error("cannot write the taint: {0}")]
    Taint(#[from] WriteError),
}

impl StepError for ActError {
    fn reason(&self) -> &'static str {
        let Self::Taint(error) = self;
        error.reason()
    }

    fn remedy(&self) -> Remedy {
        let Self::Taint(error) = self;
        error.remedy()
    }
}

/// Why the verdict was not written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Writing the status failed.
    #[error("cannot write the status: {0}")]
    Status(#[from] WriteError),
}

impl StepError for ReportError {
    fn reason(&self) -> &'static str {
        let Self::Status(error) = self;
        error.reason()
    }

    fn remedy(&self) -> Remedy {
        let Self::Status(error) = self;
        // If the machine was deleted meanwhile, nothing is reported; a refusal may be fixed by a role, which no informer watches.
        match error.remedy() {
            Remedy::NeedsPerson => Remedy::Wait(REFUSED_REQUEUE),
            remedy => remedy,
        }
    }
}

impl Controller for Machines {
    const NAME: &'static str = crate::NAME;
    /// Reads: the Machine and the Node, in a deep check only. Writes: the taint and the verdict.
    const BUDGET: Budget = Budget { reads: 2, writes: 2 };

    type Found = Observed;
    type Valid = Observed;
    type Decision = NodeDecision;
    type Done = ();

    type DereferenceError = DereferenceError;
    type ValidateError = Infallible;
    type ActError = ActError;
    type ReportError = ReportError;

    fn about(&self, key: &Key, found: Option<&Observed>) -> ObjectReference {
        reference::<Machine>(key, found.map(|look| &*look.machine.uid))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Observed>, DereferenceError> {
        if pass.deep() {
            self.read_from_api_server(pass).await?;
        }
        let look = self.caches.look(pass.key());
        if look.is_none() {
            self.publish_orphans(pass).await;
        }
        Ok(look)
    }

    fn validate(&self, found: &Observed) -> Result<Observed, Infallible> {
        // Nothing to reject: the state of other objects is part of the verdict, and invalid gates select no machine.
        Ok(found.clone())
    }

    fn decide(&self, look: &Observed, now: Timestamp) -> NodeDecision {
        self.board.decide(look, now)
    }

    async fn act(&self, pass: &Pass, look: &Observed, outcome: &NodeDecision) -> Result<(), ActError> {
        let Some(turn) = outcome.decision.turn else { return Ok(()) };
        let Some(patch) = look.patch(turn, pass.now()) else { return Ok(()) };
        pass.writer().json_patch(&self.caches.nodes, &Key::cluster(&look.machine.node), patch).await?;
        let done = match turn {
            NodeAction::Open => "opened",
            NodeAction::Close => "closed",
        };
        tracing::info!(
            node = &*look.machine.node,
            reason = outcome.decision.reason,
            "{done}: {}",
            outcome.decision.message
        );
        Ok(())
    }

    async fn report(&self, pass: &Pass, look: &Observed, ended: Ended<'_, Self>) -> Result<Next, ReportError> {
        let (outcome, failed) = match ended {
            Ended::Done { decision, .. } => (decision.clone(), false),
            Ended::Failed { trouble, decision: Some(decision), .. } if trouble.remedy == Remedy::NeedsPerson => {
                (taint_failed_message(look, decision, trouble.reason, &trouble.to_string(), pass.now()), true)
            }
            // The taint is retried soon: the status must not claim what was not done, so it keeps its last verdict.
            Ended::Failed { .. } => return Ok(Next::AwaitChange),
        };
        let (current, desired) = (look.current_status(), Observed::desired_status(&outcome));
        pass.writer().apply_status(&self.caches.machines, pass.key(), &look.machine.version, &current, desired).await?;
        self.publish_node_event(pass, look, &outcome).await;
        if failed {
            return Ok(Next::After(REFUSED_REQUEUE));
        }
        let held = outcome.decision.held.then(|| pass.now() + HELD_REQUEUE);
        let next = [outcome.decision.next, held].into_iter().flatten().min();
        Ok(next.map_or(Next::AwaitChange, Next::At))
    }
}

impl Machines {
    async fn read_from_api_server(&self, pass: &Pass) -> Result<(), DereferenceError> {
        let key = pass.key();
        let machines: Api<<MachineView as View>::Object> = Api::namespaced(pass.client(), &key.namespace);
        let live = machines.get_opt(&key.name).await;
        let live = live.map_err(|source| DereferenceError::ReadFailed { what: format!("Machine {key}"), source })?;
        let cached = self.caches.machines.get(key);
        let version = live.as_ref().and_then(ResourceExt::resource_version);
        if cached.as_ref().map(|cached| &*cached.version) != version.as_deref() {
            self.meters.behind("Machine");
        }
        // Only the watch removes a deleted object from the cache: only the watch knows that it does not come back.
        let Some(live) = live else { return Ok(()) };
        self.caches.machines.written(live);
        let Some(machine) = self.caches.machines.get(key) else { return Ok(()) };
        let name = &*machine.node;
        let nodes: Api<<NodeView as View>::Object> = Api::all(pass.client());
        let live = nodes.get_opt(name).await;
        let live = live.map_err(|source| DereferenceError::ReadFailed { what: format!("Node {name}"), source })?;
        let cached = self.caches.nodes.get(&Key::cluster(name));
        let version = live.as_ref().and_then(ResourceExt::resource_version);
        if cached.as_ref().map(|cached| &*cached.version) != version.as_deref() {
            self.meters.behind("Node");
        }
        if let Some(live) = live {
            self.caches.nodes.written(live);
        }
        Ok(())
    }

    /// Publishes Events for reports on a machine that does not exist.
    async fn publish_orphans(&self, pass: &Pass) {
        let key = pass.key();
        let reports = self.caches.reports.by(crate::observe::BY_MACHINE, &key.name);
        self.board.machine_deleted(&key.name, reports.len(), pass.now());
        for (report, view) in reports {
            let about = reference::<ConfigMap>(&report, Some(&view.uid));
            let message = format!(
                "Machine {} not found in namespace {}: the report is ignored; correct its label {} or delete it",
                key.name,
                key.namespace,
                names::MACHINE
            );
            pass.events().publish(&about, Level::Normal, "MachineNotFound", &message, "").await;
        }
    }

    async fn publish_node_event(&self, pass: &Pass, look: &Observed, outcome: &NodeDecision) {
        let valid = outcome.conditions.iter().find(|condition| condition.type_ == names::REPORTS_VALID);
        let since = valid.map(|condition| condition.last_transition_time.to_string()).unwrap_or_default();
        for refused in &outcome.refused {
            let Some((name, view)) = look.reports.iter().find(|(name, _)| **name == *refused.name) else { continue };
            let key = Key { namespace: Arc::clone(&pass.key().namespace), name: Arc::clone(name) };
            let about = reference::<ConfigMap>(&key, Some(&view.uid));
            pass.events().publish(&about, Level::Warning, "ReportInvalid", &refused.why, &since).await;
        }
        if let ObservedNode::Taken(by) = &look.node {
            let about = reference::<Machine>(pass.key(), Some(&look.machine.uid));
            pass.events().publish(&about, Level::Warning, reason::NODE_CONFLICT, &outcome.decision.message, by).await;
        }
        if let ObservedNode::NotBound = &look.node {
            let about = reference::<Machine>(pass.key(), Some(&look.machine.uid));
            let message = &outcome.decision.message;
            pass.events().publish(&about, Level::Warning, reason::NODE_NOT_BOUND, message, "").await;
        }
    }
}

/// The message for a Node that could not be opened or closed: its present state, and why it is not the wanted one.
fn taint_failed_message(
    look: &Observed,
    outcome: &NodeDecision,
    reason: &str,
    trouble: &str,
    now: Timestamp,
) -> NodeDecision {
    let mut outcome = outcome.clone();
    let was = look.machine.condition(names::SCHEDULABLE).map_or(Status::Unknown, |kept| kept.status);
    let (should, status) = match outcome.decision.turn {
        Some(NodeAction::Open) => ("open", Status::False),
        Some(NodeAction::Close) | None => ("closed", was),
    };
    let message = format!("the Node should be {should}, but {trouble}; {}", outcome.decision.message);
    outcome.decision.bootstrapped = look.machine.bootstrapped.clone();
    for condition in &mut outcome.conditions {
        if condition.type_ == names::SCHEDULABLE {
            *condition = look.condition(names::SCHEDULABLE, status, reason, message.clone(), now);
        }
    }
    outcome
}

/// The machines that a change of a Machine concerns: itself, and others that claim the same Node.
pub fn wake_for_machine(caches: &Caches, change: &Change<'_, MachineView>) -> Vec<Key> {
    let mut keys = vec![change.key.clone()];
    let of = |view: Option<&Arc<MachineView>>| view.map(|view| (view.node.clone(), view.bound.clone()));
    let (old, new) = (of(change.old), of(change.new));
    if old != new {
        for (node, _) in [&old, &new].into_iter().flatten() {
            keys.extend(claims(caches, node).into_iter().filter(|key| key != change.key));
        }
    }
    keys
}

/// The machines that claim a Node.
pub fn claims(caches: &Caches, node: &str) -> Vec<Key> {
    caches.machines.by(BY_NODE, node).into_iter().map(|(key, _)| key).collect()
}

/// The machine of a report, and its machine before the change.
pub fn wake_for_report(namespace: &Arc<str>, change: &Change<'_, ReportView>) -> Vec<Key> {
    let mut machines: Vec<&Arc<str>> =
        [change.old, change.new].into_iter().flatten().map(|view| &view.machine).collect();
    machines.dedup();
    machines.into_iter().map(|name| Key { namespace: Arc::clone(namespace), name: Arc::clone(name) }).collect()
}

/// The machines that gates select, or selected before the change, if anything but the gates' status changed.
pub fn wake_for_gates(caches: &Caches, change: &Change<'_, GatesView>) -> Vec<Key> {
    if let (Some(old), Some(new)) = (change.old, change.new)
        && old.spec == new.spec
        && old.changed == new.changed
    {
        return Vec::new();
    }
    let selects =
        |machine: &MachineView| [change.old, change.new].into_iter().flatten().any(|gates| gates.selects(machine));
    let keys = caches.machines.keys().into_iter();
    keys.filter(|key| caches.machines.get(key).is_some_and(|machine| selects(&machine))).collect()
}

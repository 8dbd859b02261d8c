//! The controller of ReadinessGates: counts the machines in each state, and reports in a condition when the safety net holds machines.

use std::convert::Infallible;
use std::sync::Arc;

use fleetwright_api::{Condition, ReadinessGates, Status, condition, names};
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::{Budget, Cache, Controller, Key, Next, Outcome, Pass, Remedy, StepError, WriteError};
use fleetwright_plan::readiness::safety_net::ScopeCounts;
use fleetwright_plan::readiness::selector::InvalidSelector;
use fleetwright_plan::readiness::verdict::net_message;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use crate::fleet_state::{FleetState, Totals};
use crate::view::GatesView;

/// Scopes that a condition names.
const MAX_LISTED_SCOPES: usize = 10;

/// The controller of ReadinessGates.
pub struct Summaries {
    pub gates: Cache<GatesView>,
    pub board: FleetState,
}

/// Gates and their counts.
pub struct Found {
    name: Arc<str>,
    view: Arc<GatesView>,
    totals: Totals,
    holding: Vec<(Arc<str>, ScopeCounts)>,
}

/// Why gates select no machine.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// The selector is invalid.
    #[error("{0}; the gates select no Machine until the selector is corrected")]
    Selector(InvalidSelector),
}

impl StepError for ValidateError {
    fn reason(&self) -> &'static str {
        "SelectorInvalid"
    }

    fn remedy(&self) -> Remedy {
        Remedy::NeedsPerson
    }
}

impl Controller for Summaries {
    const NAME: &'static str = "readiness-gates";
    const BUDGET: Budget = Budget { reads: 0, writes: 1 };

    type Found = Found;
    type Valid = ();
    type Decision = ();
    type Done = ();

    type DereferenceError = Infallible;
    type ValidateError = ValidateError;
    type ActError = Infallible;
    type ReportError = WriteError;

    fn about(&self, key: &Key, found: Option<&Found>) -> ObjectReference {
        reference::<ReadinessGates>(key, found.map(|found| &*found.view.uid))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Found>, Infallible> {
        let Some(view) = self.gates.get(pass.key()) else {
            self.board.no_gates(&pass.key().name);
            return Ok(None);
        };
        let name = Arc::clone(&pass.key().name);
        let (totals, holding) = self.board.sum(&name, pass.now());
        Ok(Some(Found { name, view, totals, holding }))
    }

    fn validate(&self, found: &Found) -> Result<(), ValidateError> {
        match &found.view.selector {
            Ok(_) => Ok(()),
            Err(error) => Err(ValidateError::Selector(error.clone())),
        }
    }

    fn decide(&self, (): &(), _: Timestamp) {}

    async fn act(&self, _: &Pass, (): &(), (): &()) -> Result<(), Infallible> {
        Ok(())
    }

    async fn report(&self, pass: &Pass, found: &Found, outcome: Outcome<'_, Self>) -> Result<Next, WriteError> {
        let accepted = match &outcome {
            Outcome::Done { .. } => (Status::True, "Accepted", "the gates are active".to_owned()),
            Outcome::Failed { trouble, .. } => (Status::False, trouble.reason, trouble.source.to_string()),
        };
        let holding = holding_condition(found);
        let before =
            condition(&found.view.status.conditions, names::SAFETY_NET_ACTIVE).map(|condition| condition.status);
        let conditions = [(names::ACCEPTED, accepted), (names::SAFETY_NET_ACTIVE, holding.clone())]
            .map(|(type_, (status, reason, message))| found.condition(type_, status, reason, message, pass.now()));
        let began = conditions[1].last_transition_time.to_string();
        let desired = status(found.view.generation, found.totals, &conditions);
        let current = current(&found.view);
        pass.writer().apply_status(&self.gates, pass.key(), &found.view.version, &current, desired).await?;
        let about = self.about(pass.key(), Some(found));
        match (before, holding.0) {
            (Some(Status::True), Status::False) => {
                tracing::info!("safety net deactivated: {}", holding.2);
                pass.events().publish(&about, Level::Normal, "SafetyNetDeactivated", &holding.2, &began).await;
            }
            (Some(Status::True), _) | (_, Status::False | Status::Unknown) => {}
            (_, Status::True) => {
                tracing::warn!("safety net activated: {}", holding.2);
                let message = format!("{}; check the failing machines for a common cause", holding.2);
                pass.events().publish(&about, Level::Warning, "SafetyNetActivated", &message, &began).await;
            }
        }
        Ok(Next::AwaitChange)
    }
}

impl Found {
    fn condition(&self, type_: &str, status: Status, reason: &str, message: String, now: Timestamp) -> Condition {
        let before = condition(&self.view.status.conditions, type_).filter(|condition| condition.status == status);
        Condition {
            type_: type_.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            last_transition_time: before.map_or(now, |condition| condition.last_transition_time),
            observed_generation: Some(self.view.generation),
            reporter: None,
        }
    }
}

fn holding_condition(found: &Found) -> (Status, &'static str, String) {
    if found.holding.is_empty() {
        return (Status::False, "WithinLimits", "the safety net keeps no machine open".to_owned());
    }
    let told: Vec<String> = found
        .holding
        .iter()
        .take(MAX_LISTED_SCOPES)
        .map(|(scope, counts)| {
            format!(
                "{}: {} of {} machines in service kept open ({} failing, {} closed, limit {})",
                net_message(&found.name, scope),
                counts.held,
                counts.size,
                counts.failing,
                counts.closed,
                counts.limit
            )
        })
        .collect();
    let more = found.holding.len().saturating_sub(MAX_LISTED_SCOPES);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    (Status::True, "ClosureLimitReached", format!("{}{more}", told.join("; ")))
}

fn status(generation: i64, totals: Totals, conditions: &[Condition]) -> Value {
    json!({
        "observedGeneration": generation,
        "machines": totals.machines,
        "schedulable": totals.schedulable,
        "closed": totals.closed,
        "keptOpen": totals.held,
        "conditions": conditions,
    })
}

fn current(view: &GatesView) -> Value {
    let kept = &view.status;
    let mut conditions: Vec<&Condition> = kept.conditions.iter().collect();
    conditions.retain(|condition| [names::ACCEPTED, names::SAFETY_NET_ACTIVE].contains(&&*condition.type_));
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    json!({
        "observedGeneration": kept.observed_generation,
        "machines": kept.machines,
        "schedulable": kept.schedulable,
        "closed": kept.closed,
        "keptOpen": kept.kept_open,
        "conditions": conditions,
    })
}

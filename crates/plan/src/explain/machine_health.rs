//! What is wrong with a Machine, by its status: shared by every view of machines.

use fleetwright_api::{ComponentState, Machine, MachineStatus, Phase, Status, condition, names};

use super::health::Health;

/// Ranks below this one need attention.
const HEALTHY_RANK: u8 = 6;

/// Sort key of machines: those that need attention most come first.
pub fn rank(machine: &Machine) -> u8 {
    let Some(status) = &machine.status else { return HEALTHY_RANK + 1 };
    let is_false =
        |type_: &str| condition(&status.conditions, type_).is_some_and(|condition| condition.status == Status::False);
    let any = |state: ComponentState| status.components.iter().any(|component| component.state == state);
    match status.phase {
        _ if is_false(names::HOST_KEY_TRUSTED) || is_false(names::HOST_OWNED) => 0,
        Some(Phase::Lost) => 1,
        _ if any(ComponentState::Failed) || any(ComponentState::RolledBack) => 2,
        Some(Phase::Degraded | Phase::Repairing) => 3,
        _ if any(ComponentState::Drifted) => 4,
        _ if is_false(names::REACHABLE) => 5,
        Some(Phase::Deleting) => HEALTHY_RANK,
        Some(Phase::Converging | Phase::Claimed) | None => HEALTHY_RANK + 1,
        Some(Phase::Ready | Phase::Idle) => HEALTHY_RANK + 2,
    }
}

/// Whether the machine needs attention.
pub fn is_problem(machine: &Machine) -> bool {
    rank(machine) < HEALTHY_RANK
}

/// Health of a machine of a cluster: its Node must be schedulable.
pub fn machine(machine: &Machine) -> Health {
    let schedulable = |status: &MachineStatus| {
        condition(&status.conditions, names::SCHEDULABLE).is_none_or(|verdict| verdict.status == Status::True)
    };
    match &machine.status {
        _ if is_problem(machine) => Health::Unhealthy,
        Some(status) if status.phase == Some(Phase::Ready) && schedulable(status) => Health::Healthy,
        _ => Health::Progressing,
    }
}

/// The number of components in sync, and the number of all components.
pub fn packages(machine: &Machine) -> (usize, usize) {
    let components = machine.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
    let ready = components.iter().filter(|component| component.state == ComponentState::Ready).count();
    (ready, machine.spec.packages.len().max(components.len()))
}

/// The state of a machine in a line: the problem, else the running work.
pub fn message(machine: &Machine) -> String {
    let Some(status) = &machine.status else { return "no status yet; check that the operators are running".to_owned() };
    let said = |type_: &str| {
        let condition = condition(&status.conditions, type_).filter(|condition| condition.status == Status::False)?;
        Some(format!("{}: {}", condition.reason, condition.message))
    };
    let worst = status
        .components
        .iter()
        .find(|component| matches!(component.state, ComponentState::Failed | ComponentState::RolledBack));
    let progress = status.progress.as_ref().map(|progress| match progress.message.as_str() {
        "" => progress.step.clone(),
        message => format!("{}: {message}", progress.step),
    });
    let text = said(names::HOST_KEY_TRUSTED)
        .or_else(|| said(names::HOST_OWNED))
        .or_else(|| {
            worst.map(|component| format!("{} {:?}: {}", component.component, component.state, component.message))
        })
        .or_else(|| said(names::REACHABLE))
        .or(progress)
        .or_else(|| said(names::PACKAGES_READY))
        .or_else(|| said(names::IN_SYNC))
        .or_else(|| said(names::SCHEDULABLE));
    text.unwrap_or_default()
}

//! A preview of the steps, for people who ask before anything is done.

use std::sync::Arc;

use fleetwright_api::{ComponentState, Disruption, Machine};
use jiff::Timestamp;

use super::decide::Decider;
use super::step::{PlannedStep, Verb, changes, named};
use super::{DesiredPackages, MachineInputs, order, version};
use crate::package::Rendered;

/// All steps to the declared state, in order, as far as they can be known now.
///
/// # Errors
/// Why the steps cannot be known.
pub fn steps(known: &MachineInputs<'_>, now: Timestamp) -> Result<Vec<PlannedStep>, String> {
    let wanted = match known.wanted {
        DesiredPackages::Ready(wanted) => wanted,
        DesiredPackages::Unavailable { message, .. } => return Err(message.to_owned()),
    };
    let ordered = order(wanted).map_err(|refused| refused.message)?;
    let mut mind = Decider::new(known, now);
    let Some(seen) = known.host.seen else { return Ok(from_status(known, &ordered)) };
    let work = mind.work(&ordered, seen.observation);
    let mut steps: Vec<PlannedStep> = work.items.iter().map(|item| item.step.clone()).collect();
    if work.boots || steps.iter().any(|step| step.disruption == Disruption::Reboot && step.verb != Verb::Repair) {
        steps.push(reboot_step());
    }
    Ok(steps)
}

/// The steps from the last written status: for callers that do not reach the host.
fn from_status(known: &MachineInputs<'_>, ordered: &[&Arc<Rendered>]) -> Vec<PlannedStep> {
    let components = known.machine.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
    let mut steps = Vec::new();
    for wanted in ordered.iter().filter(|wanted| super::version_skew(wanted, known.server).is_none()) {
        let (component, to) = (&wanted.package.component, &wanted.package.version);
        let entry = components.iter().find(|entry| entry.component == *component);
        let held = entry.is_some_and(|entry| entry.failed.as_ref() == Some(&wanted.digest));
        let from = entry.and_then(|entry| entry.observed.clone());
        let ready = entry.is_some_and(|entry| entry.state == ComponentState::Ready);
        // Without the installed inputs there is nothing to compare: [`components_without_inputs`] has the component.
        let changes = entry.map(|entry| changes(&entry.inputs, &wanted.inputs())).unwrap_or_default();
        if held || ready && from.as_ref() == Some(to) && changes.is_empty() {
            continue;
        }
        let verb = match from.as_deref().map(|from| version::compare(from, to)) {
            None => Verb::Install,
            Some(std::cmp::Ordering::Less) => Verb::Upgrade,
            Some(std::cmp::Ordering::Greater) => Verb::Downgrade,
            Some(std::cmp::Ordering::Equal) if entry.is_some_and(|entry| entry.state == ComponentState::Drifted) => {
                Verb::Repair
            }
            Some(std::cmp::Ordering::Equal) => Verb::Change,
        };
        let why = match verb {
            Verb::Change if !changes.is_empty() => {
                format!("content differs from what was installed: {}", named(&changes))
            }
            _ => "as recorded when the host was last checked".to_owned(),
        };
        let (component, to) = (component.clone(), Some(to.clone()));
        steps.push(PlannedStep { component, from, to, verb, disruption: wanted.disruption, why, changes });
    }
    for entry in components.iter().filter(|entry| !ordered.iter().any(|w| w.package.component == entry.component)) {
        let left = known.leaving.get(&entry.component);
        steps.push(PlannedStep {
            component: entry.component.clone(),
            from: entry.observed.clone(),
            to: None,
            verb: Verb::Remove,
            disruption: left.map_or(Disruption::Drain, |left| left.disruption),
            why: "no longer declared".to_owned(),
            changes: Vec::new(),
        });
    }
    if steps.iter().any(|step| step.disruption == Disruption::Reboot) {
        steps.push(reboot_step());
    }
    steps
}

/// The components of which only the version can be compared without the host: an earlier version of the operator recorded nothing else.
pub fn components_without_inputs(machine: &Machine, wanted: &[Arc<Rendered>]) -> Vec<String> {
    let components = machine.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
    let known = |name: &str| components.iter().any(|entry| entry.component == name && entry.inputs.is_empty());
    wanted.iter().map(|wanted| &wanted.package.component).filter(|name| known(name)).cloned().collect()
}

fn reboot_step() -> PlannedStep {
    PlannedStep {
        component: String::new(),
        from: None,
        to: None,
        verb: Verb::Reboot,
        disruption: Disruption::Reboot,
        why: "changes take effect after a reboot".to_owned(),
        changes: Vec::new(),
    }
}

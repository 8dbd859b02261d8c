//! Planned steps and their ids.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_api::Disruption;
use fleetwright_wire as wire;
use jiff::Timestamp;
use serde::Serialize;

use crate::package::{Rendered, StepTimeouts};

/// What a step does to a component, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The component is not installed.
    Install,
    /// The installed version is older.
    Upgrade,
    /// The installed version is newer.
    Downgrade,
    /// The installed package has the same version and other content.
    Change,
    /// The component has drifted.
    Repair,
    /// The component is not declared.
    Remove,
    /// An earlier version is restored.
    GoBack,
    /// The host reboots.
    Reboot,
}

impl Verb {
    /// The verb in lower case, for people and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Downgrade => "downgrade",
            Self::Change => "change",
            Self::Repair => "repair",
            Self::Remove => "remove",
            Self::GoBack => "roll back",
            Self::Reboot => "reboot",
        }
    }
}

/// A planned step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    /// Name of the component; empty for a reboot.
    pub component: String,
    /// The installed version.
    pub from: Option<String>,
    /// The version after the step.
    pub to: Option<String>,
    /// The kind of the step.
    pub verb: Verb,
    /// The disruption of the step.
    pub disruption: Disruption,
    /// Why, for people.
    pub why: String,
    /// The rendered inputs that change, as far as they are known: files, units, scripts.
    pub changes: Vec<InputChange>,
}

/// A rendered input of a package that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputChange {
    /// Name of the input, such as `file /etc/kubernetes/kubelet.yaml`.
    pub what: String,
    /// Start of the digest of the installed content; none if it is absent.
    pub from: Option<String>,
    /// Start of the digest of the declared content; none if it is no longer declared.
    pub to: Option<String>,
}

/// The inputs that differ. Empty if the installed inputs are not recorded.
pub(super) fn changes(from: &BTreeMap<String, String>, to: &BTreeMap<String, String>) -> Vec<InputChange> {
    if from.is_empty() {
        return Vec::new();
    }
    let names: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let differs = names.into_iter().filter(|name| from.get(*name) != to.get(*name));
    differs
        .map(|name| InputChange { what: name.clone(), from: from.get(name).cloned(), to: to.get(name).cloned() })
        .collect()
}

/// The changed inputs in a few words, the first of them by name.
pub(super) fn named(changes: &[InputChange]) -> String {
    let first: Vec<&str> = changes.iter().take(3).map(|change| change.what.as_str()).collect();
    let more = changes.len().saturating_sub(first.len());
    if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") }
}

impl PlannedStep {
    /// The step in a few words: `upgrade kubelet 1.36.4 → 1.37.1`.
    pub fn text(&self) -> String {
        text(self.verb.as_str(), &self.component, self.from.as_deref(), self.to.as_deref())
    }
}

/// A step in a few words. The component of a reboot is empty.
pub(crate) fn text(verb: &str, component: &str, from: Option<&str>, to: Option<&str>) -> String {
    match (from, to) {
        _ if component.is_empty() => verb.to_owned(),
        (Some(from), Some(to)) if from != to => format!("{verb} {component} {from} → {to}"),
        (_, Some(to)) => format!("{verb} {component} {to}"),
        (Some(from), None) => format!("{verb} {component} {from}"),
        (None, None) => format!("{verb} {component}"),
    }
}

/// A planned step with all that is needed to run it.
#[derive(Clone, Debug)]
pub(super) struct StepItem<'a> {
    pub step: PlannedStep,
    pub does: StepEffect<'a>,
    /// Components that must be installed and work before.
    pub depends_on: &'a [String],
    pub times: StepTimeouts,
    /// Backoff after a failed attempt.
    pub not_before: Option<Timestamp>,
}

/// The effect of a step.
#[derive(Clone, Debug)]
pub(super) enum StepEffect<'a> {
    Install(&'a Rendered),
    Repair(&'a Rendered),
    Remove,
    Back { to: String },
}

impl StepEffect<'_> {
    /// The verb in the step's id, and the digest that distinguishes it.
    pub fn tag(&self) -> (&'static str, &str) {
        match self {
            Self::Install(rendered) => ("install", &rendered.digest),
            Self::Repair(rendered) => ("repair", &rendered.digest),
            Self::Remove => ("remove", ""),
            Self::Back { to } => ("back", to),
        }
    }

    /// The step in the form of the protocol.
    pub fn wire(&self, component: &str) -> wire::Step {
        let component = component.to_owned();
        match self {
            Self::Install(rendered) => wire::Step::Install(rendered.package.clone()),
            Self::Repair(rendered) => wire::Step::Repair(rendered.package.clone()),
            Self::Remove => wire::Step::Remove { component },
            Self::Back { to } => wire::Step::Back { component, to: to.clone() },
        }
    }
}

/// The id of a step on a component. `under` is the uid of the window's Operation, or of the machine outside of one.
pub(super) fn id(under: &str, component: &str, (verb, digest): (&str, &str), attempt: u32) -> String {
    let digest: String = digest.chars().take(8).collect();
    let dot = if digest.is_empty() { "" } else { "." };
    format!("{under}.{component}.{verb}{dot}{digest}.{attempt}")
}

/// The id of a reboot in a window.
pub(super) fn reboot_id(window: &str, number: u32) -> String {
    format!("{window}.reboot.{number}")
}

use fleetwright_api::{ReadinessGates, ReadinessGatesSpec, ReadinessGatesStatus};
use fleetwright_plan::readiness::Gates;
use fleetwright_plan::readiness::selector::{InvalidSelector, Selector};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use serde::Deserialize;

use super::thin::{Meta, thin};

/// The cached fields of ReadinessGates: nearly all, since there are few such objects.
#[derive(Clone, Debug)]
pub struct GatesView {
    /// Uid of the object.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    pub generation: i64,
    /// Creation time.
    pub created: Timestamp,
    /// When anything but its status last changed.
    pub changed: Timestamp,
    /// The parsed selector.
    pub selector: Result<Selector, InvalidSelector>,
    pub spec: ReadinessGatesSpec,
    pub status: ReadinessGatesStatus,
}

thin! {
    /// ReadinessGates that decode into their view.
    ThinGates, GatesView, Raw, ReadinessGates, NamespaceResourceScope
}

#[derive(Deserialize)]
pub(super) struct Raw {
    metadata: Meta,
    spec: ReadinessGatesSpec,
    #[serde(default)]
    status: Option<ReadinessGatesStatus>,
}

impl GatesView {
    fn read(raw: Raw) -> Self {
        let Raw { metadata, spec, status } = raw;
        Self {
            created: metadata.created(),
            changed: metadata.changed(),
            generation: metadata.generation,
            selector: Selector::read(&spec.selector),
            spec,
            status: status.unwrap_or_default(),
            uid: metadata.uid.into(),
            version: metadata.resource_version.into(),
        }
    }

    /// Whether the gates select a machine with these labels. Invalid gates select none.
    pub fn selects(&self, machine: &super::MachineView) -> bool {
        self.selector.as_ref().is_ok_and(|selector| selector.selects(|key| machine.label(key)))
    }

    /// The gates in the form of the decision.
    pub fn gates<'a>(&'a self, name: &'a str) -> Gates<'a> {
        Gates { name, created: self.created, changed: self.changed, gates: &self.spec.conditions }
    }
}

//! What is kept of objects: little, since there are tens of thousands of them.

mod gates;
mod intern;
mod machine;
mod managed;
mod node;
mod report;
mod thin;

pub use gates::GatesView;
pub use intern::intern;
pub use machine::MachineView;
pub use node::{NodeView, Touch};
pub use report::ReportView;

use std::sync::Arc;

use fleetwright_api::Status;
use fleetwright_plan::readiness::Fact;
use jiff::Timestamp;

/// A condition, as far as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What is spoken of.
    pub type_: Arc<str>,
    /// Does it hold?
    pub status: Status,
    /// One word why.
    pub reason: Arc<str>,
    /// Why, for people.
    pub message: Arc<str>,
    /// Since when.
    pub since: Timestamp,
    /// When somebody last looked.
    pub heartbeat: Option<Timestamp>,
    /// The generation that was looked at.
    pub observed_generation: Option<i64>,
    /// Who reported it.
    pub reporter: Option<Arc<str>>,
    /// Whether this operator wrote it.
    pub ours: bool,
}

impl Kept {
    /// As gates look at it. What another operator wrote is nobody's report, whatever it says.
    pub fn fact(&self) -> Fact<'_> {
        Fact {
            type_: &self.type_,
            status: self.status,
            reason: &self.reason,
            message: &self.message,
            since: self.since,
            heartbeat: self.heartbeat,
            reporter: self.reporter.as_deref().filter(|_| self.ours),
        }
    }
}

/// A status as Kubernetes writes it; anything else is unknown.
fn status(text: &str) -> Status {
    match text {
        "True" => Status::True,
        "False" => Status::False,
        _ => Status::Unknown,
    }
}

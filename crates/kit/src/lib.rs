//! The library of all operators: shared caches, a queue, conflict-free writes, leader election, a journal, a gate, errors with a remedy,
//! Events, metrics and a clean stop. The safe way is the short way.
//!
//! An operator is an [`Operator`] with caches and controllers. A [`Controller`] is five functions:
//! `dereference → validate → decide → act → report`. `decide` has no I/O and lives in the `plan` crate.
//!
//! Guarantees:
//! - one watch for each kind, however many controllers read it;
//! - a controller never acts on a cache older than its own last write;
//! - nothing is sent once the lease could have expired;
//! - time and randomness are arguments, so that a scenario runs in virtual time.

#![deny(missing_docs)]

pub mod cache;
pub mod client;
pub mod clock;
pub mod controller;
pub mod error;
pub mod events;
pub mod journal;
pub mod key;
pub mod leader;
pub mod metrics;
pub mod operator;
pub mod outages;
pub mod pass;
pub mod patch;
pub mod queue;
pub mod random;
pub mod rights;
pub mod serve;
pub mod telemetry;
pub mod waker;
pub mod write;

pub use cache::{Cache, Change, FullObject, Source, View};
pub use clock::Clock;
pub use controller::{Budget, Controller, Next, Options, Outcome};
pub use error::{Remedy, ReportedError, Step, StepError};
pub use key::Key;
pub use operator::{Idle, Operator, Settings};
pub use outages::{Outage, Outages};
pub use pass::{Ending, Pass, PassRecord};
pub use patch::JsonPatch;
pub use random::Random;
pub use waker::Waker;
pub use write::WriteError;

//! One suite of cases that the embedded API server and kube-apiserver both pass.
//!
//! A case is an async function named by a sentence. It gets a [`Ctx`] with a namespace of its own, asserts what a user would
//! notice, and fails by returning an error or by panicking. The real server is the measure: a case that it fails is a wrong case.

#[macro_use]
mod case;
pub mod cases;
mod crd;
mod ctx;
pub mod kubectl;
mod reply;
mod report;
mod runner;
mod watch;

pub use case::Case;
pub use crd::Crd;
pub use ctx::{Call, Ctx, PatchType, eventually};
pub use fleetwright_lab::{ServerKind, Target};
pub use reply::Reply;
pub use report::{Outcome, Report, Row};
pub use runner::{Options, run};
pub use watch::Watch;

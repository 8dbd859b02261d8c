//! The ways of installing: one module each, behind one trait.

use std::time::Duration;

use fleetwright_wire::{Deviation, Package};

use crate::System;

/// What a method is given to work with.
pub struct Work<'a> {
    /// The host.
    pub system: &'a mut dyn System,
    /// The package.
    pub package: &'a Package,
    /// What was installed before it, if anything was.
    pub before: Option<&'a Package>,
    /// Where fetched files are kept, by digest.
    pub cache: &'a str,
    /// At most so long, for all of it.
    pub within: Duration,
    /// Tells people how far it is.
    pub tell: &'a mut dyn FnMut(String),
    /// What was printed by what was run, bounded to its end.
    pub tail: String,
}

/// Why a method could not do its work. For people: what failed, on what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MethodError(pub String);

/// One way of installing. Files and units of the package are not its business: the same code keeps those for all methods.
///
/// Every function may be called again after it was interrupted anywhere: it finds what is there and goes on from it.
pub trait Method {
    /// The version that is there now, whoever brought it; none if nothing is.
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError>;

    /// How the host differs from the package. Changes nothing.
    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError>;

    /// Whether a boot is needed before the package is in place.
    fn needs_reboot(&self, _system: &dyn System, _package: &Package) -> Result<bool, MethodError> {
        Ok(false)
    }

    /// Fetches and checks everything that [`Method::apply`] needs, without changing what runs.
    fn prepare(&self, work: &mut Work<'_>) -> Result<(), MethodError>;

    /// Brings the host to the package, from what is there. True if something changed that units must be restarted for.
    fn apply(&self, work: &mut Work<'_>) -> Result<bool, MethodError>;

    /// Takes it away again: everything that apply brought and nothing else.
    fn remove(&self, work: &mut Work<'_>) -> Result<(), MethodError>;
}

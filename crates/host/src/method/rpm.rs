//! RPM packages.

use fleetwright_wire::{Deviation, Package};

use super::{Method, MethodError, Work};
use crate::System;

/// See the module.
pub(super) struct Rpm;

impl Method for Rpm {
    fn version(&self, _system: &dyn System, _package: &Package) -> Result<Option<String>, MethodError> {
        Err(not_yet())
    }

    fn deviations(&self, _system: &dyn System, _package: &Package) -> Result<Vec<Deviation>, MethodError> {
        Err(not_yet())
    }

    fn prepare(&self, _work: &mut Work<'_>) -> Result<(), MethodError> {
        Err(not_yet())
    }

    fn apply(&self, _work: &mut Work<'_>) -> Result<bool, MethodError> {
        Err(not_yet())
    }

    fn remove(&self, _work: &mut Work<'_>) -> Result<(), MethodError> {
        Err(not_yet())
    }
}

fn not_yet() -> MethodError {
    MethodError("rpm is not served yet".to_owned())
}

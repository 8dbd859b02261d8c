//! Files and units alone: there is nothing for a method to do.

use fleetwright_wire::{Deviation, Package};

use super::{Method, MethodContext, MethodError};
use crate::System;

/// The method `config`; see the module.
pub(super) struct Config;

impl Method for Config {
    /// The files alone show whether the package is installed; it has no other version.
    fn version(&self, _system: &dyn System, _package: &Package) -> Result<Option<String>, MethodError> {
        Ok(None)
    }

    fn deviations(&self, _system: &dyn System, _package: &Package) -> Result<Vec<Deviation>, MethodError> {
        Ok(Vec::new())
    }

    fn prepare(&self, _work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        Ok(())
    }

    fn apply(&self, _work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        Ok(false)
    }

    fn remove(&self, _work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        Ok(())
    }
}

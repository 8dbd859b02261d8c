//! Files and units alone: there is nothing for a method to do.

use fleetwright_wire::{Deviation, Package};

use super::{Method, MethodContext, MethodError};
use crate::System;

/// See the module.
pub(super) struct Config;

impl Method for Config {
    /// What is there is told by the files; the version is whatever they make it.
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

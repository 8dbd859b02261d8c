//! The host is rebooted once for this version. The reboot itself is a step of its own, so that the operator can drain the Node first.

use fleetwright_wire::{Deviation, Package};

use super::{Method, MethodContext, MethodError, folder};
use crate::System;

/// The method `reboot`; see the module.
pub(super) struct Reboot;

impl Method for Reboot {
    fn version(&self, _system: &dyn System, _package: &Package) -> Result<Option<String>, MethodError> {
        Ok(None)
    }

    fn deviations(&self, _system: &dyn System, _package: &Package) -> Result<Vec<Deviation>, MethodError> {
        Ok(Vec::new())
    }

    /// While the host still runs in the boot in which this version was installed.
    fn needs_reboot(&self, system: &dyn System, package: &Package) -> Result<bool, MethodError> {
        let path = path(&folder(&package.component));
        let noted = system.read(&path, 1024).map_err(MethodError::io(&path))?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&noted) == note(system, package)?)
    }

    fn prepare(&self, _work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        Ok(())
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        let path = path(work.folder);
        let noted = work.system.read(&path, 1024).map_err(MethodError::io(&path))?.unwrap_or_default();
        // Recorded before, in this boot or an earlier one: one reboot is enough.
        if String::from_utf8_lossy(&noted).split(' ').next() == Some(&work.package.digest()) {
            return Ok(false);
        }
        let note = note(work.system, work.package)?;
        work.system.write(&path, note.as_bytes(), 0o600, "root", "root").map_err(MethodError::io(&path))?;
        Ok(false)
    }

    fn remove(&self, _work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        Ok(())
    }
}

fn path(folder: &str) -> String {
    format!("{folder}/reboot")
}

fn note(system: &dyn System, package: &Package) -> Result<String, MethodError> {
    let boot = system.facts().map_err(MethodError::io("facts"))?.boot_id;
    Ok(format!("{} {boot}", package.digest()))
}

//! Keeps maintainer scripts from changing services for the length of a transaction.

use super::{MethodContext, MethodError};
use crate::System;

/// Maintainer scripts run this program before they start, stop or restart a service.
pub(super) const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While this file exists, no script changes a service: the package's units alone decide what runs. 101 is "forbidden".
const DENIED: &str = "#!/bin/sh\n# Written by Fleetwright for the length of one transaction. May be removed when no step runs.\nexit 101\n";

pub(super) fn policy_is_ours(system: &dyn System) -> Result<bool, MethodError> {
    Ok(system
        .read(POLICY, 64 << 10)
        .map_err(MethodError::io(POLICY))?
        .is_some_and(|content| content == DENIED.as_bytes()))
}

/// An existing policy belongs to a person, and stays.
pub(super) fn deny_services(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    if work.system.stat(POLICY).map_err(MethodError::io(POLICY))?.is_some() {
        return Ok(());
    }
    work.system.write(POLICY, DENIED.as_bytes(), 0o755, "root", "root").map_err(MethodError::io(POLICY))
}

pub(super) fn allow_services(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    if policy_is_ours(work.system)? {
        work.system.remove(POLICY).map_err(MethodError::io(POLICY))?;
    }
    Ok(())
}

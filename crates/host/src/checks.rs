//! Health checks of components.

use std::time::Duration;

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{Check, CheckSeen};

use crate::System;
use crate::method::{SHELL, ended};
use crate::system::ProgramRun;

/// Timeout of a check; then it has failed. Checks are repeated, and a hanging one must not delay the others.
const WITHIN: Duration = Duration::from_secs(10);

/// Runs one check.
pub(crate) fn ask(system: &dyn System, check: &Check) -> CheckSeen {
    let (name, seen) = match check {
        Check::Unit(unit) => (format!("unit {unit}"), unit_active(system, unit)),
        Check::Tcp(address) => {
            let seen = system.connects(address, WITHIN);
            (
                format!("tcp {address}"),
                seen.map(|()| "accepts connections".to_owned()).map_err(|error| error.to_string()),
            )
        }
        Check::Http(url) => (format!("http {url}"), http(system, url)),
        Check::Command(command) => {
            let first = command.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            (format!("command {}", truncate_bytes(first.trim(), 60)), runs(system, command))
        }
    };
    let holds = seen.is_ok();
    let message = truncate_bytes(&seen.unwrap_or_else(|message| message), 500);
    CheckSeen { check: truncate_bytes(&name, 200), holds, message }
}

fn unit_active(system: &dyn System, unit: &str) -> Result<String, String> {
    let state = system.unit(unit).map_err(|error| error.to_string())?;
    match (state.exists, state.active.as_str()) {
        (true, "active") => Ok(state.active),
        (true, _) => Err(state.active),
        (false, _) => Err("absent".to_owned()),
    }
}

fn http(system: &dyn System, url: &str) -> Result<String, String> {
    let status = system.http_status(url, WITHIN).map_err(|error| error.to_string())?;
    let message = format!("status {status}");
    if (200..300).contains(&status) { Ok(message) } else { Err(message) }
}

fn runs(system: &dyn System, command: &str) -> Result<String, String> {
    let run = ProgramRun { argv: SHELL, input: command.as_bytes(), env: &[], within: WITHIN };
    let ran = system.look(&run).map_err(|error| error.to_string())?;
    if ran.ok() { Ok("exited with 0".to_owned()) } else { Err(ended(&ran)) }
}

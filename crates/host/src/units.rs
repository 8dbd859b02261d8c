//! The units of packages.

use std::collections::BTreeSet;
use std::time::Duration;

use fleetwright_wire::{Deviation, Package, Unit};

use crate::System;
use crate::files;
use crate::method::MethodError;
use crate::store::{ComponentRecord, FormerUnit};
use crate::system::{ProgramRun, UnitState, UnitVerb};
use crate::text::Tail;

/// The deviations of the host from a package's units.
pub(crate) fn deviations(system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
    let mut deviations = Vec::new();
    for unit in &package.units {
        let state = system.unit(&unit.name).map_err(MethodError::io(&unit.name))?;
        let name = &unit.name;
        let mut differs = |what: &str, found: &str, wanted: &str, disrupts| {
            deviations.push(Deviation {
                what: format!("unit {name}{what}"),
                found: found.to_owned(),
                wanted: wanted.to_owned(),
                disrupts,
            });
        };
        if !state.exists && (unit.enabled.is_some() || unit.running.is_some()) {
            differs("", "absent", "present", false);
            continue;
        }
        if let Some(wanted) = unit.enabled
            && !enabled_as(&state, wanted)
        {
            differs(" at boot", &state.enabled, if wanted { "enabled" } else { "disabled" }, false);
        }
        match unit.running {
            // Starting a unit that is down disrupts nothing.
            Some(true) if state.restarting => differs("", "waiting for a restart after it exited", "active", false),
            Some(true) if !runs(&state) => differs("", &state.active, "active", false),
            Some(false) if is_up(&state) => differs("", &state.active, "inactive", true),
            _ => {}
        }
        if state.needs_reload {
            differs(" files", "changed since the last daemon-reload", "loaded by systemd", unit.running == Some(true));
        }
    }
    Ok(deviations)
}

/// The units that a package wants running and that do not run.
pub(crate) fn down(system: &dyn System, package: &Package) -> Result<Vec<String>, MethodError> {
    let mut down = Vec::new();
    for unit in package.units.iter().filter(|unit| unit.running == Some(true)) {
        if !runs(&system.unit(&unit.name).map_err(MethodError::io(&unit.name))?) {
            down.push(unit.name.clone());
        }
    }
    Ok(down)
}

/// Whether the unit runs, or is just being started. A unit in a restart loop does not run.
fn runs(state: &UnitState) -> bool {
    is_up(state) && !state.restarting
}

/// Whether systemd has started the unit, or will soon: a unit that must not run is stopped.
fn is_up(state: &UnitState) -> bool {
    matches!(state.active.as_str(), "active" | "activating" | "reloading")
}

/// Units that cannot be enabled are started by other units: that counts as enabled.
fn enabled_as(state: &UnitState, wanted: bool) -> bool {
    match state.enabled.as_str() {
        "enabled" | "enabled-runtime" => wanted,
        "static" | "indirect" | "generated" | "alias" | "transient" => true,
        _ => !wanted,
    }
}

/// Records the earlier state of units. The record must be saved before a unit is changed.
pub(crate) fn take_over(
    system: &dyn System,
    state: &mut ComponentRecord,
    package: &Package,
) -> Result<(), MethodError> {
    for unit in &package.units {
        if state.units.contains_key(&unit.name) {
            continue;
        }
        let now = system.unit(&unit.name).map_err(MethodError::io(&unit.name))?;
        let enabled = now.enabled == "enabled";
        state.units.insert(unit.name.clone(), FormerUnit { exists: now.exists, enabled, active: is_up(&now) });
    }
    Ok(())
}

/// The tools for changing units.
pub(crate) struct UnitTools<'a> {
    pub system: &'a mut dyn System,
    /// The changes made, for people.
    pub done: &'a mut Vec<String>,
    /// The deadline of the step.
    pub until: Duration,
    /// The output of the step.
    pub log: &'a mut Tail,
}

impl UnitTools<'_> {
    fn act(&mut self, name: &str, verb: UnitVerb, did: &str) -> Result<(), MethodError> {
        let left = self.until.saturating_sub(self.system.elapsed());
        if left.is_zero() {
            return Err(MethodError(format!("unit {name} was not {did}: the step timed out")));
        }
        if let Err(error) = self.system.unit_do(name, verb, left) {
            self.last_words(name);
            return Err(MethodError(format!("unit {name} could not be {did}: {error}")));
        }
        self.done.push(format!("{did} {name}"));
        Ok(())
    }

    /// The unit's own log helps people; systemd only reports that the unit failed.
    fn last_words(&mut self, name: &str) {
        let argv = ["journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=30", "--unit", name];
        let within = Duration::from_secs(10);
        if let Ok(said) = self.system.look(&ProgramRun { argv: &argv, input: b"", env: &[], within }) {
            self.log.push(&format!("── {name}"));
            self.log.push(&said.stdout);
        }
    }

    fn state(&self, name: &str) -> Result<UnitState, MethodError> {
        self.system.unit(name).map_err(MethodError::io(name))
    }

    /// Reloads systemd's unit files if some changed.
    pub(crate) fn reload(&mut self, package: Option<&Package>, files_changed: bool) -> Result<(), MethodError> {
        let mut needed = files_changed;
        for unit in package.iter().flat_map(|package| &package.units) {
            needed = needed || self.state(&unit.name)?.needs_reload;
        }
        if needed {
            self.system.reload_units().map_err(MethodError::io("systemctl daemon-reload"))?;
        }
        Ok(())
    }

    /// Brings a package's units to their wanted state. Running units are restarted if `all` is set or one of these files changed for them.
    pub(crate) fn bring(
        &mut self,
        package: &Package,
        changed: &BTreeSet<String>,
        all: bool,
    ) -> Result<(), MethodError> {
        for unit in &package.units {
            self.bring_one(unit, all || changed_for(package, unit, changed))?;
        }
        Ok(())
    }

    fn bring_one(&mut self, unit: &Unit, restart: bool) -> Result<(), MethodError> {
        let state = self.state(&unit.name)?;
        if !state.exists {
            // A missing unit that must not run needs no change; one that is wanted is an error.
            if unit.enabled != Some(true) && unit.running != Some(true) {
                return Ok(());
            }
            return Err(MethodError(format!(
                "unit {} not found: neither the package nor its method provides it",
                unit.name
            )));
        }
        match unit.enabled {
            Some(true) if !enabled_as(&state, true) => self.act(&unit.name, UnitVerb::Enable, "enabled")?,
            Some(false) if !enabled_as(&state, false) => self.act(&unit.name, UnitVerb::Disable, "disabled")?,
            _ => {}
        }
        match unit.running {
            Some(true) if is_up(&state) && restart => self.act(&unit.name, UnitVerb::Restart, "restarted"),
            Some(true) if !runs(&state) => self.act(&unit.name, UnitVerb::Start, "started"),
            Some(false) if is_up(&state) => self.act(&unit.name, UnitVerb::Stop, "stopped"),
            _ => Ok(()),
        }
    }

    /// Stops and disables one of our units before its files are removed.
    pub(crate) fn take_down(&mut self, name: &str, was: &FormerUnit) -> Result<(), MethodError> {
        if was.exists {
            return Ok(());
        }
        let state = self.state(name)?;
        if is_up(&state) || state.active == "failed" {
            self.act(name, UnitVerb::Stop, "stopped")?;
        }
        if state.exists && state.enabled.starts_with("enabled") {
            self.act(name, UnitVerb::Disable, "disabled")?;
        }
        Ok(())
    }

    /// Restores the state of a unit from before our first change, after its files are restored.
    pub(crate) fn put_back(&mut self, name: &str, was: &FormerUnit) -> Result<(), MethodError> {
        let state = self.state(name)?;
        if !was.exists || !state.exists {
            return Ok(());
        }
        if !enabled_as(&state, was.enabled) {
            let (verb, did) = if was.enabled { (UnitVerb::Enable, "enabled") } else { (UnitVerb::Disable, "disabled") };
            self.act(name, verb, did)?;
        }
        match (was.active, is_up(&state)) {
            // The unit ran with our settings: now it restarts with its own.
            (true, true) => self.act(name, UnitVerb::Restart, "restarted"),
            (true, false) => self.act(name, UnitVerb::Start, "started"),
            (false, true) => self.act(name, UnitVerb::Stop, "stopped"),
            (false, false) => Ok(()),
        }
    }
}

/// Whether a unit must be restarted because these files changed.
fn changed_for(package: &Package, unit: &Unit, changed: &BTreeSet<String>) -> bool {
    let own = files::wanted(package)
        .into_iter()
        .filter(|wanted| wanted.unit == Some(&unit.name))
        .any(|own| changed.contains(&own.path));
    own || unit.restart_on.iter().any(|path| changed.contains(path))
}

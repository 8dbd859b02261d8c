//! systemd, as far as a host in memory needs it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::content::name;
use super::machine::Machine;
use crate::system::{PathKind, UnitState, UnitVerb};

/// The units of a host.
#[derive(Debug, Default)]
pub(super) struct Units {
    states: BTreeMap<Arc<str>, Unit>,
    /// When unit files were last read.
    read_at: i64,
}

#[derive(Clone, Debug, Default)]
struct Unit {
    enabled: bool,
    active: Active,
    since: i64,
    started: i64,
    /// The unit exists although this host has no file of it.
    brought: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Active {
    #[default]
    No,
    Yes,
    Failed,
    /// The unit exits again and again, and systemd restarts it.
    Restarting,
}

impl Machine {
    /// Adds a unit of the operating system, with or without being started at boot and now.
    pub fn bring_unit(&mut self, unit: &str, enabled: bool, active: bool) {
        let active = if active { Active::Yes } else { Active::No };
        let since = self.now();
        self.units.states.insert(name(unit), Unit { enabled, active, since, started: 0, brought: true });
    }

    /// Removes a unit with the package that installed it.
    pub fn take_unit(&mut self, unit: &str) {
        self.units.states.remove(unit);
    }

    /// Makes a unit fail, so that it does not restart.
    pub fn fail_unit(&mut self, unit: &str) {
        self.units.states.entry(name(unit)).or_default().active = Active::Failed;
    }

    /// Puts a unit into a restart loop.
    pub fn crash_loop(&mut self, unit: &str) {
        self.units.states.entry(name(unit)).or_default().active = Active::Restarting;
    }

    /// The state of a unit in systemd.
    pub fn unit(&self, unit: &str) -> UnitState {
        let known = self.units.states.get(unit);
        let files = self.unit_files(unit);
        let exists = !files.is_empty() || known.is_some_and(|unit| unit.brought);
        let state = known.cloned().unwrap_or_default();
        let active = match state.active {
            Active::No => "inactive",
            Active::Yes => "active",
            Active::Failed => "failed",
            Active::Restarting => "activating",
        };
        UnitState {
            exists,
            enabled: match (exists, state.enabled) {
                (false, _) => "",
                (true, true) => "enabled",
                (true, false) => "disabled",
            }
            .to_owned(),
            active: active.to_owned(),
            restarting: state.active == Active::Restarting,
            needs_reload: files.iter().any(|changed| *changed > self.units.read_at),
            active_since: (state.active == Active::Yes).then_some(state.since),
        }
    }

    /// Whether a running unit was started after the last change of that file, and so has read it.
    pub fn unit_knows(&self, unit: &str, path: &str) -> bool {
        let started = self.units.states.get(unit).filter(|unit| unit.active == Active::Yes).map(|unit| unit.started);
        started > self.files.get(path).map(|node| node.changed)
    }

    /// The change times of the files of a unit.
    fn unit_files(&self, unit: &str) -> Vec<i64> {
        let mut files: Vec<i64> = ["/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system"]
            .iter()
            .filter_map(|folder| Some(self.files.get(format!("{folder}/{unit}").as_str())?.changed))
            .collect();
        if !files.is_empty() || self.units.states.get(unit).is_some_and(|unit| unit.brought) {
            let drop_ins = self.under(&format!("/etc/systemd/system/{unit}.d"));
            files.extend(drop_ins.iter().filter_map(|path| Some(self.files.get(path)?.changed)));
        }
        files
    }

    pub(super) fn reload_units(&mut self) {
        self.units.read_at = self.tick();
    }

    /// Changes a unit, as `systemctl` does.
    pub fn unit_do(&mut self, unit: &str, verb: UnitVerb) -> io::Result<()> {
        let there = self.unit(unit).exists;
        // A running unit can be stopped even though its file was removed.
        let stops = verb == UnitVerb::Stop && self.units.states.contains_key(unit);
        if !there && !stops {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("Unit {unit} not found.")));
        }
        let up = matches!(verb, UnitVerb::Start | UnitVerb::Restart);
        let spoilt = up && self.spoilt(unit);
        let (now, lies, tick) = (self.now(), self.faults.lies, self.tick());
        let state = self.units.states.entry(name(unit)).or_default();
        match verb {
            UnitVerb::Enable => state.enabled = true,
            UnitVerb::Disable => state.enabled = false,
            UnitVerb::Stop => state.active = Active::No,
            UnitVerb::Start | UnitVerb::Restart if lies => {}
            UnitVerb::Start | UnitVerb::Restart if spoilt => {
                state.active = Active::Failed;
                return Err(io::Error::other(format!(
                    "Job for {unit} failed because the control process exited with error code."
                )));
            }
            UnitVerb::Start if state.active == Active::Yes => {}
            UnitVerb::Start | UnitVerb::Restart => {
                state.active = Active::Yes;
                state.since = now;
                state.started = tick;
            }
        }
        // A stopped unit without a file no longer exists.
        if !there && verb == UnitVerb::Stop {
            self.units.states.remove(unit);
        }
        Ok(())
    }

    fn spoilt(&self, unit: &str) -> bool {
        self.faults.spoilt.iter().filter(|spoilt| spoilt.unit == unit).any(|spoilt| {
            spoilt.contains.is_empty()
                || match self.stat(&spoilt.path).map(|stat| stat.kind) {
                    Some(PathKind::Link(target)) => target.contains(&spoilt.contains),
                    Some(PathKind::File) => self
                        .content(&spoilt.path)
                        .is_some_and(|content| String::from_utf8_lossy(content.bytes()).contains(&spoilt.contains)),
                    _ => false,
                }
        })
    }

    pub(super) fn units_down(&mut self) {
        for unit in self.units.states.values_mut() {
            unit.active = Active::No;
        }
    }

    pub(super) fn boot_units(&mut self) {
        self.reload_units();
        let enabled: Vec<Arc<str>> =
            self.units.states.iter().filter(|(_, unit)| unit.enabled).map(|(name, _)| name.clone()).collect();
        for unit in enabled {
            // A unit that does not start is reported as failed.
            let _ = self.unit_do(&unit, UnitVerb::Start);
        }
    }

    /// Whether an address or URL answers.
    pub(super) fn answers(&self, address: &str) -> bool {
        match self.faults.served_by.get(address) {
            Some(unit) => self.units.states.get(unit.as_str()).is_some_and(|unit| unit.active == Active::Yes),
            None => self.units.states.values().all(|unit| unit.active != Active::Failed),
        }
    }
}

//! The state of the host itself: its boot, its clock and its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_wire::Facts;

use super::content::name;
use super::faults::Faults;
use super::files::{Files, bare};
use super::packages::Packages;
use super::units::Units;

/// A host in memory. Its fields and functions are what a person with access to the host, or to its power switch, can do.
#[derive(Debug)]
pub struct Machine {
    /// The injected faults.
    pub faults: Faults,
    /// Facts about the host, except for the boot and the clock.
    pub facts: Arc<Facts>,
    /// The kernel's command line.
    pub command_line: Arc<str>,
    /// Loaded modules.
    pub modules: BTreeSet<String>,
    /// Its packages, and those that it can download.
    pub packages: Packages,
    /// Host name.
    pub name: Arc<str>,
    pub(super) files: Files,
    pub(super) units: Units,
    sysctls: BTreeMap<Arc<str>, Arc<str>>,
    /// Difference between its clock and that of the simulation, in seconds.
    pub clock_off: i64,
    clock: i64,
    pub(super) elapsed: Duration,
    boot: u64,
    boot_asked: bool,
    on: bool,
    ticks: i64,
    last_process: u64,
    processes: BTreeMap<u64, bool>,
    locks: BTreeMap<String, u64>,
    /// Number of calls that changed something.
    pub calls: u64,
    counted_from: u64,
}

impl Machine {
    pub(super) fn new(host: &str) -> Self {
        static PLAIN: std::sync::LazyLock<(Arc<Facts>, Arc<str>)> = std::sync::LazyLock::new(|| {
            let facts = Facts {
                os: "debian-12".to_owned(),
                kernel: "6.1.0-40-amd64".to_owned(),
                arch: "amd64".to_owned(),
                cpus: 8,
                memory: 32 << 30,
                free: 100 << 30,
                ..Facts::default()
            };
            (Arc::new(facts), "root=/dev/vda1 ro".into())
        });
        Self {
            faults: Faults::default(),
            facts: PLAIN.0.clone(),
            command_line: PLAIN.1.clone(),
            modules: BTreeSet::new(),
            packages: Packages::default(),
            name: host.into(),
            files: bare(),
            units: Units::default(),
            sysctls: BTreeMap::new(),
            clock_off: 0,
            clock: 1_700_000_000,
            elapsed: Duration::ZERO,
            boot: 1,
            boot_asked: false,
            on: true,
            ticks: 0,
            last_process: 0,
            processes: BTreeMap::new(),
            locks: BTreeMap::new(),
            calls: 0,
            counted_from: 0,
        }
    }

    /// Sets the serial number in its firmware.
    pub fn set_serial(&mut self, serial: &str) {
        Arc::make_mut(&mut self.facts).serials = vec![serial.to_owned()];
    }

    /// Facts about the host.
    pub fn facts(&self) -> Facts {
        let mut facts = (*self.facts).clone();
        facts.hostname = self.name.to_string();
        facts.boot_id = self.boot_id();
        facts.machine_id = format!("machine-{}", self.name);
        facts.clock = self.now();
        if self.faults.full {
            facts.free = 0;
        }
        facts
    }

    fn boot_id(&self) -> String {
        format!("{}-boot-{}", self.name, self.boot)
    }

    // Time.

    /// Time by its clock, in seconds since 1970.
    pub fn now(&self) -> i64 {
        self.clock + self.clock_off
    }

    /// Sets the clock of the simulation, which never goes back.
    pub fn set_clock(&mut self, seconds: i64) {
        if seconds > self.clock {
            self.advance(Duration::from_secs(seconds.abs_diff(self.clock)));
        }
    }

    /// Advances the time.
    pub fn advance(&mut self, time: Duration) {
        let before = self.elapsed.as_secs();
        self.elapsed += time;
        self.clock += i64::try_from(self.elapsed.as_secs() - before).unwrap_or(0);
    }

    /// Advances the time by that of a slow operation, at most by `within`.
    pub(super) fn pass(&mut self, within: Duration) -> io::Result<()> {
        let slow = self.faults.slow;
        self.advance(slow.min(within));
        if slow > within { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// A number that was never used on this host.
    pub(super) fn tick(&mut self) -> i64 {
        self.ticks += 1;
        self.ticks
    }

    // Boots.

    /// Whether a reboot was requested and has not happened yet.
    pub fn boot_asked(&self) -> bool {
        self.boot_asked
    }

    pub(super) fn ask_for_boot(&mut self) {
        self.boot_asked = true;
    }

    /// Whether the host has power.
    pub fn on(&self) -> bool {
        self.on
    }

    /// Cuts the power: all processes end where they are.
    pub fn power_off(&mut self) {
        self.on = false;
        self.processes.clear();
        self.locks.clear();
        self.units_down();
    }

    /// Reboots, or boots if it is off: with the settings and units for the next boot.
    pub fn boot(&mut self) {
        self.power_off();
        self.on = true;
        self.boot += 1;
        self.boot_asked = false;
        self.remove("/run");
        self.remove("/tmp");
        for folder in ["/run/x", "/tmp/x"] {
            self.put(folder, b"", 0o644);
            self.remove(folder);
        }
        self.boot_kernel();
        self.boot_sysctls();
        self.boot_units();
    }

    /// Sets the kernel and the command line that the boot loader finds, if it finds one, and loads the listed modules.
    fn boot_kernel(&mut self) {
        let (release, line) = super::packages::boot(self);
        if let Some(release) = release {
            Arc::make_mut(&mut self.facts).kernel = release;
        }
        if let Some(line) = line {
            self.command_line = line.into();
        }
        self.modules.clear();
        for file in self.list("/etc/modules-load.d") {
            let lines = self.read(&format!("/etc/modules-load.d/{file}"), 1 << 16).ok().flatten().unwrap_or_default();
            let lines = String::from_utf8_lossy(&lines).into_owned();
            self.modules.extend(
                lines
                    .lines()
                    .map(str::trim)
                    .filter(|line| !line.is_empty() && !line.starts_with('#'))
                    .map(str::to_owned),
            );
        }
    }

    fn boot_sysctls(&mut self) {
        self.sysctls.clear();
        for file in self.list("/etc/sysctl.d") {
            let lines = self.read(&format!("/etc/sysctl.d/{file}"), 1 << 16).ok().flatten().unwrap_or_default();
            let lines = String::from_utf8_lossy(&lines).into_owned();
            for (key, value) in lines.lines().filter_map(|line| line.split_once('=')) {
                self.set_sysctl(key.trim(), value.trim());
            }
        }
    }

    /// The value of a sysctl. Every name of the kernel's usual families exists.
    pub fn sysctl(&self, key: &str) -> Option<String> {
        let family = key.split(['.', '/']).next().unwrap_or_default();
        if !["fs", "kernel", "net", "user", "vm"].contains(&family) {
            return None;
        }
        Some(self.sysctls.get(key).map_or_else(|| "0".to_owned(), ToString::to_string))
    }

    /// Sets a sysctl until the next boot.
    pub fn set_sysctl(&mut self, key: &str, value: &str) {
        self.sysctls.insert(name(key), name(value));
    }

    // Processes.

    pub(super) fn start_process(&mut self) -> u64 {
        self.last_process += 1;
        self.processes.insert(self.last_process, true);
        self.last_process
    }

    pub(super) fn end_process(&mut self, process: u64) {
        self.processes.remove(&process);
        self.locks.retain(|_, holder| *holder != process);
    }

    pub(super) fn runs(&self, process: u64) -> bool {
        self.processes.get(&process) == Some(&true)
    }

    pub(super) fn process_name(&self, process: u64) -> String {
        format!("{process} {}", self.boot_id())
    }

    pub(super) fn process_lives(&self, process: &str) -> bool {
        process
            .split_once(' ')
            .and_then(|(number, boot)| Some((number.parse().ok()?, boot)))
            .is_some_and(|(number, boot): (u64, &str)| boot == self.boot_id() && self.processes.contains_key(&number))
    }

    /// Ends all hanging processes.
    pub fn kill_hung(&mut self) {
        let hung: Vec<u64> = self.processes.iter().filter(|(_, runs)| !**runs).map(|(process, _)| *process).collect();
        for process in hung {
            self.end_process(process);
        }
    }

    /// Sets the faults, and counts calls from here on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.counted_from = self.calls;
    }

    /// Whether the call of the [`Faults`] was reached.
    pub fn faults_reached(&self) -> bool {
        let made = self.calls - self.counted_from;
        let faults = &self.faults;
        [faults.crash_at, faults.hang_at, faults.fail_at].iter().flatten().any(|at| *at <= made)
    }

    pub(super) fn count(&mut self, process: u64, half: impl FnOnce(&mut Self)) -> io::Result<()> {
        self.calls += 1;
        let now = Some(self.calls - self.counted_from);
        if self.faults.crash_at == now {
            half(self);
            self.end_process(process);
            return Err(super::ended());
        }
        if self.faults.hang_at == now {
            half(self);
            self.processes.insert(process, false);
            return Err(super::ended());
        }
        if self.faults.fail_at == now {
            half(self);
            return Err(io::Error::other("input/output error"));
        }
        Ok(())
    }

    pub(super) fn lock(&mut self, path: &str, process: u64) -> io::Result<bool> {
        if let Some((_, file, content)) = self.faults.before_lock.take_if(|(lock, ..)| lock == path) {
            self.put(&file, &content, 0o600);
        }
        // A lock is a file.
        if !self.files.contains_key(path) {
            self.put(path, b"", 0o600);
        }
        Ok(*self.locks.entry(path.to_owned()).or_insert(process) == process)
    }

    pub(super) fn unlock(&mut self, path: &str, process: u64) {
        if self.locks.get(path) == Some(&process) {
            self.locks.remove(path);
        }
    }
}

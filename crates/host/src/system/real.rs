//! The host that this process runs on.

mod accounts;
mod facts;
mod files;
mod programs;
mod web;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use fleetwright_wire::text::truncate_bytes;

use super::{DebState, ProgramResult, ProgramRun, Stat, System, UnitState, UnitVerb, UpcomingQueries};

/// The host that this process runs on.
#[derive(Debug)]
pub struct Real {
    /// The directory that every path is in: the root, except in tests.
    root: PathBuf,
    accounts: RefCell<accounts::Accounts>,
    locks: BTreeMap<String, std::fs::File>,
    foreseen: PrefetchedAnswers,
    begin: Instant,
}

/// The results of bulk queries: starting a program for each query takes most of the time of an observation.
#[derive(Debug, Default)]
struct PrefetchedAnswers {
    units: BTreeMap<String, UnitState>,
    /// The queried names; names that are not installed have no state.
    asked: BTreeSet<String>,
    debs: BTreeMap<String, DebState>,
}

/// Timeout of queries to systemd or a package manager, which may hang.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

impl Default for Real {
    fn default() -> Self {
        Self::at("/")
    }
}

impl Real {
    /// A system with all files in that directory. Programs still run on the host; its units and its kernel are not changed.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            accounts: RefCell::default(),
            locks: BTreeMap::new(),
            foreseen: PrefetchedAnswers::default(),
            begin: Instant::now(),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Fails unless the directory is the root, for what is not a file.
    fn whole_host(&self) -> io::Result<()> {
        if self.root == Path::new("/") {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, "not supported with --root: only files are managed there"))
    }

    /// Runs a program that changes nothing, and returns its output.
    fn ask(&self, argv: &[&str]) -> io::Result<ProgramResult> {
        let ran = programs::run(&ProgramRun { argv, input: b"", env: &[], within: QUERY_TIMEOUT })?;
        if ran.timed_out {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{} timed out", argv[0])));
        }
        Ok(ran)
    }

    /// The states of these units, in their order.
    fn units(&self, names: &[&str]) -> io::Result<Vec<UnitState>> {
        let properties = "LoadState,UnitFileState,ActiveState,SubState,NeedDaemonReload,ActiveEnterTimestampMonotonic";
        let mut argv = vec!["systemctl", "show", "--no-pager", "--property", properties, "--"];
        argv.extend(names);
        let ran = self.ask(&argv)?;
        if !ran.ok() {
            return Err(io::Error::other(format!("systemctl {}", crate::method::ended(&ran))));
        }
        let (uptime, now) = (facts::uptime()?, self.now());
        // One block of lines for each unit, separated by empty lines.
        Ok(ran.stdout.trim().split("\n\n").map(|block| unit_state(block, uptime, now)).collect())
    }

    fn systemctl(&self, arguments: &[&str], within: Duration) -> io::Result<()> {
        let argv: Vec<&str> = ["systemctl", "--no-ask-password"].iter().chain(arguments).copied().collect();
        let ran = programs::run(&ProgramRun { argv: &argv, input: b"", env: &[], within })?;
        if ran.ok() {
            return Ok(());
        }
        // The first line says what happened; the last one only where to read more.
        match ran.tail.lines().map(str::trim).find(|line| !line.is_empty()) {
            Some(line) if !ran.timed_out => Err(io::Error::other(truncate_bytes(line, 300))),
            _ => Err(io::Error::other(crate::method::ended(&ran))),
        }
    }
}

/// The pid in the identity of a process.
fn numbered(process: &str) -> Option<u32> {
    process.split(' ').next()?.parse().ok()
}

fn unit_state(said: &str, uptime: Duration, now: i64) -> UnitState {
    let said: BTreeMap<&str, &str> = said.lines().filter_map(|line| line.split_once('=')).collect();
    let get = |key: &str| said.get(key).copied().unwrap_or_default();
    let active = get("ActiveState").to_owned();
    let since: u64 = get("ActiveEnterTimestampMonotonic").parse().unwrap_or(0);
    let active_since = (active == "active" && since > 0)
        .then(|| now - i64::try_from(uptime.as_secs().saturating_sub(since / 1_000_000)).unwrap_or(0));
    UnitState {
        exists: !matches!(get("LoadState"), "not-found" | ""),
        enabled: get("UnitFileState").to_owned(),
        active,
        // Newer versions of systemd distinguish whether the restart is queued.
        restarting: get("SubState").starts_with("auto-restart"),
        needs_reload: get("NeedDaemonReload") == "yes",
        active_since,
    }
}

impl System for Real {
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        files::read(&self.path(path), limit)
    }

    fn stat(&self, path: &str) -> io::Result<Option<Stat>> {
        files::stat(&self.path(path), &mut self.accounts.borrow_mut())
    }

    fn sha256(&self, path: &str) -> io::Result<Option<String>> {
        files::sha256(&self.path(path))
    }

    fn write(&mut self, path: &str, content: &[u8], mode: u32, owner: &str, group: &str) -> io::Result<()> {
        let owners = self.accounts.borrow_mut().numbers(owner, group)?;
        files::write(&self.path(path), content, mode, owners)
    }

    fn set_mode(&mut self, path: &str, mode: u32, owner: &str, group: &str) -> io::Result<()> {
        let owners = self.accounts.borrow_mut().numbers(owner, group)?;
        files::set_mode(&self.path(path), mode, owners)
    }

    fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        files::link(&self.path(path), target)
    }

    fn remove(&mut self, path: &str) -> io::Result<bool> {
        files::remove(&self.path(path))
    }

    fn remove_empty(&mut self, path: &str) -> io::Result<bool> {
        files::remove_empty(&self.path(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        files::list(&self.path(path))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        files::rename(&self.path(from), &self.path(to))
    }

    fn unpack(&mut self, archive: &str, into: &str, strip: u32) -> io::Result<()> {
        files::unpack(&self.path(archive), &self.path(into), strip)
    }

    fn fetch(
        &mut self,
        url: &str,
        to: &str,
        limit: u64,
        within: Duration,
        on_progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> io::Result<()> {
        web::fetch(url, &self.path(to), limit, within, on_progress)
    }

    fn connects(&self, address: &str, within: Duration) -> io::Result<()> {
        web::connects(address, within)
    }

    fn http_status(&self, url: &str, within: Duration) -> io::Result<u16> {
        web::status(url, within)
    }

    fn run(&mut self, run: &ProgramRun<'_>) -> io::Result<ProgramResult> {
        programs::run(run)
    }

    fn look(&self, run: &ProgramRun<'_>) -> io::Result<ProgramResult> {
        programs::run(run)
    }

    /// A bulk query that fails is replaced by single ones, which report their own errors.
    fn foresee(&mut self, coming: UpcomingQueries<'_>) {
        self.foreseen = PrefetchedAnswers::default();
        // systemctl reads these characters as patterns, which may match any number of units.
        let names: Vec<&str> = coming.units.into_iter().filter(|name| !name.contains(['*', '?', '['])).collect();
        if names.len() > 1
            && let Ok(states) = self.units(&names)
            && states.len() == names.len()
        {
            self.foreseen.units = names.into_iter().map(str::to_owned).zip(states).collect();
        }
        let names: Vec<&str> = coming.debs.into_iter().collect();
        if let Ok(debs) = self.debs(&names) {
            self.foreseen.debs = debs;
            self.foreseen.asked = names.into_iter().map(str::to_owned).collect();
        }
    }

    fn unit(&self, name: &str) -> io::Result<UnitState> {
        if let Some(state) = self.foreseen.units.get(name) {
            return Ok(state.clone());
        }
        let state = self.units(&[name])?.into_iter().next();
        state.ok_or_else(|| io::Error::other(format!("systemctl reported nothing about {name}")))
    }

    fn unit_do(&mut self, name: &str, verb: UnitVerb, within: Duration) -> io::Result<()> {
        self.whole_host()?;
        let verb = match verb {
            UnitVerb::Enable => "enable",
            UnitVerb::Disable => "disable",
            UnitVerb::Start => "start",
            UnitVerb::Stop => "stop",
            UnitVerb::Restart => "restart",
        };
        if matches!(verb, "start" | "restart" | "stop") {
            // A unit that failed too often would not be started again, and a failed unit would be kept by systemd for ever.
            let _ = self.systemctl(&["reset-failed", "--", name], QUERY_TIMEOUT);
        }
        self.systemctl(&[verb, "--", name], within)
    }

    fn reload_units(&mut self) -> io::Result<()> {
        self.whole_host()?;
        self.systemctl(&["daemon-reload"], QUERY_TIMEOUT)
    }

    fn debs(&self, names: &[&str]) -> io::Result<BTreeMap<String, DebState>> {
        if names.iter().all(|name| self.foreseen.asked.contains(*name)) {
            let known = names.iter().filter_map(|name| self.foreseen.debs.get_key_value(*name));
            return Ok(known.map(|(name, state)| (name.clone(), state.clone())).collect());
        }
        let format = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n";
        let mut argv = vec!["dpkg-query", "--show", "--showformat", format, "--"];
        argv.extend(names);
        // dpkg-query exits with 1 if a package is missing.
        let ran = self.ask(&argv)?;
        let lines = ran.stdout.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        Ok(lines
            .filter_map(|fields| match fields[..] {
                [name, version, want, "installed"] => {
                    Some((name.to_owned(), DebState { version: version.to_owned(), held: want == "hold" }))
                }
                _ => None,
            })
            .collect())
    }

    fn rpms(&self, names: &[&str]) -> io::Result<BTreeMap<String, String>> {
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut argv = vec!["rpm", "--query", "--queryformat", "%{NAME}\\t%{VERSION}-%{RELEASE}\\n", "--"];
        argv.extend(names);
        let ran = self.ask(&argv)?;
        let known = ran.stdout.lines().filter_map(|line| line.split_once('\t'));
        Ok(known.map(|(name, version)| (name.to_owned(), version.to_owned())).collect())
    }

    fn sysctl(&self, name: &str) -> io::Result<Option<String>> {
        let value = files::read(&facts::sysctl_path(name), 64 << 10)?;
        Ok(value.map(|value| String::from_utf8_lossy(&value).split_whitespace().collect::<Vec<_>>().join(" ")))
    }

    fn set_sysctl(&mut self, name: &str, value: &str) -> io::Result<()> {
        self.whole_host()?;
        std::fs::write(facts::sysctl_path(name), value)
    }

    fn command_line(&self) -> io::Result<String> {
        Ok(std::fs::read_to_string("/proc/cmdline")?.trim().to_owned())
    }

    fn module(&self, name: &str) -> io::Result<bool> {
        facts::module(name)
    }

    fn facts(&self) -> io::Result<fleetwright_wire::Facts> {
        facts::facts(&self.path("/var/lib"), self.now())
    }

    fn reboot(&mut self) -> io::Result<()> {
        self.whole_host()?;
        // After a moment, so that the caller gets its answer.
        programs::detached(&["/bin/sh", "-c", "sleep 1; systemctl reboot || reboot || reboot -f"])
    }

    fn own_process(&self) -> String {
        facts::process(std::process::id()).unwrap_or_default()
    }

    fn lives(&self, process: &str) -> bool {
        numbered(process).and_then(facts::process).is_some_and(|lives| lives == process)
    }

    /// The helper leads a session of its own: every process in it was started by the helper.
    fn left_over(&self, process: &str) -> bool {
        process.ends_with(&facts::boot_id()) && numbered(process).is_some_and(facts::session_lives)
    }

    fn lock(&mut self, path: &str) -> io::Result<bool> {
        if self.locks.contains_key(path) {
            return Ok(true);
        }
        let file = files::lockable(&self.path(path))?;
        match file.try_lock() {
            Ok(()) => {
                self.locks.insert(path.to_owned(), file);
                Ok(true)
            }
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&mut self, path: &str) -> io::Result<()> {
        match self.locks.remove(path) {
            Some(file) => file.unlock(),
            None => Ok(()),
        }
    }

    fn now(&self) -> i64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }

    fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

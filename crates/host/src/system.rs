//! The interface to the host that the helper runs on.

mod archive;
pub mod memory;
mod real;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

pub use real::Real;

/// A host, as the helper uses it. All paths are absolute. Every call may fail; no call changes anything that its name does not say.
pub trait System: Send {
    // Files. Content is written to a temporary file, synced and renamed, so that a reader never sees half of it.

    /// The whole content, of at most `limit` bytes; none if the file does not exist.
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>>;
    /// The metadata of a path; none if it does not exist. Does not follow a link.
    fn stat(&self, path: &str) -> io::Result<Option<Stat>>;
    /// The sha256 of a file's content, in hex; none if the file does not exist. For files of any size.
    fn sha256(&self, path: &str) -> io::Result<Option<String>>;
    /// Writes a whole file, and creates its parent directories.
    fn write(&mut self, path: &str, content: &[u8], mode: u32, owner: &str, group: &str) -> io::Result<()>;
    /// Sets mode and owner.
    fn set_mode(&mut self, path: &str, mode: u32, owner: &str, group: &str) -> io::Result<()>;
    /// Creates a symbolic link, replacing any link or file at that path, atomically.
    fn link(&mut self, path: &str, target: &str) -> io::Result<()>;
    /// Removes a file, a link or a directory with its content; `Ok(false)` if the path does not exist.
    fn remove(&mut self, path: &str) -> io::Result<bool>;
    /// Removes a directory only if it is empty; `Ok(false)` if it has an entry or a mount. `Ok(true)` if it does not exist.
    fn remove_empty(&mut self, path: &str) -> io::Result<bool>;
    /// The names in a directory, sorted; empty if it does not exist.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Moves within one file system, atomically.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Unpacks the archive (tar, gzip, zstd by content) into the new directory `into`. Refuses paths that lead out of it.
    fn unpack(&mut self, archive: &str, into: &str, strip: u32) -> io::Result<()>;

    // The network.

    /// Downloads a URL to a file, of at most `limit` bytes, within that time; reports its progress. Verifies nothing.
    fn fetch(
        &mut self,
        url: &str,
        to: &str,
        limit: u64,
        within: Duration,
        on_progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> io::Result<()>;
    /// Whether `HOST:PORT` accepts connections.
    fn connects(&self, address: &str, within: Duration) -> io::Result<()>;
    /// The status of a GET.
    fn http_status(&self, url: &str, within: Duration) -> io::Result<u16>;

    // Programs.

    /// Runs a program and waits up to its timeout; then its whole process group is killed. Only the end of the output is kept.
    fn run(&mut self, run: &ProgramRun<'_>) -> io::Result<ProgramResult>;
    /// As [`System::run`], for a program that changes nothing.
    fn look(&self, run: &ProgramRun<'_>) -> io::Result<ProgramResult>;

    // Queries in bulk.

    /// Announces the queries to come. An implementation that has to start a program for each query may start one for all of them, and answer from
    /// its result until the next announcement, which may be empty.
    fn foresee(&mut self, _coming: UpcomingQueries<'_>) {}

    // systemd.

    /// The state of a unit in systemd.
    fn unit(&self, name: &str) -> io::Result<UnitState>;
    /// Changes a unit, and waits until systemd has done so, up to a timeout.
    fn unit_do(&mut self, name: &str, verb: UnitVerb, within: Duration) -> io::Result<()>;
    /// Reloads unit files (`daemon-reload`).
    fn reload_units(&mut self) -> io::Result<()>;

    // Packages.

    /// The installed versions of these packages (dpkg); absent packages are left out. Configured ones only.
    fn debs(&self, names: &[&str]) -> io::Result<BTreeMap<String, DebState>>;
    /// The installed `VERSION-RELEASE` of these packages (rpm).
    fn rpms(&self, names: &[&str]) -> io::Result<BTreeMap<String, String>>;

    // Kernel.

    /// The value of a sysctl, with blanks folded; none if the kernel has no sysctl of that name.
    fn sysctl(&self, name: &str) -> io::Result<Option<String>>;
    /// Sets a sysctl until the next boot.
    fn set_sysctl(&mut self, name: &str, value: &str) -> io::Result<()>;
    /// The kernel's command line.
    fn command_line(&self) -> io::Result<String>;
    /// Whether a module is loaded, or built in.
    fn module(&self, name: &str) -> io::Result<bool>;
    /// Facts about the host.
    fn facts(&self) -> io::Result<fleetwright_wire::Facts>;
    /// Reboots after a moment: the call returns.
    fn reboot(&mut self) -> io::Result<()>;

    // The helper's own process.

    /// Identity of our process, different from any other that ever had its pid (pid, start time, boot id).
    fn own_process(&self) -> String;
    /// Whether that process is alive.
    fn lives(&self, process: &str) -> bool;
    /// Whether a process is alive that was started by that process, which is gone.
    fn left_over(&self, _process: &str) -> bool {
        false
    }
    /// Locks a file until it is unlocked or this process ends; `Ok(false)` if another process holds the lock.
    fn lock(&mut self, path: &str) -> io::Result<bool>;
    /// Releases the lock.
    fn unlock(&mut self, path: &str) -> io::Result<()>;
    /// Seconds since 1970. May jump.
    fn now(&self) -> i64;
    /// Monotonic time since an arbitrary moment.
    fn elapsed(&self) -> Duration;
    /// Sleeps.
    fn pause(&self, time: Duration);
}

/// Queries that will be made at about the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpcomingQueries<'a> {
    /// Names of units.
    pub units: BTreeSet<&'a str>,
    /// Names of Debian packages.
    pub debs: BTreeSet<&'a str>,
}

/// The metadata of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Kind of the entry.
    pub kind: PathKind,
    /// Permission bits.
    pub mode: u32,
    /// The user's name, or its number if it has none.
    pub owner: String,
    /// The group's name, or its number if it has none.
    pub group: String,
    /// Size in bytes.
    pub size: u64,
    /// Differs after every change of content, mode or owner: an equal number means an unchanged file.
    pub changed: i64,
}

/// The kind of a directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file.
    File,
    /// A directory.
    Folder,
    /// A symbolic link, and its target.
    Link(String),
    /// Any other kind.
    Other,
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct ProgramRun<'a> {
    /// The program and its arguments. Never secrets: every user of the host can read them.
    pub argv: &'a [&'a str],
    /// Standard input.
    pub input: &'a [u8],
    /// Variables added to the environment.
    pub env: &'a [(&'a str, &'a str)],
    /// Timeout.
    pub within: Duration,
}

/// The result of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramResult {
    /// Exit status; none if the program was killed.
    pub status: Option<i32>,
    /// The end of its output, both streams.
    pub tail: String,
    /// The end of its standard output alone.
    pub stdout: String,
    /// The program was killed by its timeout.
    pub timed_out: bool,
}

impl ProgramResult {
    /// Whether the exit status is 0.
    pub fn ok(&self) -> bool {
        self.status == Some(0)
    }
}

/// The state of a Debian package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebState {
    /// Installed version.
    pub version: String,
    /// Whether the package is held.
    pub held: bool,
}

/// The state of a unit in systemd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// Whether systemd knows the unit.
    pub exists: bool,
    /// `UnitFileState`: `enabled`, `disabled`, `static`…
    pub enabled: String,
    /// `ActiveState`: `active`, `inactive`, `failed`…
    pub active: String,
    /// The unit ended and systemd waits to start it again (`SubState` is `auto-restart`): it does not run, although `active` is `activating`.
    pub restarting: bool,
    /// The unit's files changed since systemd read them.
    pub needs_reload: bool,
    /// When the unit became active, in seconds since 1970; none if it is not active.
    pub active_since: Option<i64>,
}

/// The verbs for a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitVerb {
    /// Start at boot.
    Enable,
    /// Do not start at boot.
    Disable,
    /// Start now.
    Start,
    /// Stop now.
    Stop,
    /// Stop and start.
    Restart,
}

//! What the helper needs of the host that it runs on.

mod archive;
pub mod memory;
mod real;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

pub use real::Real;

/// A host, as the helper sees it. All paths are absolute. Every call may fail; no call changes anything that its name does not say.
pub trait System: Send {
    // Files. Content is written beside, synced and renamed, so that nobody sees half of it.

    /// The whole content, of at most `limit` bytes; none if there is no such file.
    fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>>;
    /// What is there; none if nothing is. Does not follow a link.
    fn stat(&self, path: &str) -> io::Result<Option<Stat>>;
    /// The sha256 of a file's content, in hex; none if there is none. For files of any size.
    fn sha256(&self, path: &str) -> io::Result<Option<String>>;
    /// Writes a file whole, and makes the folders above it.
    fn write(&mut self, path: &str, content: &[u8], mode: u32, owner: &str, group: &str) -> io::Result<()>;
    /// Sets mode and owner.
    fn set_mode(&mut self, path: &str, mode: u32, owner: &str, group: &str) -> io::Result<()>;
    /// Makes a symbolic link, in the place of whatever link or file is there, atomically.
    fn link(&mut self, path: &str, target: &str) -> io::Result<()>;
    /// Removes a file, link or whole folder; `Ok(false)` if nothing was there.
    fn remove(&mut self, path: &str) -> io::Result<bool>;
    /// Removes a folder only if it is empty; `Ok(false)` if something is in it or mounted there. `Ok(true)` if there is no such folder.
    fn remove_empty(&mut self, path: &str) -> io::Result<bool>;
    /// The names in a folder, sorted; empty if there is none.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Moves within one file system, atomically.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Unpacks the archive at `archive` (tar, gzip, zstd by content) into the new folder `into`. Refuses paths that lead out of it.
    fn unpack(&mut self, archive: &str, into: &str, strip: u32) -> io::Result<()>;

    // The network.

    /// Fetches the URL to a file, of at most `limit` bytes, within that time; tells how far it is. Checks nothing.
    fn fetch(
        &mut self,
        url: &str,
        to: &str,
        limit: u64,
        within: Duration,
        tell: &mut dyn FnMut(u64, Option<u64>),
    ) -> io::Result<()>;
    /// Whether something accepts at `HOST:PORT`.
    fn connects(&self, address: &str, within: Duration) -> io::Result<()>;
    /// The status of a GET.
    fn http_status(&self, url: &str, within: Duration) -> io::Result<u16>;

    // Programs.

    /// Runs a program and waits, at most so long; then its whole process group is killed. Output is bounded to its end.
    fn run(&mut self, run: &ProgramRun<'_>) -> io::Result<ProgramResult>;
    /// The same, for a program that only looks.
    fn look(&self, run: &ProgramRun<'_>) -> io::Result<ProgramResult>;

    // What is looked at together.

    /// Told what will be asked about. Whoever has to start a program for each question may ask all of them at once, and answer from that until
    /// it is told the next, which may be nothing.
    fn foresee(&mut self, _coming: UpcomingQueries<'_>) {}

    // systemd.

    /// What systemd says of that unit.
    fn unit(&self, name: &str) -> io::Result<UnitState>;
    /// Changes it, and waits until systemd did so, at most so long.
    fn unit_do(&mut self, name: &str, verb: UnitVerb, within: Duration) -> io::Result<()>;
    /// Reads unit files anew.
    fn reload_units(&mut self) -> io::Result<()>;

    // Packages.

    /// The installed versions of these packages (dpkg); a package that is absent is left out. Configured ones only.
    fn debs(&self, names: &[&str]) -> io::Result<BTreeMap<String, DebState>>;
    /// The installed `VERSION-RELEASE` of these packages (rpm).
    fn rpms(&self, names: &[&str]) -> io::Result<BTreeMap<String, String>>;

    // Kernel.

    /// The value of a sysctl, blanks folded; none if the kernel has none of that name.
    fn sysctl(&self, name: &str) -> io::Result<Option<String>>;
    /// Sets it, until the next boot.
    fn set_sysctl(&mut self, name: &str, value: &str) -> io::Result<()>;
    /// The kernel's command line.
    fn command_line(&self) -> io::Result<String>;
    /// Whether that module is loaded, or built in.
    fn module(&self, name: &str) -> io::Result<bool>;
    /// What the host is.
    fn facts(&self) -> io::Result<fleetwright_wire::Facts>;
    /// Boots, a moment from now: the call returns.
    fn reboot(&mut self) -> io::Result<()>;

    // The helper's own process.

    /// Our process, told apart from any other that ever had its number (number, start time, boot).
    fn own_process(&self) -> String;
    /// Whether that process lives.
    fn lives(&self, process: &str) -> bool;
    /// Whether something lives that was started by that process, which is gone.
    fn left_over(&self, _process: &str) -> bool {
        false
    }
    /// Locks that file until it is unlocked or this process ends; `Ok(false)` if another process holds it.
    fn lock(&mut self, path: &str) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&mut self, path: &str) -> io::Result<()>;
    /// Seconds since 1970. May jump.
    fn now(&self) -> i64;
    /// Time since some moment. Never jumps.
    fn elapsed(&self) -> Duration;
    /// Waits.
    fn pause(&self, time: Duration);
}

/// What somebody will ask about, all of it at about the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpcomingQueries<'a> {
    /// Units.
    pub units: BTreeSet<&'a str>,
    /// Debian packages.
    pub debs: BTreeSet<&'a str>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What kind.
    pub kind: PathKind,
    /// Permission bits.
    pub mode: u32,
    /// The user's name, or its number if it has none.
    pub owner: String,
    /// The group's name, or its number if it has none.
    pub group: String,
    /// In bytes.
    pub size: u64,
    /// Another number after every change of content, mode or owner: what has the same one was not touched.
    pub changed: i64,
}

/// What kind of thing is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A link, and where it leads.
    Link(String),
    /// Anything else.
    Other,
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct ProgramRun<'a> {
    /// The program and its arguments. Secrets do not go here: everybody on the host sees them.
    pub argv: &'a [&'a str],
    /// What it reads.
    pub input: &'a [u8],
    /// Added to its environment.
    pub env: &'a [(&'a str, &'a str)],
    /// At most so long.
    pub within: Duration,
}

/// How a program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramResult {
    /// Its exit status; none if it was killed.
    pub status: Option<i32>,
    /// The end of what it printed, both streams.
    pub tail: String,
    /// The end of its standard output alone.
    pub stdout: String,
    /// It took too long.
    pub timed_out: bool,
}

impl ProgramResult {
    /// Whether it ended with 0.
    pub fn ok(&self) -> bool {
        self.status == Some(0)
    }
}

/// A Debian package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebState {
    /// Its version.
    pub version: String,
    /// It is held.
    pub held: bool,
}

/// What systemd says of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// It knows it.
    pub exists: bool,
    /// `UnitFileState`: `enabled`, `disabled`, `static`…
    pub enabled: String,
    /// `ActiveState`: `active`, `inactive`, `failed`…
    pub active: String,
    /// It ended and systemd waits to start it again (`SubState` is `auto-restart`): it does not run, although `active` says `activating`.
    pub restarting: bool,
    /// Its files changed since systemd read them.
    pub needs_reload: bool,
    /// When it became active, in seconds since 1970; none if it is not.
    pub active_since: Option<i64>,
}

/// What can be done to a unit.
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

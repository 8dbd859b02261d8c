//! The packages of a host in memory, and those that it can download.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::machine::Machine;
use crate::system::{DebState, ProgramResult, ProgramRun};

mod deb;
mod kernel;
mod rpm;

pub(super) use kernel::boot;

/// The packages of a host, and those that it can download.
#[derive(Clone, Debug, Default)]
pub struct Packages {
    /// Installed Debian packages.
    pub debs: BTreeMap<String, DebState>,
    /// Debian packages that are unpacked and not configured.
    pub half: BTreeMap<String, String>,
    /// Debian packages that were installed only as dependencies.
    pub auto: BTreeSet<String>,
    /// Installed RPM packages, and their versions: more than one of kernels, and after an interruption.
    pub rpms: BTreeMap<String, BTreeSet<String>>,
    /// The configured repositories: the versions of each package, newest last. If empty, the repositories have every requested version.
    pub repository: Arc<BTreeMap<String, Vec<String>>>,
    /// Dependencies of packages, by name.
    pub depends: Arc<BTreeMap<String, Vec<String>>>,
    /// `NAME VERSION` of packages whose own scripts fail.
    pub broken: Arc<BTreeSet<String>>,
    /// Number of calls of a package manager that find its lock held by another program.
    pub locked: u32,
    /// Downloaded package files without their bytes: name and version by digest.
    claimed: BTreeMap<String, (String, String)>,
}

impl Packages {
    pub(super) fn debs(&self, names: &[&str]) -> BTreeMap<String, DebState> {
        names.iter().filter_map(|name| Some(((*name).to_owned(), self.debs.get(*name)?.clone()))).collect()
    }

    pub(super) fn rpms(&self, names: &[&str]) -> BTreeMap<String, String> {
        let newest = |name: &str| Some((name.to_owned(), self.rpms.get(name)?.last()?.clone()));
        names.iter().filter_map(|name| newest(name)).collect()
    }

    /// Records the package of a file, by the name of its URL: `NAME_VERSION_ARCH.deb`, `NAME-VERSION-RELEASE.ARCH.rpm`.
    pub(super) fn fetched(&mut self, url: &str, sha256: &str) {
        let file = url.rsplit('/').next().unwrap_or_default().replace("%3a", ":");
        let is = if let Some(stem) = file.strip_suffix(".deb") {
            let mut parts = stem.split('_');
            parts.next().zip(parts.next()).map(|(name, version)| (name.to_owned(), version.to_owned()))
        } else if let Some(stem) = file.strip_suffix(".rpm") {
            let stem = stem.rsplit_once('.').map_or(stem, |(stem, _arch)| stem);
            let mut parts = stem.rsplitn(3, '-');
            match (parts.next(), parts.next(), parts.next()) {
                (Some(release), Some(version), Some(name)) => Some((name.to_owned(), format!("{version}-{release}"))),
                _ => None,
            }
        } else {
            None
        };
        if let Some(is) = is {
            self.claimed.insert(sha256.to_owned(), is);
        }
    }

    /// Whether a repository has that version.
    fn offers(&self, name: &str, version: &str) -> bool {
        self.repository.is_empty()
            || self.repository.get(name).is_some_and(|versions| versions.iter().any(|has| has == version))
    }

    /// The newest version that a repository has.
    fn newest(&self, name: &str) -> Option<String> {
        if self.repository.is_empty() {
            return Some("1".to_owned());
        }
        self.repository.get(name)?.last().cloned()
    }

    fn needs(&self, name: &str) -> &[String] {
        self.depends.get(name).map_or(&[], Vec::as_slice)
    }

    fn is_broken(&self, name: &str, version: &str) -> bool {
        self.broken.contains(&format!("{name} {version}"))
    }
}

/// The package in a file: from its text (`Package: …`, `Version: …`), or from the name of its URL.
fn identify(machine: &Machine, path: &str) -> Option<(String, String)> {
    let mut path = path.to_owned();
    while let Some(crate::system::PathKind::Link(target)) = machine.stat(&path).map(|stat| stat.kind) {
        path = target;
    }
    let content = machine.content(&path)?;
    if let Some(is) = machine.packages.claimed.get(content.sha256()) {
        return Some(is.clone());
    }
    let text = String::from_utf8_lossy(content.bytes()).into_owned();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
    Some((field("Package:")?, field("Version:")?))
}

/// A package file that [`identify`] can read.
fn file(name: &str, version: &str) -> Vec<u8> {
    format!("Package: {name}\nVersion: {version}\n").into_bytes()
}

fn ran(status: i32, text: &str) -> ProgramResult {
    ProgramResult { status: Some(status), tail: text.to_owned(), stdout: text.to_owned(), timed_out: false }
}

/// Runs a program of a package manager or for kernels, if it is one.
pub(super) fn run(machine: &mut Machine, run: &ProgramRun<'_>) -> Option<ProgramResult> {
    let (program, arguments) = run.argv.split_first()?;
    deb::run(machine, program, arguments)
        .or_else(|| rpm::run(machine, program, arguments))
        .or_else(|| kernel::run(machine, program, arguments))
}

/// Leaves the state of an interrupted run of such a program.
pub(super) fn run_half(machine: &mut Machine, run: &ProgramRun<'_>) {
    let Some((program, arguments)) = run.argv.split_first() else { return };
    deb::run_half(machine, program, arguments);
    rpm::run_half(machine, program, arguments);
    kernel::run_half(machine, program);
}

/// The parsed arguments of apt-get and dnf.
#[derive(Debug, Default)]
struct Asked<'a> {
    verb: &'a str,
    flags: BTreeSet<&'a str>,
    /// Directory for downloads.
    folder: Option<String>,
    /// Nothing is downloaded from a repository.
    offline: bool,
    targets: Vec<&'a str>,
}

fn asked<'a>(arguments: &[&'a str]) -> Asked<'a> {
    let mut asked = Asked::default();
    let mut arguments = arguments.iter().copied();
    while let Some(argument) = arguments.next() {
        if argument == "-o" {
            let setting = arguments.next().unwrap_or_default();
            if let Some(folder) = setting.strip_prefix("Dir::Cache::archives=") {
                asked.folder = Some(folder.trim_end_matches('/').to_owned());
            }
            asked.offline |= setting == "Dir::Etc::SourceList=/dev/null";
        } else if let Some(folder) = argument.strip_prefix("--downloaddir=") {
            asked.folder = Some(folder.to_owned());
        } else if argument.starts_with("--") {
            asked.flags.insert(argument);
        } else if asked.verb.is_empty() {
            asked.verb = argument;
        } else {
            asked.targets.push(argument);
        }
    }
    asked
}

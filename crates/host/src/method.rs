//! The installation methods: one module each, behind one trait.

use std::time::Duration;

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{self as wire, Deviation, Package};

use crate::System;
use crate::system::{ProgramResult, ProgramRun, UpcomingQueries};
use crate::text::Tail;

mod config;
mod deb;
mod kernel;
mod os;
mod packages;
mod reboot;
mod rpm;
mod script;
mod sysctl;
mod tarball;

pub(crate) use script::SHELL;

/// The method that a package declares. The only place that lists all methods.
pub fn of(package: &Package) -> &'static dyn Method {
    match package.method {
        wire::Method::Deb(_) => &deb::Deb,
        wire::Method::Rpm(_) => &rpm::Rpm,
        wire::Method::Tarball(_) => &tarball::Tarball,
        wire::Method::Config => &config::Config,
        wire::Method::Sysctl(_) => &sysctl::Sysctl,
        wire::Method::Kernel(_) => &kernel::Kernel,
        wire::Method::Script(_) => &script::Script,
        wire::Method::Reboot => &reboot::Reboot,
    }
}

/// Directory of the methods' records of a component: [`MethodContext::folder`].
pub fn folder(component: &str) -> String {
    format!("{}/packages/{component}/method", wire::HOME)
}

/// The inputs and tools of a method.
pub struct MethodContext<'a> {
    /// The host.
    pub system: &'a mut dyn System,
    pub package: &'a Package,
    /// The package that was installed before, if any.
    pub before: Option<&'a Package>,
    /// Directory of fetched files, by digest. See [`crate::fetch::source`].
    pub cache: &'a str,
    /// Directory of the records that the method needs to undo its changes, such as the earlier state. It is deleted with the component.
    pub folder: &'a str,
    /// Deadline, by [`System::elapsed`].
    pub until: Duration,
    /// Downloads are not allowed.
    pub offline: bool,
    /// Reports progress to people.
    pub on_progress: &'a mut dyn FnMut(String),
    /// The end of the output of all programs that ran.
    pub log: &'a mut Tail,
}

impl MethodContext<'_> {
    /// The time until the deadline.
    ///
    /// # Errors
    /// When the deadline is over.
    pub fn left(&self) -> Result<Duration, MethodError> {
        let left = self.until.saturating_sub(self.system.elapsed());
        if left.is_zero() {
            return Err(MethodError("the step timed out".to_owned()));
        }
        Ok(left)
    }

    /// Reports progress to people.
    pub fn say(&mut self, doing: impl Into<String>) {
        (self.on_progress)(doing.into());
    }

    /// Runs a program until the deadline and keeps its output.
    ///
    /// # Errors
    /// When the program cannot be started or is killed by the deadline. The caller must check its exit status.
    pub fn run(&mut self, argv: &[&str], input: &[u8], env: &[(&str, &str)]) -> Result<ProgramResult, MethodError> {
        let name = argv.first().copied().unwrap_or_default();
        let within = self.left()?;
        let ran = self
            .system
            .run(&ProgramRun { argv, input, env, within })
            .map_err(|error| MethodError(format!("cannot run {name}: {error}")))?;
        self.log.push(&ran.tail);
        if ran.timed_out {
            return Err(MethodError(format!(
                "{name} was killed after {}s, because the step timed out",
                within.as_secs()
            )));
        }
        Ok(ran)
    }

    /// Runs a program that must exit with 0; see [`MethodContext::run`].
    ///
    /// # Errors
    /// Also when it exits with any other status, with its last line of output.
    pub fn must(&mut self, argv: &[&str], input: &[u8], env: &[(&str, &str)]) -> Result<ProgramResult, MethodError> {
        let ran = self.run(argv, input, env)?;
        if ran.ok() {
            return Ok(ran);
        }
        Err(MethodError(format!("{} {}", argv.first().copied().unwrap_or_default(), ended(&ran))))
    }
}

/// How a program failed, for people: its status and its last line of output.
pub fn ended(ran: &ProgramResult) -> String {
    let how = match (ran.timed_out, ran.status) {
        (true, _) => "timed out".to_owned(),
        (false, Some(status)) => format!("exited with {status}"),
        (false, None) => "was killed".to_owned(),
    };
    match ran.tail.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("{how}: {}", truncate_bytes(line, 300)),
        None => how,
    }
}

/// Why a method failed. For people: what failed, on which object, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MethodError(pub String);

impl MethodError {
    /// The error of a failed call of the system.
    pub fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self(format!("{what}: {error}"))
    }
}

/// One installation method. Files and units of the package are handled for all methods by common code.
///
/// Every function may be called again after it was interrupted anywhere: it reads the present state and continues from there.
pub trait Method {
    /// The installed version, by whomever it was installed; none if there is none.
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError>;

    /// The deviations of the host from the package. Changes nothing.
    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError>;

    /// Adds the queries of [`Method::version`] and [`Method::deviations`], for callers that query all packages at once.
    fn foretell<'a>(&self, _package: &'a Package, _coming: &mut UpcomingQueries<'a>) {}

    /// Whether a reboot is needed before the package is effective.
    fn needs_reboot(&self, _system: &dyn System, _package: &Package) -> Result<bool, MethodError> {
        Ok(false)
    }

    /// Fetches and verifies everything that [`Method::apply`] needs, without changing running services.
    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError>;

    /// The files and links outside of its own directories that the method writes for this package. The caller saves their earlier content,
    /// and restores it, or removes them with the directories created for them, when the package or a later one no longer has them.
    fn paths(&self, _package: &Package) -> Vec<String> {
        Vec::new()
    }

    /// Whether the package's files must be written first. Other methods create the users that own the files, or defaults that the files replace.
    fn after_files(&self) -> bool {
        false
    }

    /// Installs the package over the present state. True if something changed for which units must be restarted.
    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError>;

    /// Removes everything that [`Method::apply`] installed, and nothing else.
    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError>;

    /// Removes the kept data of versions that no rollback can reach: all but the package itself and these.
    fn prune(&self, _work: &mut MethodContext<'_>, _kept: &[Package]) -> Result<(), MethodError> {
        Ok(())
    }
}

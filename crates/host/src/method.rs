//! The ways of installing: one module each, behind one trait.

use std::time::Duration;

use fleetwright_wire::{self as wire, Deviation, Package};

use crate::System;
use crate::system::{ProgramResult, ProgramRun, UpcomingQueries};
use crate::text::Tail;

mod config;
mod deb;
mod kernel;
mod os;
mod reboot;
mod rpm;
mod script;
mod sysctl;
mod tarball;

pub(crate) use script::SHELL;

/// The way of installing that a package declares. The one place that knows them all.
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

/// Where the methods remember what they must of a component: [`MethodContext::folder`].
pub fn folder(component: &str) -> String {
    format!("{}/packages/{component}/method", wire::HOME)
}

/// What a method is given to work with.
pub struct MethodContext<'a> {
    /// The host.
    pub system: &'a mut dyn System,
    /// The package.
    pub package: &'a Package,
    /// What was installed before it, if anything was.
    pub before: Option<&'a Package>,
    /// Where fetched files are kept, by digest. See [`crate::fetch::source`].
    pub cache: &'a str,
    /// A folder for what the method must remember of the component to undo it, such as what was there before. Goes when it is removed.
    pub folder: &'a str,
    /// It ends when [`System::elapsed`] says this.
    pub until: Duration,
    /// Nothing may be fetched from elsewhere.
    pub offline: bool,
    /// Tells people how far it is.
    pub tell: &'a mut dyn FnMut(String),
    /// What was printed by what was run, bounded to its end.
    pub log: &'a mut Tail,
}

impl MethodContext<'_> {
    /// How much time is left.
    ///
    /// # Errors
    /// When none is.
    pub fn left(&self) -> Result<Duration, MethodError> {
        let left = self.until.saturating_sub(self.system.elapsed());
        if left.is_zero() {
            return Err(MethodError("the step timed out".to_owned()));
        }
        Ok(left)
    }

    /// Tells people what is being done.
    pub fn say(&mut self, doing: impl Into<String>) {
        (self.tell)(doing.into());
    }

    /// Runs a program within the time that is left and keeps what it prints.
    ///
    /// # Errors
    /// When it cannot be started or takes too long. How it ended is for the caller to look at.
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

    /// Runs a program that must end with 0; see [`MethodContext::run`].
    ///
    /// # Errors
    /// Also when it ends with anything else, with the last line that it printed.
    pub fn must(&mut self, argv: &[&str], input: &[u8], env: &[(&str, &str)]) -> Result<ProgramResult, MethodError> {
        let ran = self.run(argv, input, env)?;
        if ran.ok() {
            return Ok(ran);
        }
        Err(MethodError(format!("{} {}", argv.first().copied().unwrap_or_default(), ended(&ran))))
    }
}

/// How a program ended that did not end well, for people: its status and the last line that it printed.
pub fn ended(ran: &ProgramResult) -> String {
    let how = match (ran.timed_out, ran.status) {
        (true, _) => "timed out".to_owned(),
        (false, Some(status)) => format!("exited with {status}"),
        (false, None) => "was killed".to_owned(),
    };
    match ran.tail.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("{how}: {}", crate::text::clip(line, 300)),
        None => how,
    }
}

/// Why a method could not do its work. For people: what failed, on what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MethodError(pub String);

impl MethodError {
    /// For a call of the system that failed.
    pub fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self(format!("{what}: {error}"))
    }
}

/// One way of installing. Files and units of the package are not its business: the same code keeps those for all methods.
///
/// Every function may be called again after it was interrupted anywhere: it finds what is there and goes on from it.
pub trait Method {
    /// The version that is there now, whoever brought it; none if nothing is.
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError>;

    /// How the host differs from the package. Changes nothing.
    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError>;

    /// Adds what [`Method::version`] and [`Method::deviations`] will ask the system about, for those that ask for all packages at once.
    fn foretell<'a>(&self, _package: &'a Package, _coming: &mut UpcomingQueries<'a>) {}

    /// Whether a boot is needed before the package is in place.
    fn needs_reboot(&self, _system: &dyn System, _package: &Package) -> Result<bool, MethodError> {
        Ok(false)
    }

    /// Fetches and checks everything that [`Method::apply`] needs, without changing what runs.
    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError>;

    /// The files and links outside of its own folders that it writes for this package. Whoever calls it keeps aside what was there before,
    /// and puts that back, or removes them with the folders that were made for them, when the package or a later one has them no more.
    fn paths(&self, _package: &Package) -> Vec<String> {
        Vec::new()
    }

    /// Whether it wants the package's files in place first. Others bring the users that own them, or defaults that they replace.
    fn after_files(&self) -> bool {
        false
    }

    /// Brings the host to the package, from what is there. True if something changed that units must be restarted for.
    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError>;

    /// Takes it away again: everything that apply brought and nothing else.
    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError>;

    /// Drops what it keeps of versions that nobody can go back to any more: all but the package itself and these.
    fn prune(&self, _work: &mut MethodContext<'_>, _kept: &[Package]) -> Result<(), MethodError> {
        Ok(())
    }
}

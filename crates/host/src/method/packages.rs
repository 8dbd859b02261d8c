//! Packages of the host's operating system: one flow for the methods `deb` and `rpm`. A [`PackageManager`] has only what differs.
//!
//! Exact versions, one transaction, and no package of others removed. Package files from a repository are kept beside the record, so that a
//! rollback needs no network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{self as wire, Deviation, Package, Source};

use super::os::{self, Earlier, Record, RemovalEffects};
use super::{Method, MethodContext, MethodError, ended};
use crate::system::{ProgramResult, ProgramRun, UpcomingQueries};
use crate::{System, fetch};

mod cache;
mod removal;

pub(super) use cache::{archives, prune, remember_kept};
use cache::{kept_or_named, take_from_repository};
pub(super) use removal::{remove, take_away};

/// Timeout of a query. A query changes nothing and takes seconds; after minutes it is stuck.
pub(super) const LOOK: Duration = Duration::from_secs(120);

/// Delay before the next attempt while another program holds the package manager's lock. dnf itself waits for other dnfs.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Directory of links to the declared package files: package managers require names with their ending, and the cache is named by digest.
const LINKS: &str = "files";

/// The installed versions of packages.
pub(super) type InstalledVersions = BTreeMap<String, BTreeSet<String>>;

/// The declared packages.
pub(super) struct Declared<'a> {
    /// The packages and their exact versions.
    pub packages: &'a BTreeMap<String, String>,
    /// The package files; none to use the configured repositories.
    pub sources: &'a [Source],
    /// Whether the packages are held at their version.
    pub hold: bool,
    /// Whether several versions of a package may be installed beside each other, as of kernels in RPM packages.
    pub beside: bool,
}

impl Declared<'_> {
    /// The key of a declared package in the record: its name, or name and version if several may be installed.
    fn key(&self, name: &str, version: &str) -> String {
        if self.beside { format!("{name}-{version}") } else { name.to_owned() }
    }

    fn keys(&self) -> Vec<String> {
        self.packages.iter().map(|(name, version)| self.key(name, version)).collect()
    }

    /// The packages that are not as declared.
    fn wrong(&self, there: &InstalledVersions) -> BTreeMap<String, String> {
        let right = |name: &String, version: &String| {
            there.get(name).is_some_and(|versions| versions.contains(version) && (self.beside || versions.len() == 1))
        };
        let wrong = self.packages.iter().filter(|(name, version)| !right(name, version));
        wrong.map(|(name, version)| (name.clone(), version.clone())).collect()
    }
}

/// A package to install.
pub(super) struct Target {
    /// A file, or name and version.
    pub path: String,
    /// The name of a package that is not declared and only a dependency.
    pub with: Option<String>,
}

/// What differs between the package managers.
pub(super) trait PackageManager {
    /// Name of the record in the component's directory.
    const RECORD: &'static str;
    /// Directory of the kept package files, below that of the record.
    const ARCHIVES: &'static str;
    /// Further directories below that of the record, which are removed with the packages.
    const FOLDERS: &'static [&'static str];
    /// Ending of package files.
    const ENDING: &'static str;
    /// What stands between the name and the version of a package to install.
    const BETWEEN: &'static str;
    /// Its packages, for messages.
    const PACKAGES: &'static str;
    /// A package file, for messages.
    const FILE: &'static str;
    /// What the method requires of a host, for messages.
    const REQUIRES: &'static str;
    /// The environment of its programs.
    const ENV: &'static [(&'static str, &'static str)];
    /// The program that prints name and version of a package file, and its arguments before the path.
    const IDENTIFY: &'static [&'static str];
    /// The owner of its lock, for messages.
    const LOCK: &'static str;
    /// Output of a program that did not get the lock.
    const LOCKED: &'static [&'static str];

    /// The declared packages of a package: of its own method, or of a kernel.
    fn declared(package: &Package) -> Option<Declared<'_>>;

    /// Adds the queries about a package; see [`Method::foretell`].
    fn add_queries<'a>(_package: &'a Package, _coming: &mut UpcomingQueries<'a>) {}

    /// The message about the program that holds the lock, from the output of the one that waits.
    fn lock_holder(said: &str) -> String;
    /// What to do after a failure with that output.
    fn advice(said: &str) -> &'static str;
    /// Whether a line of output is an error, and not its consequence.
    fn is_error(line: &str) -> bool;

    /// The start of the names of the kept files of that version.
    fn kept_start(name: &str, version: &str) -> String;
    /// Name of the link to a declared package file.
    fn file_name(name: &str, version: &str) -> String;

    /// The installed versions of these packages. Configured ones only.
    fn installed<'a>(
        system: &dyn System,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<InstalledVersions, MethodError>;
    /// Those of these packages that are on the host in any state, such as half-installed.
    fn present<'a>(
        work: &MethodContext<'_>,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeSet<String>, MethodError>;
    /// The held packages, by whomever they are held: at least those of these packages.
    fn held<'a>(system: &dyn System, names: impl Iterator<Item = &'a String>) -> Result<BTreeSet<String>, MethodError>;
    /// The declared packages that are installed and not held.
    fn not_held(
        system: &dyn System,
        declared: &Declared<'_>,
        wrong: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, MethodError>;
    /// Deviations that an interrupted transaction left beside the packages.
    fn leftovers(_system: &dyn System) -> Result<Vec<Deviation>, MethodError> {
        Ok(Vec::new())
    }

    /// Removes what an interrupted transaction left beside the packages.
    fn recover(_work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        Ok(())
    }
    /// Finishes an interrupted transaction, unless it concerns packages that are installed now.
    fn mend(_work: &mut MethodContext<'_>, _wrong: &BTreeMap<String, String>) -> Result<(), MethodError> {
        Ok(())
    }

    /// Refuses packages that cannot be installed on this host.
    fn check(
        _work: &MethodContext<'_>,
        _declared: &Declared<'_>,
        _wrong: &BTreeMap<String, String>,
    ) -> Result<(), MethodError> {
        Ok(())
    }
    /// Keeps the files of versions from before our first change, as far as a repository still has them.
    fn keep_earlier(
        work: &mut MethodContext<'_>,
        record: &mut Record,
        declared: &Declared<'_>,
        wrong: &BTreeMap<String, String>,
        there: &InstalledVersions,
    ) -> Result<(), MethodError>;
    /// Downloads packages from the configured repositories into the component's directory.
    fn download(
        work: &mut MethodContext<'_>,
        record: &Record,
        wrong: &BTreeMap<String, String>,
        missing: &[String],
    ) -> Result<(), MethodError>;

    /// Whether a version is newer than another one, in the package manager's order.
    fn is_newer(work: &MethodContext<'_>, version: &str, than: &str) -> Result<bool, MethodError>;
    /// Releases the holds of these packages, as far as they are held.
    fn release(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<(), MethodError>;
    /// The effects of an installation, without the declared packages.
    fn plan(
        work: &mut MethodContext<'_>,
        declared: &Declared<'_>,
        targets: &[Target],
    ) -> Result<RemovalEffects, MethodError>;
    /// Installs packages.
    fn run_install(
        work: &mut MethodContext<'_>,
        declared: &Declared<'_>,
        targets: &[Target],
        plan: &RemovalEffects,
    ) -> Result<ProgramResult, MethodError>;
    /// The program that installs packages.
    fn program(system: &dyn System) -> Result<&'static str, MethodError>;
    /// Marks packages as dependencies; false if the package manager has no such mark.
    fn mark_dependencies(work: &mut MethodContext<'_>, names: &[&str]) -> Result<bool, MethodError>;
    /// Removes the other versions of a package, which an interrupted transaction left.
    fn remove_doubles(_work: &mut MethodContext<'_>, _name: &str, _version: &str) -> Result<(), MethodError> {
        Ok(())
    }
    /// Holds the packages that are declared as held, and releases our holds that are no longer declared.
    fn hold(work: &mut MethodContext<'_>, declared: &Declared<'_>, record: &mut Record) -> Result<(), MethodError>;

    /// Our dependencies that somebody installed by name since: they are no longer ours.
    fn wanted_for_themselves(
        work: &MethodContext<'_>,
        pulled: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, MethodError>;
    /// The effects of removing packages.
    fn would_remove(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<RemovalEffects, MethodError>;
    /// Removes packages.
    fn run_remove(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<ProgramResult, MethodError>;
    /// Installs an earlier version.
    fn run_restore(work: &mut MethodContext<'_>, target: &str) -> Result<ProgramResult, MethodError>;
    /// Holds a package that was held before our first change.
    fn hold_again(work: &mut MethodContext<'_>, name: &str, version: &str) -> Result<(), MethodError>;
}

/// Runs a query that changes nothing and does not belong in the step's output.
pub(super) fn look<M: PackageManager>(work: &MethodContext<'_>, argv: &[&str]) -> Result<ProgramResult, MethodError> {
    let within = work.left()?.min(LOOK);
    let name = argv.first().copied().unwrap_or_default();
    let ran = work
        .system
        .look(&ProgramRun { argv, input: &[], env: M::ENV, within })
        .map_err(|error| MethodError(format!("cannot run {name}: {error}; {}", M::REQUIRES)))?;
    if ran.timed_out {
        return Err(MethodError(format!("{name} timed out after {}s", within.as_secs())));
    }
    Ok(ran)
}

/// Runs a program, again while another program holds the lock, until the step's timeout.
pub(super) fn patiently<M: PackageManager>(
    work: &mut MethodContext<'_>,
    argv: &[&str],
) -> Result<ProgramResult, MethodError> {
    loop {
        let ran = work.run(argv, &[], M::ENV)?;
        if ran.ok() || !locked::<M>(&ran.tail) {
            return Ok(ran);
        }
        work.say(format!("waiting: {}", M::lock_holder(&ran.tail)));
        if work.left()? <= LOCK_RETRY_INTERVAL {
            return Ok(ran);
        }
        work.system.pause(LOCK_RETRY_INTERVAL);
    }
}

pub(super) fn locked<M: PackageManager>(said: &str) -> bool {
    M::LOCKED.iter().any(|sign| said.contains(*sign))
}

/// Why a program of the package manager failed, in its own words, and what to do.
pub(super) fn explain<M: PackageManager>(ran: &ProgramResult) -> String {
    let said = &ran.tail;
    let advice = match locked::<M>(said) {
        true => {
            format!("timed out waiting for {}'s lock: find the program that holds it, and let it finish", M::LOCK)
        }
        false => M::advice(said).to_owned(),
    };
    let errors: Vec<&str> = said.lines().map(str::trim).filter(|line| M::is_error(line)).take(3).collect();
    match errors.is_empty() {
        true => format!("{}; {advice}", ended(ran)),
        false => format!("{}; {advice}", truncate_bytes(&errors.join("; "), 600)),
    }
}

impl<M: PackageManager> Method for M {
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
        version::<M>(system, package)
    }

    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
        deviations::<M>(system, package)
    }

    fn foretell<'a>(&self, package: &'a Package, coming: &mut UpcomingQueries<'a>) {
        M::add_queries(package, coming);
    }

    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        prepare::<M>(work)
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        install::<M>(work)
    }

    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        remove::<M>(work)
    }

    fn prune(&self, work: &mut MethodContext<'_>, kept: &[Package]) -> Result<(), MethodError> {
        prune::<M>(work, kept)
    }
}

fn declared<M: PackageManager>(package: &Package) -> Result<Declared<'_>, MethodError> {
    M::declared(package).ok_or_else(|| MethodError(format!("{} declares no {}", package.reference, M::PACKAGES)))
}

/// The component's version; see [`super::Method::version`].
fn version<M: PackageManager>(system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
    let declared = declared::<M>(package)?;
    let there = M::installed(system, declared.packages.keys())?;
    // The declared version if it is installed, otherwise all installed versions.
    Ok(os::version(&package.version, declared.packages, |name| {
        let versions = there.get(name)?;
        let wanted = declared.packages.get(name).filter(|version| versions.contains(*version));
        Some(wanted.cloned().unwrap_or_else(|| all(versions)))
    }))
}

fn all(versions: &BTreeSet<String>) -> String {
    versions.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
}

/// The deviations of the host from the declared packages.
fn deviations<M: PackageManager>(system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
    let declared = declared::<M>(package)?;
    let there = M::installed(system, declared.packages.keys())?;
    let wrong = declared.wrong(&there);
    let mut deviations = os::version_deviations(package, declared.packages, |name| {
        let versions = there.get(name)?;
        match wrong.contains_key(name) {
            false => declared.packages.get(name).cloned(),
            true => Some(all(versions)),
        }
    });
    if declared.hold {
        for name in M::not_held(system, &declared, &wrong)? {
            deviations.push(Deviation {
                what: format!("package {name} hold"),
                found: "not held".to_owned(),
                wanted: "held".to_owned(),
                disrupts: false,
            });
        }
    }
    deviations.extend(M::leftovers(system)?);
    Ok(deviations)
}

/// Fetches the package files, and those of the installed versions.
fn prepare<M: PackageManager>(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let declared = declared::<M>(work.package)?;
    let there = M::installed(work.system, declared.packages.keys())?;
    let wrong = declared.wrong(&there);
    if !declared.sources.is_empty() {
        // All files, even if nothing is to be installed: a rollback needs them.
        let files = files::<M>(work, declared.sources)?;
        for (name, version) in declared.packages {
            if !files.iter().any(|file| file.name == *name && file.version == *version) {
                let had: Vec<_> = files.iter().map(|file| format!("{} {}", file.name, file.version)).collect();
                return Err(MethodError(format!(
                    "no source contains {name} {version}, only {}; add its file to `sources`, or correct the version in `packages`",
                    had.join(", ")
                )));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    M::check(work, &declared, &wrong)?;
    let mut record = Record::load(work, M::RECORD)?;
    M::keep_earlier(work, &mut record, &declared, &wrong, &there)?;
    if declared.sources.is_empty() {
        take_from_repository::<M>(work, &mut record, &wrong)?;
    }
    Ok(())
}

/// A package file among the sources.
struct File {
    name: String,
    version: String,
    path: String,
}

/// Fetches the sources and reads their package names.
fn files<M: PackageManager>(work: &mut MethodContext<'_>, sources: &[Source]) -> Result<Vec<File>, MethodError> {
    let mut files = Vec::new();
    for source in sources {
        let path = fetch::source(work, source)?;
        let ran = {
            let mut argv = M::IDENTIFY.to_vec();
            argv.push(&path);
            look::<M>(work, &argv)?
        };
        let mut words = ran.stdout.split_whitespace();
        match (ran.ok(), words.next(), words.next()) {
            (true, Some(name), Some(version)) => {
                files.push(File { name: name.to_owned(), version: version.to_owned(), path });
            }
            _ => {
                let from = source.urls.first().map_or("the inline source", String::as_str);
                return Err(MethodError(format!("{from} is not {}: {} {}", M::FILE, M::IDENTIFY[0], ended(&ran))));
            }
        }
    }
    Ok(files)
}

/// Installs the declared packages. True if a package was changed.
fn install<M: PackageManager>(work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
    let declared = declared::<M>(work.package)?;
    let there = M::installed(work.system, declared.packages.keys())?;
    let wrong = declared.wrong(&there);
    let mut record = Record::load(work, M::RECORD)?;
    let held = M::held(work.system, declared.packages.keys())?;
    let keys = declared.keys();
    record.note(keys.iter(), |key| {
        let earlier = |version: &String| Earlier { version: version.clone(), held: held.contains(key) };
        match declared.beside {
            // The package is ours even if another version is installed beside it.
            true => {
                let of = declared.packages.iter().find(|(name, version)| declared.key(name, version) == key);
                of.filter(|(name, version)| there.get(*name).is_some_and(|versions| versions.contains(*version)))
                    .map(|(_, version)| earlier(version))
            }
            false => there.get(key).and_then(|versions| versions.iter().next()).map(earlier),
        }
    });
    record.save(work, M::RECORD)?;
    M::recover(work)?;
    if !wrong.is_empty() {
        M::mend(work, &wrong)?;
        transaction::<M>(work, &declared, &mut record, &wrong)?;
    }
    let obsolete: BTreeSet<String> = record.before.keys().filter(|key| !keys.contains(key)).cloned().collect();
    // Kernels stay beside each other: the running one may be among them. The method `kernel` removes those that no rollback needs.
    if !obsolete.is_empty() && !matches!(work.package.method, wire::Method::Kernel(_)) {
        take_away::<M>(work, &mut record, &obsolete, &BTreeSet::new())?;
    }
    M::hold(work, &declared, &mut record)?;
    Ok(!wrong.is_empty())
}

fn transaction<M: PackageManager>(
    work: &mut MethodContext<'_>,
    declared: &Declared<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
) -> Result<(), MethodError> {
    let targets = targets::<M>(work, declared, record, wrong)?;
    let named = os::exact(wrong, M::BETWEEN).join(", ");
    // The holds of these packages, ours and those of a person: a declared package is ours now. All other holds stay.
    M::release(work, &wrong.keys().cloned().collect())?;
    let plan =
        M::plan(work, declared, &targets).map_err(|error| MethodError(format!("cannot install {named}: {error}")))?;
    let ours = record.ours();
    let foreign: Vec<&str> = plan.removes.difference(&ours).map(String::as_str).collect();
    if !foreign.is_empty() {
        return Err(MethodError(format!(
            "{named} conflicts with {}, which Fleetwright did not install: remove it by hand, or do not install this component",
            foreign.join(", ")
        )));
    }
    record.pull(plan.installs.iter().cloned());
    record.save(work, M::RECORD)?;
    work.say(format!("installing {named}"));
    let ran = M::run_install(work, declared, &targets, &plan)?;
    if !ran.ok() {
        return Err(MethodError(format!("cannot install {named}: {}", explain::<M>(&ran))));
    }
    // Packages named on the command line, or unpacked by an interrupted transaction, would be marked as installed by the user.
    let with_them = targets.iter().filter_map(|target| target.with.as_ref());
    let unmarked: Vec<&str> =
        with_them.chain(&record.pending).filter(|name| record.pulled.contains(*name)).map(String::as_str).collect();
    if !unmarked.is_empty() && M::mark_dependencies(work, &unmarked)? {
        record.pending.clear();
        record.save(work, M::RECORD)?;
    }
    for (name, version) in declared.packages.iter().filter(|_| !declared.beside) {
        M::remove_doubles(work, name, version)?;
    }
    let still = declared.wrong(&M::installed(work.system, declared.packages.keys())?);
    if still.is_empty() {
        return Ok(());
    }
    Err(MethodError(format!(
        "{} succeeded, but {} is not installed: see the output for what it installed instead",
        M::program(work.system)?,
        os::exact(&still, M::BETWEEN).join(", ")
    )))
}

/// The packages to install: names and versions, kept files, or links to the declared files.
fn targets<M: PackageManager>(
    work: &mut MethodContext<'_>,
    declared: &Declared<'_>,
    record: &Record,
    wrong: &BTreeMap<String, String>,
) -> Result<Vec<Target>, MethodError> {
    let mut targets = Vec::new();
    if declared.sources.is_empty() {
        for (name, version) in wrong {
            targets.push(Target { path: kept_or_named::<M>(work, record, name, version)?, with: None });
        }
        return Ok(targets);
    }
    let links = format!("{}/{LINKS}", work.folder);
    work.system.remove(&links).map_err(MethodError::io(&links))?;
    for file in files::<M>(work, declared.sources)? {
        let mut with = None;
        if declared.packages.get(&file.name).is_some_and(|version| *version == file.version) {
            if !wrong.contains_key(&file.name) {
                continue;
            }
        } else {
            // A dependency is never downgraded for us.
            let there = M::installed(work.system, std::iter::once(&file.name))?;
            let mut newer = true;
            for version in there.get(&file.name).into_iter().flatten() {
                newer &= M::is_newer(work, &file.version, version)?;
            }
            if !newer {
                continue;
            }
            with = Some(file.name.clone());
        }
        let link = format!("{links}/{}", M::file_name(&file.name, &file.version));
        work.system.link(&link, &file.path).map_err(MethodError::io(&link))?;
        targets.push(Target { path: link, with });
    }
    Ok(targets)
}

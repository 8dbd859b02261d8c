//! Debian packages, by apt-get: exact versions, one transaction, no service started and no package of others removed.
//!
//! Package files from a repository are kept beside the record, so that a rollback needs no network.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_wire::{self as wire, Deviation, Package};

use super::os::{self, Earlier, OtherRecords, Record, RemovalEffects, shown};
use super::{Method, MethodContext, MethodError, ended};
use crate::system::{DebState, UpcomingQueries};
use crate::{System, fetch};

mod apt;
mod package_cache;
mod removal;
mod services;

use apt::{explain, look, mark, options, patiently, simulate};
pub(super) use package_cache::prune;
use package_cache::{download, keep_earlier, kept};
use removal::take_away;
pub(super) use removal::{allow_running_kernel, drop_obsolete, remove};
use services::{POLICY, allow_services, deny_services, policy_is_ours};

/// The record's name in the component's directory.
const RECORD: &str = "deb";

/// The method `deb`; see the module.
pub(super) struct Deb;

impl Method for Deb {
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
        let deb = declared(package)?;
        let there = debs(system, deb)?;
        Ok(os::version(&package.version, &deb.packages, |name| there.get(name).map(|state| state.version.clone())))
    }

    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
        deviations(system, package, declared(package)?)
    }

    fn foretell<'a>(&self, package: &'a Package, coming: &mut UpcomingQueries<'a>) {
        foretell(package, coming);
    }

    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        let package = work.package;
        prepare(work, declared(package)?)
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        let package = work.package;
        install(work, declared(package)?)
    }

    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        remove(work)
    }

    fn prune(&self, work: &mut MethodContext<'_>, kept: &[Package]) -> Result<(), MethodError> {
        prune(work, kept)
    }
}

fn declared(package: &Package) -> Result<&wire::Deb, MethodError> {
    of(package).ok_or_else(|| MethodError(format!("{} declares no Debian packages", package.reference)))
}

/// The Debian packages of a package: of the method deb, or of a kernel.
fn of(package: &Package) -> Option<&wire::Deb> {
    match &package.method {
        wire::Method::Deb(deb) => Some(deb),
        wire::Method::Kernel(kernel) => kernel.deb.as_ref(),
        _ => None,
    }
}

/// Adds the queries about these packages, for an observation that asks about all packages at once.
pub(super) fn foretell<'a>(package: &'a Package, coming: &mut UpcomingQueries<'a>) {
    coming.debs.extend(of(package).iter().flat_map(|deb| deb.packages.keys()).map(String::as_str));
}

fn debs(system: &dyn System, deb: &wire::Deb) -> Result<BTreeMap<String, DebState>, MethodError> {
    states(system, deb.packages.keys())
}

fn states<'a>(
    system: &dyn System,
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, DebState>, MethodError> {
    let names: Vec<&str> = names.map(String::as_str).collect();
    system.debs(&names).map_err(MethodError::io("cannot list the installed packages with dpkg"))
}

/// The deviations of the host from the declared packages.
pub(super) fn deviations(
    system: &dyn System,
    package: &Package,
    deb: &wire::Deb,
) -> Result<Vec<Deviation>, MethodError> {
    let there = debs(system, deb)?;
    let mut deviations =
        os::version_deviations(package, &deb.packages, |name| there.get(name).map(|state| state.version.clone()));
    for name in deb.packages.keys() {
        if deb.hold && there.get(name).is_some_and(|state| !state.held) {
            deviations.push(Deviation {
                what: format!("package {name} hold"),
                found: "not held".to_owned(),
                wanted: "held".to_owned(),
                disrupts: false,
            });
        }
    }
    if policy_is_ours(system)? {
        deviations.push(Deviation {
            what: format!("file {POLICY}"),
            found: "left by an interrupted transaction: packages cannot start services".to_owned(),
            wanted: "absent".to_owned(),
            disrupts: false,
        });
    }
    Ok(deviations)
}

/// The packages that are not as declared.
fn wrong(deb: &wire::Deb, there: &BTreeMap<String, DebState>) -> BTreeMap<String, String> {
    let differs =
        |(name, version): &(&String, &String)| there.get(*name).is_none_or(|state| state.version != **version);
    deb.packages.iter().filter(differs).map(|(name, version)| (name.clone(), version.clone())).collect()
}

/// Fetches the package files, and those of the installed versions.
pub(super) fn prepare(work: &mut MethodContext<'_>, deb: &wire::Deb) -> Result<(), MethodError> {
    let there = debs(work.system, deb)?;
    let wrong = wrong(deb, &there);
    if !deb.sources.is_empty() {
        // All files, even if nothing is to be installed: a rollback needs them.
        let files = files(work, deb)?;
        for (name, version) in &deb.packages {
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
    let mut record = Record::load(work, RECORD)?;
    keep_earlier(work, &mut record, &wrong, &there)?;
    if deb.sources.is_empty() {
        download(work, &mut record, &wrong)?;
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
fn files(work: &mut MethodContext<'_>, deb: &wire::Deb) -> Result<Vec<File>, MethodError> {
    let mut files = Vec::new();
    for source in &deb.sources {
        let path = fetch::source(work, source)?;
        let ran = look(work, &["dpkg-deb", "--show", "--showformat=${Package} ${Version}\\n", &path])?;
        let mut words = ran.stdout.split_whitespace();
        match (ran.ok(), words.next(), words.next()) {
            (true, Some(name), Some(version)) => {
                files.push(File { name: name.to_owned(), version: version.to_owned(), path });
            }
            _ => {
                let from = source.urls.first().map_or("the inline source", String::as_str);
                return Err(MethodError(format!("{from} is not a Debian package: dpkg-deb {}", ended(&ran))));
            }
        }
    }
    Ok(files)
}

/// Installs the declared packages. True if a package was changed.
pub(super) fn install(work: &mut MethodContext<'_>, deb: &wire::Deb) -> Result<bool, MethodError> {
    let there = debs(work.system, deb)?;
    let wrong = wrong(deb, &there);
    let mut record = Record::load(work, RECORD)?;
    record.note(deb.packages.keys(), |name| {
        there.get(name).map(|state| Earlier { version: state.version.clone(), held: state.held })
    });
    record.save(work, RECORD)?;
    allow_services(work)?;
    let obsolete: BTreeSet<String> =
        record.before.keys().filter(|name| !deb.packages.contains_key(*name)).cloned().collect();
    if !wrong.is_empty() {
        mend(work, &wrong)?;
        transaction(work, deb, &mut record, &wrong, &there)?;
    }
    // Kernels stay beside each other: the running one may be among them. See `drop_obsolete`.
    if !obsolete.is_empty() && matches!(work.package.method, wire::Method::Deb(_)) {
        take_away(work, &mut record, &obsolete, &BTreeSet::new())?;
    }
    hold(work, deb, &mut record)?;
    Ok(!wrong.is_empty())
}

/// Finishes an interrupted run of dpkg, unless it concerns packages that are installed now: a broken version is replaced, not retried.
fn mend(work: &mut MethodContext<'_>, wrong: &BTreeMap<String, String>) -> Result<(), MethodError> {
    let journal = "/var/lib/dpkg/updates";
    let interrupted = !work.system.list(journal).map_err(MethodError::io(journal))?.is_empty();
    let audit = look(work, &["dpkg", "--audit"])?;
    // Lines that start with a blank name a package, then its description.
    let broken = |line: &str| {
        line.starts_with(' ') && !line.split_whitespace().next().is_some_and(|name| wrong.contains_key(name))
    };
    if !interrupted && !audit.stdout.lines().any(broken) {
        return Ok(());
    }
    work.say("finishing the interrupted dpkg transaction");
    deny_services(work)?;
    let ran = patiently(work, &["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"]);
    allow_services(work)?;
    // A package that cannot be configured may be the one that is replaced now; otherwise apt-get reports it.
    ran.map(|_| ())
}

fn transaction(
    work: &mut MethodContext<'_>,
    deb: &wire::Deb,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
    there: &BTreeMap<String, DebState>,
) -> Result<(), MethodError> {
    let (targets, with_them) = targets(work, deb, record, wrong)?;
    let named = os::exact(wrong, "=").join(", ");
    // The holds of these packages, ours and those of a person: a declared package is ours now. All other holds stay.
    let held: Vec<&str> =
        wrong.keys().filter(|name| there.get(*name).is_some_and(|state| state.held)).map(String::as_str).collect();
    if !held.is_empty() {
        mark(work, "unhold", &held)?;
    }
    let options = options(work)?;
    let mut argv = vec!["apt-get", "install", "--allow-downgrades"];
    argv.extend(options.iter().chain(&targets).map(String::as_str));
    let plan = simulate(work, &argv).map_err(|error| MethodError(format!("cannot install {named}: {error}")))?;
    let ours = record.ours();
    let foreign: Vec<&str> = plan.removes.difference(&ours).map(String::as_str).collect();
    if !foreign.is_empty() {
        return Err(MethodError(format!(
            "{named} conflicts with {}, which Fleetwright did not install: remove it by hand, or do not install this component",
            foreign.join(", ")
        )));
    }
    record.pull(plan.installs.into_iter());
    record.save(work, RECORD)?;
    if plan.removes.is_empty() {
        argv.insert(2, "--no-remove");
    }
    work.say(format!("installing {named}"));
    deny_services(work)?;
    let ran = os::without_asides(work, |work| patiently(work, &argv));
    allow_services(work)?;
    let ran = ran?;
    if !ran.ok() {
        return Err(MethodError(format!("cannot install {named}: {}", explain(&ran))));
    }
    // Packages named on the command line, or unpacked by an interrupted transaction, would be marked as manually installed.
    let unmarked: Vec<&str> = with_them
        .iter()
        .chain(&record.pending)
        .filter(|name| record.pulled.contains(*name))
        .map(String::as_str)
        .collect();
    if !unmarked.is_empty() {
        mark(work, "auto", &unmarked)?;
        record.pending.clear();
        record.save(work, RECORD)?;
    }
    let still = self::wrong(deb, &debs(work.system, deb)?);
    if still.is_empty() {
        return Ok(());
    }
    Err(MethodError(format!(
        "apt-get succeeded, but {} is not installed: see the output for what it installed instead",
        os::exact(&still, "=").join(", ")
    )))
}

/// The arguments of `apt-get install`, and the names of packages that are only dependencies.
fn targets(
    work: &mut MethodContext<'_>,
    deb: &wire::Deb,
    record: &Record,
    wrong: &BTreeMap<String, String>,
) -> Result<(Vec<String>, Vec<String>), MethodError> {
    let (mut targets, mut with_them) = (Vec::new(), Vec::new());
    if deb.sources.is_empty() {
        for (name, version) in wrong {
            targets.push(kept(work, record, name, version)?.unwrap_or_else(|| format!("{name}={version}")));
        }
        return Ok((targets, with_them));
    }
    // apt requires file names that end in .deb; the cache is named by digest.
    let links = format!("{}/files", work.folder);
    work.system.remove(&links).map_err(MethodError::io(&links))?;
    for file in files(work, deb)? {
        if deb.packages.get(&file.name).is_some_and(|version| *version == file.version) {
            if !wrong.contains_key(&file.name) {
                continue;
            }
        } else {
            // A dependency is never downgraded for us.
            let there = states(work.system, std::iter::once(&file.name))?;
            let newer = match there.get(&file.name) {
                None => true,
                Some(state) => look(work, &["dpkg", "--compare-versions", &file.version, "gt", &state.version])?.ok(),
            };
            if !newer {
                continue;
            }
            with_them.push(file.name.clone());
        }
        let link = format!("{links}/{}_{}.deb", file.name, file.version.replace(':', "%3a"));
        work.system.link(&link, &file.path).map_err(MethodError::io(&link))?;
        targets.push(link);
    }
    Ok((targets, with_them))
}

/// Holds the packages that are declared as held, and releases our holds that are no longer declared.
fn hold(work: &mut MethodContext<'_>, deb: &wire::Deb, record: &mut Record) -> Result<(), MethodError> {
    let there = debs(work.system, deb)?;
    let (mut hold, mut unhold) = (Vec::new(), Vec::new());
    for (name, state) in &there {
        if deb.hold && !state.held {
            hold.push(name.as_str());
        } else if !deb.hold && state.held && record.held.contains(name) {
            unhold.push(name.as_str());
        }
    }
    let held: BTreeSet<String> = if deb.hold { deb.packages.keys().cloned().collect() } else { BTreeSet::new() };
    // Released before it is removed from the record, and recorded before it is held: an interruption in between stays visible.
    if !unhold.is_empty() {
        mark(work, "unhold", &unhold)?;
    }
    if record.held != held {
        record.held = held;
        record.save(work, RECORD)?;
    }
    if !hold.is_empty() {
        mark(work, "hold", &hold)?;
    }
    Ok(())
}

//! RPM packages, by dnf where it exists, otherwise by rpm alone: exact versions, one transaction, no package of others removed.
//!
//! Package files from a repository are kept beside the record, so that a rollback needs no network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleetwright_wire::{self as wire, Deviation, Package};

use super::os::{self, Earlier, OtherRecords, Record, RemovalEffects, shown};
use super::{Method, MethodContext, MethodError, ended};
use crate::system::ProgramRun;
use crate::{System, fetch};

mod dnf;
mod hold;
mod package_cache;
mod removal;

use dnf::{explain, look, options, patiently, simulate};
pub(super) use package_cache::prune;
use package_cache::{download, kept, remember_kept, take_from_repository};
pub(super) use removal::remove;
use removal::{remove_doubles, take_away};

/// The record's name in the component's directory.
const RECORD: &str = "rpm";
/// Timeout of a query. A query changes nothing and takes seconds; after minutes it is stuck.
const LOOK: Duration = Duration::from_secs(120);

const ENV: &[(&str, &str)] = &[
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("LC_ALL", "C.UTF-8"),
    ("COLUMNS", "200"),
];

/// The method `rpm`; see the module.
pub(super) struct Rpm;

impl Method for Rpm {
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
        let set = declared(package)?;
        let there = set.installed(system)?;
        Ok(os::version(&package.version, set.packages(), |name| found(&there, name, set.packages())))
    }

    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
        deviations(system, package)
    }

    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        prepare(work)
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        install(work)
    }

    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        remove(work)
    }

    fn prune(&self, work: &mut MethodContext<'_>, kept: &[Package]) -> Result<(), MethodError> {
        prune(work, kept)
    }
}

/// The declared packages.
struct Set<'a> {
    rpm: &'a wire::Rpm,
    /// Whether several versions of a package may be installed beside each other, as of kernels.
    beside: bool,
}

/// The installed versions of packages.
type InstalledVersions = BTreeMap<String, BTreeSet<String>>;

impl Set<'_> {
    fn packages(&self) -> &BTreeMap<String, String> {
        &self.rpm.packages
    }

    fn installed(&self, system: &dyn System) -> Result<InstalledVersions, MethodError> {
        installed(system, self.packages().keys())
    }

    /// The key of a declared package in the record: its name, or name and version if several may be installed.
    fn key(&self, name: &str, version: &str) -> String {
        if self.beside { format!("{name}-{version}") } else { name.to_owned() }
    }

    fn keys(&self) -> Vec<String> {
        self.packages().iter().map(|(name, version)| self.key(name, version)).collect()
    }

    /// The packages that are not as declared.
    fn wrong(&self, there: &InstalledVersions) -> BTreeMap<String, String> {
        let right = |name: &String, version: &String| {
            there.get(name).is_some_and(|versions| versions.contains(version) && (self.beside || versions.len() == 1))
        };
        let wrong = self.packages().iter().filter(|(name, version)| !right(name, version));
        wrong.map(|(name, version)| (name.clone(), version.clone())).collect()
    }
}

fn of(package: &Package) -> Option<Set<'_>> {
    match &package.method {
        wire::Method::Rpm(rpm) => Some(Set { rpm, beside: false }),
        wire::Method::Kernel(kernel) => kernel.rpm.as_ref().map(|rpm| Set { rpm, beside: true }),
        _ => None,
    }
}

fn declared(package: &Package) -> Result<Set<'_>, MethodError> {
    of(package).ok_or_else(|| MethodError(format!("{} declares no RPM packages", package.reference)))
}

/// The declared version if it is installed, otherwise all installed versions.
fn found(there: &InstalledVersions, name: &str, packages: &BTreeMap<String, String>) -> Option<String> {
    let versions = there.get(name)?;
    match packages.get(name).filter(|version| versions.contains(*version)) {
        Some(version) => Some(version.clone()),
        None => Some(versions.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")),
    }
}

/// `rpm -q` of names, or of names with versions.
fn installed<'a>(
    system: &dyn System,
    names: impl Iterator<Item = &'a String>,
) -> Result<InstalledVersions, MethodError> {
    let mut argv = vec!["rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n"];
    argv.extend(names.map(String::as_str));
    let mut there = InstalledVersions::new();
    if argv.len() == 4 {
        return Ok(there);
    }
    let ran = system
        .look(&ProgramRun { argv: &argv, input: &[], env: ENV, within: LOOK })
        .map_err(|error| MethodError(format!("cannot run rpm: {error}; the method `rpm` requires a host with rpm")))?;
    // The exit status is the number of packages that are not installed.
    if ran.status.is_none() || ran.stdout.contains("error: ") {
        return Err(MethodError(format!("rpm -q {}", ended(&ran))));
    }
    for line in ran.stdout.lines() {
        if let [name, version] = line.split(' ').collect::<Vec<_>>()[..] {
            there.entry(name.to_owned()).or_default().insert(version.to_owned());
        }
    }
    Ok(there)
}

/// The deviations of the host from the declared packages.
pub(super) fn deviations(system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
    let set = declared(package)?;
    let there = set.installed(system)?;
    let wrong = set.wrong(&there);
    let mut deviations = os::version_deviations(package, set.packages(), |name| {
        let versions = there.get(name)?;
        match wrong.contains_key(name) {
            false => set.packages().get(name).cloned(),
            true => Some(versions.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")),
        }
    });
    if set.rpm.hold && has_dnf(system)? {
        let present: BTreeMap<String, String> = set
            .packages()
            .iter()
            .filter(|(name, _)| !wrong.contains_key(*name))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
        for name in hold::missing(system, &present)? {
            deviations.push(Deviation {
                what: format!("package {name} hold"),
                found: "not held".to_owned(),
                wanted: "held".to_owned(),
                disrupts: false,
            });
        }
    }
    Ok(deviations)
}

fn has_dnf(system: &dyn System) -> Result<bool, MethodError> {
    let path = "/usr/bin/dnf";
    Ok(system.stat(path).map_err(MethodError::io(path))?.is_some())
}

/// Fetches the package files, and those of the installed versions.
pub(super) fn prepare(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let set = declared(work.package)?;
    let there = set.installed(work.system)?;
    let wrong = set.wrong(&there);
    if !set.rpm.sources.is_empty() {
        let files = files(work, set.rpm)?;
        for (name, version) in set.packages() {
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
    let dnf = has_dnf(work.system)?;
    if !dnf && set.rpm.sources.is_empty() {
        return Err(MethodError(format!(
            "cannot install {} from a repository without dnf: add the files to `sources`, or install dnf on the host",
            os::exact(&wrong, "-").join(", ")
        )));
    }
    let mut record = Record::load(work, RECORD)?;
    if dnf && !set.beside && !work.offline {
        for name in wrong.keys().filter(|name| !record.before.contains_key(*name) && !record.pulled.contains(*name)) {
            for version in there.get(name).into_iter().flatten() {
                // If no repository has that version any more, the package stays at our version at removal, and a message says so.
                download(work, "reinstall", &[format!("{name}-{version}")], false)?;
            }
        }
        remember_kept(work, &mut record)?;
    }
    if set.rpm.sources.is_empty() {
        take_from_repository(work, &mut record, &wrong)?;
    }
    Ok(())
}

/// A package file among the sources.
struct File {
    name: String,
    version: String,
    path: String,
}

fn files(work: &mut MethodContext<'_>, rpm: &wire::Rpm) -> Result<Vec<File>, MethodError> {
    let mut files = Vec::new();
    for source in &rpm.sources {
        let path = fetch::source(work, source)?;
        // The digest is declared: a signature would add nothing to it.
        let ran = look(work, &["rpm", "-qp", "--nosignature", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n", &path])?;
        let mut words = ran.stdout.split_whitespace();
        match (ran.ok(), words.next(), words.next()) {
            (true, Some(name), Some(version)) => {
                files.push(File { name: name.to_owned(), version: version.to_owned(), path });
            }
            _ => {
                let from = source.urls.first().map_or("the inline source", String::as_str);
                return Err(MethodError(format!("{from} is not an RPM package: rpm {}", ended(&ran))));
            }
        }
    }
    Ok(files)
}

/// Installs the declared packages. True if a package was changed.
pub(super) fn install(work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
    let package = work.package;
    let set = declared(package)?;
    let there = set.installed(work.system)?;
    let wrong = set.wrong(&there);
    let dnf = has_dnf(work.system)?;
    let mut record = Record::load(work, RECORD)?;
    let locked = if dnf { hold::names(work.system)? } else { BTreeSet::new() };
    let keys = set.keys();
    record.note(keys.iter(), |key| {
        let earlier = |version: &String| Earlier { version: version.clone(), held: locked.contains(key) };
        match set.beside {
            // The package is ours even if another version is installed beside it.
            true => {
                let of = set.packages().iter().find(|(name, version)| set.key(name, version) == key);
                of.filter(|(name, version)| there.get(*name).is_some_and(|versions| versions.contains(*version)))
                    .map(|(_, version)| earlier(version))
            }
            false => there.get(key).and_then(|versions| versions.iter().next()).map(earlier),
        }
    });
    record.save(work, RECORD)?;
    if !wrong.is_empty() {
        transaction(work, &set, &mut record, &wrong, dnf)?;
    }
    let obsolete: BTreeSet<String> = record.before.keys().filter(|key| !keys.contains(key)).cloned().collect();
    // Kernels stay beside each other until the component is removed: the running one may be among them.
    if !obsolete.is_empty() && !set.beside {
        take_away(work, &mut record, &obsolete, &BTreeSet::new())?;
    }
    if dnf {
        hold_declared(work, &set, &mut record)?;
    }
    Ok(!wrong.is_empty())
}

fn hold_declared(work: &mut MethodContext<'_>, set: &Set<'_>, record: &mut Record) -> Result<(), MethodError> {
    let names: BTreeSet<String> = set.packages().keys().cloned().collect();
    if set.rpm.hold {
        if record.held != names {
            record.held = names;
            record.save(work, RECORD)?;
        }
        return hold::set(work.system, set.packages());
    }
    let ours: BTreeSet<String> = record.held.intersection(&names).cloned().collect();
    hold::release(work.system, &ours)?;
    if !record.held.is_empty() {
        record.held.clear();
        record.save(work, RECORD)?;
    }
    Ok(())
}

fn transaction(
    work: &mut MethodContext<'_>,
    set: &Set<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
    dnf: bool,
) -> Result<(), MethodError> {
    let named = os::exact(wrong, "-").join(", ");
    let targets = targets(work, set, record, wrong)?;
    if dnf {
        // A declared package is ours now, whoever locked it. All other locks stay.
        hold::release(work.system, &wrong.keys().cloned().collect())?;
        let plan = simulate(work, "install", &targets)
            .map_err(|error| MethodError(format!("cannot install {named}: {error}")))?;
        let ours = record.ours();
        let foreign: Vec<&str> = plan.removes.difference(&ours).map(String::as_str).collect();
        if !foreign.is_empty() {
            return Err(MethodError(format!(
                "{named} conflicts with {}, which Fleetwright did not install: remove it by hand, or do not install this component",
                foreign.join(", ")
            )));
        }
        let declared: BTreeSet<&String> = set.packages().keys().collect();
        record.pull(plan.installs.iter().filter(|name| !declared.contains(name)).cloned());
    } else {
        // rpm alone installs only the files that it is given.
        for name in targets.iter().filter_map(|target| target.with.clone()) {
            if installed(work.system, std::iter::once(&name))?.is_empty() {
                record.pull(std::iter::once(name));
            }
        }
    }
    record.save(work, RECORD)?;
    work.say(format!("installing {named}"));
    let paths: Vec<&str> = targets.iter().map(|target| target.path.as_str()).collect();
    let mut argv: Vec<&str> = match (dnf, set.beside) {
        (true, _) => vec!["dnf", "install"],
        (false, true) => vec!["rpm", "-i"],
        (false, false) => vec!["rpm", "-U", "--oldpackage"],
    };
    if dnf {
        argv.extend(options(work));
    }
    argv.extend(paths);
    let ran = os::without_asides(work, |work| patiently(work, &argv))?;
    if !ran.ok() {
        return Err(MethodError(format!("cannot install {named}: {}", explain(&ran))));
    }
    // Packages named on the command line, or unpacked by an interrupted transaction, would be marked as installed by the user. rpm alone
    // has no such mark.
    let with_them = targets.iter().filter_map(|target| target.with.as_ref());
    let unmarked: Vec<&str> =
        with_them.chain(&record.pending).filter(|name| record.pulled.contains(*name)).map(String::as_str).collect();
    if dnf && !unmarked.is_empty() {
        let mut argv = vec!["dnf", "mark", "remove"];
        argv.extend(unmarked);
        patiently(work, &argv)?;
        record.pending.clear();
        record.save(work, RECORD)?;
    }
    for (name, version) in set.packages().iter().filter(|_| !set.beside) {
        remove_doubles(work, name, version)?;
    }
    let still = set.wrong(&set.installed(work.system)?);
    if still.is_empty() {
        return Ok(());
    }
    Err(MethodError(format!(
        "{} succeeded, but {} is not installed: see the output for what it installed instead",
        argv[0],
        os::exact(&still, "-").join(", ")
    )))
}

/// A package to install.
struct Target {
    /// A file, or `NAME-VERSION-RELEASE`.
    path: String,
    /// The name of a package that is not declared and only a dependency.
    with: Option<String>,
}

fn targets(
    work: &mut MethodContext<'_>,
    set: &Set<'_>,
    record: &Record,
    wrong: &BTreeMap<String, String>,
) -> Result<Vec<Target>, MethodError> {
    let mut targets = Vec::new();
    if set.rpm.sources.is_empty() {
        for (name, version) in wrong {
            let path = kept(work, record, name, version)?.unwrap_or_else(|| format!("{name}-{version}"));
            targets.push(Target { path, with: None });
        }
        return Ok(targets);
    }
    // dnf requires file names that end in .rpm; the cache is named by digest.
    let links = format!("{}/files", work.folder);
    work.system.remove(&links).map_err(MethodError::io(&links))?;
    for file in files(work, set.rpm)? {
        let mut with = None;
        if set.packages().get(&file.name).is_some_and(|version| *version == file.version) {
            if !wrong.contains_key(&file.name) {
                continue;
            }
        } else {
            // A dependency is never downgraded for us.
            let there = installed(work.system, std::iter::once(&file.name))?;
            let mut newer = true;
            for version in there.get(&file.name).into_iter().flatten() {
                newer &= is_newer(work, &file.version, version)?;
            }
            if !newer {
                continue;
            }
            with = Some(file.name.clone());
        }
        let link = format!("{links}/{}-{}.rpm", file.name, file.version);
        work.system.link(&link, &file.path).map_err(MethodError::io(&link))?;
        targets.push(Target { path: link, with });
    }
    Ok(targets)
}

/// Compares versions with rpm itself, which has its own order.
fn is_newer(work: &MethodContext<'_>, version: &str, than: &str) -> Result<bool, MethodError> {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+~^".contains(&byte));
    if !plain(version) || !plain(than) {
        return Err(MethodError(format!("invalid RPM version `{version}` or `{than}`")));
    }
    let ran = look(work, &["rpm", "--eval", &format!("%{{lua:print(rpm.vercmp('{version}','{than}'))}}")])?;
    Ok(ran.stdout.trim() == "1")
}

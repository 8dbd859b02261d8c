//! RPM packages, by dnf where it is, otherwise by rpm alone: exact versions, one transaction, nothing of others taken away.
//!
//! What is taken from a repository is kept as files beside the record, so that going back needs no network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleetwright_wire::{self as wire, Deviation, Package};

use super::os::{self, Earlier, Effects, Others, Record, shown};
use super::{Method, MethodError, Work, ended};
use crate::system::{Ran, Run};
use crate::{System, fetch};

mod hold;

/// The record's name in the component's folder.
const RECORD: &str = "rpm";
/// A question that changes nothing takes seconds; minutes mean that it is stuck.
const LOOK: Duration = Duration::from_secs(120);
/// Between two attempts while another program holds rpm's lock. dnf waits for other dnfs by itself.
const PATIENCE: Duration = Duration::from_secs(2);

const ENV: &[(&str, &str)] = &[
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("LC_ALL", "C.UTF-8"),
    ("COLUMNS", "200"),
];

/// See the module.
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

    fn prepare(&self, work: &mut Work<'_>) -> Result<(), MethodError> {
        prepare(work)
    }

    fn apply(&self, work: &mut Work<'_>) -> Result<bool, MethodError> {
        install(work)
    }

    fn remove(&self, work: &mut Work<'_>) -> Result<(), MethodError> {
        remove(work)
    }

    fn prune(&self, work: &mut Work<'_>, kept: &[Package]) -> Result<(), MethodError> {
        prune(work, kept)
    }
}

/// The declared packages.
struct Set<'a> {
    rpm: &'a wire::Rpm,
    /// Several versions of each may be there beside each other, as of kernels.
    beside: bool,
}

/// The versions of packages that are there.
type There = BTreeMap<String, BTreeSet<String>>;

impl Set<'_> {
    fn packages(&self) -> &BTreeMap<String, String> {
        &self.rpm.packages
    }

    fn installed(&self, system: &dyn System) -> Result<There, MethodError> {
        installed(system, self.packages().keys())
    }

    /// By what a declared package is remembered: its name, or name and version if there may be others beside it.
    fn key(&self, name: &str, version: &str) -> String {
        if self.beside { format!("{name}-{version}") } else { name.to_owned() }
    }

    fn keys(&self) -> Vec<String> {
        self.packages().iter().map(|(name, version)| self.key(name, version)).collect()
    }

    /// Those that are not as declared.
    fn wrong(&self, there: &There) -> BTreeMap<String, String> {
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

/// The declared version if it is among those that are there, otherwise all of them.
fn found(there: &There, name: &str, packages: &BTreeMap<String, String>) -> Option<String> {
    let versions = there.get(name)?;
    match packages.get(name).filter(|version| versions.contains(*version)) {
        Some(version) => Some(version.clone()),
        None => Some(versions.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")),
    }
}

/// `rpm -q` of names, or of names with versions.
fn installed<'a>(system: &dyn System, names: impl Iterator<Item = &'a String>) -> Result<There, MethodError> {
    let mut argv = vec!["rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n"];
    argv.extend(names.map(String::as_str));
    let mut there = There::new();
    if argv.len() == 4 {
        return Ok(there);
    }
    let ran = system
        .look(&Run { argv: &argv, input: &[], env: ENV, within: LOOK })
        .map_err(|error| MethodError(format!("rpm cannot be run: {error}; the method `rpm` needs a host with rpm")))?;
    // Its status is the number of those that are not there.
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

/// How the host differs from what is declared.
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

/// Gets the package files, and the earlier versions of what is there already.
pub(super) fn prepare(work: &mut Work<'_>) -> Result<(), MethodError> {
    let set = declared(work.package)?;
    let there = set.installed(work.system)?;
    let wrong = set.wrong(&there);
    if !set.rpm.sources.is_empty() {
        let files = files(work, set.rpm)?;
        for (name, version) in set.packages() {
            if !files.iter().any(|file| file.name == *name && file.version == *version) {
                let had: Vec<_> = files.iter().map(|file| format!("{} {}", file.name, file.version)).collect();
                return Err(MethodError(format!(
                    "none of the sources is {name} {version}: they are {}; put its file into `sources`, or the version that is in it into `packages`",
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
            "this host has no dnf to take {} from a repository with: give the files as `sources`, or install dnf",
            os::exact(&wrong, "-").join(", ")
        )));
    }
    let mut record = Record::load(work, RECORD)?;
    if dnf && !set.beside && !work.offline {
        for name in wrong.keys().filter(|name| !record.before.contains_key(*name) && !record.pulled.contains(*name)) {
            for version in there.get(name).into_iter().flatten() {
                // It may be in no repository any more: then it stays as we leave it, and removal says so.
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

fn take_from_repository(
    work: &mut Work<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
) -> Result<(), MethodError> {
    let mut missing = Vec::new();
    for (name, version) in wrong {
        if kept(work, record, name, version)?.is_none() {
            missing.push(format!("{name}-{version}"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let named = missing.join(", ");
    if work.offline {
        return Err(MethodError(format!("{named} is not kept on this host any more: install it anew")));
    }
    work.say(format!("fetching {named} from the configured repositories"));
    // What we hold ourselves must not hide it.
    let released = release(work, record, wrong)?;
    let mut ran = download(work, "install", &missing, false)?;
    if !ran.ok() {
        // The lists may be of yesterday.
        ran = download(work, "install", &missing, true)?;
    }
    if !released.is_empty() {
        hold::set(work.system, &released)?;
    }
    if !ran.ok() {
        return Err(MethodError(format!("{named} could not be fetched: {}", explain(&ran))));
    }
    remember_kept(work, record)
}

/// Lets go of the locks that we hold on these packages ourselves, and says which they were, with the versions that are there.
fn release(
    work: &mut Work<'_>,
    record: &Record,
    names: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, MethodError> {
    let ours: BTreeSet<String> = names.keys().filter(|name| record.held.contains(*name)).cloned().collect();
    let there = installed(work.system, ours.iter())?;
    hold::release(work.system, &ours)?;
    Ok(there.into_iter().filter_map(|(name, versions)| Some((name, versions.into_iter().next()?))).collect())
}

fn download(work: &mut Work<'_>, verb: &str, targets: &[String], refresh: bool) -> Result<Ran, MethodError> {
    let folder = archives(work);
    let into = format!("--downloaddir={folder}");
    let mut argv = vec!["dnf", verb, "--downloadonly", &into];
    if refresh {
        argv.push("--refresh");
    }
    let options = options(work);
    argv.extend(options.iter().copied().chain(targets.iter().map(String::as_str)));
    patiently(work, &argv)
}

fn archives(work: &Work<'_>) -> String {
    format!("{}/rpms", work.folder)
}

fn remember_kept(work: &mut Work<'_>, record: &mut Record) -> Result<(), MethodError> {
    let folder = archives(work);
    for file in work.system.list(&folder).map_err(MethodError::io(&folder))? {
        if file.ends_with(".rpm") && !record.kept.contains_key(&file) {
            let path = format!("{folder}/{file}");
            if let Some(digest) = work.system.sha256(&path).map_err(MethodError::io(&path))? {
                record.kept.insert(file, digest);
            }
        }
    }
    record.save(work, RECORD)
}

/// The kept file of that version, if it is whole: `NAME-VERSION-RELEASE.ARCH.rpm`.
fn kept(work: &Work<'_>, record: &Record, name: &str, version: &str) -> Result<Option<String>, MethodError> {
    let start = format!("{name}-{version}.");
    for (file, digest) in record.kept.iter().filter(|(file, _)| file.starts_with(&start)) {
        let path = format!("{}/{file}", archives(work));
        if work.system.sha256(&path).map_err(MethodError::io(&path))?.as_ref() == Some(digest) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// A package file among the sources.
struct File {
    name: String,
    version: String,
    path: String,
}

fn files(work: &mut Work<'_>, rpm: &wire::Rpm) -> Result<Vec<File>, MethodError> {
    let mut files = Vec::new();
    for source in &rpm.sources {
        let path = fetch::source(work, source)?;
        // Its digest is declared: a signature would add nothing to it.
        let ran = look(work, &["rpm", "-qp", "--nosignature", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n", &path])?;
        let mut words = ran.stdout.split_whitespace();
        match (ran.ok(), words.next(), words.next()) {
            (true, Some(name), Some(version)) => {
                files.push(File { name: name.to_owned(), version: version.to_owned(), path });
            }
            _ => {
                let from = source.urls.first().map_or("what came with the package", String::as_str);
                return Err(MethodError(format!("{from} is no RPM package: rpm {}", ended(&ran))));
            }
        }
    }
    Ok(files)
}

/// Brings the host to the declared packages. True if one of them was changed.
pub(super) fn install(work: &mut Work<'_>) -> Result<bool, MethodError> {
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
            // Another version beside it does not make it ours less.
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
    // Kernels stay beside each other until the component goes: the one that runs may be among them.
    if !obsolete.is_empty() && !set.beside {
        take_away(work, &mut record, &obsolete, &BTreeSet::new())?;
    }
    if dnf {
        hold_declared(work, &set, &mut record)?;
    }
    Ok(!wrong.is_empty())
}

fn hold_declared(work: &mut Work<'_>, set: &Set<'_>, record: &mut Record) -> Result<(), MethodError> {
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
    work: &mut Work<'_>,
    set: &Set<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
    dnf: bool,
) -> Result<(), MethodError> {
    let named = os::exact(wrong, "-").join(", ");
    let targets = targets(work, set, record, wrong)?;
    if dnf {
        // What is declared is ours now, whoever locked it. All other locks stand.
        hold::release(work.system, &wrong.keys().cloned().collect())?;
        let plan = simulate(work, "install", &targets)
            .map_err(|error| MethodError(format!("{named} cannot be installed: {error}")))?;
        let ours = record.ours();
        let foreign: Vec<&str> = plan.removes.difference(&ours).map(String::as_str).collect();
        if !foreign.is_empty() {
            return Err(MethodError(format!(
                "{named} cannot be on a host together with {}, which we did not bring: remove it by hand, or leave this component out",
                foreign.join(", ")
            )));
        }
        let declared: BTreeSet<&String> = set.packages().keys().collect();
        record.pull(plan.installs.iter().filter(|name| !declared.contains(name)).cloned());
    } else {
        // rpm alone brings nothing but the files that it is given.
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
    let ran = patiently(work, &argv)?;
    if !ran.ok() {
        return Err(MethodError(format!("{named} could not be installed: {}", explain(&ran))));
    }
    // Named on the command line, or unpacked by a transaction that was interrupted, they would count as wanted for themselves. rpm alone
    // knows nothing of that.
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
        "{} ended well, but {} is not installed: see the output for what it chose instead",
        argv[0],
        os::exact(&still, "-").join(", ")
    )))
}

/// A transaction that was cut off between unpacking the new version and taking the old one away leaves both.
fn remove_doubles(work: &mut Work<'_>, name: &str, version: &str) -> Result<(), MethodError> {
    let there = installed(work.system, std::iter::once(&name.to_owned()))?;
    let Some(versions) = there.get(name).filter(|versions| versions.contains(version)) else { return Ok(()) };
    for double in versions.iter().filter(|other| *other != version) {
        work.say(format!("removing {name} {double}, which an interrupted transaction left"));
        let ran = patiently(work, &["rpm", "-e", "--nodeps", "--noscripts", &format!("{name}-{double}")])?;
        if !ran.ok() {
            return Err(MethodError(format!(
                "{name} {double} is left by an interrupted transaction and cannot be removed: {}",
                explain(&ran)
            )));
        }
    }
    Ok(())
}

/// Something to install.
struct Target {
    /// A file, or `NAME-VERSION-RELEASE`.
    path: String,
    /// The name of a package that is not declared and only comes along.
    with: Option<String>,
}

fn targets(
    work: &mut Work<'_>,
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
    // dnf wants file names that end in .rpm; the cache is by digest.
    let links = format!("{}/files", work.folder);
    work.system.remove(&links).map_err(MethodError::io(&links))?;
    for file in files(work, set.rpm)? {
        let mut with = None;
        if set.packages().get(&file.name).is_some_and(|version| *version == file.version) {
            if !wrong.contains_key(&file.name) {
                continue;
            }
        } else {
            // A dependency is never taken back to an older version for us.
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

/// Asked of rpm itself: its order of versions is its own.
fn is_newer(work: &Work<'_>, version: &str, than: &str) -> Result<bool, MethodError> {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+~^".contains(&byte));
    if !plain(version) || !plain(than) {
        return Err(MethodError(format!("`{version}` or `{than}` is no version of an RPM package")));
    }
    let ran = look(work, &["rpm", "--eval", &format!("%{{lua:print(rpm.vercmp('{version}','{than}'))}}")])?;
    Ok(ran.stdout.trim() == "1")
}

/// Takes everything away that the component brought, and puts back what was there before it.
pub(super) fn remove(work: &mut Work<'_>) -> Result<(), MethodError> {
    let mut record = Record::load(work, RECORD)?;
    if record.before.is_empty() && record.pulled.is_empty() {
        return Ok(());
    }
    let keys: BTreeSet<String> = record.before.keys().cloned().collect();
    let pulled = record.pulled.clone();
    take_away(work, &mut record, &keys, &pulled)?;
    for path in [archives(work), format!("{}/files", work.folder)] {
        work.system.remove(&path).map_err(MethodError::io(&path))?;
    }
    Record::forget(work, RECORD)
}

/// Takes away those of these packages that we brought, and puts back the versions of the others. Forgets them.
fn take_away(
    work: &mut Work<'_>,
    record: &mut Record,
    keys: &BTreeSet<String>,
    pulled: &BTreeSet<String>,
) -> Result<(), MethodError> {
    let dnf = has_dnf(work.system)?;
    if dnf {
        hold::release(work.system, &record.held)?;
    }
    let mut others = Others::load(work, RECORD)?;
    let (mut sure, mut maybe) = (BTreeSet::new(), BTreeSet::new());
    for key in keys.iter().filter(|key| record.before.get(*key).is_some_and(Option::is_none)) {
        if !others.inherit(work, key)? && !installed(work.system, std::iter::once(key))?.is_empty() {
            sure.insert(key.clone());
        }
    }
    let certain: BTreeSet<String> = pulled.difference(&record.pending).cloned().collect();
    let wanted = if dnf { wanted_for_themselves(work, &certain)? } else { BTreeSet::new() };
    for name in pulled.difference(&wanted) {
        if !others.inherit(work, name)? && !installed(work.system, std::iter::once(name))?.is_empty() {
            maybe.insert(name.clone());
        }
    }
    let going = os::removable(work, &mut others, &sure, &maybe, &mut |work, names| would_remove(work, names, dnf))?;
    if !going.is_empty() {
        work.say(format!("removing {}", shown(&going)));
        let mut argv = if dnf { vec!["dnf", "remove"] } else { vec!["rpm", "-e"] };
        if dnf {
            argv.extend(options(work));
        }
        argv.extend(going.iter().map(String::as_str));
        let ran = patiently(work, &argv)?;
        if !ran.ok() {
            return Err(MethodError(format!("{} could not be removed: {}", shown(&going), explain(&ran))));
        }
    }
    for key in keys {
        if let Some(Some(earlier)) = record.before.get(key).cloned() {
            put_back(work, record, key, &earlier, dnf)?;
        }
    }
    for key in keys {
        record.before.remove(key);
        record.held.remove(key);
    }
    for name in pulled {
        record.pulled.remove(name);
        record.pending.remove(name);
    }
    record.save(work, RECORD)
}

/// Brings a package back to the version that it had before us. If nobody has that any more, it stays as it is, and that is said.
fn put_back(work: &mut Work<'_>, record: &Record, key: &str, earlier: &Earlier, dnf: bool) -> Result<(), MethodError> {
    let there = installed(work.system, std::iter::once(&key.to_owned()))?;
    if !there.values().flatten().any(|version| *version == earlier.version) {
        let file = kept(work, record, key, &earlier.version)?;
        work.say(format!("putting back {key} {}", earlier.version));
        let target = file.unwrap_or_else(|| format!("{key}-{}", earlier.version));
        let mut argv = if dnf { vec!["dnf", "install"] } else { vec!["rpm", "-U", "--oldpackage"] };
        if dnf {
            argv.extend(options(work));
        }
        argv.push(&target);
        let ran = patiently(work, &argv)?;
        if !ran.ok() {
            let said = format!(
                "{key} {} was there before us and cannot be put back, so it stays as it is: {}",
                earlier.version,
                explain(&ran)
            );
            work.log.push(&said);
            work.say(said);
        }
    }
    remove_doubles(work, key, &earlier.version)?;
    if earlier.held && dnf {
        hold::set(work.system, &BTreeMap::from([(key.to_owned(), earlier.version.clone())]))?;
    }
    Ok(())
}

/// Those of what we pulled in that somebody asked for by name since: they are theirs now.
fn wanted_for_themselves(work: &Work<'_>, pulled: &BTreeSet<String>) -> Result<BTreeSet<String>, MethodError> {
    if pulled.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut argv = vec!["dnf", "repoquery", "--quiet", "--cacheonly", "--userinstalled", "--queryformat=%{name}"];
    argv.extend(pulled.iter().map(String::as_str));
    let ran = look(work, &argv)?;
    // The command is a plugin of some dnfs; without it they go only if nobody needs them anyway.
    Ok(if ran.ok() { ran.stdout.lines().map(|line| line.trim().to_owned()).collect() } else { BTreeSet::new() })
}

/// Drops the kept files of versions that nobody goes back to.
pub(super) fn prune(work: &mut Work<'_>, kept: &[Package]) -> Result<(), MethodError> {
    let mut record = Record::load(work, RECORD)?;
    let mut starts: Vec<String> = record
        .before
        .iter()
        .filter_map(|(key, earlier)| Some(format!("{key}-{}.", earlier.as_ref()?.version)))
        .collect();
    for set in kept.iter().chain([work.package]).filter_map(of) {
        starts.extend(set.packages().iter().map(|(name, version)| format!("{name}-{version}.")));
    }
    let needed = |file: &str| starts.iter().any(|start| file.starts_with(start));
    let folder = archives(work);
    for file in work.system.list(&folder).map_err(MethodError::io(&folder))? {
        if file.ends_with(".rpm") && !needed(&file) {
            let path = format!("{folder}/{file}");
            work.system.remove(&path).map_err(MethodError::io(&path))?;
        }
    }
    let before = record.kept.len();
    record.kept.retain(|file, _| needed(file));
    if record.kept.len() != before {
        record.save(work, RECORD)?;
    }
    Ok(())
}

/// What every call of dnf is told.
fn options(work: &Work<'_>) -> Vec<&'static str> {
    let mut options = vec![
        "--assumeyes",
        "--setopt=install_weak_deps=False",
        // Only what we brought goes.
        "--setopt=clean_requirements_on_remove=False",
        // No kernel is taken away to make place for another.
        "--setopt=installonly_limit=0",
        "--setopt=protect_running_kernel=False",
        "--setopt=strict=True",
        "--setopt=keepcache=False",
    ];
    if work.offline {
        options.push("--cacheonly");
    }
    options
}

fn look(work: &Work<'_>, argv: &[&str]) -> Result<Ran, MethodError> {
    let within = work.left()?.min(LOOK);
    let name = argv.first().copied().unwrap_or_default();
    let ran = work.system.look(&Run { argv, input: &[], env: ENV, within }).map_err(|error| {
        MethodError(format!("{name} cannot be run: {error}; the method `rpm` needs a host with rpm"))
    })?;
    if ran.timed_out {
        return Err(MethodError(format!("{name} did not answer within {} s", within.as_secs())));
    }
    Ok(ran)
}

/// What dnf would do to install these.
fn simulate(work: &mut Work<'_>, verb: &str, targets: &[Target]) -> Result<Effects, MethodError> {
    let mut argv = vec!["dnf", verb, "--assumeno"];
    argv.extend(options(work).into_iter().filter(|option| *option != "--assumeyes"));
    argv.extend(targets.iter().map(|target| target.path.as_str()));
    asked(work, &argv)
}

/// What taking these away would take with it.
fn would_remove(work: &mut Work<'_>, names: &BTreeSet<String>, dnf: bool) -> Result<Effects, MethodError> {
    let mut argv = if dnf { vec!["dnf", "remove", "--assumeno", "--cacheonly"] } else { vec!["rpm", "-e", "--test"] };
    if dnf {
        argv.extend(options(work).into_iter().filter(|option| *option != "--assumeyes" && *option != "--cacheonly"));
        argv.extend(names.iter().map(String::as_str));
        return asked(work, &argv);
    }
    argv.extend(names.iter().map(String::as_str));
    let ran = look(work, &argv)?;
    let mut removes: BTreeSet<String> = names.clone();
    if !ran.ok() {
        let needing = needing(&ran.tail);
        if needing.is_empty() {
            return Err(MethodError(explain(&ran)));
        }
        removes.extend(needing);
    }
    Ok(Effects { removes, installs: BTreeSet::new() })
}

/// Reads `X is needed by (installed) NAME-VERSION-RELEASE.ARCH`.
fn needing(said: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let (_, full) = line.trim().split_once("is needed by (installed) ")?;
        let mut parts = full.rsplitn(3, '-');
        let (_release, _version, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some(name.to_owned())
    };
    said.lines().filter_map(name).collect()
}

/// dnf answers with a table of what it would do, and ends with 1 because nobody agreed.
fn asked(work: &mut Work<'_>, argv: &[&str]) -> Result<Effects, MethodError> {
    let ran = look(work, argv)?;
    if !ran.ok() && !ran.tail.contains("Operation aborted") {
        work.log.push(&ran.tail);
        return Err(MethodError(explain(&ran)));
    }
    Ok(effects(&ran.stdout))
}

/// Reads dnf's table: a heading without a blank first, then a line with one blank first for each package.
fn effects(said: &str) -> Effects {
    let mut effects = Effects { removes: BTreeSet::new(), installs: BTreeSet::new() };
    let mut heading = "";
    for line in said.lines() {
        if !line.starts_with(' ') {
            heading = line.trim();
            continue;
        }
        // Deeper lines go on with the one before, or say what is replaced.
        if line.starts_with("  ") {
            if let Some(replaced) =
                line.trim().strip_prefix("replacing ").and_then(|rest| rest.split_whitespace().next())
            {
                effects.removes.insert(replaced.rsplit_once('.').map_or(replaced, |(name, _)| name).to_owned());
            }
            continue;
        }
        let Some(name) = line.split_whitespace().next() else { continue };
        if heading.starts_with("Installing") {
            effects.installs.insert(name.to_owned());
        } else if heading.starts_with("Removing") {
            effects.removes.insert(name.to_owned());
        }
    }
    effects
}

/// Runs, and runs again while another program holds rpm's lock, until the step's time is over.
fn patiently(work: &mut Work<'_>, argv: &[&str]) -> Result<Ran, MethodError> {
    loop {
        let ran = work.run(argv, &[], ENV)?;
        if ran.ok() || !locked(&ran.tail) {
            return Ok(ran);
        }
        work.say("waiting: another program holds rpm's lock");
        if work.left()? <= PATIENCE {
            return Ok(ran);
        }
        work.system.pause(PATIENCE);
    }
}

fn locked(said: &str) -> bool {
    said.contains("can't create transaction lock") || said.contains("Failed to obtain the transaction lock")
}

/// Why dnf or rpm failed, by their own words, and what to do.
fn explain(ran: &Ran) -> String {
    let said = &ran.tail;
    let any = |signs: &[&str]| signs.iter().any(|sign| said.contains(sign));
    let advice = if locked(said) {
        "another program held rpm's lock for all of the step's time: see which one, and let it end"
    } else if any(&["No space left on device", "needs more space on", "At least"]) && said.contains("space") {
        "the disk is full: make room"
    } else if any(&["Unable to find a match", "No match for argument"]) {
        "no repository of this host has it: correct the version (VERSION-RELEASE), add the repository, or give the files as `sources`"
    } else if any(&["nothing provides", "is needed by", "conflicting requests"]) {
        "what it depends on cannot be had: add the files to `sources`, or a repository to the host"
    } else if any(&["Public key for", "GPG check FAILED"]) {
        "its signature is by a key that the host does not trust: import the key, or see where the package comes from"
    } else if any(&["Cannot download", "Failed to download", "Curl error", "Could not resolve host"]) {
        "a repository cannot be reached from the host"
    } else {
        "see the output"
    };
    let errors: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| {
            line.starts_with("Error")
                || line.starts_with("error:")
                || line.contains("is needed by")
                || line.starts_with("- ")
        })
        .take(3)
        .collect();
    match errors.is_empty() {
        true => format!("{}; {advice}", ended(ran)),
        false => format!("{}; {advice}", crate::text::clip(&errors.join("; "), 600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_dnf_would_do_is_read_from_its_table() {
        let said = "Dependencies resolved.\n====\n Package  Arch  Version\n====\nInstalling:\n demo   noarch  1.0-1  t  6.1 k\n     replacing  old-demo.noarch 0.9-1\n\
                    Installing dependencies:\n a-very-long-name-that-is-alone-on-its-line\n       noarch 1.0-1 t 6.2 k\nDowngrading:\n lower noarch 1 t 1 k\n\
                    Removing dependent packages:\n gone noarch 1 @t 3\n\nTransaction Summary\n====\nInstall  2 Packages\n";
        let effects = effects(said);
        assert_eq!(effects.installs, names(&["demo", "a-very-long-name-that-is-alone-on-its-line"]));
        assert_eq!(effects.removes, names(&["old-demo", "gone"]));
    }

    #[test]
    fn who_needs_a_package_is_read_from_what_rpm_says() {
        let said = "error: Failed dependencies:\n\tdemo-lib is needed by (installed) demo-tool-1.0-1.noarch\n";
        assert_eq!(needing(said), names(&["demo-tool"]));
    }
}

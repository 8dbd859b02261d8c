//! Debian packages, by apt-get: exact versions, one transaction, nothing started and nothing of others taken away.
//!
//! What is taken from a repository is kept as files beside the record, so that going back needs no network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleetwright_wire::{self as wire, Deviation, Package};

use super::os::{self, Earlier, Effects, Others, Record, shown};
use super::{Method, MethodError, Work, ended};
use crate::system::{DebState, Ran, Run};
use crate::{System, fetch};

/// The record's name in the component's folder.
const RECORD: &str = "deb";
/// Asked by maintainer scripts before they start, stop or restart a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// While this is there, no script touches a service: what runs is the business of the package's units. 101 is "forbidden".
const DENIED: &str = "#!/bin/sh\n# Written by Fleetwright for the length of one transaction. May be removed when no step runs.\nexit 101\n";
/// A question to apt that changes nothing takes seconds; a minute means that it is stuck.
const LOOK: Duration = Duration::from_secs(120);
/// Between two attempts while another program holds a lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Nobody is there to answer questions, and nobody restarts services behind our back.
const ENV: &[(&str, &str)] = &[
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("LC_ALL", "C.UTF-8"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
    ("NEEDRESTART_SUSPEND", "1"),
    ("UCF_FORCE_CONFFOLD", "1"),
];

/// See the module.
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

    fn prepare(&self, work: &mut Work<'_>) -> Result<(), MethodError> {
        let package = work.package;
        prepare(work, declared(package)?)
    }

    fn apply(&self, work: &mut Work<'_>) -> Result<bool, MethodError> {
        let package = work.package;
        install(work, declared(package)?)
    }

    fn remove(&self, work: &mut Work<'_>) -> Result<(), MethodError> {
        remove(work)
    }

    fn prune(&self, work: &mut Work<'_>, kept: &[Package]) -> Result<(), MethodError> {
        prune(work, kept)
    }
}

fn declared(package: &Package) -> Result<&wire::Deb, MethodError> {
    of(package).ok_or_else(|| MethodError(format!("{} declares no Debian packages", package.reference)))
}

/// The Debian packages of a package, by themselves or those of a kernel.
fn of(package: &Package) -> Option<&wire::Deb> {
    match &package.method {
        wire::Method::Deb(deb) => Some(deb),
        wire::Method::Kernel(kernel) => kernel.deb.as_ref(),
        _ => None,
    }
}

fn debs(system: &dyn System, deb: &wire::Deb) -> Result<BTreeMap<String, DebState>, MethodError> {
    states(system, deb.packages.keys())
}

fn states<'a>(
    system: &dyn System,
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, DebState>, MethodError> {
    let names: Vec<&str> = names.map(String::as_str).collect();
    system.debs(&names).map_err(MethodError::io("dpkg cannot be asked for the installed packages"))
}

/// How the host differs from what is declared.
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
            found: "left by a transaction that was interrupted: no service can be started by packages".to_owned(),
            wanted: "absent".to_owned(),
            disrupts: false,
        });
    }
    Ok(deviations)
}

/// Those that are not as declared.
fn wrong(deb: &wire::Deb, there: &BTreeMap<String, DebState>) -> BTreeMap<String, String> {
    let differs =
        |(name, version): &(&String, &String)| there.get(*name).is_none_or(|state| state.version != **version);
    deb.packages.iter().filter(differs).map(|(name, version)| (name.clone(), version.clone())).collect()
}

/// Gets the package files, and the earlier versions of what is there already.
pub(super) fn prepare(work: &mut Work<'_>, deb: &wire::Deb) -> Result<(), MethodError> {
    let there = debs(work.system, deb)?;
    let wrong = wrong(deb, &there);
    if !deb.sources.is_empty() {
        // All of them, also when nothing is to be installed: they are what one goes back to.
        let files = files(work, deb)?;
        for (name, version) in &deb.packages {
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
    let mut record = Record::load(work, RECORD)?;
    keep_earlier(work, &mut record, &wrong, &there)?;
    if deb.sources.is_empty() {
        download(work, &mut record, &wrong)?;
    }
    Ok(())
}

/// Keeps the files of versions that were there before us, as far as a repository still has them.
fn keep_earlier(
    work: &mut Work<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
    there: &BTreeMap<String, DebState>,
) -> Result<(), MethodError> {
    let replaced: BTreeMap<String, String> = wrong
        .keys()
        .filter(|name| !record.before.contains_key(*name) && !record.pulled.contains(*name))
        .filter_map(|name| Some((name.clone(), there.get(name)?.version.clone())))
        .collect();
    if replaced.is_empty() || work.offline {
        return Ok(());
    }
    work.say(format!("keeping {} to put it back later", os::exact(&replaced, "=").join(", ")));
    for (name, version) in &replaced {
        // It may be in no repository any more: then it stays as we leave it, and removal says so.
        let _ = fetch_archives(work, &[format!("{name}={version}")])?;
    }
    remember_kept(work, record)
}

/// Takes package files from the configured repositories into the component's folder.
fn download(work: &mut Work<'_>, record: &mut Record, wrong: &BTreeMap<String, String>) -> Result<(), MethodError> {
    let missing: BTreeMap<String, String> = {
        let mut missing = BTreeMap::new();
        for (name, version) in wrong {
            if kept(work, record, name, version)?.is_none() {
                missing.insert(name.clone(), version.clone());
            }
        }
        missing
    };
    if missing.is_empty() {
        return Ok(());
    }
    let targets = os::exact(&missing, "=");
    if work.offline {
        return Err(MethodError(format!("{} is not kept on this host any more: install it anew", targets.join(", "))));
    }
    work.say(format!("fetching {} from the configured repositories", targets.join(", ")));
    if !fetch_archives(work, &targets)?.ok() {
        // The lists may be of yesterday.
        work.say("apt-get update");
        let options = options(work)?;
        let mut argv = vec!["apt-get", "update"];
        argv.extend(options.iter().map(String::as_str));
        let updated = patiently(work, &argv)?;
        let ran = fetch_archives(work, &targets)?;
        if !ran.ok() {
            let mut said = explain(&ran);
            if !updated.ok() {
                said = format!("{said}; before it, apt-get update {}", ended(&updated));
            }
            return Err(MethodError(format!("{} could not be fetched: {said}", targets.join(", "))));
        }
    }
    remember_kept(work, record)
}

/// `apt-get install --download-only` into our own folder, which apt uses again when it installs.
fn fetch_archives(work: &mut Work<'_>, targets: &[String]) -> Result<Ran, MethodError> {
    // apt wants its folders to be there and makes none.
    let partial = format!("{}/partial/.folder", archives(work));
    work.system.write(&partial, b"", 0o600, "root", "root").map_err(MethodError::io(&partial))?;
    let options = options(work)?;
    let mut argv = vec!["apt-get", "install", "--download-only", "--reinstall", "--allow-downgrades"];
    argv.extend(options.iter().chain(targets).map(String::as_str));
    patiently(work, &argv)
}

fn archives(work: &Work<'_>) -> String {
    format!("{}/debs", work.folder)
}

/// Remembers the digests of the package files that are kept now.
fn remember_kept(work: &mut Work<'_>, record: &mut Record) -> Result<(), MethodError> {
    let folder = archives(work);
    for file in work.system.list(&folder).map_err(MethodError::io(&folder))? {
        if file.ends_with(".deb") && !record.kept.contains_key(&file) {
            let path = format!("{folder}/{file}");
            if let Some(digest) = work.system.sha256(&path).map_err(MethodError::io(&path))? {
                record.kept.insert(file, digest);
            }
        }
    }
    record.save(work, RECORD)
}

/// The kept file of that version, if it is whole. apt names it `NAME_VERSION_ARCH.deb`, with `%3a` for a colon.
fn kept(work: &Work<'_>, record: &Record, name: &str, version: &str) -> Result<Option<String>, MethodError> {
    let start = kept_name(name, version);
    for (file, digest) in record.kept.iter().filter(|(file, _)| file.starts_with(&start)) {
        let path = format!("{}/{file}", archives(work));
        if work.system.sha256(&path).map_err(MethodError::io(&path))?.as_ref() == Some(digest) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn kept_name(name: &str, version: &str) -> String {
    format!("{name}_{}_", version.replace(':', "%3a"))
}

/// A package file among the sources.
struct File {
    name: String,
    version: String,
    path: String,
}

/// The sources, fetched, and which packages they are.
fn files(work: &mut Work<'_>, deb: &wire::Deb) -> Result<Vec<File>, MethodError> {
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
                let from = source.urls.first().map_or("what came with the package", String::as_str);
                return Err(MethodError(format!("{from} is no Debian package: dpkg-deb {}", ended(&ran))));
            }
        }
    }
    Ok(files)
}

/// Brings the host to the declared packages. True if one of them was changed.
pub(super) fn install(work: &mut Work<'_>, deb: &wire::Deb) -> Result<bool, MethodError> {
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
    // Kernels stay beside each other: the one that runs may be among them. See `drop_obsolete`.
    if !obsolete.is_empty() && matches!(work.package.method, wire::Method::Deb(_)) {
        take_away(work, &mut record, &obsolete, &BTreeSet::new())?;
    }
    hold(work, deb, &mut record)?;
    Ok(!wrong.is_empty())
}

/// Finishes what dpkg was interrupted in, unless it is about what we install anyway: a broken version is replaced, not tried again.
fn mend(work: &mut Work<'_>, wrong: &BTreeMap<String, String>) -> Result<(), MethodError> {
    let journal = "/var/lib/dpkg/updates";
    let interrupted = !work.system.list(journal).map_err(MethodError::io(journal))?.is_empty();
    let audit = look(work, &["dpkg", "--audit"])?;
    // Lines with a blank first name a package, then its description.
    let broken = |line: &str| {
        line.starts_with(' ') && !line.split_whitespace().next().is_some_and(|name| wrong.contains_key(name))
    };
    if !interrupted && !audit.stdout.lines().any(broken) {
        return Ok(());
    }
    work.say("finishing what dpkg was interrupted in");
    deny_services(work)?;
    let ran = patiently(work, &["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"]);
    allow_services(work)?;
    // One that cannot be configured may be the very one that is replaced now; otherwise apt-get says so.
    ran.map(|_| ())
}

fn transaction(
    work: &mut Work<'_>,
    deb: &wire::Deb,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
    there: &BTreeMap<String, DebState>,
) -> Result<(), MethodError> {
    let (targets, with_them) = targets(work, deb, record, wrong)?;
    let named = os::exact(wrong, "=").join(", ");
    // Those that we hold ourselves, and those that a person held: what is declared is ours now. All other holds stand.
    let held: Vec<&str> =
        wrong.keys().filter(|name| there.get(*name).is_some_and(|state| state.held)).map(String::as_str).collect();
    if !held.is_empty() {
        mark(work, "unhold", &held)?;
    }
    let options = options(work)?;
    let mut argv = vec!["apt-get", "install", "--allow-downgrades"];
    argv.extend(options.iter().chain(&targets).map(String::as_str));
    let plan = simulate(work, &argv).map_err(|error| MethodError(format!("{named} cannot be installed: {error}")))?;
    let ours = record.ours();
    let foreign: Vec<&str> = plan.removes.difference(&ours).map(String::as_str).collect();
    if !foreign.is_empty() {
        return Err(MethodError(format!(
            "{named} cannot be on a host together with {}, which we did not bring: remove it by hand, or leave this component out",
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
    let ran = patiently(work, &argv);
    allow_services(work)?;
    let ran = ran?;
    if !ran.ok() {
        return Err(MethodError(format!("{named} could not be installed: {}", explain(&ran))));
    }
    // Named on the command line, or unpacked by a transaction that was interrupted, they would count as wanted for themselves.
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
        "apt-get ended well, but {} is not installed: see the output for what it chose instead",
        os::exact(&still, "=").join(", ")
    )))
}

/// What apt-get is told to install, and the names of those that only come along.
fn targets(
    work: &mut Work<'_>,
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
    // apt wants file names that end in .deb; the cache is by digest.
    let links = format!("{}/files", work.folder);
    work.system.remove(&links).map_err(MethodError::io(&links))?;
    for file in files(work, deb)? {
        if deb.packages.get(&file.name).is_some_and(|version| *version == file.version) {
            if !wrong.contains_key(&file.name) {
                continue;
            }
        } else {
            // A dependency is never taken back to an older version for us.
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

/// Holds what is declared to be held, and lets go what we held and is not any more.
fn hold(work: &mut Work<'_>, deb: &wire::Deb, record: &mut Record) -> Result<(), MethodError> {
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
    // Held before it is let go from the record, and in the record before it is held: an interruption in between is seen.
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

fn mark(work: &mut Work<'_>, verb: &str, names: &[&str]) -> Result<(), MethodError> {
    let mut argv = vec!["apt-mark", verb];
    argv.extend(names);
    let ran = patiently(work, &argv)?;
    if ran.ok() {
        return Ok(());
    }
    Err(MethodError(format!("apt-mark {verb} {} {}", names.join(" "), ended(&ran))))
}

/// Takes everything away that the component brought, and puts back what was there before it.
pub(super) fn remove(work: &mut Work<'_>) -> Result<(), MethodError> {
    let mut record = Record::load(work, RECORD)?;
    allow_services(work)?;
    if record.before.is_empty() && record.pulled.is_empty() {
        return Ok(());
    }
    let names: BTreeSet<String> = record.before.keys().cloned().collect();
    let pulled = record.pulled.clone();
    mend(work, &BTreeMap::new())?;
    take_away(work, &mut record, &names, &pulled)?;
    for path in [archives(work), format!("{}/files", work.folder), answers(work)] {
        work.system.remove(&path).map_err(MethodError::io(&path))?;
    }
    Record::forget(work, RECORD)
}

/// Takes away those of these packages that we brought, and puts back the versions of the others. Forgets them.
fn take_away(
    work: &mut Work<'_>,
    record: &mut Record,
    names: &BTreeSet<String>,
    pulled: &BTreeSet<String>,
) -> Result<(), MethodError> {
    let there = states(work.system, names.iter())?;
    let held: Vec<&str> = names
        .iter()
        .filter(|name| record.held.contains(*name) && there.get(*name).is_some_and(|state| state.held))
        .map(String::as_str)
        .collect();
    if !held.is_empty() {
        mark(work, "unhold", &held)?;
    }
    let (mut sure, mut maybe) = (BTreeSet::new(), BTreeSet::new());
    let mut others = Others::load(work, RECORD)?;
    let known = known(work, names.iter().chain(pulled))?;
    for name in names.iter().filter(|name| record.before.get(*name).is_some_and(Option::is_none)) {
        if !others.inherit(work, name)? && known.contains(name) {
            sure.insert(name.clone());
        }
    }
    let wanted = wanted_for_themselves(work, pulled.difference(&record.pending))?;
    for name in pulled.iter().filter(|name| known.contains(*name) && !wanted.contains(*name)) {
        if !others.inherit(work, name)? {
            maybe.insert(name.clone());
        }
    }
    let going = os::removable(work, &mut others, &sure, &maybe, &mut |work, names| {
        let mut argv = vec!["apt-get", "purge", "--simulate"];
        argv.extend(names.iter().map(String::as_str));
        simulate(work, &argv)
    })?;
    if !going.is_empty() {
        work.say(format!("removing {}", shown(&going)));
        let options = options(work)?;
        let mut argv = vec!["apt-get", "purge"];
        argv.extend(options.iter().chain(&going).map(String::as_str));
        let ran = patiently(work, &argv)?;
        if !ran.ok() {
            return Err(MethodError(format!("{} could not be removed: {}", shown(&going), explain(&ran))));
        }
    }
    for name in names {
        if let Some(Some(earlier)) = record.before.get(name).cloned() {
            put_back(work, record, name, &earlier, there.get(name))?;
        }
    }
    for name in names {
        record.before.remove(name);
        record.held.remove(name);
    }
    for name in pulled {
        record.pulled.remove(name);
        record.pending.remove(name);
    }
    record.save(work, RECORD)
}

/// Brings a package back to the version that it had before us. If nobody has that any more, it stays as it is, and that is said.
fn put_back(
    work: &mut Work<'_>,
    record: &Record,
    name: &str,
    earlier: &Earlier,
    now: Option<&DebState>,
) -> Result<(), MethodError> {
    if now.is_none_or(|state| state.version != earlier.version) {
        let target =
            kept(work, record, name, &earlier.version)?.unwrap_or_else(|| format!("{name}={}", earlier.version));
        work.say(format!("putting back {name} {}", earlier.version));
        let options = options(work)?;
        let mut argv = vec!["apt-get", "install", "--allow-downgrades", "--no-remove"];
        argv.extend(options.iter().map(String::as_str));
        argv.push(&target);
        let ran = patiently(work, &argv)?;
        if !ran.ok() {
            let said = format!(
                "{name} {} was there before us and cannot be put back, so it stays as it is: {}",
                earlier.version,
                explain(&ran)
            );
            work.log.push(&said);
            work.say(said);
        }
    }
    if earlier.held
        && states(work.system, std::iter::once(&name.to_owned()))?.get(name).is_some_and(|state| !state.held)
    {
        mark(work, "hold", &[name])?;
    }
    Ok(())
}

/// Those that dpkg knows in any state but gone: also half-installed ones, and those of which settings are left.
fn known<'a>(work: &Work<'_>, names: impl Iterator<Item = &'a String>) -> Result<BTreeSet<String>, MethodError> {
    let mut argv = vec!["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n"];
    argv.extend(names.map(String::as_str));
    if argv.len() == 3 {
        return Ok(BTreeSet::new());
    }
    let ran = look(work, &argv)?;
    // Ends with 1 when one of them was never heard of; 2 is trouble.
    if !matches!(ran.status, Some(0 | 1)) {
        return Err(MethodError(format!("dpkg-query {}", ended(&ran))));
    }
    let line = |line: &str| {
        let (name, state) = line.split_once(' ')?;
        (state != "not-installed").then(|| name.to_owned())
    };
    Ok(ran.stdout.lines().filter_map(line).collect())
}

/// Those of what we pulled in that somebody marked as wanted for themselves since: they are theirs now.
fn wanted_for_themselves<'a>(
    work: &Work<'_>,
    pulled: impl Iterator<Item = &'a String>,
) -> Result<BTreeSet<String>, MethodError> {
    let mut argv = vec!["apt-mark", "showmanual"];
    argv.extend(pulled.map(String::as_str));
    if argv.len() == 2 {
        return Ok(BTreeSet::new());
    }
    let ran = look(work, &argv)?;
    if !ran.ok() {
        // Asked after a package that it does not know, it says nothing of the others: they go only if nobody needs them anyway.
        return Ok(BTreeSet::new());
    }
    Ok(ran.stdout.lines().map(|line| line.trim().to_owned()).collect())
}

/// Drops the kept files of versions that nobody goes back to.
pub(super) fn prune(work: &mut Work<'_>, kept: &[Package]) -> Result<(), MethodError> {
    let mut record = Record::load(work, RECORD)?;
    let mut starts: Vec<String> =
        record.before.iter().filter_map(|(name, earlier)| Some(kept_name(name, &earlier.as_ref()?.version))).collect();
    for deb in kept.iter().chain([work.package]).filter_map(of) {
        starts.extend(deb.packages.iter().map(|(name, version)| kept_name(name, version)));
    }
    let folder = archives(work);
    let needed = |file: &str| starts.iter().any(|start| file.starts_with(start));
    for file in work.system.list(&folder).map_err(MethodError::io(&folder))? {
        if file.ends_with(".deb") && !needed(&file) {
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

/// Takes away the kernels that nobody goes back to, but never the one that runs.
pub(super) fn drop_obsolete(work: &mut Work<'_>, kept: &[Package], running: &str) -> Result<(), MethodError> {
    let mut record = Record::load(work, RECORD)?;
    let needed =
        |name: &String| kept.iter().chain([work.package]).filter_map(of).any(|deb| deb.packages.contains_key(name));
    let mut obsolete: BTreeSet<String> = record.before.keys().filter(|name| !needed(name)).cloned().collect();
    if obsolete.is_empty() {
        return Ok(());
    }
    let image = format!("/boot/vmlinuz-{running}");
    let owner = look(work, &["dpkg-query", "--search", &image])?;
    if let Some((owner, _)) = owner.stdout.split_once(':') {
        obsolete.remove(owner);
    }
    allow_services(work)?;
    take_away(work, &mut record, &obsolete, &BTreeSet::new())
}

/// Debian's kernels ask a person before the one that runs is removed, and take silence for no. Whoever calls this made sure that another boots.
pub(super) fn allow_running_kernel(work: &mut Work<'_>) -> Result<(), MethodError> {
    let path = format!("{}/linux-check-removal", answers(work));
    work.system.write(&path, b"#!/bin/sh\nexit 0\n", 0o755, "root", "root").map_err(MethodError::io(&path))
}

/// Programs that answer in the place of a person.
fn answers(work: &Work<'_>) -> String {
    format!("{}/answers", work.folder)
}

fn policy_is_ours(system: &dyn System) -> Result<bool, MethodError> {
    Ok(system
        .read(POLICY, 64 << 10)
        .map_err(MethodError::io(POLICY))?
        .is_some_and(|content| content == DENIED.as_bytes()))
}

/// A policy that is there already is a person's, and stands.
fn deny_services(work: &mut Work<'_>) -> Result<(), MethodError> {
    if work.system.stat(POLICY).map_err(MethodError::io(POLICY))?.is_some() {
        return Ok(());
    }
    work.system.write(POLICY, DENIED.as_bytes(), 0o755, "root", "root").map_err(MethodError::io(POLICY))
}

fn allow_services(work: &mut Work<'_>) -> Result<(), MethodError> {
    if policy_is_ours(work.system)? {
        work.system.remove(POLICY).map_err(MethodError::io(POLICY))?;
    }
    Ok(())
}

/// What every call of apt-get is told.
fn options(work: &Work<'_>) -> Result<Vec<String>, MethodError> {
    let left = work.left()?.as_secs().max(1);
    let mut options: Vec<String> =
        ["--yes", "--quiet", "--no-install-recommends"].iter().map(|option| (*option).to_owned()).collect();
    for setting in [
        "Dpkg::Use-Pty=0".to_owned(),
        "Dpkg::Options::=--force-confdef".to_owned(),
        "Dpkg::Options::=--force-confold".to_owned(),
        format!("DPkg::Lock::Timeout={left}"),
        format!("Dir::Cache::archives={}/", archives(work)),
        "APT::Keep-Downloaded-Packages=true".to_owned(),
        // Our folders are for root alone.
        "APT::Sandbox::User=root".to_owned(),
        "Acquire::Retries=2".to_owned(),
        "Acquire::http::Timeout=30".to_owned(),
        "Acquire::https::Timeout=30".to_owned(),
    ] {
        options.extend(["-o".to_owned(), setting]);
    }
    if work.offline {
        options.push("--no-download".to_owned());
    }
    let answers = answers(work);
    if work.system.stat(&answers).map_err(MethodError::io(&answers))?.is_some() {
        options.extend(["-o".to_owned(), format!("DPkg::Path={answers}:/usr/sbin:/usr/bin:/sbin:/bin")]);
    }
    Ok(options)
}

/// Asks something that changes nothing and does not belong into the step's output.
fn look(work: &Work<'_>, argv: &[&str]) -> Result<Ran, MethodError> {
    let within = work.left()?.min(LOOK);
    let name = argv.first().copied().unwrap_or_default();
    let ran = work.system.look(&Run { argv, input: &[], env: ENV, within }).map_err(|error| {
        MethodError(format!("{name} cannot be run: {error}; the method `deb` needs a host with apt and dpkg"))
    })?;
    if ran.timed_out {
        return Err(MethodError(format!("{name} did not answer within {} s", within.as_secs())));
    }
    Ok(ran)
}

/// What apt-get would do.
fn simulate(work: &mut Work<'_>, argv: &[&str]) -> Result<Effects, MethodError> {
    let mut asked = argv.to_vec();
    if !asked.contains(&"--simulate") {
        asked.insert(2, "--simulate");
    }
    let ran = look(work, &asked)?;
    if !ran.ok() {
        work.log.push(&ran.tail);
        return Err(MethodError(explain(&ran)));
    }
    Ok(effects(&ran.stdout))
}

/// Reads `Inst NAME [OLD] (NEW …)`, `Remv NAME [OLD]` and `Purg NAME [OLD]`. What is only upgraded is neither coming nor going.
fn effects(said: &str) -> Effects {
    let mut effects = Effects { removes: BTreeSet::new(), installs: BTreeSet::new() };
    for line in said.lines() {
        let mut words = line.split(' ');
        let (Some(verb), Some(name)) = (words.next(), words.next()) else { continue };
        match verb {
            "Inst" if !words.next().is_some_and(|word| word.starts_with('[')) => {
                effects.installs.insert(name.to_owned())
            }
            "Remv" | "Purg" => effects.removes.insert(name.to_owned()),
            _ => continue,
        };
    }
    effects
}

/// Runs, and runs again while another program holds a lock, until the step's time is over.
fn patiently(work: &mut Work<'_>, argv: &[&str]) -> Result<Ran, MethodError> {
    loop {
        let ran = work.run(argv, &[], ENV)?;
        if ran.ok() || !locked(&ran.tail) {
            return Ok(ran);
        }
        let holder = ran.tail.lines().find(|line| locked(line)).unwrap_or_default().trim().to_owned();
        work.say(format!("waiting: {holder}"));
        if work.left()? <= PATIENCE {
            return Ok(ran);
        }
        work.system.pause(PATIENCE);
    }
}

fn locked(said: &str) -> bool {
    [
        "Could not get lock",
        "Unable to acquire the dpkg",
        "Unable to lock",
        "lock was locked by another process",
        "is another process using it",
    ]
    .iter()
    .any(|sign| said.contains(sign))
}

/// Why apt-get or dpkg failed, by their own words, and what to do.
fn explain(ran: &Ran) -> String {
    let said = &ran.tail;
    let advice = if locked(said) {
        "another program held dpkg's lock for all of the step's time: see which one, and let it end"
    } else if said.contains("No space left on device") {
        "the disk is full: make room"
    } else if said.contains("Read-only file system") {
        "the file system is read-only: see the kernel's log for why"
    } else if said.contains("held packages were changed") || said.contains("you have held broken packages") {
        "packages that others hold stand in the way, or what it depends on cannot be had: see `apt-mark showhold`, and the output"
    } else if said.contains("unmet dependencies") {
        "what it depends on cannot be had: add the files to `sources`, or a repository to the host"
    } else if ["Unable to locate package", "was not found", "has no installation candidate"]
        .iter()
        .any(|sign| said.contains(sign))
    {
        "no repository of this host has it: correct the version, add the repository, or give the files as `sources`"
    } else if said.contains("installation script subprocess returned error") {
        "the package's own script failed: see the output"
    } else if ["Temporary failure resolving", "Could not connect", "Failed to fetch", "Could not resolve"]
        .iter()
        .any(|sign| said.contains(sign))
    {
        "a repository cannot be reached from the host"
    } else {
        "see the output"
    };
    // apt's own words: the errors, without what follows from them.
    let errors: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| {
            line.starts_with("E: ") || line.starts_with("dpkg: error") || line.starts_with("dpkg-deb: error")
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

    #[test]
    fn what_apt_would_do_is_read_from_its_own_words() {
        let effects = effects(
            "Reading package lists...\nInst demo-lib (1.0 localhost [all])\nInst demo [3.0] (1.0 localhost [all])\nRemv gone [2]\nPurg away [1]\nConf demo (1.0)\n",
        );
        assert_eq!(effects.installs, BTreeSet::from(["demo-lib".to_owned()]));
        assert_eq!(effects.removes, BTreeSet::from(["gone".to_owned(), "away".to_owned()]));
    }
}

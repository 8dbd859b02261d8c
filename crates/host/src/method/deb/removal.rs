//! Removes packages, and restores the versions from before.

use std::collections::{BTreeMap, BTreeSet};

use super::apt::{answers, explain, look, mark, options, patiently, simulate};
use super::package_cache::{archives, kept};
use super::services::allow_services;
use super::{
    Earlier, MethodContext, MethodError, OtherRecords, Package, RECORD, Record, ended, mend, of, os, shown, states,
};
use crate::system::DebState;

/// Removes all packages that the component installed, and restores the earlier state of the others.
pub(in crate::method) fn remove(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
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

/// Removes those of these packages that we installed, restores the versions of the others, and drops their records.
pub(super) fn take_away(
    work: &mut MethodContext<'_>,
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
    let mut others = OtherRecords::load(work, RECORD)?;
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
            return Err(MethodError(format!("cannot remove {}: {}", shown(&going), explain(&ran))));
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

/// Restores the version that a package had before our first change. If that version is no longer available, the package stays, with a message.
fn put_back(
    work: &mut MethodContext<'_>,
    record: &Record,
    name: &str,
    earlier: &Earlier,
    now: Option<&DebState>,
) -> Result<(), MethodError> {
    if now.is_none_or(|state| state.version != earlier.version) {
        let target =
            kept(work, record, name, &earlier.version)?.unwrap_or_else(|| format!("{name}={}", earlier.version));
        work.say(format!("restoring {name} {}", earlier.version));
        let options = options(work)?;
        let mut argv = vec!["apt-get", "install", "--allow-downgrades", "--no-remove"];
        argv.extend(options.iter().map(String::as_str));
        argv.push(&target);
        let ran = os::without_asides(work, |work| patiently(work, &argv))?;
        if !ran.ok() {
            let said = format!(
                "cannot restore {name} {}, which was installed before; it is left unchanged: {}",
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

/// The packages that dpkg knows in any state but removed: this includes half-installed packages and those with remaining configuration.
fn known<'a>(
    work: &MethodContext<'_>,
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeSet<String>, MethodError> {
    let mut argv = vec!["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n"];
    argv.extend(names.map(String::as_str));
    if argv.len() == 3 {
        return Ok(BTreeSet::new());
    }
    let ran = look(work, &argv)?;
    // Exit status 1 means that a package is unknown; 2 is an error.
    if !matches!(ran.status, Some(0 | 1)) {
        return Err(MethodError(format!("dpkg-query {}", ended(&ran))));
    }
    let line = |line: &str| {
        let (name, state) = line.split_once(' ')?;
        (state != "not-installed").then(|| name.to_owned())
    };
    Ok(ran.stdout.lines().filter_map(line).collect())
}

/// Our dependencies that somebody marked as manually installed since: they are no longer ours.
fn wanted_for_themselves<'a>(
    work: &MethodContext<'_>,
    pulled: impl Iterator<Item = &'a String>,
) -> Result<BTreeSet<String>, MethodError> {
    let mut argv = vec!["apt-mark", "showmanual"];
    argv.extend(pulled.map(String::as_str));
    if argv.len() == 2 {
        return Ok(BTreeSet::new());
    }
    let ran = look(work, &argv)?;
    if !ran.ok() {
        // Asked about an unknown package, apt-mark reports none of the others: they are removed only if no other package needs them.
        return Ok(BTreeSet::new());
    }
    Ok(ran.stdout.lines().map(|line| line.trim().to_owned()).collect())
}

/// Removes kernels that no rollback needs, but never the running one.
pub(in crate::method) fn drop_obsolete(
    work: &mut MethodContext<'_>,
    kept: &[Package],
    running: &str,
) -> Result<(), MethodError> {
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

/// Debian's kernel packages ask before the running kernel is removed, and take no answer for no. The caller has made sure that another kernel boots.
pub(in crate::method) fn allow_running_kernel(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let path = format!("{}/linux-check-removal", answers(work));
    work.system.write(&path, b"#!/bin/sh\nexit 0\n", 0o755, "root", "root").map_err(MethodError::io(&path))
}

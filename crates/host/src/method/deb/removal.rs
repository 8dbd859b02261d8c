//! Takes packages away again, and puts back what was there before.

use std::collections::{BTreeMap, BTreeSet};

use super::apt::{answers, explain, look, mark, options, patiently, simulate};
use super::package_cache::{archives, kept};
use super::services::allow_services;
use super::{
    Earlier, MethodContext, MethodError, OtherRecords, Package, RECORD, Record, ended, mend, of, os, shown, states,
};
use crate::system::DebState;

/// Takes everything away that the component brought, and puts back what was there before it.
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

/// Takes away those of these packages that we brought, and puts back the versions of the others. Forgets them.
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

/// Brings a package back to the version that it had before us. If nobody has that any more, it stays as it is, and that is said.
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

/// Those that dpkg knows in any state but gone: also half-installed ones, and those of which settings are left.
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
        // Asked after a package that it does not know, it says nothing of the others: they go only if nobody needs them anyway.
        return Ok(BTreeSet::new());
    }
    Ok(ran.stdout.lines().map(|line| line.trim().to_owned()).collect())
}

/// Takes away the kernels that nobody goes back to, but never the one that runs.
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

/// Debian's kernels ask a person before the one that runs is removed, and take silence for no. Whoever calls this made sure that another boots.
pub(in crate::method) fn allow_running_kernel(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let path = format!("{}/linux-check-removal", answers(work));
    work.system.write(&path, b"#!/bin/sh\nexit 0\n", 0o755, "root", "root").map_err(MethodError::io(&path))
}

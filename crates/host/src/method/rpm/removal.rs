//! Removes packages, and restores the versions from before.

use std::collections::{BTreeMap, BTreeSet};

use super::dnf::{explain, look, options, patiently, would_remove};
use super::package_cache::{archives, kept};
use super::{Earlier, MethodContext, MethodError, OtherRecords, RECORD, Record, has_dnf, hold, installed, os, shown};

/// Removes all packages that the component installed, and restores the earlier state of the others.
pub(in crate::method) fn remove(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
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

/// Removes those of these packages that we installed, restores the versions of the others, and drops their records.
pub(super) fn take_away(
    work: &mut MethodContext<'_>,
    record: &mut Record,
    keys: &BTreeSet<String>,
    pulled: &BTreeSet<String>,
) -> Result<(), MethodError> {
    let dnf = has_dnf(work.system)?;
    if dnf {
        hold::release(work.system, &record.held)?;
    }
    let mut others = OtherRecords::load(work, RECORD)?;
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
            return Err(MethodError(format!("cannot remove {}: {}", shown(&going), explain(&ran))));
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

/// Restores the version that a package had before our first change. If that version is no longer available, the package stays, with a message.
fn put_back(
    work: &mut MethodContext<'_>,
    record: &Record,
    key: &str,
    earlier: &Earlier,
    dnf: bool,
) -> Result<(), MethodError> {
    let there = installed(work.system, std::iter::once(&key.to_owned()))?;
    if !there.values().flatten().any(|version| *version == earlier.version) {
        let file = kept(work, record, key, &earlier.version)?;
        work.say(format!("restoring {key} {}", earlier.version));
        let target = file.unwrap_or_else(|| format!("{key}-{}", earlier.version));
        let mut argv = if dnf { vec!["dnf", "install"] } else { vec!["rpm", "-U", "--oldpackage"] };
        if dnf {
            argv.extend(options(work));
        }
        argv.push(&target);
        let ran = os::without_asides(work, |work| patiently(work, &argv))?;
        if !ran.ok() {
            let said = format!(
                "cannot restore {key} {}, which was installed before; it is left unchanged: {}",
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

/// Our dependencies that somebody installed by name since: they are no longer ours.
fn wanted_for_themselves(work: &MethodContext<'_>, pulled: &BTreeSet<String>) -> Result<BTreeSet<String>, MethodError> {
    if pulled.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut argv = vec!["dnf", "repoquery", "--quiet", "--cacheonly", "--userinstalled", "--queryformat=%{name}"];
    argv.extend(pulled.iter().map(String::as_str));
    let ran = look(work, &argv)?;
    // Some versions of dnf have the command only as a plugin; without it dependencies are removed only if no other package needs them.
    Ok(if ran.ok() { ran.stdout.lines().map(|line| line.trim().to_owned()).collect() } else { BTreeSet::new() })
}

/// A transaction that was interrupted between unpacking the new version and removing the old one leaves both.
pub(super) fn remove_doubles(work: &mut MethodContext<'_>, name: &str, version: &str) -> Result<(), MethodError> {
    let there = installed(work.system, std::iter::once(&name.to_owned()))?;
    let Some(versions) = there.get(name).filter(|versions| versions.contains(version)) else { return Ok(()) };
    for double in versions.iter().filter(|other| *other != version) {
        work.say(format!("removing {name} {double}, which an interrupted transaction left"));
        let ran = patiently(work, &["rpm", "-e", "--nodeps", "--noscripts", &format!("{name}-{double}")])?;
        if !ran.ok() {
            return Err(MethodError(format!(
                "cannot remove {name} {double}, left by an interrupted transaction: {}",
                explain(&ran)
            )));
        }
    }
    Ok(())
}

//! Removes packages, and restores the versions from before.

use std::collections::{BTreeMap, BTreeSet};

use super::cache::kept_or_named;
use super::os::{self, Earlier, OtherRecords, Record, shown};
use super::{LINKS, MethodContext, MethodError, PackageManager, explain};

/// Removes all packages that the component installed, and restores the earlier state of the others.
pub(in crate::method) fn remove<M: PackageManager>(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let mut record = Record::load(work, M::RECORD)?;
    M::recover(work)?;
    if record.before.is_empty() && record.pulled.is_empty() {
        return Ok(());
    }
    let keys: BTreeSet<String> = record.before.keys().cloned().collect();
    let pulled = record.pulled.clone();
    M::mend(work, &BTreeMap::new())?;
    take_away::<M>(work, &mut record, &keys, &pulled)?;
    for folder in [M::ARCHIVES, LINKS].iter().chain(M::FOLDERS) {
        let path = format!("{}/{folder}", work.folder);
        work.system.remove(&path).map_err(MethodError::io(&path))?;
    }
    Record::forget(work, M::RECORD)
}

/// Removes those of these packages that we installed, restores the versions of the others, and drops their records.
pub(in crate::method) fn take_away<M: PackageManager>(
    work: &mut MethodContext<'_>,
    record: &mut Record,
    keys: &BTreeSet<String>,
    pulled: &BTreeSet<String>,
) -> Result<(), MethodError> {
    // Holds have names without a version, also those of packages whose keys have one.
    let going = |name: &&String| keys.contains(*name) || !record.before.contains_key(*name);
    let held: BTreeSet<String> = record.held.iter().filter(going).cloned().collect();
    M::release(work, &held)?;
    let (mut sure, mut maybe) = (BTreeSet::new(), BTreeSet::new());
    let mut others = OtherRecords::load(work, M::RECORD)?;
    let present = M::present(work, keys.union(pulled))?;
    for key in keys.iter().filter(|key| record.before.get(*key).is_some_and(Option::is_none)) {
        if !others.inherit(work, key)? && present.contains(key) {
            sure.insert(key.clone());
        }
    }
    let certain: BTreeSet<String> = pulled.difference(&record.pending).cloned().collect();
    let wanted = M::wanted_for_themselves(work, &certain)?;
    for name in pulled.difference(&wanted) {
        if !others.inherit(work, name)? && present.contains(name) {
            maybe.insert(name.clone());
        }
    }
    let going = os::removable(work, &mut others, &sure, &maybe, &mut M::would_remove)?;
    if !going.is_empty() {
        work.say(format!("removing {}", shown(&going)));
        let ran = M::run_remove(work, &going)?;
        if !ran.ok() {
            return Err(MethodError(format!("cannot remove {}: {}", shown(&going), explain::<M>(&ran))));
        }
    }
    for key in keys {
        if let Some(Some(earlier)) = record.before.get(key) {
            put_back::<M>(work, record, key, earlier)?;
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
    record.save(work, M::RECORD)
}

/// Restores the version that a package had before our first change. If that version is no longer available, the package stays, with a message.
fn put_back<M: PackageManager>(
    work: &mut MethodContext<'_>,
    record: &Record,
    key: &str,
    earlier: &Earlier,
) -> Result<(), MethodError> {
    let there = M::installed(work.system, std::iter::once(&key.to_owned()))?;
    if !there.values().flatten().any(|version| *version == earlier.version) {
        let target = kept_or_named::<M>(work, record, key, &earlier.version)?;
        work.say(format!("restoring {key} {}", earlier.version));
        let ran = os::without_asides(work, |work| M::run_restore(work, &target))?;
        if !ran.ok() {
            let said = format!(
                "cannot restore {key} {}, which was installed before; it is left unchanged: {}",
                earlier.version,
                explain::<M>(&ran)
            );
            work.log.push(&said);
            work.say(said);
        }
    }
    M::remove_doubles(work, key, &earlier.version)?;
    if earlier.held {
        M::hold_again(work, key, &earlier.version)?;
    }
    Ok(())
}

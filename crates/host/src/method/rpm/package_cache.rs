//! Package files from repositories, kept on the host so that a rollback needs no network.

use std::collections::{BTreeMap, BTreeSet};

use super::dnf::{explain, options, patiently};
use super::{MethodContext, MethodError, Package, RECORD, Record, hold, installed, of};
use crate::system::ProgramResult;

pub(super) fn take_from_repository(
    work: &mut MethodContext<'_>,
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
        return Err(MethodError(format!("{named} is no longer kept on this host: reinstall it")));
    }
    work.say(format!("fetching {named} from the configured repositories"));
    // Our own locks must not hide the wanted versions.
    let released = release(work, record, wrong)?;
    let mut ran = download(work, "install", &missing, false)?;
    if !ran.ok() {
        // The repository metadata may be outdated.
        ran = download(work, "install", &missing, true)?;
    }
    if !released.is_empty() {
        hold::set(work.system, &released)?;
    }
    if !ran.ok() {
        return Err(MethodError(format!("cannot fetch {named}: {}", explain(&ran))));
    }
    remember_kept(work, record)
}

/// Releases our own locks of these packages, and returns them with the installed versions.
fn release(
    work: &mut MethodContext<'_>,
    record: &Record,
    names: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, MethodError> {
    let ours: BTreeSet<String> = names.keys().filter(|name| record.held.contains(*name)).cloned().collect();
    let there = installed(work.system, ours.iter())?;
    hold::release(work.system, &ours)?;
    Ok(there.into_iter().filter_map(|(name, versions)| Some((name, versions.into_iter().next()?))).collect())
}

pub(super) fn download(
    work: &mut MethodContext<'_>,
    verb: &str,
    targets: &[String],
    refresh: bool,
) -> Result<ProgramResult, MethodError> {
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

pub(super) fn archives(work: &MethodContext<'_>) -> String {
    format!("{}/rpms", work.folder)
}

pub(super) fn remember_kept(work: &mut MethodContext<'_>, record: &mut Record) -> Result<(), MethodError> {
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

/// The kept file of that version, if it is intact: `NAME-VERSION-RELEASE.ARCH.rpm`.
pub(super) fn kept(
    work: &MethodContext<'_>,
    record: &Record,
    name: &str,
    version: &str,
) -> Result<Option<String>, MethodError> {
    let start = format!("{name}-{version}.");
    for (file, digest) in record.kept.iter().filter(|(file, _)| file.starts_with(&start)) {
        let path = format!("{}/{file}", archives(work));
        if work.system.sha256(&path).map_err(MethodError::io(&path))?.as_ref() == Some(digest) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Removes the kept files of versions that no rollback can reach.
pub(in crate::method) fn prune(work: &mut MethodContext<'_>, kept: &[Package]) -> Result<(), MethodError> {
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

//! Package files from repositories, kept on the host so that a rollback needs no network.

use std::collections::BTreeMap;

use super::apt::{explain, options, patiently};
use super::{MethodContext, MethodError, Package, RECORD, Record, ended, of, os};
use crate::system::{DebState, ProgramResult};

/// Runs `apt-get install --download-only` into our own directory, from which apt installs later.
fn fetch_archives(work: &mut MethodContext<'_>, targets: &[String]) -> Result<ProgramResult, MethodError> {
    let options = options(work)?;
    // A download changes nothing, so holds do not matter.
    let mut argv = vec![
        "apt-get",
        "install",
        "--download-only",
        "--reinstall",
        "--allow-downgrades",
        "--allow-change-held-packages",
    ];
    argv.extend(options.iter().chain(targets).map(String::as_str));
    patiently(work, &argv)
}

pub(super) fn archives(work: &MethodContext<'_>) -> String {
    format!("{}/debs", work.folder)
}

/// Records the digests of the package files that are kept now.
fn remember_kept(work: &mut MethodContext<'_>, record: &mut Record) -> Result<(), MethodError> {
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

/// The kept file of that version, if it is intact. apt names it `NAME_VERSION_ARCH.deb`, with `%3a` for a colon.
pub(super) fn kept(
    work: &MethodContext<'_>,
    record: &Record,
    name: &str,
    version: &str,
) -> Result<Option<String>, MethodError> {
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

/// Keeps the files of versions from before our first change, as far as a repository still has them.
pub(super) fn keep_earlier(
    work: &mut MethodContext<'_>,
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
    work.say(format!("keeping {} for a rollback", os::exact(&replaced, "=").join(", ")));
    for (name, version) in &replaced {
        // If no repository has that version any more, the package stays at our version at removal, and a message says so.
        let _ = fetch_archives(work, &[format!("{name}={version}")])?;
    }
    remember_kept(work, record)
}

/// Downloads package files from the configured repositories into the component's directory.
pub(super) fn download(
    work: &mut MethodContext<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
) -> Result<(), MethodError> {
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
        return Err(MethodError(format!("{} is no longer kept on this host: reinstall it", targets.join(", "))));
    }
    work.say(format!("fetching {} from the configured repositories", targets.join(", ")));
    if !fetch_archives(work, &targets)?.ok() {
        // The package lists may be outdated.
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
            return Err(MethodError(format!("cannot fetch {}: {said}", targets.join(", "))));
        }
    }
    remember_kept(work, record)
}

/// Removes the kept files of versions that no rollback can reach.
pub(in crate::method) fn prune(work: &mut MethodContext<'_>, kept: &[Package]) -> Result<(), MethodError> {
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

//! Downloads of package files into the component's directory.

use std::collections::BTreeMap;

use super::apt::options;
use super::{
    Deb, InstalledVersions, MethodContext, MethodError, ProgramResult, Record, ended, os, packages, patiently,
};

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
    patiently::<Deb>(work, &argv)
}

/// Keeps the files of versions from before our first change, as far as a repository still has them.
pub(super) fn keep_earlier(
    work: &mut MethodContext<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
    there: &InstalledVersions,
) -> Result<(), MethodError> {
    let replaced: BTreeMap<String, String> = wrong
        .keys()
        .filter(|name| !record.before.contains_key(*name) && !record.pulled.contains(*name))
        .filter_map(|name| Some((name.clone(), there.get(name)?.first()?.clone())))
        .collect();
    if replaced.is_empty() || work.offline {
        return Ok(());
    }
    work.say(format!("keeping {} for a rollback", os::exact(&replaced, "=").join(", ")));
    for (name, version) in &replaced {
        // If no repository has that version any more, the package stays at our version at removal, and a message says so.
        let _ = fetch_archives(work, &[format!("{name}={version}")])?;
    }
    packages::remember_kept::<Deb>(work, record)
}

/// Downloads package files from the configured repositories.
pub(super) fn download(work: &mut MethodContext<'_>, targets: &[String]) -> Result<(), MethodError> {
    if fetch_archives(work, targets)?.ok() {
        return Ok(());
    }
    // The package lists may be outdated.
    work.say("apt-get update");
    let options = options(work)?;
    let mut argv = vec!["apt-get", "update"];
    argv.extend(options.iter().map(String::as_str));
    let updated = patiently::<Deb>(work, &argv)?;
    let ran = fetch_archives(work, targets)?;
    if ran.ok() {
        return Ok(());
    }
    let mut said = packages::explain::<Deb>(&ran);
    if !updated.ok() {
        said = format!("{said}; before it, apt-get update {}", ended(&updated));
    }
    Err(MethodError(format!("cannot fetch {}: {said}", targets.join(", "))))
}

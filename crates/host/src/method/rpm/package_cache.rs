//! Downloads of package files into the component's directory.

use std::collections::{BTreeMap, BTreeSet};

use super::dnf::options;
use super::{
    InstalledVersions, MethodContext, MethodError, PackageManager as _, ProgramResult, Record, Rpm, hold, packages,
    patiently,
};

/// Keeps the files of versions from before our first change, as far as a repository still has them.
pub(super) fn keep_earlier(
    work: &mut MethodContext<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
    there: &InstalledVersions,
) -> Result<(), MethodError> {
    for name in wrong.keys().filter(|name| !record.before.contains_key(*name) && !record.pulled.contains(*name)) {
        for version in there.get(name).into_iter().flatten() {
            // If no repository has that version any more, the package stays at our version at removal, and a message says so.
            fetch_archives(work, "reinstall", &[format!("{name}-{version}")], false)?;
        }
    }
    packages::remember_kept::<Rpm>(work, record)
}

/// Downloads package files from the configured repositories.
pub(super) fn download(
    work: &mut MethodContext<'_>,
    record: &Record,
    wrong: &BTreeMap<String, String>,
    missing: &[String],
) -> Result<(), MethodError> {
    // Our own locks must not hide the wanted versions.
    let released = release(work, record, wrong)?;
    let mut ran = fetch_archives(work, "install", missing, false)?;
    if !ran.ok() {
        // The repository metadata may be outdated.
        ran = fetch_archives(work, "install", missing, true)?;
    }
    if !released.is_empty() {
        hold::set(work.system, &released)?;
    }
    if ran.ok() {
        return Ok(());
    }
    Err(MethodError(format!("cannot fetch {}: {}", missing.join(", "), packages::explain::<Rpm>(&ran))))
}

/// Releases our own locks of these packages, and returns them with the installed versions.
fn release(
    work: &mut MethodContext<'_>,
    record: &Record,
    names: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, MethodError> {
    let ours: BTreeSet<String> = names.keys().filter(|name| record.held.contains(*name)).cloned().collect();
    let there = Rpm::installed(work.system, ours.iter())?;
    hold::release(work.system, &ours)?;
    Ok(there.into_iter().filter_map(|(name, versions)| Some((name, versions.into_iter().next()?))).collect())
}

fn fetch_archives(
    work: &mut MethodContext<'_>,
    verb: &str,
    targets: &[String],
    refresh: bool,
) -> Result<ProgramResult, MethodError> {
    let folder = packages::archives::<Rpm>(work);
    let into = format!("--downloaddir={folder}");
    let mut argv = vec!["dnf", verb, "--downloadonly", &into];
    if refresh {
        argv.push("--refresh");
    }
    let options = options(work);
    argv.extend(options.iter().copied().chain(targets.iter().map(String::as_str)));
    patiently::<Rpm>(work, &argv)
}

//! Package files from repositories, kept on the host so that a rollback needs no network.

use std::collections::BTreeMap;

use fleetwright_wire::Package;

use super::{MethodContext, MethodError, PackageManager, Record};

/// Downloads the packages that are not kept from the configured repositories.
pub(super) fn take_from_repository<M: PackageManager>(
    work: &mut MethodContext<'_>,
    record: &mut Record,
    wrong: &BTreeMap<String, String>,
) -> Result<(), MethodError> {
    let mut missing = Vec::new();
    for (name, version) in wrong {
        if kept::<M>(work, record, name, version)?.is_none() {
            missing.push(format!("{name}{}{version}", M::BETWEEN));
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
    M::download(work, record, wrong, &missing)?;
    remember_kept::<M>(work, record)
}

/// Directory of the kept package files.
pub(in crate::method) fn archives<M: PackageManager>(work: &MethodContext<'_>) -> String {
    format!("{}/{}", work.folder, M::ARCHIVES)
}

/// Records the digests of the package files that are kept now.
pub(in crate::method) fn remember_kept<M: PackageManager>(
    work: &mut MethodContext<'_>,
    record: &mut Record,
) -> Result<(), MethodError> {
    let folder = archives::<M>(work);
    for file in work.system.list(&folder).map_err(MethodError::io(&folder))? {
        if file.ends_with(M::ENDING) && !record.kept.contains_key(&file) {
            let path = format!("{folder}/{file}");
            if let Some(digest) = work.system.sha256(&path).map_err(MethodError::io(&path))? {
                record.kept.insert(file, digest);
            }
        }
    }
    record.save(work, M::RECORD)
}

/// The kept file of that version, if it is intact.
fn kept<M: PackageManager>(
    work: &MethodContext<'_>,
    record: &Record,
    name: &str,
    version: &str,
) -> Result<Option<String>, MethodError> {
    let start = M::kept_start(name, version);
    for (file, digest) in record.kept.iter().filter(|(file, _)| file.starts_with(&start)) {
        let path = format!("{}/{file}", archives::<M>(work));
        if work.system.sha256(&path).map_err(MethodError::io(&path))?.as_ref() == Some(digest) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// The kept file of that version, otherwise its name in a repository.
pub(super) fn kept_or_named<M: PackageManager>(
    work: &MethodContext<'_>,
    record: &Record,
    name: &str,
    version: &str,
) -> Result<String, MethodError> {
    Ok(kept::<M>(work, record, name, version)?.unwrap_or_else(|| format!("{name}{}{version}", M::BETWEEN)))
}

/// Removes the kept files of versions that no rollback can reach.
pub(in crate::method) fn prune<M: PackageManager>(
    work: &mut MethodContext<'_>,
    kept: &[Package],
) -> Result<(), MethodError> {
    let mut record = Record::load(work, M::RECORD)?;
    let mut starts: Vec<String> = record
        .before
        .iter()
        .filter_map(|(key, earlier)| Some(M::kept_start(key, &earlier.as_ref()?.version)))
        .collect();
    for declared in kept.iter().chain([work.package]).filter_map(M::declared) {
        starts.extend(declared.packages.iter().map(|(name, version)| M::kept_start(name, version)));
    }
    let needed = |file: &str| starts.iter().any(|start| file.starts_with(start));
    let folder = archives::<M>(work);
    for file in work.system.list(&folder).map_err(MethodError::io(&folder))? {
        if file.ends_with(M::ENDING) && !needed(&file) {
            let path = format!("{folder}/{file}");
            work.system.remove(&path).map_err(MethodError::io(&path))?;
        }
    }
    let before = record.kept.len();
    record.kept.retain(|file, _| needed(file));
    if record.kept.len() != before {
        record.save(work, M::RECORD)?;
    }
    Ok(())
}

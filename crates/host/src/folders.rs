//! The directories that were created for our files, over all components: each is removed with the last file in it.

use std::collections::BTreeSet;
use std::io;

use fleetwright_wire::HOME;

use crate::System;
use crate::system::PathKind;

const LIMIT: u64 = 4 << 20;

fn path() -> String {
    format!("{HOME}/folders.json")
}

/// Records which parent directories of these paths do not exist yet. To be called before a file is written there.
pub fn note<'p>(system: &mut dyn System, paths: impl IntoIterator<Item = &'p str>) -> io::Result<()> {
    let mut missing = BTreeSet::new();
    for path in paths {
        let mut folder = path;
        while let Some((above, _)) = folder.rsplit_once('/') {
            if above.is_empty() || missing.contains(above) || system.stat(above)?.is_some() {
                break;
            }
            missing.insert(above.to_owned());
            folder = above;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let mut known = known(system)?;
    let before = known.len();
    known.extend(missing);
    if known.len() > before { keep(system, &known) } else { Ok(()) }
}

/// Removes the directories that we created and that are empty now.
pub fn tidy(system: &mut dyn System) -> io::Result<()> {
    let known = known(system)?;
    let mut left = known.clone();
    // Deepest first: a directory may be empty once its subdirectory is gone.
    for folder in known.iter().rev() {
        match removed(system, folder) {
            Ok(false) => {}
            Ok(true) => {
                left.remove(folder);
            }
            // Another user replaced a parent by a link: the directory is no longer ours, and no step of other components fails because of it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                left.remove(folder);
            }
            Err(error) => return Err(error),
        }
    }
    if left.len() < known.len() { keep(system, &left) } else { Ok(()) }
}

/// Removes a directory if it is empty; false if it stays.
fn removed(system: &mut dyn System, folder: &str) -> io::Result<bool> {
    if system.stat(folder)?.is_none_or(|stat| stat.kind != PathKind::Folder) {
        return Ok(true);
    }
    if !system.list(folder)?.is_empty() {
        return Ok(false);
    }
    // Not `remove`: another process may have created a file there since it was listed.
    system.remove_empty(folder)
}

/// If the record cannot be read, directories stay, and nothing else is lost.
fn known(system: &dyn System) -> io::Result<BTreeSet<String>> {
    let bytes = system.read(&path(), LIMIT)?.unwrap_or_default();
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

fn keep(system: &mut dyn System, folders: &BTreeSet<String>) -> io::Result<()> {
    let bytes = serde_json::to_vec(folders).map_err(io::Error::other)?;
    system.write(&path(), &bytes, 0o600, "root", "root")
}

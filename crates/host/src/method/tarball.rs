//! An archive, unpacked beside the old one and switched by one link.
//!
//! `OPT/COMPONENT/VERSION-DIGEST` holds the unpacked archive, `OPT/COMPONENT/current` is the link that switches, and the links that a package
//! declares lead through it. Every unpacked file is recorded, so that tampering is detected. A directory that was tampered with is not repaired
//! in place: the archive is unpacked again beside it, and the link switches.

use std::collections::BTreeMap;

use fleetwright_wire::{self as wire, Deviation, OPT, Package};
use serde::{Deserialize, Serialize};

use super::{Method, MethodContext, MethodError, folder};
use crate::system::{PathKind, Stat};
use crate::{System, fetch, folders};

/// Most entries of an archive, and of the list of its entries.
const MAX_ENTRIES: usize = 200_000;
const LIMIT: u64 = 64 << 20;

/// The method `tarball`; see the module.
pub(super) struct Tarball;

/// One unpacked entry.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    mode: u32,
    size: u64,
    changed: i64,
    /// The sha256 of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    /// The target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Method for Tarball {
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
        let Some(name) = current(system, package)? else { return Ok(None) };
        // The declared version if the link leads to it; any other version is read from the directory's name.
        if belongs(&name, &base(package)?) {
            return Ok(Some(package.version.clone()));
        }
        let version = name.rsplit_once('-').map_or(name.as_str(), |(version, _)| version);
        Ok(Some(version.strip_prefix('v').unwrap_or(version).to_owned()))
    }

    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
        let base = base(package)?;
        let mut deviations = Vec::new();
        match current(system, package)? {
            Some(name) if belongs(&name, &base) => deviations.extend(tampered(system, package, &name)?),
            found => deviations.push(Deviation {
                what: format!("link {}", link(package)),
                found: found.unwrap_or_else(|| "absent".to_owned()),
                wanted: base,
                disrupts: !package.units.is_empty(),
            }),
        }
        for (path, target) in links(package)? {
            let found = system.stat(&path).map_err(MethodError::io(&path))?.map(|stat| stat.kind);
            if found != Some(PathKind::Link(target.clone())) {
                deviations.push(Deviation {
                    what: format!("link {path}"),
                    found: shown(found),
                    wanted: target,
                    disrupts: false,
                });
            }
        }
        Ok(deviations)
    }

    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        let package = work.package;
        if intact(work.system, package)?.is_none() {
            fetch::source(work, &tarball(package)?.source)?;
        }
        Ok(())
    }

    fn paths(&self, package: &Package) -> Vec<String> {
        tarball(package).map(|tarball| tarball.links.keys().cloned().collect()).unwrap_or_default()
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        let package = work.package;
        let name = match intact(work.system, package)? {
            Some(name) => name,
            None => unpack(work)?,
        };
        let mut changed = false;
        if current(work.system, package)?.as_ref() != Some(&name) {
            let path = link(package);
            work.system.link(&path, &name).map_err(MethodError::io(&path))?;
            changed = true;
        }
        for (path, target) in links(package)? {
            let found = work.system.stat(&path).map_err(MethodError::io(&path))?.map(|stat| stat.kind);
            if found == Some(PathKind::Link(target.clone())) {
                continue;
            }
            if found == Some(PathKind::Folder) {
                return Err(MethodError(format!("cannot link {path} to {target}: it is a folder")));
            }
            work.system.link(&path, &target).map_err(MethodError::io(&path))?;
        }
        Ok(changed)
    }

    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        let path = format!("{OPT}/{}", work.package.component);
        work.system.remove(&path).map_err(MethodError::io(&path))?;
        Ok(())
    }

    fn prune(&self, work: &mut MethodContext<'_>, kept: &[Package]) -> Result<(), MethodError> {
        let package = work.package;
        let above = format!("{OPT}/{}", package.component);
        let current = current(work.system, package)?;
        let kept: Vec<String> = kept.iter().filter_map(|package| base(package).ok()).collect();
        for name in work.system.list(&above).map_err(MethodError::io(&above))? {
            let wanted =
                name == "current" || current.as_ref() == Some(&name) || kept.iter().any(|base| belongs(&name, base));
            if !wanted {
                forget(work, &name)?;
            }
        }
        Ok(())
    }
}

fn tarball(package: &Package) -> Result<&wire::Tarball, MethodError> {
    match &package.method {
        wire::Method::Tarball(tarball) => Ok(tarball),
        _ => Err(MethodError(format!("{} declares no tarball", package.reference))),
    }
}

fn link(package: &Package) -> String {
    format!("{OPT}/{}/current", package.component)
}

/// The name of the directory for this package's archive: from the version, as far as it is a valid name, and from
/// everything that decides the content.
fn base(package: &Package) -> Result<String, MethodError> {
    let tarball = tarball(package)?;
    let version: String = package
        .version
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || "._+~".contains(char) { char } else { '_' })
        .take(64)
        .collect();
    let digest = crate::text::sha256(format!("{} {}", tarball.source.sha256, tarball.strip).as_bytes());
    Ok(format!("v{version}-{}", &digest[..12]))
}

/// Whether a directory was unpacked for that base: the base itself, or a repeated unpacking beside one that was tampered with (`BASE.2`).
fn belongs(name: &str, base: &str) -> bool {
    name.strip_prefix(base)
        .is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(|rest| rest.parse::<u32>().is_ok()))
}

/// The target of the link `current`, if it is a directory beside the link.
fn current(system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
    let path = link(package);
    match system.stat(&path).map_err(MethodError::io(&path))? {
        Some(Stat { kind: PathKind::Link(target), .. }) => Ok(Some(target)),
        _ => Ok(None),
    }
}

fn links(package: &Package) -> Result<Vec<(String, String)>, MethodError> {
    let through = link(package);
    let tarball = tarball(package)?;
    Ok(tarball
        .links
        .iter()
        .map(|(path, inside)| (path.clone(), format!("{through}/{}", inside.trim_start_matches('/'))))
        .collect())
}

/// The directory with this package's content, as it was unpacked.
fn intact(system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
    let base = base(package)?;
    let above = format!("{OPT}/{}", package.component);
    let mut names = system.list(&above).map_err(MethodError::io(&above))?;
    names.retain(|name| belongs(name, &base));
    // The directory in use comes first: nothing restarts for another one with the same content.
    if let Some(current) = current(system, package)?
        && let Some(at) = names.iter().position(|name| *name == current)
    {
        names.swap(0, at);
    }
    for name in names {
        if tampered(system, package, &name)?.is_empty() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn manifest_path(folder: &str, name: &str) -> String {
    format!("{folder}/{name}.json")
}

/// The deviations of a directory from what was unpacked into it.
fn tampered(system: &dyn System, package: &Package, name: &str) -> Result<Vec<Deviation>, MethodError> {
    let at = format!("{OPT}/{}/{name}", package.component);
    let path = manifest_path(&folder(&package.component), name);
    let bytes = system.read(&path, LIMIT).map_err(MethodError::io(&path))?;
    let manifest: Option<BTreeMap<String, Entry>> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let disrupts = !package.units.is_empty();
    let Some(manifest) = manifest else {
        return Ok(vec![Deviation {
            what: format!("folder {at}"),
            found: "incomplete, or not unpacked by Fleetwright".to_owned(),
            wanted: "unpacked by Fleetwright".to_owned(),
            disrupts,
        }]);
    };
    let mut deviations = Vec::new();
    for (inside, entry) in &manifest {
        let path = format!("{at}/{inside}");
        let Some(stat) = system.stat(&path).map_err(MethodError::io(&path))? else {
            deviations.push(differs(&path, "absent".to_owned(), described(entry), disrupts));
            continue;
        };
        if stat.changed == entry.changed && stat.size == entry.size && stat.mode == entry.mode {
            continue;
        }
        let found = seen(system, &path, &stat)?;
        // Somebody replaced the file with the same content; only the change time differs.
        if (&found.sha256, &found.target, found.mode) != (&entry.sha256, &entry.target, entry.mode) {
            deviations.push(differs(&path, described(&found), described(entry), disrupts));
        }
    }
    Ok(deviations)
}

fn differs(path: &str, found: String, wanted: String, disrupts: bool) -> Deviation {
    Deviation { what: format!("file {path}"), found, wanted, disrupts }
}

fn described(entry: &Entry) -> String {
    match (&entry.sha256, &entry.target) {
        (Some(sha256), _) => {
            format!("{} bytes, sha256 {}, mode {:04o}", entry.size, &sha256[..sha256.len().min(12)], entry.mode)
        }
        (None, Some(target)) => format!("a link to {target}"),
        (None, None) => format!("a folder, mode {:04o}", entry.mode),
    }
}

fn shown(kind: Option<PathKind>) -> String {
    match kind {
        None => "absent".to_owned(),
        Some(PathKind::Link(target)) => target,
        Some(PathKind::File) => "a file".to_owned(),
        Some(PathKind::Folder) => "a folder".to_owned(),
        Some(PathKind::Other) => "a special file".to_owned(),
    }
}

fn seen(system: &dyn System, path: &str, stat: &Stat) -> Result<Entry, MethodError> {
    let sha256 = match stat.kind {
        PathKind::File => system.sha256(path).map_err(MethodError::io(path))?,
        _ => None,
    };
    let target = match &stat.kind {
        PathKind::Link(target) => Some(target.clone()),
        _ => None,
    };
    // The size of a directory is meaningless: it depends on the file system.
    let size = if stat.kind == PathKind::File { stat.size } else { 0 };
    Ok(Entry { mode: stat.mode, size, changed: stat.changed, sha256, target })
}

/// Unpacks beside the existing directories, and returns the new directory's name. No running program is affected.
fn unpack(work: &mut MethodContext<'_>) -> Result<String, MethodError> {
    let package = work.package;
    let tarball = tarball(package)?;
    let archive = fetch::source(work, &tarball.source)?;
    let above = format!("{OPT}/{}", package.component);
    let new = format!("{above}/.new");
    let base = base(package)?;
    let in_use = current(work.system, package)?;
    let mut number = 1;
    let name = loop {
        let name = if number == 1 { base.clone() } else { format!("{base}.{number}") };
        if in_use.as_ref() != Some(&name) {
            break name;
        }
        number += 1;
    };
    work.say(format!("unpacking {}", package.reference));
    folders::note(work.system, [new.as_str()]).map_err(MethodError::io(&new))?;
    work.system.remove(&new).map_err(MethodError::io(&new))?;
    work.system
        .unpack(&archive, &new, tarball.strip)
        .map_err(|error| MethodError(format!("cannot unpack the archive of {}: {error}", package.reference)))?;
    let mut manifest = BTreeMap::new();
    written_down(work.system, &new, "", &mut manifest)?;
    for (path, inside) in &tarball.links {
        let there = format!("{new}/{}", inside.trim_start_matches('/'));
        if work.system.stat(&there).map_err(MethodError::io(&there))?.is_none() {
            return Err(MethodError(format!(
                "the archive of {} has no {inside}, the target of link {path}: check strip (now {}) and links",
                package.reference, tarball.strip
            )));
        }
    }
    forget(work, &name)?;
    let place = format!("{above}/{name}");
    work.system.rename(&new, &place).map_err(MethodError::io(&place))?;
    let path = manifest_path(work.folder, &name);
    let bytes = serde_json::to_vec(&manifest).map_err(|error| MethodError(error.to_string()))?;
    work.system.write(&path, &bytes, 0o600, "root", "root").map_err(MethodError::io(&path))?;
    Ok(name)
}

/// The list is removed first: a directory without a list is not used.
fn forget(work: &mut MethodContext<'_>, name: &str) -> Result<(), MethodError> {
    let list = manifest_path(work.folder, name);
    work.system.remove(&list).map_err(MethodError::io(&list))?;
    let place = format!("{OPT}/{}/{name}", work.package.component);
    work.system.remove(&place).map_err(MethodError::io(&place))?;
    Ok(())
}

fn written_down(
    system: &dyn System,
    at: &str,
    inside: &str,
    manifest: &mut BTreeMap<String, Entry>,
) -> Result<(), MethodError> {
    let folder = if inside.is_empty() { at.to_owned() } else { format!("{at}/{inside}") };
    for name in system.list(&folder).map_err(MethodError::io(&folder))? {
        let path = format!("{folder}/{name}");
        let inside = if inside.is_empty() { name } else { format!("{inside}/{name}") };
        let Some(stat) = system.stat(&path).map_err(MethodError::io(&path))? else { continue };
        let deeper = stat.kind == PathKind::Folder;
        manifest.insert(inside.clone(), seen(system, &path, &stat)?);
        if manifest.len() > MAX_ENTRIES {
            return Err(MethodError(format!("the archive has more than {MAX_ENTRIES} entries")));
        }
        if deeper {
            written_down(system, at, &inside, manifest)?;
        }
    }
    Ok(())
}

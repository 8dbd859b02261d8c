//! The files of packages: their own, and those of their units. The earlier content of their paths is saved.

use std::collections::BTreeSet;

use fleetwright_wire::{Deviation, File, Package, plural};

use crate::method::{self, MethodError};
use crate::store::{ComponentRecord, FormerPath, aside_path};
use crate::system::{PathKind, Stat};
use crate::text::sha256;
use crate::{System, store};

/// Largest earlier file that is saved; larger data of others is not copied.
const MAX_ASIDE: u64 = 64 << 20;
/// Up to this size of a file, the lines that differ are counted.
const SMALL: u64 = 64 << 10;

/// A file that a package wants.
pub(crate) struct WantedFile<'p> {
    pub path: String,
    pub content: &'p [u8],
    pub mode: u32,
    pub owner: &'p str,
    pub group: &'p str,
    pub secret: bool,
    pub once: bool,
    /// The unit that the file defines, wholly or in part.
    pub unit: Option<&'p str>,
}

/// All files of a package, in the order in which they are written.
pub(crate) fn wanted(package: &Package) -> Vec<WantedFile<'_>> {
    let own = |file: &'_ File| (file.path.clone(), file.mode);
    let mut wanted: Vec<WantedFile<'_>> = Vec::with_capacity(package.files.len() + package.units.len());
    for file in &package.files {
        let (path, mode) = own(file);
        let content = file.content.bytes();
        let (owner, group) = (file.owner.as_str(), file.group.as_str());
        wanted.push(WantedFile { path, content, mode, owner, group, secret: file.secret, once: file.once, unit: None });
    }
    for unit in &package.units {
        let place = format!("/etc/systemd/system/{}", unit.name);
        let main = unit.content.iter().map(|content| (place.clone(), content));
        let drop_ins = unit.drop_ins.iter().map(|(name, content)| (format!("{place}.d/{name}"), content));
        wanted.extend(main.chain(drop_ins).map(|(path, content)| WantedFile {
            path,
            content: content.as_bytes(),
            mode: 0o644,
            owner: "root",
            group: "root",
            secret: false,
            once: false,
            unit: Some(&unit.name),
        }));
    }
    wanted
}

/// All paths that a package writes to, with those of its method.
pub(crate) fn paths(package: &Package) -> BTreeSet<String> {
    let own = wanted(package).into_iter().map(|wanted| wanted.path);
    own.chain(method::of(package).paths(package)).collect()
}

/// The deviations of the host from a package's files.
pub(crate) fn deviations(system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
    let mut deviations = Vec::new();
    for wanted in wanted(package).iter().filter(|wanted| !wanted.once) {
        let disrupts =
            package.units.iter().any(|unit| wanted.unit == Some(&unit.name) || unit.restart_on.contains(&wanted.path));
        deviations.extend(differences(system, wanted, disrupts)?);
    }
    Ok(deviations)
}

fn differences(system: &dyn System, wanted: &WantedFile<'_>, disrupts: bool) -> Result<Vec<Deviation>, MethodError> {
    let path = &wanted.path;
    let deviation = |what: &str, found: String, wanted: String| Deviation {
        what: format!("file {path}{what}"),
        found,
        wanted,
        disrupts,
    };
    let found = system.stat(path).map_err(MethodError::io(path))?;
    let Some(stat) = found.filter(|stat| stat.kind == PathKind::File) else {
        let found = system.stat(path).map_err(MethodError::io(path))?.map_or("absent", |stat| described(&stat.kind));
        return Ok(vec![deviation("", found.to_owned(), content_shown(wanted, None))]);
    };
    let mut deviations = Vec::new();
    if !same_content(system, wanted, &stat)? {
        let (found, more) = content_found(system, wanted, &stat)?;
        deviations.push(deviation(" content", found, content_shown(wanted, more)));
    }
    // A change of mode or owner interrupts nothing.
    let quiet = |deviation: Deviation| Deviation { disrupts: false, ..deviation };
    if stat.mode != wanted.mode {
        let (found, wanted) = (format!("{:04o}", stat.mode), format!("{:04o}", wanted.mode));
        deviations.push(quiet(deviation(" mode", found, wanted)));
    }
    if (stat.owner.as_str(), stat.group.as_str()) != (wanted.owner, wanted.group) {
        let found = format!("{}:{}", stat.owner, stat.group);
        deviations.push(quiet(deviation(" owner", found, format!("{}:{}", wanted.owner, wanted.group))));
    }
    Ok(deviations)
}

fn described(kind: &PathKind) -> &'static str {
    match kind {
        PathKind::File => "a file",
        PathKind::Folder => "a folder",
        PathKind::Link(_) => "a link",
        PathKind::Other => "a special file",
    }
}

fn same_content(system: &dyn System, wanted: &WantedFile<'_>, stat: &Stat) -> Result<bool, MethodError> {
    if stat.size != wanted.content.len() as u64 {
        return Ok(false);
    }
    let found = system.read(&wanted.path, stat.size).map_err(MethodError::io(&wanted.path))?;
    Ok(found.as_deref() == Some(wanted.content))
}

/// A description of the wanted content, never the content itself. Of secrets not even a digest: short ones could be guessed from it.
fn content_shown(wanted: &WantedFile<'_>, lines: Option<usize>) -> String {
    if wanted.secret {
        return "the declared secret".to_owned();
    }
    let digest = sha256(wanted.content);
    let lines = lines.map(|lines| format!(", {}", plural(lines, "different line"))).unwrap_or_default();
    format!("{} bytes, sha256 {}{lines}", wanted.content.len(), &digest[..12])
}

/// A description of the present content, and how many lines differ if that can be counted.
fn content_found(
    system: &dyn System,
    wanted: &WantedFile<'_>,
    stat: &Stat,
) -> Result<(String, Option<usize>), MethodError> {
    if wanted.secret {
        return Ok(("other content".to_owned(), None));
    }
    // A file that its owner made huge, for example with holes, is not read.
    let digest = match stat.size {
        0..=MAX_ASIDE => system.sha256(&wanted.path).map_err(MethodError::io(&wanted.path))?.unwrap_or_default(),
        _ => "not computed".to_owned(),
    };
    let found = format!("{} bytes, sha256 {}", stat.size, digest.get(..12).unwrap_or(&digest));
    let small = stat.size <= SMALL && wanted.content.len() as u64 <= SMALL;
    let there = if small { system.read(&wanted.path, SMALL).map_err(MethodError::io(&wanted.path))? } else { None };
    let lines = there.as_deref().and_then(|there| lines_that_differ(there, wanted.content));
    Ok((found, lines))
}

/// The number of lines between the common start and the common end. None if either is no text.
fn lines_that_differ(found: &[u8], wanted: &[u8]) -> Option<usize> {
    let found: Vec<&str> = std::str::from_utf8(found).ok()?.lines().collect();
    let wanted: Vec<&str> = std::str::from_utf8(wanted).ok()?.lines().collect();
    let same = found.iter().zip(&wanted).take_while(|(found, wanted)| found == wanted).count();
    let (found, wanted) = (&found[same..], &wanted[same..]);
    let end = found.iter().rev().zip(wanted.iter().rev()).take_while(|(found, wanted)| found == wanted).count();
    Some(found.len().max(wanted.len()) - end)
}

/// Writes a file if it is not as wanted. True if its content changed.
pub(crate) fn write(system: &mut dyn System, wanted: &WantedFile<'_>) -> Result<bool, MethodError> {
    let path = &wanted.path;
    let failed = |error: std::io::Error| MethodError(format!("cannot write {path}: {error}"));
    if let Some(stat) = system.stat(path).map_err(failed)? {
        if stat.kind == PathKind::Folder {
            return Err(MethodError(format!("cannot write {path}: it is a folder")));
        }
        if stat.kind == PathKind::File && same_content(system, wanted, &stat)? {
            let as_wanted =
                (stat.mode, stat.owner.as_str(), stat.group.as_str()) == (wanted.mode, wanted.owner, wanted.group);
            if !as_wanted {
                system.set_mode(path, wanted.mode, wanted.owner, wanted.group).map_err(failed)?;
            }
            return Ok(false);
        }
    }
    system.write(path, wanted.content, wanted.mode, wanted.owner, wanted.group).map_err(failed)?;
    Ok(true)
}

/// Saves the content of these paths, as far as they are new to us. The state must be saved before anything is written there.
pub(crate) fn take_over(
    system: &mut dyn System,
    component: &str,
    state: &mut ComponentRecord,
    paths: &BTreeSet<String>,
) -> Result<(), MethodError> {
    let new: Vec<&String> = paths.iter().filter(|path| !state.paths.contains_key(*path)).collect();
    if new.is_empty() {
        return Ok(());
    }
    for other in store::components(system).map_err(MethodError::io("packages"))? {
        if other == component {
            continue;
        }
        let theirs = store::state(system, &other)?.paths;
        if let Some(path) = new.iter().find(|path| theirs.contains_key(**path)) {
            return Err(MethodError(format!("{path} is used by component {other}: only one component can have it")));
        }
    }
    for path in new {
        let was = match system.stat(path).map_err(MethodError::io(path))? {
            None => None,
            Some(Stat { kind: PathKind::Folder | PathKind::Other, .. }) => {
                return Err(MethodError(format!(
                    "{path} is not a regular file on this host and is not replaced: remove it by hand, or use another path"
                )));
            }
            Some(Stat { kind, mode, owner, group, .. }) => {
                let target = match kind {
                    PathKind::Link(target) => Some(target),
                    _ => {
                        let content = system
                            .read(path, MAX_ASIDE)
                            .map_err(|error| MethodError(format!("cannot back up the existing {path}: {error}")))?;
                        let aside = aside_path(component, path);
                        system
                            .write(&aside, &content.unwrap_or_default(), 0o600, "root", "root")
                            .map_err(MethodError::io(&aside))?;
                        None
                    }
                };
                Some(FormerPath { mode, owner, group, target })
            }
        };
        state.paths.insert(path.clone(), was);
    }
    Ok(())
}

/// Restores the earlier content of a path.
pub(crate) fn put_back(
    system: &mut dyn System,
    component: &str,
    path: &str,
    was: Option<&FormerPath>,
) -> Result<(), MethodError> {
    let failed = |error: std::io::Error| MethodError(format!("cannot restore {path}: {error}"));
    let aside = aside_path(component, path);
    match was {
        None => {
            // A directory that somebody created at this path is not ours.
            if system.stat(path).map_err(failed)?.is_some_and(|stat| stat.kind != PathKind::Folder) {
                system.remove(path).map_err(failed)?;
            }
        }
        Some(FormerPath { target: Some(target), mode, owner, group }) => {
            system.link(path, target).map_err(failed)?;
            // As a link of root it would be followed, though another user created it.
            system.set_mode(path, *mode, owner, group).map_err(failed)?;
        }
        Some(was) => {
            let content = system.read(&aside, MAX_ASIDE).map_err(failed)?;
            let Some(content) = content else {
                return Err(MethodError(format!(
                    "the backup of {path} is missing ({aside}): restore the file by hand"
                )));
            };
            system.write(path, &content, was.mode, &was.owner, &was.group).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_between_the_common_ends_are_counted() {
        assert_eq!(lines_that_differ(b"a\nb\nc\n", b"a\nx\nc\n"), Some(1));
        assert_eq!(lines_that_differ(b"a\nc\n", b"a\nb\nb\nc\n"), Some(2));
        assert_eq!(lines_that_differ(b"a\n", b"a"), Some(0));
        assert_eq!(lines_that_differ(b"\xff", b"a"), None);
    }
}

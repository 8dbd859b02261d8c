//! Keeps others from changing packages: by dnf's versionlock where it exists, otherwise by `excludepkgs` in dnf's own settings.
//!
//! dnf 4 reads no directory of settings, so the line in `/etc/dnf/dnf.conf` is the only place; lines of others stay.

use std::collections::{BTreeMap, BTreeSet};

use super::MethodError;
use crate::System;

/// Exists if the plugin is installed.
const PLUGIN: &str = "/etc/dnf/plugins/versionlock.conf";
/// The plugin's list: a line `NAME-VERSION-RELEASE.*` locks that package at that version.
const LIST: &str = "/etc/dnf/plugins/versionlock.list";
/// dnf's settings.
const SETTINGS: &str = "/etc/dnf/dnf.conf";
/// Largest size of these files.
const MAX_SIZE: u64 = 1 << 20;

/// The packages that are not held at these versions.
pub(super) fn missing(system: &dyn System, packages: &BTreeMap<String, String>) -> Result<Vec<String>, MethodError> {
    let text = read(system)?;
    let held = |name: &str, version: &str| match plugin(system) {
        Ok(true) => text.lines().any(|line| line.trim() == lock(name, version)),
        _ => excluded(&text).iter().any(|other| other == name),
    };
    Ok(packages.iter().filter(|(name, version)| !held(name, version)).map(|(name, _)| name.clone()).collect())
}

/// The names of all held packages, by whomever they are held.
pub(super) fn names(system: &dyn System) -> Result<BTreeSet<String>, MethodError> {
    let text = read(system)?;
    if plugin(system)? {
        return Ok(text.lines().filter_map(|line| name_of(line).map(str::to_owned)).collect());
    }
    Ok(excluded(&text).into_iter().collect())
}

/// Holds these packages at these versions.
pub(super) fn set(system: &mut dyn System, packages: &BTreeMap<String, String>) -> Result<(), MethodError> {
    let text = read(system)?;
    let changed = if plugin(system)? {
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| name_of(line).is_none_or(|name| !packages.contains_key(name)))
            .map(str::to_owned)
            .collect();
        lines.extend(packages.iter().map(|(name, version)| lock(name, version)));
        joined(&lines)
    } else {
        let mut names = excluded(&text);
        for name in packages.keys() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        with_excluded(&text, &names)
    };
    write(system, &text, &changed)
}

/// Releases the holds of these packages.
pub(super) fn release(system: &mut dyn System, released: &BTreeSet<String>) -> Result<(), MethodError> {
    if released.is_empty() {
        return Ok(());
    }
    let text = read(system)?;
    let changed = if plugin(system)? {
        let keep = |line: &&str| name_of(line).is_none_or(|name| !released.contains(name));
        joined(&text.lines().filter(keep).map(str::to_owned).collect::<Vec<_>>())
    } else {
        let names: Vec<String> = excluded(&text).into_iter().filter(|name| !released.contains(name)).collect();
        with_excluded(&text, &names)
    };
    write(system, &text, &changed)
}

/// Whether the plugin is installed and enabled.
fn plugin(system: &dyn System) -> Result<bool, MethodError> {
    let settings = system.read(PLUGIN, MAX_SIZE).map_err(MethodError::io(PLUGIN))?.unwrap_or_default();
    Ok(is_on(&String::from_utf8_lossy(&settings)))
}

fn is_on(settings: &str) -> bool {
    settings.lines().filter_map(|line| line.split_once('=')).any(|(key, value)| {
        key.trim() == "enabled" && ["1", "true", "yes", "on"].contains(&value.trim().to_lowercase().as_str())
    })
}

fn read(system: &dyn System) -> Result<String, MethodError> {
    let path = if plugin(system)? { LIST } else { SETTINGS };
    let bytes = system.read(path, MAX_SIZE).map_err(MethodError::io(path))?.unwrap_or_default();
    String::from_utf8(bytes).map_err(|_| MethodError(format!("{path} is not valid UTF-8: correct it by hand")))
}

fn write(system: &mut dyn System, before: &str, after: &str) -> Result<(), MethodError> {
    let path = if plugin(system)? { LIST } else { SETTINGS };
    if before == after {
        return Ok(());
    }
    // An existing file keeps its mode and owner.
    let (mode, owner, group) = match system.stat(path).map_err(MethodError::io(path))? {
        Some(stat) => (stat.mode, stat.owner, stat.group),
        None => (0o644, "root".to_owned(), "root".to_owned()),
    };
    system.write(path, after.as_bytes(), mode, &owner, &group).map_err(MethodError::io(path))
}

fn lock(name: &str, version: &str) -> String {
    format!("{name}-{version}.*")
}

/// The name in a line of the plugin's list: `NAME-[EPOCH:]VERSION-RELEASE.*`. None for comments, and for lines that are not locks (`!…`).
fn name_of(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') || line.starts_with('!') {
        return None;
    }
    let mut parts = line.rsplitn(3, '-');
    let (_release, _version) = (parts.next()?, parts.next()?);
    parts.next()
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

/// The key and the value, if the line sets the excluded packages. `exclude` is the older name.
fn exclude(line: &str) -> Option<&str> {
    let (key, value) = line.split_once('=')?;
    matches!(key.trim(), "excludepkgs" | "exclude").then_some(value)
}

fn excluded(text: &str) -> Vec<String> {
    let values = text.lines().filter_map(exclude);
    values
        .flat_map(|value| value.split([',', ' ']))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The settings with exactly these packages excluded. Without any, our line is removed.
fn with_excluded(text: &str, names: &[String]) -> String {
    let line = format!("excludepkgs={}", names.join(","));
    let mut lines: Vec<String> = Vec::new();
    let mut done = false;
    for old in text.lines() {
        if exclude(old).is_some() {
            if !done && !names.is_empty() {
                lines.push(if excluded(old) == names { old.to_owned() } else { line.clone() });
            }
            done = true;
        } else {
            lines.push(old.to_owned());
        }
    }
    if !done && !names.is_empty() {
        match lines.iter().position(|old| old.trim() == "[main]") {
            Some(main) => lines.insert(main + 1, line),
            None => lines.extend(["[main]".to_owned(), line]),
        }
    }
    joined(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_dnf_are_as_before_when_nothing_is_excluded_any_more() {
        let before = "# mine\n[main]\ngpgcheck=True\n";
        let held = with_excluded(before, &["kubelet".to_owned()]);
        assert_eq!(held, "# mine\n[main]\nexcludepkgs=kubelet\ngpgcheck=True\n");
        assert_eq!(with_excluded(&held, &[]), before);
    }

    #[test]
    fn what_others_exclude_stays_excluded() {
        let before = "[main]\nexclude = firefox*, vim\n";
        let mut names = excluded(before);
        names.push("kubelet".to_owned());
        let held = with_excluded(before, &names);
        assert_eq!(held, "[main]\nexcludepkgs=firefox*,vim,kubelet\n");
        assert_eq!(excluded(&with_excluded(&held, &names[..2])), ["firefox*", "vim"]);
    }

    #[test]
    fn a_plugin_that_is_off_locks_nothing() {
        assert!(is_on("[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n"));
        assert!(!is_on("[main]\nenabled = 0\n"));
        assert!(!is_on(""));
    }

    #[test]
    fn a_lock_names_its_package_with_or_without_an_epoch() {
        assert_eq!(name_of("kubelet-1.36.4-150500.1.1.*"), Some("kubelet"));
        assert_eq!(name_of("demo-lib-0:1.0-1.*"), Some("demo-lib"));
        assert_eq!(name_of("# comment-with-dashes"), None);
        assert_eq!(name_of("!demo-1-1.*"), None);
    }
}

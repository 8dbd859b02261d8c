//! The host's record of a component: the installed package, the versions kept for a rollback, those whose installation was
//! interrupted, and the state from before our first change.
//!
//! `HOME/packages/COMPONENT/state.json` is the one file that decides; packages are kept beside it by their digest. A directory without it is
//! a leftover of a removed component.

use std::collections::BTreeMap;
use std::io;

use fleetwright_wire::{HOME, Installed, Package};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::System;
use crate::method::MethodError;

/// Largest package: it came in one line.
const LIMIT: u64 = 2 * fleetwright_wire::MAX_LINE as u64;

/// The record of a component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ComponentRecord {
    /// The package whose installation was last completed.
    pub installed: Option<Installed>,
    /// The versions kept for a rollback, newest first.
    pub previous: Vec<Installed>,
    /// Installations started since and not completed, oldest first: parts of each may be on the host.
    pub trying: Vec<Installed>,
    /// Whether it is being removed.
    pub removing: bool,
    /// The earlier content of the paths that we write, by path.
    pub paths: BTreeMap<String, Option<FormerPath>>,
    /// The earlier state of the units that we start, stop, enable or disable.
    pub units: BTreeMap<String, FormerUnit>,
}

/// The earlier content of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FormerPath {
    pub mode: u32,
    pub owner: String,
    pub group: String,
    /// Target of a link. A file's content is saved beside the record.
    #[serde(default)]
    pub target: Option<String>,
}

/// The earlier state of a unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FormerUnit {
    pub exists: bool,
    pub enabled: bool,
    pub active: bool,
}

impl ComponentRecord {
    /// Whether nothing of the component is on the host.
    pub(crate) fn is_empty(&self) -> bool {
        self.installed.is_none() && self.trying.is_empty() && self.paths.is_empty() && !self.removing
    }

    /// All packages of which parts may be on the host, newest first.
    pub(crate) fn there(&self) -> impl Iterator<Item = &Installed> {
        self.trying.iter().rev().chain(&self.installed)
    }

    /// All packages that are kept.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Installed> {
        self.there().chain(&self.previous)
    }
}

/// Directory of the packages' sources, by digest.
pub(crate) fn cache() -> String {
    format!("{HOME}/cache")
}

fn components_folder() -> String {
    format!("{HOME}/packages")
}

pub(crate) fn folder(component: &str) -> String {
    format!("{}/{component}", components_folder())
}

fn state_path(component: &str) -> String {
    format!("{}/state.json", folder(component))
}

fn package_path(component: &str, digest: &str) -> String {
    format!("{}/{digest}.json", folder(component))
}

/// Path of the saved earlier content of a path.
pub(crate) fn aside_path(component: &str, path: &str) -> String {
    format!("{}/before/{}", folder(component), crate::text::sha256(path.as_bytes()))
}

/// The components with a record, sorted.
pub(crate) fn components(system: &dyn System) -> io::Result<Vec<String>> {
    let mut names = system.list(&components_folder())?;
    names.retain(|name| !name.starts_with('.'));
    Ok(names)
}

/// The record of a component. One that cannot be read is an error: otherwise our own files would be saved as the earlier state.
pub(crate) fn state(system: &dyn System, component: &str) -> Result<ComponentRecord, MethodError> {
    let path = state_path(component);
    let Some(bytes) = system.read(&path, LIMIT).map_err(MethodError::io(&path))? else {
        return Ok(ComponentRecord::default());
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        MethodError(format!(
            "the state of {component} on the host is damaged ({path}: {error}): remove {} by hand, then it is installed as on a new host",
            folder(component)
        ))
    })
}

pub(crate) fn keep_state(system: &mut dyn System, component: &str, state: &ComponentRecord) -> Result<(), MethodError> {
    let path = state_path(component);
    let bytes = serde_json::to_vec(state).map_err(|error| MethodError(error.to_string()))?;
    system.write(&path, &bytes, 0o600, "root", "root").map_err(MethodError::io(&path))
}

/// A kept package. Its inline sources are in the cache.
pub(crate) fn package(system: &dyn System, component: &str, digest: &str) -> Result<Option<Package>, MethodError> {
    let path = package_path(component, digest);
    let Some(bytes) = system.read(&path, LIMIT).map_err(MethodError::io(&path))? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| MethodError(format!("the kept package {path} is damaged: {error}")))
}

/// Keeps a package, and returns its entry.
pub(crate) fn keep_package(system: &mut dyn System, package: &Package, digest: &str) -> Result<Installed, MethodError> {
    let path = package_path(&package.component, digest);
    let mut kept = serde_json::to_value(package).map_err(|error| MethodError(error.to_string()))?;
    each_source(&mut kept["method"], &mut |source| drop(source.remove("inline")));
    let bytes = serde_json::to_vec(&kept).map_err(|error| MethodError(error.to_string()))?;
    if system.read(&path, LIMIT).ok().flatten().as_deref() != Some(&bytes) {
        system.write(&path, &bytes, 0o600, "root", "root").map_err(MethodError::io(&path))?;
    }
    Ok(Installed { reference: package.reference.clone(), version: package.version.clone(), digest: digest.to_owned() })
}

/// Removes the packages of a component that nothing refers to.
pub(crate) fn prune_packages(
    system: &mut dyn System,
    component: &str,
    state: &ComponentRecord,
) -> Result<(), MethodError> {
    let folder = folder(component);
    for name in system.list(&folder).map_err(MethodError::io(&folder))? {
        let Some(digest) = name.strip_suffix(".json").filter(|name| *name != "state") else { continue };
        if !state.kept().any(|kept| kept.digest == digest) {
            let path = package_path(component, digest);
            system.remove(&path).map_err(MethodError::io(&path))?;
        }
    }
    Ok(())
}

/// Removes the sources that no kept package of any component needs.
pub(crate) fn prune_cache(system: &mut dyn System) -> Result<(), MethodError> {
    let cache = cache();
    let names = system.list(&cache).map_err(MethodError::io(&cache))?;
    if names.is_empty() {
        return Ok(());
    }
    let mut needed = Vec::new();
    for component in components(system).map_err(MethodError::io("packages"))? {
        for kept in state(system, &component)?.kept() {
            if let Some(package) = package(system, &component, &kept.digest)? {
                let mut method = serde_json::to_value(&package.method).unwrap_or_default();
                each_source(&mut method, &mut |source| needed.extend(source["sha256"].as_str().map(str::to_owned)));
            }
        }
    }
    for name in names {
        if !needed.contains(&name) {
            let path = format!("{cache}/{name}");
            system.remove(&path).map_err(MethodError::io(&path))?;
        }
    }
    Ok(())
}

/// Removes the record of a component: first the deciding file, then the rest.
pub(crate) fn forget(system: &mut dyn System, component: &str) -> Result<(), MethodError> {
    let (from, to) = (folder(component), format!("{}/.{component}", components_folder()));
    system.remove(&to).map_err(MethodError::io(&to))?;
    if system.stat(&from).map_err(MethodError::io(&from))?.is_some() {
        system.rename(&from, &to).map_err(MethodError::io(&from))?;
        system.remove(&to).map_err(MethodError::io(&to))?;
    }
    Ok(())
}

/// Calls `act` for all sources in a package, whatever its method: each has a digest, and perhaps its bytes.
fn each_source(value: &mut Value, act: &mut dyn FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(fields) if fields.contains_key("sha256") => act(fields),
        Value::Object(fields) => fields.values_mut().for_each(|value| each_source(value, act)),
        Value::Array(items) => items.iter_mut().for_each(|value| each_source(value, act)),
        _ => {}
    }
}

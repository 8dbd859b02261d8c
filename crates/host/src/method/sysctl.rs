//! Sysctls: persisted for the next boot, and set now. Their earlier values are restored when they are removed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{self as wire, Deviation, Package};

use super::{Method, MethodContext, MethodError};
use crate::System;

const LIMIT: u64 = 1 << 20;

/// The method `sysctl`; see the module.
pub(super) struct Sysctl;

impl Method for Sysctl {
    fn version(&self, _system: &dyn System, _package: &Package) -> Result<Option<String>, MethodError> {
        Ok(None)
    }

    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
        let settings = settings(package)?;
        let mut deviations = Vec::new();
        for (name, wanted) in settings {
            let found = system.sysctl(checked(name)?).map_err(MethodError::io(name))?;
            let found = found.map(|value| folded(&value));
            if found.as_deref() != Some(&folded(wanted)) {
                deviations.push(Deviation {
                    what: format!("sysctl {name}"),
                    found: found.unwrap_or_else(|| "not known to the kernel".to_owned()),
                    wanted: folded(wanted),
                    disrupts: false,
                });
            }
        }
        let path = path(package);
        let found = system.read(&path, LIMIT).map_err(MethodError::io(&path))?;
        if found.as_deref() != Some(persisted(settings).as_bytes()) {
            deviations.push(Deviation {
                what: format!("file {path}"),
                found: if found.is_some() { "other settings" } else { "absent" }.to_owned(),
                wanted: format!("{} for the next boot", wire::plural(settings.len(), "setting")),
                disrupts: false,
            });
        }
        Ok(deviations)
    }

    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        for name in settings(work.package)?.keys() {
            if work.system.sysctl(checked(name)?).map_err(MethodError::io(name))?.is_none() {
                return Err(MethodError(format!(
                    "sysctl {name} not found: if a kernel module provides it, load the module first with a kernel package"
                )));
            }
        }
        Ok(())
    }

    fn paths(&self, package: &Package) -> Vec<String> {
        vec![path(package)]
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        let package = work.package;
        let settings = settings(package)?;
        let mut before = before(work)?;
        let known = before.len();
        for name in settings.keys() {
            if !before.contains_key(name)
                && let Some(value) = work.system.sysctl(checked(name)?).map_err(MethodError::io(name))?
            {
                before.insert(name.clone(), value);
            }
        }
        if before.len() > known {
            remember(work, &before)?;
        }
        let (path, content) = (path(package), persisted(settings));
        if work.system.read(&path, LIMIT).map_err(MethodError::io(&path))?.as_deref() != Some(content.as_bytes()) {
            work.system.write(&path, content.as_bytes(), 0o644, "root", "root").map_err(MethodError::io(&path))?;
        }
        for (name, value) in settings {
            set(work, name, value)?;
        }
        let gone: Vec<_> = before.keys().filter(|name| !settings.contains_key(*name)).cloned().collect();
        for name in &gone {
            restore(work, name, &before[name])?;
        }
        if !gone.is_empty() {
            before.retain(|name, _| settings.contains_key(name));
            remember(work, &before)?;
        }
        Ok(false)
    }

    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        for (name, value) in before(work)? {
            restore(work, &name, &value)?;
        }
        Ok(())
    }
}

fn settings(package: &Package) -> Result<&BTreeMap<String, String>, MethodError> {
    match &package.method {
        wire::Method::Sysctl(settings) => Ok(settings),
        _ => Err(MethodError(format!("{} declares no sysctls", package.reference))),
    }
}

/// At boot the file whose name sorts last wins, in whichever directory: Debian has `99-protect-links.conf` and `99-sysctl.conf`.
fn path(package: &Package) -> String {
    format!("/etc/sysctl.d/zz-fleetwright-{}.conf", package.component)
}

fn persisted(settings: &BTreeMap<String, String>) -> String {
    settings.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name} = {}", folded(value));
        text
    })
}

/// The kernel prints lists with tabs.
fn folded(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A name becomes a path under `/proc/sys`: it must not lead out of there.
fn checked(name: &str) -> Result<&str, MethodError> {
    let fine = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b':' | b'@'))
    };
    if name.split(['.', '/']).all(fine) {
        return Ok(name);
    }
    Err(MethodError(format!(
        "invalid sysctl name `{}`: expected a name such as vm.swappiness",
        truncate_bytes(name, 100)
    )))
}

fn set(work: &mut MethodContext<'_>, name: &str, value: &str) -> Result<(), MethodError> {
    let found = work.system.sysctl(name).map_err(MethodError::io(name))?;
    if found.map(|found| folded(&found)) == Some(folded(value)) {
        return Ok(());
    }
    work.system
        .set_sysctl(name, value)
        .map_err(|error| MethodError(format!("cannot set sysctl {name} to {}: {error}", folded(value))))
}

/// Restores a value. A sysctl whose module was unloaded needs no restoring.
fn restore(work: &mut MethodContext<'_>, name: &str, value: &str) -> Result<(), MethodError> {
    match work.system.sysctl(checked(name)?).map_err(MethodError::io(name))? {
        Some(_) => set(work, name, value),
        None => Ok(()),
    }
}

fn before(work: &MethodContext<'_>) -> Result<BTreeMap<String, String>, MethodError> {
    let path = format!("{}/sysctl.json", work.folder);
    let bytes = work.system.read(&path, LIMIT).map_err(MethodError::io(&path))?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

fn remember(work: &mut MethodContext<'_>, before: &BTreeMap<String, String>) -> Result<(), MethodError> {
    let path = format!("{}/sysctl.json", work.folder);
    let bytes = serde_json::to_vec(before).map_err(|error| MethodError(error.to_string()))?;
    work.system.write(&path, &bytes, 0o600, "root", "root").map_err(MethodError::io(&path))
}

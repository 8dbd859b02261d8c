//! Records of packages of the host's operating system, so that removing a component restores the host as it was.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_wire::{Deviation, Package};
use serde::{Deserialize, Serialize};

use super::{MethodContext, MethodError};
use crate::System;

/// Largest record in bytes.
const MAX_SIZE: u64 = 4 << 20;

/// What one component did to the packages of a host. Written before it is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Record {
    /// The packages that were declared since the component was installed, and their earlier state; null if they were absent.
    pub before: BTreeMap<String, Option<Earlier>>,
    /// Packages that were absent and were installed as dependencies.
    pub pulled: BTreeSet<String>,
    /// Dependencies whose transaction was started and not seen to end: the package manager does not know yet which package needs them.
    pub pending: BTreeSet<String>,
    /// Packages that we hold at their version.
    pub held: BTreeSet<String>,
    /// Package files that were fetched from a repository and are kept for a rollback, with their digests.
    pub kept: BTreeMap<String, String>,
}

/// The state of a package before our first change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Earlier {
    pub version: String,
    /// Whether it was held.
    #[serde(default)]
    pub held: bool,
}

impl Record {
    /// Loads the record of the present component; empty if there is none.
    pub fn load(work: &MethodContext<'_>, name: &str) -> Result<Self, MethodError> {
        read(&*work.system, &path(work.folder, name))
    }

    /// Saves the record.
    pub fn save(&self, work: &mut MethodContext<'_>, name: &str) -> Result<(), MethodError> {
        write(&mut *work.system, &path(work.folder, name), self)
    }

    /// Removes the record.
    pub fn forget(work: &mut MethodContext<'_>, name: &str) -> Result<(), MethodError> {
        let path = path(work.folder, name);
        work.system.remove(&path).map(|_| ()).map_err(MethodError::io(&path))
    }

    /// Adds the dependencies of the transaction that starts now.
    pub fn pull(&mut self, names: impl Iterator<Item = String>) {
        for name in names.filter(|name| !self.before.contains_key(name)) {
            self.pending.insert(name.clone());
            self.pulled.insert(name);
        }
    }

    /// The packages that are ours to remove: they were absent before.
    pub fn ours(&self) -> BTreeSet<String> {
        let declared = self.before.iter().filter(|(_, earlier)| earlier.is_none()).map(|(name, _)| name);
        declared.chain(&self.pulled).cloned().collect()
    }

    /// Records the state of packages that we did not change yet.
    pub fn note<'a>(&mut self, names: impl Iterator<Item = &'a String>, now: impl Fn(&str) -> Option<Earlier>) {
        for name in names {
            if self.before.contains_key(name) {
                continue;
            }
            // A package that we installed as a dependency was absent before.
            self.pending.remove(name);
            let earlier = if self.pulled.remove(name) { None } else { now(name) };
            self.before.insert(name.clone(), earlier);
        }
    }
}

/// The records of the other components: the packages that they declare or need stay, and become theirs.
pub(super) struct OtherRecords {
    records: Vec<(String, Record)>,
}

impl OtherRecords {
    /// Loads the records.
    pub fn load(work: &MethodContext<'_>, name: &str) -> Result<Self, MethodError> {
        let mut records = Vec::new();
        let own = &work.package.component;
        let Some(parent) = work.folder.strip_suffix(&format!("/{own}/method")) else { return Ok(Self { records }) };
        for other in work.system.list(parent).map_err(MethodError::io(parent))? {
            if other == *own {
                continue;
            }
            let path = path(&format!("{parent}/{other}/method"), name);
            if work.system.stat(&path).map_err(MethodError::io(&path))?.is_some() {
                let record = read(&*work.system, &path)?;
                records.push((path, record));
            }
        }
        Ok(Self { records })
    }

    /// Gives a package that we installed to a component that declares or needs it; false if there is none.
    pub fn inherit(&mut self, work: &mut MethodContext<'_>, name: &str) -> Result<bool, MethodError> {
        for (path, record) in &mut self.records {
            if let Some(earlier) = record.before.get_mut(name) {
                if earlier.take().is_some() {
                    write(&mut *work.system, path, record)?;
                }
                return Ok(true);
            }
            if record.pulled.contains(name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives a package to a component that owns one of the packages that need it; false if none does.
    pub fn inherit_for(
        &mut self,
        work: &mut MethodContext<'_>,
        name: &str,
        needed_by: &BTreeSet<String>,
    ) -> Result<bool, MethodError> {
        for (path, record) in &mut self.records {
            if needed_by.iter().any(|needs| record.before.contains_key(needs) || record.pulled.contains(needs)) {
                record.pulled.insert(name.to_owned());
                write(&mut *work.system, path, record)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The effects of removing packages, as the package manager predicts them.
pub(super) struct RemovalEffects {
    /// Packages that would be removed.
    pub removes: BTreeSet<String>,
    /// Packages that would be installed.
    pub installs: BTreeSet<String>,
}

/// Asks the package manager for the effects of removing these packages.
pub(super) type Simulate<'a> =
    dyn FnMut(&mut MethodContext<'_>, &BTreeSet<String>) -> Result<RemovalEffects, MethodError> + 'a;

/// The packages that can be removed without removing any package that is not ours: all of `sure`, or it is an error, and as many of `maybe` as no
/// other package needs. A package that another component needs is given to that component.
pub(super) fn removable(
    work: &mut MethodContext<'_>,
    others: &mut OtherRecords,
    sure: &BTreeSet<String>,
    maybe: &BTreeSet<String>,
    simulate: &mut Simulate<'_>,
) -> Result<BTreeSet<String>, MethodError> {
    let all: BTreeSet<String> = sure.union(maybe).cloned().collect();
    if all.is_empty() || harmless(&simulate(work, &all)?, &all) {
        return Ok(all);
    }
    let mut accepted = sure.clone();
    if !sure.is_empty() {
        let effects = simulate(work, sure)?;
        // Packages that only our own dependencies need may be removed with them.
        let foreign: Vec<_> = effects.removes.difference(&all).chain(&effects.installs).map(String::as_str).collect();
        if !foreign.is_empty() {
            return Err(MethodError(format!(
                "removing {} would also change {}, which Fleetwright did not install: remove what depends on it first, or keep the component",
                shown(sure),
                foreign.join(", ")
            )));
        }
        accepted.extend(effects.removes);
    }
    // A package that another one needs can be removed only together with that one: repeat until nothing changes.
    let mut open: BTreeSet<String> = maybe.difference(&accepted).cloned().collect();
    loop {
        let mut refused = BTreeMap::new();
        for name in &open {
            let mut tried = accepted.clone();
            tried.insert(name.clone());
            let effects = simulate(work, &tried)?;
            if harmless(&effects, &tried) {
                accepted = tried;
            } else {
                refused.insert(name.clone(), effects.removes);
            }
        }
        if refused.len() == open.len() {
            for (name, needed_by) in refused {
                others.inherit_for(work, &name, &needed_by)?;
            }
            return Ok(accepted);
        }
        open = refused.into_keys().collect();
    }
}

fn harmless(effects: &RemovalEffects, allowed: &BTreeSet<String>) -> bool {
    effects.installs.is_empty() && effects.removes.is_subset(allowed)
}

/// The component's version: the declared one if all packages are as declared, otherwise the installed one.
pub(super) fn version(
    declared: &str,
    packages: &BTreeMap<String, String>,
    there: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let found: Vec<(&String, &String, Option<String>)> =
        packages.iter().map(|(name, wanted)| (name, wanted, there(name))).collect();
    if !found.is_empty() && found.iter().all(|(_, wanted, version)| version.as_ref() == Some(*wanted)) {
        return Some(declared.to_owned());
    }
    let found: Vec<(&String, String)> =
        found.into_iter().filter_map(|(name, _, version)| Some((name, version?))).collect();
    match found.as_slice() {
        [] => None,
        [(_, version)] if packages.len() == 1 => Some(version.clone()),
        several => {
            Some(several.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Deviations of packages that are absent or have another version.
pub(super) fn version_deviations(
    package: &Package,
    packages: &BTreeMap<String, String>,
    there: impl Fn(&str) -> Option<String>,
) -> Vec<Deviation> {
    let disrupts = package.units.iter().any(|unit| unit.running == Some(true));
    let deviation = |(name, wanted): (&String, &String)| {
        let found = there(name);
        (found.as_ref() != Some(wanted)).then(|| Deviation {
            what: format!("package {name}"),
            found: found.unwrap_or_else(|| "absent".to_owned()),
            wanted: wanted.clone(),
            disrupts,
        })
    };
    packages.iter().filter_map(deviation).collect()
}

/// `NAME=VERSION` of each.
pub(super) fn exact(packages: &BTreeMap<String, String>, between: &str) -> Vec<String> {
    packages.iter().map(|(name, version)| format!("{name}{between}{version}")).collect()
}

/// Suffixes of the files that a package manager leaves beside declared files instead of overwriting them.
pub(super) const ASIDE: &[&str] = &[".dpkg-dist", ".dpkg-new", ".dpkg-old", ".rpmnew", ".rpmsave"];

/// Runs a command that may leave its own versions of declared files beside them, and removes those: the declared content is
/// wanted, and the leftovers would never be read.
pub(super) fn without_asides<T>(
    work: &mut MethodContext<'_>,
    run: impl FnOnce(&mut MethodContext<'_>) -> Result<T, MethodError>,
) -> Result<T, MethodError> {
    let asides = |work: &MethodContext<'_>| -> Result<BTreeSet<String>, MethodError> {
        let mut there = BTreeSet::new();
        for file in &work.package.files {
            for path in ASIDE.iter().map(|suffix| format!("{}{suffix}", file.path)) {
                if work.system.stat(&path).map_err(MethodError::io(&path))?.is_some() {
                    there.insert(path);
                }
            }
        }
        Ok(there)
    };
    let before = asides(work)?;
    let ran = run(work);
    for path in asides(work)?.difference(&before) {
        work.system.remove(path).map_err(MethodError::io(path))?;
    }
    ran
}

/// Names for a sentence.
pub(super) fn shown<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn path(folder: &str, name: &str) -> String {
    format!("{folder}/{name}.json")
}

fn read(system: &dyn System, path: &str) -> Result<Record, MethodError> {
    match system.read(path, MAX_SIZE).map_err(MethodError::io(path))? {
        None => Ok(Record::default()),
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            MethodError(format!(
                "cannot parse {path}, which records what was installed before Fleetwright ({error}): \
                 correct or remove it; without it, all installed packages count as installed before"
            ))
        }),
    }
}

fn write(system: &mut dyn System, path: &str, record: &Record) -> Result<(), MethodError> {
    let bytes = serde_json::to_vec_pretty(record).map_err(|error| MethodError(format!("{path}: {error}")))?;
    system.write(path, &bytes, 0o600, "root", "root").map_err(MethodError::io(path))
}

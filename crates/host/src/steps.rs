//! The implementation of steps. Each may be interrupted anywhere: the state on disk is enough for the next step to continue.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::time::Duration;

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{Installed, Package, plural};

use crate::method::{self, MethodContext, MethodError, SHELL, ended};
use crate::store::ComponentRecord;
use crate::text::Tail;
use crate::units::UnitTools;
use crate::{System, files, folders, observe, store, units};

/// Where a package comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstallMode {
    /// From the operator.
    Install {
        /// The installed version is not proven: it is not kept for a rollback.
        unproven: bool,
    },
    /// It is installed already; only the deviations are repaired.
    Repair,
    /// From the versions kept on the host.
    GoBack,
}

pub(crate) struct RunningStep<'a> {
    pub system: &'a mut dyn System,
    pub on_progress: &'a mut dyn FnMut(String),
    pub log: &'a mut Tail,
    /// The deadline of the step.
    pub until: Duration,
    /// Something on the host was changed, or may have been.
    pub touched: bool,
}

impl RunningStep<'_> {
    fn work<T>(
        &mut self,
        package: &Package,
        before: Option<&Package>,
        offline: bool,
        act: impl FnOnce(&mut MethodContext<'_>) -> Result<T, MethodError>,
    ) -> Result<T, MethodError> {
        let (cache, folder) = (store::cache(), method::folder(&package.component));
        act(&mut MethodContext {
            system: self.system,
            package,
            before,
            cache: &cache,
            folder: &folder,
            until: self.until,
            offline,
            on_progress: self.on_progress,
            log: self.log,
        })
    }

    fn say(&mut self, doing: String) {
        (self.on_progress)(doing);
    }

    fn hands<T>(
        &mut self,
        done: &mut Vec<String>,
        act: impl FnOnce(&mut UnitTools<'_>) -> Result<T, MethodError>,
    ) -> Result<T, MethodError> {
        act(&mut UnitTools { system: self.system, done, until: self.until, log: self.log })
    }

    /// Installs a package of a component, and returns a message about the changes.
    pub(crate) fn install(&mut self, package: &Package, digest: &str, how: InstallMode) -> Result<String, MethodError> {
        checked(package)?;
        let component = package.component.as_str();
        let mut state = store::state(self.system, component)?;
        if state.removing {
            self.remove(component)?;
            state = ComponentRecord::default();
        }
        let mut done = Vec::new();
        if how == InstallMode::Repair {
            if state.installed.as_ref().is_none_or(|installed| installed.digest != digest) {
                let found = state.installed.map_or("nothing".to_owned(), |installed| installed.reference);
                return Err(MethodError(format!("cannot repair {}: {found} is installed instead", package.reference)));
            }
            let found = observe::deviations(self.system, package)?;
            done.extend(
                found.iter().map(|found| format!("{} was {}, wanted {}", found.what, found.found, found.wanted)),
            );
        }
        let there = self.packages(component, &state)?;
        let installed = state.installed.as_ref().map(|installed| installed.digest.clone());
        let before = there.iter().find(|(digest, _)| Some(digest) == installed.as_ref()).map(|(_, package)| package);
        let method = method::of(package);
        let offline = how == InstallMode::GoBack;

        self.say(format!("preparing {}", package.reference));
        self.work(package, before, offline, |work| method.prepare(work))?;

        // From here on the host is changed. A step that was started and not finished may have left units running with files that no longer exist.
        let dirty = !state.trying.is_empty();
        let paths = files::paths(package);
        files::take_over(self.system, component, &mut state, &paths)?;
        units::take_over(self.system, &mut state, package)?;
        folders::note(self.system, paths.iter().map(String::as_str)).map_err(MethodError::io("folders"))?;
        let entry = store::keep_package(self.system, package, digest)?;
        state.trying.retain(|trying| trying.digest != digest);
        state.trying.push(entry.clone());
        self.touched = true;
        store::keep_state(self.system, component, &state)?;

        self.say(format!("applying {}", package.reference));
        for (_, other) in there.iter().filter(|(_, other)| discriminant(&other.method) != discriminant(&package.method))
        {
            self.work(other, None, offline, |work| method::of(other).remove(work))?;
        }
        let mut changed = BTreeSet::new();
        let mut content_changed = false;
        if method.after_files() {
            self.write_files(package, how, &mut changed)?;
        }
        content_changed |= self.work(package, before, offline, |work| method.apply(work))?;
        if !method.after_files() {
            self.write_files(package, how, &mut changed)?;
        }
        let dropped = self.drop_stale(package, &paths, &mut state, &mut done)?;

        let unit_files = changed.iter().chain(&dropped).any(|path| path.starts_with("/etc/systemd/system/"));
        let wrote = changed.len();
        self.hands(&mut done, |hands| {
            hands.reload(Some(package), unit_files)?;
            hands.bring(package, &changed, dirty || content_changed)
        })?;
        folders::tidy(self.system).map_err(MethodError::io("folders"))?;

        finished(&mut state, entry, package.keep, how);
        store::keep_state(self.system, component, &state)?;
        self.prune(package, &state);
        if wrote > 0 {
            done.push(format!("wrote {}", plural(wrote, "file")));
        }
        let what = match how {
            InstallMode::Install { .. } => "installed",
            InstallMode::Repair => "repaired",
            InstallMode::GoBack => "rolled back to",
        };
        Ok(format!("{what} {}{}{}", package.reference, if done.is_empty() { "" } else { ": " }, done.join(", ")))
    }

    /// The packages of which parts may be on the host, newest first, with their digests.
    fn packages(&mut self, component: &str, state: &ComponentRecord) -> Result<Vec<(String, Package)>, MethodError> {
        let mut packages = Vec::new();
        for entry in state.there() {
            match store::package(self.system, component, &entry.digest) {
                Ok(Some(package)) => packages.push((entry.digest.clone(), package)),
                Ok(None) => self.log.push(&format!("{} is no longer kept", entry.reference)),
                Err(error) => self.log.push(&error.to_string()),
            }
        }
        Ok(packages)
    }

    fn write_files(
        &mut self,
        package: &Package,
        how: InstallMode,
        changed: &mut BTreeSet<String>,
    ) -> Result<(), MethodError> {
        for wanted in files::wanted(package) {
            if wanted.once {
                let there = self.system.stat(&wanted.path).map_err(MethodError::io(&wanted.path))?.is_some();
                // The kept copy of such a file is as old as the package.
                if how == InstallMode::Repair || (how == InstallMode::GoBack && there) {
                    continue;
                }
            }
            if files::write(self.system, &wanted)? {
                changed.insert(wanted.path);
            }
        }
        Ok(())
    }

    /// Removes what an earlier package has and this one has not. Returns the paths.
    fn drop_stale(
        &mut self,
        package: &Package,
        paths: &BTreeSet<String>,
        state: &mut ComponentRecord,
        done: &mut Vec<String>,
    ) -> Result<Vec<String>, MethodError> {
        let component = package.component.as_str();
        let stale_units: Vec<String> =
            state.units.keys().filter(|name| package.units.iter().all(|unit| unit.name != **name)).cloned().collect();
        let stale: Vec<String> = state.paths.keys().filter(|path| !paths.contains(*path)).cloned().collect();
        if stale.is_empty() && stale_units.is_empty() {
            return Ok(stale);
        }
        for name in &stale_units {
            let was = state.units[name].clone();
            self.hands(done, |hands| hands.take_down(name, &was))?;
        }
        for path in &stale {
            files::put_back(self.system, component, path, state.paths[path].as_ref())?;
            done.push(format!("reverted {path}"));
        }
        if !stale_units.is_empty() {
            self.hands(done, |hands| {
                hands.reload(None, stale.iter().any(|path| path.starts_with("/etc/systemd/system/")))?;
                stale_units.iter().try_for_each(|name| hands.put_back(name, &state.units[name]))
            })?;
        }
        for path in &stale {
            state.paths.remove(path);
        }
        for name in &stale_units {
            state.units.remove(name);
        }
        store::keep_state(self.system, component, state)?;
        for path in &stale {
            let aside = store::aside_path(component, path);
            self.system.remove(&aside).map_err(MethodError::io(&aside))?;
        }
        Ok(stale)
    }

    /// Leftovers use space and do no harm: failing to remove them does not fail the step.
    fn prune(&mut self, package: &Package, state: &ComponentRecord) {
        let pruned = (|| {
            let mut kept = Vec::new();
            for entry in &state.previous {
                kept.extend(store::package(self.system, &package.component, &entry.digest)?);
            }
            self.work(package, None, true, |work| method::of(package).prune(work, &kept))?;
            store::prune_packages(self.system, &package.component, state)?;
            store::prune_cache(self.system)
        })();
        if let Err(error) = pruned {
            self.log.push(&format!("cannot delete what is no longer needed: {error}"));
        }
    }

    /// Restores a kept version of a component.
    pub(crate) fn back(&mut self, component: &str, to: &str) -> Result<String, MethodError> {
        checked_component(component)?;
        let state = store::state(self.system, component)?;
        let kept = state.kept().any(|kept| kept.digest == to) && !state.removing;
        let package = if kept { store::package(self.system, component, to)? } else { None };
        let Some(package) = package else {
            let known: Vec<&str> = state.kept().map(|kept| kept.reference.as_str()).collect();
            return Err(MethodError(format!(
                "{component} with digest {} is not kept on this host; kept: {}",
                truncate_bytes(to, 64),
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            )));
        };
        self.install(&package, to, InstallMode::GoBack)
    }

    /// Removes a component, by what the host recorded of it.
    pub(crate) fn remove(&mut self, component: &str) -> Result<String, MethodError> {
        checked_component(component)?;
        let mut state = store::state(self.system, component)?;
        if state.is_empty() {
            store::forget(self.system, component)?;
            return Ok(format!("{component} is not installed"));
        }
        let packages = self.packages(component, &state)?;
        self.touched = true;
        if !state.removing {
            state.removing = true;
            store::keep_state(self.system, component, &state)?;
        }
        let mut done = Vec::new();
        if let Some((_, package)) = packages.last().or(packages.first())
            && let Some(script) = &package.remove.before
        {
            self.say("running remove.before".to_owned());
            self.log.push("── remove.before");
            let ran = self.work(package, None, true, |work| work.run(SHELL, script.as_bytes(), &[]))?;
            if !ran.ok() {
                return Err(MethodError(format!("remove.before {}", ended(&ran))));
            }
        }
        self.say(format!("removing {component}"));
        self.hands(&mut done, |hands| state.units.iter().rev().try_for_each(|(name, was)| hands.take_down(name, was)))?;
        for (_, package) in &packages {
            self.work(package, None, true, |work| method::of(package).remove(work))?;
        }
        for (path, was) in state.paths.iter().rev() {
            files::put_back(self.system, component, path, was.as_ref())?;
        }
        for path in packages.iter().flat_map(|(_, package)| &package.remove.paths) {
            checked_path(path)?;
            self.system.remove(path).map_err(MethodError::io(path))?;
        }
        self.hands(&mut done, |hands| {
            let unit_files = state.paths.keys().any(|path| path.starts_with("/etc/systemd/system/"));
            hands.reload(None, unit_files)?;
            state.units.iter().try_for_each(|(name, was)| hands.put_back(name, was))
        })?;
        folders::tidy(self.system).map_err(MethodError::io("folders"))?;
        store::forget(self.system, component)?;
        store::prune_cache(self.system)?;
        done.push(format!("reverted {}", plural(state.paths.len(), "file")));
        Ok(format!("removed {component}: {}", done.join(", ")))
    }
}

fn finished(state: &mut ComponentRecord, entry: Installed, keep: u32, how: InstallMode) {
    let digest = entry.digest.clone();
    let old = state.installed.replace(entry).filter(|old| old.digest != digest);
    match how {
        InstallMode::Repair => {}
        InstallMode::Install { unproven } => {
            state.previous.retain(|previous| previous.digest != digest);
            state.previous.splice(0..0, old.filter(|_| !unproven));
            state.previous.truncate(keep as usize);
        }
        // The version that was rolled back did not work: only older versions are kept.
        InstallMode::GoBack => {
            if let Some(at) = state.previous.iter().position(|previous| previous.digest == digest) {
                state.previous.drain(..=at);
            }
        }
    }
    state.trying.clear();
}

/// Rejects packages that a host does not accept even from its operator: names that lead out of their directories.
fn checked(package: &Package) -> Result<(), MethodError> {
    checked_component(&package.component)?;
    for path in files::paths(package) {
        checked_path(&path)?;
    }
    for unit in &package.units {
        let drop_ins = unit.drop_ins.keys();
        for name in drop_ins.chain([&unit.name]) {
            if name.is_empty() || name.contains('/') || name.starts_with(['.', '-']) {
                return Err(MethodError(format!("invalid name `{}` of a unit or drop-in", truncate_bytes(name, 100))));
            }
        }
    }
    Ok(())
}

pub(crate) fn checked_component(component: &str) -> Result<(), MethodError> {
    let fine = (1..=63).contains(&component.len())
        && component.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !component.starts_with('-');
    if fine {
        return Ok(());
    }
    Err(MethodError(format!(
        "invalid component name `{}`: must be 1 to 63 lower-case letters, digits and `-`",
        truncate_bytes(component, 100)
    )))
}

fn checked_path(path: &str) -> Result<(), MethodError> {
    let parts: Vec<&str> = path.split('/').collect();
    let fine =
        path.starts_with('/') && parts.len() > 2 && parts[1..].iter().all(|part| !["", ".", ".."].contains(part));
    let ours = path.starts_with(&format!("{}/", fleetwright_wire::HOME));
    if fine && !ours && !path.contains('\0') {
        return Ok(());
    }
    Err(MethodError(format!(
        "invalid path `{}` in a package: must be absolute, in a folder, without `.` and `..`, and not in {}",
        truncate_bytes(path, 300),
        fleetwright_wire::HOME
    )))
}

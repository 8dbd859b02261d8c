//! A kernel: its packages, the boot default, modules and boot parameters. Effective once it runs, which takes a reboot.
//!
//! Other kernels stay beside it until the component is removed or no rollback needs them: the running kernel is never removed for a newer one.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_wire::{self as wire, Boot, Deviation, Package};
use serde::{Deserialize, Serialize};

use super::{Method, MethodContext, MethodError, deb, ended, rpm};
use crate::System;
use crate::system::UpcomingQueries;

mod grub;
mod links;

/// Largest file that is read here; grub.cfg of a host with many kernels has some 10 KB.
const MAX_SIZE: u64 = 4 << 20;

/// The method `kernel`; see the module.
pub(super) struct Kernel;

/// The package format of the kernel.
enum KernelSource {
    Deb,
    Rpm,
    Nothing,
}

/// The record that is needed to undo the installation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    /// Earlier targets of the links; null for links that did not exist.
    links: BTreeMap<String, Option<String>>,
    /// Modules that were not loaded before.
    loaded: BTreeSet<String>,
}

impl Method for Kernel {
    /// The declared version if the declared release runs, otherwise the running release.
    fn version(&self, system: &dyn System, package: &Package) -> Result<Option<String>, MethodError> {
        let Some(release) = &declared(package)?.release else { return Ok(None) };
        let running = running(system)?;
        Ok(Some(if running == *release { package.version.clone() } else { running }))
    }

    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
        let kernel = declared(package)?;
        let mut deviations = match bring(system, kernel)? {
            KernelSource::Deb => deb::Deb.deviations(system, package)?,
            KernelSource::Rpm => rpm::Rpm.deviations(system, package)?,
            KernelSource::Nothing => Vec::new(),
        };
        deviations.extend(boot_deviations(system, package)?);
        for (path, content) in module_files(package)? {
            if read(system, &path)? != content {
                deviations.push(Deviation {
                    what: format!("file {path}"),
                    found: if content.is_none() { "present" } else { "absent or other content" }.to_owned(),
                    wanted: if content.is_none() { "absent" } else { "the declared modules" }.to_owned(),
                    disrupts: false,
                });
            }
        }
        // Modules may come with a kernel that does not run yet.
        if runs(system, kernel)? {
            for name in kernel.modules.keys() {
                if !system.module(name).map_err(MethodError::io(name))? {
                    deviations.push(Deviation {
                        what: format!("module {name}"),
                        found: "not loaded".to_owned(),
                        wanted: "loaded".to_owned(),
                        disrupts: false,
                    });
                }
            }
        }
        Ok(deviations)
    }

    fn foretell<'a>(&self, package: &'a Package, coming: &mut UpcomingQueries<'a>) {
        deb::Deb.foretell(package, coming);
    }

    /// Only when a reboot would help: the boot default is as declared, and the running kernel is not.
    fn needs_reboot(&self, system: &dyn System, package: &Package) -> Result<bool, MethodError> {
        let kernel = declared(package)?;
        if !boot_deviations(system, package)?.is_empty() {
            return Ok(false);
        }
        let line = system.command_line().map_err(MethodError::io("the kernel's command line"))?;
        Ok(!runs(system, kernel)? || !kernel.parameters.iter().all(|parameter| has(&line, parameter)))
    }

    fn prepare(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        let package = work.package;
        let kernel = declared(package)?;
        checked(kernel)?;
        if kernel.boot == Boot::Grub && (kernel.release.is_some() || !kernel.parameters.is_empty()) {
            grub::must_be_there(work.system)?;
        }
        match bring(work.system, kernel)? {
            KernelSource::Deb => deb::Deb.prepare(work),
            KernelSource::Rpm => rpm::Rpm.prepare(work),
            KernelSource::Nothing => Ok(()),
        }
    }

    /// The paths of any version of the component, so that none of them is removed as stale before the boot loader was updated.
    fn paths(&self, package: &Package) -> Vec<String> {
        let component = &package.component;
        vec![
            modules_path(component),
            options_path(component),
            grub::path(component),
            links::path(component),
            links::LINE.to_owned(),
        ]
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        let package = work.package;
        let kernel = declared(package)?;
        if kernel.boot == Boot::Links && kernel.release.is_some() {
            links::note(work)?;
        }
        match bring(work.system, kernel)? {
            KernelSource::Deb => deb::Deb.apply(work)?,
            KernelSource::Rpm => rpm::Rpm.apply(work)?,
            KernelSource::Nothing => false,
        };
        if let Some(release) = &kernel.release {
            must_have(work.system, release)?;
        }
        for (path, content) in module_files(package)? {
            put(work.system, &path, content.as_deref())?;
        }
        match kernel.boot {
            Boot::Grub => {
                links::unset(work)?;
                grub::set(work, kernel)?;
            }
            Boot::Links => {
                grub::unset(work)?;
                links::set(work, kernel)?;
            }
        }
        if runs(work.system, kernel)? {
            load(work, kernel)?;
        }
        Ok(false)
    }

    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        let package = work.package;
        let kernel = declared(package)?;
        another_is_there(work.system, kernel)?;
        let record = record(work)?;
        for path in [modules_path(&package.component), options_path(&package.component)] {
            work.system.remove(&path).map_err(MethodError::io(&path))?;
        }
        for name in &record.loaded {
            // A module in use stays until the next boot, and is not loaded by us then.
            let _ = work.run(&["modprobe", "--remove", "--quiet", name], &[], PATH)?;
        }
        links::unset(work)?;
        grub::unset(work)?;
        let ours = kernel
            .release
            .as_ref()
            .is_some_and(|release| running(work.system).is_ok_and(|running| running == *release));
        match bring(work.system, kernel)? {
            KernelSource::Deb => {
                if ours {
                    deb::allow_running_kernel(work)?;
                }
                deb::Deb.remove(work)?;
            }
            KernelSource::Rpm => rpm::Rpm.remove(work)?,
            KernelSource::Nothing => {}
        }
        // The package's own scripts change the links as well.
        links::unset(work)?;
        forget(work)?;
        if ours && !matches!(bring(work.system, kernel)?, KernelSource::Nothing) {
            let said =
                "the host still runs the removed kernel: its modules cannot be loaded until the host is rebooted"
                    .to_owned();
            work.log.push(&said);
            work.say(said);
        }
        Ok(())
    }

    fn prune(&self, work: &mut MethodContext<'_>, kept: &[Package]) -> Result<(), MethodError> {
        match bring(work.system, declared(work.package)?)? {
            KernelSource::Deb => {
                deb::Deb.prune(work, kept)?;
                deb::drop_obsolete(work, kept, &running(work.system)?)
            }
            KernelSource::Rpm => rpm::Rpm.prune(work, kept),
            KernelSource::Nothing => Ok(()),
        }
    }
}

const PATH: &[(&str, &str)] =
    &[("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C.UTF-8")];

fn declared(package: &Package) -> Result<&wire::Kernel, MethodError> {
    match &package.method {
        wire::Method::Kernel(kernel) => Ok(kernel),
        _ => Err(MethodError(format!("{} declares no kernel", package.reference))),
    }
}

/// Hosts of both families may have the same package version: each uses its own part.
fn bring(system: &dyn System, kernel: &wire::Kernel) -> Result<KernelSource, MethodError> {
    Ok(match (&kernel.deb, &kernel.rpm) {
        (None, None) => KernelSource::Nothing,
        (Some(_), None) => KernelSource::Deb,
        (None, Some(_)) => KernelSource::Rpm,
        (Some(_), Some(_)) => {
            let status = "/var/lib/dpkg/status";
            match system.stat(status).map_err(MethodError::io(status))? {
                Some(_) => KernelSource::Deb,
                None => KernelSource::Rpm,
            }
        }
    })
}

/// Values written to files that are read line by line must be one line, without characters that have a special meaning there.
fn checked(kernel: &wire::Kernel) -> Result<(), MethodError> {
    let name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+~".contains(&byte))
    };
    if let Some(release) = kernel.release.as_ref().filter(|release| !name(release)) {
        return Err(MethodError(format!("invalid kernel release `{release}`: expected the output of `uname -r`")));
    }
    for (module, options) in &kernel.modules {
        if !name(module) || options.contains(['\n', '\r', '\\']) {
            return Err(MethodError(format!(
                "invalid module `{module}`: its name must have letters, digits, `_` and `-`, its options must be one line"
            )));
        }
    }
    for parameter in &kernel.parameters {
        if parameter.trim().is_empty() || parameter.contains(['\n', '\r', '\'']) {
            return Err(MethodError(format!(
                "invalid kernel parameter `{}`: must be one line, without `'`",
                parameter.escape_debug()
            )));
        }
    }
    Ok(())
}

fn running(system: &dyn System) -> Result<String, MethodError> {
    Ok(system.facts().map_err(MethodError::io("the running kernel"))?.kernel)
}

/// Whether the declared kernel runs; with none declared, any does.
fn runs(system: &dyn System, kernel: &wire::Kernel) -> Result<bool, MethodError> {
    match &kernel.release {
        None => Ok(true),
        Some(release) => Ok(running(system)? == *release),
    }
}

/// Whether a command line has a parameter, as a word or words of its own.
fn has(line: &str, parameter: &str) -> bool {
    let folded = |text: &str| format!(" {} ", text.split_whitespace().collect::<Vec<_>>().join(" "));
    folded(line).contains(&folded(parameter))
}

fn image(release: &str) -> String {
    format!("/boot/vmlinuz-{release}")
}

/// The releases of the kernels in `/boot`.
fn images(system: &dyn System) -> Result<Vec<String>, MethodError> {
    let names = system.list("/boot").map_err(MethodError::io("/boot"))?;
    Ok(names.iter().filter_map(|name| name.strip_prefix("vmlinuz-")).map(str::to_owned).collect())
}

fn must_have(system: &dyn System, release: &str) -> Result<(), MethodError> {
    let image = image(release);
    if system.stat(&image).map_err(MethodError::io(&image))?.is_some() {
        return Ok(());
    }
    let there = images(system)?;
    Err(MethodError(format!(
        "{image} not found: `release` must be the `uname -r` of an installed kernel; installed: {}",
        if there.is_empty() { "none".to_owned() } else { there.join(", ") }
    )))
}

/// Checks that a host which runs our kernel has another one to boot once ours is removed.
fn another_is_there(system: &dyn System, kernel: &wire::Kernel) -> Result<(), MethodError> {
    let Some(release) = kernel.release.as_ref().filter(|_| kernel.deb.is_some() || kernel.rpm.is_some()) else {
        return Ok(());
    };
    if running(system)? != *release {
        return Ok(());
    }
    let here = image(release);
    let is_there = system.stat(&here).map_err(MethodError::io(&here))?.is_some();
    if is_there && images(system)?.iter().all(|other| other == release) {
        return Err(MethodError(format!(
            "{release} is the only kernel of this host, which could not boot without it: install another kernel package first"
        )));
    }
    Ok(())
}

fn boot_deviations(system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
    let kernel = declared(package)?;
    match kernel.boot {
        Boot::Grub => grub::deviations(system, &package.component, kernel),
        Boot::Links => links::deviations(system, &package.component, kernel),
    }
}

fn modules_path(component: &str) -> String {
    format!("/etc/modules-load.d/fleetwright-{component}.conf")
}

/// If two files set the same option, modprobe uses the file whose name sorts last, in whichever directory: Debian's
/// `/lib/modprobe.d/systemd.conf` would win over a name that starts with `f`.
fn options_path(component: &str) -> String {
    format!("/etc/modprobe.d/zz-fleetwright-{component}.conf")
}

/// The files for modules with their content; none if a file must not exist.
fn module_files(package: &Package) -> Result<[(String, Option<String>); 2], MethodError> {
    let kernel = declared(package)?;
    let names: String = kernel.modules.keys().map(|name| format!("{name}\n")).collect();
    let options = kernel.modules.iter().filter(|(_, options)| !options.trim().is_empty());
    let options: String = options.map(|(name, options)| format!("options {name} {}\n", options.trim())).collect();
    let some = |text: String| (!text.is_empty()).then_some(text);
    Ok([(modules_path(&package.component), some(names)), (options_path(&package.component), some(options))])
}

/// Loads the missing modules, with their options: modprobe reads them from the file.
fn load(work: &mut MethodContext<'_>, kernel: &wire::Kernel) -> Result<(), MethodError> {
    for name in kernel.modules.keys() {
        if work.system.module(name).map_err(MethodError::io(name))? {
            continue;
        }
        let mut record = record(work)?;
        if record.loaded.insert(name.clone()) {
            remember(work, &record)?;
        }
        work.say(format!("loading module {name}"));
        let ran = work.run(&["modprobe", "--", name], &[], PATH)?;
        if !ran.ok() {
            return Err(MethodError(format!(
                "cannot load module {name}: modprobe {}; check that the kernel {} has the module and knows its options",
                ended(&ran),
                running(work.system)?
            )));
        }
    }
    Ok(())
}

fn read(system: &dyn System, path: &str) -> Result<Option<String>, MethodError> {
    let bytes = system.read(path, MAX_SIZE).map_err(MethodError::io(path))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes the content to a file, or removes the file. True if it changed.
fn put(system: &mut dyn System, path: &str, content: Option<&str>) -> Result<bool, MethodError> {
    if read(system, path)?.as_deref() == content {
        return Ok(false);
    }
    match content {
        Some(content) => system.write(path, content.as_bytes(), 0o644, "root", "root"),
        None => system.remove(path).map(|_| ()),
    }
    .map_err(MethodError::io(path))?;
    Ok(true)
}

fn record_path(work: &MethodContext<'_>) -> String {
    format!("{}/kernel.json", work.folder)
}

fn record(work: &MethodContext<'_>) -> Result<Record, MethodError> {
    let path = record_path(work);
    match work.system.read(&path, MAX_SIZE).map_err(MethodError::io(&path))? {
        None => Ok(Record::default()),
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            MethodError(format!("cannot parse {path}, which records the earlier boot settings of the host: {error}"))
        }),
    }
}

fn remember(work: &mut MethodContext<'_>, record: &Record) -> Result<(), MethodError> {
    let path = record_path(work);
    let bytes = serde_json::to_vec_pretty(record).map_err(|error| MethodError(error.to_string()))?;
    work.system.write(&path, &bytes, 0o600, "root", "root").map_err(MethodError::io(&path))
}

fn forget(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let path = record_path(work);
    work.system.remove(&path).map(|_| ()).map_err(MethodError::io(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_found_as_a_whole_word_only() {
        assert!(has("root=/dev/vda  quiet panic=10\n", "quiet"));
        assert!(has("a dyndbg=\"file x +p\" b", "dyndbg=\"file x +p\""));
        assert!(!has("root=/dev/vda panic=100", "panic=10"));
    }
}

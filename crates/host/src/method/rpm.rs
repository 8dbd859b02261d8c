//! RPM packages, by dnf where it exists, otherwise by rpm alone: exact versions, one transaction, no package of others removed.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_wire::{self as wire, Package};

use super::os::{self, Record, RemovalEffects};
use super::packages::{self, Declared, InstalledVersions, LOOK, PackageManager, Target, look, patiently};
use super::{MethodContext, MethodError, ended};
use crate::System;
use crate::system::{ProgramResult, ProgramRun};

mod dnf;
mod hold;
mod package_cache;
mod removal;

use dnf::{options, simulate};

/// The method `rpm`; see the module.
pub(super) struct Rpm;

impl PackageManager for Rpm {
    const RECORD: &'static str = "rpm";
    const ARCHIVES: &'static str = "rpms";
    const FOLDERS: &'static [&'static str] = &[];
    const ENDING: &'static str = ".rpm";
    const BETWEEN: &'static str = "-";
    const PACKAGES: &'static str = "RPM packages";
    const FILE: &'static str = "an RPM package";
    const REQUIRES: &'static str = "the method `rpm` requires a host with rpm";
    const ENV: &'static [(&'static str, &'static str)] = &[
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LC_ALL", "C.UTF-8"),
        ("COLUMNS", "200"),
    ];
    /// The digest is declared: a signature would add nothing to it.
    const IDENTIFY: &'static [&'static str] =
        &["rpm", "-qp", "--nosignature", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n"];
    const LOCK: &'static str = "rpm";
    const LOCKED: &'static [&'static str] = &["can't create transaction lock", "Failed to obtain the transaction lock"];

    fn declared(package: &Package) -> Option<Declared<'_>> {
        let (rpm, beside) = match &package.method {
            wire::Method::Rpm(rpm) => (rpm, false),
            wire::Method::Kernel(kernel) => (kernel.rpm.as_ref()?, true),
            _ => return None,
        };
        Some(Declared { packages: &rpm.packages, sources: &rpm.sources, hold: rpm.hold, beside })
    }

    fn lock_holder(_said: &str) -> String {
        "another program holds rpm's lock".to_owned()
    }

    fn advice(said: &str) -> &'static str {
        dnf::advice(said)
    }

    fn is_error(line: &str) -> bool {
        line.starts_with("Error")
            || line.starts_with("error:")
            || line.contains("is needed by")
            || line.starts_with("- ")
    }

    /// dnf names a package file `NAME-VERSION-RELEASE.ARCH.rpm`.
    fn kept_start(name: &str, version: &str) -> String {
        format!("{name}-{version}.")
    }

    fn file_name(name: &str, version: &str) -> String {
        format!("{name}-{version}.rpm")
    }

    /// `rpm -q` of names, or of names with versions.
    fn installed<'a>(
        system: &dyn System,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<InstalledVersions, MethodError> {
        let mut argv = vec!["rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}\\n"];
        argv.extend(names.map(String::as_str));
        let mut there = InstalledVersions::new();
        if argv.len() == 4 {
            return Ok(there);
        }
        let ran = system
            .look(&ProgramRun { argv: &argv, input: &[], env: Self::ENV, within: LOOK })
            .map_err(|error| MethodError(format!("cannot run rpm: {error}; {}", Self::REQUIRES)))?;
        // The exit status is the number of packages that are not installed.
        if ran.status.is_none() || ran.stdout.contains("error: ") {
            return Err(MethodError(format!("rpm -q {}", ended(&ran))));
        }
        for line in ran.stdout.lines() {
            if let [name, version] = line.split(' ').collect::<Vec<_>>()[..] {
                there.entry(name.to_owned()).or_default().insert(version.to_owned());
            }
        }
        Ok(there)
    }

    fn present<'a>(
        work: &MethodContext<'_>,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeSet<String>, MethodError> {
        // One by one: for a name with a version, rpm prints the name.
        let mut present = BTreeSet::new();
        for name in names {
            if !Self::installed(&*work.system, std::iter::once(name))?.is_empty() {
                present.insert(name.clone());
            }
        }
        Ok(present)
    }

    fn held<'a>(
        system: &dyn System,
        _names: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeSet<String>, MethodError> {
        if has_dnf(system)? { hold::names(system) } else { Ok(BTreeSet::new()) }
    }

    fn not_held(
        system: &dyn System,
        declared: &Declared<'_>,
        wrong: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, MethodError> {
        if !has_dnf(system)? {
            return Ok(Vec::new());
        }
        let present: BTreeMap<String, String> = declared
            .packages
            .iter()
            .filter(|(name, _)| !wrong.contains_key(*name))
            .map(|(name, version)| (name.clone(), version.clone()))
            .collect();
        hold::missing(system, &present)
    }

    fn check(
        work: &MethodContext<'_>,
        declared: &Declared<'_>,
        wrong: &BTreeMap<String, String>,
    ) -> Result<(), MethodError> {
        if has_dnf(&*work.system)? || !declared.sources.is_empty() {
            return Ok(());
        }
        Err(MethodError(format!(
            "cannot install {} from a repository without dnf: add the files to `sources`, or install dnf on the host",
            os::exact(wrong, Self::BETWEEN).join(", ")
        )))
    }

    fn keep_earlier(
        work: &mut MethodContext<'_>,
        record: &mut Record,
        declared: &Declared<'_>,
        wrong: &BTreeMap<String, String>,
        there: &InstalledVersions,
    ) -> Result<(), MethodError> {
        if declared.beside || work.offline || !has_dnf(work.system)? {
            return Ok(());
        }
        package_cache::keep_earlier(work, record, wrong, there)
    }

    fn download(
        work: &mut MethodContext<'_>,
        record: &Record,
        wrong: &BTreeMap<String, String>,
        missing: &[String],
    ) -> Result<(), MethodError> {
        package_cache::download(work, record, wrong, missing)
    }

    /// Compares versions with rpm itself, which has its own order.
    fn is_newer(work: &MethodContext<'_>, version: &str, than: &str) -> Result<bool, MethodError> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+~^".contains(&byte));
        if !plain(version) || !plain(than) {
            return Err(MethodError(format!("invalid RPM version `{version}` or `{than}`")));
        }
        let ran = look::<Self>(work, &["rpm", "--eval", &format!("%{{lua:print(rpm.vercmp('{version}','{than}'))}}")])?;
        Ok(ran.stdout.trim() == "1")
    }

    fn release(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<(), MethodError> {
        if has_dnf(work.system)? { hold::release(work.system, names) } else { Ok(()) }
    }

    fn plan(
        work: &mut MethodContext<'_>,
        declared: &Declared<'_>,
        targets: &[Target],
    ) -> Result<RemovalEffects, MethodError> {
        if has_dnf(work.system)? {
            let mut plan = simulate(work, "install", targets)?;
            plan.installs.retain(|name| !declared.packages.contains_key(name));
            return Ok(plan);
        }
        // rpm alone installs only the files that it is given.
        let mut installs = BTreeSet::new();
        for name in targets.iter().filter_map(|target| target.with.as_ref()) {
            if Self::installed(work.system, std::iter::once(name))?.is_empty() {
                installs.insert(name.clone());
            }
        }
        Ok(RemovalEffects { removes: BTreeSet::new(), installs })
    }

    fn run_install(
        work: &mut MethodContext<'_>,
        declared: &Declared<'_>,
        targets: &[Target],
        _plan: &RemovalEffects,
    ) -> Result<ProgramResult, MethodError> {
        let mut argv = match (has_dnf(work.system)?, declared.beside) {
            (true, _) => dnf_argv(work, "install"),
            (false, true) => vec!["rpm", "-i"],
            (false, false) => vec!["rpm", "-U", "--oldpackage"],
        };
        argv.extend(targets.iter().map(|target| target.path.as_str()));
        os::without_asides(work, |work| patiently::<Self>(work, &argv))
    }

    fn program(system: &dyn System) -> Result<&'static str, MethodError> {
        Ok(if has_dnf(system)? { "dnf" } else { "rpm" })
    }

    fn mark_dependencies(work: &mut MethodContext<'_>, names: &[&str]) -> Result<bool, MethodError> {
        if !has_dnf(work.system)? {
            return Ok(false);
        }
        let mut argv = vec!["dnf", "mark", "remove"];
        argv.extend(names);
        patiently::<Self>(work, &argv)?;
        Ok(true)
    }

    fn remove_doubles(work: &mut MethodContext<'_>, name: &str, version: &str) -> Result<(), MethodError> {
        removal::remove_doubles(work, name, version)
    }

    fn hold(work: &mut MethodContext<'_>, declared: &Declared<'_>, record: &mut Record) -> Result<(), MethodError> {
        if !has_dnf(work.system)? {
            return Ok(());
        }
        let names: BTreeSet<String> = declared.packages.keys().cloned().collect();
        if declared.hold {
            if record.held != names {
                record.held = names;
                record.save(work, Self::RECORD)?;
            }
            return hold::set(work.system, declared.packages);
        }
        let ours: BTreeSet<String> = record.held.intersection(&names).cloned().collect();
        hold::release(work.system, &ours)?;
        if !record.held.is_empty() {
            record.held.clear();
            record.save(work, Self::RECORD)?;
        }
        Ok(())
    }

    fn wanted_for_themselves(
        work: &MethodContext<'_>,
        pulled: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, MethodError> {
        if has_dnf(&*work.system)? { removal::wanted_for_themselves(work, pulled) } else { Ok(BTreeSet::new()) }
    }

    fn would_remove(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<RemovalEffects, MethodError> {
        let dnf = has_dnf(work.system)?;
        dnf::would_remove(work, names, dnf)
    }

    fn run_remove(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<ProgramResult, MethodError> {
        let mut argv = if has_dnf(work.system)? { dnf_argv(work, "remove") } else { vec!["rpm", "-e"] };
        argv.extend(names.iter().map(String::as_str));
        patiently::<Self>(work, &argv)
    }

    fn run_restore(work: &mut MethodContext<'_>, target: &str) -> Result<ProgramResult, MethodError> {
        let mut argv =
            if has_dnf(work.system)? { dnf_argv(work, "install") } else { vec!["rpm", "-U", "--oldpackage"] };
        argv.push(target);
        patiently::<Self>(work, &argv)
    }

    fn hold_again(work: &mut MethodContext<'_>, name: &str, version: &str) -> Result<(), MethodError> {
        if has_dnf(work.system)? {
            hold::set(work.system, &BTreeMap::from([(name.to_owned(), version.to_owned())]))?;
        }
        Ok(())
    }
}

fn has_dnf(system: &dyn System) -> Result<bool, MethodError> {
    let path = "/usr/bin/dnf";
    Ok(system.stat(path).map_err(MethodError::io(path))?.is_some())
}

fn dnf_argv<'a>(work: &MethodContext<'_>, verb: &'a str) -> Vec<&'a str> {
    let mut argv = vec!["dnf", verb];
    argv.extend(options(work));
    argv
}

//! Debian packages, by apt-get: exact versions, one transaction, no service started and no package of others removed.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_wire::{self as wire, Deviation, Package};

use super::os::{self, Record, RemovalEffects};
use super::packages::{self, Declared, InstalledVersions, PackageManager, Target, look, patiently};
use super::{MethodContext, MethodError, ended};
use crate::System;
use crate::system::{DebState, ProgramResult, UpcomingQueries};

mod apt;
mod package_cache;
mod removal;
mod services;

use apt::{mark, options, simulate};
pub(super) use removal::{allow_running_kernel, drop_obsolete};
use services::{POLICY, allow_services, deny_services, policy_is_ours};

/// The method `deb`; see the module.
pub(super) struct Deb;

impl PackageManager for Deb {
    const RECORD: &'static str = "deb";
    const ARCHIVES: &'static str = "debs";
    const FOLDERS: &'static [&'static str] = &[apt::ANSWERS];
    const ENDING: &'static str = ".deb";
    const BETWEEN: &'static str = "=";
    const PACKAGES: &'static str = "Debian packages";
    const FILE: &'static str = "a Debian package";
    const REQUIRES: &'static str = "the method `deb` requires a host with apt and dpkg";
    /// No terminal answers questions, and needrestart must not restart services.
    const ENV: &'static [(&'static str, &'static str)] = &[
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LC_ALL", "C.UTF-8"),
        ("DEBIAN_FRONTEND", "noninteractive"),
        ("APT_LISTCHANGES_FRONTEND", "none"),
        ("NEEDRESTART_SUSPEND", "1"),
        ("UCF_FORCE_CONFFOLD", "1"),
    ];
    const IDENTIFY: &'static [&'static str] = &["dpkg-deb", "--show", "--showformat=${Package} ${Version}\\n"];
    const LOCK: &'static str = "dpkg";
    const LOCKED: &'static [&'static str] = &[
        "Could not get lock",
        "Unable to acquire the dpkg",
        "Unable to lock",
        "lock was locked by another process",
        "is another process using it",
    ];

    fn declared(package: &Package) -> Option<Declared<'_>> {
        let deb = match &package.method {
            wire::Method::Deb(deb) => deb,
            wire::Method::Kernel(kernel) => kernel.deb.as_ref()?,
            _ => return None,
        };
        Some(Declared { packages: &deb.packages, sources: &deb.sources, hold: deb.hold, beside: false })
    }

    fn add_queries<'a>(package: &'a Package, coming: &mut UpcomingQueries<'a>) {
        if let Some(declared) = Self::declared(package) {
            coming.debs.extend(declared.packages.keys().map(String::as_str));
        }
    }

    fn lock_holder(said: &str) -> String {
        said.lines().find(|line| packages::locked::<Self>(line)).unwrap_or_default().trim().to_owned()
    }

    fn advice(said: &str) -> &'static str {
        apt::advice(said)
    }

    fn is_error(line: &str) -> bool {
        line.starts_with("E: ") || line.starts_with("dpkg: error") || line.starts_with("dpkg-deb: error")
    }

    /// apt names a package file `NAME_VERSION_ARCH.deb`, with `%3a` for a colon.
    fn kept_start(name: &str, version: &str) -> String {
        format!("{name}_{}_", version.replace(':', "%3a"))
    }

    fn file_name(name: &str, version: &str) -> String {
        format!("{name}_{}.deb", version.replace(':', "%3a"))
    }

    fn installed<'a>(
        system: &dyn System,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<InstalledVersions, MethodError> {
        let there = states(system, names)?;
        Ok(there.into_iter().map(|(name, state)| (name, BTreeSet::from([state.version]))).collect())
    }

    fn present<'a>(
        work: &MethodContext<'_>,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeSet<String>, MethodError> {
        removal::known(work, names)
    }

    fn held<'a>(system: &dyn System, names: impl Iterator<Item = &'a String>) -> Result<BTreeSet<String>, MethodError> {
        Ok(states(system, names)?.into_iter().filter(|(_, state)| state.held).map(|(name, _)| name).collect())
    }

    fn not_held(
        system: &dyn System,
        declared: &Declared<'_>,
        _wrong: &BTreeMap<String, String>,
    ) -> Result<Vec<String>, MethodError> {
        let there = states(system, declared.packages.keys())?;
        Ok(there.into_iter().filter(|(_, state)| !state.held).map(|(name, _)| name).collect())
    }

    fn leftovers(system: &dyn System) -> Result<Vec<Deviation>, MethodError> {
        let left = policy_is_ours(system)?.then(|| Deviation {
            what: format!("file {POLICY}"),
            found: "left by an interrupted transaction: packages cannot start services".to_owned(),
            wanted: "absent".to_owned(),
            disrupts: false,
        });
        Ok(left.into_iter().collect())
    }

    fn recover(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        allow_services(work)
    }

    /// Finishes an interrupted run of dpkg, unless it concerns packages that are installed now: a broken version is replaced, not retried.
    fn mend(work: &mut MethodContext<'_>, wrong: &BTreeMap<String, String>) -> Result<(), MethodError> {
        let journal = "/var/lib/dpkg/updates";
        let interrupted = !work.system.list(journal).map_err(MethodError::io(journal))?.is_empty();
        let audit = look::<Self>(work, &["dpkg", "--audit"])?;
        // Lines that start with a blank name a package, then its description.
        let broken = |line: &str| {
            line.starts_with(' ') && !line.split_whitespace().next().is_some_and(|name| wrong.contains_key(name))
        };
        if !interrupted && !audit.stdout.lines().any(broken) {
            return Ok(());
        }
        work.say("finishing the interrupted dpkg transaction");
        deny_services(work)?;
        let ran = patiently::<Self>(work, &["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"]);
        allow_services(work)?;
        // A package that cannot be configured may be the one that is replaced now; otherwise apt-get reports it.
        ran.map(|_| ())
    }

    fn keep_earlier(
        work: &mut MethodContext<'_>,
        record: &mut Record,
        _declared: &Declared<'_>,
        wrong: &BTreeMap<String, String>,
        there: &InstalledVersions,
    ) -> Result<(), MethodError> {
        package_cache::keep_earlier(work, record, wrong, there)
    }

    fn download(
        work: &mut MethodContext<'_>,
        _record: &Record,
        _wrong: &BTreeMap<String, String>,
        missing: &[String],
    ) -> Result<(), MethodError> {
        package_cache::download(work, missing)
    }

    fn is_newer(work: &MethodContext<'_>, version: &str, than: &str) -> Result<bool, MethodError> {
        Ok(look::<Self>(work, &["dpkg", "--compare-versions", version, "gt", than])?.ok())
    }

    fn release(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<(), MethodError> {
        let there = states(work.system, names.iter())?;
        let held: Vec<&str> = there.iter().filter(|(_, state)| state.held).map(|(name, _)| name.as_str()).collect();
        if !held.is_empty() {
            mark(work, "unhold", &held)?;
        }
        Ok(())
    }

    fn plan(
        work: &mut MethodContext<'_>,
        _declared: &Declared<'_>,
        targets: &[Target],
    ) -> Result<RemovalEffects, MethodError> {
        let options = options(work)?;
        simulate(work, &install_argv(&options, targets))
    }

    fn run_install(
        work: &mut MethodContext<'_>,
        _declared: &Declared<'_>,
        targets: &[Target],
        plan: &RemovalEffects,
    ) -> Result<ProgramResult, MethodError> {
        let options = options(work)?;
        let mut argv = install_argv(&options, targets);
        if plan.removes.is_empty() {
            argv.insert(2, "--no-remove");
        }
        deny_services(work)?;
        let ran = os::without_asides(work, |work| patiently::<Self>(work, &argv));
        allow_services(work)?;
        ran
    }

    fn program(_system: &dyn System) -> Result<&'static str, MethodError> {
        Ok("apt-get")
    }

    fn mark_dependencies(work: &mut MethodContext<'_>, names: &[&str]) -> Result<bool, MethodError> {
        mark(work, "auto", names)?;
        Ok(true)
    }

    fn hold(work: &mut MethodContext<'_>, declared: &Declared<'_>, record: &mut Record) -> Result<(), MethodError> {
        let there = states(work.system, declared.packages.keys())?;
        let (mut hold, mut unhold) = (Vec::new(), Vec::new());
        for (name, state) in &there {
            if declared.hold && !state.held {
                hold.push(name.as_str());
            } else if !declared.hold && state.held && record.held.contains(name) {
                unhold.push(name.as_str());
            }
        }
        let held: BTreeSet<String> =
            if declared.hold { declared.packages.keys().cloned().collect() } else { BTreeSet::new() };
        // Released before it is removed from the record, and recorded before it is held: an interruption in between stays visible.
        if !unhold.is_empty() {
            mark(work, "unhold", &unhold)?;
        }
        if record.held != held {
            record.held = held;
            record.save(work, Self::RECORD)?;
        }
        if !hold.is_empty() {
            mark(work, "hold", &hold)?;
        }
        Ok(())
    }

    fn wanted_for_themselves(
        work: &MethodContext<'_>,
        pulled: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, MethodError> {
        removal::wanted_for_themselves(work, pulled)
    }

    fn would_remove(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<RemovalEffects, MethodError> {
        let mut argv = vec!["apt-get", "purge", "--simulate"];
        argv.extend(names.iter().map(String::as_str));
        simulate(work, &argv)
    }

    fn run_remove(work: &mut MethodContext<'_>, names: &BTreeSet<String>) -> Result<ProgramResult, MethodError> {
        let options = options(work)?;
        let mut argv = vec!["apt-get", "purge"];
        argv.extend(options.iter().chain(names).map(String::as_str));
        patiently::<Self>(work, &argv)
    }

    fn run_restore(work: &mut MethodContext<'_>, target: &str) -> Result<ProgramResult, MethodError> {
        let options = options(work)?;
        let mut argv = vec!["apt-get", "install", "--allow-downgrades", "--no-remove"];
        argv.extend(options.iter().map(String::as_str));
        argv.push(target);
        patiently::<Self>(work, &argv)
    }

    fn hold_again(work: &mut MethodContext<'_>, name: &str, _version: &str) -> Result<(), MethodError> {
        if states(work.system, std::iter::once(&name.to_owned()))?.get(name).is_some_and(|state| !state.held) {
            mark(work, "hold", &[name])?;
        }
        Ok(())
    }
}

fn install_argv<'a>(options: &'a [String], targets: &'a [Target]) -> Vec<&'a str> {
    let mut argv = vec!["apt-get", "install", "--allow-downgrades"];
    argv.extend(options.iter().map(String::as_str));
    argv.extend(targets.iter().map(|target| target.path.as_str()));
    argv
}

fn states<'a>(
    system: &dyn System,
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, DebState>, MethodError> {
    let names: Vec<&str> = names.map(String::as_str).collect();
    system.debs(&names).map_err(MethodError::io("cannot list the installed packages with dpkg"))
}

//! dpkg and apt on a host in memory, as far as the method `deb` uses them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, asked, file, identify, kernel, ran};
use crate::system::memory::Machine;
use crate::system::{DebState, ProgramResult};

const JOURNAL: &str = "/var/lib/dpkg/updates/0001";

pub(super) fn run(machine: &mut Machine, program: &str, arguments: &[&str]) -> Option<ProgramResult> {
    Some(match (program, arguments) {
        ("dpkg", ["--audit"]) => {
            let lines: String = machine.packages.half.keys().map(|name| format!(" {name}  not configured\n")).collect();
            ran(0, &lines)
        }
        ("dpkg", ["--configure", "-a", ..]) => locked(machine).unwrap_or_else(|| configure(machine)),
        ("dpkg", ["--compare-versions", one, "gt", other]) => ran(i32::from(one <= other), ""),
        ("dpkg-deb", ["--show", _, path]) => match identify(machine, path) {
            Some((name, version)) => ran(0, &format!("{name} {version}\n")),
            None => ran(2, &format!("dpkg-deb: error: '{path}' is not a Debian format archive\n")),
        },
        ("dpkg-query", ["--show", _, names @ ..]) => show(machine, names),
        ("dpkg-query", ["--search", path]) => match path.strip_prefix("/boot/vmlinuz-") {
            Some(release) => ran(0, &format!("linux-image-{release}: {path}\n")),
            None => ran(1, ""),
        },
        ("apt-mark", [verb, names @ ..]) => mark(machine, verb, names),
        ("apt-get", _) => {
            let asked = asked(arguments);
            if !asked.flags.contains("--simulate")
                && let Some(locked) = locked(machine)
            {
                return Some(locked);
            }
            match asked.verb {
                "update" => ran(0, ""),
                "install" => install(machine, &asked),
                "purge" => purge(machine, &asked),
                _ => ran(100, "E: Invalid operation\n"),
            }
        }
        _ => return None,
    })
}

/// Interrupts the program: the first of several packages is unpacked and not configured, or removed while the others are not.
pub(super) fn run_half(machine: &mut Machine, program: &str, arguments: &[&str]) {
    if program != "apt-get" {
        return;
    }
    let asked = asked(arguments);
    if asked.flags.contains("--download-only") {
        return;
    }
    match asked.verb {
        "install" => {
            let Ok(plan) = plan(machine, &asked) else { return };
            let Some((name, version)) = plan.into_iter().next() else { return };
            unpack(machine, &name, &version);
            machine.put(JOURNAL, b"", 0o644);
        }
        "purge" => {
            if let Some(name) = asked.targets.first() {
                take(machine, name);
            }
        }
        _ => {}
    }
}

fn locked(machine: &mut Machine) -> Option<ProgramResult> {
    machine.packages.locked = machine.packages.locked.checked_sub(1)?;
    Some(ran(100, "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 42 (unattended-upgr)\n"))
}

fn configure(machine: &mut Machine) -> ProgramResult {
    machine.remove(JOURNAL);
    let mut said = String::new();
    for (name, version) in machine.packages.half.clone() {
        if machine.packages.is_broken(&name, &version) {
            said.push_str(&format!(
                "dpkg: error processing package {name} (--configure):\n installed {name} package post-installation script subprocess returned error exit status 1\n"
            ));
            continue;
        }
        machine.packages.half.remove(&name);
        machine.packages.debs.insert(name, DebState { version, held: false });
    }
    ran(i32::from(!said.is_empty()), &said)
}

fn show(machine: &Machine, names: &[&str]) -> ProgramResult {
    let mut lines = String::new();
    for name in names {
        if machine.packages.debs.contains_key(*name) {
            lines.push_str(&format!("{name} installed\n"));
        } else if machine.packages.half.contains_key(*name) {
            lines.push_str(&format!("{name} half-configured\n"));
        }
    }
    ran(i32::from(lines.lines().count() < names.len()), &lines)
}

fn mark(machine: &mut Machine, verb: &str, names: &[&str]) -> ProgramResult {
    if verb != "showmanual"
        && let Some(locked) = locked(machine)
    {
        return locked;
    }
    let packages = &mut machine.packages;
    let mut manual = String::new();
    for name in names {
        let Some(state) = packages.debs.get_mut(*name) else { continue };
        match verb {
            "hold" => state.held = true,
            "unhold" => state.held = false,
            "auto" => {
                packages.auto.insert((*name).to_owned());
            }
            "showmanual" if !packages.auto.contains(*name) => manual.push_str(&format!("{name}\n")),
            _ => {}
        }
    }
    ran(0, &manual)
}

/// The packages to install, dependencies first.
fn plan(machine: &Machine, asked: &Asked<'_>) -> Result<Vec<(String, String)>, ProgramResult> {
    let packages = &machine.packages;
    let mut wanted = Vec::new();
    for target in &asked.targets {
        if target.contains('/') {
            let Some(is) = identify(machine, target) else {
                return Err(ran(100, &format!("E: Unsupported file {target} given on commandline\n")));
            };
            wanted.push(is);
        } else if let Some((name, version)) = target.split_once('=') {
            if asked.offline || !packages.offers(name, version) {
                return Err(ran(100, &format!("E: Version '{version}' for '{name}' was not found\n")));
            }
            wanted.push((name.to_owned(), version.to_owned()));
        }
    }
    let mut plan: Vec<(String, String)> = Vec::new();
    let mut open: Vec<(String, String)> = wanted.iter().rev().cloned().collect();
    while let Some((name, version)) = open.pop() {
        if plan.iter().any(|(planned, _)| *planned == name) {
            continue;
        }
        for need in packages.needs(&name) {
            if packages.debs.contains_key(need) || wanted.iter().chain(&plan).any(|(planned, _)| planned == need) {
                continue;
            }
            let Some(version) = packages.newest(need).filter(|_| !asked.offline) else {
                return Err(ran(
                    100,
                    &format!(
                        "The following packages have unmet dependencies:\n {name} : Depends: {need}\nE: Unable to correct problems\n"
                    ),
                ));
            };
            open.push((need.clone(), version));
        }
        plan.insert(0, (name, version));
    }
    plan.retain(|(name, version)| packages.debs.get(name).is_none_or(|state| state.version != *version));
    Ok(plan)
}

fn install(machine: &mut Machine, asked: &Asked<'_>) -> ProgramResult {
    let plan = match plan(machine, asked) {
        Ok(plan) => plan,
        Err(ran) => return ran,
    };
    if asked.flags.contains("--simulate") {
        let line = |(name, version): &(String, String)| match machine.packages.debs.get(name) {
            Some(state) => format!("Inst {name} [{}] ({version} here [all])\n", state.version),
            None => format!("Inst {name} ({version} here [all])\n"),
        };
        return ran(0, &plan.iter().map(line).collect::<String>());
    }
    if !asked.flags.contains("--allow-change-held-packages")
        && let Some((name, _)) =
            plan.iter().find(|(name, _)| machine.packages.debs.get(name).is_some_and(|state| state.held))
    {
        return ran(
            100,
            &format!("{name}\nE: Held packages were changed and -y was used without --allow-change-held-packages.\n"),
        );
    }
    if asked.flags.contains("--download-only") {
        let Some(folder) = &asked.folder else { return ran(0, "") };
        // With --reinstall, installed packages are downloaded as well.
        let again = asked.targets.iter().filter_map(|target| target.split_once('='));
        let again = again.map(|(name, version)| (name.to_owned(), version.to_owned()));
        for (name, version) in plan.into_iter().chain(again).collect::<BTreeSet<_>>() {
            let path = format!("{folder}/{name}_{}_all.deb", version.replace(':', "%3a"));
            machine.put(&path, &file(&name, &version), 0o644);
        }
        return ran(0, "Download complete and in download only mode\n");
    }
    if machine.stat(JOURNAL).is_some() {
        return ran(
            100,
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.\n",
        );
    }
    let named: BTreeSet<String> = asked.targets.iter().filter_map(|target| name_of(machine, target)).collect();
    for (name, version) in &plan {
        unpack(machine, name, version);
        if named.contains(name) {
            machine.packages.auto.remove(name);
        } else {
            machine.packages.auto.insert(name.clone());
        }
    }
    let configured = configure(machine);
    if configured.ok() {
        ran(0, "Setting up\n")
    } else {
        ran(100, &format!("{}E: Sub-process /usr/bin/dpkg returned an error code (1)\n", configured.tail))
    }
}

fn name_of(machine: &Machine, target: &str) -> Option<String> {
    match target.split_once('=') {
        Some((name, _)) if !target.contains('/') => Some(name.to_owned()),
        _ => identify(machine, target).map(|(name, _)| name),
    }
}

fn unpack(machine: &mut Machine, name: &str, version: &str) {
    machine.packages.debs.remove(name);
    machine.packages.half.insert(name.to_owned(), version.to_owned());
    if let Some(release) = name.strip_prefix("linux-image-") {
        kernel::bring(machine, release);
    }
}

fn take(machine: &mut Machine, name: &str) {
    machine.packages.debs.remove(name);
    machine.packages.half.remove(name);
    machine.packages.auto.remove(name);
    if let Some(release) = name.strip_prefix("linux-image-") {
        kernel::take(machine, release);
    }
}

fn purge(machine: &mut Machine, asked: &Asked<'_>) -> ProgramResult {
    let mut going: BTreeSet<String> = asked.targets.iter().map(|name| (*name).to_owned()).collect();
    // Packages that need one of them are removed with it.
    loop {
        let packages = &machine.packages;
        let needing =
            |name: &&String| !going.contains(*name) && packages.needs(name).iter().any(|need| going.contains(need));
        let Some(next) = packages.debs.keys().find(needing).cloned() else { break };
        going.insert(next);
    }
    let there: BTreeMap<&String, bool> = going
        .iter()
        .map(|name| (name, machine.packages.debs.contains_key(name) || machine.packages.half.contains_key(name)))
        .collect();
    if let Some((name, _)) = there.iter().find(|(_, there)| !**there) {
        return ran(100, &format!("E: Unable to locate package {name}\n"));
    }
    if asked.flags.contains("--simulate") {
        return ran(0, &going.iter().map(|name| format!("Purg {name} [1]\n")).collect::<String>());
    }
    for name in &going {
        take(machine, name);
    }
    ran(0, "Removing\n")
}

//! rpm and dnf on a host in memory, as far as the method `rpm` uses them.

use std::collections::BTreeSet;

use super::{Asked, asked, file, identify, kernel, ran};
use crate::system::ProgramResult;
use crate::system::memory::Machine;

pub(super) fn run(machine: &mut Machine, program: &str, arguments: &[&str]) -> Option<ProgramResult> {
    Some(match (program, arguments) {
        ("rpm", ["-q", "--qf", _, names @ ..]) => query(machine, names),
        ("rpm", ["-qp", .., path]) => match identify(machine, path) {
            Some((name, version)) => ran(0, &format!("{name} {version}\n")),
            None => ran(1, &format!("error: {path}: not an rpm package\n")),
        },
        ("rpm", ["--eval", text]) => {
            let mut quoted = text.split('\'').skip(1).step_by(2);
            let newer = quoted.next().unwrap_or_default() > quoted.next().unwrap_or_default();
            ran(0, if newer { "1\n" } else { "-1\n" })
        }
        ("rpm", ["-e", "--test", names @ ..]) => {
            let (_, needing) = going(machine, names);
            let said: String =
                needing.iter().map(|name| format!("\tx is needed by (installed) {name}-1-1.noarch\n")).collect();
            ran(i32::from(!said.is_empty()), &said)
        }
        ("rpm", ["-e", rest @ ..]) => {
            for name in rest.iter().filter(|name| !name.starts_with('-')) {
                take(machine, name);
            }
            ran(0, "")
        }
        ("rpm", ["-U" | "-i", rest @ ..]) => install(
            machine,
            &Asked { targets: rest.iter().copied().filter(|it| !it.starts_with('-')).collect(), ..Asked::default() },
        ),
        ("dnf", _) => {
            let asked = asked(arguments);
            match asked.verb {
                "install" | "reinstall" => install(machine, &asked),
                "remove" => remove(machine, &asked),
                // This host does not record which packages were installed by name.
                "repoquery" => ran(1, "No such command\n"),
                "mark" => ran(0, ""),
                _ => ran(1, "No such command\n"),
            }
        }
        _ => return None,
    })
}

/// Interrupts the program: the new version of the first package is installed beside the old one.
pub(super) fn run_half(machine: &mut Machine, program: &str, arguments: &[&str]) {
    let asked = match (program, arguments) {
        ("dnf", _) => asked(arguments),
        _ => return,
    };
    if asked.verb == "install" && !asked.flags.contains("--downloadonly") {
        if let Ok(plan) = plan(machine, &asked)
            && let Some((name, version)) = plan.into_iter().next()
        {
            put(machine, &name, &version);
        }
    } else if asked.verb == "remove"
        && let Some(name) = asked.targets.first()
    {
        take(machine, name);
    }
}

/// Name and version, or the name alone.
fn parts(spec: &str) -> Option<(String, String)> {
    let mut parts = spec.rsplitn(3, '-');
    let (release, version, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some((name.to_owned(), format!("{version}-{release}")))
}

/// The package of a name, or of a name with a version, and its versions.
fn meant(machine: &Machine, spec: &str) -> Option<(String, Vec<String>)> {
    if let Some(versions) = machine.packages.rpms.get(spec) {
        return Some((spec.to_owned(), versions.iter().cloned().collect()));
    }
    let (name, version) = parts(spec)?;
    machine.packages.rpms.get(&name)?.contains(&version).then(|| (name, vec![version]))
}

fn query(machine: &Machine, specs: &[&str]) -> ProgramResult {
    let (mut lines, mut missing) = (String::new(), 0);
    for spec in specs {
        match meant(machine, spec) {
            Some((name, versions)) => lines.extend(versions.iter().map(|version| format!("{name} {version}\n"))),
            None => {
                missing += 1;
                lines.push_str(&format!("package {spec} is not installed\n"));
            }
        }
    }
    ran(missing, &lines)
}

fn plan(machine: &Machine, asked: &Asked<'_>) -> Result<Vec<(String, String)>, ProgramResult> {
    let packages = &machine.packages;
    let mut plan: Vec<(String, String)> = Vec::new();
    for target in &asked.targets {
        let is = if target.contains('/') {
            identify(machine, target)
        } else {
            parts(target).filter(|(name, version)| packages.offers(name, version))
        };
        match is {
            Some(is) => plan.push(is),
            None => return Err(ran(1, &format!("Error: Unable to find a match: {target}\n"))),
        }
    }
    let mut at = 0;
    while at < plan.len() {
        for need in packages.needs(&plan[at].0) {
            if packages.rpms.contains_key(need) || plan.iter().any(|(planned, _)| planned == need) {
                continue;
            }
            let Some(version) = packages.newest(need) else {
                return Err(ran(1, &format!("Error: \n - nothing provides {need} needed by {}\n", plan[at].0)));
            };
            plan.push((need.clone(), if version.contains('-') { version } else { format!("{version}-1") }));
        }
        at += 1;
    }
    if asked.verb != "reinstall" {
        plan.retain(|(name, version)| packages.rpms.get(name).is_none_or(|versions| !versions.contains(version)));
    }
    Ok(plan)
}

fn install(machine: &mut Machine, asked: &Asked<'_>) -> ProgramResult {
    let plan = match plan(machine, asked) {
        Ok(plan) => plan,
        Err(ran) => return ran,
    };
    if asked.flags.contains("--assumeno") {
        if plan.is_empty() {
            return ran(0, "Nothing to do.\n");
        }
        let (new, old): (Vec<_>, Vec<_>) = plan.iter().partition(|(name, _)| !machine.packages.rpms.contains_key(name));
        let lines = |of: Vec<&(String, String)>| {
            of.iter().map(|(name, version)| format!(" {name} noarch {version} t 1 k\n")).collect::<String>()
        };
        return ran(1, &format!("Installing:\n{}Upgrading:\n{}\nOperation aborted.\n", lines(new), lines(old)));
    }
    if asked.flags.contains("--downloadonly") {
        if asked.flags.contains("--cacheonly") {
            return ran(1, "Error: Cannot download\n");
        }
        for (name, version) in &plan {
            if let Some(folder) = &asked.folder {
                machine.put(&format!("{folder}/{name}-{version}.noarch.rpm"), &file(name, version), 0o644);
            }
        }
        return ran(0, "Complete!\n");
    }
    for (name, version) in &plan {
        if machine.packages.is_broken(name, version) {
            return ran(1, &format!("Error: Transaction failed\nerror: {name} scriptlet failed\n"));
        }
        if !is_kernel(name) {
            machine.packages.rpms.remove(name);
        }
        put(machine, name, version);
    }
    ran(0, "Complete!\n")
}

fn is_kernel(name: &str) -> bool {
    name.starts_with("kernel")
}

fn put(machine: &mut Machine, name: &str, version: &str) {
    machine.packages.rpms.entry(name.to_owned()).or_default().insert(version.to_owned());
    if is_kernel(name) {
        kernel::bring(machine, version);
    }
}

fn take(machine: &mut Machine, spec: &str) {
    let Some((name, versions)) = meant(machine, spec) else { return };
    for version in versions {
        if is_kernel(&name) {
            kernel::take(machine, &version);
        }
        if let Some(left) = machine.packages.rpms.get_mut(&name) {
            left.remove(&version);
        }
    }
    machine.packages.rpms.retain(|_, versions| !versions.is_empty());
}

/// The packages removed together with these, and those of them that were not named.
fn going(machine: &Machine, names: &[&str]) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut going: BTreeSet<String> = names.iter().filter_map(|name| Some(meant(machine, name)?.0)).collect();
    let named = going.clone();
    loop {
        let packages = &machine.packages;
        let needing =
            |name: &&String| !going.contains(*name) && packages.needs(name).iter().any(|need| going.contains(need));
        let Some(next) = packages.rpms.keys().find(needing).cloned() else { break };
        going.insert(next);
    }
    let needing = going.difference(&named).cloned().collect();
    (going, needing)
}

fn remove(machine: &mut Machine, asked: &Asked<'_>) -> ProgramResult {
    let (going, needing) = going(machine, &asked.targets);
    if asked.flags.contains("--assumeno") {
        if going.is_empty() {
            return ran(0, "Nothing to do.\n");
        }
        return ran(
            1,
            &format!(
                "Removing:\n{}\nOperation aborted.\n",
                going.iter().map(|name| format!(" {name} noarch 1 @t 1\n")).collect::<String>()
            ),
        );
    }
    for name in asked.targets.iter().map(|name| (*name).to_owned()).chain(needing) {
        take(machine, &name);
    }
    ran(0, "Complete!\n")
}

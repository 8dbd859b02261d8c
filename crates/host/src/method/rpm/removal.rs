//! Queries about packages to remove, and the removal of versions that an interrupted transaction left.

use std::collections::BTreeSet;

use super::{MethodContext, MethodError, PackageManager as _, Rpm, look, packages, patiently};

/// Our dependencies that somebody installed by name since: they are no longer ours.
pub(super) fn wanted_for_themselves(
    work: &MethodContext<'_>,
    pulled: &BTreeSet<String>,
) -> Result<BTreeSet<String>, MethodError> {
    if pulled.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut argv = vec!["dnf", "repoquery", "--quiet", "--cacheonly", "--userinstalled", "--queryformat=%{name}"];
    argv.extend(pulled.iter().map(String::as_str));
    let ran = look::<Rpm>(work, &argv)?;
    // Some versions of dnf have the command only as a plugin; without it dependencies are removed only if no other package needs them.
    Ok(if ran.ok() { ran.stdout.lines().map(|line| line.trim().to_owned()).collect() } else { BTreeSet::new() })
}

/// A transaction that was interrupted between unpacking the new version and removing the old one leaves both.
pub(super) fn remove_doubles(work: &mut MethodContext<'_>, name: &str, version: &str) -> Result<(), MethodError> {
    let there = Rpm::installed(work.system, std::iter::once(&name.to_owned()))?;
    let Some(versions) = there.get(name).filter(|versions| versions.contains(version)) else { return Ok(()) };
    for double in versions.iter().filter(|other| *other != version) {
        work.say(format!("removing {name} {double}, which an interrupted transaction left"));
        let ran = patiently::<Rpm>(work, &["rpm", "-e", "--nodeps", "--noscripts", &format!("{name}-{double}")])?;
        if !ran.ok() {
            return Err(MethodError(format!(
                "cannot remove {name} {double}, left by an interrupted transaction: {}",
                packages::explain::<Rpm>(&ran)
            )));
        }
    }
    Ok(())
}

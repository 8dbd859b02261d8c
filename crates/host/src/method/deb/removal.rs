//! Queries about packages to remove, and the removal of kernels.

use std::collections::BTreeSet;

use super::apt::answers;
use super::{
    Deb, MethodContext, MethodError, Package, PackageManager as _, Record, allow_services, ended, look, packages,
};

/// The packages that dpkg knows in any state but removed: this includes half-installed packages and those with remaining configuration.
pub(super) fn known<'a>(
    work: &MethodContext<'_>,
    names: impl Iterator<Item = &'a String>,
) -> Result<BTreeSet<String>, MethodError> {
    let mut argv = vec!["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n"];
    argv.extend(names.map(String::as_str));
    if argv.len() == 3 {
        return Ok(BTreeSet::new());
    }
    let ran = look::<Deb>(work, &argv)?;
    // Exit status 1 means that a package is unknown; 2 is an error.
    if !matches!(ran.status, Some(0 | 1)) {
        return Err(MethodError(format!("dpkg-query {}", ended(&ran))));
    }
    let line = |line: &str| {
        let (name, state) = line.split_once(' ')?;
        (state != "not-installed").then(|| name.to_owned())
    };
    Ok(ran.stdout.lines().filter_map(line).collect())
}

/// Our dependencies that somebody marked as manually installed since: they are no longer ours.
pub(super) fn wanted_for_themselves(
    work: &MethodContext<'_>,
    pulled: &BTreeSet<String>,
) -> Result<BTreeSet<String>, MethodError> {
    let mut argv = vec!["apt-mark", "showmanual"];
    argv.extend(pulled.iter().map(String::as_str));
    if argv.len() == 2 {
        return Ok(BTreeSet::new());
    }
    let ran = look::<Deb>(work, &argv)?;
    if !ran.ok() {
        // Asked about an unknown package, apt-mark reports none of the others: they are removed only if no other package needs them.
        return Ok(BTreeSet::new());
    }
    Ok(ran.stdout.lines().map(|line| line.trim().to_owned()).collect())
}

/// Removes kernels that no rollback needs, but never the running one.
pub(in crate::method) fn drop_obsolete(
    work: &mut MethodContext<'_>,
    kept: &[Package],
    running: &str,
) -> Result<(), MethodError> {
    let mut record = Record::load(work, Deb::RECORD)?;
    let declared: Vec<_> = kept.iter().chain([work.package]).filter_map(Deb::declared).collect();
    let needed = |name: &String| declared.iter().any(|declared| declared.packages.contains_key(name));
    let mut obsolete: BTreeSet<String> = record.before.keys().filter(|name| !needed(name)).cloned().collect();
    if obsolete.is_empty() {
        return Ok(());
    }
    let image = format!("/boot/vmlinuz-{running}");
    let owner = look::<Deb>(work, &["dpkg-query", "--search", &image])?;
    if let Some((owner, _)) = owner.stdout.split_once(':') {
        obsolete.remove(owner);
    }
    allow_services(work)?;
    packages::take_away::<Deb>(work, &mut record, &obsolete, &BTreeSet::new())
}

/// Debian's kernel packages ask before the running kernel is removed, and take no answer for no. The caller has made sure that another kernel boots.
pub(in crate::method) fn allow_running_kernel(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let path = format!("{}/linux-check-removal", answers(work));
    work.system.write(&path, b"#!/bin/sh\nexit 0\n", 0o755, "root", "root").map_err(MethodError::io(&path))
}

//! Calls of dnf and rpm: their options, their output, and what to do when they fail.

use std::collections::BTreeSet;

use super::{MethodContext, MethodError, RemovalEffects, Rpm, Target, look, packages};

/// Options of every call of dnf.
pub(super) fn options(work: &MethodContext<'_>) -> Vec<&'static str> {
    let mut options = vec![
        "--assumeyes",
        "--setopt=install_weak_deps=False",
        // Only packages that we installed are removed.
        "--setopt=clean_requirements_on_remove=False",
        // No kernel is removed to make room for another.
        "--setopt=installonly_limit=0",
        "--setopt=protect_running_kernel=False",
        "--setopt=strict=True",
        "--setopt=keepcache=False",
    ];
    if work.offline {
        options.push("--cacheonly");
    }
    options
}

/// The effects of installing packages, as dnf predicts them.
pub(super) fn simulate(
    work: &mut MethodContext<'_>,
    verb: &str,
    targets: &[Target],
) -> Result<RemovalEffects, MethodError> {
    let mut argv = vec!["dnf", verb, "--assumeno"];
    argv.extend(options(work).into_iter().filter(|option| *option != "--assumeyes"));
    argv.extend(targets.iter().map(|target| target.path.as_str()));
    asked(work, &argv)
}

/// The packages that would be removed together with these.
pub(super) fn would_remove(
    work: &mut MethodContext<'_>,
    names: &BTreeSet<String>,
    dnf: bool,
) -> Result<RemovalEffects, MethodError> {
    let mut argv = if dnf { vec!["dnf", "remove", "--assumeno", "--cacheonly"] } else { vec!["rpm", "-e", "--test"] };
    if dnf {
        argv.extend(options(work).into_iter().filter(|option| *option != "--assumeyes" && *option != "--cacheonly"));
        argv.extend(names.iter().map(String::as_str));
        return asked(work, &argv);
    }
    argv.extend(names.iter().map(String::as_str));
    let ran = look::<Rpm>(work, &argv)?;
    let mut removes: BTreeSet<String> = names.clone();
    if !ran.ok() {
        let needing = needing(&ran.tail);
        if needing.is_empty() {
            return Err(MethodError(packages::explain::<Rpm>(&ran)));
        }
        removes.extend(needing);
    }
    Ok(RemovalEffects { removes, installs: BTreeSet::new() })
}

/// Parses `X is needed by (installed) NAME-VERSION-RELEASE.ARCH`.
fn needing(said: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let (_, full) = line.trim().split_once("is needed by (installed) ")?;
        let mut parts = full.rsplitn(3, '-');
        let (_release, _version, name) = (parts.next()?, parts.next()?, parts.next()?);
        Some(name.to_owned())
    };
    said.lines().filter_map(name).collect()
}

/// dnf prints a table of the transaction, and exits with 1 because it was not confirmed.
fn asked(work: &mut MethodContext<'_>, argv: &[&str]) -> Result<RemovalEffects, MethodError> {
    let ran = look::<Rpm>(work, argv)?;
    if !ran.ok() && !ran.tail.contains("Operation aborted") {
        work.log.push(&ran.tail);
        return Err(MethodError(packages::explain::<Rpm>(&ran)));
    }
    Ok(effects(&ran.stdout))
}

/// Parses dnf's table: a heading without indentation, then a line with one blank of indentation for each package.
fn effects(said: &str) -> RemovalEffects {
    let mut effects = RemovalEffects { removes: BTreeSet::new(), installs: BTreeSet::new() };
    let mut heading = "";
    for line in said.lines() {
        if !line.starts_with(' ') {
            heading = line.trim();
            continue;
        }
        // Lines with more indentation continue the line before, or name a replaced package.
        if line.starts_with("  ") {
            if let Some(replaced) =
                line.trim().strip_prefix("replacing ").and_then(|rest| rest.split_whitespace().next())
            {
                effects.removes.insert(replaced.rsplit_once('.').map_or(replaced, |(name, _)| name).to_owned());
            }
            continue;
        }
        let Some(name) = line.split_whitespace().next() else { continue };
        if heading.starts_with("Installing") {
            effects.installs.insert(name.to_owned());
        } else if heading.starts_with("Removing") {
            effects.removes.insert(name.to_owned());
        }
    }
    effects
}

/// What to do after a failure of dnf or rpm with that output.
pub(super) fn advice(said: &str) -> &'static str {
    let any = |signs: &[&str]| signs.iter().any(|sign| said.contains(sign));
    if any(&["No space left on device", "needs more space on", "At least"]) && said.contains("space") {
        "the disk is full: free disk space"
    } else if any(&["Unable to find a match", "No match for argument"]) {
        "not found in the repositories of this host: correct the version (VERSION-RELEASE), add the repository, or add the files to `sources`"
    } else if any(&["nothing provides", "is needed by", "conflicting requests"]) {
        "its dependencies are not available: add the files to `sources`, or a repository to the host"
    } else if any(&["Public key for", "GPG check FAILED"]) {
        "its signature is by an untrusted key: import the key, or check where the package comes from"
    } else if any(&["Cannot download", "Failed to download", "Curl error", "Could not resolve host"]) {
        "the host cannot reach a repository"
    } else {
        "see the output"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_dnf_would_do_is_read_from_its_table() {
        let said = "Dependencies resolved.\n====\n Package  Arch  Version\n====\nInstalling:\n demo   noarch  1.0-1  t  6.1 k\n     replacing  old-demo.noarch 0.9-1\n\
                    Installing dependencies:\n a-very-long-name-that-is-alone-on-its-line\n       noarch 1.0-1 t 6.2 k\nDowngrading:\n lower noarch 1 t 1 k\n\
                    Removing dependent packages:\n gone noarch 1 @t 3\n\nTransaction Summary\n====\nInstall  2 Packages\n";
        let effects = effects(said);
        assert_eq!(effects.installs, names(&["demo", "a-very-long-name-that-is-alone-on-its-line"]));
        assert_eq!(effects.removes, names(&["old-demo", "gone"]));
    }

    #[test]
    fn who_needs_a_package_is_read_from_what_rpm_says() {
        let said = "error: Failed dependencies:\n\tdemo-lib is needed by (installed) demo-tool-1.0-1.noarch\n";
        assert_eq!(needing(said), names(&["demo-tool"]));
    }
}

//! Calls of apt-get and apt-mark: their options, their output, and what to do when they fail.

use std::collections::BTreeSet;

use super::{Deb, MethodContext, MethodError, RemovalEffects, ended, look, packages, patiently};

/// Directory of programs that answer prompts instead of a person, below that of the record.
pub(super) const ANSWERS: &str = "answers";

/// Options of every call of apt-get.
pub(super) fn options(work: &mut MethodContext<'_>) -> Result<Vec<String>, MethodError> {
    // apt creates this directory only in its own archives.
    let partial = format!("{}/partial/.made", packages::archives::<Deb>(work));
    if work.system.stat(&partial).map_err(MethodError::io(&partial))?.is_none() {
        work.system.write(&partial, b"", 0o600, "root", "root").map_err(MethodError::io(&partial))?;
    }
    let left = work.left()?.as_secs().max(1);
    let mut options: Vec<String> =
        ["--yes", "--quiet", "--no-install-recommends"].iter().map(|option| (*option).to_owned()).collect();
    for setting in [
        "Dpkg::Use-Pty=0".to_owned(),
        "Dpkg::Options::=--force-confdef".to_owned(),
        "Dpkg::Options::=--force-confold".to_owned(),
        format!("DPkg::Lock::Timeout={left}"),
        format!("Dir::Cache::archives={}/", packages::archives::<Deb>(work)),
        "APT::Keep-Downloaded-Packages=true".to_owned(),
        // Our directories are readable by root alone.
        "APT::Sandbox::User=root".to_owned(),
        "Acquire::Retries=2".to_owned(),
        "Acquire::http::Timeout=30".to_owned(),
        "Acquire::https::Timeout=30".to_owned(),
    ] {
        options.extend(["-o".to_owned(), setting]);
    }
    if work.offline {
        // Without sources apt uses only files on the host: `--no-download` would also refuse files named on the command line.
        for setting in [
            "Dir::Etc::SourceList=/dev/null",
            "Dir::Etc::SourceParts=/dev/null",
            "Dir::Cache::pkgcache=",
            "Dir::Cache::srcpkgcache=",
        ] {
            options.extend(["-o".to_owned(), setting.to_owned()]);
        }
    }
    let answers = answers(work);
    if work.system.stat(&answers).map_err(MethodError::io(&answers))?.is_some() {
        options.extend(["-o".to_owned(), format!("DPkg::Path={answers}:/usr/sbin:/usr/bin:/sbin:/bin")]);
    }
    Ok(options)
}

/// The effects of an apt-get call, as apt-get simulates them.
pub(super) fn simulate(work: &mut MethodContext<'_>, argv: &[&str]) -> Result<RemovalEffects, MethodError> {
    let mut asked = argv.to_vec();
    if !asked.contains(&"--simulate") {
        asked.insert(2, "--simulate");
    }
    let ran = look::<Deb>(work, &asked)?;
    if !ran.ok() {
        work.log.push(&ran.tail);
        return Err(MethodError(packages::explain::<Deb>(&ran)));
    }
    Ok(effects(&ran.stdout))
}

/// Parses `Inst NAME [OLD] (NEW …)`, `Remv NAME [OLD]` and `Purg NAME [OLD]`. An upgrade counts neither as installed nor as removed.
fn effects(said: &str) -> RemovalEffects {
    let mut effects = RemovalEffects { removes: BTreeSet::new(), installs: BTreeSet::new() };
    for line in said.lines() {
        let mut words = line.split(' ');
        let (Some(verb), Some(name)) = (words.next(), words.next()) else { continue };
        match verb {
            "Inst" if !words.next().is_some_and(|word| word.starts_with('[')) => {
                effects.installs.insert(name.to_owned())
            }
            "Remv" | "Purg" => effects.removes.insert(name.to_owned()),
            _ => continue,
        };
    }
    effects
}

/// What to do after a failure of apt-get or dpkg with that output.
pub(super) fn advice(said: &str) -> &'static str {
    if said.contains("No space left on device") {
        "the disk is full: free disk space"
    } else if said.contains("Read-only file system") {
        "the file system is read-only: see the kernel log"
    } else if said.contains("held packages were changed") || said.contains("you have held broken packages") {
        "held packages block it, or its dependencies are not available: see `apt-mark showhold` and the output"
    } else if said.contains("unmet dependencies") {
        "its dependencies are not available: add the files to `sources`, or a repository to the host"
    } else if ["Unable to locate package", "was not found", "has no installation candidate"]
        .iter()
        .any(|sign| said.contains(sign))
    {
        "not found in the repositories of this host: correct the version, add the repository, or add the files to `sources`"
    } else if said.contains("installation script subprocess returned error") {
        "the package's maintainer script failed: see the output"
    } else if ["Temporary failure resolving", "Could not connect", "Failed to fetch", "Could not resolve"]
        .iter()
        .any(|sign| said.contains(sign))
    {
        "the host cannot reach a repository"
    } else {
        "see the output"
    }
}

pub(super) fn mark(work: &mut MethodContext<'_>, verb: &str, names: &[&str]) -> Result<(), MethodError> {
    let mut argv = vec!["apt-mark", verb];
    argv.extend(names);
    let ran = patiently::<Deb>(work, &argv)?;
    if ran.ok() {
        return Ok(());
    }
    Err(MethodError(format!("apt-mark {verb} {} {}", names.join(" "), ended(&ran))))
}

pub(super) fn answers(work: &MethodContext<'_>) -> String {
    format!("{}/{ANSWERS}", work.folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_would_do_is_read_from_its_own_words() {
        let effects = effects(
            "Reading package lists...\nInst demo-lib (1.0 localhost [all])\nInst demo [3.0] (1.0 localhost [all])\nRemv gone [2]\nPurg away [1]\nConf demo (1.0)\n",
        );
        assert_eq!(effects.installs, BTreeSet::from(["demo-lib".to_owned()]));
        assert_eq!(effects.removes, BTreeSet::from(["gone".to_owned(), "away".to_owned()]));
    }
}

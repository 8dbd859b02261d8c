//! Scripts: the declared check decides whether anything is done.

use std::time::Duration;

use fleetwright_wire::{self as wire, Deviation, Package};

use super::{Method, MethodContext, MethodError, ended};
use crate::System;
use crate::system::{ProgramResult, ProgramRun};

/// Timeout of a check, which changes nothing; one that takes longer is stuck.
const CHECK_WITHIN: Duration = Duration::from_secs(60);

/// The method `script`; see the module.
pub(super) struct Script;

impl Method for Script {
    fn version(&self, _system: &dyn System, _package: &Package) -> Result<Option<String>, MethodError> {
        Ok(None)
    }

    fn deviations(&self, system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
        let ran = system
            .look(&ProgramRun { argv: SHELL, input: script(package)?.check.as_bytes(), env: &[], within: CHECK_WITHIN })
            .map_err(MethodError::io("cannot run the check"))?;
        if ran.ok() {
            return Ok(Vec::new());
        }
        Ok(vec![Deviation {
            what: "check".to_owned(),
            found: ended(&ran),
            wanted: "exited with 0".to_owned(),
            disrupts: false,
        }])
    }

    fn prepare(&self, _work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        Ok(())
    }

    /// A script may use the package's files.
    fn after_files(&self) -> bool {
        true
    }

    fn apply(&self, work: &mut MethodContext<'_>) -> Result<bool, MethodError> {
        let script = script(work.package)?;
        if run(work, "check", &script.check)?.ok() {
            return Ok(false);
        }
        work.say("running apply");
        let ran = run(work, "apply", &script.apply)?;
        if !ran.ok() {
            return Err(MethodError(format!("apply {}", ended(&ran))));
        }
        let ran = run(work, "check", &script.check)?;
        if !ran.ok() {
            return Err(MethodError(format!("apply exited with 0, but the check after it {}", ended(&ran))));
        }
        Ok(true)
    }

    fn remove(&self, work: &mut MethodContext<'_>) -> Result<(), MethodError> {
        let script = script(work.package)?;
        if script.remove.trim().is_empty() {
            return Ok(());
        }
        work.say("running remove");
        let ran = run(work, "remove", &script.remove)?;
        if ran.ok() { Ok(()) } else { Err(MethodError(format!("remove {}", ended(&ran)))) }
    }
}

/// The script is read from standard input: it may contain secrets, and every user of the host can read arguments. It is read completely before it
/// runs, so that no program in it can consume the rest.
pub(crate) const SHELL: &[&str] = &["/bin/sh", "-eu", "-c", r#"eval "$(cat)""#];

fn run(work: &mut MethodContext<'_>, what: &str, script: &str) -> Result<ProgramResult, MethodError> {
    work.log.push(&format!("── {what}"));
    work.run(SHELL, script.as_bytes(), &[])
}

fn script(package: &Package) -> Result<&wire::Script, MethodError> {
    match &package.method {
        wire::Method::Script(script) => Ok(script),
        _ => Err(MethodError(format!("{} declares no script", package.reference))),
    }
}

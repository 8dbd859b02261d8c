//! Programs of this machine, run to their end.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program and gives its standard output; the error has what it said.
pub(crate) fn call<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    told(command)
}

/// Runs a command that was prepared and gives its standard output; the error has what it said.
pub(crate) fn told(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let tail = said.char_indices().rev().nth(4000).map_or(0, |(place, _)| place);
        bail!("{:?} ended with {}: {}", command, output.status, said[tail..].trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs blocking work where it does not hold up others.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("the work panicked")?
}

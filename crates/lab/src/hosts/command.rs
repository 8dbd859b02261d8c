//! Programs of this machine, run to their end.

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::process::{Command, Output, Stdio};

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
    judged(&command, output)
}

/// The same, with something to read on its standard input. It should not say much before it has read all.
pub(crate) fn fed(mut command: Command, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let mut input = BufWriter::with_capacity(1 << 20, child.stdin.take().context("it has no input")?);
    let written = write(&mut input).and_then(|()| Ok(input.flush()?));
    // Not flushed once more: whoever gave up does not read.
    drop(input.into_parts());
    let output = child.wait_with_output()?;
    // What the command says of itself tells more than a pipe that nobody reads.
    judged(&command, output).and_then(|said| written.map(|()| said))
}

fn judged(command: &Command, output: Output) -> Result<String> {
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

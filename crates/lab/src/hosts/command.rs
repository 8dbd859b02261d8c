//! Programs of this machine, run to their end.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufWriter, Write};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// So often a program is looked at whether it is stopped.
const STOPPED: Duration = Duration::from_millis(250);

/// Runs a program and gives its standard output; the error has what it said.
pub(crate) fn call<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    told(command)
}

/// Runs a command that was prepared and gives its standard output; the error has what it said.
pub(crate) fn told(mut command: Command) -> Result<String> {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let output = awake(child.id(), || child.wait_with_output())?;
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
    let output = awake(child.id(), || child.wait_with_output())?;
    // What the command says of itself tells more than a pipe that nobody reads.
    judged(&command, output).and_then(|said| written.map(|()| said))
}

/// Lets a child go on whenever it is stopped. A host that shuts down stops all programs in it for a moment; `nsenter` then stops as well, nobody
/// would let it go on, and the host waits for it.
fn awake<T>(child: u32, work: impl FnOnce() -> T) -> T {
    let (working, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(STOPPED) == Err(RecvTimeoutError::Timeout) {
                let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
                if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
                    // Gone meanwhile, at worst.
                    let _ = Command::new("kill").args(["-CONT", &child.to_string()]).status();
                }
            }
        });
        let result = work();
        drop(working);
        result
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_stopped_goes_on() {
        assert_eq!(call("sh", ["-c", "kill -STOP $$; echo on"]).unwrap(), "on\n");
        let mut command = Command::new("sh");
        command.args(["-c", "kill -STOP $$; cat"]);
        assert_eq!(fed(command, |input| Ok(input.write_all(b"on")?)).unwrap(), "on");
    }
}

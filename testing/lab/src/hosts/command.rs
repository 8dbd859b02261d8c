//! Programs of this machine, run until they exit.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufWriter, Write};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The interval of checks whether a program is stopped by a signal.
const STOPPED: Duration = Duration::from_millis(250);

/// Runs a program and returns its standard output; the error has its output.
pub(crate) fn call<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    told(command)
}

/// Runs a prepared command and returns its standard output; the error has its output.
pub(crate) fn told(mut command: Command) -> Result<String> {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let output = awake(child.id(), || child.wait_with_output())?;
    judged(&command, output)
}

/// The same, with data for its standard input. The command should not write much output before it has read all input.
pub(crate) fn fed(mut command: Command, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let mut input = BufWriter::with_capacity(1 << 20, child.stdin.take().context("it has no input")?);
    let written = write(&mut input).and_then(|()| Ok(input.flush()?));
    // Dropped without a flush: a command that has exited does not read.
    drop(input.into_parts());
    let output = awake(child.id(), || child.wait_with_output())?;
    // The command's own error message explains more than a broken pipe.
    judged(&command, output).and_then(|said| written.map(|()| said))
}

/// Resumes a child whenever it is stopped. A host that shuts down stops all programs in it for a moment; `nsenter` then stops as well, nothing
/// else would resume it, and the host waits for it.
fn awake<T>(child: u32, work: impl FnOnce() -> T) -> T {
    let (working, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(STOPPED) == Err(RecvTimeoutError::Timeout) {
                let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
                if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
                    // At worst the child has exited meanwhile.
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

/// Runs blocking work on a thread for it.
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

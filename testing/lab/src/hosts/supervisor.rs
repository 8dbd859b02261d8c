//! The process that owns a host: it reads commands from its standard input, and ends with it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const END: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Supervisor {
    name: String,
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Supervisor {
    pub(crate) fn start(name: &str, mut command: Command) -> Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // In its own process group, so that a signal to the test's group does not end it before its cleanup.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start the supervisor of {name}"))?;
        let answers = BufReader::new(process.stdout.take().context("the supervisor has no output")?);
        Ok(Self { name: name.to_owned(), process, answers })
    }

    /// The process id, whose namespaces are the host's.
    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command and waits until it is done.
    pub(crate) fn send_command(&mut self, command: &str) -> Result<()> {
        let input = self.process.stdin.as_mut().context("the supervisor has no input")?;
        input.write_all(format!("{command}\n").as_bytes()).with_context(|| format!("{} does not run", self.name))?;
        self.answer(command)
    }

    /// Waits for the answer to this command.
    pub(crate) fn answer(&mut self, to: &str) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim() {
            "ok" => Ok(()),
            "" => bail!("{to}: the supervisor of {} ended", self.name),
            said => bail!("{to}: {}: {said}", self.name),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let deadline = Instant::now() + END;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

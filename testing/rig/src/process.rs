//! Processes that tests pause, resume and kill by their id, and that never outlive the test.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A running process. Killed when dropped.
///
/// Assumptions: the program exits when its standard input closes, so that it also ends when the test is killed. A process that
/// is paused at that time is woken by the kernel, with SIGHUP, because its process group has become an orphan.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program, with its output appended to `log`.
    ///
    /// # Errors
    /// The program or the file cannot be opened.
    pub fn start(program: &str, arguments: &[String], log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log).context("cannot open a log")?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process (SIGKILL) and waits for its end. A process that had already ended is an error.
    ///
    /// # Errors
    /// The process had ended: with the last lines of its log.
    pub fn kill(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("it had ended with {status}; its last words:\n{}", self.tail());
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        match status.signal() {
            Some(9) => Ok(()),
            _ => bail!("it ended with {status} before it was killed; its last words:\n{}", self.tail()),
        }
    }

    /// Pauses the process (SIGSTOP) and returns when all its threads are stopped.
    ///
    /// # Errors
    /// The process has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal("STOP")?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.is_stopped() {
            if Instant::now() > deadline {
                bail!("process {} does not stop", self.id());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Resumes the process (SIGCONT).
    ///
    /// # Errors
    /// The process has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal("CONT")
    }

    /// Asks the process to end (SIGTERM).
    ///
    /// # Errors
    /// The process has ended.
    pub fn terminate(&self) -> Result<()> {
        self.signal("TERM")
    }

    /// The exit status, if the process has ended.
    ///
    /// # Errors
    /// The system does not report the status.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status()?;
        if status.success() { Ok(()) } else { bail!("process {} cannot be sent SIG{name}", self.id()) }
    }

    /// Whether all its threads are stopped.
    fn is_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.id())).map(|tasks| tasks.flatten().collect::<Vec<_>>());
        let stopped = |path: &Path| {
            let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
            // The state follows the name, which may contain any character and ends with the last bracket.
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        tasks.is_ok_and(|tasks| !tasks.is_empty() && tasks.iter().all(|task| stopped(&task.path())))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL also ends a paused process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

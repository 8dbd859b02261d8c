//! Child processes that never outlive this process.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Runs a command and ends it when standard input closes.
///
/// This process's end of the pipe closes when it is dropped *and* when the kernel closes it after a SIGKILL, which no
/// destructor sees. The shell leads its own process group: a signal to the test's group does not end it
/// before its cleanup. A subshell waits for the end of the pipe in `read`, a builtin, so that it leaves no process behind
/// when it is killed because the command ended by itself; it ends before the shell does.
const SUPERVISOR: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
{
  read -r _ <&3
  kill -TERM $child
  tries=0
  while [ $tries -lt 30 ] && kill -0 $child; do sleep 0.1; tries=$((tries + 1)); done
  kill -KILL $child
} >/dev/null 2>&1 &
watcher=$!
wait $child
status=$?
kill $watcher 2>/dev/null
wait $watcher 2>/dev/null
exit $status
"#;

/// Longer than the supervisor waits before it sends SIGKILL.
const END: Duration = Duration::from_secs(8);

/// A supervised process: it ends when this value is dropped, and when this process is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    supervisor: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with its output appended to a file of the folder `logs`.
    ///
    /// # Errors
    /// When the program does not exist, or its log cannot be written.
    pub fn start<A: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        logs: &Path,
    ) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).context("cannot open a log")?;
        let errors = output.try_clone().context("cannot open a log")?;
        let supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), supervisor, log })
    }

    /// The name of the process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.supervisor.try_wait()
    }

    /// The last lines of its log.
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// The log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether the log says that another process has its port.
    pub(crate) fn lost_its_port(&self) -> bool {
        self.tail().contains("address already in use")
    }

    /// Asks the process to end (SIGTERM, and SIGKILL after a timeout) without waiting.
    pub fn terminate(&mut self) {
        drop(self.supervisor.stdin.take());
    }

    /// Ends the process and waits for its exit.
    pub fn end(&mut self) {
        self.terminate();
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            match self.supervisor.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(10)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // Only for a supervisor that was paused or hangs. The process group contains it and its command.
        let group = format!("-{}", self.supervisor.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.supervisor.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(marker: &str) -> bool {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes.filter(|process| process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())).any(
            |process| {
                let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&command).contains(marker)
            },
        )
    }

    fn shell(script: &str, logs: &Path) -> Process {
        Process::start("test", Path::new("sh"), ["-c", script], logs).unwrap()
    }

    #[test]
    fn a_process_that_ends_by_itself_reports_its_status_and_leaves_nothing() {
        let logs = tempfile::tempdir().unwrap();
        let marker = format!("marker-of-{}", std::process::id());
        let mut process = shell(&format!("echo {marker}; exit 7"), logs.path());
        let deadline = Instant::now() + END;
        let status = loop {
            if let Some(status) = process.ended().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it did not end");
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(7));
        assert_eq!(process.tail(), marker);
        assert!(!running(&marker));
    }

    #[test]
    fn a_process_that_ignores_sigterm_is_killed() {
        let logs = tempfile::tempdir().unwrap();
        let marker = format!("deaf-process-of-{}", std::process::id());
        let script = format!("trap '' TERM; echo up; while :; do sleep 0.05; done # {marker}");
        let mut process = shell(&script, logs.path());
        while process.tail() != "up" {
            thread::sleep(Duration::from_millis(5));
        }
        process.end();
        assert!(!running(&marker));
    }
}

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::process;

/// A child process of a benchmark, which ends with this one.
pub struct BenchProcess(Child);

impl Drop for BenchProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl BenchProcess {
    /// Starts the process; its output is discarded.
    ///
    /// # Errors
    /// The process does not start.
    pub fn start(command: &mut Command) -> Result<Self> {
        let process = command.stdout(Stdio::null()).spawn();
        Ok(Self(process.with_context(|| format!("cannot start {}", command.get_program().display()))?))
    }

    /// Resident memory, in bytes.
    ///
    /// # Errors
    /// The process has ended.
    pub fn memory(&self) -> Result<f64> {
        Ok(process::resident(self.0.id())? as f64)
    }

    /// CPU time so far.
    ///
    /// # Errors
    /// The process has ended.
    pub fn cpu(&self) -> Result<Duration> {
        process::cpu(self.0.id())
    }
}

//! One kubectl, one server, one folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The timeout of a command in seconds.
const LIMIT: &str = "90";

/// The output of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit code.
    pub code: i32,
    /// The stdout of the command.
    pub stdout: String,
    /// The stderr of the command.
    pub stderr: String,
    /// The duration of the command.
    pub took: Duration,
}

/// A shell with a certain kubectl, configured for a certain server.
pub struct Session {
    folder: TempDir,
    path: String,
}

impl Session {
    /// Copies the files that the script uses into a folder of its own.
    pub fn new(kubectl: &Path, kubeconfig: &str, files: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("fleetwright-kubectl-").tempdir()?;
        copy(files, &folder.path().join("files"))?;
        let bin = folder.path().join("bin");
        fs::create_dir(&bin)?;
        fs::write(folder.path().join("kubeconfig"), kubeconfig)?;
        // Not a link: a kubectl that is a dispatcher looks for its fellows beside itself.
        let starter = bin.join("kubectl");
        fs::write(&starter, format!("#!/bin/sh\nexec '{}' \"$@\"\n", kubectl.display()))?;
        fs::set_permissions(&starter, fs::Permissions::from_mode(0o755))?;
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        Ok(Self { folder, path })
    }

    /// Runs one command line.
    pub async fn run(&self, line: &str) -> Result<Output> {
        let started = Instant::now();
        let output = tokio::process::Command::new("timeout")
            .args([LIMIT, "sh", "-c", line])
            .current_dir(self.folder.path().join("files"))
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.folder.path().join("kubeconfig"))
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot run {line}"))?;
        let here = self.folder.path().to_string_lossy();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(here.as_ref(), "<folder>");
        let code = output.status.code().unwrap_or(-1);
        Ok(Output { code, stdout: text(&output.stdout), stderr: text(&output.stderr), took: started.elapsed() })
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path: PathBuf = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

//! Real hosts for tests, and packages for them.

#![allow(dead_code)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use fleetwright_lab::hosts::{Network, PackageServer};
use fleetwright_wire::*;

/// A claim with that fencing token.
fn claim(fence: u64) -> Claim {
    let [cluster, namespace, name, uid] = ["lab", "fleet", "host", "machine-1"].map(str::to_owned);
    Claim { owner: Owner { cluster, namespace, name, uid }, epoch: 0, fence }
}

/// Path of the helper, which is copied before any state is compared.
const HELPER: &str = "/usr/local/lib/fleetwright-host";

/// The release build of the helper, static and small. A debug build takes a minute for each digest on an emulated machine.
fn helper() -> Result<PathBuf> {
    // target/debug/deps/hosts-…
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(3).context("this test is in no target folder")?;
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let helper = target.join("helpers").join(format!("fleetwright-host-{arch}"));
    let built = std::fs::metadata(&helper).and_then(|found| found.modified());
    let built = built.with_context(|| format!("{} is missing: run make helper", helper.display()))?;
    let changed = newest(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))?;
    ensure!(built >= changed, "{} is older than its sources: run make helper", helper.display());
    Ok(helper)
}

/// The time of the last change in a directory.
fn newest(folder: &Path) -> Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let changed =
            if entry.file_type()?.is_dir() { self::newest(&entry.path())? } else { entry.metadata()?.modified()? };
        newest = newest.max(changed);
    }
    Ok(newest)
}

/// A host that is reached by SSH, with the helper on it.
pub struct Reached {
    key: PathBuf,
    address: String,
}

impl Reached {
    /// Copies the helper to the host.
    pub fn at(network: &Network, address: impl ToString) -> Result<Self> {
        let host = Self { key: network.ssh_key_path(), address: address.to_string() };
        let put = format!("mkdir -p /usr/local/lib && cat >{HELPER} && chmod 755 {HELPER}");
        host.feed(&put, &std::fs::read(helper()?)?)?;
        Ok(host)
    }

    /// Runs a command on the host.
    pub fn run(&self, command: &str) -> Result<String> {
        self.feed(command, &[])
    }

    /// Runs a command on the host, with input.
    pub fn feed(&self, command: &str, input: &[u8]) -> Result<String> {
        let mut child = Command::new("ssh")
            .args([
                "-q",
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "ConnectTimeout=20",
                "-i",
            ])
            .arg(&self.key)
            .arg(format!("root@{}", self.address))
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("ssh")?;
        let mut stdin = child.stdin.take().context("stdin")?;
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output()?;
        let _ = writer.join();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("`{command}`: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(said)
    }

    /// Sends a request to the helper.
    pub fn ask(&self, request: &Request) -> Result<Answer> {
        let said =
            self.feed(&format!("{HELPER} serve"), format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
        Ok(serde_json::from_str(said.lines().last().context("no answer")?)?)
    }

    /// Runs a step, and returns its record.
    pub fn apply(&self, id: &str, step: Step) -> Result<StepRecord> {
        match self.ask(&Request::Apply(Box::new(Apply {
            id: id.to_owned(),
            claim: claim(1),
            step,
            within: 3000,
            unproven: false,
        })))? {
            Answer::Ended(record) => Ok(record),
            other => bail!("{id}: {other:?}"),
        }
    }

    /// Runs a step that must succeed.
    pub fn done(&self, id: &str, step: Step) -> Result<StepRecord> {
        let record = self.apply(id, step)?;
        ensure!(record.outcome == Outcome::Done, "{id}: {}\n{}", record.message, record.tail);
        Ok(record)
    }

    /// Runs a step that must fail, and returns the message.
    pub fn fails(&self, id: &str, step: Step) -> Result<String> {
        let record = self.apply(id, step)?;
        ensure!(record.outcome == Outcome::Failed, "{id}: {record:?}");
        Ok(record.message)
    }

    /// Observes a package.
    pub fn see(&self, package: &Package) -> Result<ComponentSeen> {
        self.see_all(std::slice::from_ref(package))?.into_iter().next().context("no component")
    }

    /// Observes packages, in one request.
    pub fn see_all(&self, packages: &[Package]) -> Result<Vec<ComponentSeen>> {
        let observe = Observe { packages: packages.to_vec(), health: true, ..Observe::default() };
        match self.ask(&Request::Observe(Box::new(observe)))? {
            Answer::Observed(seen) => Ok(seen.components),
            other => bail!("{other:?}"),
        }
    }

    /// The deviations of the host from a package.
    pub fn told(&self, package: &Package) -> Result<Vec<String>> {
        let seen = self.see(package)?;
        Ok(seen.deviations.iter().map(|it| format!("{}: {} / {}", it.what, it.found, it.wanted)).collect())
    }

    /// Removes all of our files.
    pub fn clean(&self) -> Result<()> {
        let answer = self.ask(&Request::Clean { claim: claim(1) })?;
        ensure!(answer == Answer::Cleaned, "{answer:?}");
        Ok(())
    }
}

/// A source on the package server.
pub fn source(server: &PackageServer, path: &str, file: &Path) -> Result<Source> {
    let published = server.publish(path, file)?;
    Ok(Source { urls: vec![published.url.clone()], inline: None, sha256: published.sha256.clone() })
}

pub fn package(component: &str, version: &str, method: Method) -> Package {
    Package {
        component: component.to_owned(),
        version: version.to_owned(),
        reference: format!("{component}-{version}"),
        method,
        keep: 1,
        ..Package::default()
    }
}

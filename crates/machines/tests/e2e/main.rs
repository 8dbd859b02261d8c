//! Tests on real hosts: bare Debian machines with sshd, a real control plane, and the operators as a process of their own.
//!
//! Run by `make e2e`, which builds what they need: `fleetwright`, its helper, Kubernetes.

mod fleet;
mod kernel;
mod lifecycle;
mod packages;
mod timeouts;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The namespace of the fleet.
const NAMESPACE: &str = "fleet";

/// The directory that cargo builds into.
fn built() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    // target/debug/deps/e2e-…
    own.parent().and_then(|deps| deps.parent()).map(PathBuf::from).context("this test is in no target folder")
}

/// The directory with the helper for hosts.
fn helpers() -> Result<PathBuf> {
    let folder = built()?.parent().context("the target folder has a parent")?.join("helpers");
    if !folder.is_dir() {
        bail!("{} is missing: run make helper", folder.display());
    }
    Ok(folder)
}

//! Executables that are built from the Go modules in `k8s/`, once, and cached.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fleetwright_pki::{Authority, Leaf};

use super::command::told;
use super::template::once;
use crate::binaries::cache;

/// The pin of `k8s/npd/go.mod`.
pub const NODE_PROBLEM_DETECTOR: &str = "1.36.0";
/// The pin of `k8s/coredns/go.mod`.
pub const COREDNS: &str = "1.14.2";
/// The Kubernetes version of the end-to-end specs: the pin of `k8s/e2e/go.mod`.
pub const SPECS: &str = "1.36.4";

pub(crate) fn node_problem_detector() -> Result<PathBuf> {
    let place = Path::new("npd").join(format!("node-problem-detector-{NODE_PROBLEM_DETECTOR}"));
    let version = format!("-X k8s.io/node-problem-detector/pkg/version.version=v{NODE_PROBLEM_DETECTOR}");
    built("npd", &place, &version, "k8s.io/node-problem-detector/cmd/nodeproblemdetector")
}

pub(crate) fn coredns() -> Result<PathBuf> {
    built("coredns", &Path::new("coredns").join(COREDNS).join("coredns"), "", "fleetwright.io/coredns")
}

/// The server that Kubernetes' specs run in pods.
pub(crate) fn agnhost() -> Result<PathBuf> {
    built("e2e", &Path::new("e2e").join(SPECS).join("agnhost"), "", "k8s.io/kubernetes/test/images/agnhost")
}

/// The folder with its TLS pair: `localhost.crt` and `localhost.key`, which are part of its image. Clients do not verify them.
pub(crate) fn agnhost_pair() -> Result<PathBuf> {
    let folder = cache()?.join("e2e").join(SPECS).join("localhost");
    once(&folder, |unfinished| {
        let pair = Authority::new("localhost")?.issue(Leaf::server(
            "localhost",
            ["localhost"],
            [Ipv4Addr::LOCALHOST.into()],
        ))?;
        fs::create_dir(unfinished)?;
        fs::write(unfinished.join("localhost.crt"), pair.cert_pem)?;
        Ok(fs::write(unfinished.join("localhost.key"), pair.key_pem)?)
    })?;
    Ok(folder)
}

/// Kubernetes' own specs of nodes, networks and workloads.
pub(crate) fn specs() -> Result<PathBuf> {
    made(&["test", "-c"], "e2e", &Path::new("e2e").join(SPECS).join("e2e.test"), "", "fleetwright.io/e2e")
}

/// Builds all missing executables: otherwise the first test that needs one builds it, within its time limit and beside other tests with one.
///
/// # Errors
/// One of them fails to build.
pub fn build_all() -> Result<()> {
    for one in [node_problem_detector, coredns, agnhost, specs] {
        one()?;
    }
    Ok(())
}

fn built(module: &str, place: &Path, flags: &str, package: &str) -> Result<PathBuf> {
    made(&["build"], module, place, flags, package)
}

fn made(how: &[&str], module: &str, place: &Path, flags: &str, package: &str) -> Result<PathBuf> {
    let binary = cache()?.join(place);
    once(&binary, |unfinished| {
        eprintln!("lab: building {package} (some minutes, once)");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s").join(module);
        let mut build = Command::new("go");
        build.current_dir(folder).env("CGO_ENABLED", "0").args(how).args(["-mod=readonly", "-trimpath", "-ldflags"]);
        build.arg(format!("-s -w {flags}")).arg("-o").arg(unfinished).arg(package);
        told(build).with_context(|| format!("cannot build {package}")).map(drop)
    })?;
    Ok(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_are_the_ones_that_the_go_modules_pin() {
        for (module, line) in [
            ("npd", format!("k8s.io/node-problem-detector v{NODE_PROBLEM_DETECTOR}")),
            ("coredns", format!("github.com/coredns/coredns v{COREDNS}")),
            ("e2e", format!("k8s.io/kubernetes v{SPECS}")),
        ] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s").join(module).join("go.mod");
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(&line), "{} has no {line}", path.display());
        }
    }
}

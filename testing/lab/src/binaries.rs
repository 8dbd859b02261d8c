use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The Kubernetes minor that tests use by default.
pub const DEFAULT_MINOR: &str = "1.37";

/// The supported minors with their versions: the pins of `k8s/<minor>/go.mod`.
const VERSIONS: [(&str, &str); 2] = [("1.37", "v1.37.1"), ("1.36", "v1.36.4")];

/// The version of etcd in each minor's Go module.
const ETCD: [(&str, &str); 2] = [("1.37", "v3.7.0"), ("1.36", "v3.6.8")];

/// A folder with the executables of Kubernetes and etcd.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Finds the executables of a minor such as `1.37`: in the folder `KUBEBUILDER_ASSETS`, otherwise in the cache that
    /// `make k8s` fills (`FLEETWRIGHT_CACHE`, by default `~/.cache/fleetwright`).
    ///
    /// # Errors
    /// When etcd or kube-apiserver does not exist; the error names the command to run.
    pub fn find(minor: &str) -> Result<Self> {
        let folder = match env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty()) {
            Some(folder) => PathBuf::from(folder),
            None => cached(minor)?,
        };
        let found = Self { folder };
        for binary in ["etcd", "kube-apiserver"] {
            found.path(binary).with_context(|| hint(minor))?;
        }
        Ok(found)
    }

    /// The path of an executable in the folder.
    pub fn path(&self, binary: &str) -> Result<PathBuf> {
        let path = self.folder.join(binary);
        if !path.is_file() {
            bail!("{} has no {binary}", self.folder.display());
        }
        Ok(path)
    }

    /// The version of a minor such as `1.37`: `v1.37.1`.
    ///
    /// # Errors
    /// When the minor is not supported.
    pub fn version(minor: &str) -> Result<&'static str> {
        of(&VERSIONS, minor)
    }

    /// The version of etcd that belongs to a minor.
    ///
    /// # Errors
    /// When the minor is not supported.
    pub fn etcd_version(minor: &str) -> Result<&'static str> {
        of(&ETCD, minor)
    }

    /// The minors that can be built, oldest first.
    pub fn minors() -> impl Iterator<Item = &'static str> {
        VERSIONS.iter().rev().map(|(minor, _)| *minor)
    }

    /// The folder with the executables.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn cached(minor: &str) -> Result<PathBuf> {
    Ok(cache()?.join("k8s").join(Binaries::version(minor)?))
}

fn of(versions: &[(&str, &'static str)], minor: &str) -> Result<&'static str> {
    let Some((_, version)) = versions.iter().find(|(known, _)| *known == minor) else {
        bail!("Kubernetes {minor} not found; available: {}", VERSIONS.map(|(minor, _)| minor).join(", "));
    };
    Ok(version)
}

/// The cache of build results, outside of any checkout: `FLEETWRIGHT_CACHE`, by default `~/.cache/fleetwright`.
pub(crate) fn cache() -> Result<PathBuf> {
    Ok(match env::var_os("FLEETWRIGHT_CACHE").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => env::home_dir().context("no home directory; set FLEETWRIGHT_CACHE")?.join(".cache/fleetwright"),
    })
}

fn hint(minor: &str) -> String {
    let argument = if minor == DEFAULT_MINOR { String::new() } else { format!(" MINOR={minor}") };
    format!("Kubernetes {minor} binaries not found: run `make k8s{argument}`, or set KUBEBUILDER_ASSETS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_are_the_ones_that_the_go_modules_pin() {
        for (minor, version) in VERSIONS {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s").join(minor).join("go.mod");
            let module = std::fs::read_to_string(&path).unwrap();
            let pinned = module.lines().map(|line| line.trim_start_matches("require").trim());
            let pinned: Vec<_> = pinned.filter_map(|line| line.strip_prefix("k8s.io/kubernetes ")).collect();
            assert_eq!(pinned.len(), 1, "{}", path.display());
            assert_eq!(pinned[0].split_whitespace().next(), Some(version), "{}", path.display());
            let etcd = format!("go.etcd.io/etcd/server/v3 {}", Binaries::etcd_version(minor).unwrap());
            assert!(module.contains(&etcd), "{} has no {etcd}", path.display());
        }
    }

    #[test]
    fn an_unknown_minor_names_the_known_ones() {
        let error = cached("1.12").unwrap_err().to_string();
        assert!(["1.12", "1.37, 1.36"].iter().all(|part| error.contains(part)), "{error}");
    }
}

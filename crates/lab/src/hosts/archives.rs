//! Archives for the tarball method, made from binaries of this machine and kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::command::{aside, call, told};
use super::images;
use super::template::{digest as key, once};
use super::tree::digest;
use crate::Binaries;
use crate::binaries::cache;

/// The pin of `k8s/npd/go.mod`.
pub const NODE_PROBLEM_DETECTOR: &str = "1.36.0";

/// Makes a `tar.zst` of these files (path in the archive, file), the same bytes for the same files. Executables stay so.
///
/// # Errors
/// When a file cannot be read.
pub async fn archive(name: &str, files: Vec<(String, PathBuf)>) -> Result<PathBuf> {
    let name = name.to_owned();
    aside(move || made(&name, &files)).await
}

/// The archive of a kubelet, with `bin/kubelet` in it, for a minor that `make k8s` builds.
pub async fn kubelet(minor: &str) -> Result<PathBuf> {
    let binary = Binaries::find(minor)?.path("kubelet")?;
    archive(&format!("kubelet-{minor}"), vec![("bin/kubelet".to_owned(), binary)]).await
}

/// The archive of the node-problem-detector, with `bin/node-problem-detector` in it. Built from its Go module the first time.
pub async fn node_problem_detector() -> Result<PathBuf> {
    let binary = aside(|| {
        let binary = cache()?.join("npd").join(format!("node-problem-detector-{NODE_PROBLEM_DETECTOR}"));
        once(&binary, |unfinished| {
            eprintln!("lab: building the node-problem-detector {NODE_PROBLEM_DETECTOR} (some minutes, once)");
            let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s/npd");
            let flags = format!("-s -w -X k8s.io/node-problem-detector/pkg/version.version=v{NODE_PROBLEM_DETECTOR}");
            let mut build = Command::new("go");
            build.current_dir(module).env("CGO_ENABLED", "0").args(["build", "-mod=readonly", "-trimpath", "-ldflags"]);
            build.args([&flags, "-o"]).arg(unfinished).arg("k8s.io/node-problem-detector/cmd/nodeproblemdetector");
            told(build).context("cannot build the node-problem-detector").map(drop)
        })?;
        Ok(binary)
    })
    .await?;
    archive(
        &format!("node-problem-detector-{NODE_PROBLEM_DETECTOR}"),
        vec![("bin/node-problem-detector".to_owned(), binary)],
    )
    .await
}

/// The archive with the images `pause.tar` and `web.tar`: see [`images`](super::images).
pub async fn images() -> Result<PathBuf> {
    let folder = aside(|| {
        let folder = cache()?.join("images").join(key(&[images::RECIPE]));
        once(&folder, |unfinished| {
            fs::create_dir_all(unfinished)?;
            images::write_all(unfinished)
        })?;
        Ok(folder)
    })
    .await?;
    let files = ["pause.tar", "web.tar"].map(|name| (name.to_owned(), folder.join(name)));
    archive("images", files.to_vec()).await
}

fn made(name: &str, files: &[(String, PathBuf)]) -> Result<PathBuf> {
    let mut parts = vec![name.to_owned()];
    for (path, file) in files {
        parts.push(path.clone());
        parts.push(digest(file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    let parts: Vec<_> = parts.iter().map(String::as_str).collect();
    let archive = cache()?.join("archives").join(format!("{name}-{}.tar.zst", key(&parts)));
    once(&archive, |unfinished| {
        let root = tempfile::tempdir_in(unfinished.parent().context("the cache has folders")?)?;
        for (path, file) in files {
            let place = root.path().join(path);
            fs::create_dir_all(place.parent().context("a file is in a folder")?)?;
            fs::copy(file, &place)?;
        }
        let script =
            r#"tar -C "$1" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c . | zstd -q -3 -T0 -o "$2""#;
        call("sh", ["-euc", script, "sh", &root.path().to_string_lossy(), &unfinished.to_string_lossy()]).map(drop)
    })?;
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_the_go_module_pins() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s/npd/go.mod");
        let module = fs::read_to_string(path).unwrap();
        assert!(module.contains(&format!("k8s.io/node-problem-detector v{NODE_PROBLEM_DETECTOR}")));
    }
}

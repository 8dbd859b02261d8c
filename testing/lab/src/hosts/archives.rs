//! Archives for the tarball method, built from binaries of this machine and cached.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::command::{aside, call};
use super::images::{self, Image};
use super::modules;
use super::template::{digest as key, once};
use super::tree::digest;
use crate::Binaries;
use crate::binaries::cache;

pub use super::modules::NODE_PROBLEM_DETECTOR;

/// Builds a `tar.zst` of these files (path in the archive, file): reproducible, and with the executable bits kept.
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

/// The archive of the node-problem-detector, with `bin/node-problem-detector` in it. The first call builds it from its Go module.
pub async fn node_problem_detector() -> Result<PathBuf> {
    let binary = aside(modules::node_problem_detector).await?;
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
            for image in Image::small()? {
                let file = match image.name() {
                    images::PAUSE => "pause.tar",
                    images::WEB => "web.tar",
                    _ => continue,
                };
                image.write(fs::File::create(unfinished.join(file))?)?;
            }
            Ok(())
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

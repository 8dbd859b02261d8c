//! Container images without a registry: docker archives, to be imported by `ctr -n k8s.io images import`.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA256, digest};
use serde_json::json;
use tar::{Builder, EntryType, Header};

use super::tree::hex;

/// What keeps a pod's namespaces: the name that Debian's containerd asks for.
pub const PAUSE: &str = "registry.k8s.io/pause:3.6";
/// A web server on port 8080 that answers with its pod's name.
pub const WEB: &str = "fleetwright.io/lab/web:1";

/// Changing what is made here changes this.
pub(crate) const RECIPE: &str = "pause and web of busybox-static, 1";

/// Writes both as `pause.tar` and `web.tar`.
pub(crate) fn write_all(folder: &Path) -> Result<()> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).is_file());
    let busybox = busybox.context("no busybox here; install the Debian package busybox-static")?;
    let busybox = fs::read(busybox)?;
    write(&folder.join("pause.tar"), PAUSE, &busybox, &["/bin/busybox", "sleep", "2147483647"])?;
    let serve = "mkdir -p /www && hostname >/www/index.html && exec httpd -f -p 8080 -h /www";
    write(&folder.join("web.tar"), WEB, &busybox, &["/bin/busybox", "sh", "-c", serve])
}

fn write(path: &Path, tag: &str, busybox: &[u8], entrypoint: &[&str]) -> Result<()> {
    let mut layer = Builder::new(Vec::new());
    for folder in ["bin/", "tmp/", "www/", "etc/"] {
        append(&mut layer, folder, 0o755, EntryType::Directory, &[])?;
    }
    append(&mut layer, "bin/busybox", 0o755, EntryType::Regular, busybox)?;
    for applet in ["sh", "httpd", "hostname", "mkdir", "wget", "sleep", "cat", "ls"] {
        let mut header = header(0o777, EntryType::Symlink, 0);
        layer.append_link(&mut header, format!("bin/{applet}"), "busybox")?;
    }
    append(&mut layer, "etc/passwd", 0o644, EntryType::Regular, b"root:x:0:0:root:/:/bin/sh\n")?;
    let layer = layer.into_inner()?;
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Entrypoint": entrypoint, "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(digest(&SHA256, &layer).as_ref()))] },
    })
    .to_string();
    let name = format!("{}.json", hex(digest(&SHA256, config.as_bytes()).as_ref()));
    let manifest = json!([{ "Config": name, "RepoTags": [tag], "Layers": ["layer.tar"] }]).to_string();
    let mut image = Builder::new(File::create(path)?);
    append(&mut image, &name, 0o644, EntryType::Regular, config.as_bytes())?;
    append(&mut image, "layer.tar", 0o644, EntryType::Regular, &layer)?;
    append(&mut image, "manifest.json", 0o644, EntryType::Regular, manifest.as_bytes())?;
    Ok(image.into_inner()?.sync_all()?)
}

fn header(mode: u32, kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header
}

fn append(to: &mut Builder<impl std::io::Write>, path: &str, mode: u32, kind: EntryType, bytes: &[u8]) -> Result<()> {
    let mut header = header(mode, kind, bytes.len());
    Ok(to.append_data(&mut header, path, bytes)?)
}

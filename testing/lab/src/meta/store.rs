//! Images for nodes in the format of containerd: imported once, mounted into all nodes, never copied.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

use crate::binaries::cache;
use crate::hosts::command::{aside, fed};
use crate::hosts::template::{digest, once};
use crate::hosts::{Image, Template, images};

/// Runs a containerd of the template on a folder until it has imported the images from standard input. All mounts and processes are in
/// their own namespaces and so end with the script.
const FILL: &str = r#"
template=$1 store=$2
mkdir -p "$store"
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$template,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
mount -t proc proc /mnt/root/proc
mount --rbind /dev /mnt/root/dev
mkdir -p /mnt/root/var/lib/containerd
mount --bind "$store" /mnt/root/var/lib/containerd
exec chroot /mnt/root sh -euc '
  printf "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n" >/tmp/config.toml
  containerd --config /tmp/config.toml >/tmp/log 2>&1 &
  tries=0
  until ctr --timeout 1s version >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] && kill -0 $! || { tail /tmp/log; exit 1; }
    sleep 0.1
  done
  ctr -n k8s.io images import - || { tail /tmp/log; exit 1; }
  kill $!
  wait $! || true
'
"#;

/// Gives a node's containerd the images of a store before it starts. The node gets its own copy of the databases. Blobs and unpacked layers are
/// never written to, so links are enough: an overlay may have its lower layers on any file system.
pub(crate) const TAKE: &str = r#"
store=$1 root=/var/lib/containerd
[ ! -e $root/io.containerd.metadata.v1.bolt ] || exit 0
for part in io.containerd.content.v1.content/blobs/sha256 io.containerd.snapshotter.v1.overlayfs/snapshots; do
  mkdir -p $root/$part
  ln -s $store/$part/* $root/$part/
done
cp $store/io.containerd.snapshotter.v1.overlayfs/metadata.db $root/io.containerd.snapshotter.v1.overlayfs/
cp -r $store/io.containerd.metadata.v1.bolt $root/
"#;

/// The prefix of the names of stores.
const PREFIX: &str = "images-";
/// A store that was unused for this time is removed when another is created: each has more than a gigabyte.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// The content of `/var/lib/containerd` with these images. Must live as long as a node that uses it.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    _used: File,
}

impl Store {
    /// Imports images with the containerd of a template, unless the store exists.
    pub(crate) async fn with(template: &Template, images: Vec<Image>) -> Result<Self> {
        let template = template.folder().to_owned();
        aside(move || {
            let base = template.to_string_lossy();
            let keys = images.iter().map(Image::key).collect::<Result<Vec<_>>>()?.join("\n");
            let name = format!("{PREFIX}{}", digest(&[images::RECIPE, &base, FILL, &keys]));
            let stores = cache()?.join("hosts");
            let folder = stores.join(&name);
            let used = used(&stores, &name)?;
            used.lock_shared()?;
            used.set_modified(SystemTime::now())?;
            once(&folder, |unfinished| {
                prune(&stores)?;
                eprintln!("lab: importing {} images for nodes (about 15 s, once)", images.len());
                let mut command = Command::new("unshare");
                command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
                command.args(["sh", "-euc", FILL, "fill", &base, &unfinished.to_string_lossy()]);
                fed(command, |to| images::write(&images, to)).context("cannot import the images").map(drop)
            })?;
            Ok(Self { folder, _used: used })
        })
        .await
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// The lock file of a store, held by its users, and so created before the store.
fn used(stores: &Path, name: &str) -> Result<File> {
    fs::create_dir_all(stores)?;
    Ok(File::options().create(true).append(true).open(stores.join(format!(".{name}.used")))?)
}

/// Removes stores without users.
fn prune(stores: &Path) -> Result<()> {
    for entry in fs::read_dir(stores)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) {
            continue;
        }
        let used = used(stores, &name)?;
        let idle = used.metadata()?.modified()?.elapsed().unwrap_or_default();
        if idle > KEEP && used.try_lock().is_ok() {
            fs::remove_dir_all(entry.path()).with_context(|| format!("cannot remove {}", entry.path().display()))?;
            fs::remove_file(stores.join(format!(".{name}.used")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_removed_when_it_was_out_of_use_for_long_and_no_process_has_it() {
        let stores = tempfile::tempdir().unwrap();
        let long_ago = SystemTime::now() - 2 * KEEP;
        let mut held = Vec::new();
        for (name, when) in [("images-old", long_ago), ("images-held", long_ago), ("images-new", SystemTime::now())] {
            fs::create_dir(stores.path().join(name)).unwrap();
            let file = used(stores.path(), name).unwrap();
            file.set_modified(when).unwrap();
            if name == "images-held" {
                file.lock_shared().unwrap();
                held.push(file);
            }
        }
        fs::create_dir(stores.path().join("debian")).unwrap();
        prune(stores.path()).unwrap();
        let left = |name: &str| stores.path().join(name).exists();
        assert!(!left("images-old") && !left(".images-old.used"));
        assert!(left("images-held") && left("images-new") && left("debian"));
    }
}

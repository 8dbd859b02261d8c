//! The helpers that can be delivered: one file for each architecture.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

/// Prefix of the file names, before the architecture.
const PREFIX: &str = "fleetwright-host-";

/// The helpers of all supported architectures. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    all: Vec<Arc<Helper>>,
}

impl Helpers {
    /// Finds the files `fleetwright-host-ARCH` in a directory (`fleetwright-host-amd64`). Their digests are computed here, once.
    ///
    /// # Errors
    /// When the directory or a file in it cannot be read, or there is no such file.
    pub fn find(folder: &Path) -> io::Result<Self> {
        let mut all = Vec::new();
        let entries = fs::read_dir(folder).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot read the helper directory {}: {error}", folder.display()))
        })?;
        for entry in entries {
            let path = entry?.path();
            let arch = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
            // Other files, such as a debug file beside it (`fleetwright-host-amd64.d`), are skipped.
            if let Some(arch) = arch
                && !arch.is_empty()
                && arch.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            {
                all.push(Arc::new(Helper::read(arch, &path)?));
            }
        }
        if all.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no helper in {}: expected a file named {PREFIX}amd64 or {PREFIX}arm64", folder.display()),
            ));
        }
        all.sort_by(|a, b| a.arch.cmp(&b.arch));
        Ok(Self { all })
    }

    /// The architectures, as Kubernetes calls them.
    pub fn architectures(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|helper| helper.arch.as_str())
    }

    /// All helpers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Helper>> {
        self.all.iter()
    }

    /// The helper for a machine, by the output of its `uname -m`.
    pub(crate) fn for_machine(&self, machine: &str) -> Option<&Arc<Helper>> {
        let arch = match machine {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        self.all.iter().find(|helper| helper.arch == arch)
    }
}

/// A helper for one architecture.
pub struct Helper {
    arch: String,
    path: PathBuf,
    digest: String,
    packed: OnceCell<Bytes>,
}

impl Helper {
    fn read(arch: &str, path: &Path) -> io::Result<Self> {
        let mut file = fs::File::open(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot read the helper {}: {error}", path.display()))
        })?;
        let mut digest = Sha256::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => digest.update(&buffer[..read]),
            }
        }
        Ok(Self {
            arch: arch.to_owned(),
            path: path.to_owned(),
            digest: hex(&digest.finalize()),
            packed: OnceCell::new(),
        })
    }

    /// Its architecture, as Kubernetes calls it.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// Its SHA-256, in lower-case hex. It is also its file name on a host.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The compressed helper, as it is sent. It is read and compressed at the first delivery and kept: an operator
    /// whose hosts all have it never needs it.
    /// Concurrent callers wait for the first one: a fleet that starts requests it hundreds of times at once.
    pub(crate) async fn packed(&self) -> io::Result<Bytes> {
        let packing = || async {
            let (path, digest) = (self.path.clone(), self.digest.clone());
            tokio::task::spawn_blocking(move || pack(&path, &digest)).await.map_err(io::Error::other)?
        };
        self.packed.get_or_try_init(packing).await.cloned()
    }
}

fn pack(path: &Path, digest: &str) -> io::Result<Bytes> {
    let content = fs::read(path)?;
    if hex(&Sha256::digest(&content)) != digest {
        return Err(io::Error::other("the file changed since the operator started: restart the operator"));
    }
    let mut packer = GzEncoder::new(Vec::with_capacity(content.len() / 2), Compression::default());
    packer.write_all(&content)?;
    let mut packed = packer.finish()?;
    packed.shrink_to_fit();
    Ok(Bytes::from(packed))
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Helper({} {})", self.arch, self.digest)
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("fleetwright-host-amd64"), "abc").unwrap();
        fs::write(folder.path().join("fleetwright-host-amd64.d"), "not one").unwrap();
        fs::write(folder.path().join("other"), "not one").unwrap();
        let helpers = Helpers::find(folder.path()).unwrap();
        assert_eq!(helpers.architectures().collect::<Vec<_>>(), ["amd64"]);
        let helper = helpers.for_machine("x86_64").unwrap();
        assert_eq!(helper.digest(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(helpers.for_machine("aarch64").is_none());
        assert!(helpers.for_machine("riscv64").is_none());
    }

    #[test]
    fn a_folder_without_helpers_says_what_it_should_hold() {
        let folder = tempfile::tempdir().unwrap();
        let error = Helpers::find(folder.path()).unwrap_err().to_string();
        assert!(error.contains("fleetwright-host-amd64"), "{error}");
        assert!(Helpers::find(&folder.path().join("none")).is_err());
    }

    #[tokio::test]
    async fn a_helper_that_was_replaced_under_way_is_not_delivered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fleetwright-host-amd64");
        fs::write(&path, "abc").unwrap();
        let helpers = Helpers::find(folder.path()).unwrap();
        fs::write(&path, "abd").unwrap();
        let error = helpers.iter().next().unwrap().packed().await.unwrap_err();
        assert!(error.to_string().contains("restart"), "{error}");
    }
}

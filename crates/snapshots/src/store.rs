//! The stores of snapshots: a directory, or a bucket.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use fleetwright_plan::cluster::snapshots::cluster_keys::ClusterKeys;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::s3::Bucket;
use crate::seal::{self, EncryptionKeys};
use crate::take::{SnapshotTaken, hex};

/// Maximum size of the keys of a Cluster: they come from a Secret, which has this limit.
const MAX_KEYS: u64 = 1 << 20;

/// Encryption keys of snapshots, and the Cluster that they belong to.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// Encryption keys.
    pub keys: EncryptionKeys,
    /// `NAMESPACE/NAME` of the Cluster.
    pub cluster: String,
}

/// The description beside a snapshot. For an encrypted snapshot it proves only that the snapshot exists and how long the file is: all other data is
/// read from the file itself, where it is authenticated.
#[derive(Debug, Serialize, Deserialize)]
struct SidecarRecord {
    #[serde(flatten)]
    described: SnapshotInfo,
    /// Size of the file, if it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stored: Option<u64>,
    /// Id of the key, if the file is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_id: Option<String>,
}

/// Description of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Name of the snapshot.
    pub name: String,
    /// Metadata from the time when it was taken.
    pub taken: SnapshotTaken,
    /// Revision that it restores to.
    pub revision: i64,
    /// Number of keys that it restores to.
    pub keys: u64,
}

/// A store of snapshots.
#[derive(Clone, Debug)]
pub enum SnapshotStore {
    /// A directory.
    Folder(PathBuf),
    /// A bucket of an S3-compatible store.
    Bucket(Bucket),
}

/// Whether the name has the form of a snapshot: `YYYYMMDD-HHMMSS`.
fn is_name(name: &str) -> bool {
    name.len() == 15
        && name.bytes().enumerate().all(|(at, byte)| if at == 8 { byte == b'-' } else { byte.is_ascii_digit() })
}

fn data(name: &str) -> String {
    format!("{name}.db")
}

fn description(name: &str) -> String {
    format!("{name}.json")
}

/// File of the sealed keys of the Cluster.
fn cluster_keys(name: &str) -> String {
    format!("{name}.keys")
}

/// File of an incomplete snapshot.
fn part(name: &str) -> String {
    format!("{name}.part")
}

/// Reads a small file; `None` if it does not exist.
pub(crate) fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    let cannot = || format!("cannot read {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(cannot)?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_KEYS + 1).read_to_end(&mut bytes).with_context(cannot)?;
    ensure!(bytes.len() as u64 <= MAX_KEYS, "{} has more than {MAX_KEYS} bytes", path.display());
    Ok(Some(bytes))
}

/// An encrypted snapshot to store.
struct EncryptedUpload<'a> {
    name: &'a str,
    file: &'a Path,
    bytes: u64,
    beside: Vec<u8>,
    cluster_keys: Option<&'a [u8]>,
}

impl SnapshotStore {
    /// Encrypts a snapshot and stores it, with the sealed keys of its Cluster; returns the id of the key. If there is not enough space, the oldest
    /// snapshots are removed first.
    pub(crate) async fn put(
        &self,
        encryption: &Encryption,
        file: &Path,
        described: &SnapshotInfo,
        cluster_keys: Option<&[u8]>,
        spare: Option<&str>,
    ) -> Result<String> {
        let name = &described.name;
        let sealed = file.with_extension("sealed");
        let key_id = seal::seal(&encryption.keys, &encryption.cluster, described, file, &sealed)
            .with_context(|| format!("cannot encrypt snapshot {name}"))?;
        let stored = fs::metadata(&sealed)?.len();
        let beside = SidecarRecord { described: described.clone(), stored: Some(stored), key_id: Some(key_id.clone()) };
        let beside = serde_json::to_vec_pretty(&beside)?;
        self.put_sealed(&EncryptedUpload { name, file: &sealed, bytes: stored, beside, cluster_keys }, spare).await?;
        fs::remove_file(&sealed)?;
        Ok(key_id)
    }

    /// The description is written last: a snapshot counts from then on.
    async fn put_sealed(&self, sealed: &EncryptedUpload<'_>, spare: Option<&str>) -> Result<()> {
        let EncryptedUpload { name, file, bytes, beside, cluster_keys: keys } = sealed;
        match self {
            Self::Folder(folder) => {
                untaken(folder, name)?;
                self.room(folder, bytes + keys.map_or(0, |keys| keys.len() as u64), spare).await?;
                let (part, whole) = (folder.join(part(name)), folder.join(data(name)));
                copy(file, &part).with_context(|| format!("cannot write {}", part.display()))?;
                fs::rename(&part, &whole).with_context(|| format!("cannot write {}", whole.display()))?;
                if let Some(keys) = keys {
                    write(folder, &cluster_keys(name), keys)?;
                }
                write(folder, &description(name), beside)?;
                Ok(File::open(folder)?.sync_all()?)
            }
            Self::Bucket(bucket) => {
                bucket.put_file(&data(name), file).await?;
                if let Some(keys) = keys {
                    bucket.put(&cluster_keys(name), keys.to_vec()).await?;
                }
                bucket.put(&description(name), beside.clone()).await
            }
        }
    }

    /// Frees that number of bytes.
    async fn room(&self, folder: &Path, bytes: u64, spare: Option<&str>) -> Result<()> {
        // Files of incomplete attempts are useless.
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?.flatten() {
            if entry.file_name().to_string_lossy().ends_with(".part") {
                remove_file(&entry.path())?;
            }
        }
        let mut all = self.list().await?;
        all.retain(|name| Some(name.as_str()) != spare);
        all.sort_unstable_by(|one, two| two.cmp(one));
        let files = all.iter().flat_map(|name| [data(name), cluster_keys(name), description(name)]);
        let sizes = files.filter_map(|file| fs::symlink_metadata(folder.join(file)).ok());
        let older: u64 = sizes.filter(|found| !found.is_dir()).map(|found| found.blocks() * 512).sum();
        let free = || rustix::fs::statvfs(folder).map(|found| found.f_bavail * found.f_frsize);
        let wanted = bytes.saturating_add(1 << 20);
        let most = free()?.saturating_add(older);
        ensure!(
            most > wanted,
            "the snapshot has {bytes} bytes, but {} has space for only {most} without older snapshots; no snapshot was removed; use a larger volume",
            folder.display()
        );
        while free()? <= wanted {
            let Some(oldest) = all.pop() else {
                anyhow::bail!("{} has {} bytes free, but the snapshot has {bytes}", folder.display(), free()?);
            };
            self.remove(&oldest).await?;
        }
        Ok(())
    }

    /// The names of all snapshots.
    pub(crate) async fn list(&self) -> Result<Vec<String>> {
        let files: Vec<String> = match self {
            Self::Folder(folder) => files_in(folder).with_context(|| format!("cannot read {}", folder.display()))?,
            Self::Bucket(bucket) => bucket.list().await?,
        };
        let names = files.iter().filter_map(|file| file.strip_suffix(".json").map(str::to_owned));
        // Names with further path elements are those of another prefix of this Cluster. A foreign file is neither counted among the snapshots to keep,
        // which would cause the removal of one, nor removed.
        Ok(names.filter(|name| is_name(name)).collect())
    }

    /// Removes a snapshot. Its description first: without it, the snapshot does not count.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        for file in [description(name), data(name), cluster_keys(name)] {
            match self {
                Self::Folder(folder) => remove_file(&folder.join(&file))?,
                Self::Bucket(bucket) => bucket.delete(&file).await?,
            }
        }
        Ok(())
    }

    /// Fetches a snapshot to a file, and verifies it. A snapshot that is not encrypted is refused, unless it is allowed.
    ///
    /// # Errors
    /// The snapshot does not exist, was changed, or is not encrypted.
    pub async fn fetch(
        &self,
        encryption: &Encryption,
        name: &str,
        to: &Path,
        allow_unencrypted: bool,
    ) -> Result<(SnapshotInfo, Option<String>)> {
        let text = match self {
            Self::Folder(folder) => {
                let known = fs::read(folder.join(description(name)));
                known.with_context(|| format!("snapshot {name} not found; available: {}", self.names()))?
            }
            Self::Bucket(bucket) => {
                let known = bucket.get(&description(name)).await?;
                known.with_context(|| format!("snapshot {name} not found in {}", bucket.name()))?
            }
        };
        let SidecarRecord { described, stored, .. } = serde_json::from_slice(&text)?;
        let kept = to.with_extension("sealed");
        match self {
            Self::Folder(folder) => copy(&folder.join(data(name)), &kept)?,
            Self::Bucket(bucket) => {
                bucket.get_file(&data(name), stored.unwrap_or(described.taken.bytes), &kept).await?;
            }
        }
        if seal::is_sealed(&kept)? {
            let opened = seal::open(&encryption.keys, &encryption.cluster, name, &kept, to);
            let (described, key_id) = opened.with_context(|| format!("snapshot {name} rejected"))?;
            fs::remove_file(&kept)?;
            return Ok((described, Some(key_id)));
        }
        ensure!(
            allow_unencrypted,
            "snapshot {name} is not encrypted, so its content cannot be verified; if it was taken before snapshots were encrypted, set spec.restore.allowUnencrypted to true"
        );
        let sum = digest(&kept)?;
        ensure!(sum == described.taken.sha256, "snapshot {name} was modified: its digest is {sum}");
        fs::rename(&kept, to)?;
        Ok((described, None))
    }

    /// The keys of the Cluster that are stored with a snapshot.
    ///
    /// # Errors
    /// The snapshot does not exist or has no keys, or they cannot be opened.
    pub async fn cluster_keys(&self, encryption: &Encryption, name: &str) -> Result<ClusterKeys> {
        let (described, sealed) = match self {
            Self::Folder(folder) => {
                (read_small(&folder.join(description(name)))?, read_small(&folder.join(cluster_keys(name)))?)
            }
            Self::Bucket(bucket) => (bucket.get(&description(name)).await?, bucket.get(&cluster_keys(name)).await?),
        };
        if described.is_none() {
            let mut all = self.list().await?;
            all.sort_unstable();
            bail!("snapshot {name} not found; available: {}", all.join(", "));
        }
        let sealed = sealed.with_context(|| {
            format!(
                "snapshot {name} has no keys of the Cluster: it was taken by a version of Fleetwright that did not store them, or while their sealed copy could not be decrypted; choose another snapshot"
            )
        })?;
        let opened =
            encryption.keys.openers()?.iter().find_map(|key| ClusterKeys::open(key, &encryption.cluster, &sealed));
        opened.with_context(|| {
            format!(
                "cannot decrypt the keys of the Cluster in snapshot {name}: they were sealed with a key that is not in {}, or for another Cluster than {}, or were modified; provide the snapshot key of that time",
                encryption.keys.0.display(),
                encryption.cluster
            )
        })
    }

    fn names(&self) -> String {
        let Self::Folder(folder) = self else { return String::new() };
        let files = files_in(folder).unwrap_or_default();
        let mut names: Vec<_> = files.iter().filter_map(|file| file.strip_suffix(".json")).collect();
        names.sort_unstable();
        names.join(", ")
    }
}

/// The names in a folder, without directories: one with the name of a snapshot belongs to somebody else.
fn files_in(folder: &Path) -> std::io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    Ok(files.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Removes a file. A directory of that name is foreign, and is kept: it must not fail every later snapshot.
fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound || is_directory(path) => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {}", path.display())),
    }
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Makes sure that no directory has a name that this snapshot needs, before an older snapshot is removed for it.
fn untaken(folder: &Path, name: &str) -> Result<()> {
    let whole = [data(name), cluster_keys(name), description(name)];
    let parts = [part(name), part(&cluster_keys(name)), part(&description(name))];
    for path in whole.into_iter().chain(parts).map(|file| folder.join(file)) {
        ensure!(
            !is_directory(&path),
            "cannot store snapshot {name}: {} is a directory; move or delete it",
            path.display()
        );
    }
    Ok(())
}

/// Copies a file, and syncs it to the disk.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let (mut from, mut file) = (File::open(from)?, File::create(to)?);
    std::io::copy(&mut from, &mut file)?;
    Ok(file.sync_all()?)
}

/// Writes a small file atomically.
fn write(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    let (part, whole) = (folder.join(part(name)), folder.join(name));
    fs::write(&part, content).with_context(|| format!("cannot write {}", part.display()))?;
    File::open(&part)?.sync_all()?;
    fs::rename(&part, &whole).with_context(|| format!("cannot write {}", whole.display()))
}

pub(crate) fn digest(path: &Path) -> Result<String> {
    let (mut file, mut sum) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match std::io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hex(sum.finalize().as_slice())),
            length => sum.update(&buffer[..length]),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn described(name: &str, bytes: &[u8]) -> SnapshotInfo {
        let sha256 = hex(Sha256::digest(bytes).as_slice());
        let at = jiff::Timestamp::constant(1_800_000_000, 0);
        let etcd = Some("3.7.0".to_owned());
        let taken = SnapshotTaken { at, revision: 7, bytes: bytes.len() as u64, sha256, etcd };
        SnapshotInfo { name: name.to_owned(), taken, revision: 8, keys: 3 }
    }

    pub(crate) fn encryption(folder: &Path) -> Encryption {
        fs::write(folder.join("key"), [7; 32]).unwrap();
        Encryption { keys: EncryptionKeys(folder.to_owned()), cluster: "fleet/pay".to_owned() }
    }

    #[tokio::test]
    async fn what_was_put_in_a_folder_is_fetched_as_it_was_and_what_was_changed_is_refused() {
        let (folder, work, keys) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let encryption = encryption(keys.path());
        let place = SnapshotStore::Folder(folder.path().to_owned());
        let (file, back) = (work.path().join("db"), work.path().join("back"));
        fs::write(&file, b"all of it").unwrap();
        fs::write(folder.path().join("20250101-000000.part"), b"left behind").unwrap();
        let put = described("20260101-000000", b"all of it");
        let key = place.put(&encryption, &file, &put, None, None).await.unwrap();
        assert_eq!(place.list().await.unwrap(), ["20260101-000000"]);
        assert!(!folder.path().join("20250101-000000.part").exists());
        let fetched = place.fetch(&encryption, "20260101-000000", &back, false).await.unwrap();
        assert_eq!(fetched, (put, Some(key)));
        assert_eq!(fs::read(&back).unwrap(), b"all of it");
        let kept = folder.path().join("20260101-000000.db");
        let mut bytes = fs::read(&kept).unwrap();
        assert!(!bytes.windows(9).any(|bytes| bytes == b"all of it"), "it is encrypted");
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&kept, bytes).unwrap();
        let refused = format!("{:#}", place.fetch(&encryption, "20260101-000000", &back, false).await.unwrap_err());
        assert!(refused.contains("chunk 0"), "{refused}");
        let missing = format!("{:#}", place.fetch(&encryption, "other", &back, false).await.unwrap_err());
        assert!(missing.contains("snapshot other ") && missing.contains("20260101-000000"), "{missing}");
        place.remove("20260101-000000").await.unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_directory_named_like_a_snapshot_fails_no_snapshot_but_its_own() {
        let (folder, work, keys) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let encryption = encryption(keys.path());
        let place = SnapshotStore::Folder(folder.path().to_owned());
        let file = work.path().join("db");
        fs::write(&file, b"all of it").unwrap();
        let directories = ["20250101-000000.json", "20250102-000000.db", "20250103-000000.keys", "x.part"];
        for name in directories {
            fs::create_dir_all(folder.path().join(name).join("inside")).unwrap();
        }
        // Their descriptions are files.
        for name in ["20250102-000000", "20250103-000000"] {
            fs::write(folder.path().join(description(name)), b"{}").unwrap();
        }
        let (first, second) = ("20260101-000000", "20260102-000000");
        place.put(&encryption, &file, &described(first, b"all of it"), None, None).await.unwrap();
        let list = async || {
            let mut all = place.list().await.unwrap();
            all.sort_unstable();
            all
        };
        assert_eq!(list().await, ["20250102-000000", "20250103-000000", first]);
        for name in ["20250102-000000", "20250103-000000"] {
            place.remove(name).await.unwrap();
        }
        assert_eq!(list().await, [first]);

        // A directory has a name that the next snapshot needs: it fails before any file of it is written, and the error names the reason.
        for taken in [data(second), description(second), cluster_keys(second), part(second)] {
            let taken = folder.path().join(taken);
            fs::create_dir(&taken).unwrap();
            let refused = place.put(&encryption, &file, &described(second, b"all of it"), None, None).await;
            let refused = format!("{:#}", refused.unwrap_err());
            assert!(refused.contains(&format!("{} is a directory", taken.display())), "{refused}");
            fs::remove_dir(&taken).unwrap();
            assert_eq!(list().await, [first]);
        }
        place.put(&encryption, &file, &described(second, b"all of it"), None, None).await.unwrap();
        assert_eq!(list().await, [first, second]);
        for name in directories {
            assert!(folder.path().join(name).join("inside").is_dir(), "{name} was removed");
        }
    }

    #[tokio::test]
    async fn a_snapshot_that_never_fits_lets_no_other_go() {
        let folder = tempfile::tempdir().unwrap();
        let place = SnapshotStore::Folder(folder.path().to_owned());
        for file in [data("20260101-000000"), description("20260101-000000")] {
            fs::write(folder.path().join(file), b"x").unwrap();
        }
        let refused = place.room(folder.path(), u64::MAX >> 1, None).await.unwrap_err().to_string();
        assert!(refused.contains("larger volume"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// The keys of Cluster fleet/pay, sealed with the key that [`encryption`] writes.
    pub(crate) fn keys_of_pay() -> (ClusterKeys, Vec<u8>) {
        let ca = std::collections::BTreeMap::from([("tls.key".to_owned(), "PRIVATE KEY".to_owned())]);
        let keys = ClusterKeys { namespace: "fleet-pay".to_owned(), secrets: [("ca".to_owned(), ca)].into() };
        let sealed = keys.seal(&fleetwright_pki::SealKey::from_bytes(&[7; 32]).unwrap(), "fleet/pay").unwrap();
        (keys, sealed)
    }

    #[tokio::test]
    async fn the_keys_of_a_cluster_are_kept_with_a_snapshot_and_go_with_it() {
        let (folder, work, secret) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let encryption = encryption(secret.path());
        let place = SnapshotStore::Folder(folder.path().to_owned());
        let file = work.path().join("db");
        fs::write(&file, b"all of it").unwrap();
        let (keys, sealed) = keys_of_pay();
        let (first, second) = ("20260101-000000", "20260102-000000");
        place.put(&encryption, &file, &described(first, b"all of it"), None, None).await.unwrap();
        place.put(&encryption, &file, &described(second, b"all of it"), Some(&sealed), None).await.unwrap();
        let mut all = place.list().await.unwrap();
        all.sort_unstable();
        assert_eq!(all, [first, second], "keys are no snapshot");
        assert_eq!(fs::read(folder.path().join("20260102-000000.keys")).unwrap(), sealed);
        assert!(place.cluster_keys(&encryption, second).await.unwrap() == keys);

        let refused = async |encryption: &Encryption, name: &str| {
            format!("{:#}", place.cluster_keys(encryption, name).await.unwrap_err())
        };
        let old = refused(&encryption, first).await;
        assert!(old.contains("20260101-000000") && old.contains("keys of the Cluster"), "{old}");
        let missing = refused(&encryption, "other").await;
        assert!(
            missing.contains("snapshot other ") && missing.contains("20260101-000000, 20260102-000000"),
            "{missing}"
        );
        let shop = Encryption { cluster: "fleet/shop".to_owned(), ..encryption.clone() };
        assert!(refused(&shop, second).await.contains("fleet/shop"));
        // A replaced key opens them as long as it is in the Secret.
        fs::write(secret.path().join("key"), [8; 32]).unwrap();
        let other = refused(&encryption, second).await;
        assert!(other.contains(second) && other.contains("sealed"), "{other}");
        fs::write(secret.path().join("previous"), [7; 32]).unwrap();
        assert!(place.cluster_keys(&encryption, second).await.unwrap() == keys);

        place.remove(second).await.unwrap();
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "only what is of the first one: {left:?}");
        assert!(left.iter().all(|name| name.to_string_lossy().starts_with(first)), "{left:?}");
    }

    #[test]
    fn a_file_that_is_too_large_for_keys_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sealed");
        assert_eq!(read_small(&path).unwrap(), None);
        fs::write(&path, vec![0_u8; 1 << 20]).unwrap();
        assert_eq!(read_small(&path).unwrap().map(|bytes| bytes.len()), Some(1 << 20));
        fs::write(&path, vec![0_u8; (1 << 20) + 1]).unwrap();
        assert!(read_small(&path).unwrap_err().to_string().contains("1048576 bytes"));
    }

    #[tokio::test]
    async fn a_snapshot_that_is_not_encrypted_is_restored_only_if_that_is_allowed() {
        let (folder, work, keys) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let encryption = encryption(keys.path());
        let (place, back) = (SnapshotStore::Folder(folder.path().to_owned()), work.path().join("back"));
        // The format from before snapshots were encrypted.
        let old = described("20260101-000000", b"all of it");
        fs::write(folder.path().join("20260101-000000.db"), b"all of it").unwrap();
        fs::write(folder.path().join("20260101-000000.json"), serde_json::to_vec(&old).unwrap()).unwrap();
        let refused = place.fetch(&encryption, "20260101-000000", &back, false).await.unwrap_err().to_string();
        assert!(refused.contains("not encrypted") && refused.contains("allowUnencrypted"), "{refused}");
        assert!(!back.exists());
        assert_eq!(place.fetch(&encryption, "20260101-000000", &back, true).await.unwrap(), (old, None));
        assert_eq!(fs::read(&back).unwrap(), b"all of it");
        fs::write(folder.path().join("20260101-000000.db"), b"some of it").unwrap();
        let refused = place.fetch(&encryption, "20260101-000000", &back, true).await.unwrap_err().to_string();
        assert!(refused.contains("digest"), "{refused}");
    }
}

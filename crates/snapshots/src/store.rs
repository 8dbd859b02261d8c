//! Where snapshots are kept: a folder, or a bucket.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::s3::Bucket;
use crate::seal::{self, Keys};
use crate::take::{Taken, hex};

/// With what snapshots are encrypted, and whose they are.
#[derive(Clone, Debug)]
pub struct Encryption {
    /// The keys.
    pub keys: Keys,
    /// `NAMESPACE/NAME` of the Cluster.
    pub cluster: String,
}

/// What is beside a snapshot. Of an encrypted one it only says that it exists and how long the file is: all else is read from the file itself, where it is
/// authenticated.
#[derive(Debug, Serialize, Deserialize)]
struct Beside {
    #[serde(flatten)]
    described: Described,
    /// The length of the file, if it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stored: Option<u64>,
    /// The id of the key, if it is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_id: Option<String>,
}

/// What is known of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// What was known when it was taken.
    pub taken: Taken,
    /// The revision that it restores to.
    pub revision: i64,
    /// The number of keys that it restores to.
    pub keys: u64,
}

/// Where snapshots are kept.
#[derive(Clone, Debug)]
pub enum Place {
    /// A folder.
    Folder(PathBuf),
    /// A bucket of an S3-compatible store.
    Bucket(Bucket),
}

fn data(name: &str) -> String {
    format!("{name}.db")
}

fn description(name: &str) -> String {
    format!("{name}.json")
}

impl Place {
    /// Encrypts it and puts it there; answers the id of the key. Where there is no room, the oldest ones go first.
    pub(crate) async fn put(
        &self,
        encryption: &Encryption,
        file: &Path,
        described: &Described,
        spare: Option<&str>,
    ) -> Result<String> {
        let name = &described.name;
        let sealed = file.with_extension("sealed");
        let key_id = seal::seal(&encryption.keys, &encryption.cluster, described, file, &sealed)
            .with_context(|| format!("snapshot {name} cannot be encrypted"))?;
        let stored = fs::metadata(&sealed)?.len();
        let beside = Beside { described: described.clone(), stored: Some(stored), key_id: Some(key_id.clone()) };
        self.put_sealed(&sealed, name, stored, serde_json::to_vec_pretty(&beside)?, spare).await?;
        fs::remove_file(&sealed)?;
        Ok(key_id)
    }

    async fn put_sealed(
        &self,
        sealed: &Path,
        name: &str,
        bytes: u64,
        text: Vec<u8>,
        spare: Option<&str>,
    ) -> Result<()> {
        match self {
            Self::Folder(folder) => {
                self.room(folder, bytes, spare).await?;
                let (part, whole) = (folder.join(format!("{name}.part")), folder.join(data(name)));
                copy(sealed, &part).with_context(|| format!("cannot write {}", part.display()))?;
                fs::rename(&part, &whole)?;
                let (part, whole) = (folder.join(format!("{name}.json.part")), folder.join(description(name)));
                fs::write(&part, text)?;
                File::open(&part)?.sync_all()?;
                fs::rename(&part, &whole)?;
                Ok(File::open(folder)?.sync_all()?)
            }
            Self::Bucket(bucket) => {
                bucket.put_file(&data(name), sealed).await?;
                bucket.put(&description(name), text).await
            }
        }
    }

    /// Makes room for so many bytes.
    async fn room(&self, folder: &Path, bytes: u64, spare: Option<&str>) -> Result<()> {
        // What attempts before left behind is of no use.
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?.flatten() {
            if entry.file_name().to_string_lossy().ends_with(".part") {
                fs::remove_file(entry.path())?;
            }
        }
        let mut all = self.list().await?;
        all.retain(|name| Some(name.as_str()) != spare);
        all.sort_unstable_by(|one, two| two.cmp(one));
        loop {
            let free = rustix::fs::statvfs(folder).map(|found| found.f_bavail * found.f_frsize)?;
            if free > bytes + (1 << 20) {
                return Ok(());
            }
            let Some(oldest) = all.pop() else {
                anyhow::bail!("{} has {free} bytes left, and the snapshot has {bytes}", folder.display());
            };
            self.remove(&oldest).await?;
        }
    }

    /// The names of all that are there.
    pub(crate) async fn list(&self) -> Result<Vec<String>> {
        let files: Vec<String> = match self {
            Self::Folder(folder) => {
                let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
            }
            Self::Bucket(bucket) => bucket.list().await?,
        };
        let names = files.iter().filter_map(|file| file.strip_suffix(".json").map(str::to_owned));
        // What lies deeper belongs to another Cluster, whose prefix begins with this one.
        Ok(names.filter(|name| !name.contains('/')).collect())
    }

    /// Removes one. Its description first: without it, it does not count.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        for file in [description(name), data(name)] {
            match self {
                Self::Folder(folder) => match fs::remove_file(folder.join(&file)) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    removed => removed.with_context(|| format!("cannot remove {file}"))?,
                },
                Self::Bucket(bucket) => bucket.delete(&file).await?,
            }
        }
        Ok(())
    }

    /// Brings one to a file, and makes sure that it is what was put there. One that is not encrypted is refused, unless it is allowed.
    ///
    /// # Errors
    /// It is not there, or not as it was, or not encrypted.
    pub async fn fetch(
        &self,
        encryption: &Encryption,
        name: &str,
        to: &Path,
        allow_unencrypted: bool,
    ) -> Result<(Described, Option<String>)> {
        let text = match self {
            Self::Folder(folder) => {
                let known = fs::read(folder.join(description(name)));
                known.with_context(|| format!("there is no snapshot {name}; there are: {}", self.names()))?
            }
            Self::Bucket(bucket) => {
                let known = bucket.get(&description(name)).await?;
                known.with_context(|| format!("there is no snapshot {name} in {}", bucket.name()))?
            }
        };
        let Beside { described, stored, .. } = serde_json::from_slice(&text)?;
        let kept = to.with_extension("sealed");
        match self {
            Self::Folder(folder) => copy(&folder.join(data(name)), &kept)?,
            Self::Bucket(bucket) => {
                bucket.get_file(&data(name), stored.unwrap_or(described.taken.bytes), &kept).await?;
            }
        }
        if seal::is_sealed(&kept)? {
            let opened = seal::open(&encryption.keys, &encryption.cluster, name, &kept, to);
            let (described, key_id) = opened.with_context(|| format!("snapshot {name} is refused"))?;
            fs::remove_file(&kept)?;
            return Ok((described, Some(key_id)));
        }
        ensure!(
            allow_unencrypted,
            "snapshot {name} is not encrypted, and nothing shows that it is what was taken; if it is of a time before snapshots were encrypted, set spec.restore.allowUnencrypted to true"
        );
        let sum = digest(&kept)?;
        ensure!(sum == described.taken.sha256, "snapshot {name} is not what was put there: its digest is {sum}");
        fs::rename(&kept, to)?;
        Ok((described, None))
    }

    fn names(&self) -> String {
        let Self::Folder(folder) = self else { return String::new() };
        let mut names: Vec<_> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_string_lossy().strip_suffix(".json").map(str::to_owned))
            .collect();
        names.sort_unstable();
        names.join(", ")
    }
}

/// Copies a file, and makes sure that it is on the disk.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let (mut from, mut file) = (File::open(from)?, File::create(to)?);
    std::io::copy(&mut from, &mut file)?;
    Ok(file.sync_all()?)
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

    pub(crate) fn described(name: &str, bytes: &[u8]) -> Described {
        let sha256 = hex(Sha256::digest(bytes).as_slice());
        let at = jiff::Timestamp::constant(1_800_000_000, 0);
        let taken = Taken { at, revision: 7, bytes: bytes.len() as u64, sha256 };
        Described { name: name.to_owned(), taken, revision: 8, keys: 3 }
    }

    pub(crate) fn encryption(folder: &Path) -> Encryption {
        fs::write(folder.join("key"), [7; 32]).unwrap();
        Encryption { keys: Keys(folder.to_owned()), cluster: "fleet/pay".to_owned() }
    }

    #[tokio::test]
    async fn what_was_put_in_a_folder_is_fetched_as_it_was_and_what_was_changed_is_refused() {
        let (folder, work, keys) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let encryption = encryption(keys.path());
        let place = Place::Folder(folder.path().to_owned());
        let (file, back) = (work.path().join("db"), work.path().join("back"));
        fs::write(&file, b"all of it").unwrap();
        fs::write(folder.path().join("20250101-000000.part"), b"left behind").unwrap();
        let put = described("20260101-000000", b"all of it");
        let key = place.put(&encryption, &file, &put, None).await.unwrap();
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
        assert!(refused.contains("chunk 0 is not what was encrypted"), "{refused}");
        let missing = format!("{:#}", place.fetch(&encryption, "other", &back, false).await.unwrap_err());
        assert!(missing.contains("there is no snapshot other; there are: 20260101-000000"), "{missing}");
        place.remove("20260101-000000").await.unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_snapshot_that_is_not_encrypted_is_restored_only_if_that_is_allowed() {
        let (folder, work, keys) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let encryption = encryption(keys.path());
        let (place, back) = (Place::Folder(folder.path().to_owned()), work.path().join("back"));
        // As they were kept before snapshots were encrypted.
        let old = described("20260101-000000", b"all of it");
        fs::write(folder.path().join("20260101-000000.db"), b"all of it").unwrap();
        fs::write(folder.path().join("20260101-000000.json"), serde_json::to_vec(&old).unwrap()).unwrap();
        let refused = place.fetch(&encryption, "20260101-000000", &back, false).await.unwrap_err().to_string();
        assert!(refused.contains("is not encrypted") && refused.contains("allowUnencrypted"), "{refused}");
        assert!(!back.exists());
        assert_eq!(place.fetch(&encryption, "20260101-000000", &back, true).await.unwrap(), (old, None));
        assert_eq!(fs::read(&back).unwrap(), b"all of it");
        fs::write(folder.path().join("20260101-000000.db"), b"some of it").unwrap();
        let refused = place.fetch(&encryption, "20260101-000000", &back, true).await.unwrap_err().to_string();
        assert!(refused.contains("is not what was put there"), "{refused}");
    }
}

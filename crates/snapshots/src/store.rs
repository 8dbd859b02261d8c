//! Where snapshots are kept: a folder, or a bucket.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::s3::Bucket;
use crate::take::{Taken, hex};

/// What is beside a snapshot.
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
    /// Puts it there. Where there is no room, the oldest ones go first.
    pub(crate) async fn put(&self, file: &Path, described: &Described, spare: Option<&str>) -> Result<()> {
        let text = serde_json::to_vec_pretty(described)?;
        let name = &described.name;
        match self {
            Self::Folder(folder) => {
                self.room(folder, described.taken.bytes, spare).await?;
                let (part, whole) = (folder.join(format!("{name}.part")), folder.join(data(name)));
                copy(file, &part).with_context(|| format!("cannot write {}", part.display()))?;
                fs::rename(&part, &whole)?;
                let (part, whole) = (folder.join(format!("{name}.json.part")), folder.join(description(name)));
                fs::write(&part, text)?;
                File::open(&part)?.sync_all()?;
                fs::rename(&part, &whole)?;
                Ok(File::open(folder)?.sync_all()?)
            }
            Self::Bucket(bucket) => {
                bucket.put_file(&data(name), file).await?;
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
        Ok(files.iter().filter_map(|file| file.strip_suffix(".json").map(str::to_owned)).collect())
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

    /// Brings one to a file, and makes sure that it is what was put there.
    ///
    /// # Errors
    /// It is not there, or not as it was.
    pub async fn fetch(&self, name: &str, to: &Path) -> Result<Described> {
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
        let described: Described = serde_json::from_slice(&text)?;
        match self {
            Self::Folder(folder) => copy(&folder.join(data(name)), to)?,
            Self::Bucket(bucket) => bucket.get_file(&data(name), described.taken.bytes, to).await?,
        }
        let sum = digest(to)?;
        ensure!(sum == described.taken.sha256, "snapshot {name} is not what was put there: its digest is {sum}");
        Ok(described)
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
mod tests {
    use super::*;

    fn described(name: &str, bytes: &[u8]) -> Described {
        let sha256 = hex(Sha256::digest(bytes).as_slice());
        let at = jiff::Timestamp::constant(1_800_000_000, 0);
        let taken = Taken { at, revision: 7, bytes: bytes.len() as u64, sha256 };
        Described { name: name.to_owned(), taken, revision: 8, keys: 3 }
    }

    #[tokio::test]
    async fn what_was_put_in_a_folder_is_fetched_as_it_was_and_what_was_changed_is_refused() {
        let (folder, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = Place::Folder(folder.path().to_owned());
        let (file, back) = (work.path().join("db"), work.path().join("back"));
        fs::write(&file, b"all of it").unwrap();
        fs::write(folder.path().join("20250101-000000.part"), b"left behind").unwrap();
        let put = described("20260101-000000", b"all of it");
        place.put(&file, &put, None).await.unwrap();
        assert_eq!(place.list().await.unwrap(), ["20260101-000000"]);
        assert!(!folder.path().join("20250101-000000.part").exists());
        assert_eq!(place.fetch("20260101-000000", &back).await.unwrap(), put);
        assert_eq!(fs::read(&back).unwrap(), b"all of it");
        fs::write(folder.path().join("20260101-000000.db"), b"some of it").unwrap();
        let refused = place.fetch("20260101-000000", &back).await.unwrap_err().to_string();
        assert!(refused.contains("is not what was put there"), "{refused}");
        let missing = format!("{:#}", place.fetch("other", &back).await.unwrap_err());
        assert!(missing.contains("there is no snapshot other; there are: 20260101-000000"), "{missing}");
        place.remove("20260101-000000").await.unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

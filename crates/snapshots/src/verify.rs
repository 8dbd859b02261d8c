//! Compares a snapshot with the data that it restores to, and stores it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleetwright_plan::cluster::snapshots::SnapshotReport;

use crate::etcd::{Etcd, EtcdEndpoint};
use crate::store::{Encryption, SnapshotInfo, SnapshotStore, read_small};
use crate::take::SnapshotTaken;

/// Time within which the scratch etcd has to answer.
const FIRST_ATTEMPT_WINDOW: Duration = Duration::from_secs(120);

/// Number of names in the report, the same as in the status. The kubelet truncates a termination message after 4096 bytes, and after 3072 in a pod of
/// four containers: a truncated report cannot be parsed, and each snapshot would count as failed.
const MAX_LISTED: usize = 100;

/// One snapshot was taken, so one has to be removed. Foreign files with names of earlier times remove real snapshots only at this rate, so that
/// people can notice.
const MAX_REMOVED: usize = 2;

/// Options for storing a snapshot.
#[derive(Clone, Debug)]
pub struct KeepOptions {
    /// Name of the snapshot.
    pub name: String,
    /// Working directory of [`take`](crate::take()).
    pub work: PathBuf,
    /// The etcd that the snapshot was taken from.
    pub source: EtcdEndpoint,
    /// URL of the etcd that the snapshot was restored into.
    pub scratch: String,
    /// Store of the snapshot.
    pub place: SnapshotStore,
    /// Encryption of the snapshot.
    pub encryption: Encryption,
    /// Number of snapshots to keep.
    pub keep: usize,
    /// Snapshot that is not removed, whatever its age.
    pub spare: Option<String>,
    /// File with the sealed keys of the Cluster, which are stored with the snapshot. A missing file is skipped.
    pub cluster_keys: Option<PathBuf>,
}

/// Compares the data, stores the snapshot, removes old ones, and reports the stored ones.
///
/// # Errors
/// The snapshot does not restore to the data of etcd, or cannot be stored.
pub async fn keep(keep: &KeepOptions) -> Result<SnapshotReport> {
    let taken = SnapshotTaken::read(&keep.work)?;
    let (revision, keys) = compare(keep, &taken).await?;
    let described = SnapshotInfo { name: keep.name.clone(), taken: taken.clone(), revision, keys };
    let file = keep.work.join(crate::FILE);
    let cluster_keys = keep.cluster_keys.as_deref().map(read_small).transpose()?.flatten();
    let (sealed, spare) = (cluster_keys.as_deref(), keep.spare.as_deref());
    let key_id = keep.place.put(&keep.encryption, &file, &described, sealed, spare).await?;
    let kept = prune(keep).await?;
    let (name, key_id) = (keep.name.clone(), Some(key_id));
    Ok(SnapshotReport { name, at: taken.at, bytes: taken.bytes, revision, keys, kept, key_id, etcd: taken.etcd })
}

/// The revision and the number of keys of both etcds, if they agree.
async fn compare(keep: &KeepOptions, taken: &SnapshotTaken) -> Result<(i64, u64)> {
    let source = EtcdEndpoint { endpoints: vec![keep.scratch.clone()], certificates: None, server_name: None };
    let scratch = source.members().await?.pop().context("no scratch etcd given")?;
    let revision = begun(&scratch).await?;
    ensure!(
        revision >= taken.revision,
        "the snapshot restores to revision {revision}, but etcd was already at {} when it was taken",
        taken.revision
    );
    let (keys, digest) = (scratch.keys(revision).await?, scratch.digest(revision).await?);
    let mut why = None;
    for member in keep.source.members().await? {
        let says = async { Ok::<_, anyhow::Error>((member.keys(revision).await?, member.digest(revision).await?)) };
        match says.await {
            Ok((live, _)) if live != keys => {
                bail!("the snapshot restores to {keys} keys at revision {revision}, but {} has {live}", member.url)
            }
            // Hashes from different compact revisions cover different data.
            Ok((_, live)) if live.1 == digest.1 && live.0 != digest.0 => {
                bail!("the snapshot differs from the data of {} at revision {revision} (hash mismatch)", member.url)
            }
            Ok(_) => return Ok((revision, keys)),
            Err(error) => why = Some(error),
        }
    }
    Err(why.context("no etcd endpoint given")?.context("cannot compare etcd with the restored snapshot"))
}

/// The revision of the scratch etcd, once it answers.
async fn begun(scratch: &Etcd) -> Result<i64> {
    let deadline = Instant::now() + FIRST_ATTEMPT_WINDOW;
    loop {
        match scratch.revision().await {
            Ok(revision) => return Ok(revision),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("timed out waiting for the scratch etcd"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Removes the oldest snapshots beyond the number to keep; returns the first of the rest, newest first, and names of later times last.
async fn prune(keep: &KeepOptions) -> Result<Vec<String>> {
    let mut all = keep.place.list().await?;
    all.sort_unstable_by(|one, two| two.cmp(one));
    // The snapshot that was just taken counts as the newest. A client that may write to the store, but not delete, could otherwise have all snapshots
    // removed by names of later times.
    let later = all.iter().take_while(|name| **name > keep.name).count();
    let mut kept = all;
    let mut old = kept.split_off(kept.len().min(later + keep.keep.max(1)));
    let oldest = old.split_off(old.len().saturating_sub(MAX_REMOVED));
    kept.append(&mut old);
    for name in oldest {
        if keep.spare.as_ref() == Some(&name) {
            kept.push(name);
        } else {
            keep.place.remove(&name).await?;
        }
    }
    kept.rotate_left(later);
    kept.truncate(MAX_LISTED);
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{described, encryption};

    fn keeping(folders: &[tempfile::TempDir; 3], most: usize) -> KeepOptions {
        let [folder, work, secret] = folders;
        KeepOptions {
            name: "20260103-000000".to_owned(),
            work: work.path().to_owned(),
            source: EtcdEndpoint { endpoints: Vec::new(), certificates: None, server_name: None },
            scratch: String::new(),
            place: SnapshotStore::Folder(folder.path().to_owned()),
            encryption: encryption(secret.path()),
            keep: most,
            spare: None,
            cluster_keys: None,
        }
    }

    #[tokio::test]
    async fn files_of_others_let_no_snapshot_go() {
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let ([folder, work, _], keep) = (&folders, keeping(&folders, 2));
        let KeepOptions { place, encryption, .. } = &keep;
        let file = work.path().join(crate::FILE);
        std::fs::write(&file, b"all of it").unwrap();
        for name in ["20260101-000000", "20260102-000000", "20260103-000000"] {
            place.put(encryption, &file, &described(name, b"all of it"), None, None).await.unwrap();
        }
        let others = ["1-report.json", "notes.json", "99990101-000000.json", "99990102-000000.json"];
        for other in others {
            std::fs::write(folder.path().join(other), b"{}").unwrap();
        }
        let kept = prune(&keep).await.unwrap();
        assert_eq!(kept, ["20260103-000000", "20260102-000000", "99990102-000000", "99990101-000000"]);
        for there in others.into_iter().chain(["20260103-000000.db", "20260102-000000.db"]) {
            assert!(folder.path().join(there).exists(), "{there}");
        }
        assert!(!folder.path().join("20260101-000000.db").exists());
    }

    #[tokio::test]
    async fn files_of_others_with_names_of_earlier_times_let_snapshots_go_slowly() {
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let keep = keeping(&folders, 28);
        let real = ["20251231-000000", "20260101-000000", "20260102-000000", "20260103-000000"].map(str::to_owned);
        let others = (0..27).map(|number| format!("20260102-2359{number:0>2}"));
        for name in real.iter().cloned().chain(others) {
            std::fs::write(folders[0].path().join(format!("{name}.json")), b"{}").unwrap();
        }
        let kept = prune(&keep).await.unwrap();
        assert_eq!(kept.len(), 29);
        let left: Vec<_> = real.iter().filter(|name| kept.contains(name)).collect();
        assert_eq!(left, ["20260102-000000", "20260103-000000"]);
    }

    #[tokio::test]
    async fn the_report_about_many_snapshots_is_not_cut_off() {
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let keep = keeping(&folders, 1000);
        for number in 0..300 {
            std::fs::write(folders[0].path().join(format!("20260102-{number:0>6}.json")), b"{}").unwrap();
        }
        let SnapshotInfo { name, taken, revision, keys } = described("20260103-000000", b"all of it");
        let kept = prune(&keep).await.unwrap();
        assert_eq!(kept.first().map(String::as_str), Some("20260102-000299"));
        let (bytes, key_id, etcd) = (1 << 40, Some("0".repeat(16)), taken.etcd);
        let report = SnapshotReport { name, at: taken.at, bytes, revision, keys, kept, key_id, etcd };
        let said = serde_json::to_string(&report).unwrap();
        assert!(said.len() <= 12 * 1024 / 4, "{} bytes", said.len());
        assert_eq!(std::fs::read_dir(folders[0].path()).unwrap().count(), 300, "all are kept");
    }
}

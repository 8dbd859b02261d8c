//! Compares a snapshot with what it restores to, and puts it in its place.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleetwright_plan::cluster::snapshots::SnapshotReport;

use crate::etcd::{Etcd, EtcdEndpoint};
use crate::store::{Encryption, SnapshotInfo, SnapshotStore, read_small};
use crate::take::SnapshotTaken;

/// The scratch etcd begins within this time.
const FIRST_ATTEMPT_WINDOW: Duration = Duration::from_secs(120);

/// So many names are told, as many as the status has. The kubelet cuts what a container says at its end off after 4096 bytes, and after 3072 in a pod of four:
/// what is cut off is no report, and each snapshot would count as failed.
const MAX_LISTED: usize = 100;

/// One snapshot was taken, so one is to go. Files of others with names of earlier times let real ones go no faster than this, and people see it coming.
const MOST_REMOVED: usize = 2;

/// What is kept, and where.
#[derive(Clone, Debug)]
pub struct KeepOptions {
    /// The snapshot's name.
    pub name: String,
    /// The folder that [`take`](crate::take()) worked in.
    pub work: PathBuf,
    /// The etcd that it was taken from.
    pub source: EtcdEndpoint,
    /// The etcd that it was restored into.
    pub scratch: String,
    /// Where it goes.
    pub place: SnapshotStore,
    /// With what it is encrypted.
    pub encryption: Encryption,
    /// How many are kept.
    pub keep: usize,
    /// One that is not removed, whatever its age.
    pub spare: Option<String>,
    /// The file with the sealed keys of the Cluster, which go with it. One that does not exist is left out.
    pub cluster_keys: Option<PathBuf>,
}

/// Compares, puts it in its place, removes old ones, and tells what there is now.
///
/// # Errors
/// It does not restore to what etcd says, or there is no place for it.
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

/// The revision and the number of keys that both agree on.
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
            // From different revisions on, they cover different things.
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

/// Removes the oldest beyond the newest ones; answers the first of what is left, newest first, and names of later times last.
async fn prune(keep: &KeepOptions) -> Result<Vec<String>> {
    let mut all = keep.place.list().await?;
    all.sort_unstable_by(|one, two| two.cmp(one));
    // The one that was just taken is the newest that there is. Who can write where snapshots are kept, but remove nothing there, could have all of them removed by
    // names of later times.
    let later = all.iter().take_while(|name| **name > keep.name).count();
    let mut kept = all;
    let mut old = kept.split_off(kept.len().min(later + keep.keep.max(1)));
    let oldest = old.split_off(old.len().saturating_sub(MOST_REMOVED));
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
    async fn what_is_told_of_many_snapshots_is_not_cut_off() {
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

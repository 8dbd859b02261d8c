//! Compares a snapshot with what it restores to, and puts it in its place.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fleetwright_plan::cluster::snapshots::Report;

use crate::etcd::{Etcd, Source};
use crate::store::{Described, Encryption, Place, read_small};
use crate::take::Taken;

/// The scratch etcd begins within this time.
const BEGINS: Duration = Duration::from_secs(120);

/// What is kept, and where.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The snapshot's name.
    pub name: String,
    /// The folder that [`take`](crate::take()) worked in.
    pub work: PathBuf,
    /// The etcd that it was taken from.
    pub source: Source,
    /// The etcd that it was restored into.
    pub scratch: String,
    /// Where it goes.
    pub place: Place,
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
pub async fn keep(keep: &Keep) -> Result<Report> {
    let taken = Taken::read(&keep.work)?;
    let (revision, keys) = compare(keep, &taken).await?;
    let described = Described { name: keep.name.clone(), taken: taken.clone(), revision, keys };
    let file = keep.work.join(crate::FILE);
    let cluster_keys = keep.cluster_keys.as_deref().map(read_small).transpose()?.flatten();
    let (sealed, spare) = (cluster_keys.as_deref(), keep.spare.as_deref());
    let key_id = keep.place.put(&keep.encryption, &file, &described, sealed, spare).await?;
    let kept = prune(keep).await?;
    let name = keep.name.clone();
    Ok(Report { name, at: taken.at, bytes: taken.bytes, revision, keys, kept, key_id: Some(key_id) })
}

/// The revision and the number of keys that both agree on.
async fn compare(keep: &Keep, taken: &Taken) -> Result<(i64, u64)> {
    let source = Source { endpoints: vec![keep.scratch.clone()], certificates: None, server_name: None };
    let scratch = source.members().await?.pop().context("a scratch etcd is named")?;
    let revision = begun(&scratch).await?;
    ensure!(
        revision >= taken.revision,
        "it restores to revision {revision}, and etcd was at {} before it was taken",
        taken.revision
    );
    let (keys, digest) = (scratch.keys(revision).await?, scratch.digest(revision).await?);
    let mut why = None;
    for member in keep.source.members().await? {
        let says = async { Ok::<_, anyhow::Error>((member.keys(revision).await?, member.digest(revision).await?)) };
        match says.await {
            Ok((live, _)) if live != keys => {
                bail!("it restores to {keys} keys at revision {revision}, and {} has {live}", member.url)
            }
            // From different revisions on, they cover different things.
            Ok((_, live)) if live.1 == digest.1 && live.0 != digest.0 => {
                bail!("it restores to other keys at revision {revision} than {} has", member.url)
            }
            Ok(_) => return Ok((revision, keys)),
            Err(error) => why = Some(error),
        }
    }
    Err(why.context("no member of etcd was named")?.context("etcd cannot be compared with what was restored"))
}

/// The revision of the scratch etcd, once it answers.
async fn begun(scratch: &Etcd) -> Result<i64> {
    let deadline = Instant::now() + BEGINS;
    loop {
        match scratch.revision().await {
            Ok(revision) => return Ok(revision),
            Err(error) if Instant::now() > deadline => return Err(error.context("the scratch etcd does not begin")),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Removes what is older than the newest ones; answers what is left, newest first.
async fn prune(keep: &Keep) -> Result<Vec<String>> {
    let mut all = keep.place.list().await?;
    all.sort_unstable_by(|one, two| two.cmp(one));
    let (mut kept, mut old) = (all.clone(), Vec::new());
    if all.len() > keep.keep {
        old = kept.split_off(keep.keep.max(1));
    }
    for name in old {
        if keep.spare.as_ref() == Some(&name) {
            kept.push(name);
        } else {
            keep.place.remove(&name).await?;
        }
    }
    Ok(kept)
}

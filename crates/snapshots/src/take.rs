//! Takes a snapshot.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{AsyncBufReadExt as _, StreamExt as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::FILE;
use crate::etcd::{Etcd, Source};

/// What is known of a snapshot when it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// When it was asked for: it has all that was written until then.
    pub at: Timestamp,
    /// The revision that etcd was at.
    pub revision: i64,
    /// How many bytes it has.
    pub bytes: u64,
    /// The digest of these.
    pub sha256: String,
}

impl Taken {
    /// What [`take`] left in that folder.
    pub(crate) fn read(work: &Path) -> Result<Self> {
        let path = work.join("taken.json");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// Asks one member after the other for all it has, until one gave it; `work` has it as `db` then.
///
/// # Errors
/// None of them did; says why the last one did not.
pub async fn take(source: &Source, work: &Path) -> Result<Taken> {
    let mut why = None;
    for member in source.members().await? {
        match from(&member, work).await {
            Ok(taken) => {
                std::fs::write(work.join("taken.json"), serde_json::to_vec(&taken)?)?;
                return Ok(taken);
            }
            Err(error) => why = Some(error),
        }
    }
    match why {
        Some(error) => Err(error.context("no member of etcd gave a snapshot")),
        None => bail!("no member of etcd was named"),
    }
}

async fn from(member: &Etcd, work: &Path) -> Result<Taken> {
    let (at, revision) = (Timestamp::now(), member.revision().await?);
    let path = work.join(FILE);
    let mut file = tokio::fs::File::create(&path).await.with_context(|| format!("cannot write {}", path.display()))?;
    let mut lines = Box::pin(member.stream("maintenance/snapshot").await?.lines());
    let (mut sum, mut bytes, mut left) = (Sha256::new(), 0, true);
    while let Some(line) = lines.next().await {
        let line = line.with_context(|| format!("{}: the snapshot broke off", member.url))?;
        if line.is_empty() {
            continue;
        }
        let piece: Value = serde_json::from_str(&line).context("a piece of the snapshot is no JSON")?;
        let result = &piece["result"];
        ensure!(result.is_object(), "{}: the snapshot broke off: {}", member.url, piece["error"]);
        let blob = BASE64_STANDARD.decode(result["blob"].as_str().unwrap_or_default())?;
        sum.update(&blob);
        bytes += blob.len() as u64;
        left = crate::etcd::number(&result["remaining_bytes"]) > 0;
        file.write_all(&blob).await.with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(!left && bytes > 0, "{}: the snapshot ended early", member.url);
    file.sync_all().await?;
    Ok(Taken { at, revision, bytes, sha256: hex(sum.finalize().as_slice()) })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Faults of a host in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Content;

/// The injected faults. The default is no fault, and a web that has every declared URL.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Every write fails.
    pub read_only: bool,
    /// The disk is full.
    pub full: bool,
    /// The duration of programs, unit changes and downloads, by the host's own clock.
    pub slow: Duration,
    /// Programs that hang: those whose arguments or input contain one of these texts.
    pub hung: Vec<String>,
    /// The host claims that it wrote a file, started a unit or set a sysctl, and did not.
    pub lies: bool,
    /// Units that do not start, or not with a certain version.
    pub spoilt: Arc<[BrokenUnit]>,
    /// The unit that serves an address or URL. Everything else answers while no unit failed.
    pub served_by: BTreeMap<String, String>,
    /// What can be downloaded.
    pub web: Web,
    /// A file that another process writes right before a lock is taken: the lock, the file, and its content then.
    pub before_lock: Option<(String, String, Vec<u8>)>,
    /// Number of the changing call, from 1 since this was set, during which the process is killed.
    pub crash_at: Option<u64>,
    /// Number of the changing call that hangs for ever; the process stays alive.
    pub hang_at: Option<u64>,
    /// Number of the changing call that fails; the process continues.
    pub fail_at: Option<u64>,
}

/// A unit that does not start while a file has a certain content, such as a link to a bad version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokenUnit {
    /// Name of the unit.
    pub unit: String,
    /// A file or link.
    pub path: String,
    /// Part of the file's content, or of the link's target. Empty: always.
    pub contains: String,
}

/// The web of hosts in memory. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub enum Web {
    /// Every URL has a large file with the wanted digest.
    #[default]
    AnyUrl,
    /// Only these URLs.
    OnlyUrls(Arc<BTreeMap<String, Vec<u8>>>),
    /// No network.
    Nothing,
}

impl Faults {
    pub(super) fn writable(&self) -> io::Result<()> {
        if self.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.removable()
    }

    pub(super) fn removable(&self) -> io::Result<()> {
        if self.read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    pub(super) fn fetched(&self, url: &str, to: &str) -> io::Result<Content> {
        match &self.web {
            Web::Nothing => Err(io::ErrorKind::NetworkUnreachable.into()),
            Web::OnlyUrls(table) => match table.get(url) {
                Some(bytes) => Ok(Content::of(to, bytes)),
                None => Err(io::Error::new(io::ErrorKind::NotFound, "status 404")),
            },
            // Files are stored by their digest: the path says which digest is wanted.
            Web::AnyUrl => {
                let name = to.rsplit('/').next().unwrap_or_default();
                let digest = name.get(..64).unwrap_or(name);
                Ok(Content::Claimed { sha256: super::content::name(digest), size: 32 << 20 })
            }
        }
    }
}

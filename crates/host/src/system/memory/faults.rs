//! What goes wrong on a host in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Content;

/// What goes wrong by itself. The default is nothing, and a web on which every URL has what is declared.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Nothing can be written.
    pub read_only: bool,
    /// There is no room.
    pub full: bool,
    /// Programs, units and fetches take this long, by the host's own clock.
    pub slow: Duration,
    /// Programs that hang: those whose arguments or input contain one of these texts.
    pub hung: Vec<String>,
    /// Says that it wrote a file, started a unit or set a sysctl, and did not.
    pub lies: bool,
    /// Units that do not come up, or not with a certain version.
    pub spoilt: Arc<[BrokenUnit]>,
    /// What answers, by address or URL: only while that unit runs. Everything else answers while no unit failed.
    pub served_by: BTreeMap<String, String>,
    /// What can be fetched.
    pub web: Web,
    /// Right before that lock is taken, another process writes a file: the lock, the file, and what is in it then.
    pub before_lock: Option<(String, String, Vec<u8>)>,
    /// At this call that changes something, counted from 1 since it was set, the process ends in the middle of it.
    pub crash_at: Option<u64>,
    /// The same, but the process stays, and neither ends nor goes on.
    pub hang_at: Option<u64>,
    /// That call fails, and the process goes on.
    pub fail_at: Option<u64>,
}

/// A unit that does not come up while a file says a certain thing, such as while a link leads to a bad version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokenUnit {
    /// The unit.
    pub unit: String,
    /// A file or link.
    pub path: String,
    /// Part of the file's content, or of where the link leads. Empty: always.
    pub contains: String,
}

/// What can be fetched by hosts in memory. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub enum Web {
    /// Every URL has a large file with the digest that is wanted.
    #[default]
    AnyUrl,
    /// These and no others.
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
            // Files are kept by their digest: the name says which is wanted.
            Web::AnyUrl => {
                let name = to.rsplit('/').next().unwrap_or_default();
                let digest = name.get(..64).unwrap_or(name);
                Ok(Content::Claimed { sha256: super::content::name(digest), size: 32 << 20 })
            }
        }
    }
}

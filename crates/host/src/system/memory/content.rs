//! The content of files: stored once, however many hosts have it, and hashed once.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

use crate::text::sha256;

/// The content of a file. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Content {
    /// These bytes.
    Bytes(Arc<Blob>),
    /// A large file without its bytes, which are never read.
    Claimed {
        /// Digest of the file.
        sha256: Arc<str>,
        /// Size of the file.
        size: u64,
    },
}

/// Bytes, and their digest once it was requested.
#[derive(Debug)]
pub struct Blob {
    bytes: Box<[u8]>,
    sha256: OnceLock<Box<str>>,
}

type Pool = HashMap<u64, Vec<Weak<Blob>>>;

static POOL: LazyLock<Mutex<(Pool, usize)>> = LazyLock::new(|| Mutex::new((HashMap::new(), 1024)));

impl Content {
    /// Bytes for a file at that path.
    pub fn of(path: &str, bytes: &[u8]) -> Self {
        // No two records are equal: looking for an equal one saves nothing.
        if path.contains("/journal/") {
            return Self::Bytes(Arc::new(Blob { bytes: bytes.into(), sha256: OnceLock::new() }));
        }
        Self::Bytes(shared(bytes))
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(blob) => blob.bytes.len() as u64,
            Self::Claimed { size, .. } => *size,
        }
    }

    /// The bytes; none of a file without its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(blob) => &blob.bytes,
            Self::Claimed { .. } => &[],
        }
    }

    /// The sha256 in hex.
    pub fn sha256(&self) -> &str {
        match self {
            Self::Bytes(blob) => blob.sha256.get_or_init(|| sha256(&blob.bytes).into()),
            Self::Claimed { sha256, .. } => sha256,
        }
    }
}

fn shared(bytes: &[u8]) -> Arc<Blob> {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let hash = hasher.finish();
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let (blobs, sweep_at) = &mut *pool;
    if blobs.len() >= *sweep_at {
        blobs.retain(|_, blobs| {
            blobs.retain(|blob| blob.strong_count() > 0);
            !blobs.is_empty()
        });
        *sweep_at = (2 * blobs.len()).max(1024);
    }
    let blobs = blobs.entry(hash).or_default();
    if let Some(blob) = blobs.iter().filter_map(Weak::upgrade).find(|blob| *blob.bytes == *bytes) {
        return blob;
    }
    let blob = Arc::new(Blob { bytes: bytes.into(), sha256: OnceLock::new() });
    blobs.push(Arc::downgrade(&blob));
    blob
}

/// An interned path.
pub(super) fn name(text: &str) -> Arc<str> {
    static NAMES: LazyLock<Mutex<HashMap<Box<str>, Arc<str>>>> = LazyLock::new(Mutex::default);
    // Paths of records are unique: interning them would only use memory.
    if text.contains("/journal/") {
        return text.into();
    }
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.len() > 100_000 {
        names.retain(|_, name| Arc::strong_count(name) > 1);
    }
    names.entry(text.into()).or_insert_with(|| text.into()).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_of_two_hosts_is_held_once() {
        let (Content::Bytes(one), Content::Bytes(two)) = (Content::of("/a", b"same"), Content::of("/b", b"same"))
        else {
            panic!("bytes are bytes");
        };
        assert!(Arc::ptr_eq(&one, &two));
    }
}

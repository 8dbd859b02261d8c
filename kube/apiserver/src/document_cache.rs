//! The cache of discovery and OpenAPI documents.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;

/// The documents of one state of the registry, created on first use.
#[derive(Default)]
pub(crate) struct DocumentCache(Mutex<BTreeMap<String, Option<Bytes>>>);

impl DocumentCache {
    /// The document of this name; created when it is new.
    pub(crate) fn get(&self, name: &str, make: impl FnOnce() -> Option<Bytes>) -> Option<Bytes> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(name) {
            return known.clone();
        }
        // Created without the lock: the index of OpenAPI needs every document.
        let made = make();
        // Unknown names are not cached: a client could request any number of them.
        if made.is_some() {
            lock().insert(name.to_owned(), made.clone());
        }
        made
    }
}

/// The shared documents of all servers without custom resources.
static BUILTIN: LazyLock<Arc<DocumentCache>> = LazyLock::new(Arc::default);

/// The documents of one server.
#[derive(Default)]
pub(crate) struct Documents(Mutex<Option<(u64, Arc<DocumentCache>)>>);

impl Documents {
    /// The documents of this state of the registry.
    pub(crate) fn at(&self, generation: u64, customs: usize) -> Arc<DocumentCache> {
        if customs == 0 {
            return BUILTIN.clone();
        }
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((at, set)) if *at == generation => set.clone(),
            _ => {
                let set = Arc::new(DocumentCache::default());
                *current = Some((generation, set.clone()));
                set
            }
        }
    }
}

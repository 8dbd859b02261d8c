//! Lists of the present, and of any revision in the history.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{Compacted, Key, Object, Store};

/// Part of a list.
#[derive(Debug)]
pub struct Page {
    /// The objects, in the order of their keys.
    pub objects: Vec<Arc<Object>>,
    /// The revision of the list.
    pub revision: u64,
    /// The last key of this page, when objects come after it: the start of the next page.
    pub next: Option<Key>,
    /// The number of objects after this page, whether or not they pass the filter; none for the last page.
    pub remaining: Option<usize>,
}

impl Store {
    /// The objects that pass a filter, of one namespace or of all, as they are or as they were at a revision, after a
    /// key, at most `limit` (0: all).
    pub fn page(
        &self,
        resource: &str,
        namespace: Option<&str>,
        at: Option<u64>,
        after: Option<&Key>,
        limit: usize,
        mut filter: impl FnMut(&Object) -> bool,
    ) -> Result<Page, Compacted> {
        let state = self.inner.read();
        let revision = at.unwrap_or(state.revision).min(state.revision);
        let nothing = BTreeMap::new();
        let (present, past) = match state.tables.get(resource) {
            Some(table) => (&table.objects, table.history.undo(revision)?),
            None if revision < state.floor(resource) => {
                return Err(Compacted { requested: revision, oldest: state.floor(resource) });
            }
            None => (&nothing, BTreeMap::new()),
        };

        let first = namespace.map(|namespace| Key::new(namespace, ""));
        let from = match (after, &first) {
            (Some(after), Some(first)) if after < first => Bound::Included(first),
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let inside = |key: &Key| namespace.is_none_or(|namespace| key.namespace.as_ref() == namespace);
        let mut all = Merged {
            present: present.range((from, Bound::Unbounded)).peekable(),
            past: past.range((from, Bound::Unbounded)).peekable(),
        }
        .take_while(|object| inside(&object.key));

        let mut page = Page { objects: Vec::new(), revision, next: None, remaining: None };
        for object in all.by_ref() {
            if limit > 0 && page.objects.len() == limit {
                page.next = page.objects.last().map(|last| last.key.clone());
                page.remaining = Some(1 + all.count());
                break;
            }
            if filter(object) {
                page.objects.push(object.clone());
            }
        }
        Ok(page)
    }
}

/// The present objects with the history applied over them.
struct Merged<'a> {
    present: std::iter::Peekable<std::collections::btree_map::Range<'a, Key, Arc<Object>>>,
    past: std::iter::Peekable<std::collections::btree_map::Range<'a, Key, Option<Arc<Object>>>>,
}

impl<'a> Iterator for Merged<'a> {
    type Item = &'a Arc<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let overlaid = match (self.present.peek(), self.past.peek()) {
                (Some((now, _)), Some((then, _))) if now < then => false,
                (_, None) => false,
                _ => true,
            };
            if !overlaid {
                return self.present.next().map(|(_, object)| object);
            }
            let (key, object) = self.past.next()?;
            self.present.next_if(|(now, _)| *now == key);
            if let Some(object) = object {
                return Some(object);
            }
        }
    }
}

//! What the API server holds, close at hand: one watch for each kind, cut down to what is read, indexed.

use std::fmt::Debug;
use std::sync::Arc;

use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::Key;

/// What a cache keeps of an object.
pub trait View: Send + Sync + Debug + 'static {
    /// The object as it is decoded from the API server. It may be a type that leaves out fields nobody reads.
    type Object: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static;

    /// Keeps what is read and drops the rest (managedFields first of all).
    fn of(object: Self::Object) -> Self;
}

/// Where a cache comes from: the objects to watch and the indexes to keep.
pub struct Source<V: View> {
    _api: Api<V::Object>,
}

impl<V: View> Source<V> {
    /// All objects that `api` reaches.
    pub fn new(_api: Api<V::Object>) -> Self {
        todo!()
    }

    /// Only those with these labels.
    #[must_use]
    pub fn labels(self, _selector: &str) -> Self {
        todo!()
    }

    /// Keeps an index: `values` gives the values under which an object is found.
    #[must_use]
    pub fn index(self, _name: &'static str, _values: fn(&Key, &V) -> Vec<String>) -> Self {
        todo!()
    }
}

/// A change that a cache saw.
#[derive(Debug)]
pub struct Change<'a, V> {
    /// Of which object.
    pub key: &'a Key,
    /// As it was; none for a new one.
    pub old: Option<&'a Arc<V>>,
    /// As it is; none if it is gone.
    pub new: Option<&'a Arc<V>>,
}

/// The objects of one kind; cheap to clone.
pub struct Cache<V: View> {
    _inner: Arc<V>,
}

impl<V: View> Clone for Cache<V> {
    fn clone(&self) -> Self {
        todo!()
    }
}

impl<V: View> Cache<V> {
    /// The object, if there is one.
    pub fn get(&self, _key: &Key) -> Option<Arc<V>> {
        todo!()
    }

    /// The objects with that value in that index, in the order of their keys.
    pub fn by(&self, _index: &'static str, _value: &str) -> Vec<(Key, Arc<V>)> {
        todo!()
    }

    /// How many have that value in that index.
    pub fn count(&self, _index: &'static str, _value: &str) -> usize {
        todo!()
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<Key> {
        todo!()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the answer of our own write, so that nobody decides on what was before it. Ignored if the watch was faster.
    pub fn written(&self, _object: V::Object) {
        todo!()
    }
}

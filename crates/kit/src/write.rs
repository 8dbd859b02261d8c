//! Writes that never overwrite what they did not see.

use std::time::Duration;

use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Cache, Key, Remedy, View};

/// Why a write did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody else wrote in between: decide again.
    #[error("{what}: {message}")]
    Conflict {
        /// What was written.
        what: String,
        /// What the API server said.
        message: String,
    },
    /// The object is gone.
    #[error("{0} is gone")]
    Gone(String),
    /// The API server refuses it, and will again.
    #[error("{what}: the API server refuses it ({code}): {message}")]
    Refused {
        /// What was written.
        what: String,
        /// The HTTP status.
        code: u16,
        /// What the API server said.
        message: String,
    },
    /// The API server asks to wait.
    #[error("{what}: the API server asks to wait {after:?}")]
    Later {
        /// What was written.
        what: String,
        /// For how long.
        after: Duration,
    },
    /// No answer came: it may have been written.
    #[error("{what}: no answer, it may have been written: {message}")]
    Unknown {
        /// What was written.
        what: String,
        /// What happened.
        message: String,
    },
    /// We do not lead, or could have stopped leading: nothing was sent.
    #[error("{0}: not sent, the lease could have ended")]
    Fenced(String),
}

impl WriteError {
    /// What to do about it.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Conflict { .. } | Self::Gone(_) => Remedy::Again,
            Self::Refused { .. } => Remedy::Person,
            Self::Later { after, .. } => Remedy::Wait(*after),
            Self::Unknown { .. } | Self::Fenced(_) => Remedy::Retry,
        }
    }

    /// One word in CamelCase.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "WriteConflict",
            Self::Gone(_) => "ObjectGone",
            Self::Refused { .. } => "WriteRefused",
            Self::Later { .. } => "ServerBusy",
            Self::Unknown { .. } => "NoAnswer",
            Self::Fenced(_) => "NotLeading",
        }
    }
}

/// Writes for one controller, under its field manager, and tells the caches.
///
/// Every write has a precondition, so that one decided on stale data is refused by the server instead of undoing another's.
pub struct Writer {
    _inner: (),
}

impl Writer {
    /// Applies fields of the status, server-side, provided that the object still has that resourceVersion.
    /// `status` holds what this controller owns, whole: what it leaves out, it gives up.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn apply_status<V>(
        &self,
        _cache: &Cache<V>,
        _key: &Key,
        _version: &str,
        _status: Value,
    ) -> Result<(), WriteError>
    where
        V: View,
    {
        todo!()
    }

    /// A merge patch of the status, provided that the object still has that resourceVersion: the fields that `status` names get
    /// these values whole, lists too, whoever wrote them before. For status that several controllers write in turn,
    /// such as the holders of an OperationPolicy.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn merge_status<V>(&self, _cache: &Cache<V>, _key: &Key, _version: &str, _status: Value) -> Result<(), WriteError>
    where
        V: View,
    {
        todo!()
    }

    /// A JSON patch, which should begin with `test` operations on what the decision relied on. A failed test is a conflict.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn json_patch<V>(&self, _cache: &Cache<V>, _key: &Key, _patch: Value) -> Result<(), WriteError>
    where
        V: View,
    {
        todo!()
    }

    /// Creates an object with a name of its own; `Ok(false)` if one with that name exists already.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn create<K>(&self, _object: &K) -> Result<bool, WriteError>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    {
        todo!()
    }

    /// Deletes the object with that uid and resourceVersion.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete<V>(&self, _cache: &Cache<V>, _key: &Key, _uid: &str, _version: &str) -> Result<(), WriteError>
    where
        V: View,
    {
        todo!()
    }
}

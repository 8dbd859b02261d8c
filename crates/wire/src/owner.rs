//! Who a host belongs to. One Machine of one API server at a time; others may look at the host and change nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The Machine that a host belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The API server that has the Machine: the uid of its namespace kube-system.
    pub cluster: String,
    /// The Machine's namespace, for people.
    pub namespace: String,
    /// The Machine's name, for people.
    pub name: String,
    /// The Machine's uid. A Machine that was deleted and created again, or restored from a backup, is another one.
    pub uid: String,
}

impl Owner {
    /// Whether both are the same Machine of the same API server.
    pub fn is(&self, other: &Self) -> bool {
        self.uid == other.uid && self.cluster == other.cluster
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, namespace, name, uid } = self;
        write!(f, "Machine {namespace}/{name} (uid {uid}) of the cluster {cluster}")
    }
}

/// What a host remembers of its owner, in a file that is root's alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Who it belongs to.
    pub owner: Owner,
    /// How often it changed hands: 1 for who claimed it, one more with each adoption.
    pub epoch: u64,
    /// The highest fencing token of the owner's operators that was heard in this epoch.
    pub fence: u64,
}

/// Who asks for a change. Every request that changes a host carries it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The Machine on whose behalf it is asked.
    pub owner: Owner,
    /// The epoch of the mark that was seen; 0 if the host had no owner.
    pub epoch: u64,
    /// The fencing token of the leader that asks: a host does not listen to a lower one than the highest that it heard. 0 without a
    /// lease: then nothing is compared.
    pub fence: u64,
}

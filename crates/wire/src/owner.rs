//! The owner of a host: one Machine of one API server at a time; others may observe the host and change nothing.

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
    /// The Machine's uid. A Machine that was recreated, or restored from a backup, has another one.
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

/// The owner mark of a host, in a file that only root can read and write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// The owner.
    pub owner: Owner,
    /// Number of the ownership: 1 for the first claim, one more with each adoption.
    pub epoch: u64,
    /// The highest fencing token received from the owner's operators in this epoch.
    pub fence: u64,
}

/// The identity of the caller. Every request that changes a host has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The Machine for which the change is requested.
    pub owner: Owner,
    /// The epoch of the observed mark; 0 if the host had no owner.
    pub epoch: u64,
    /// The fencing token of the calling leader: a host refuses a lower one than the highest that it received. 0 without a
    /// lease: then nothing is compared.
    pub fence: u64,
}

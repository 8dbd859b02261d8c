//! Snapshots of etcd, for the pods of the Cluster-Operator: each step is a command in a container of its own.
//!
//! - [`take`]: saves a snapshot of an etcd member to a file;
//! - [`SnapshotStore::fetch`]: downloads a stored snapshot to a file;
//! - [`place`]: makes a restored data directory the data of a member; the old data is moved aside until [`clean`];
//! - [`keep`]: compares the data of a scratch etcd, restored from the file, with that of etcd, stores the file, and removes old snapshots.
//!
//! Stored snapshots are encrypted and authenticated (`seal`). The keys of the Cluster, which are not in etcd, are stored beside them
//! ([`SnapshotStore::cluster_keys`]); the Cluster-Operator has sealed them.
//!
//! A snapshot counts from the moment its description is stored: a file without one is left over from a failed attempt.

mod etcd;
mod restore;
mod s3;
mod seal;
mod sign;
mod store;
mod take;
mod verify;

pub use etcd::EtcdEndpoint;
pub use restore::{clean, clear, place};
pub use s3::Bucket;
pub use seal::EncryptionKeys;
pub use store::{Encryption, SnapshotInfo, SnapshotStore};
pub use take::{SnapshotTaken, take};
pub use verify::{KeepOptions, keep};

/// File name of the snapshot in progress.
pub const FILE: &str = "db";

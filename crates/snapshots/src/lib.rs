//! Snapshots of etcd, as the pods of the Cluster-Operator handle them: each step is a command of its own, in a container of its own.
//!
//! - [`take`]: a member of etcd is asked for all it has, which becomes a file;
//! - [`SnapshotStore::fetch`]: one that is kept becomes a file again;
//! - [`place`]: what a file was restored to becomes the data of a member, and what it had before is set aside until [`clean`];
//! - [`keep`]: what a scratch etcd made of that file is compared with what etcd says, the file is put in its place, and old ones go.
//!
//! What is kept is encrypted and authenticated (`seal`). The keys of the Cluster, which are not in etcd, are kept beside it ([`SnapshotStore::cluster_keys`]); the
//! Cluster-Operator has sealed them.
//!
//! A snapshot counts from the moment its description is beside it: a file without one is what an attempt before left behind.

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

/// The file of a snapshot that is being worked on.
pub const FILE: &str = "db";

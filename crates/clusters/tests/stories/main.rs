//! What becomes of Clusters in a simulated meta cluster.

mod authorities;
mod before;
mod borrowed;
mod datastore;
mod etcd_minors;
mod extensions;
mod heal;
mod joined;
mod keys;
mod leases;
mod life;
mod limits;
mod paused;
mod policies;
mod refusals;
mod rehearsal;
mod snapshots;
mod support;
mod tenants;
mod versions;

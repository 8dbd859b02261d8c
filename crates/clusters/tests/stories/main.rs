//! What becomes of Clusters in a simulated meta cluster.

mod authorities;
mod before;
mod borrowed;
mod datastore;
mod extensions;
mod heal;
mod joined;
mod keys;
mod leases;
mod life;
mod limits;
mod policies;
mod refusals;
mod snapshots;
mod support;
mod tenants;
mod versions;

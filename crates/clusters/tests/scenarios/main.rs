//! What becomes of Clusters in a simulated meta cluster.

mod authorities;
mod copied_secrets;
mod datastore;
mod deletion;
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
mod preflight_checks;
mod refusals;
mod rehearsal;
mod snapshots;
mod support;
mod tenants;
mod versions;

//! What becomes of Clusters in a simulated meta cluster.

mod datastore;
mod extensions;
mod joined;
mod life;
mod snapshots;
mod support;
mod versions;

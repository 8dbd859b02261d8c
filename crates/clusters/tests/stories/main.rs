//! What becomes of Clusters in a simulated meta cluster.

mod life;
mod support;
mod versions;

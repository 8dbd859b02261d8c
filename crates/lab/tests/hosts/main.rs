//! Hosts of the lab.

mod boots;
#[path = "../common/mod.rs"]
mod common;
mod emulated;
mod node;

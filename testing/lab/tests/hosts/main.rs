//! Hosts of the lab.

mod boots;
#[path = "../shared/common.rs"]
mod common;
mod emulated;
mod node;

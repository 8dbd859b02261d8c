//! The steps of the helper: on hosts in memory, and on files in a directory.

#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod memory;
mod packages;
mod real;

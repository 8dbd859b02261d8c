//! The steps of the helper: on hosts in memory, and on files in a directory.

#[path = "../shared/common.rs"]
mod common;
mod crashes;
mod memory;
mod packages;
mod real;

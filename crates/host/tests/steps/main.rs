//! What the helper does step by step: on hosts in memory, and on files of a folder.

#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod memory;
mod packages;
mod real;

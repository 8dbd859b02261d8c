//! Patches, and the ownership of fields after them.

mod common;
mod ownership;
mod server_side_apply;
mod strategic_merge_patch;

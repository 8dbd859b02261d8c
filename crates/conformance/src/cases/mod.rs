//! The cases, by area.

use crate::Case;

mod apply;
mod errors;
mod lists;
mod metadata;
mod verbs;
mod watches;

/// All of them.
pub fn all() -> Vec<Case> {
    [verbs::cases(), apply::cases(), lists::cases(), watches::cases(), metadata::cases(), errors::cases()].concat()
}

//! The cases, by area.

use crate::Case;

mod apply;
mod builtins;
mod crds;
mod discovery;
mod errors;
mod identity;
mod lists;
mod metadata;
mod patches;
mod verbs;
mod watches;

/// All of them.
pub fn all() -> Vec<Case> {
    [
        identity::cases(),
        verbs::cases(),
        apply::cases(),
        patches::cases(),
        lists::cases(),
        watches::cases(),
        metadata::cases(),
        crds::cases(),
        discovery::cases(),
        builtins::cases(),
        errors::cases(),
    ]
    .concat()
}

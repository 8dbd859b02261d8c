//! Writes: create, update, patch, apply and delete, the same way for every resource.
//!
//! Expected flow: decode → admit → set managed fields → prepare → validate → commit. After a conflict a write is decided again
//! from the newer object, unless the client named the version that it wanted to change.

mod checks;
pub(crate) mod create;
pub(crate) mod decode;
pub(crate) mod delete;
pub(crate) mod options;
pub(crate) mod patch;
pub(crate) mod update;

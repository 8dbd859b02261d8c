//! CustomResourceDefinitions: their validation, the resources that they define, and the handling of their objects.
//!
//! Everything here is a function of JSON values; nothing reads or writes the store.

mod columns;
mod definition;
mod deletion;
mod json_path;
mod rules;
mod status;
mod validation;
mod version;

pub use definition::{default, prepare_create, prepare_update, prune, warnings};
pub use deletion::{FINALIZER, has_condition, mark_for_deletion, set_condition};
pub use status::status;
pub use validation::validate;
pub use version::CustomVersion;

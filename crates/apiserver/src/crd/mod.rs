//! CustomResourceDefinitions: what may be in one, what it makes of the server, and how its objects are treated.
//!
//! Everything here is a function of JSON values; nothing reads or writes the store.

mod columns;
mod definition;
mod json_path;
mod rules;
mod status;
mod validation;
mod version;

pub use definition::{default, prepare_create, prepare_update, prune, warnings};
pub use status::status;
pub use validation::validate;
pub use version::CustomVersion;

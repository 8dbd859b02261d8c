//! Patches, server-side apply and field ownership.
//!
//! - [`json_patch`], [`merge_patch`] and [`strategic_merge_patch`] turn an object and a patch into a new object.
//! - [`update`] keeps `metadata.managedFields` through creates, updates and patches; [`apply`] is server-side apply.
//! - [`FieldSet`] is the set of field paths behind both.
//!
//! Everything here is pure: JSON values and a [`fleetwright_schema::Schema`] go in, JSON values or errors come out.

mod combine;
mod compare;
mod error;
mod field_set;
mod go_fmt;
mod json_patch;
mod last_applied;
mod managed;
mod manager;
mod merge_patch;
mod path;
mod strategic;
mod typed;

pub use error::{Conflict, MergeError, PatchError};
pub use field_set::FieldSet;
pub use go_fmt::plain as go_text;
pub use json_patch::json_patch;
pub use managed::keep_times_if_unchanged;
pub use manager::{Request, apply, manager_from_user_agent, update};
pub use merge_patch::merge_patch;
pub use path::{PathElement, path_to_string};
pub use strategic::strategic_merge_patch;

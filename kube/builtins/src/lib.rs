//! Kubernetes' built-in kinds, pure: one table, and what the API server knows about each row of it.
//!
//! - [`table`]: which kinds and subresources exist, and how discovery names them
//! - [`schemas`]: their structural schemas, from `k8s-openapi`'s types and the generated [`facts`]
//! - [`openapi`]: the OpenAPI v3 documents, for built-in kinds and custom resources alike
//! - [`printers`]: the columns that `kubectl get` shows
//! - [`defaults`], [`validation`], [`strategy`], [`meta`]: what happens to an object when it is written

mod access;
pub mod defaults;
pub mod facts;
pub mod meta;
pub mod names;
pub mod openapi;
pub mod printers;
pub mod protobuf;
pub mod schemas;
pub mod strategy;
pub mod table;
mod types;
pub mod validation;

pub use schemas::{object_meta, schema, type_schema};
pub use table::{KINDS, Kind, Subresource, find, find_kind};

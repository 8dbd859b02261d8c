//! Texts that Kubernetes reads with Go's libraries or its own, and that must mean here what they mean there.
//!
//! - [`regexp`]: regular expressions in the syntax of Go's `regexp`
//! - [`quantity`]: quantities such as `500m` and `1.5Gi`
//!
//! Everything here is pure: a text goes in, a compiled value or an error comes out. The texts are written by tenants, so
//! the time and the memory that one takes are bounded.

pub mod quantity;
pub mod regexp;

pub use quantity::Quantity;

//! The Machine-Operator: hosts driven to their packages over SSH, and kept there.

pub mod hosts;
pub mod join;

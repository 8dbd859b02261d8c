//! Pure decisions: the next action, from the declared state, the observed state, and the time.

pub mod cluster;
pub mod explain;
pub mod gate;
pub mod join;
pub mod machine;
pub mod operation;
pub mod package;
pub mod readiness;
pub mod skew;

//! What benchmarks need: the two servers as processes of their own, what /proc tells of them, and on what machine it was measured.

pub mod machine;
pub mod process;
mod servers;
mod shown;

pub use servers::{Server, Usage, fleetwright};
pub use shown::shown;

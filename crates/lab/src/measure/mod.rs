//! What benchmarks need: the two servers and other parts as processes of their own, what /proc and an operator's metrics tell of them, on what machine it was
//! measured, and the numbers for people and programs.

pub mod machine;
mod page;
mod part;
pub mod process;
mod rows;
mod servers;
mod shown;

pub use page::{Calls, Page};
pub use part::Part;
pub use rows::{Row, Rows, write};
pub use servers::{Server, Usage, fleetwright};
pub use shown::shown;

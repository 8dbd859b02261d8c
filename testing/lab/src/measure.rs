//! Tools for benchmarks: the two servers and other parts as processes, their resource use from /proc and an operator's metrics, a description of the
//! machine, and output for people and programs.

mod bench_process;
mod format_number;
pub mod machine;
mod metrics_endpoint;
pub mod process;
mod rows;
mod servers;

pub use bench_process::BenchProcess;
pub use format_number::format_number;
pub use metrics_endpoint::{Calls, MetricsEndpoint};
pub use rows::{Row, Rows, write};
pub use servers::{MeasuredServer, Usage, fleetwright};

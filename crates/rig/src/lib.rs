//! What tests operators: crashes at every call, seeded trouble, two leaders, counted calls.

pub mod call;
pub mod crash;
pub mod layer;
pub mod proxy;
pub mod recorder;
pub mod trouble;

pub use call::Call;
pub use crash::{Crash, Side};
pub use proxy::Proxy;
pub use recorder::{Record, Recorder};
pub use trouble::{Rates, Trouble};

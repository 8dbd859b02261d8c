//! What tests operators: crashes at every call, seeded trouble, two leaders, counted calls.
//!
//! A [`Scenario`] says what happens to an operator and what must come of it. [`crash_at_every_call`] and [`under_trouble`] run it again
//! and again in virtual time, on a fresh embedded server or in a fresh namespace of a real one, and hold every run to the end
//! and the acts of an undisturbed one. [`Recorder`], [`Trouble`], [`Crash`], [`Delay`] and [`Proxy`] are the parts; they work around any client, and through
//! the proxy on any process.
//!
//! To test an operator of the kit: implement [`Scenario`] (`operator` makes it with [`Outfit::settings`] and [`Life::of`]; `play` makes objects,
//! [`Stage::start`]s it and [`Stage::settle`]s), then
//!
//! ```no_run
//! # async fn doc() -> anyhow::Result<()> {
//! use fleetwright_rig::{Deliveries, Ground, Rates, Trouble, crash_at_every_call, under_trouble};
//! crash_at_every_call(Deliveries { parcels: &["a"] }, &Ground::InProcess).await?.unwrap();
//! under_trouble(Deliveries { parcels: &["a"] }, &Ground::InProcess, &Trouble::seeds(50), &Rates::rough()).await?.unwrap();
//! # Ok(()) }
//! ```

/// As the operators' own program has it. Tests build and drop worlds, which is mostly allocation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub mod call;
pub mod counting;
pub mod courier;
pub mod crash;
pub mod delay;
pub mod deliveries;
pub mod layer;
pub mod normal;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod rights;
pub mod scenario;
pub mod stage;
pub mod trouble;
pub mod world;

pub use call::Call;
pub use counting::{Counting, Passed};
pub use crash::{Crash, Points, Side};
pub use delay::Delay;
pub use deliveries::Deliveries;
pub use process::Process;
pub use proxy::Proxy;
pub use recorder::{Record, Recorder};
pub use scenario::{Scenario, Verdict, crash_at_every_call, under_trouble};
pub use stage::{Life, Outfit, Pace, Stage};
pub use trouble::{Rates, Trouble};
pub use world::{Ground, World};

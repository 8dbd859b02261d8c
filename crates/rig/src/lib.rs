//! What tests operators: crashes at every call, seeded faults, two leaders, counted calls.
//!
//! A [`Scenario`] says what happens to an operator and what must come of it. [`crash_at_every_call`] and [`under_faults`] run it again
//! and again in virtual time, on a fresh embedded server or in a fresh namespace of a real one, and hold every run to the end
//! and the acts of an undisturbed one. [`Recorder`], [`FaultInjector`], [`Crash`], [`Delay`] and [`Proxy`] are the parts; they work around any client, and through
//! the proxy on any process.
//!
//! To test an operator of the kit: implement [`Scenario`] (`operator` makes it with [`OperatorContext::settings`] and [`OperatorInstance::of`]; `perform` makes objects,
//! [`Harness::start`]s it and [`Harness::settle`]s), then
//!
//! ```no_run
//! # async fn doc() -> anyhow::Result<()> {
//! use fleetwright_rig::{Deliveries, TestServer, FaultRates, FaultInjector, crash_at_every_call, under_faults};
//! crash_at_every_call(Deliveries { parcels: &["a"] }, &TestServer::InProcess).await?.unwrap();
//! under_faults(Deliveries { parcels: &["a"] }, &TestServer::InProcess, &FaultInjector::seeds(50), &FaultRates::mixed()).await?.unwrap();
//! # Ok(()) }
//! ```

/// As the operators' own program has it. Tests build and drop worlds, which is mostly allocation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub mod call;
pub mod courier;
pub mod crash;
pub mod delay;
pub mod deliveries;
pub mod faults;
pub mod harness;
pub mod layer;
pub mod normalize;
pub mod pass_counter;
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod rights;
pub mod scenario;
pub mod test_env;

pub use call::Call;
pub use crash::{CallMatcher, Crash, Side};
pub use delay::Delay;
pub use deliveries::Deliveries;
pub use faults::{FaultInjector, FaultRates};
pub use harness::{Harness, OperatorContext, OperatorInstance, TimeMode};
pub use pass_counter::{CountedPass, PassCounter};
pub use process::Process;
pub use proxy::Proxy;
pub use recorder::{Record, Recorder};
pub use scenario::{Scenario, ScenarioReport, crash_at_every_call, under_faults};
pub use test_env::{TestEnv, TestServer};

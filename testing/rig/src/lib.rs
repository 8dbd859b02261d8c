//! Test tools for operators: crashes at every call, seeded faults, two leaders, counted calls.
//!
//! A [`Scenario`] describes the actions of an operator and their expected result. [`crash_at_every_call`] and [`under_faults`] run it
//! repeatedly in virtual time, on a fresh embedded server or in a fresh namespace of a real one, and compare the final state and the side effects
//! of every run with an undisturbed one. [`Recorder`], [`FaultInjector`], [`Crash`], [`Delay`] and [`Proxy`] are the parts; they wrap any client,
//! and through the proxy any process.
//!
//! To test an operator of the kit: implement [`Scenario`] (`operator` creates it with [`OperatorContext::settings`] and
//! [`OperatorInstance::of`]; `perform` creates objects, [`Harness::start`]s it and [`Harness::settle`]s), then
//!
//! ```no_run
//! # async fn doc() -> anyhow::Result<()> {
//! use fleetwright_rig::{Deliveries, TestServer, FaultRates, FaultInjector, crash_at_every_call, under_faults};
//! crash_at_every_call(Deliveries { parcels: &["a"] }, &TestServer::InProcess).await?.unwrap();
//! under_faults(Deliveries { parcels: &["a"] }, &TestServer::InProcess, &FaultInjector::seeds(50), &FaultRates::mixed()).await?.unwrap();
//! # Ok(()) }
//! ```

/// The allocator of the operators' own program. Tests create and drop many servers, which is mostly allocation.
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
pub use test_env::{DefinedKinds, TestEnv, TestServer};

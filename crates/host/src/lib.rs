//! The helper that an operator starts on a host for the length of a connection: it observes, and applies journaled steps.
//!
//! Every access goes through the [`System`] trait: the real one on hosts, one in memory behind simulated machines, so that both run the same
//! code. An installation method is one [`Method`](method::Method), one module each.

mod checks;
pub mod fetch;
mod files;
pub mod folders;
mod host;
mod journal;
pub mod method;
mod observe;
mod owner;
mod serve;
mod steps;
mod store;
pub mod system;
pub mod text;
mod units;

pub use host::Host;
pub use journal::{BOOT_WITHIN, IDS, LOG, RECORDS};
pub use serve::serve;
pub use system::System;
pub use system::memory::Memory;

//! The helper that an operator starts on a host for the length of a connection: it observes, and applies journaled steps.
//!
//! Everything goes through the [`System`] trait: the real one on hosts, one in memory behind simulated machines, so that both run the same
//! code. A way of installing is one [`Method`](method::Method), one module each.

pub mod fetch;
pub mod folders;
pub mod method;
pub mod system;
pub mod text;

pub use system::System;

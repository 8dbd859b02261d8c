//! Simulated machines: hosts in memory behind the real operator, and their kubelets.
//!
//! A [`Fleet`] is a [`Transport`](fleetwright_transport::Transport): requests to its hosts are answered by the same code that runs on real
//! hosts, over a system in memory. All waiting uses the fleet's clock, so that a scenario runs in virtual time. Faults are injected into a
//! host through its [`SimHost`]: network, power, changed files, a helper that reports falsehoods.
//!
//! [`meta::Meta`] is a simulated meta cluster: it runs the control planes of business clusters as pods.
//!
//! [`Kubelets`] simulate the kubelet of each host on which its unit runs, and the parts of a control plane that nodes and pods need.

pub mod demo;
mod fleet;
mod host;
mod kubelet;
mod link;
pub mod meta;

pub use fleet::{Fleet, FleetTiming};
pub use host::{HelperBehavior, Network, SimHost};
pub use kubelet::{KubeletConfig, Kubelets};

pub use fleetwright_host::system::memory::{BrokenUnit, Faults, Machine, Web};

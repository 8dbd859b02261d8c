//! Simulated machines: hosts in memory behind the real operator, and their kubelets.
//!
//! A [`Fleet`] is a [`Transport`](fleetwright_transport::Transport): what is asked of its hosts is answered by the very code that runs on real
//! ones, over a system in memory. All waiting is on the fleet's clock, so that a scenario runs in virtual time. What happens to a host from
//! outside goes through its [`SimHost`]: the network, the power, hands on its files, a helper that lies.
//!
//! [`meta::Meta`] is a simulated meta cluster: control planes of business clusters run in it as pods.
//!
//! [`Kubelets`] play the kubelet of each host on which its unit runs, and the little of a control plane that nodes and pods need.

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

//! Real hosts on this machine: Debian with systemd and sshd, each with its own address, by systemd-nspawn; and emulated machines with their
//! own kernel.
//!
//! ```no_run
//! # async fn doc() -> anyhow::Result<()> {
//! use fleetwright_lab::hosts::{Host, Network, Template};
//!
//! let network = Network::start().await?;
//! let host = Host::start(&network, &Template::debian().await?, "host-1").await?;
//! assert_eq!(host.run("hostname").await?.trim(), "host-1");
//! # Ok(()) }
//! ```
//!
//! Needs root, namespaces and some programs: [`missing_requirements`] lists what is missing.
//!
//! Guarantees: processes, mounts, network namespaces, links, bridges and cgroups are removed when their owner is dropped, when the test panics,
//! and when its process is killed, even with SIGKILL. If the supervisor is killed too, the next [`Network::start`] removes what it left behind.
//!
//! Caveat: nspawn hosts share this machine's kernel. Settings without a namespace (`vm.*`, `kernel.*`) apply to the whole machine.

pub mod archives;
pub(crate) mod command;
mod emulated;
mod fleet;
mod host;
pub mod images;
pub(crate) mod modules;
mod network;
mod reaper;
mod repository;
mod requirements;
mod server;
mod site;
mod supervisor;
pub(crate) mod template;
mod tree;

pub use emulated::{EmulatedMachine, Kernels};
pub use fleet::{HostDescription, apply, package};
pub use host::{Host, HostBuilder};
pub use images::Image;
pub use modules::build_all;
pub use network::Network;
pub use repository::{Deb, Repository};
pub use requirements::{missing_requirements, require};
pub use server::{Misbehaviour, PackageServer, Published};
pub(crate) use site::SiteBase;
pub use site::{KUBELETS, Site, shipped};
pub use template::Template;
pub use tree::{Entry, Tree};

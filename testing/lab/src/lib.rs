//! Real Kubernetes on one machine, for tests: etcd, kube-apiserver and, on request, kube-controller-manager and kube-scheduler,
//! as plain processes on free loopback ports, in a temporary folder, with their own PKI.
//!
//! ```no_run
//! # async fn doc() -> anyhow::Result<()> {
//! let plane = fleetwright_lab::ControlPlane::builder().controller_manager(["*"]).start().await?;
//! let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(plane.client());
//! assert!(namespaces.get("default").await.is_ok());
//! # Ok(()) }
//! ```
//!
//! [`hosts`] has real hosts, and [`meta`] a Kubernetes that runs pods on one.
//!
//! Guarantees: every process ends when the [`ControlPlane`] is dropped, when the test panics, and when the test's own process is
//! killed, even with SIGKILL.

mod binaries;
mod define;
mod etcd;
pub mod hosts;
pub mod measure;
pub mod meta;
mod plane;
mod process;
pub mod specs;
mod target;

pub use binaries::{Binaries, DEFAULT_MINOR};
pub use define::{define, served};
pub use etcd::Etcd;
pub use plane::{Builder, ControlPlane};
pub use process::Process;
pub use target::{ServerKind, Target};

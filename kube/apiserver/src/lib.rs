//! A Kubernetes API server in a library: kubectl and controllers see the behavior of kube-apiserver.
//!
//! [`Server::start`] starts a server; one process may run thousands, and some of them may share their [`Storage`]. Requests come over TLS or,
//! for callers in the
//! same process, through [`Handle::client`]. All changes pass through the write path into the store; reads
//! and watches are served from it.

mod admission;
mod auth;
mod body;
mod bootstrap;
mod call;
mod column;
mod config;
mod connections;
mod controllers;
mod crd;
mod discovery;
mod document_cache;
mod documents;
mod error;
mod fields;
mod handlers;
mod identity;
mod in_flight;
mod interceptor;
mod list;
mod local;
mod metrics;
mod objects;
mod present;
mod registry;
mod request;
mod reviews;
mod scale;
mod selectors;
mod server;
mod service_network;
mod state;
mod storage;
mod store;
mod subresources;
mod tls;
mod transport;
mod watch;
mod write;
mod write_request;

pub use body::Body;
pub use config::{Clock, Config, KUBERNETES_VERSION, Serving, StartError, Version};
pub use connections::ConnectionLimits;
pub use fleetwright_rbac::User;
pub use in_flight::InFlightLimits;
pub use interceptor::{HealthCheck, InterceptAction, InterceptedRequest, Interceptor, Removal};
pub use server::{Handle, Server};
pub use storage::{ControllerManager, ControllerManagerGuard, Storage};
pub use store::HistoryLimits;

//! The binary in use: real processes, real signals, real files, and both API servers.

mod architecture;
mod backup;
mod clusters;
mod commands;
mod hosts;
mod image;
mod install;
mod kubeconfig;
mod life;
mod machine;
mod operators;
mod package;
mod resolve;
mod runbook;
mod simulated;
mod support;
mod tours;
mod values;

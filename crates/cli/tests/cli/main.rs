//! The binary as a person uses it: real processes, real signals, real files, and both API servers.

mod commands;
mod install;
mod operators;
mod resolve;
mod support;
mod tours;

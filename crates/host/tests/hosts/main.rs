//! The helper on real hosts.

mod debs;
mod kernels;
mod lab;
mod rpms;

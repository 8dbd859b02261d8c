//! The simulated meta cluster does with pods what a real one does.

mod support;
mod workloads;

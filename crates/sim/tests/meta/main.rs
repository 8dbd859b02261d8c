//! The simulated meta cluster does with pods what a real one does.

mod control_planes;
mod plane;
mod support;
mod workloads;

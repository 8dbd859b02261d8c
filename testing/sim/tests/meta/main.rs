//! The simulated meta cluster runs pods as a real one does.

mod control_planes;
mod plane;
mod support;
mod workloads;

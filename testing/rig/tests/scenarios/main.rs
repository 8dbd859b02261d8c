//! The rig's disturbances and its detection of flaws. One test program: each program would be linked with both servers.

mod counting;
mod courier_process;
mod crash;
mod faults;
mod flaw_detection;
mod kill;
mod layers;
mod leaders;

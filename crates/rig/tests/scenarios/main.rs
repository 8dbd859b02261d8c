//! What the rig does to operators, and what it flaw_detection. One program for all: each would be linked with both servers.

mod counting;
mod courier_process;
mod crash;
mod flaw_detection;
mod kill;
mod layers;
mod leaders;
mod trouble;

//! What the rig does to operators, and what it finds. One program for all: each would be linked with both servers.

mod counting;
mod couriers;
mod crash;
mod finds;
mod kill;
mod leaders;
mod parts;
mod trouble;

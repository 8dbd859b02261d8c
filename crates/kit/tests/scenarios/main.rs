//! The kit as operators and their servers see it. One program for all: each would be linked with both servers. Telemetry has a program of its own, because what
//! a log gets depends on all subscribers of a process.

mod client;
mod example;
mod journal;
mod leader;
mod operator;
mod porter;
mod postman;
mod serve;
mod writes;

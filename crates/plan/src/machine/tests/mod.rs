//! The decision, tried on a model of a host, a Node and a gate, in which everything takes no time and the operator may die anywhere.

mod any;
mod stories;
mod table;
mod world;

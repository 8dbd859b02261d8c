//! Tests of the decision on a model of a host, a Node and a gate, in which nothing takes time and the operator may crash anywhere.

mod any;
mod cases;
mod table;
mod world;

//! Admission and the built-in controllers, seen as a client sees them.

mod accounts;
mod certificates;
mod definitions;
mod eviction;
mod garbage;
mod hostile;
mod limits;
mod namespaces;
mod pods;
mod races;
mod services;
mod shared;
mod supervision;
mod support;
mod volumes;

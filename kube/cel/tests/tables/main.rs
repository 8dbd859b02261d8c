//! Expressions, and their results in the reference implementation.

mod common;
mod costs;
mod hostile;
mod language;
mod libraries;
mod mistakes;
mod rules;

//! Expressions, and what the reference implementation makes of them.

mod common;
mod costs;
mod hostile;
mod language;
mod libraries;
mod mistakes;
mod rules;

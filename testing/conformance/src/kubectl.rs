//! kubectl on two servers: a script of commands, what each server made of them, and how the two differ.
//!
//! The script is `kubectl/script.sh` of this crate, beside the files that it applies. Every command runs on its own, in the order
//! of the script, as a person would type it. What must differ between two servers, such as uids and ages, is made plain
//! before the outputs are compared.

mod compare;
mod plain;
mod script;
mod session;

pub use compare::{Verdict, compare};
pub use plain::Plain;
pub use script::{Allowance, Command, script};
pub use session::{Output, Session};

//! The packages of a host in memory, and those that it can get.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::machine::Machine;
use crate::system::{DebState, Ran, Run};

/// The packages of a host, and those that it can get.
#[derive(Clone, Debug, Default)]
pub struct Packages {
    /// Installed Debian packages.
    pub debs: BTreeMap<String, DebState>,
    /// Installed RPM packages.
    pub rpms: BTreeMap<String, String>,
    /// What the configured repositories have: the versions of each package.
    pub repository: Arc<BTreeMap<String, Vec<String>>>,
}

impl Packages {
    pub(super) fn debs(&self, names: &[&str]) -> BTreeMap<String, DebState> {
        names.iter().filter_map(|name| Some(((*name).to_owned(), self.debs.get(*name)?.clone()))).collect()
    }

    pub(super) fn rpms(&self, names: &[&str]) -> BTreeMap<String, String> {
        names.iter().filter_map(|name| Some(((*name).to_owned(), self.rpms.get(*name)?.clone()))).collect()
    }
}

/// Runs a program of a package manager, if it is one.
pub(super) fn run(_machine: &mut Machine, _run: &Run<'_>) -> Option<Ran> {
    None
}

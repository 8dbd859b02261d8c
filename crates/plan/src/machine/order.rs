//! The order in which components are changed, and conflicts between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::LeavingVersion;
use crate::package::Rendered;

/// Why packages cannot be installed together on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageConflict {
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// Which packages, and what to do.
    pub message: String,
}

impl fmt::Display for PackageConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Sorts packages into the order in which they are changed: dependencies first, otherwise as they are declared.
///
/// # Errors
/// When a dependency is missing, packages conflict, or dependencies form a cycle; the message names the components.
pub fn order(packages: &[Arc<Rendered>]) -> Result<Vec<&Arc<Rendered>>, PackageConflict> {
    let name = |package: &Rendered| package.package.component.clone();
    let all: BTreeSet<String> = packages.iter().map(|package| name(package)).collect();
    for package in packages {
        if let Some(other) = package.conflicts_with.iter().find(|other| all.contains(*other)) {
            let (one, reference) = (name(package), &package.package.reference);
            return Err(PackageConflict {
                reason: "PackagesConflict",
                message: format!(
                    "{one} conflicts with {other} (spec.conflictsWith of MachinePackageVersion {reference}): remove one of them from \
                     spec.packages"
                ),
            });
        }
        if let Some(other) = package.depends_on.iter().find(|other| !all.contains(*other)) {
            let (one, reference) = (name(package), &package.package.reference);
            return Err(PackageConflict {
                reason: "DependencyMissing",
                message: format!(
                    "{one} depends on {other} (spec.dependsOn of MachinePackageVersion {reference}), which spec.packages does not list: add a \
                     package of {other}"
                ),
            });
        }
    }
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    let mut ordered = Vec::with_capacity(packages.len());
    let mut rest: Vec<&Arc<Rendered>> = packages.iter().collect();
    while !rest.is_empty() {
        let free = rest.iter().position(|package| package.depends_on.iter().all(|on| placed.contains(on.as_str())));
        let Some(free) = free else {
            let circle: Vec<String> = rest.iter().map(|package| name(package)).collect();
            return Err(PackageConflict {
                reason: "DependencyCycle",
                message: format!(
                    "dependency cycle between components {}: remove one of the dependencies from spec.dependsOn of their package versions",
                    circle.join(", ")
                ),
            });
        };
        let package = rest.remove(free);
        placed.insert(&package.package.component);
        ordered.push(package);
    }
    Ok(ordered)
}

/// Sorts components for removal: a component is removed before those that it needs.
pub(super) fn removals(components: &[String], known: &BTreeMap<String, LeavingVersion>) -> Vec<String> {
    let mut rest: Vec<&String> = components.iter().collect();
    let mut ordered = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let needed = |component: &str| {
            rest.iter().any(|other| {
                *other != component
                    && known.get(*other).is_some_and(|left| left.depends_on.iter().any(|on| on == component))
            })
        };
        // The last one first: later declared components probably need earlier ones. In a cycle any component may be first.
        let free = rest.iter().rposition(|component| !needed(component)).unwrap_or(rest.len() - 1);
        ordered.push(rest.remove(free).clone());
    }
    ordered
}

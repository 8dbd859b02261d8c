//! Observes everything that is managed. Changes nothing.

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{Check, ComponentSeen, Deviation, Installed, Package, plural};

use crate::method::{self, MethodError};
use crate::system::UpcomingQueries;
use crate::{System, checks, files, store, units};

/// Longest list of deviations: a host that differs in thousands of ways is reported with the first of them.
const MAX_COUNT: usize = 200;

/// The deviations of the host from a package.
pub(crate) fn deviations(system: &dyn System, package: &Package) -> Result<Vec<Deviation>, MethodError> {
    let mut deviations = method::of(package).deviations(system, package)?;
    deviations.extend(files::deviations(system, package)?);
    deviations.extend(units::deviations(system, package)?);
    Ok(deviations)
}

/// The queries that observing these packages will make.
pub(crate) fn coming<'p>(packages: impl Iterator<Item = &'p Package>, health: bool) -> UpcomingQueries<'p> {
    let mut coming = UpcomingQueries::default();
    for package in packages {
        coming.units.extend(package.units.iter().map(|unit| unit.name.as_str()));
        method::of(package).foretell(package, &mut coming);
        if health {
            coming.units.extend(package.health.checks.iter().filter_map(|check| match check {
                Check::Unit(unit) => Some(unit.as_str()),
                _ => None,
            }));
        }
    }
    coming
}

/// Observes a component that should have this package.
pub(crate) fn component(system: &dyn System, package: &Package, health: bool) -> ComponentSeen {
    let mut seen = ComponentSeen { component: package.component.clone(), ..ComponentSeen::default() };
    let looked = look(system, package, &mut seen);
    if let Err(error) = looked {
        // A component that cannot be observed must not hide the others.
        seen.deviations.push(Deviation {
            what: "observation".to_owned(),
            found: truncate_bytes(&error.to_string(), 500),
            wanted: "readable".to_owned(),
            disrupts: false,
        });
    }
    if seen.deviations.len() > MAX_COUNT {
        let more = seen.deviations.len() - MAX_COUNT;
        seen.deviations.truncate(MAX_COUNT);
        seen.deviations.push(Deviation {
            what: "and more".to_owned(),
            found: plural(more, "other difference"),
            wanted: "none".to_owned(),
            disrupts: false,
        });
    }
    if health {
        seen.health = package.health.checks.iter().map(|check| checks::ask(system, check)).collect();
    }
    seen
}

fn look(system: &dyn System, package: &Package, seen: &mut ComponentSeen) -> Result<(), MethodError> {
    crate::steps::checked_component(&package.component)?;
    let state = store::state(system, &package.component)?;
    let unfinished = unfinished(&state);
    seen.installed = state.installed;
    seen.previous = state.previous;
    seen.deviations = deviations(system, package)?;
    seen.down = units::down(system, package)?;
    let is_this = |installed: &Installed| installed.digest == package.digest();
    if let Some(found) = unfinished
        && seen.installed.as_ref().is_some_and(is_this)
    {
        seen.deviations.push(Deviation {
            what: "step".to_owned(),
            found,
            wanted: format!("{} completed", package.reference),
            disrupts: package.units.iter().any(|unit| unit.running == Some(true)),
        });
    }
    let method = method::of(package);
    seen.version = method.version(system, package)?;
    // Where only the declared items can tell: the version is installed when they are as declared.
    if seen.version.is_none() && seen.deviations.is_empty() {
        seen.version = seen.installed.as_ref().map(|installed| installed.version.clone());
    }
    seen.needs_reboot = method.needs_reboot(system, package)?;
    Ok(())
}

fn unfinished(state: &store::ComponentRecord) -> Option<String> {
    if state.removing {
        return Some("interrupted removal".to_owned());
    }
    let trying = state.trying.last()?;
    Some(format!("interrupted step to {}", trying.reference))
}

/// The package of a component as the host recorded it at its installation.
pub(crate) fn installed(system: &dyn System, component: &str) -> Option<Package> {
    crate::steps::checked_component(component).ok()?;
    let installed = store::state(system, component).ok()?.installed?;
    store::package(system, component, &installed.digest).ok().flatten()
}

/// Observes a component that is not declared. If only parts of it are present, it has no installed version.
pub(crate) fn unasked(system: &dyn System, component: &str) -> Option<ComponentSeen> {
    let mut seen = ComponentSeen { component: component.to_owned(), ..ComponentSeen::default() };
    match store::state(system, component) {
        Ok(state) if state.is_empty() => return None,
        Ok(state) => {
            let installed = state.installed.as_ref();
            let package =
                installed.and_then(|installed| store::package(system, component, &installed.digest).ok().flatten());
            if let Some(package) = &package {
                seen.version = method::of(package).version(system, package).ok().flatten();
                // A restored kernel is effective only after a reboot, whether it is declared or not.
                seen.needs_reboot = method::of(package).needs_reboot(system, package).unwrap_or(false);
            }
            seen.version = seen.version.or_else(|| installed.map(|installed| installed.version.clone()));
            seen.installed = state.installed;
            seen.previous = state.previous;
        }
        Err(error) => seen.deviations.push(Deviation {
            what: "observation".to_owned(),
            found: truncate_bytes(&error.to_string(), 500),
            wanted: "readable".to_owned(),
            disrupts: false,
        }),
    }
    Some(seen)
}

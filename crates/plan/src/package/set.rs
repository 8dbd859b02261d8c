//! The packages of one machine together.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_api::MachinePackageVersionSpec;
use fleetwright_wire::Method;

use super::Rendered;

/// The fields of a package that can conflict with others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageMember<'a> {
    /// Name of the component.
    pub component: &'a str,
    /// Components that must be installed before.
    pub depends_on: &'a [String],
    /// Components that must not be installed.
    pub conflicts_with: &'a [String],
    /// Paths that it writes: files, links, unit files and drop-ins.
    pub paths: BTreeSet<String>,
    /// The sysctls that it sets.
    pub settings: BTreeSet<&'a str>,
    /// The operating system packages that it installs.
    pub packages: BTreeSet<&'a str>,
    /// Whether it makes the machine a Node: it has the bootstrap credential.
    pub joins: bool,
    /// Whether it is healthy only once a Node exists.
    pub needs_node: bool,
}

/// A conflict between the packages of a machine. None of them is installed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetFinding {
    /// Name of the component.
    pub component: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl<'a> From<&'a MachinePackageVersionSpec> for PackageMember<'a> {
    fn from(spec: &'a MachinePackageVersionSpec) -> Self {
        let files = spec.files.iter().map(|file| file.path.clone());
        let links = spec.tarball.iter().flat_map(|archive| archive.links.keys().cloned());
        let units =
            spec.units.iter().flat_map(|unit| unit_paths(&unit.name, unit.content.is_some(), unit.drop_ins.keys()));
        let kernel = spec.kernel.iter().flat_map(|kernel| [&kernel.deb, &kernel.rpm]);
        let packages = [&spec.deb, &spec.rpm].into_iter().chain(kernel).flatten();
        Self {
            component: &spec.component,
            depends_on: &spec.depends_on,
            conflicts_with: &spec.conflicts_with,
            paths: files.chain(links).chain(units).collect(),
            settings: spec.sysctl.iter().flatten().map(|(name, _)| name.as_str()).collect(),
            packages: packages.flat_map(|packages| packages.packages.keys().map(String::as_str)).collect(),
            joins: spec.files.iter().any(|file| file.bootstrap_kubeconfig),
            needs_node: spec.health.checks.iter().any(|check| check.node_condition.is_some()),
        }
    }
}

impl<'a> From<&'a Rendered> for PackageMember<'a> {
    fn from(rendered: &'a Rendered) -> Self {
        let package = &rendered.package;
        let mut member = Self {
            component: &package.component,
            depends_on: &rendered.depends_on,
            conflicts_with: &rendered.conflicts_with,
            paths: package.files.iter().map(|file| file.path.clone()).collect(),
            joins: rendered.needs_credential,
            needs_node: !rendered.node_conditions.is_empty(),
            ..Self::default()
        };
        for unit in &package.units {
            member.paths.extend(unit_paths(&unit.name, unit.content.is_some(), unit.drop_ins.keys()));
        }
        match &package.method {
            Method::Deb(deb) => member.packages.extend(deb.packages.keys().map(String::as_str)),
            Method::Rpm(rpm) => member.packages.extend(rpm.packages.keys().map(String::as_str)),
            Method::Tarball(archive) => member.paths.extend(archive.links.keys().cloned()),
            Method::Sysctl(settings) => member.settings.extend(settings.keys().map(String::as_str)),
            Method::Kernel(kernel) => {
                let deb = kernel.deb.iter().flat_map(|deb| deb.packages.keys());
                let rpm = kernel.rpm.iter().flat_map(|rpm| rpm.packages.keys());
                member.packages.extend(deb.chain(rpm).map(String::as_str));
            }
            Method::Config | Method::Script(_) | Method::Reboot => {}
        }
        member
    }
}

fn unit_paths<'a>(name: &str, content: bool, drop_ins: impl Iterator<Item = &'a String>) -> Vec<String> {
    let own = content.then(|| format!("/etc/systemd/system/{name}"));
    own.into_iter().chain(drop_ins.map(|file| format!("/etc/systemd/system/{name}.d/{file}"))).collect()
}

/// The conflicts of these packages on one machine: missing dependencies, cycles, declared conflicts, and items that two packages write.
pub fn check_set(members: &[PackageMember<'_>]) -> Vec<SetFinding> {
    let mut found = Vec::new();
    let mut say =
        |component: &str, message: String| found.push(SetFinding { component: component.to_owned(), message });
    let by_name: BTreeMap<&str, &PackageMember<'_>> = members.iter().map(|member| (member.component, member)).collect();
    for member in members {
        for other in member.depends_on.iter().filter(|other| !by_name.contains_key(other.as_str())) {
            say(
                member.component,
                format!(
                    "{} depends on {other}, which the machine does not list: add a package version of {other}, or remove {}",
                    member.component, member.component
                ),
            );
        }
        for other in member.conflicts_with.iter().filter(|other| by_name.contains_key(other.as_str())) {
            say(
                member.component,
                format!("{} conflicts with {other} on the same machine: remove one of them", member.component),
            );
        }
    }
    for circle in dependency_cycles(members, &by_name) {
        say(circle[0], format!("dependency cycle {}: remove one dependsOn", circle.join(" → ")));
    }
    for member in members.iter().filter(|member| member.needs_node && !member.joins) {
        let behind = members.iter().find(|other| other.joins && needs(other, member.component, &by_name));
        if let Some(behind) = behind {
            say(
                member.component,
                format!(
                    "deadlock: {} is healthy only when its Node exists, but {}, which creates the Node, waits until it is healthy: move the check of nodeCondition to {}",
                    member.component, behind.component, behind.component
                ),
            );
        }
    }
    duplicates(members, "the file", |member| member.paths.iter().map(String::as_str).collect(), &mut say);
    duplicates(members, "the kernel setting", |member| member.settings.iter().copied().collect(), &mut say);
    duplicates(members, "the package", |member| member.packages.iter().copied().collect(), &mut say);
    found
}

/// Whether one needs the other, directly or indirectly.
fn needs(member: &PackageMember<'_>, other: &str, by_name: &BTreeMap<&str, &PackageMember<'_>>) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![member]);
    while let Some(member) = next.pop() {
        for name in member.depends_on {
            if name == other {
                return true;
            }
            if seen.insert(name.as_str()) {
                next.extend(by_name.get(name.as_str()));
            }
        }
    }
    false
}

/// Each cycle of dependencies once, starting and ending with its alphabetically first component.
fn dependency_cycles<'a>(
    members: &[PackageMember<'a>],
    by_name: &BTreeMap<&'a str, &'a PackageMember<'a>>,
) -> Vec<Vec<&'a str>> {
    let mut found: Vec<Vec<&'a str>> = Vec::new();
    let mut covered: BTreeSet<&str> = BTreeSet::new();
    let mut names: Vec<&'a str> = members.iter().map(|member| member.component).collect();
    names.sort_unstable();
    for start in names {
        if covered.contains(start) {
            continue;
        }
        // The shortest way back to the start, breadth first.
        let mut came: BTreeMap<&'a str, &'a str> = BTreeMap::new();
        let mut queue = std::collections::VecDeque::from([start]);
        'search: while let Some(at) = queue.pop_front() {
            let Some(member) = by_name.get(at) else { continue };
            for next in member.depends_on.iter().map(String::as_str) {
                if next == start {
                    let mut way = vec![start, at];
                    while way.last() != Some(&start) {
                        let last = way.last().copied().unwrap_or(start);
                        way.push(came.get(last).copied().unwrap_or(start));
                    }
                    way.reverse();
                    if at == start {
                        way = vec![start, start];
                    }
                    covered.extend(way.iter().copied());
                    found.push(way);
                    break 'search;
                }
                if by_name.contains_key(next) && !came.contains_key(next) {
                    came.insert(next, at);
                    queue.push_back(next);
                }
            }
        }
    }
    found
}

/// Items of two packages.
fn duplicates<'m>(
    members: &'m [PackageMember<'_>],
    what: &str,
    of: impl Fn(&'m PackageMember<'_>) -> Vec<&'m str>,
    say: &mut impl FnMut(&str, String),
) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for member in members {
        for thing in of(member) {
            match owners.get(thing) {
                Some(owner) => say(
                    member.component,
                    format!("{} and {owner} both have {what} {thing}: remove it from one of them", member.component),
                ),
                None => {
                    owners.insert(thing, member.component);
                }
            }
        }
    }
}

//! Arguments that a minor of Kubernetes does not have.

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, ControlPlaneComponent, arguments};

use super::upgrade_path::VersionNode;

/// An argument that a component does not have in its wanted version. The component would not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{component} of Kubernetes {minor} has no argument --{name}: remove it from {place}")]
pub struct UnknownArgument {
    pub component: ControlPlaneComponent,
    /// The argument, without dashes.
    pub name: String,
    pub minor: String,
    /// The field that sets the argument.
    pub place: String,
}

/// The arguments of a cluster and its package version that its components do not have. For minors without a list of arguments, and for etcd with its
/// own versions, none is refused.
pub fn unknown(spec: &ClusterSpec, package: (&str, &ClusterPackageVersionSpec)) -> Vec<UnknownArgument> {
    let minor = VersionNode::of(package.0, package.1).minor();
    let mut all = Vec::new();
    for component in ControlPlaneComponent::ALL.into_iter().filter(|one| *one != ControlPlaneComponent::Etcd) {
        let field = field(component);
        let own = spec.components.of(component).map(|overrides| &overrides.args);
        let said = own.into_iter().flat_map(|args| args.keys()).map(|name| (name, "the Cluster".to_owned()));
        let given = package.1.components.of(component).args.keys();
        let given = given.map(|name| (name, format!("ClusterPackageVersion {}", package.0)));
        for (name, of) in said.chain(given) {
            if knows(component, name, minor) == Some(false) {
                let place = format!("spec.components.{field}.args of {of}");
                all.push(UnknownArgument { component, name: name.clone(), minor: minor.to_owned(), place });
            }
        }
    }
    all
}

/// Whether that minor has the argument. `None` if the minor has no list.
pub(super) fn knows(component: ControlPlaneComponent, name: &str, minor: &str) -> Option<bool> {
    match arguments::known(component).find(|known| known.name == name) {
        Some(argument) => argument.is_of(minor),
        None => arguments::minors().any(|known| known == minor).then_some(false),
    }
}

fn field(component: ControlPlaneComponent) -> &'static str {
    match component {
        ControlPlaneComponent::Etcd => "etcd",
        ControlPlaneComponent::Apiserver => "apiserver",
        ControlPlaneComponent::ControllerManager => "controllerManager",
        ControlPlaneComponent::Scheduler => "scheduler",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleetwright_api::ComponentOverrides;

    fn spec(component: &str, argument: &str) -> ClusterSpec {
        let args = [(argument.to_owned(), "1".to_owned())].into();
        let overrides = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
        let mut spec = ClusterSpec::of("p");
        match component {
            "apiserver" => spec.components.apiserver = overrides,
            _ => spec.components.etcd = overrides,
        }
        spec
    }

    #[test]
    fn an_argument_of_another_minor_is_named_with_where_it_is_said() {
        let package = |version: &str| ClusterPackageVersionSpec::of_images("registry.example", version, "3.6.16");
        // An argument that only one of the minors has.
        let all: Vec<_> = arguments::minors().collect();
        for component in [ControlPlaneComponent::Apiserver, ControlPlaneComponent::Scheduler] {
            for argument in arguments::known(component) {
                for minor in &all {
                    let mut package = package(&format!("{minor}.0"));
                    let args = [(argument.name.to_owned(), "1".to_owned())].into();
                    match component {
                        ControlPlaneComponent::Apiserver => package.components.apiserver.args = args,
                        _ => package.components.scheduler.args = args,
                    }
                    let found = unknown(&ClusterSpec::of("p"), ("p", &package));
                    assert_eq!(found.is_empty(), argument.is_of(minor) == Some(true), "{} in {minor}", argument.name);
                }
            }
        }
        let found = unknown(&spec("apiserver", "no-such"), ("p", &package("1.37.1")));
        let text = found[0].to_string();
        for part in ["kube-apiserver", "1.37", "no-such", "spec.components.apiserver.args", "of the Cluster"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(unknown(&spec("apiserver", "no-such"), ("p", &package("1.99.0"))).is_empty(), "nothing is known of it");
        assert!(unknown(&spec("etcd", "no-such"), ("p", &package("1.37.1"))).is_empty());
    }
}

//! The packages that machines should have, rendered from live objects as the operator does.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{Facts, KeyRef, Machine, MachinePackageVersion, MachinePackageVersionSpec, names};
use fleetwright_machines::SecretView;
use fleetwright_plan::machine::LeavingVersion;
use fleetwright_plan::package::{Lookup, RenderErrorKind, Rendered, SecretUnavailable, StepTimeouts, Values, render};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::ListParams;

use super::reach::secret_view;
use crate::cluster::{Cluster, is_not_found};

/// The package versions of a namespace and the objects that they refer to.
pub(super) struct PackageCatalog {
    packages: BTreeMap<String, MachinePackageVersion>,
    objects: Objects,
    values: BTreeMap<String, String>,
}

#[derive(Default)]
struct Objects {
    secrets: BTreeMap<String, SecretView>,
    config_maps: BTreeMap<(String, String), Vec<u8>>,
}

impl Lookup for Objects {
    fn secret(&self, machine: &str, name: &str, key: &str) -> Result<Vec<u8>, SecretUnavailable> {
        self.secrets.get(name).ok_or(SecretUnavailable::Missing)?.content(machine, key)
    }

    fn config_map(&self, name: &str, key: &str) -> Option<Vec<u8>> {
        self.config_maps.get(&(name.to_owned(), key.to_owned())).cloned()
    }
}

/// The reason why a machine's packages cannot be rendered.
pub(super) struct RenderFailure {
    /// Whether facts of the host are missing.
    pub(super) waits_for_facts: bool,
    pub(super) message: String,
}

impl PackageCatalog {
    /// Reads the objects that these machines refer to.
    pub(super) async fn of(cluster: &Cluster, namespace: &str, machines: &[Machine]) -> anyhow::Result<Self> {
        let api: Api<MachinePackageVersion> = Api::namespaced(cluster.client.clone(), namespace);
        let listed = api.list(&ListParams::default()).await.map_err(|error| cluster.explain(error))?;
        let packages: BTreeMap<_, _> = listed
            .items
            .into_iter()
            .map(|package| (package.metadata.name.clone().unwrap_or_default(), package))
            .collect();
        let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
        let values = api.get_opt(names::CLUSTER_VALUES).await.map_err(|error| cluster.explain(error))?;
        let values = values.and_then(|values| values.data).unwrap_or_default();
        let mut shelf = Self { packages, objects: Objects::default(), values };
        let wanted: std::collections::BTreeSet<&str> = machines
            .iter()
            .flat_map(|machine| machine.spec.packages.iter().map(|package| package.ref_.as_str()))
            .collect();
        let (mut secrets, mut config_maps) = (Vec::new(), Vec::new());
        for package in wanted.iter().filter_map(|name| shelf.packages.get(*name)) {
            references(&package.spec, &mut secrets, &mut config_maps);
        }
        for key in secrets {
            if let Some(found) = secret_view(cluster, namespace, &key.name).await? {
                shelf.objects.secrets.insert(key.name, found);
            }
        }
        for key in config_maps {
            if let Some(bytes) = config_map(cluster, namespace, &key).await? {
                shelf.objects.config_maps.insert((key.name, key.key), bytes);
            }
        }
        Ok(shelf)
    }

    /// The rendered packages of a machine, in the order of its specification.
    pub(super) fn wanted(&self, machine: &Machine, facts: Option<&Facts>) -> Result<Vec<Arc<Rendered>>, RenderFailure> {
        let values = Values { machine, facts, cluster: &self.values };
        let made = machine.spec.packages.iter().map(|wanted| {
            let wrong = |message| RenderFailure { waits_for_facts: false, message };
            let Some(package) = self.packages.get(&wanted.ref_) else {
                return Err(wrong(format!(
                    "MachinePackageVersion {} not found: create it, or refer to another one for {}",
                    wanted.ref_, wanted.component
                )));
            };
            if package.spec.component != wanted.component {
                return Err(wrong(format!(
                    "MachinePackageVersion {} is a version of {}, but the machine uses it for {}",
                    wanted.ref_, package.spec.component, wanted.component
                )));
            }
            render(package, &values, &self.objects).map(Arc::new).map_err(|error| RenderFailure {
                waits_for_facts: error.kind == RenderErrorKind::WaitsForFacts,
                message: error.to_string(),
            })
        });
        made.collect()
    }

    /// The components that the machine has and should not have, with their known state.
    pub(super) fn leaving(&self, machine: &Machine) -> BTreeMap<String, LeavingVersion> {
        let components = machine.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
        let gone = components
            .iter()
            .filter(|entry| machine.spec.packages.iter().all(|wanted| wanted.component != entry.component));
        gone.filter_map(|entry| {
            let of = |package: &&MachinePackageVersion| {
                package.spec.component == entry.component && Some(&package.spec.version) == entry.observed.as_ref()
            };
            let spec = &self.packages.values().find(of)?.spec;
            let left = LeavingVersion {
                depends_on: spec.depends_on.clone(),
                disruption: spec.disruption,
                times: times(spec),
                node_conditions: spec.health.checks.iter().filter_map(|check| check.node_condition.clone()).collect(),
            };
            Some((entry.component.clone(), left))
        })
        .collect()
    }
}

fn times(spec: &MachinePackageVersionSpec) -> StepTimeouts {
    StepTimeouts {
        apply: spec.timeouts.apply.0,
        drain: spec.timeouts.drain.0,
        reboot: spec.timeouts.reboot.0,
        healthy_within: spec.health.within.0,
        healthy_every: spec.health.every.0,
        healthy_times: spec.health.times,
    }
}

fn references(spec: &MachinePackageVersionSpec, secrets: &mut Vec<KeyRef>, config_maps: &mut Vec<KeyRef>) {
    for file in &spec.files {
        secrets.extend(file.secret.clone());
        config_maps.extend(file.config_map.clone());
    }
    let kernel = spec.kernel.iter().flat_map(|kernel| [&kernel.deb, &kernel.rpm]);
    let packages = [&spec.deb, &spec.rpm].into_iter().chain(kernel).flatten().flat_map(|packages| &packages.sources);
    for source in packages.chain(spec.tarball.iter().map(|archive| &archive.source)) {
        secrets.extend(source.secret.clone());
        config_maps.extend(source.config_map.clone());
    }
}

async fn config_map(cluster: &Cluster, namespace: &str, key: &KeyRef) -> anyhow::Result<Option<Vec<u8>>> {
    match Api::<ConfigMap>::namespaced(cluster.client.clone(), namespace).get(&key.name).await {
        Ok(map) => {
            let text = map.data.and_then(|mut data| data.remove(&key.key)).map(String::into_bytes);
            Ok(text.or_else(|| map.binary_data.and_then(|mut data| data.remove(&key.key)).map(|bytes| bytes.0)))
        }
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(cluster.explain(error)),
    }
}

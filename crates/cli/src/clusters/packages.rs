//! The package versions that clusters of a namespace can use, and the upgrade paths between them.

use anyhow::anyhow;
use fleetwright_api::names::{self, reasons};
use fleetwright_api::{Cluster, ClusterPackageVersion, ControlPlaneComponent, Status, condition};
use fleetwright_plan::cluster::upgrade_path::{self, NoUpgradePath, NoUpgradePathReason, VersionNode};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ListParams;

use super::{called, health};
use crate::cluster::Cluster as Meta;
use crate::terminal_text::{ago, line};

/// A package version's name, optionally with its type: `cpv/x`.
pub(super) fn name(text: &str) -> Result<String, String> {
    crate::target::bare_name::<ClusterPackageVersion>(text)
}

/// The package versions of a namespace.
pub(super) struct PackageVersions {
    all: Vec<ClusterPackageVersion>,
    namespace: String,
}

impl PackageVersions {
    /// The package versions that the cluster can refer to.
    pub(super) async fn of(meta: &Meta, cluster: &Cluster) -> anyhow::Result<Self> {
        Self::in_namespace(meta, &cluster.namespace().unwrap_or_default()).await
    }

    pub(super) async fn in_namespace(meta: &Meta, namespace: &str) -> anyhow::Result<Self> {
        let mut all = crate::why::all::<ClusterPackageVersion>(meta, namespace, ListParams::default()).await?;
        all.sort_by_key(|package| package.name_any());
        Ok(Self { all, namespace: namespace.to_owned() })
    }

    fn find(&self, name: &str) -> Option<VersionNode<'_>> {
        let package = self.all.iter().find(|package| package.metadata.name.as_deref() == Some(name))?;
        Some(VersionNode::of(package.metadata.name.as_deref()?, &package.spec))
    }

    /// The package version of this name.
    ///
    /// # Errors
    /// It does not exist; the error lists the existing ones.
    pub(super) fn get(&self, name: &str) -> anyhow::Result<VersionNode<'_>> {
        self.find(name).ok_or_else(|| {
            let there: Vec<_> = self.all.iter().map(|package| package.name_any()).collect();
            let there = match there.is_empty() {
                true => "none exist, create one first (docs/guide/clusters.md)".to_owned(),
                false => format!("use one of {}, or create it first", there.join(", ")),
            };
            anyhow!("ClusterPackageVersion {name} not found in namespace {}: {there}", self.namespace)
        })
    }

    /// The version that a change starts from, as the operator computes it; none if unknown.
    pub(super) fn present<'a>(&'a self, cluster: &'a Cluster) -> Option<VersionNode<'a>> {
        let status = cluster.status.as_ref();
        let has = status.and_then(|status| status.package_version.as_deref());
        let name = has.unwrap_or(&cluster.spec.package_version);
        let version = || status.and_then(|status| status.kubernetes.as_deref()).or_else(|| seen(cluster));
        self.find(name).or_else(|| version().map(|version| VersionNode::gone(name, version)))
    }

    /// The reason why there is no upgrade path, with the possible ones.
    pub(super) fn explain(
        &self,
        cluster: &Cluster,
        from: &VersionNode<'_>,
        to: &VersionNode<'_>,
        no_way: NoUpgradePath,
    ) -> anyhow::Error {
        let of = called(cluster);
        let emulates = health::emulates(cluster);
        let more = match no_way.why {
            NoUpgradePathReason::Older => format!("use fleetwright cluster rollback {of} {}", to.name),
            NoUpgradePathReason::Newer => format!("use fleetwright cluster upgrade {of} {}", to.name),
            NoUpgradePathReason::TooFar | NoUpgradePathReason::NotAllowed if to.is_older_than(from) => {
                self.ways("a rollback", from, |stop| {
                    stop.is_older_than(from) && upgrade_path::back(from, stop, emulates).is_ok()
                })
            }
            NoUpgradePathReason::TooFar | NoUpgradePathReason::NotAllowed => {
                self.ways("an upgrade", from, |stop| upgrade_path::forward(from, stop).is_ok())
            }
            NoUpgradePathReason::NotEmulated => restoring(cluster),
        };
        anyhow!("cluster {}: {no_way}\n{more}", cluster.name_any())
    }

    fn ways(&self, direction: &str, from: &VersionNode<'_>, leads: impl Fn(&VersionNode<'_>) -> bool) -> String {
        let stops = self.all.iter().filter_map(|package| self.find(package.metadata.name.as_deref()?));
        let names: Vec<_> = stops.filter(|stop| stop.name != from.name && leads(stop)).map(|stop| stop.name).collect();
        match names.is_empty() {
            true => format!("no package version in namespace {} allows {direction} from {}", self.namespace, from.name),
            false => format!("package versions that allow {direction} from {}: {}", from.name, names.join(", ")),
        }
    }
}

/// The observed Kubernetes version of the cluster.
fn seen(cluster: &Cluster) -> Option<&str> {
    let mut components = health::components(cluster).iter();
    let apiserver = components.find(|component| component.component == ControlPlaneComponent::Apiserver)?;
    apiserver.observed.as_deref().or(apiserver.replicas.iter().find_map(|replica| replica.version.as_deref()))
}

/// The instructions for a restore, when no other way back is left.
fn restoring(cluster: &Cluster) -> String {
    let status = cluster.status.clone().unwrap_or_default();
    let said = condition(&status.conditions, names::ROLLBACK_POSSIBLE)
        .filter(|reversible| reversible.status == Status::False && reversible.reason == reasons::SOAK_ENDED)
        .map_or(String::new(), |reversible| format!("{}\n", line(&reversible.message)));
    match &status.last_snapshot {
        Some(snapshot) => format!(
            "{said}to go back, restore a snapshot from before the upgrade (set spec.restore together with spec.packageVersion); everything written after it is lost; the last snapshot is {}, taken {} ago",
            line(&snapshot.name),
            ago(snapshot.at, Timestamp::now())
        ),
        None => format!("{said}going back needs a snapshot from before the upgrade, and none exists"),
    }
}

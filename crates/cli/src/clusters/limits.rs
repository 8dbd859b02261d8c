//! Checks a Cluster against ClusterLimits, before a request that the operator would not apply.

use anyhow::bail;
use fleetwright_api::ClusterPackageVersion;
use fleetwright_plan::cluster::limits::CheckedCluster;
use kube::Api;

use crate::cluster::Cluster as Meta;
use crate::terminal_text::line;

/// Refuses a Cluster that violates the ClusterLimits of its namespace. `present` is the name of the package version that its control plane has. Without the right to list them, the operator's answer is in the status.
///
/// # Errors
/// Names each ClusterLimits, the field, and the allowed values.
pub(super) async fn refuse(meta: &Meta, cluster: CheckedCluster<'_>, present: Option<&str>) -> anyhow::Result<()> {
    let (namespace, name) = (cluster.names.fleet.as_str(), cluster.names.name.as_str());
    let limits = fleetwright_clusters::limits(&meta.client, namespace).await.map_err(|error| meta.explain(error))?;
    let packages: Api<ClusterPackageVersion> = Api::namespaced(meta.client.clone(), namespace);
    // Without the right to read it, the operator's answer is in the status, too.
    let read = async |name: &str| packages.get_opt(name).await.ok().flatten();
    let package = read(&cluster.spec.package_version).await;
    let package = package.as_ref().map(|package| &package.spec);
    let other = match present.filter(|present| *present != cluster.spec.package_version) {
        Some(present) => read(present).await,
        None => None,
    };
    let cluster = CheckedCluster { present: present.zip(other.as_ref().map(|other| &other.spec)), ..cluster };
    let found = fleetwright_clusters::limit_violations(cluster, package, &limits.unwrap_or_default());
    if found.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = found.iter().map(|one| format!("\n  {}", line(&one.to_string()))).collect();
    bail!("cluster {name} in namespace {namespace} would exceed its limits; nothing was changed:{}", lines.concat())
}

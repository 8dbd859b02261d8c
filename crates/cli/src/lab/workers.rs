//! Hosts beside a lab's meta cluster that become workers of business clusters, and the objects for them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fleetwright_lab::hosts::{Host, HostDescription, Image};
use fleetwright_lab::meta::{Meta, Workers};
use fleetwright_plan::cluster::extensions::shipped;
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::{FLEET_NAMESPACE, operators, yaml};

/// For the meta cluster: a package version with the shipped components, and a Cluster of it.
pub(super) const CLUSTER: &str = "workers.yaml";
/// For the business cluster: the SSH key, packages, gates, a policy, and the hosts as Machines.
pub(super) const MACHINES: &str = "machines.yaml";
pub(super) const NAME: &str = "pay-02";

/// Imports an image of this program, which takes snapshots and is the Machine-Operator of business clusters. Clusters with workers
/// need the helpers in it.
pub(super) async fn import(meta: &Meta, helpers: Option<&Path>, workers: bool) -> Result<()> {
    let (name, program) = (fleetwright_clusters::IMAGE, std::env::current_exe()?);
    let helpers = helpers.map(Path::to_owned).or_else(operators::helpers_folder);
    let image = match helpers {
        Some(folder) => Image::fleetwright(name, program, &folder)?,
        None if workers => bail!(
            "host helper not found; the Machine-Operator beside a control plane needs it: build it with make helper, or pass its directory with --helpers"
        ),
        None => Image::program(name, program)?,
    };
    meta.import(&image).await
}

/// Boots hosts with the images of workers' pods, and routes between all pods.
pub(super) async fn boot(meta: &Meta, names: &[String], kubelet: &str) -> Result<(Vec<Host>, Workers)> {
    let workers = meta.workers(minor(kubelet), Vec::new()).await?;
    let hosts = try_join_all(names.iter().map(|name| meta.worker(name, &workers))).await?;
    meta.connect(&hosts.iter().collect::<Vec<_>>()).await?;
    Ok((hosts, workers))
}

/// Writes the objects to a folder. One of them contains a private key.
pub(super) fn write(folder: &Path, meta: &Meta, workers: &Workers, hosts: &[Host], kubelet: &str) -> Result<()> {
    fs::write(folder.join(CLUSTER), yaml::documents(&cluster(meta, workers, kubelet)?)?)?;
    let mut objects = meta.site.fleet(FLEET_NAMESPACE)?;
    // The hosts have the images already.
    let mut packages = meta.site.worker(kubelet)?;
    packages.retain(|(component, _)| component != "images");
    let machines =
        (0..).zip(hosts).map(|(number, host)| HostDescription::host(host, number).machine(FLEET_NAMESPACE, &packages));
    objects.extend(machines);
    Ok(fleetwright_pki::write_private(folder.join(MACHINES), yaml::documents(&objects)?)?)
}

fn cluster(meta: &Meta, workers: &Workers, kubelet: &str) -> Result<[Value; 2]> {
    let versions = meta.package_versions(FLEET_NAMESPACE)?.into_iter();
    let mut same =
        versions.filter(|one| one["spec"]["kubernetes"].as_str().is_some_and(|is| minor(is) == minor(kubelet)));
    let mut package = same.next().with_context(|| format!("no control plane found for kubelet {kubelet}"))?;
    let name = format!("{}-workers", package["metadata"]["name"].as_str().unwrap_or_default());
    package["metadata"]["name"] = name.clone().into();
    let (proxy, dns) = (workers.image("kube-proxy")?, workers.image("coredns")?);
    package["spec"]["extensions"] = serde_json::to_value(shipped(|of| {
        let image = match of {
            "kube-proxy" => proxy,
            "coredns" => dns,
            _ => fleetwright_clusters::IMAGE,
        };
        image.to_owned()
    })?)?;
    let mut values = meta.site.host_values();
    // All pods have routes to each other: masquerading is not needed.
    values.insert("podMasquerade".to_owned(), "false".to_owned());
    let cluster = json!({
        "apiVersion": "fleetwright.io/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": NAME, "namespace": FLEET_NAMESPACE },
        "spec": {
            "packageVersion": name,
            "replicas": 1,
            "datastore": { "etcd": { "members": 1, "storage": { "size": "1Gi" } } },
            "endpoint": { "type": "NodePort", "host": meta.address().to_string() },
            "extensions": [
                { "name": "machine-access", "values": { "clusterValues": values } },
                // The hosts reach no upstream DNS server, so none answers at this address.
                { "name": "coredns", "values": { "forward": meta.site.network.address().to_string() } },
            ],
            "deletionProtection": false,
        },
    });
    Ok([package, cluster])
}

fn minor(version: &str) -> &str {
    version.rsplit_once('.').map_or(version, |(minor, _)| minor)
}

//! Hosts beside a lab's meta cluster that business clusters make their workers, and the objects for that.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fleetwright_lab::hosts::{Host, HostDescription, Image};
use fleetwright_lab::meta::{Meta, Workers};
use fleetwright_plan::cluster::extensions::shipped;
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::{FLEET_NAMESPACE, operators, yaml};

/// For the meta cluster: a package version with what is shipped, and a Cluster of it.
pub(super) const CLUSTER: &str = "workers.yaml";
/// For the business cluster: the key, packages, gates, a policy, and the hosts as Machines.
pub(super) const MACHINES: &str = "machines.yaml";
/// The Cluster's name.
pub(super) const NAME: &str = "pay-02";

/// Makes the image available that takes snapshots and is the Machine-Operator of business clusters: of this program. Those who are to have workers
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

/// Boots hosts that have the images of what runs on workers, with routes between all pods.
pub(super) async fn boot(meta: &Meta, names: &[String], kubelet: &str) -> Result<(Vec<Host>, Workers)> {
    let workers = meta.workers(minor(kubelet), Vec::new()).await?;
    let hosts = try_join_all(names.iter().map(|name| meta.worker(name, &workers))).await?;
    meta.connect(&hosts.iter().collect::<Vec<_>>()).await?;
    Ok((hosts, workers))
}

/// Leaves the objects in a folder. One of them is a key.
pub(super) fn write(folder: &Path, meta: &Meta, workers: &Workers, hosts: &[Host], kubelet: &str) -> Result<()> {
    fs::write(folder.join(CLUSTER), yaml::documents(&cluster(meta, workers, kubelet)?)?)?;
    let mut objects = meta.site.fleet(FLEET_NAMESPACE)?;
    // Images are there already.
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
    // All pods have routes to each other here: none needs another's address.
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
                // Hosts have nobody to ask for other names; nor is anybody there.
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

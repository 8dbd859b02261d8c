//! Business clusters for `fleetwright up`: a simulated meta cluster runs the objects of the real Cluster-Operator.
//! Each control plane really answers.

use anyhow::Context;
use fleetwright_api::{
    Cluster, ClusterPackageVersion, ClusterPackageVersionSpec, ClusterSpec, EtcdDatastore, Extension, Span,
};
use fleetwright_kit::Clock;
use fleetwright_plan::cluster::extensions::shipped;
use fleetwright_sim::meta::{Meta, MetaConfig, VersionDefect};
use kube::api::PostParams;
use kube::{Api, Client};

use super::Workers;
use crate::FLEET_NAMESPACE;

/// The registry in the names of images.
const REGISTRY: &str = "simulated.fleetwright.io";
/// The initial package version of the clusters.
pub(crate) const OLD: &str = "k8s-1.36.4";
/// A package version to upgrade to.
pub(crate) const NEW: &str = "k8s-1.37.1";
/// A package version whose API servers never become ready: an upgrade to it is rolled back.
pub(crate) const BAD: &str = "k8s-1.37.2";
/// The time limit of a stage before its rollback.
const STAGE: Span = Span::seconds(20);

/// The name of a cluster.
pub(crate) fn name(number: usize) -> String {
    const COLORS: [&str; 2] = ["blue", "green"];
    COLORS.get(number).map_or_else(|| format!("cluster-{number}"), |color| (*color).to_owned())
}

/// The meta cluster with the workers; dropping it ends them.
pub(crate) struct Clusters {
    _meta: Meta,
    _workers: Workers,
}

impl Clusters {
    /// Starts the meta cluster, and declares this number of clusters.
    ///
    /// # Errors
    /// No addresses for pods are free, or the server refuses an object.
    pub(crate) async fn start(client: &Client, count: usize, mut workers: Workers) -> anyhow::Result<Self> {
        let meta = Meta::start(client.clone(), Clock::system(), MetaConfig::default()).await?;
        let versions: Api<ClusterPackageVersion> = Api::namespaced(client.clone(), FLEET_NAMESPACE);
        for name in [OLD, NEW, BAD] {
            let kubernetes = name.trim_start_matches("k8s-");
            let mut spec = ClusterPackageVersionSpec::of_images(REGISTRY, kubernetes, "3.6.16");
            if !workers.fleets().is_empty() {
                spec.extensions = extensions()?;
            }
            let version = ClusterPackageVersion::new(name, spec);
            versions.create(&PostParams::default(), &version).await.with_context(|| format!("cannot create {name}"))?;
        }
        meta.declare(
            "kube-apiserver",
            &format!("v{}", BAD.trim_start_matches("k8s-")),
            Some(VersionDefect::NeverReady),
        );
        let clusters: Api<Cluster> = Api::namespaced(client.clone(), FLEET_NAMESPACE);
        for number in 0..count {
            let mut spec = ClusterSpec::of(OLD);
            // The first cluster has the replicas of a production cluster, the others are small.
            if number > 0 {
                spec.replicas = 1;
                spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
            }
            spec.upgrade.stage_timeout = STAGE;
            let cluster = Cluster::new(&name(number), spec);
            let made = clusters.create(&PostParams::default(), &cluster).await;
            made.with_context(|| format!("cannot create cluster {}", name(number)))?;
        }
        workers.start(client, &meta);
        Ok(Self { _meta: meta, _workers: workers })
    }
}

/// The extensions of clusters with workers. Pods of workers are not really run, so there is neither DNS nor a proxy.
fn extensions() -> anyhow::Result<Vec<Extension>> {
    let mut all = shipped(|name| format!("{REGISTRY}/{name}:v{}", env!("CARGO_PKG_VERSION")))?;
    all.retain(|one| one.name.starts_with("machine-"));
    Ok(all)
}

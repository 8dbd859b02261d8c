//! Business clusters for `fleetwright up`: a simulated meta cluster runs what the real Cluster-Operator writes, and each control plane really answers.

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

/// Where the images would be.
const REGISTRY: &str = "simulated.fleetwright.io";
/// What the clusters begin with.
pub(crate) const OLD: &str = "k8s-1.36.4";
/// What they can be upgraded to.
pub(crate) const NEW: &str = "k8s-1.37.1";
/// One whose API servers never become ready: whoever is upgraded to it is taken back.
pub(crate) const BAD: &str = "k8s-1.37.2";
/// How long a stage may take until it is taken back.
const STAGE: Span = Span::seconds(20);

/// What the clusters are called.
pub(crate) fn name(number: usize) -> String {
    const COLORS: [&str; 2] = ["blue", "green"];
    COLORS.get(number).map_or_else(|| format!("cluster-{number}"), |color| (*color).to_owned())
}

/// The meta cluster with the workers; it ends when this is dropped.
pub(crate) struct Clusters {
    _meta: Meta,
    _workers: Workers,
}

impl Clusters {
    /// Starts what runs control planes, and declares so many clusters.
    ///
    /// # Errors
    /// There are no addresses for pods, or the server does not take what is declared.
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
            // The first is as one runs it in earnest, the others are small.
            if number > 0 {
                spec.replicas = 1;
                spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
            }
            spec.upgrade.stage_within = STAGE;
            let cluster = Cluster::new(&name(number), spec);
            let made = clusters.create(&PostParams::default(), &cluster).await;
            made.with_context(|| format!("cannot create cluster {}", name(number)))?;
        }
        workers.start(client, &meta);
        Ok(Self { _meta: meta, _workers: workers })
    }
}

/// What workers need. Nothing runs their pods in earnest, so there is neither DNS nor a proxy.
fn extensions() -> anyhow::Result<Vec<Extension>> {
    let mut all = shipped(|name| format!("{REGISTRY}/{name}:v{}", env!("CARGO_PKG_VERSION")))?;
    all.retain(|one| one.name.starts_with("machine-"));
    Ok(all)
}

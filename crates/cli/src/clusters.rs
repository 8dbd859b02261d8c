//! `fleetwright cluster`: commands for business clusters. The kubeconfig selects the meta cluster that holds them.

mod change;
mod create;
mod delete;
mod health;
mod kubeconfig;
mod kubefile;
mod limits;
mod list;
mod packages;
mod plan;
mod recent_events;
mod snapshot;
mod status;
mod tree;
mod wait;

use clap::Subcommand;
use fleetwright_api::Cluster;

use crate::cluster::{Cluster as Meta, ClusterArgs};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a cluster.
    Create(create::Args),
    /// List clusters, those with problems first.
    List(list::Args),
    /// Show one cluster in detail: what it waits for, its components, certificates, snapshots and recent events.
    Status(status::Args),
    /// Show clusters with their components and replicas as a tree, problems first.
    Tree(tree::Args),
    /// Create a kubeconfig with a short-lived certificate for a cluster, for kubectl and other clients.
    Kubeconfig(kubeconfig::Args),
    /// Show what changing a cluster to a package version would do: stages, restarts, risks, and the diff of its objects.
    Plan(plan::Args),
    /// Upgrade a cluster to another package version.
    Upgrade(change::Upgrade),
    /// Roll a cluster back to a package version that it had before.
    Rollback(change::Rollback),
    /// Take a snapshot of the etcd of a cluster now.
    Snapshot(snapshot::Args),
    /// Delete a cluster and everything in it.
    Delete(delete::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Create(args) => create::run(args),
        Command::List(args) => list::run(args),
        Command::Status(args) => status::run(args),
        Command::Tree(args) => tree::run(args),
        Command::Kubeconfig(args) => kubeconfig::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Upgrade(args) => change::upgrade(args),
        Command::Rollback(args) => change::rollback(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Delete(args) => delete::run(args),
    }
}

/// A cluster's name, optionally with its type: `cluster/x`.
fn name(text: &str) -> Result<String, String> {
    crate::target::bare_name::<Cluster>(text)
}

/// The field manager of changes by these commands.
const FIELD_MANAGER: &str = "fleetwright-cluster";

/// One cluster that there is.
#[derive(clap::Args)]
struct SelectedCluster {
    /// Name of the cluster.
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,

    /// Namespace of the Cluster object. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

impl SelectedCluster {
    /// The meta cluster, and the cluster in it.
    async fn fetch(&self) -> anyhow::Result<(Meta, Cluster)> {
        let meta = self.cluster.connect().await?;
        let namespace = meta.namespace_or(self.namespace.as_deref()).to_owned();
        let cluster = crate::target::one(&meta, &namespace, &self.name).await?;
        Ok((meta, cluster))
    }
}

/// The arguments that name the cluster in commands: its name and its namespace.
fn called(cluster: &Cluster) -> String {
    use kube::ResourceExt as _;
    format!("{} -n {}", cluster.name_any(), cluster.namespace().unwrap_or_default())
}

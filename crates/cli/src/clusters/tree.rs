//! `fleetwright cluster tree`.

use std::collections::BTreeMap;

use fleetwright_api::{Machine, names};
use fleetwright_plan::explain::Tree;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;

use super::list::ClusterSelection;
use crate::cluster::{Cluster as Meta, ClusterArgs};
use crate::explanation::tree;
use crate::output::Output;
use crate::target;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster tree
  fleetwright cluster tree pay-01
  fleetwright cluster tree -l tier=prod --full
  fleetwright cluster tree pay-01 -o json | jq '.[].parts[] | select(.health == \"Unhealthy\")'

Problems come first, at every level. Without a name, only branches with a problem are expanded; --full expands all.")]
pub(crate) struct Args {
    /// Cluster to show, expanded. [default: all clusters]
    #[arg(value_name = "NAME", value_parser = super::name, conflicts_with_all = ["selector", "problems"])]
    name: Option<String>,

    #[command(flatten)]
    which: ClusterSelection,

    /// Expand all branches, also those without a problem.
    #[arg(long)]
    full: bool,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let meta = args.cluster.connect().await?;
        let namespace = meta.namespace_or(args.which.namespace.as_deref()).to_owned();
        let clusters = match &args.name {
            Some(name) => vec![target::one(&meta, &namespace, name).await?],
            None => args.which.fetch(&meta).await?,
        };
        let machines = machines(&meta, &namespace).await?;
        let full = args.full || args.name.is_some();
        let trees: Vec<_> = clusters
            .iter()
            .map(|cluster| {
                let own = machines.get(&cluster.name_any()).map(Vec::as_slice).unwrap_or_default();
                Tree::of(cluster, own, full)
            })
            .collect();
        let text = match args.output {
            Output::Text => tree::text(&trees, Timestamp::now()),
            Output::Json => serde_json::to_string_pretty(&trees)? + "\n",
            Output::Yaml => crate::yaml::documents(&trees.iter().map(|tree| json!(tree)).collect::<Vec<_>>())?,
        };
        crate::print(&text)
    })
}

/// The machines of each cluster, by the label of all objects of a cluster.
pub(super) async fn machines(meta: &Meta, namespace: &str) -> anyhow::Result<BTreeMap<String, Vec<Machine>>> {
    let mut found: BTreeMap<String, Vec<Machine>> = BTreeMap::new();
    let params = ListParams::default().labels(names::CLUSTER);
    for machine in crate::why::all::<Machine>(meta, namespace, params).await? {
        let cluster = machine.labels().get(names::CLUSTER).cloned().unwrap_or_default();
        found.entry(cluster).or_default().push(machine);
    }
    Ok(found)
}

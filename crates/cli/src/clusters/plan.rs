//! `fleetwright cluster plan`: the effects of a change of a Cluster, before the operator makes it.

use fleetwright_api::Cluster;
use fleetwright_clusters::ClusterSnapshot;
use fleetwright_plan::explain::Plan;
use jiff::Timestamp;
use serde_json::json;

use super::SelectedCluster;
use super::packages::PackageVersions;
use crate::cluster::Cluster as Meta;
use crate::explanation;
use crate::output::Output;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster plan pay-01
  fleetwright cluster plan pay-01 --to k8s-1.37.1-r1
  fleetwright cluster plan pay-01 --to k8s-1.37.1-r1 -o json | jq '.steps[] | {component, restarts}'

The plan calls the decisions of the operator about the package version, the objects of components, members of etcd, volumes and the start of a
rotation of authorities, with the objects in the meta cluster; nothing is changed and no Secret is read. Of members of etcd it has the next change
only, and does not ask them. It has no network policies, no objects of extensions, no repairs, no snapshots, no steps of a restore and not the
restarts that follow from a rotation or from another number of members. Which APIs clients use is known only after the change is requested: the
operator then asks the API servers, before it changes anything.")]
pub(crate) struct Args {
    #[command(flatten)]
    one: SelectedCluster,

    /// ClusterPackageVersion to plan for, in the same namespace. [default: the one that the cluster refers to]
    #[arg(long, value_name = "PACKAGE-VERSION", value_parser = super::packages::name)]
    to: Option<String>,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        let plan = of(&meta, &cluster, args.to.as_deref()).await?;
        match args.output {
            Output::Text => print!("{}", explanation::plan::cluster(&plan, Timestamp::now())),
            Output::Json => println!("{}", serde_json::to_string_pretty(&plan)?),
            Output::Yaml => print!("{}", crate::yaml::documents(&[json!(plan)])?),
        }
        Ok(())
    })
}

/// Computes the plan.
pub(super) async fn of(meta: &Meta, cluster: &Cluster, to: Option<&str>) -> anyhow::Result<Plan> {
    let present = ClusterSnapshot::look(&meta.client, cluster.clone()).await.map_err(|error| meta.explain(error))?;
    match present.rehearse(to, Timestamp::now()) {
        Some(plan) => Ok(Plan::of_cluster(cluster, &plan)),
        None => {
            let packages = PackageVersions::of(meta, cluster).await?;
            packages.get(to.unwrap_or(&cluster.spec.package_version))?;
            anyhow::bail!("the package version was created in the meantime; try again")
        }
    }
}

//! `fleetwright why`.

use anyhow::Context as _;
use fleetwright_api::{Cluster as BusinessCluster, ClusterPackageVersion, Machine, ReadinessGates, names};
use fleetwright_plan::explain;
use fleetwright_readiness::{WhyInput, why};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, CustomResourceExt as _, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::cluster::{Cluster, ClusterArgs, is_not_found};
use crate::explanation;
use crate::output::Output;
use crate::target::TargetArgs;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright why machine/host-17
  fleetwright why ma host-17 -n blue
  fleetwright why cluster/pay-01
  fleetwright why machine/host-17 -o json | jq -r .verdict.reason")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // A typing error in the arguments needs no cluster.
    let (kind, _) = args.target.among(&[Machine::crd().spec.names, BusinessCluster::crd().spec.names])?;
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let now = Timestamp::now();
        let explanation = match kind {
            0 => {
                let input = look(&cluster, &args.target).await?;
                why(&input, now)
                    .context("cannot parse the objects: install the CRDs of this version (fleetwright install)")?
            }
            _ => {
                let found: BusinessCluster = args.target.fetch(&cluster).await?;
                // Without the right to list them, none is proposed.
                let namespace = args.target.namespace(&cluster);
                let packages = all::<ClusterPackageVersion>(&cluster, namespace, ListParams::default()).await;
                explain::cluster(&found, &packages.unwrap_or_default())
            }
        };
        let text = match args.output {
            Output::Text => explanation::text(&explanation, now).trim_end().to_owned(),
            Output::Json => serde_json::to_string_pretty(&explanation)?,
            Output::Yaml => crate::yaml::documents(&[json!(explanation)])?.trim_end().to_owned(),
        };
        crate::print(&(text + "\n"))
    })
}

/// Reads everything that the answer depends on from the API server: a cache may be what is wrong.
async fn look(cluster: &Cluster, target: &TargetArgs) -> anyhow::Result<WhyInput> {
    let machine: Machine = target.fetch(cluster).await?;
    let namespace = target.namespace(cluster);
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let reports = ListParams::default().labels(&format!("{}={name}", names::MACHINE));
    let node = crate::machine::plan::node(cluster, &machine).await?;
    Ok(WhyInput {
        gates: all::<ReadinessGates>(cluster, namespace, ListParams::default()).await?,
        reports: all::<ConfigMap>(cluster, namespace, reports).await?,
        machines: all::<Machine>(cluster, namespace, ListParams::default()).await?,
        node,
        machine,
    })
}

/// All objects of a kind, page by page.
pub(crate) async fn all<K>(cluster: &Cluster, namespace: &str, params: ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    let (mut found, mut page) = (vec![], params.limit(500));
    loop {
        let list = match api.list(&page).await {
            Ok(list) => list,
            // Lists in a namespace that does not exist are empty: only the kind can be missing.
            Err(error) if is_not_found(&error) => anyhow::bail!(
                "the cluster does not serve {}.{}; run `fleetwright install`",
                K::plural(&()),
                K::group(&())
            ),
            Err(error) => return Err(cluster.explain(error)),
        };
        found.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

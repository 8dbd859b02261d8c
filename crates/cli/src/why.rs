//! `fleetwright why`.

use clap::ValueEnum;
use fleetwright_api::{Machine, ReadinessGates, names};
use fleetwright_readiness::{WhyInput, node_name, why};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::cluster::{Cluster, ClusterArgs};
use crate::target::TargetArgs;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright why machine/host-17
  fleetwright why ma host-17 -n blue
  fleetwright why machine/host-17 -o json | jq -r .reason")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// How to print it.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,

    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // A mistake in the words needs no cluster.
    args.target.name::<Machine>()?;
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let input = look(&cluster, &args.target).await?;
        let text = why(&input, Timestamp::now());
        let text = match args.output {
            Format::Text => text.trim_end().to_owned(),
            Format::Json => serde_json::to_string_pretty(&as_json(&input, &text))?,
        };
        crate::print(&(text + "\n"))
    })
}

/// Everything that the answer depends on, live: a cache may be what is wrong.
async fn look(cluster: &Cluster, target: &TargetArgs) -> anyhow::Result<WhyInput> {
    let machine: Machine = target.fetch(cluster).await?;
    let (client, namespace) = (&cluster.client, target.namespace(cluster));
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let reports = ListParams::default().labels(&format!("{}={name}", names::MACHINE));
    let node: Api<Node> = Api::all(client.clone());
    let node = node.get_opt(node_name(&machine)).await.map_err(|error| cluster.explain(error))?;
    Ok(WhyInput {
        gates: all::<ReadinessGates>(cluster, namespace, ListParams::default()).await?,
        reports: all::<ConfigMap>(cluster, namespace, reports).await?,
        machines: all::<Machine>(cluster, namespace, ListParams::default()).await?,
        node,
        machine,
    })
}

async fn all<K>(cluster: &Cluster, namespace: &str, params: ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    let (mut found, mut page) = (vec![], params.limit(500));
    loop {
        let list = api.list(&page).await.map_err(|error| cluster.explain(error))?;
        found.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// For programs: the verdict apart, and the text for people.
fn as_json(input: &WhyInput, text: &str) -> serde_json::Value {
    let conditions = input.machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let verdict = fleetwright_api::condition(conditions, names::SCHEDULABLE);
    let node = input.node.as_ref().and_then(|node| node.metadata.name.clone());
    json!({
        "machine": input.machine.metadata.name,
        "namespace": input.machine.metadata.namespace,
        "node": node,
        "schedulable": verdict.map(|verdict| verdict.status),
        "reason": verdict.map(|verdict| &verdict.reason),
        "message": verdict.map(|verdict| &verdict.message),
        "since": verdict.map(|verdict| verdict.last_transition_time),
        "text": text,
    })
}

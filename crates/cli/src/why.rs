//! `fleetwright why`.

use fleetwright_api::{Cluster as BusinessCluster, ComponentState, Machine, ReadinessGates, Status, condition, names};
use fleetwright_readiness::{WhyInput, node_name, why};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::ListParams;
use kube::{Api, CustomResourceExt as _, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterArgs, is_not_found};
use crate::clusters;
use crate::output::TextOrJson;
use crate::shown::{ago, cut, line, table};
use crate::target::TargetArgs;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright why machine/host-17
  fleetwright why ma host-17 -n blue
  fleetwright why cluster/pay-01
  fleetwright why machine/host-17 -o json | jq -r .reason")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: TextOrJson,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // A mistake in the words needs no cluster.
    let (kind, _) = args.target.among(&[Machine::crd().spec.names, BusinessCluster::crd().spec.names])?;
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let now = Timestamp::now();
        let (text, json) = match kind {
            0 => {
                let input = look(&cluster, &args.target).await?;
                let text = why(&input, now) + &packages(&input.machine, now);
                let json = as_json(&input, &text);
                (text, json)
            }
            _ => {
                let found: BusinessCluster = args.target.fetch(&cluster).await?;
                let text = clusters::why::why(&found, now);
                let json = clusters::why::as_json(&found, &text);
                (text, json)
            }
        };
        let text = match args.output {
            TextOrJson::Text => text.trim_end().to_owned(),
            TextOrJson::Json => serde_json::to_string_pretty(&json)?,
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
            // A namespace that is not there has empty lists: only the kind can be missing.
            Err(error) if is_not_found(&error) => anyhow::bail!(
                "the cluster does not know {}.{}; `fleetwright install` brings the kinds",
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

/// What is the matter with the machine's host and its packages; nothing if they are as they should be.
fn packages(machine: &Machine, now: Timestamp) -> String {
    let Some(status) =
        machine.status.as_ref().filter(|_| machine.spec.ssh.is_some() || !machine.spec.packages.is_empty())
    else {
        return String::new();
    };
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let mut out = String::new();
    let wrong: Vec<_> = status.components.iter().filter(|component| component.state != ComponentState::Ready).collect();
    if !wrong.is_empty() {
        out.push_str("\nPackages:\n");
        let rows: Vec<_> = wrong
            .iter()
            .map(|component| {
                let mark = match component.state {
                    ComponentState::Failed | ComponentState::RolledBack | ComponentState::Drifted => '✗',
                    _ => '…',
                };
                let since = format!("{:?} for {}", component.state, ago(component.since, now));
                vec![format!("  {mark} {}", component.component), since, cut(&line(&component.message), 300)]
            })
            .collect();
        out.push_str(&table(&rows));
    }
    let host = fleetwright_plan::machine::OURS.iter().filter_map(|type_| condition(&status.conditions, type_));
    let host: Vec<_> = host.filter(|condition| condition.status == Status::False).collect();
    if !host.is_empty() {
        out.push_str("\nHost:\n");
        let rows: Vec<_> = host
            .iter()
            .map(|condition| {
                vec![format!("  ✗ {}", condition.type_), condition.reason.clone(), cut(&line(&condition.message), 300)]
            })
            .collect();
        out.push_str(&table(&rows));
    }
    let away = condition(&status.conditions, names::REACHABLE).is_some_and(|reached| reached.status == Status::False);
    if away {
        let address = machine.spec.addresses.first().or(machine.spec.hostname.as_ref()).map_or(name, String::as_str);
        out.push_str(&format!(
            "\nWhat to do about the host:\n  see that {} is on, and that the operators reach it; it is tried again by itself, later each time\n  fleetwright machine retry {name} -n {namespace}    # try it now\n",
            line(address)
        ));
    }
    let failed =
        wrong.iter().any(|component| matches!(component.state, ComponentState::Failed | ComponentState::RolledBack));
    if failed {
        out.push_str(&format!(
            "\nWhat to do about the packages:\n  fleetwright machine logs {name} -n {namespace}    # what the last step printed\n  fleetwright machine retry {name} -n {namespace}   # once the cause is gone, or refer to another package version\n"
        ));
    }
    out
}

/// For programs: the verdict apart, and the text for people.
fn as_json(input: &WhyInput, text: &str) -> Value {
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
        "components": input.machine.status.as_ref().map(|status| &status.components),
        "since": verdict.map(|verdict| verdict.last_transition_time),
        "text": text,
    })
}

//! `fleetwright machine plan`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use fleetwright_api::{Disruption, Machine};
use fleetwright_machines::{DrainPreview, preview_drain, server_minors};
use fleetwright_plan::explain::{Deviation, MachineDetails, Obstacles, Plan, node_name};
use fleetwright_plan::join::{Binding, RegisteredNode, bind, not_bound};
use fleetwright_plan::machine::{
    DesiredPackages, HostKnowledge, HostObservation, KUBELET, MachineInputs, ObservedScope, PlannedStep,
    components_without_inputs, facts, steps, version_skew,
};
use fleetwright_plan::package::Rendered;
use fleetwright_plan::skew::ServerMinors;
use fleetwright_wire::{Observation, Observe, Owner};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{GetParams, Request};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::package_sources::PackageCatalog;
use super::reach::{self, HostConnector, ReachArgs};
use super::select::MachineSelection;
use crate::cluster::{Cluster, ClusterArgs, is_not_found};
use crate::explanation;
use crate::output::Output;
use crate::terminal_text::line;

/// The number of hosts observed concurrently.
const AT_ONCE: usize = 64;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright machine plan host-17
  fleetwright machine plan -l rack=r3 --observe
  fleetwright machine plan --all -o json | jq '.[] | select(.steps != [])'

Without --observe, the plan is based on what the operator recorded when it last checked the host. With --observe, the host is checked now,
over SSH. Neither changes anything.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: MachineSelection,

    /// Check the hosts now, over SSH.
    #[arg(long)]
    observe: bool,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,

    #[command(flatten)]
    reach: ReachArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The plan of one machine.
struct MachinePlan {
    machine: Machine,
    /// The steps, or the reason why they cannot be computed.
    steps: Result<Vec<PlannedStep>, String>,
    /// The deviations by component; only if the host was observed.
    deviations: Vec<Deviation>,
    node: Option<String>,
    /// The effects of a drain on the pods, if one is needed; or the reason why they are not known.
    drain: Result<DrainPreview, String>,
    held: Vec<String>,
    /// Packages that the API server does not support: reason, and what to do.
    refused: Vec<(&'static str, String)>,
    /// Components for which an earlier version of the operator recorded the version only; empty if the host was observed.
    by_version: Vec<String>,
    /// Files from Secrets that only the host can compare, as `component: path`; empty if it was observed.
    not_compared: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let machines = args.which.fetch(&cluster).await?;
        let shelf = PackageCatalog::of(&cluster, args.which.namespace(&cluster), &machines).await?;
        let way = if args.observe { Some(args.reach.way(&cluster)?) } else { None };
        let server = cluster.client.apiserver_version().await.map(|info| server_minors(&info));
        let server = server.map_err(|error| format!("cannot read the version of the API server: {error}"));
        let work = machines.iter().map(|machine| plan(args, &cluster, &shelf, way.as_ref(), machine, &server));
        let planned: Vec<MachinePlan> = futures::stream::iter(work).buffered(AT_ONCE).collect().await;
        let plans: Vec<_> = planned.iter().map(data).collect();
        let text = match args.output {
            Output::Text => explanation::plan::machines(&plans),
            Output::Json => serde_json::to_string_pretty(&plans)? + "\n",
            Output::Yaml => crate::yaml::documents(&plans.iter().map(|plan| json!(plan)).collect::<Vec<_>>())?,
        };
        crate::print(&text)?;
        let unknown = plans.iter().filter(|plan| plan.steps.is_none()).count();
        match unknown {
            0 => Ok(()),
            1 if plans.len() == 1 => bail!("cannot compute the steps"),
            1 => bail!("cannot compute the steps of 1 machine"),
            many => bail!("cannot compute the steps of {many} machines"),
        }
    })
}

async fn plan(
    args: &Args,
    cluster: &Cluster,
    shelf: &PackageCatalog,
    way: Option<&HostConnector>,
    machine: &Machine,
    version: &Result<Option<ServerMinors>, String>,
) -> MachinePlan {
    let server = version.as_ref().ok().copied().flatten();
    let mut planned = MachinePlan {
        machine: machine.clone(),
        steps: Ok(vec![]),
        deviations: vec![],
        node: None,
        drain: Ok(DrainPreview::default()),
        held: vec![],
        refused: vec![],
        by_version: vec![],
        not_compared: vec![],
    };
    planned.steps = match look(args, cluster, shelf, way, machine).await {
        Ok((wanted, seen)) => {
            planned.deviations = seen.as_ref().map(|(seen, _)| deviations(seen)).unwrap_or_default();
            planned.held = held(machine, &wanted);
            planned.refused = wanted.iter().filter_map(|one| version_skew(one, server)).collect();
            if seen.is_none() {
                planned.not_compared = not_compared(&wanted);
                planned.by_version = components_without_inputs(machine, &wanted);
            }
            let seen = seen.as_ref().map(|(observation, asked)| HostObservation {
                at: Timestamp::now(),
                observation,
                asked,
                current: true,
            });
            let known = MachineInputs {
                machine,
                identity: &Owner::default(),
                fence: 0,
                same_address: None,
                wanted: DesiredPackages::Ready(&wanted),
                leaving: &shelf.leaving(machine),
                host: HostKnowledge { seen, ..HostKnowledge::default() },
                node: None,
                binding: &Binding::Missing,
                certified: None,
                pods: None,
                window: None,
                given_up: &BTreeMap::new(),
                streaks: &BTreeMap::new(),
                failures: &BTreeMap::new(),
                check_every: Duration::from_secs(600),
                known_since: Timestamp::now(),
                outages: &[],
                server,
            };
            let steps = steps(&known, Timestamp::now());
            match version {
                // The operator does not change a kubelet either before it knows whether the API server supports it.
                Err(why) if steps.iter().flatten().any(|step| step.component == KUBELET) => Err(why.clone()),
                _ => steps,
            }
        }
        Err(why) => Err(why),
    };
    let node = match planned.steps.as_ref().is_ok_and(|steps| !steps.is_empty()) {
        true => node(cluster, machine).await.unwrap_or_else(|error| {
            planned.steps = Err(format!("cannot read Node {}: {error:#}", node_name(machine)));
            None
        }),
        false => None,
    };
    let name = node_name(machine);
    if let Some(node) = &node {
        let certified = machine.status.as_ref().and_then(|status| status.certified_at);
        let text = |field: &str| node["metadata"][field].as_str().unwrap_or_default();
        let seen = RegisteredNode { uid: text("uid"), created: text("creationTimestamp").parse().ok() };
        if bind(machine, certified, name, Some(seen)) == Binding::Foreign {
            planned.steps = Err(not_bound(&machine.name_any(), name));
        }
    }
    let worst = planned.steps.iter().flatten().map(|step| step.disruption).max().unwrap_or_default();
    if worst > Disruption::None {
        planned.node = node.map(|_| name.to_owned());
        if worst >= Disruption::Drain
            && let Some(node) = &planned.node
        {
            let preview = preview_drain(&cluster.client, node, &machine.spec.drain).await;
            planned.drain = preview.map_err(|error| error.to_string());
        }
    }
    planned
}

/// The rendered packages of a host and, if it is observed, its observation.
async fn look(
    args: &Args,
    cluster: &Cluster,
    shelf: &PackageCatalog,
    way: Option<&HostConnector>,
    machine: &Machine,
) -> Result<(Vec<Arc<Rendered>>, Option<(Observation, ObservedScope)>), String> {
    let known = machine.status.as_ref().and_then(|status| status.facts.clone());
    let Some(way) = way else {
        let wanted = shelf.wanted(machine, known.as_ref()).map_err(|unmade| match unmade.waits_for_facts {
            true => format!("{}; pass --observe to check the host now", unmade.message),
            false => unmade.message,
        })?;
        return Ok((wanted, None));
    };
    let said = |error: anyhow::Error| format!("{error:#}");
    let route = reach::route(cluster, machine, args.reach.limits()).await.map_err(said)?;
    let within = args.reach.within();
    let mut wanted = shelf.wanted(machine, known.as_ref());
    if wanted.as_ref().is_err_and(|unmade| unmade.waits_for_facts) {
        let (bare, _) = reach::observe(way, route.clone(), Observe::default(), within).await.map_err(said)?;
        wanted = shelf.wanted(machine, Some(&facts(&bare.facts)));
    }
    let wanted = wanted.map_err(|unmade| unmade.message)?;
    // A restored version is compared with the host's own copy, as the operator does.
    let restored: Vec<String> = held(machine, &wanted)
        .into_iter()
        .filter(|name| {
            let components = machine.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
            components.iter().any(|entry| entry.component == *name && entry.rollback.is_some())
        })
        .collect();
    let asked = wanted.iter().filter(|wanted| !restored.contains(&wanted.package.component));
    let packages = asked.map(|wanted| wanted.package.clone()).collect();
    let ask = Observe { packages, installed: restored, ..Observe::default() };
    let asked = ObservedScope::of(&ask);
    let (seen, _) = reach::observe(way, route, ask, within).await.map_err(said)?;
    Ok((wanted, Some((seen, asked))))
}

fn deviations(seen: &Observation) -> Vec<Deviation> {
    let each = seen.components.iter().flat_map(|component| {
        component.deviations.iter().map(|deviation| {
            let text = format!("{} is {}, should be {}", deviation.what, deviation.found, deviation.wanted);
            Deviation { component: component.component.clone(), message: line(&text) }
        })
    });
    each.collect()
}

/// Components that wait for a person, because their wanted version failed.
fn held(machine: &Machine, wanted: &[Arc<Rendered>]) -> Vec<String> {
    let components = machine.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
    let failed = components.iter().filter(|entry| {
        entry.failed.is_some() && wanted.iter().any(|wanted| Some(&wanted.digest) == entry.failed.as_ref())
    });
    failed.map(|entry| entry.component.clone()).collect()
}

/// Files with content from a Secret: their digest is not recorded.
fn not_compared(wanted: &[Arc<Rendered>]) -> Vec<String> {
    let files = wanted.iter().flat_map(|one| one.package.files.iter().map(move |file| (one, file)));
    let secrets = files.filter(|(_, file)| file.secret && !file.once);
    secrets.map(|(one, file)| format!("{}: {}", one.package.component, file.path)).collect()
}

/// The Node of a machine, not parsed: kubelets write times that do not parse.
pub(crate) async fn node(cluster: &Cluster, machine: &Machine) -> anyhow::Result<Option<Value>> {
    let get = Request::new(Node::url_path(&(), None)).get(node_name(machine), &GetParams::default())?;
    match cluster.client.request::<Value>(get).await {
        Ok(node) => Ok(Some(node)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(cluster.explain(error)),
    }
}

/// The plan as data.
fn data(planned: &MachinePlan) -> Plan {
    let details = MachineDetails {
        node: planned.node.clone(),
        evicted_pods: planned.drain.as_ref().map(|drain| drain.evicted.clone()).unwrap_or_default(),
        pods_error: planned.drain.as_ref().err().cloned(),
        deviations: planned.deviations.clone(),
        drift: planned.machine.spec.drift,
        not_compared: planned.not_compared.clone(),
        compared_by_version: planned.by_version.clone(),
    };
    let steps = planned.steps.as_deref().map_err(String::as_str);
    let blocking = planned.drain.iter().flat_map(|drain| &drain.blocking);
    let blocking: Vec<_> = blocking.cloned().collect();
    Plan::of_machine(
        &planned.machine,
        steps,
        Obstacles { failed: &planned.held, refused: &planned.refused, pods: &blocking },
        details,
    )
}

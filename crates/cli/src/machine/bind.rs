//! `fleetwright machine bind-node`: binds an existing Node to its machine, by a person's decision.
//!
//! The binding is in the status of the Machine, which needs a separate right (`machines/status`): a user who may write only Machines cannot
//! make the operators act on an existing Node. Where the API server has admission policies, it also needs the verb `adopt` on the Machine, which
//! an account that only writes conditions does not have.

use anyhow::{Context, bail};
use fleetwright_api::{GROUP, Machine, MachineStatus, NodeBinding, NodeRef};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::select::MachineSelection;
use crate::cluster::{Cluster, ClusterArgs};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright machine bind-node host-17 --dry-run
  fleetwright machine bind-node host-17
  fleetwright machine bind-node -l rack=r3

Nodes that join with the token of their machine are bound automatically. Use this command for Nodes that existed before their Machine, that
joined in another way, or that an earlier version did not bind. Once a Node is bound, the operators close, drain, label, taint and delete it on
behalf of the machine, and approve the certificates of its kubelet.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: MachineSelection,

    /// Show what would be bound, without changing anything.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let machines = args.which.fetch(&cluster).await?;
        let namespace = args.which.namespace(&cluster).to_owned();
        if machines.is_empty() {
            bail!("no machines found in namespace {namespace}");
        }
        let all = crate::why::all::<Machine>(&cluster, &namespace, ListParams::default()).await?;
        let mut failed = 0;
        for machine in &machines {
            let name = machine.name_any();
            match bind(&cluster, machine, &all, args.dry_run).await {
                Ok(done) => println!("machine.{GROUP}/{name} {done}"),
                Err(error) => {
                    failed += 1;
                    eprintln!("machine.{GROUP}/{name} not bound: {error:#}");
                }
            }
        }
        if failed > 0 { bail!("{failed} of {} machines were not bound", machines.len()) } else { Ok(()) }
    })
}

async fn bind(cluster: &Cluster, machine: &Machine, all: &[Machine], dry_run: bool) -> anyhow::Result<String> {
    let name = machine.name_any();
    let wanted = machine.spec.hostname.as_deref().unwrap_or(&name);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = nodes.get_opt(wanted).await.map_err(|error| cluster.explain(error))?;
    let node = node.with_context(|| format!("Node {wanted} not found"))?;
    let uid = node.uid().with_context(|| format!("Node {wanted} has no uid"))?;
    let bound = |machine: &Machine| machine.status.as_ref().and_then(MachineStatus::bound_uid) == Some(uid.as_str());
    if bound(machine) {
        return Ok(format!("is already bound to Node {wanted}"));
    }
    if let Some(other) = all.iter().find(|other| other.name_any() != name && bound(other)) {
        bail!("Node {wanted} is bound to Machine {}: delete one of the two Machines", other.name_any());
    }
    let hint = undeclared(machine, &node);
    if dry_run {
        return Ok(format!("would be bound to Node {wanted} (uid {uid}){hint}"));
    }
    let node_ref = NodeRef { name: wanted.to_owned(), uid: Some(uid), binding: Some(NodeBinding::Adopted) };
    let patch = json!({
        "metadata": { "resourceVersion": machine.resource_version() },
        "status": { "nodeRef": node_ref },
    });
    let api: Api<Machine> = Api::namespaced(cluster.client.clone(), &machine.namespace().unwrap_or_default());
    let params = PatchParams { field_manager: Some("fleetwright-machine".into()), ..PatchParams::default() };
    api.patch_status(&name, &params, &Patch::Merge(patch)).await.map_err(|error| cluster.explain(error))?;
    Ok(format!("bound to Node {wanted}{hint}"))
}

/// Addresses of the Node that the machine does not declare: a hint that these are two hosts, and names that its certificates will lack.
fn undeclared(machine: &Machine, node: &Node) -> String {
    let reported = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let ips = reported.filter(|address| address.type_.ends_with("IP")).map(|address| address.address.as_str());
    let other: Vec<&str> = ips.filter(|ip| !machine.spec.addresses.iter().any(|own| own == ip)).collect();
    if other.is_empty() {
        return String::new();
    }
    format!("; the Node reports {}, which spec.addresses does not list", other.join(", "))
}

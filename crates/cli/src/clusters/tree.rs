//! `fleetwright cluster tree`.

use std::collections::BTreeMap;

use fleetwright_api::{Cluster, Machine, Phase, Status, names};
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ListParams;

use super::health::{self, Health, of_cluster, of_component, of_replica, sign, version};
use super::list::ClusterSelection;
use super::status::replica_says;
use crate::cluster::{Cluster as Meta, ClusterArgs};
use crate::target;
use crate::terminal_text::{cut, line};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster tree
  fleetwright cluster tree pay-01
  fleetwright cluster tree -l tier=prod --full

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
        let now = Timestamp::now();
        let roots: Vec<_> = clusters
            .iter()
            .map(|cluster| {
                let own = machines.get(&cluster.name_any()).map(Vec::as_slice).unwrap_or_default();
                branch(cluster, own, full, now)
            })
            .collect();
        crate::print(&roots.iter().map(TreeNode::shown).collect::<String>())
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

/// A line with its children.
struct TreeNode {
    mark: Health,
    text: String,
    parts: Vec<TreeNode>,
}

impl TreeNode {
    fn leaf(mark: Health, text: impl AsRef<str>) -> Self {
        Self { mark, text: cut(line(text.as_ref()).trim_end(), 240), parts: vec![] }
    }

    fn shown(&self) -> String {
        let mut out = format!("{} {}\n", sign(self.mark), self.text);
        self.below(&mut out, "");
        out
    }

    fn below(&self, out: &mut String, indent: &str) {
        for (at, part) in self.parts.iter().enumerate() {
            let (corner, bar) = if at + 1 == self.parts.len() { ("└─", "   ") } else { ("├─", "│  ") };
            out.push_str(&format!("{indent}{corner} {} {}\n", sign(part.mark), part.text));
            part.below(out, &format!("{indent}{bar}"));
        }
    }

    /// Sorts unhealthy nodes first; otherwise the order stays.
    fn sorted(mut parts: Vec<Self>) -> Vec<Self> {
        parts.sort_by_key(|part| part.mark);
        parts
    }
}

fn branch(cluster: &Cluster, machines: &[Machine], full: bool, now: Timestamp) -> TreeNode {
    let mark = of_cluster(cluster);
    let what = health::what(cluster);
    let text = format!(
        "{}  {}  {}  {}",
        cluster.name_any(),
        health::phase(cluster),
        cluster.spec.package_version,
        // The children show the problem.
        if mark == Health::Unhealthy { "" } else { &what }
    );
    let mut root = TreeNode::leaf(mark, text);
    if mark == Health::Healthy && !full {
        return root;
    }
    let wrong = health::problems(cluster);
    let mut parts: Vec<_> = wrong
        .iter()
        .map(|condition| {
            let text = format!("{}: {}: {}", condition.type_, condition.reason, condition.message);
            TreeNode::leaf(Health::Unhealthy, text)
        })
        .collect();
    if let Some(failed) = health::failed(cluster) {
        let text = format!("{} failed and was rolled back: {}", failed.package_version, failed.message);
        parts.push(TreeNode::leaf(Health::Unhealthy, text));
    }
    if health::is_protected(cluster) {
        parts.push(TreeNode::leaf(Health::Unhealthy, "deletion is blocked by spec.deletionProtection"));
    }
    let mut below: Vec<_> =
        health::components(cluster).iter().map(|component| component_branch(component, full, now)).collect();
    let extensions = cluster.status.iter().flat_map(|status| &status.extensions).map(|extension| {
        let mark = health::of_extension(extension);
        let said = if mark == Health::Healthy {
            String::new()
        } else {
            format!("{}: {}", extension.reason, extension.message)
        };
        TreeNode::leaf(mark, format!("extension {}  {said}", extension.name))
    });
    below.extend(extensions);
    below.extend(machine_branch(machines, full));
    parts.extend(TreeNode::sorted(below));
    if mark == Health::Unhealthy && parts.iter().all(|part| part.mark != Health::Unhealthy) && !what.is_empty() {
        parts.insert(0, TreeNode::leaf(Health::Unhealthy, what));
    }
    root.parts = parts;
    root
}

fn component_branch(component: &fleetwright_api::ClusterComponentStatus, full: bool, now: Timestamp) -> TreeNode {
    let ready = component.replicas.iter().filter(|replica| replica.ready).count();
    let text = format!("{}  {}  {ready}/{} ready", component.component, version(component), component.replicas.len());
    let mut root = TreeNode::leaf(of_component(component), text);
    if root.mark == Health::Healthy && !full {
        return root;
    }
    let replicas = component.replicas.iter().map(|replica| {
        let mut leaf = TreeNode::leaf(
            of_replica(component.component, replica),
            format!(
                "{}  {}  {}",
                replica.name,
                replica.version.as_deref().unwrap_or("-"),
                replica_says(component.component, replica, now)
            ),
        );
        if !replica.message.is_empty() {
            leaf.parts.push(TreeNode::leaf(leaf.mark, &replica.message));
        }
        leaf
    });
    root.parts = TreeNode::sorted(replicas.collect());
    root
}

/// The machines as one branch, those with a problem separately.
fn machine_branch(machines: &[Machine], full: bool) -> Option<TreeNode> {
    if machines.is_empty() {
        return None;
    }
    let each: Vec<_> = machines
        .iter()
        .map(|machine| {
            let mark = machine_mark(machine);
            TreeNode::leaf(mark, format!("machine/{}  {}", machine.name_any(), crate::machine::summary(machine)))
        })
        .collect();
    let well = each.iter().filter(|machine| machine.mark == Health::Healthy).count();
    let worst = each.iter().map(|machine| machine.mark).min().unwrap_or(Health::Healthy);
    let mut root = TreeNode::leaf(worst, format!("machines  {well}/{} ready", each.len()));
    root.parts = TreeNode::sorted(each).into_iter().filter(|machine| full || machine.mark != Health::Healthy).collect();
    Some(root)
}

fn machine_mark(machine: &Machine) -> Health {
    let schedulable = |status: &fleetwright_api::MachineStatus| {
        fleetwright_api::condition(&status.conditions, names::SCHEDULABLE)
            .is_none_or(|verdict| verdict.status == Status::True)
    };
    match &machine.status {
        _ if crate::machine::is_problem(machine) => Health::Unhealthy,
        Some(status) if status.phase == Some(Phase::Ready) && schedulable(status) => Health::Healthy,
        _ => Health::Progressing,
    }
}

//! `fleetwright cluster list`.

use fleetwright_api::{Cluster, condition, names};
use jiff::Timestamp;
use kube::api::ListParams;

use super::health::{self, HEALTHY_RANK, rank, what};
use crate::cluster::{Cluster as Meta, ClusterArgs};
use crate::output::Format;
use crate::terminal_text::{ago, cut, line, table};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster list
  fleetwright cluster list -l tier=prod -o wide
  fleetwright cluster list --problems
  fleetwright cluster list -o json | jq -r '.items[].status.endpoint'")]
pub(crate) struct Args {
    #[command(flatten)]
    which: ClusterSelection,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Several clusters.
#[derive(clap::Args)]
pub(super) struct ClusterSelection {
    /// Label selector, such as `tier=prod,region!=east`.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    /// Show only clusters with a problem.
    #[arg(long)]
    problems: bool,

    /// Namespace of the Cluster objects. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    pub(super) namespace: Option<String>,
}

impl ClusterSelection {
    /// The clusters, those with problems first, then by name. Prints a message if there are none.
    pub(super) async fn fetch(&self, meta: &Meta) -> anyhow::Result<Vec<Cluster>> {
        let namespace = meta.namespace_or(self.namespace.as_deref());
        let mut params = ListParams::default();
        params.label_selector.clone_from(&self.selector);
        let mut clusters = crate::why::all::<Cluster>(meta, namespace, params).await?;
        clusters.sort_by_cached_key(|cluster| (rank(cluster), cluster.metadata.name.clone()));
        clusters.retain(|cluster| !self.problems || rank(cluster) < HEALTHY_RANK);
        if clusters.is_empty() {
            let having = self.selector.as_ref().map_or(String::new(), |selector| format!(" with {selector}"));
            match self.problems {
                true => eprintln!("No cluster{having} has a problem in namespace {namespace}."),
                false => eprintln!(
                    "No clusters{having} found in namespace {namespace}; create one with `fleetwright cluster create`, or pass another namespace with -n."
                ),
            }
        }
        Ok(clusters)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let meta = args.cluster.connect().await?;
        let clusters = args.which.fetch(&meta).await?;
        let text = match args.output {
            format if format.is_machine_readable() => format.objects(&clusters)?,
            _ if clusters.is_empty() => String::new(),
            format => list(&clusters, format == Format::Wide, Timestamp::now()),
        };
        crate::print(&text)
    })
}

fn list(clusters: &[Cluster], wide: bool, now: Timestamp) -> String {
    let mut head = vec!["NAME", "PHASE", "PACKAGE VERSION", "VERIFIED", "READY", "AGE"];
    if wide {
        head.extend(["ENDPOINT", "NAMESPACE", "RUNNING", "PREVIOUS", "SNAPSHOT", "CERTIFICATES"]);
    }
    head.push("MESSAGE");
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for cluster in clusters {
        let status = cluster.status.clone().unwrap_or_default();
        let ready = condition(&status.conditions, names::READY).map_or("-", |condition| condition.status.as_str());
        let mut row = vec![
            cluster.metadata.name.clone().unwrap_or_default(),
            health::phase(cluster),
            cluster.spec.package_version.clone(),
            health::replicas(cluster),
            ready.to_owned(),
            cluster.metadata.creation_timestamp.as_ref().map_or("-".to_owned(), |time| ago(time.0, now)),
        ];
        if wide {
            let dash = |text: Option<String>| text.map_or("-".to_owned(), |text| line(&text));
            let first_end = status.certificates.iter().map(|certificate| certificate.not_after).min();
            row.extend([
                dash(status.endpoint),
                dash(status.namespace),
                dash(status.package_version),
                dash(status.previous),
                dash(status.last_snapshot.map(|snapshot| ago(snapshot.at, now))),
                dash(first_end.map(|end| ago(now, end))),
            ]);
        }
        row.push(cut(&what(cluster), if wide { 240 } else { 100 }));
        rows.push(row);
    }
    table(&rows)
}

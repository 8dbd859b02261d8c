//! `fleetwright machine logs`: the output of a step, from the host's own journal.

use anyhow::bail;
use fleetwright_api::Machine;
use fleetwright_transport::Link;
use fleetwright_wire::{Answer, Bytes, Observe, Outcome, Request, StepRecord};
use jiff::Timestamp;

use super::reach::{self, ReachArgs};
use super::select;
use crate::cluster::ClusterArgs;
use crate::target;
use crate::terminal_text::{ago, line, lines, table};

/// The number of steps listed.
const RECENT: u32 = 32;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright machine logs host-17
  fleetwright machine logs host-17 --list
  fleetwright machine logs host-17 --step 0b1c….kubelet.install.6f1c02aa.0")]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "NAME", value_parser = select::name)]
    name: String,

    /// ID of the step, from the status of the machine or from --list. [default: the running step, else the last one]
    #[arg(long, value_name = "ID", conflicts_with = "list")]
    step: Option<String>,

    /// List the steps in the journal of the host, at most the last 32.
    #[arg(long)]
    list: bool,

    /// Maximum number of bytes to print, from the end.
    #[arg(long, value_name = "BYTES", default_value = "65536")]
    bytes: u64,

    /// Namespace of the machine. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,

    #[command(flatten)]
    reach: ReachArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref()).to_owned();
        let machine: Machine = target::one(&cluster, &namespace, &args.name).await?;
        let way = args.reach.way(&cluster)?;
        let route = reach::route(&cluster, &machine, args.reach.limits()).await?;
        let recent = if args.step.is_none() { RECENT } else { 0 };
        let ask = Observe { records: args.step.iter().cloned().collect(), recent, ..Observe::default() };
        let (mut seen, link) = reach::observe(&way, route, ask, args.reach.within()).await?;
        seen.records.sort_by_key(|record| (record.began, record.id.clone()));
        seen.records.dedup_by(|a, b| a.id == b.id);
        if args.list {
            return crate::print(&listed(&seen.records));
        }
        let found = match &args.step {
            Some(id) => seen.records.iter().find(|record| record.id == *id),
            None => seen.records.iter().find(|record| record.outcome == Outcome::Running).or(seen.records.last()),
        };
        let Some(record) = found else {
            match &args.step {
                Some(id) => {
                    bail!("step {id} not found on the host of machine {}; see --list", args.name)
                }
                None => bail!("no steps are recorded on the host of machine {}", args.name),
            }
        };
        eprintln!("{}", head(record));
        let log = log(link.as_ref(), args, record).await?;
        let mut text = lines(&String::from_utf8_lossy(&log.0));
        if text.is_empty() {
            text = lines(&record.tail);
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        crate::print(&text)
    })
}

async fn log(link: &dyn Link, args: &Args, record: &StepRecord) -> anyhow::Result<Bytes> {
    let request = Request::Log { id: record.id.clone(), bytes: args.bytes };
    match link.ask(&request, args.reach.within(), &|_| {}).await? {
        Answer::Log(bytes) => Ok(bytes),
        Answer::Failed(failure) => bail!("host rejected the request: {}", line(&failure.message)),
        _ => bail!("unexpected answer from the host"),
    }
}

fn outcome(record: &StepRecord) -> &'static str {
    match record.outcome {
        Outcome::Running => "running",
        Outcome::Done => "done",
        Outcome::Failed => "failed",
        Outcome::Interrupted => "interrupted",
        Outcome::Refused => "refused",
    }
}

fn head(record: &StepRecord) -> String {
    let component = record.component.as_deref().map(|component| format!(" {}", line(component))).unwrap_or_default();
    let message = if record.message.is_empty() { String::new() } else { format!(": {}", line(&record.message)) };
    let verb = format!("{:?}", record.verb).to_lowercase();
    format!("# {} ({verb}{component}) {}{message}", line(&record.id), outcome(record))
}

fn listed(records: &[StepRecord]) -> String {
    let now = Timestamp::now();
    let mut rows = vec![["ID", "STEP", "OUTCOME", "STARTED", "MESSAGE"].map(str::to_owned).to_vec()];
    for record in records.iter().rev() {
        let what = format!("{:?} {}", record.verb, record.component.as_deref().unwrap_or_default());
        let began = Timestamp::from_second(record.began).map_or("-".to_owned(), |at| format!("{} ago", ago(at, now)));
        rows.push(vec![line(&record.id), line(&what), outcome(record).to_owned(), began, line(&record.message)]);
    }
    table(&rows)
}

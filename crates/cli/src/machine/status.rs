//! `fleetwright machine status`.

use std::fmt::Write as _;

use anyhow::bail;
use fleetwright_api::{Component, ComponentState, Machine, MachineStatus, condition, names};
use fleetwright_plan::explain::machine_health::{self, is_problem, rank};
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::runtime::watcher;

use super::select;
use crate::cluster::{Cluster, ClusterArgs};
use crate::explanation::tree;
use crate::output::Format;
use crate::target;
use crate::terminal_text::{ago, conditions, cut, line, table};
use crate::watch::{self, KindPrinter};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright machine status
  fleetwright machine status -l rack=r3 -o wide
  fleetwright machine status host-17
  fleetwright machine status -w")]
pub(crate) struct Args {
    /// Machine to show in detail. [default: list all machines]
    #[arg(value_name = "NAME", value_parser = select::name)]
    name: Option<String>,

    /// Label selector, such as `rack=r3,tier!=test`.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "name")]
    selector: Option<String>,

    /// List only machines with a problem.
    #[arg(long, conflicts_with = "name")]
    problems: bool,

    /// Keep running, and print a line for each change.
    #[arg(short, long)]
    watch: bool,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,

    /// Namespace of the machines. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.watch && args.output.is_machine_readable() {
        bail!("--watch prints lines: leave -o out, or watch with kubectl");
    }
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref()).to_owned();
        let mut machines = match &args.name {
            Some(name) => vec![target::one(&cluster, &namespace, name).await?],
            None => {
                let mut params = kube::api::ListParams::default();
                params.label_selector.clone_from(&args.selector);
                crate::why::all::<Machine>(&cluster, &namespace, params).await?
            }
        };
        let now = Timestamp::now();
        machines.sort_by_cached_key(|machine| (rank(machine), machine.metadata.name.clone()));
        machines.retain(|machine| !args.problems || is_problem(machine));
        let text = match (args.output, &args.name) {
            (format, _) if format.is_machine_readable() => format.objects(&machines)?,
            (_, Some(_)) => machines.iter().map(|machine| detail(machine, now)).collect(),
            (_, None) if machines.is_empty() => {
                let what = if args.problems { "No machine has a problem" } else { "No machines found" };
                eprintln!("{what} in namespace {namespace}.");
                String::new()
            }
            (format, None) => list(&machines, format == Format::Wide, now),
        };
        crate::print(&text)?;
        if !args.watch {
            return Ok(());
        }
        go_on(args, &cluster, &namespace, &machines).await
    })
}

/// Prints a line for each change, until the command is stopped.
async fn go_on(args: &Args, cluster: &Cluster, namespace: &str, shown: &[Machine]) -> anyhow::Result<()> {
    let mut config = watcher::Config::default();
    config.label_selector.clone_from(&args.selector);
    config.field_selector = args.name.as_ref().map(|name| format!("metadata.name={name}"));
    let api: Api<Machine> = Api::namespaced(cluster.client.clone(), namespace);
    watch::changes(api, config, shown, KindPrinter { summary, is_problem, only_problems: args.problems }).await
}

fn phase(machine: &Machine) -> String {
    let phase = machine.status.as_ref().and_then(|status| status.phase).map(|phase| format!("{phase:?}"));
    tree::phase(phase.as_deref(), machine.spec.paused)
}

/// The number of components in sync, of all components.
fn packages(machine: &Machine) -> String {
    let (ready, all) = machine_health::packages(machine);
    format!("{ready}/{all}")
}

/// The state of the machine in a line: the problem, else the running work.
fn what(machine: &Machine) -> String {
    line(&machine_health::message(machine))
}

fn summary(machine: &Machine) -> String {
    let text = format!("{} {} {}", phase(machine), packages(machine), what(machine));
    cut(text.trim_end(), 160)
}

fn list(machines: &[Machine], wide: bool, now: Timestamp) -> String {
    let mut rows = vec![
        vec!["NAME", "PHASE", "PACKAGES", "SCHEDULABLE", "AGE"].into_iter().map(str::to_owned).collect::<Vec<_>>(),
    ];
    if wide {
        rows[0].extend(["ADDRESS", "ZONE", "OS", "KERNEL", "NEXT CHECK"].map(str::to_owned));
    }
    rows[0].push("MESSAGE".to_owned());
    for machine in machines {
        let status = machine.status.clone().unwrap_or_default();
        let schedulable =
            condition(&status.conditions, names::SCHEDULABLE).map_or("-", |condition| condition.status.as_str());
        let age = machine.metadata.creation_timestamp.as_ref().map_or("-".to_owned(), |time| ago(time.0, now));
        let mut row = vec![
            machine.metadata.name.clone().unwrap_or_default(),
            phase(machine),
            packages(machine),
            schedulable.to_owned(),
            age,
        ];
        if wide {
            let facts = status.facts.clone().unwrap_or_default();
            let dash = |text: Option<String>| text.map_or("-".to_owned(), |text| line(&text));
            row.push(dash(machine.spec.addresses.first().cloned()));
            row.push(dash(machine.spec.hardware.zone.clone()));
            row.push(dash(facts.os));
            row.push(dash(facts.kernel));
            row.push(next_check(&status, now).map_or("-".to_owned(), |at| ago(now, at)));
        }
        let text = what(machine);
        let most = if wide { 240 } else { 100 };
        row.push(cut(&text, most));
        rows.push(row);
    }
    table(&rows)
}

fn detail(machine: &Machine, now: Timestamp) -> String {
    let mut out = String::new();
    let status = machine.status.clone().unwrap_or_default();
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let _ = writeln!(out, "machine/{name} is {}, {} packages ready", phase(machine), packages(machine));
    if machine.metadata.deletion_timestamp.is_some() {
        out.push_str("  It is being deleted.\n");
    }
    if let Some(progress) = &status.progress {
        let _ = writeln!(
            out,
            "\nNow:\n  {} for {}{}",
            line(&progress.step),
            ago(progress.since, now),
            if progress.message.is_empty() { String::new() } else { format!(": {}", line(&progress.message)) }
        );
        if let Some(id) = &progress.id {
            let _ = writeln!(out, "  fleetwright machine logs {name} --step {}", line(id));
        }
    }
    components(&mut out, &status.components, now);
    out.push_str(&conditions(&status.conditions, now));
    if let Some(drift) = &status.last_drift {
        let fate = if drift.repaired { "repaired" } else { "not repaired" };
        let again = if drift.repeats > 1 { format!(", {} times in a row", drift.repeats) } else { String::new() };
        let _ = writeln!(out, "\nLast drift, {} ago, {fate}{again}:", ago(drift.at, now));
        for item in &drift.items {
            let _ = writeln!(
                out,
                "  {}: {} was {}, should be {}",
                line(&item.component),
                line(&item.what),
                line(&item.found),
                line(&item.wanted)
            );
        }
    }
    let mut rows = Vec::new();
    let mut row = |title: &str, text: Option<String>| {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            rows.push(vec![format!("  {title}"), line(&text)]);
        }
    };
    let facts = status.facts.clone().unwrap_or_default();
    row("address", machine.spec.addresses.first().cloned());
    row("node", status.node_ref.as_ref().map(|node| node.name.clone()));
    row(
        "system",
        facts.os.clone().map(|os| {
            format!("{os}, kernel {}, {}", facts.kernel.as_deref().unwrap_or("?"), facts.arch.as_deref().unwrap_or("?"))
        }),
    );
    row(
        "size",
        facts.cpus.map(|cpus| format!("{cpus} cpus, {}", facts.memory.as_deref().map_or("?".to_owned(), size))),
    );
    row(
        "zone, rack",
        Some(
            [machine.spec.hardware.zone.clone(), machine.spec.hardware.rack.clone()]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(", "),
        ),
    );
    row("next check", next_check(&status, now).map(|at| format!("in {}", ago(now, at))));
    if !rows.is_empty() {
        out.push_str("\nHost:\n");
        out.push_str(&table(&rows));
    }
    out
}

/// The time of the next check: the recorded observation may be old, since only changes are recorded.
fn next_check(status: &MachineStatus, now: Timestamp) -> Option<Timestamp> {
    let (at, every) = (status.next_check?, status.check_every?.0.as_millis());
    let late = u128::try_from(now.duration_since(at).as_millis()).unwrap_or(0);
    let periods = if now < at || every == 0 { 0 } else { late / every + 1 };
    at.checked_add(SignedDuration::from_millis(i64::try_from(periods * every).ok()?)).ok()
}

fn components(out: &mut String, components: &[Component], now: Timestamp) {
    if components.is_empty() {
        return;
    }
    out.push_str("\nPackages:\n");
    let mut sorted: Vec<_> = components.iter().collect();
    sorted.sort_by_key(|component| component.state == ComponentState::Ready);
    let rows: Vec<_> = sorted
        .iter()
        .map(|component| {
            let mark = match component.state {
                ComponentState::Ready => "✓",
                ComponentState::Failed | ComponentState::RolledBack | ComponentState::Drifted => "✗",
                _ => "…",
            };
            let version = match (&component.observed, &component.desired) {
                (Some(from), Some(to)) if from == to => to.clone(),
                (Some(from), Some(to)) => format!("{from} → {to}"),
                (None, Some(to)) => format!("→ {to}"),
                (Some(from), None) => format!("{from} → none"),
                (None, None) => "-".to_owned(),
            };
            vec![
                format!("  {mark} {}", component.component),
                line(&version),
                format!("{:?}", component.state),
                ago(component.since, now),
                line(&component.message),
            ]
        })
        .collect();
    out.push_str(&table(&rows));
}

/// A memory size in readable units.
fn size(quantity: &str) -> String {
    match quantity.strip_suffix("Ki").and_then(|kibibytes| kibibytes.parse::<u64>().ok()) {
        Some(kibibytes) if kibibytes >= 1 << 20 => format!("{} GiB", kibibytes >> 20),
        _ => quantity.to_owned(),
    }
}

//! `fleetwright cluster status`.

use std::fmt::Write as _;

use anyhow::bail;
use fleetwright_api::{Cluster, ClusterComponentStatus, ClusterStatus, Status};
use jiff::Timestamp;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};

use super::health::{self, HEALTHY_RANK, of_component, of_replica, sign, summary, version};
use super::{SelectedCluster, recent_events};
use crate::explanation::tree::replica_state;
use crate::output::Format;
use crate::terminal_text::{ago, conditions, line, table};
use crate::watch::{self, KindPrinter};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster status pay-01
  fleetwright cluster status pay-01 -w
  fleetwright cluster status pay-01 -o json | jq .status.components

`fleetwright cluster list` lists all clusters, one per line. `fleetwright why cluster/pay-01` shows why a cluster does not work.")]
pub(crate) struct Args {
    #[command(flatten)]
    one: SelectedCluster,

    /// Keep running, and print a line for each change.
    #[arg(short, long)]
    watch: bool,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.watch && args.output.is_machine_readable() {
        bail!("--watch prints lines: leave -o out, or watch with kubectl");
    }
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        let text = match args.output {
            format if format.is_machine_readable() => format.objects(std::slice::from_ref(&cluster))?,
            _ => {
                let now = Timestamp::now();
                // Without the right to read events, the rest is still shown.
                let events = match recent_events::news(&meta, &cluster).await {
                    Ok(events) => recent_events::shown(&events, now),
                    Err(error) => format!("  {error:#}\n"),
                };
                detail(&cluster, &events, now)
            }
        };
        crate::print(&text)?;
        if !args.watch {
            return Ok(());
        }
        let config = watcher::Config::default().fields(&format!("metadata.name={}", cluster.name_any()));
        let api: Api<Cluster> = Api::namespaced(meta.client.clone(), &cluster.namespace().unwrap_or_default());
        let is_problem = |cluster: &Cluster| health::rank(cluster) < HEALTHY_RANK;
        watch::changes(api, config, &[cluster], KindPrinter { summary, is_problem, only_problems: false }).await
    })
}

fn detail(cluster: &Cluster, events: &str, now: Timestamp) -> String {
    let mut out = String::new();
    let (name, status) = (cluster.name_any(), cluster.status.clone().unwrap_or_default());
    let _ = writeln!(
        out,
        "cluster/{name} is {}, {} API servers verified, package version {}",
        health::phase(cluster),
        health::replicas(cluster),
        cluster.spec.package_version
    );
    if cluster.status.is_none() {
        out.push_str("  No status yet; check that the operators are running.\n");
    }
    if cluster.metadata.deletion_timestamp.is_some() {
        out.push_str(match cluster.spec.deletion_protection {
            true => "  Its deletion was requested and is blocked by spec.deletionProtection.\n",
            false => "  It is being deleted.\n",
        });
    }
    if let Some(failed) = health::failed(cluster) {
        let _ = writeln!(
            out,
            "  {} failed and was rolled back {} ago: {}",
            line(&failed.package_version),
            ago(failed.at, now),
            line(&failed.message)
        );
    }
    if let Some(waiting) = &status.waiting_for {
        let _ = writeln!(out, "\nWaiting for:\n  {}", line(waiting));
    }
    if let Some(progress) = &status.progress {
        let said = if progress.message.is_empty() { String::new() } else { format!(": {}", line(&progress.message)) };
        let _ = writeln!(out, "\nNow:\n  {} for {}{said}", line(&progress.step), ago(progress.since, now));
    }
    out.push_str(&components(&status.components, now));
    out.push_str(&extensions(&status));
    out.push_str(&conditions(&status.conditions, now));
    out.push_str(&about(cluster, &status, now));
    out.push_str(&certificates(&status, now));
    if !events.is_empty() {
        let _ = write!(out, "\nEvents:\n{events}");
    }
    out
}

fn components(components: &[ClusterComponentStatus], now: Timestamp) -> String {
    if components.is_empty() {
        return String::new();
    }
    let mut rows = Vec::new();
    for component in components {
        let ready = component.replicas.iter().filter(|replica| replica.ready).count();
        let sign = sign(of_component(component));
        rows.push(vec![
            format!("  {sign} {}", component.component),
            version(component.observed.as_deref(), component.desired.as_deref()),
            format!("{ready}/{} ready", component.replicas.len()),
        ]);
        let mut sorted: Vec<_> = component.replicas.iter().collect();
        sorted.sort_by_key(|replica| of_replica(component.component, replica));
        for replica in sorted {
            rows.push(vec![
                format!("    {} {}", health::sign(of_replica(component.component, replica)), line(&replica.name)),
                line(replica.version.as_deref().unwrap_or("-")),
                replica_state(component.component.binary(), replica.ready, replica.verified_at, now),
                line(&replica.message),
            ]);
        }
    }
    format!("\nComponents:\n{}", table(&rows))
}

fn extensions(status: &ClusterStatus) -> String {
    if status.extensions.is_empty() {
        return String::new();
    }
    let mut sorted: Vec<_> = status.extensions.iter().collect();
    sorted.sort_by_key(|extension| extension.ready == Status::True);
    let rows: Vec<_> = sorted
        .iter()
        .map(|extension| {
            let sign = health::sign(health::of_extension(extension));
            vec![format!("  {sign} {}", line(&extension.name)), line(&extension.reason), line(&extension.message)]
        })
        .collect();
    format!("\nExtensions:\n{}", table(&rows))
}

fn about(cluster: &Cluster, status: &ClusterStatus, now: Timestamp) -> String {
    let mut rows = Vec::new();
    let mut row = |title: &str, text: Option<String>| {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            rows.push(vec![format!("  {title}"), line(&text)]);
        }
    };
    row("endpoint", status.endpoint.clone());
    row("namespace", status.namespace.clone());
    row("running", status.package_version.clone());
    row("previous", status.previous.clone());
    row("emulates", status.emulates.as_ref().map(|minor| format!("{minor}{}", health::soak_left(status, now))));
    row(
        "finishing",
        status.finishing.as_ref().map(|finishing| {
            format!("restarting without emulation of {} since {}", finishing.emulated, ago(finishing.since, now))
        }),
    );
    row(
        "last snapshot",
        status.last_snapshot.as_ref().map(|snapshot| {
            let size = snapshot.size.as_ref().map_or(String::new(), |size| format!(", {}", size.0));
            let checked = if snapshot.checked { "verified" } else { "not verified" };
            let etcd = snapshot.etcd.as_ref().map_or(String::new(), |version| format!(", etcd {version}"));
            format!("{}, {} ago{size}{etcd}, {checked}", snapshot.name, ago(snapshot.at, now))
        }),
    );
    row(
        "restored",
        status.restored.as_ref().map(|restored| {
            format!(
                "{} ago from {}, with the data of {}",
                ago(restored.at, now),
                restored.snapshot,
                restored.data_time.strftime("%Y-%m-%dT%H:%M:%SZ")
            )
        }),
    );
    let protection = if cluster.spec.deletion_protection { "on" } else { "off" };
    row("deletion protection", Some(protection.to_owned()));
    if rows.is_empty() { String::new() } else { format!("\nDetails:\n{}", table(&rows)) }
}

fn certificates(status: &ClusterStatus, now: Timestamp) -> String {
    if status.certificates.is_empty() {
        return String::new();
    }
    let mut sorted: Vec<_> = status.certificates.iter().collect();
    sorted.sort_by_key(|certificate| certificate.not_after);
    let rows: Vec<_> = sorted
        .iter()
        .map(|certificate| {
            let left = match certificate.not_after > now {
                true => format!("expires in {}", ago(now, certificate.not_after)),
                false => format!("expired {} ago", ago(certificate.not_after, now)),
            };
            let end = certificate.not_after.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            vec![format!("  {}", line(&certificate.name)), left, end]
        })
        .collect();
    format!("\nCertificates:\n{}", table(&rows))
}

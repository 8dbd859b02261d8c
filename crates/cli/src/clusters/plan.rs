//! `fleetwright cluster plan`: the effects of a change to a package version, before it is requested.

use std::fmt::Write as _;

use fleetwright_api::names::reasons;
use fleetwright_api::{Cluster, GROUP};
use fleetwright_clusters::ClusterSnapshot;
use fleetwright_plan::cluster::cluster_plan::{ClusterPlan, StagePlan};
use fleetwright_plan::cluster::preflight::PreflightFinding;
use fleetwright_plan::explain::Plan;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;

use super::packages::PackageVersions;
use super::{SelectedCluster, called};
use crate::cluster::Cluster as Meta;
use crate::output::Output;
use crate::terminal_text::{ago, line, lines, table};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster plan pay-01
  fleetwright cluster plan pay-01 --to k8s-1.37.1-r1
  fleetwright cluster plan pay-01 --to k8s-1.37.1-r1 -o json | jq '.steps[] | {component, restarts}'

The plan is made by the decision code of the operator, from the objects in the meta cluster; nothing is changed and no Secret is read. Which APIs
clients use is known only after the change is requested: the operator then asks the API servers, before it changes anything.")]
pub(crate) struct Args {
    #[command(flatten)]
    one: SelectedCluster,

    /// ClusterPackageVersion to plan for, in the same namespace. [default: the one that the cluster refers to]
    #[arg(long, value_name = "PACKAGE-VERSION", value_parser = super::packages::name)]
    to: Option<String>,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        let plan = of(&meta, &cluster, args.to.as_deref()).await?;
        match args.output {
            Output::Text => print!("{}", text(&cluster, &plan, Timestamp::now())),
            Output::Json => println!("{}", serde_json::to_string_pretty(&Plan::of_cluster(&cluster, &plan))?),
            Output::Yaml => print!("{}", crate::yaml::documents(&[json!(Plan::of_cluster(&cluster, &plan))])?),
        }
        Ok(())
    })
}

/// Computes the plan.
pub(super) async fn of(meta: &Meta, cluster: &Cluster, to: Option<&str>) -> anyhow::Result<ClusterPlan> {
    let present = ClusterSnapshot::look(&meta.client, cluster.clone()).await.map_err(|error| meta.explain(error))?;
    match present.rehearse(to, Timestamp::now()) {
        Some(plan) => Ok(plan),
        None => {
            let packages = PackageVersions::of(meta, cluster).await?;
            packages.get(to.unwrap_or(&cluster.spec.package_version))?;
            anyhow::bail!("the package version was created in the meantime; try again")
        }
    }
}

/// The plan as text.
pub(super) fn text(cluster: &Cluster, plan: &ClusterPlan, now: Timestamp) -> String {
    let mut out = String::new();
    let version = |one: &fleetwright_plan::cluster::cluster_plan::PlannedVersion| {
        format!("{} (Kubernetes {})", one.package, one.kubernetes)
    };
    let name = cluster.name_any();
    let _ = match &plan.from {
        Some(from) if *from != plan.to => {
            writeln!(out, "cluster.{GROUP}/{name} from {} to {}", version(from), version(&plan.to))
        }
        _ => writeln!(out, "cluster.{GROUP}/{name} with {}", version(&plan.to)),
    };
    if let Some(refused) = &plan.refused {
        let _ = writeln!(out, "  ✗ refused: {}: {}", refused.reason, line(&refused.message));
    }
    for violation in &plan.violations {
        let _ = writeln!(out, "  ✗ {}: {}", reasons::LIMIT_EXCEEDED, line(&violation.to_string()));
    }
    if !plan.violations.is_empty() {
        let _ = writeln!(out, "  The change does not start while it exceeds the limits");
    }
    if cluster.spec.paused {
        let _ = writeln!(out, "  The cluster is paused (spec.paused is true): nothing changes until it is resumed");
    }
    if !plan.stages.is_empty() {
        let _ = writeln!(out, "\nStages:\n{}", stages(plan).trim_end());
    }
    if !plan.extensions.is_empty() {
        let _ = writeln!(out, "  then the extensions {}", plan.extensions.join(", "));
    }
    let risks = risks(plan);
    if !risks.is_empty() {
        let _ = writeln!(out, "\nChecks and risks:\n{}", risks.trim_end());
    }
    if plan.restore.is_none() {
        let _ = writeln!(out, "\nRollback:\n  {}", line(&plan.back.message));
    }
    restore(&mut out, cluster, plan, now);
    if !plan.certificates.is_empty() {
        let _ = writeln!(out, "\nCertificates that are renewed within a week, without an outage:");
        for one in &plan.certificates {
            let _ = writeln!(out, "  {} on {}", line(&one.name), one.replaced);
        }
    }
    let objects: Vec<_> = plan.stages.iter().flat_map(|stage| &stage.objects).collect();
    if !objects.is_empty() {
        let _ = writeln!(out, "\nObjects in namespace {}:", cluster_namespace(cluster));
        for object in objects {
            out.push_str(&lines(&object.diff));
        }
    }
    out
}

fn cluster_namespace(cluster: &Cluster) -> String {
    if let Some(recorded) = cluster.status.as_ref().and_then(|status| status.namespace.clone()) {
        return recorded;
    }
    fleetwright_plan::cluster::Names::of(&cluster.namespace().unwrap_or_default(), &cluster.name_any()).namespace
}

fn stages(plan: &ClusterPlan) -> String {
    let rows: Vec<_> = plan
        .stages
        .iter()
        .enumerate()
        .map(|(number, stage)| {
            let StagePlan { component, from, to, how, .. } = stage;
            let versions = match from {
                Some(from) if from != to => format!("{} → {}", line(from), line(to)),
                _ => line(to),
            };
            vec![format!("  {}.", number + 1), component.to_string(), versions, how.clone()]
        })
        .collect();
    table(&rows)
}

fn risks(plan: &ClusterPlan) -> String {
    let mut out = String::new();
    for finding in &plan.findings {
        let PreflightFinding { reason, message, advice, overridable, overridden } = finding;
        let (mark, more) = match (overridden, overridable) {
            (true, _) => ("!", "overridden".to_owned()),
            (false, true) => ("✗", format!("{advice}; can be overridden with {reason}@{}", plan.to.package)),
            (false, false) => ("✗", format!("{advice}; cannot be overridden")),
        };
        let _ = writeln!(out, "  {mark} {reason}: {}: {}", line(message), line(&more));
    }
    for stage in &plan.stages {
        if let Some(risk) = &stage.risk {
            let _ = writeln!(out, "  ! {}: {risk}", stage.component);
        }
    }
    for later in &plan.later {
        let _ = writeln!(out, "  ? when it starts: {later}");
    }
    out
}

/// The way back after the soak.
fn restore(out: &mut String, cluster: &Cluster, plan: &ClusterPlan, now: Timestamp) {
    let Some(restore) = &plan.restore else {
        if plan.refused.as_ref().is_some_and(|refused| refused.reason == reasons::SOAK_ENDED) {
            let _ = writeln!(
                out,
                "\nRestore:\n  no known snapshot that etcd of this package version can read; status.snapshots has all names"
            );
        }
        return;
    };
    let checked = if restore.checked { "its content was verified" } else { "its content was not verified" };
    let _ = writeln!(
        out,
        "\nRestore, if the snapshot is from before the upgrade:\n  {}, with the data of {}: everything written in the last {} would be lost; {checked}\n  kubectl patch cluster {} --type=merge -p '{}'",
        line(&restore.snapshot),
        restore.data_of,
        ago(restore.data_of, now),
        called(cluster),
        restore.patch
    );
}

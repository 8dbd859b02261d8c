//! `fleetwright cluster delete`.

use std::time::Instant;

use anyhow::bail;
use fleetwright_api::{Cluster, ClusterOnDelete, GROUP};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt as _};

use super::wait::{WaitArgs, WaitState};
use super::{SelectedCluster, called};
use crate::cluster::{Cluster as Meta, is_not_found};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster delete dev-01 --dry-run
  fleetwright cluster delete dev-01 --unprotect --wait

Clusters are protected by default (spec.deletionProtection): a protected cluster is not deleted, and --unprotect removes the protection. Everything in
the cluster is lost, including its etcd and volumes.")]
pub(crate) struct Args {
    #[command(flatten)]
    one: SelectedCluster,

    /// Remove the deletion protection first.
    #[arg(long)]
    unprotect: bool,

    /// Send the requests as a server-side dry run, without changing anything.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        let name = cluster.name_any();
        if cluster.spec.deletion_protection && !args.unprotect {
            bail!(
                "cluster {name} is protected (spec.deletionProtection is true){}; to delete it and all its data: fleetwright cluster delete {} --unprotect",
                if cluster.metadata.deletion_timestamp.is_some() { ", and keeps running although its deletion was requested" } else { "" },
                called(&cluster)
            );
        }
        let suffix = if args.dry_run { " (dry run)" } else { "" };
        if cluster.spec.deletion_protection {
            super::change::set(&meta, &cluster, "deletionProtection", false, args.dry_run).await?;
            println!("cluster.{GROUP}/{name} unprotected{suffix}");
        }
        if cluster.metadata.deletion_timestamp.is_some() {
            println!("cluster.{GROUP}/{name} is already being deleted{suffix}");
        } else {
            delete(&meta, &cluster, args.dry_run).await?;
            println!("cluster.{GROUP}/{name} deleted{suffix}");
        }
        if cluster.spec.paused {
            eprintln!("note: the cluster is paused (spec.paused is true); it is not removed until it is resumed");
        }
        let machines = super::tree::machines(&meta, &cluster.namespace().unwrap_or_default()).await?;
        let joined = machines.get(&name).map_or(0, Vec::len);
        if joined > 0 && cluster.spec.on_delete == ClusterOnDelete::WaitForMachines {
            eprintln!(
                "note: deletion waits until all machines have left the cluster (spec.onDelete is WaitForMachines; joined machines: {joined}); to release them: kubectl patch cluster {} --type=merge -p '{{\"spec\":{{\"onDelete\":\"ReleaseMachines\"}}}}'",
                called(&cluster)
            );
        }
        if !args.wait.wait {
            return Ok(());
        }
        let took = gone(&args.wait, &meta, &cluster).await?;
        println!("cluster.{GROUP}/{name} and all its data removed after {took}");
        Ok(())
    })
}

async fn delete(meta: &Meta, cluster: &Cluster, dry_run: bool) -> anyhow::Result<()> {
    let api: Api<Cluster> = Api::namespaced(meta.client.clone(), &cluster.namespace().unwrap_or_default());
    // The precondition protects a new Cluster of the same name.
    let preconditions = Preconditions { uid: cluster.uid(), ..Preconditions::default() };
    let params = DeleteParams { dry_run, preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&cluster.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(meta.explain(error)),
    }
}

/// Waits until the Cluster and its namespace are deleted.
async fn gone(wait: &WaitArgs, meta: &Meta, cluster: &Cluster) -> anyhow::Result<String> {
    let began = Instant::now();
    let look = |found: Option<&Cluster>| if found.is_some() { WaitState::NotYet } else { WaitState::Done };
    let took = wait.until(meta, cluster, "deleted", look).await?;
    let Some(own) = cluster.status.as_ref().and_then(|status| status.namespace.clone()) else { return Ok(took) };
    let api: Api<Namespace> = Api::all(meta.client.clone());
    let mut said = false;
    loop {
        match api.get_opt(&own).await {
            Ok(None) => return Ok(format!("{}s", began.elapsed().as_secs())),
            Ok(Some(_)) if !said => eprintln!("waiting: namespace {own} is terminating"),
            Ok(Some(_)) => {}
            // Without the right to read namespaces, trust the operator, which removes its finalizer last.
            Err(_) => return Ok(took),
        }
        said = true;
        if began.elapsed() >= wait.timeout.0 {
            bail!(
                "namespace {own} of cluster {} is still terminating after {}; see kubectl get namespace {own} -o yaml",
                cluster.name_any(),
                wait.timeout
            );
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

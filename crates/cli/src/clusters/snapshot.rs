//! `fleetwright cluster snapshot`: requests a snapshot now.

use anyhow::bail;
use fleetwright_api::names::{self, reasons};
use fleetwright_api::{Cluster, GROUP, condition};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::wait::{WaitArgs, WaitState};
use super::{FIELD_MANAGER, SelectedCluster};
use crate::terminal_text::line;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster snapshot pay-01 --wait
  kubectl annotate cluster pay-01 -n fleet --overwrite fleetwright.io/snapshot=$(date +%s)

A pod beside the control plane takes the snapshot, restores it into a scratch etcd, compares the two, and stores the snapshot as spec.snapshots
declares. Snapshots are also taken on the schedule of the cluster, and before each upgrade.")]
pub(crate) struct Args {
    #[command(flatten)]
    one: SelectedCluster,

    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        let name = cluster.name_any();
        if cluster.spec.datastore.etcd.is_none() {
            bail!("cluster {name} has an external datastore: take snapshots with the tools of that datastore");
        }
        if cluster.spec.paused && args.wait.wait {
            bail!("cluster {name} is paused (spec.paused is true), so --wait would time out: leave --wait out");
        }
        let asks = Timestamp::now().to_string();
        let patch = json!({"metadata": {"uid": cluster.uid(), "annotations": {names::SNAPSHOT: asks}}});
        let api: Api<Cluster> = Api::namespaced(meta.client.clone(), &cluster.namespace().unwrap_or_default());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(&name, &params, &Patch::Merge(patch)).await.map_err(|error| meta.explain(error))?;
        println!("cluster.{GROUP}/{name} snapshot requested");
        if !args.wait.wait {
            return Ok(());
        }
        let failed_before = failed(&cluster);
        let took =
            args.wait.until(&meta, &cluster, "snapshotted", |now| look(now, &asks, failed_before.as_deref())).await?;
        let taken = api.get(&name).await?.status.and_then(|status| status.last_snapshot);
        let taken = taken.map(|last| {
            let size = last.size.map(|size| format!(", {} bytes", size.0)).unwrap_or_default();
            let revision = last.revision.map(|number| format!(", revision {number}")).unwrap_or_default();
            let etcd = last.etcd.map(|version| format!(", etcd {version}")).unwrap_or_default();
            format!("{}{size}{revision}{etcd}", last.name)
        });
        println!("cluster.{GROUP}/{name} snapshot {} stored after {took}", taken.unwrap_or_default());
        Ok(())
    })
}

/// The message of the last attempt, if it failed.
fn failed(cluster: &Cluster) -> Option<String> {
    let status = cluster.status.as_ref()?;
    let recent = condition(&status.conditions, names::SNAPSHOTS_RECENT)?;
    (recent.reason == reasons::SNAPSHOT_FAILED).then(|| recent.message.clone())
}

fn look(cluster: Option<&Cluster>, asks: &str, failed_before: Option<&str>) -> WaitState {
    let Some(cluster) = cluster else { return WaitState::Failed("it was deleted".to_owned()) };
    let followed = cluster.status.as_ref().and_then(|status| status.observed_snapshot_request.as_deref());
    if followed == Some(asks) {
        return WaitState::Done;
    }
    if cluster.annotations().get(names::SNAPSHOT).map(String::as_str) != Some(asks) {
        return WaitState::Failed("another snapshot was requested in the meantime".to_owned());
    }
    match failed(cluster) {
        Some(why) if failed_before != Some(&why) => WaitState::Failed(line(&why)),
        _ => WaitState::NotYet,
    }
}

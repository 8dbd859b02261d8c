//! The floor: a program that only watches the reports and sets or removes the taint at once.

use std::path::Path;

use anyhow::{Context, Result};
use fleetwright_api::names::{MACHINE, REPORT_DATA, UNREADY_TAINT};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;

use crate::fleet::NAMESPACE;

/// Runs until it is killed.
pub(crate) async fn run(kubeconfig: &Path) -> Result<()> {
    let (kubeconfig, options) = (Kubeconfig::read_from(kubeconfig)?, KubeConfigOptions::default());
    let client = Client::try_from(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)?;
    let nodes: Api<Node> = Api::all(client.clone());
    let reports: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let watch = watcher::Config::default().labels(MACHINE).streaming_lists();
    let mut events = std::pin::pin!(watcher(reports, watch).default_backoff());
    while let Some(event) = events.next().await {
        let watcher::Event::Apply(report) = event? else { continue };
        let machine = report.metadata.labels.as_ref().and_then(|labels| labels.get(MACHINE)).cloned();
        let machine = machine.context("a report without a machine")?;
        let text = report.data.as_ref().and_then(|data| data.get(REPORT_DATA)).context("an empty report")?;
        let good = text.contains(r#""status":"True""#);
        let taints = if good { json!([]) } else { json!([{ "key": UNREADY_TAINT, "effect": "NoSchedule" }]) };
        let nodes = nodes.clone();
        tokio::spawn(async move {
            let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
            if let Err(error) = nodes.patch(&machine, &PatchParams::default(), &patch).await {
                eprintln!("floor: {machine}: {error}");
            }
        });
    }
    Ok(())
}

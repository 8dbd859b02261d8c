//! Runs the survey before a change of a cluster: at its API servers, and in its namespace of the meta cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::survey::{Quota, RemovedApi, Survey, SurveyQuestion, removed_apis};
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::background_tasks::BackgroundTasks;
use crate::connect::{MetaAccess, page};
use crate::messages::{api_error_message, truncated};
use crate::proofs::client_of;
use crate::thin::ThinNode;

/// Timeout of a survey.
const WITHIN: Duration = Duration::from_secs(30);

/// Maximum number of Nodes that are read.
const MAX_NODES: usize = 20_000;

/// Survey answers, and running surveys.
pub type Surveys = BackgroundTasks<Option<Survey>>;

impl Surveys {
    /// Starts a survey, unless it is running, and cancels one with an older question. Its end triggers a pass of the cluster.
    pub fn start(&self, key: &Key, names: &Names, ask: &SurveyQuestion) {
        let (names, asked) = (names.clone(), ask.clone());
        let operation_future = async move |meta: MetaAccess, clock: Clock| {
            let within = |why: &str| format!("{why} within {} s", WITHIN.as_secs());
            let apis = tokio::time::timeout(WITHIN, apis(&meta, &names, &asked.servers));
            let apis = apis.await.unwrap_or_else(|_| Err(within("an API server did not return its metrics")));
            let quotas = tokio::time::timeout(WITHIN, quotas(&meta.client, &names));
            let quotas = quotas.await.unwrap_or_else(|_| Err(within("the meta cluster did not respond")));
            let kubelets = tokio::time::timeout(WITHIN, kubelets(&meta, &names, &asked.servers));
            let kubelets = kubelets.await.unwrap_or_else(|_| Err(within("no API server listed the Nodes")));
            Survey { of: asked.of, at: clock.now(), apis, quotas, kubelets }
        };
        self.ask_only(key, &ask.of, operation_future);
    }
}

/// The APIs from all API servers: each counts only its own clients.
async fn apis(meta: &MetaAccess, names: &Names, servers: &[(String, String)]) -> Result<BTreeSet<RemovedApi>, String> {
    let mut all = BTreeSet::new();
    for (name, ip) in servers {
        let failed = |error: &dyn std::fmt::Display| truncated(&format!("{name}: {error}"));
        let client = client_of(meta, names, ip).await.map_err(|error| failed(&error))?;
        let request = http::Request::get("/metrics").body(Vec::new()).map_err(|error| failed(&error))?;
        let page = client.request_text(request).await.map_err(|error| failed(&api_error_message(&error)))?;
        all.extend(removed_apis(&page));
    }
    Ok(all)
}

/// The Nodes and the versions of their kubelets, in pages: one API server that answers is enough.
async fn kubelets(
    meta: &MetaAccess,
    names: &Names,
    servers: &[(String, String)],
) -> Result<BTreeMap<String, String>, String> {
    let mut last = "no API server is ready".to_owned();
    for (name, ip) in servers {
        let failed = |error: &dyn std::fmt::Display| truncated(&format!("{name}: {error}"));
        match client_of(meta, names, ip).await {
            Ok(client) => match versions(&client).await {
                Ok(all) => return Ok(all),
                Err(error) => last = failed(&error),
            },
            Err(error) => last = failed(&error),
        }
    }
    Err(last)
}

async fn versions(client: &Client) -> Result<BTreeMap<String, String>, String> {
    let (mut after, mut all, mut read) = (None::<String>, BTreeMap::new(), 0);
    loop {
        let page = page::<Node, ThinNode>(client, after.as_deref()).await.map_err(|error| api_error_message(&error))?;
        let next = page.metadata.continue_.filter(|next| !next.is_empty());
        // An empty page counts as well: a tenant's server could send empty pages without end.
        read += page.items.len().max(1);
        for node in page.items {
            let (name, version) = node.kubelet();
            // A node writes this value itself.
            all.insert(name, truncated(&version));
        }
        match next {
            // A tenant can create any number of Nodes.
            Some(_) if read >= MAX_NODES => return Err(format!("there are more than {MAX_NODES} Nodes")),
            Some(next) => after = Some(next),
            None => return Ok(all),
        }
    }
}

async fn quotas(meta: &Client, names: &Names) -> Result<Vec<Quota>, String> {
    let api: Api<ResourceQuota> = Api::namespaced(meta.clone(), &names.namespace);
    let all = api.list(&ListParams::default()).await.map_err(|error| truncated(&api_error_message(&error)))?;
    let texts = |amounts: Option<BTreeMap<String, Quantity>>| -> BTreeMap<String, String> {
        amounts.unwrap_or_default().into_iter().map(|(name, amount)| (name, amount.0)).collect()
    };
    let quota = |quota: ResourceQuota| {
        let name = quota.name_any();
        let (spec, status) = (quota.spec.unwrap_or_default(), quota.status.unwrap_or_default());
        Quota { name, hard: texts(spec.hard), used: texts(status.used) }
    };
    Ok(all.items.into_iter().map(quota).collect())
}

#[cfg(test)]
mod tests {
    use fleetwright_rig::{TestEnv, TestServer};
    use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
    use serde_json::json;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_with_a_heartbeat_that_does_not_parse_hides_no_other_node() {
        let late = "9999-12-31T23:59:59Z";
        let world = TestEnv::new(&TestServer::InProcess, &[]).await.unwrap();
        let (client, kind) = (world.admin(), ApiResource::erase::<Node>(&()));
        let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        for (name, version, heartbeat) in [("fine", "v1.37.1", "2026-01-01T00:00:00Z"), ("late", "v1.36.4", late)] {
            nodes.create(&PostParams::default(), &DynamicObject::new(name, &kind).data(json!({}))).await.unwrap();
            let info = json!({
                "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": version, "machineID": "", "operatingSystem": "",
                "osImage": "", "systemUUID": "",
            });
            let ready = json!({
                "type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat, "lastTransitionTime": heartbeat,
            });
            let patch = Patch::Merge(json!({ "status": { "nodeInfo": info, "conditions": [ready] } }));
            nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        }
        let typed = Api::<Node>::all(client.clone()).list(&ListParams::default()).await;
        assert!(typed.is_err(), "the heartbeat parses: it shows nothing");
        let expected = [("fine", "v1.37.1"), ("late", "v1.36.4")];
        let expected = expected.map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(versions(&client).await.unwrap(), BTreeMap::from(expected));
    }
}

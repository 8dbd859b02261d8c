//! What is still joined to a business cluster that is to be deleted.

use std::fmt::Debug;
use std::time::Duration;

use fleetwright_api::{ClusterOnDelete, Machine};
use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::Names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, ObjectMeta};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;

use crate::connect::Meta;
use crate::errands::Errands;
use crate::prove::client_of;
use crate::words::{bounded, said};

/// An API server that does not answer within this time does not answer.
const WITHIN: Duration = Duration::from_secs(20);
/// So many are looked at; more are said to be more.
const MOST: u32 = 500;

/// What is joined to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// The names of Machines.
    pub machines: Vec<String>,
    /// The names of Nodes.
    pub nodes: Vec<String>,
}

/// What was answered, and when.
#[derive(Clone, Debug)]
pub struct Answer {
    pub at: Timestamp,
    pub on_delete: ClusterOnDelete,
    pub found: Result<Joined, String>,
}

/// Asks business clusters.
pub struct Askers(pub Errands<Option<Answer>>);

impl Askers {
    /// What was answered last.
    pub fn answer(&self, key: &Key) -> Option<Answer> {
        self.0.known(key, |answer| answer.clone()).flatten()
    }

    /// The cluster is gone, or stays.
    pub fn forget(&self, key: &Key) {
        self.0.forget(key);
    }

    /// Asks, unless that is under way; and lets machines go where that is wanted. When it is over, the cluster is woken.
    pub fn ask(&self, key: &Key, names: &Names, servers: &[String], on_delete: ClusterOnDelete) {
        let (names, servers) = (names.clone(), servers.to_vec());
        let errand = async move |meta: Meta, clock: Clock| {
            let mut found = Err("none of its API servers is ready".to_owned());
            // One that answers is enough.
            for server in &servers {
                found = match tokio::time::timeout(WITHIN, joined(&meta, &names, server, on_delete)).await {
                    Ok(found) => found,
                    Err(_) => Err(format!("its API server did not answer within {} s", WITHIN.as_secs())),
                };
                if found.is_ok() {
                    break;
                }
            }
            Answer { at: clock.now(), on_delete, found }
        };
        self.0.begin(key, "", errand, |known, answer| *known = Some(answer));
    }
}

async fn joined(meta: &Meta, names: &Names, ip: &str, on_delete: ClusterOnDelete) -> Result<Joined, String> {
    let client = client_of(meta, names, ip).await.map_err(|error| bounded(&error.to_string()))?;
    let params = ListParams::default().limit(MOST);
    let machines: Api<Machine> = Api::all(client.clone());
    let found = match machines.list_metadata(&params).await {
        Ok(list) => list.items,
        // A cluster that does not know the kind has none. It says so in plain words.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(bounded(&format!("listing machines: {}", said(&error)))),
    };
    if on_delete == ClusterOnDelete::ReleaseMachines {
        if !found.is_empty() {
            drop_budgets(&client).await?;
        }
        for machine in found.iter().filter(|machine| machine.metadata.deletion_timestamp.is_none()) {
            let api: Api<Machine> = Api::namespaced(client.clone(), &machine.namespace().unwrap_or_default());
            gone(&api, &machine.metadata, "letting the machine go").await?;
        }
    }
    let machines = found.into_iter().map(|one| name(&one.metadata)).collect();
    let nodes = Api::<Node>::all(client).list_metadata(&params).await;
    let nodes = nodes.map_err(|error| bounded(&format!("listing nodes: {}", said(&error))))?;
    Ok(Joined { machines, nodes: nodes.items.into_iter().map(|one| name(&one.metadata)).collect() })
}

/// Takes disruption budgets away: from the last machine pods cannot go anywhere else, and a budget that wants them to would keep it, and the cluster, for ever.
async fn drop_budgets(client: &Client) -> Result<(), String> {
    let budgets: Api<PodDisruptionBudget> = Api::all(client.clone());
    let found = budgets.list_metadata(&ListParams::default().limit(MOST)).await;
    for budget in found.map_err(|error| bounded(&format!("listing disruption budgets: {}", said(&error))))?.items {
        let api: Api<PodDisruptionBudget> =
            Api::namespaced(client.clone(), budget.metadata.namespace.as_deref().unwrap_or_default());
        gone(&api, &budget.metadata, "taking the disruption budget away").await?;
    }
    Ok(())
}

/// Deletes what may be gone already.
async fn gone<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, this: &ObjectMeta, what: &str) -> Result<(), String> {
    match api.delete(this.name.as_deref().unwrap_or_default(), &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(bounded(&format!("{what}: {}: {}", name(this), said(&error)))),
    }
}

fn name(meta: &ObjectMeta) -> String {
    let name = meta.name.clone().unwrap_or_default();
    meta.namespace.as_ref().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
}

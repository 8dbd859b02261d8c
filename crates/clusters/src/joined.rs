//! What is still joined to a business cluster that is to be deleted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_api::{ClusterOnDelete, Machine};
use fleetwright_kit::{Clock, Key, Waker};
use fleetwright_plan::cluster::Names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, ObjectMeta};
use kube::{Api, Client, ResourceExt};
use tokio::sync::Semaphore;

use crate::prove::client_of;

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

/// Asks business clusters, in tasks of their own. Cheap to clone.
#[derive(Clone)]
pub struct Askers {
    client: Client,
    clock: Clock,
    waker: Waker,
    places: Arc<Semaphore>,
    table: Arc<Mutex<HashMap<Key, Entry>>>,
}

#[derive(Default)]
struct Entry {
    answer: Option<Answer>,
    asking: Option<tokio::task::AbortHandle>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(task) = &self.asking {
            task.abort();
        }
    }
}

impl Askers {
    /// So many at the same time. `client` reads the operator's own certificates.
    pub fn new(client: Client, clock: Clock, waker: Waker, places: usize) -> Self {
        Self { client, clock, waker, places: Arc::new(Semaphore::new(places.max(1))), table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was answered last.
    pub fn answer(&self, key: &Key) -> Option<Answer> {
        self.table().get(key).and_then(|entry| entry.answer.clone())
    }

    /// The cluster is gone, or stays.
    pub fn forget(&self, key: &Key) {
        drop(self.table().remove(key));
    }

    /// Asks, unless that is under way; and lets machines go where that is wanted. When it is over, the cluster is woken.
    pub fn ask(&self, key: &Key, names: &Names, servers: &[String], on_delete: ClusterOnDelete) {
        let mut table = self.table();
        let entry = table.entry(key.clone()).or_default();
        if entry.asking.is_some() {
            return;
        }
        let (this, key, names, servers) = (self.clone(), key.clone(), names.clone(), servers.to_vec());
        let task = tokio::spawn(async move {
            let _place = this.places.acquire().await;
            let mut found = Err("none of its API servers is ready".to_owned());
            // One that answers is enough.
            for server in &servers {
                found = match tokio::time::timeout(WITHIN, joined(&this.client, &names, server, on_delete)).await {
                    Ok(found) => found,
                    Err(_) => Err(format!("its API server did not answer within {} s", WITHIN.as_secs())),
                };
                if found.is_ok() {
                    break;
                }
            }
            let answer = Answer { at: this.clock.now(), on_delete, found };
            if let Some(entry) = this.table().get_mut(&key) {
                entry.asking = None;
                entry.answer = Some(answer);
            }
            this.waker.wake(key);
        });
        entry.asking = Some(task.abort_handle());
    }
}

async fn joined(meta: &Client, names: &Names, ip: &str, on_delete: ClusterOnDelete) -> Result<Joined, String> {
    let bounded = |error: String| -> String { error.chars().filter(|one| !one.is_control()).take(300).collect() };
    let client = client_of(meta, names, ip).await.map_err(|error| bounded(error.to_string()))?;
    let params = ListParams::default().limit(MOST);
    let machines: Api<Machine> = Api::all(client.clone());
    let found = match machines.list_metadata(&params).await {
        Ok(list) => list.items,
        // A cluster that does not know the kind has none. It says so in plain words.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err(bounded(format!("listing machines: {error}"))),
    };
    if on_delete == ClusterOnDelete::ReleaseMachines {
        for machine in found.iter().filter(|machine| machine.metadata.deletion_timestamp.is_none()) {
            let api: Api<Machine> = Api::namespaced(client.clone(), &machine.namespace().unwrap_or_default());
            match api.delete(&machine.name_any(), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(bounded(format!("letting the machine {} go: {error}", machine.name_any()))),
            }
        }
    }
    let machines = found.into_iter().map(|one| name(&one.metadata)).collect();
    let nodes = Api::<Node>::all(client).list_metadata(&params).await;
    let nodes = nodes.map_err(|error| bounded(format!("listing nodes: {error}")))?;
    Ok(Joined { machines, nodes: nodes.items.into_iter().map(|one| name(&one.metadata)).collect() })
}

fn name(meta: &ObjectMeta) -> String {
    let name = meta.name.clone().unwrap_or_default();
    meta.namespace.as_ref().map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}"))
}

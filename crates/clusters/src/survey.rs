//! Finds out what is asked before a cluster is changed: at its API servers, and in its namespace of the meta cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_kit::{Clock, Key, Waker};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::survey::{Ask, Quota, RemovedApi, Survey, removed_apis};
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Semaphore;

use crate::prove::{bounded, client_of};

/// An API server that does not tell within this time is not waited for.
const WITHIN: Duration = Duration::from_secs(30);

/// What was found out, and what is being found out. Cheap to clone; nothing of it outlives the process.
#[derive(Clone)]
pub struct Surveys {
    client: Client,
    clock: Clock,
    waker: Waker,
    places: Arc<Semaphore>,
    table: Arc<Mutex<HashMap<Key, Entry>>>,
}

#[derive(Default)]
struct Entry {
    done: Option<Survey>,
    doing: Option<(String, tokio::task::AbortHandle)>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.doing {
            task.abort();
        }
    }
}

impl Surveys {
    /// So many at the same time.
    pub fn new(client: Client, clock: Clock, waker: Waker, places: usize) -> Self {
        Self { client, clock, waker, places: Arc::new(Semaphore::new(places.max(1))), table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was found out last.
    pub fn known(&self, key: &Key) -> Option<Survey> {
        self.table().get(key)?.done.clone()
    }

    /// Nobody asks any more.
    pub fn forget(&self, key: &Key) {
        drop(self.table().remove(key));
    }

    /// Begins to find it out, unless that is under way. When it is over, the cluster is woken.
    pub fn begin(&self, key: &Key, names: &Names, ask: &Ask) {
        let mut table = self.table();
        let entry = table.entry(key.clone()).or_default();
        match &entry.doing {
            Some((of, _)) if *of == ask.of => return,
            Some((_, task)) => task.abort(),
            None => {}
        }
        let (this, key, names, asked) = (self.clone(), key.clone(), names.clone(), ask.clone());
        let task = tokio::spawn(async move {
            let _place = this.places.acquire().await;
            let within = |why: &str| format!("{why} within {} s", WITHIN.as_secs());
            let apis = tokio::time::timeout(WITHIN, apis(&this.client, &names, &asked.servers));
            let apis = apis.await.unwrap_or_else(|_| Err(within("an API server did not tell its metrics")));
            let quotas = tokio::time::timeout(WITHIN, quotas(&this.client, &names));
            let quotas = quotas.await.unwrap_or_else(|_| Err(within("the meta cluster did not answer")));
            let survey = Survey { of: asked.of.clone(), at: this.clock.now(), apis, quotas };
            if let Some(entry) = this.table().get_mut(&key)
                && entry.doing.as_ref().is_some_and(|(of, _)| *of == asked.of)
            {
                (entry.done, entry.doing) = (Some(survey), None);
            }
            this.waker.wake(key);
        });
        entry.doing = Some((ask.of.clone(), task.abort_handle()));
    }
}

/// What all of them tell: each knows its own callers.
async fn apis(meta: &Client, names: &Names, servers: &[(String, String)]) -> Result<BTreeSet<RemovedApi>, String> {
    let mut all = BTreeSet::new();
    for (name, ip) in servers {
        let failed = |error: &dyn std::fmt::Display| bounded(&format!("{name}: {error}"));
        let client = client_of(meta, names, ip).await.map_err(|error| failed(&error))?;
        let request = http::Request::get("/metrics").body(Vec::new()).map_err(|error| failed(&error))?;
        let page = client.request_text(request).await.map_err(|error| failed(&error))?;
        all.extend(removed_apis(&page));
    }
    Ok(all)
}

async fn quotas(meta: &Client, names: &Names) -> Result<Vec<Quota>, String> {
    let api: Api<ResourceQuota> = Api::namespaced(meta.clone(), &names.namespace);
    let all = api.list(&ListParams::default()).await.map_err(|error| bounded(&error.to_string()))?;
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

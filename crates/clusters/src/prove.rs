//! Proves that an API server works, by real work that is done through it.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::certificates::OPERATOR;
use fleetwright_plan::cluster::objects::API_PORT;
use fleetwright_plan::cluster::{Failing, Names, Proof, Prover};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use k8s_openapi::jiff::Timestamp as MicroTime;
use kube::api::{DeleteParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::connect::{ConnectError, Door, Meta, connect};
use crate::errands::Errands;
use crate::meters::Meters;

/// Where the object of a proof is made, in the business cluster.
const NAMESPACE: &str = "fleetwright-proof";
/// A proof that takes longer has failed.
const WITHIN: Duration = Duration::from_secs(30);
/// How long a lease may stay as it is while its holder is at work: client-go renews every two seconds.
const LEASE_MOVES: Duration = Duration::from_secs(12);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What was proven, and what is being proven.
pub struct Provers {
    errands: Errands<BTreeMap<String, Proof>>,
    meters: Meters,
}

impl Provers {
    pub fn new(errands: Errands<BTreeMap<String, Proof>>, meters: Meters) -> Self {
        Self { errands, meters }
    }

    /// What is known of the pods with these uids; the others are forgotten.
    pub fn known(&self, key: &Key, uids: &[&str]) -> BTreeMap<String, Proof> {
        self.errands.only(key, |uid| uids.contains(&uid));
        let known = self.errands.known(key, |proofs| {
            proofs.retain(|uid, _| uids.contains(&uid.as_str()));
            proofs.clone()
        });
        known.unwrap_or_default()
    }

    /// The cluster is gone.
    pub fn forget(&self, key: &Key) {
        self.errands.forget(key);
    }

    /// Begins to prove a pod, unless that is under way. When it is over, the cluster is woken.
    pub fn begin(&self, key: &Key, names: &Names, prover: &Prover) {
        let (names, pod, meters) = (names.clone(), prover.clone(), self.meters.clone());
        let (uid, restarts, proving) = (pod.uid.clone(), pod.restarts, self.meters.proving());
        let errand = async move |meta: Meta, clock: Clock| {
            let _proving = proving;
            let (began, started) = (clock.now(), clock.monotonic());
            let outcome = tokio::select! {
                outcome = prove(&meta, &clock, &names, &pod) => outcome.map_err(|error| bounded(&error.to_string())),
                () = clock.sleep(WITHIN) => Err(format!("its proof was not done within {} s", WITHIN.as_secs())),
            };
            meters.proven(outcome.is_ok(), clock.monotonic().saturating_sub(started));
            (began, clock.now(), outcome)
        };
        self.errands.begin(key, &prover.uid, errand, move |proofs, (began, at, outcome)| {
            let before = proofs.get(&uid).filter(|proof| proof.restarts == restarts);
            let before = before.and_then(|proof| proof.failing).unwrap_or(Failing { since: at, began, times: 0 });
            let failing = outcome.is_err().then(|| Failing { began, times: before.times + 1, ..before });
            proofs.insert(uid, Proof { at, restarts, outcome, failing });
        });
    }
}

/// What a server says is not trusted.
pub(crate) fn bounded(text: &str) -> String {
    cut(text, 300)
}

/// So much of a text that is not trusted.
pub(crate) fn cut(text: &str, most: usize) -> String {
    text.chars().filter(|one| !one.is_control()).take(most).collect()
}

/// At what a proof failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{what}: {error}")]
    Call { what: &'static str, error: kube::Error },
    #[error("{0}")]
    Wrong(&'static str),
    #[error("the lease of {0} does not move: it is not at work")]
    Still(&'static str),
}

fn call(what: &'static str) -> impl Fn(kube::Error) -> Failure {
    move |error| Failure::Call { what, error }
}

/// Does real work at that pod; answers the version that it says it has.
async fn prove(meta: &Meta, clock: &Clock, names: &Names, pod: &Prover) -> Result<String, Failure> {
    let client = client_of(meta, names, &pod.ip).await?;
    let version = client.apiserver_version().await.map_err(call("asking for its version"))?.git_version;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if namespaces.get_opt(NAMESPACE).await.map_err(call("reading the namespace of proofs"))?.is_none() {
        let namespace: Namespace = named(NAMESPACE);
        match namespaces.create(&PostParams::default(), &namespace).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            made => drop(made.map_err(call("making the namespace of proofs"))?),
        }
    }
    work(&client, &format!("proof-{}", pod.name)).await?;
    for holder in ["kube-controller-manager", "kube-scheduler"] {
        moves(&client, clock, holder).await?;
    }
    Ok(version.trim_start_matches('v').to_owned())
}

fn named<K: serde::de::DeserializeOwned + Default + kube::Resource>(name: &str) -> K {
    let mut object = K::default();
    *object.meta_mut() = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    object
}

/// Makes a quota, sees it by a watch, reads it, waits until the controller-manager has filled its status, deletes it and sees that.
async fn work(client: &Client, name: &str) -> Result<(), Failure> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), NAMESPACE);
    // One that a proof before left behind.
    match quotas.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => return Err(Failure::Call { what: "deleting the quota of a proof before", error }),
    }
    let quota: ResourceQuota = serde_json::from_value(json!({
        "metadata": { "name": name }, "spec": { "hard": { "count/configmaps": "1000" } },
    }))
    .map_err(|_| Failure::Wrong("the quota of a proof is not well-formed"))?;
    let made = quotas.create(&PostParams::default(), &quota).await.map_err(call("making a quota"))?;
    let version = made.resource_version().unwrap_or_default();
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(60);
    let mut changes = quotas.watch(&params, &version).await.map_err(call("watching a quota"))?.boxed();
    let read = quotas.get(name).await.map_err(call("reading a quota"))?;
    if read.uid() != made.uid() {
        return Err(Failure::Wrong("it answers with another object than the one that was made"));
    }
    let filled = |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
    let mut acted = filled(&read);
    while !acted {
        match changes.try_next().await.map_err(call("watching a quota"))? {
            Some(WatchEvent::Modified(quota) | WatchEvent::Added(quota)) => acted = filled(&quota),
            Some(WatchEvent::Bookmark(_)) => {}
            Some(_) => return Err(Failure::Wrong("its watch tells something else than what happened")),
            None => return Err(Failure::Wrong("the controller-manager did not act on a quota")),
        }
    }
    quotas.delete(name, &DeleteParams::default()).await.map_err(call("deleting a quota"))?;
    loop {
        match changes.try_next().await.map_err(call("watching a quota"))? {
            Some(WatchEvent::Deleted(_)) => return Ok(()),
            Some(WatchEvent::Modified(_) | WatchEvent::Added(_) | WatchEvent::Bookmark(_)) => {}
            Some(WatchEvent::Error(_)) | None => {
                return Err(Failure::Wrong("its watch did not tell that a quota was deleted"));
            }
        }
    }
}

/// Waits until the lease is renewed.
async fn moves(client: &Client, clock: &Clock, holder: &'static str) -> Result<(), Failure> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let renewed = |lease: &Lease| -> Option<MicroTime> { lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0) };
    let read = async || leases.get_opt(holder).await.map_err(call("reading a lease"));
    let before = read().await?.as_ref().and_then(renewed);
    let deadline = clock.monotonic() + LEASE_MOVES;
    loop {
        let now = read().await?.as_ref().and_then(renewed);
        if now.is_some() && now != before {
            return Ok(());
        }
        if clock.monotonic() >= deadline {
            return Err(Failure::Still(holder));
        }
        clock.sleep(LOOK_AGAIN).await;
    }
}

/// A client of the API server at that address, which must show the cluster's certificate.
pub async fn client_of(meta: &Meta, names: &Names, ip: &str) -> Result<Client, ConnectError> {
    let door = Door { secret: OPERATOR, ip, port: API_PORT, server_name: names.apiserver() };
    connect(meta, names, &door).await
}

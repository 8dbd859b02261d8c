//! Proves that an API server works, by real work through it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::certificates::OPERATOR;
use fleetwright_plan::cluster::objects::API_PORT;
use fleetwright_plan::cluster::{FailedProofs, Names, Proof, ProofTarget};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use k8s_openapi::apimachinery::pkg::version::Info;
use k8s_openapi::jiff::{SignedDuration, Timestamp as MicroTime};
use kube::api::{DeleteParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::background_tasks::BackgroundTasks;
use crate::connect::{ConnectError, MetaAccess, ServerIdentity, connect, delete, page_of_metadata};
use crate::messages::{api_error_message, truncated};
use crate::meters::Meters;

/// Namespace in the business cluster for the objects of proofs.
const NAMESPACE: &str = "fleetwright-proof";
/// Timeout of a proof.
const WITHIN: Duration = Duration::from_secs(30);
/// Maximum time between two renewals of a lease while its holder works: client-go renews every two seconds.
const LEASE_RENEW_TIMEOUT: Duration = Duration::from_secs(12);
/// Default duration of a lease after a renewal.
const LEASE_LASTS: SignedDuration = SignedDuration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Age at which a quota belongs to no running proof.
const STALE_QUOTA_AGE: SignedDuration = SignedDuration::from_mins(10);

/// Results of proofs, and running proofs.
pub struct ProofRunner {
    background: BackgroundTasks<BTreeMap<String, Proof>>,
    meters: Meters,
}

impl ProofRunner {
    pub fn new(background: BackgroundTasks<BTreeMap<String, Proof>>, meters: Meters) -> Self {
        Self { background, meters }
    }

    /// Results for the pods with these uids; the others are forgotten.
    pub fn known(&self, key: &Key, uids: &[&str]) -> BTreeMap<String, Proof> {
        self.background.abort_others(key, |uid| uids.contains(&uid));
        let known = self.background.known(key, |proofs| {
            proofs.retain(|uid, _| uids.contains(&uid.as_str()));
            proofs.clone()
        });
        known.unwrap_or_default()
    }

    /// Drops the results of a deleted cluster.
    pub fn forget(&self, key: &Key) {
        self.background.forget(key);
    }

    /// Starts the proof of a pod, unless one is running. Its end triggers a pass of the cluster.
    pub fn begin(&self, key: &Key, names: &Names, prover: &ProofTarget) {
        let (names, pod, meters) = (names.clone(), prover.clone(), self.meters.clone());
        let (uid, restarts, proving) = (pod.uid.clone(), pod.restarts, self.meters.proving());
        let operation_future = async move |meta: MetaAccess, clock: Clock| {
            let _proving = proving;
            let (began, started) = (clock.now(), clock.monotonic());
            let place = ProofProgress::default();
            let outcome = tokio::select! {
                outcome = prove(&meta, &clock, &names, &pod, &place) => outcome.map_err(|error| truncated(&error.to_string())),
                () = clock.sleep(WITHIN) => Err(format!("timed out after {} s; last step: {}", WITHIN.as_secs(), place.describe())),
            };
            meters.proven(outcome.is_ok(), clock.monotonic().saturating_sub(started));
            (began, clock.now(), outcome)
        };
        self.background.begin(key, &prover.uid, operation_future, move |proofs, (began, at, outcome)| {
            let before = proofs.get(&uid).filter(|proof| proof.restarts == restarts);
            let before = before.and_then(|proof| proof.failing).unwrap_or(FailedProofs { since: at, began, times: 0 });
            let failing = outcome.is_err().then(|| FailedProofs { began, times: before.times + 1, ..before });
            let emulates = outcome.as_ref().ok().and_then(|version: &ServerVersion| version.emulates.clone());
            let outcome = outcome.map(|version| version.version);
            proofs.insert(uid, Proof { at, restarts, outcome, emulates, failing });
        });
    }
}

/// Failed step of a proof.
#[derive(Debug, thiserror::Error)]
enum ProofFailure {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{what}: {}", api_error_message(error))]
    Call { what: &'static str, error: kube::Error },
    #[error("{0}")]
    UnexpectedAnswer(&'static str),
    #[error("{0} is not active: it does not renew its lease")]
    Timeout(&'static str),
}

/// Current step of a proof, for the message of a timeout.
#[derive(Default)]
struct ProofProgress(Mutex<&'static str>);

impl ProofProgress {
    async fn call<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ProofFailure> {
        self.at(what);
        call.await.map_err(|error| ProofFailure::Call { what, error })
    }

    fn at(&self, what: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    fn describe(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version that an API server reports.
#[derive(Debug, PartialEq, Eq)]
struct ServerVersion {
    version: String,
    /// The minor that it emulates, if that differs from its own.
    emulates: Option<String>,
}

impl From<Info> for ServerVersion {
    fn from(info: Info) -> Self {
        // Some distributions write `36+`. A version from before emulation does not report it.
        let minor = |[major, minor]: [&str; 2]| format!("{major}.{}", minor.trim_end_matches('+'));
        let own = minor([&info.major, &info.minor]);
        let emulated = info.emulation_major.as_deref().zip(info.emulation_minor.as_deref());
        let emulated = emulated.filter(|(major, minor)| !major.is_empty() && !minor.is_empty());
        let emulates = emulated.map(|(major, number)| minor([major, number])).filter(|emulated| *emulated != own);
        Self { version: info.git_version.trim_start_matches('v').to_owned(), emulates }
    }
}

/// Does real work at that pod; returns the version that it reports.
async fn prove(
    meta: &MetaAccess,
    clock: &Clock,
    names: &Names,
    pod: &ProofTarget,
    place: &ProofProgress,
) -> Result<ServerVersion, ProofFailure> {
    place.at("connecting");
    let client = client_of(meta, names, &pod.ip).await?;
    let version = place.call("reading the version", client.apiserver_version()).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if place.call("reading Namespace fleetwright-proof", namespaces.get_opt(NAMESPACE)).await?.is_none() {
        let (params, namespace) = (PostParams::default(), named(NAMESPACE));
        match place.call("creating Namespace fleetwright-proof", namespaces.create(&params, &namespace)).await {
            Err(ProofFailure::Call { error: kube::Error::Api(status), .. }) if status.is_already_exists() => {}
            made => drop(made?),
        }
    }
    let mut leases = Vec::new();
    for holder in ["kube-controller-manager", "kube-scheduler"] {
        leases.push((holder, renewed(&client, holder, place).await?));
    }
    let made = work(&client, &format!("{}-", pod.name), place).await?;
    for (holder, before) in leases {
        wait_for_renewal(&client, clock, holder, |at| was_renewed(at, before, pod.first, made), place).await?;
    }
    Ok(version.into())
}

fn named<K: serde::de::DeserializeOwned + Default + kube::Resource>(name: &str) -> K {
    let mut object = K::default();
    *object.meta_mut() = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    object
}

/// Creates a quota, waits for its watch event, reads it, waits until the controller-manager has filled its status, deletes it and waits for that
/// event. Returns its creation time, by the clock of the API server.
///
/// Each quota has a unique name: another process may prove the same pod at the same time, while it believes that it leads.
async fn work(client: &Client, prefix: &str, place: &ProofProgress) -> Result<MicroTime, ProofFailure> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), NAMESPACE);
    let quota: ResourceQuota = serde_json::from_value(json!({
        "metadata": { "generateName": prefix }, "spec": { "hard": { "count/configmaps": "1000" } },
    }))
    .map_err(|_| ProofFailure::UnexpectedAnswer("the ResourceQuota of the probe is invalid"))?;
    let made = place.call("creating a ResourceQuota", quotas.create(&PostParams::default(), &quota)).await?;
    let (name, version) = (&made.name_any(), made.resource_version().unwrap_or_default());
    let follow = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(60);
    let mut changes = place.call("watching a ResourceQuota", quotas.watch(&follow, &version)).await?.boxed();
    let read = place.call("reading a ResourceQuota", quotas.get(name)).await?;
    if read.uid() != made.uid() {
        return Err(ProofFailure::UnexpectedAnswer("the API server returned a different object from the one created"));
    }
    let filled = |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
    let mut acted = filled(&read);
    while !acted {
        match place.call("waiting for the controller-manager to update a ResourceQuota", changes.try_next()).await? {
            Some(WatchEvent::Modified(quota) | WatchEvent::Added(quota)) => acted = filled(&quota),
            Some(WatchEvent::Bookmark(_)) => {}
            Some(_) => return Err(ProofFailure::UnexpectedAnswer("the watch returned an unexpected event")),
            None => {
                return Err(ProofFailure::UnexpectedAnswer("the controller-manager did not update a ResourceQuota"));
            }
        }
    }
    drop(place.call("deleting a ResourceQuota", quotas.delete(name, &DeleteParams::default())).await?);
    loop {
        match place.call("waiting for the watch event of a deleted ResourceQuota", changes.try_next()).await? {
            Some(WatchEvent::Deleted(_)) => break,
            Some(WatchEvent::Modified(_) | WatchEvent::Added(_) | WatchEvent::Bookmark(_)) => {}
            Some(WatchEvent::Error(_)) | None => {
                return Err(ProofFailure::UnexpectedAnswer("the watch returned no event for a deleted ResourceQuota"));
            }
        }
    }
    let at = made
        .creation_timestamp()
        .ok_or(ProofFailure::UnexpectedAnswer("a created ResourceQuota has no creationTimestamp"))?
        .0;
    delete_stale_quotas(client, at, place).await?;
    Ok(at)
}

/// Deletes quotas of interrupted proofs: those that are older than any proof can be, by the clock of the API server.
async fn delete_stale_quotas(client: &Client, now: MicroTime, place: &ProofProgress) -> Result<(), ProofFailure> {
    let page = page_of_metadata::<ResourceQuota>(client, Some(NAMESPACE), None);
    for old in place.call("listing ResourceQuotas of probes", page).await?.items {
        let created = old.metadata.creation_timestamp.and_then(|then| then.parse::<MicroTime>().ok());
        if created.is_none_or(|then| now.duration_since(then) < STALE_QUOTA_AGE) {
            continue;
        }
        let (name, params) = (old.metadata.name.unwrap_or_default(), DeleteParams::default());
        let deleted = delete::<ResourceQuota>(client, NAMESPACE, &name, &params);
        match place.call("deleting a ResourceQuota of an earlier probe", deleted).await {
            Err(ProofFailure::Call { error: kube::Error::Api(status), .. }) if status.is_not_found() => {}
            deleted => deleted?,
        }
    }
    Ok(())
}

/// When the lease was last renewed. A holder that releases the lease renews it too, and then the lease has no holder.
async fn renewed(client: &Client, holder: &str, place: &ProofProgress) -> Result<Option<MicroTime>, ProofFailure> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let lease = place.call("reading a Lease", leases.get_opt(holder)).await?;
    let held = lease
        .and_then(|lease| lease.spec)
        .filter(|spec| spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty()));
    Ok(held.and_then(|spec| Some(spec.renew_time?.0)))
}

/// Whether a lease with that renewal time was renewed since the first read. In a new cluster the lease did not exist at first, so a lease that is
/// valid at the end of the proof's work counts as renewed: the next renewal would come seconds later.
fn was_renewed(at: MicroTime, before: Option<MicroTime>, first: bool, made: MicroTime) -> bool {
    Some(at) != before || first && made.duration_since(at) < LEASE_LASTS
}

/// Waits until the lease is renewed.
async fn wait_for_renewal(
    client: &Client,
    clock: &Clock,
    holder: &'static str,
    moved: impl Fn(MicroTime) -> bool,
    place: &ProofProgress,
) -> Result<(), ProofFailure> {
    let deadline = clock.monotonic() + LEASE_RENEW_TIMEOUT;
    loop {
        if renewed(client, holder, place).await?.is_some_and(&moved) {
            return Ok(());
        }
        if clock.monotonic() >= deadline {
            return Err(ProofFailure::Timeout(holder));
        }
        clock.sleep(LOOK_AGAIN).await;
    }
}

/// A client of the API server at that address, which must have the cluster's certificate.
pub async fn client_of(meta: &MetaAccess, names: &Names, ip: &str) -> Result<Client, ConnectError> {
    let door = ServerIdentity { secret: OPERATOR, ip, port: API_PORT, server_name: names.apiserver() };
    connect(meta, names, &door).await
}

#[cfg(test)]
mod tests {
    use fleetwright_rig::{TestEnv, TestServer};
    use jiff::Timestamp;
    use kube::api::ListParams;

    use super::*;

    #[test]
    fn an_api_server_reports_what_it_emulates_only_if_that_is_another_minor() {
        let emulated = |minor: &str, emulated: Option<&str>| {
            ServerVersion::from(Info {
                major: "1".to_owned(),
                minor: minor.to_owned(),
                git_version: format!("v1.{minor}.1"),
                emulation_major: emulated.map(|_| "1".to_owned()),
                emulation_minor: emulated.map(str::to_owned),
                ..Info::default()
            })
            .emulates
        };
        assert_eq!(emulated("37", Some("36")).as_deref(), Some("1.36"));
        assert_eq!((emulated("37+", Some("37")), emulated("37", None), emulated("37", Some(""))), (None, None, None));
    }

    #[test]
    fn a_lease_moves_when_it_is_renewed_and_in_a_new_cluster_when_it_is_good() {
        let at = |text: &str| format!("2026-11-17T12:00:{text}Z").parse::<MicroTime>().unwrap();
        let (old, before, made) = (at("00.5"), at("17.9"), at("18"));
        assert!(was_renewed(at("19.1"), Some(before), false, made) && was_renewed(before, None, false, made));
        assert!(!was_renewed(before, Some(before), false, made), "it may be of one who is gone");
        assert!(was_renewed(before, Some(before), true, made));
        assert!(!was_renewed(old, Some(old), true, made), "nobody has renewed it for long");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_proofs_left_behind_goes_and_what_is_under_way_stays() {
        let clock = Clock::manual("2026-11-17T12:00:00Z".parse::<Timestamp>().unwrap());
        let world = TestEnv::with_time(&TestServer::InProcess, &[], Some(&clock)).await.unwrap();
        let client = world.admin();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &named(NAMESPACE)).await.unwrap();
        let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), NAMESPACE);
        let names = async || -> Vec<String> {
            let all = quotas.list(&ListParams::default()).await.unwrap();
            all.iter().map(ResourceExt::name_any).collect()
        };
        quotas.create(&PostParams::default(), &named("left-behind")).await.unwrap();
        clock.advance(Duration::from_secs(599));
        quotas.create(&PostParams::default(), &named("under-way")).await.unwrap();
        work(&client, "pod-", &ProofProgress::default()).await.unwrap();
        assert_eq!(
            names().await,
            ["left-behind", "under-way"],
            "its own is gone, and those of others may be under way"
        );
        clock.advance(Duration::from_secs(1));
        work(&client, "pod-", &ProofProgress::default()).await.unwrap();
        assert_eq!(names().await, ["under-way"]);
    }
}

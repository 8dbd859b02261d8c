//! Replicas that fail their proofs are removed from the endpoint, then recreated: only while another replica is proven to work, and with a growing
//! backoff.
//!
//! Guarantees:
//! - a replica is removed from the endpoint only after another replica passed the proof that it failed, and never the last working one: if no replica
//!   works, all serve again;
//! - a replica is recreated only when it is out of the endpoint, when no rollout is in progress, when etcd has its quorum, and after it was recorded
//!   in the status;
//! - the more replicas were recreated in a row, the longer the next one waits, whichever process leads.

use std::collections::BTreeMap;

use fleetwright_api::{ControlPlaneComponent, ReplacedReplica, names};
use fleetwright_wire::text::first_chars;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::components::count;
use super::counted;
use super::datastore::quorum;
use super::objects::{Kind, Object};
use super::observed::{Observed, Replica, Workload};
use super::proofs::proven_at;
use super::restore;

/// Consecutive failed proofs before a replica is removed: a single failure may be temporary.
const FAILED_PROOFS_TO_REMOVE: u32 = 3;
/// Consecutive failed proofs before the other replicas are proven too, to find out whether only one replica fails.
const FAILED_PROOFS_TO_COMPARE: u32 = 2;
/// Container restarts before they count as a crash loop.
const CRASH_LOOP_RESTARTS: i32 = 3;
/// A replica that is scheduled but not ready for this long is recreated: the cause may be its node.
const UNREADY_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// Wait before the second replica in a row is recreated; the third waits twice as long, and so on.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_mins(10);
const MAX_BACKOFF: SignedDuration = SignedDuration::from_hours(6);
/// Without a replacement for this long, the backoff starts from the beginning.
const BACKOFF_RESET_AFTER: SignedDuration = SignedDuration::from_hours(24);
/// Longest message in a status.
const MAX_MESSAGE: usize = 1000;

/// Steps for replicas that do not work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealSteps {
    /// API servers to add to or remove from the endpoint.
    pub serves: Vec<ServingChange>,
    /// Pod to delete, so that it is recreated, and why.
    pub replace: Option<(Replica, String)>,
    /// Replacement to record in the status; the next pass does it.
    pub announce: Option<ReplacedReplica>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

/// A replica to add to or remove from the endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ServingChange {
    pub replica: Replica,
    /// Whether the replica serves clients.
    pub serves: bool,
    /// Reason of the change.
    pub why: String,
}

/// Inputs about other work in the same pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealContext<'a> {
    /// The package version that the cluster is changed to.
    pub package: &'a str,
    /// Whether pods are restarted, or will be, for another reason.
    pub restarts: bool,
    /// Template digest that the pods of each component should have.
    pub templates: &'a BTreeMap<ControlPlaneComponent, String>,
}

/// Decides the steps for replicas that do not work.
pub(super) fn heal(seen: &Observed, underway: &HealContext<'_>, now: Timestamp) -> HealSteps {
    let mut heal = HealSteps::default();
    if restore::takes_over(seen) {
        return heal;
    }
    // Without quorum no replica works, and recreated pods do not work either.
    if quorum(seen, now).is_some_and(|quorum| quorum.ready < quorum.needed()) {
        return heal;
    }
    if let Some(servers) = seen.workloads.get(&ControlPlaneComponent::Apiserver) {
        for replica in running_replicas(servers) {
            let out = not_serving_reason(seen, servers, replica);
            if replica.serves != Some(out.is_none()) {
                let why = out.clone().unwrap_or_else(|| match proven_at(seen, replica) {
                    Some(_) => "verified".to_owned(),
                    None => "no other replica is verified".to_owned(),
                });
                heal.serves.push(ServingChange { replica: replica.clone(), serves: out.is_none(), why });
            }
        }
    }
    let ReplicaReplacement { replace, announce, next } = replacing(seen, underway, now);
    HealSteps { replace, announce, next, ..heal }
}

/// Whether the Service selects by the label: it does once every pod has the label.
pub(super) fn selects(seen: &Observed, component: ControlPlaneComponent) -> bool {
    let all = seen
        .workloads
        .get(&component)
        .is_none_or(|workload| running_replicas(workload).all(|one| one.serves.is_some()));
    component == ControlPlaneComponent::Apiserver && all
}

/// Adds the label to the selector of the Service, if the Service selects by it.
pub(super) fn select(seen: &Observed, component: ControlPlaneComponent, objects: &mut [Object]) {
    if selects(seen, component) {
        for object in objects.iter_mut().filter(|object| object.kind == Kind::Service) {
            object.body["spec"]["selector"][names::SERVING] = json!("true");
        }
    }
}

/// Since when a replica fails, if it failed often enough that the other replicas are proven too.
pub(super) fn failing_since(seen: &Observed) -> Option<Timestamp> {
    let failing = seen.proofs.values().filter_map(|proof| proof.failing);
    failing.filter(|failing| failing.times >= FAILED_PROOFS_TO_COMPARE).map(|failing| failing.since).max()
}

fn running_replicas(workload: &Workload) -> impl Iterator<Item = &Replica> {
    workload.replicas.iter().filter(|replica| !replica.ending)
}

fn is_crash_looping(replica: &Replica) -> bool {
    replica.looping && replica.restarts >= CRASH_LOOP_RESTARTS
}

/// Why an API server serves no clients; `None` if it serves.
fn not_serving_reason(seen: &Observed, servers: &Workload, replica: &Replica) -> Option<String> {
    let mut others = running_replicas(servers)
        .filter(|other| other.uid != replica.uid && other.ready && other.serves != Some(false));
    if is_crash_looping(replica) {
        let why = format!("its container terminated {}: {}", counted(replica.restarts, "time"), replica.message);
        return others.any(|other| proven_at(seen, other).is_some()).then_some(why);
    }
    let out = replica.serves == Some(false);
    let Some(proof) = seen.proofs.get(&replica.uid).filter(|proof| proof.restarts == replica.restarts) else {
        // No proof exists since its container or this process started: the replica keeps its state.
        let why = "not verified yet".to_owned();
        return (out && others.any(|other| proven_at(seen, other).is_some())).then_some(why);
    };
    let (Err(why), Some(failing)) = (&proof.outcome, proof.failing) else { return None };
    if failing.times < FAILED_PROOFS_TO_REMOVE && !out {
        return None;
    }
    // Another replica passed the proof meanwhile, and this one failed again after that: the cause is not a dependency of both.
    let mut witnesses = others.filter_map(|other| seen.proofs.get(&other.uid).map(|proof| (other, proof)));
    witnesses
        .any(|(other, proof)| {
            let well = proof.outcome.is_ok() && proof.restarts == other.restarts && proof.at >= failing.since;
            well && (out || failing.began >= proof.at)
        })
        .then(|| format!("verification failed {}: {why}", counted(failing.times, "time")))
}

/// Why a replica should be recreated, and from when, if only time is missing.
fn replacement_reason(
    seen: &Observed,
    component: ControlPlaneComponent,
    workload: &Workload,
    replica: &Replica,
) -> Option<(String, Option<Timestamp>)> {
    let apiserver = component == ControlPlaneComponent::Apiserver;
    let works = |other: &Replica| other.ready && (!apiserver || proven_at(seen, other).is_some());
    let other =
        running_replicas(workload).any(|other| other.uid != replica.uid && other.serves != Some(false) && works(other));
    if !other {
        return None;
    }
    let out = if apiserver {
        not_serving_reason(seen, workload, replica).filter(|_| replica.serves == Some(false))
    } else {
        None
    };
    let looping = || format!("its container terminated {}: {}", counted(replica.restarts, "time"), replica.message);
    match out {
        Some(why) => Some((why, None)),
        None if !apiserver && is_crash_looping(replica) => Some((looping(), None)),
        None => {
            let since = replica.unready_since.filter(|_| !replica.ready && !replica.looping)?;
            let why = format!("not ready since {since}: {}", replica.message);
            Some((why, since.checked_add(UNREADY_TIMEOUT).ok()))
        }
    }
}

/// The replica that is recreated, or recorded for it. See [`HealSteps`].
#[derive(Default)]
struct ReplicaReplacement {
    replace: Option<(Replica, String)>,
    announce: Option<ReplacedReplica>,
    next: Option<Timestamp>,
}

fn replacing(seen: &Observed, underway: &HealContext<'_>, now: Timestamp) -> ReplicaReplacement {
    let mut replacing = ReplicaReplacement::default();
    // Pods are replaced by another change at the moment.
    if seen.status.package_version.as_deref() != Some(underway.package) || underway.restarts {
        return replacing;
    }
    for component in ControlPlaneComponent::ALL.into_iter().filter(|one| *one != ControlPlaneComponent::Etcd) {
        let Some(workload) = seen.workloads.get(&component) else { continue };
        let template = underway.templates.get(&component);
        let whole = workload.replicas.len() == count(seen, component)
            && workload.replicas.iter().all(|one| !one.ending && one.template.as_ref() == template);
        if !whole || workload.package.as_deref() != Some(underway.package) {
            continue;
        }
        for replica in &workload.replicas {
            let Some((why, from)) = replacement_reason(seen, component, workload, replica) else { continue };
            let announced = seen.status.replaced.as_ref();
            if announced.is_some_and(|last| last.uid == replica.uid) {
                return ReplicaReplacement { replace: Some((replica.clone(), why)), ..replacing };
            }
            let times =
                announced.filter(|last| now.duration_since(last.at) < BACKOFF_RESET_AFTER).map_or(0, |last| last.times);
            let allowed = announced.filter(|_| times > 0).and_then(|last| last.at.checked_add(wait(times)).ok());
            let due = from.into_iter().chain(allowed).max().filter(|due| *due > now);
            match due {
                Some(due) => replacing.next = replacing.next.into_iter().chain([due]).min(),
                None => {
                    let message = first_chars(&why, MAX_MESSAGE).to_owned();
                    let (name, uid) = (replica.name.clone(), replica.uid.clone());
                    let note =
                        ReplacedReplica { component, name, uid, at: now, times: times.saturating_add(1), message };
                    return ReplicaReplacement { announce: Some(note), ..replacing };
                }
            }
        }
    }
    replacing
}

/// Backoff after that number of replacements.
fn wait(times: u32) -> SignedDuration {
    let doubled = FIRST_BACKOFF.checked_mul(1 << times.saturating_sub(1).min(16)).unwrap_or(MAX_BACKOFF);
    doubled.min(MAX_BACKOFF)
}

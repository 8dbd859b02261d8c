//! Replicas that do not work are taken out of the endpoint, then made anew: only while another is proven to work, and not again and again.
//!
//! Guarantees:
//! - a replica goes out only after another did well what it did not, and never the last that works: where none is left, all are put back;
//! - one is made anew only when it is out, when no rollout is under way, when etcd has its quorum, and after it was written into the status;
//! - the more were made anew in a row, the longer the next one waits, whoever leads.

use std::collections::BTreeMap;

use fleetwright_api::{ControlPlaneComponent, ReplacedReplica, names};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::components::count;
use super::counted;
use super::datastore::quorum;
use super::objects::{Kind, Object};
use super::observed::{Observed, Replica, Workload};
use super::proofs::proven_at;
use super::restore;

/// So many proofs fail before a replica is taken out: once may be a moment's trouble.
const FAILED_PROOFS_TO_REMOVE: u32 = 3;
/// So many, and the others are asked whether it is alone with it.
const FAILED_PROOFS_TO_COMPARE: u32 = 2;
/// So often a container ends before that counts as a loop.
const CRASH_LOOP_RESTARTS: i32 = 3;
/// A replica that is on a node and not ready for so long is made anew: whatever holds it up may not follow it to another place.
const UNREADY_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// After the first that was made anew, the second waits so long, the third twice that, and so on.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_mins(10);
const MAX_BACKOFF: SignedDuration = SignedDuration::from_hours(6);
/// After so long without any, what was before counts no more.
const BACKOFF_RESET_AFTER: SignedDuration = SignedDuration::from_hours(24);
/// The longest text that a status takes.
const MAX_MESSAGE: usize = 1000;

/// What is done about replicas that do not work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealSteps {
    /// API servers that get clients from now on, or none any more.
    pub serves: Vec<ServingChange>,
    /// Delete this pod, so that it is made anew, and why.
    pub replace: Option<(Replica, String)>,
    /// Write this into the status; the next pass does it.
    pub announce: Option<ReplacedReplica>,
    /// When to look again.
    pub next: Option<Timestamp>,
}

/// Whether a replica gets clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ServingChange {
    /// Which.
    pub replica: Replica,
    /// Whether it does.
    pub serves: bool,
    /// Why.
    pub why: String,
}

/// What else is under way in the pass that decides about replicas that do not work.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealContext<'a> {
    /// The package version that the cluster is brought to.
    pub package: &'a str,
    /// Pods are restarted for something else, or will be.
    pub restarts: bool,
    /// The digest of the template that the pods of each component should have.
    pub templates: &'a BTreeMap<ControlPlaneComponent, String>,
}

/// Says what to do about replicas that do not work.
pub(super) fn heal(seen: &Observed, underway: &HealContext<'_>, now: Timestamp) -> HealSteps {
    let mut heal = HealSteps::default();
    if restore::takes_over(seen) {
        return heal;
    }
    // Without it nobody works, and pods that go do not come back better.
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

/// Whether the Service selects by the label: once every pod has it.
pub(super) fn selects(seen: &Observed, component: ControlPlaneComponent) -> bool {
    let all = seen
        .workloads
        .get(&component)
        .is_none_or(|workload| running_replicas(workload).all(|one| one.serves.is_some()));
    component == ControlPlaneComponent::Apiserver && all
}

/// Lets the Service select by the label, if it does.
pub(super) fn select(seen: &Observed, component: ControlPlaneComponent, objects: &mut [Object]) {
    if selects(seen, component) {
        for object in objects.iter_mut().filter(|object| object.kind == Kind::Service) {
            object.body["spec"]["selector"][names::SERVING] = json!("true");
        }
    }
}

/// Since when a replica fails, so often that the others are asked.
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

/// Why an API server gets no clients; none if it does.
fn not_serving_reason(seen: &Observed, servers: &Workload, replica: &Replica) -> Option<String> {
    let mut others = running_replicas(servers)
        .filter(|other| other.uid != replica.uid && other.ready && other.serves != Some(false));
    if is_crash_looping(replica) {
        let why = format!("its container terminated {}: {}", counted(replica.restarts, "time"), replica.message);
        return others.any(|other| proven_at(seen, other).is_some()).then_some(why);
    }
    let out = replica.serves == Some(false);
    let Some(proof) = seen.proofs.get(&replica.uid).filter(|proof| proof.restarts == replica.restarts) else {
        // Nothing is known of it since its container or this process began: it stays where it is.
        let why = "not verified yet".to_owned();
        return (out && others.any(|other| proven_at(seen, other).is_some())).then_some(why);
    };
    let (Err(why), Some(failing)) = (&proof.outcome, proof.failing) else { return None };
    if failing.times < FAILED_PROOFS_TO_REMOVE && !out {
        return None;
    }
    // Another did it meanwhile, and this one still did not after that: it is not what both depend on.
    let mut witnesses = others.filter_map(|other| seen.proofs.get(&other.uid).map(|proof| (other, proof)));
    witnesses
        .any(|(other, proof)| {
            let well = proof.outcome.is_ok() && proof.restarts == other.restarts && proof.at >= failing.since;
            well && (out || failing.began >= proof.at)
        })
        .then(|| format!("verification failed {}: {why}", counted(failing.times, "time")))
}

/// Why a replica should be made anew, and when, if only time is missing.
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

/// The replica that is recreated, or announced to be. See [`HealSteps`].
#[derive(Default)]
struct ReplicaReplacement {
    replace: Option<(Replica, String)>,
    announce: Option<ReplacedReplica>,
    next: Option<Timestamp>,
}

fn replacing(seen: &Observed, underway: &HealContext<'_>, now: Timestamp) -> ReplicaReplacement {
    let mut replacing = ReplicaReplacement::default();
    // While something else changes, pods come and go for that.
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
                    let message = why.chars().take(MAX_MESSAGE).collect();
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

/// How long the next one waits after so many.
fn wait(times: u32) -> SignedDuration {
    let doubled = FIRST_BACKOFF.checked_mul(1 << times.saturating_sub(1).min(16)).unwrap_or(MAX_BACKOFF);
    doubled.min(MAX_BACKOFF)
}

//! Proofs of API servers: which replicas to prove now, and which still count as proven.

use std::time::Duration;

use fleetwright_api::ControlPlaneComponent;
use jiff::Timestamp;

use super::heal;
use super::observed::{Observed, Replica};

/// Interval of proofs, so that failures without another sign are found.
pub const PROVE_EVERY: Duration = Duration::from_secs(600);
/// Interval after a failed proof.
const PROVE_AGAIN: Duration = Duration::from_secs(5);
/// Age at which a proof expires.
const PROOF_LASTS: Duration = Duration::from_secs(3 * 3600);

/// A pod to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofTarget {
    pub name: String,
    pub uid: String,
    /// Address of the pod.
    pub ip: String,
    /// Restart count of its container.
    pub restarts: i32,
    /// Whether the cluster was never proven, so that it has no users yet.
    pub first: bool,
}

/// Proofs to start in a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProofSteps {
    /// API servers to prove now.
    pub prove: Vec<ProofTarget>,
    /// When the next proof is due.
    pub next: Option<Timestamp>,
}

/// When a replica was last proven, if the proof has not expired: by this process, or by an earlier one according to the status.
pub(super) fn proven_at(seen: &Observed, replica: &Replica) -> Option<Timestamp> {
    match seen.proofs.get(&replica.uid) {
        Some(proof) if proof.restarts == replica.restarts => proof.outcome.as_ref().ok().map(|_| proof.at),
        Some(_) => None,
        None => {
            let components = seen.status.components.iter();
            let mut replicas = components.flat_map(|component| &component.replicas);
            replicas.find(|known| known.name == replica.name && known.ready)?.verified_at
        }
    }
}

/// Whether a controller-manager and a scheduler run, ready or not.
fn acts(seen: &Observed) -> bool {
    let runs = |replica: &Replica| replica.ready || replica.ip.is_some() && replica.message.is_empty();
    [ControlPlaneComponent::ControllerManager, ControlPlaneComponent::Scheduler]
        .iter()
        .all(|one| seen.workloads.get(one).is_some_and(|workload| workload.replicas.iter().any(runs)))
}

/// The API servers to prove now, and the time of the next proof.
pub(super) fn prove(seen: &Observed, now: Timestamp) -> ProofSteps {
    let mut proofs = ProofSteps::default();
    let Some(workload) = seen.workloads.get(&ControlPlaneComponent::Apiserver) else { return proofs };
    // A proof needs the controller-manager and the scheduler. In new clusters without them, many proofs would wait for long while others could run.
    if seen.status.package_version.is_none() && !acts(seen) {
        return proofs;
    }
    let doubted = heal::failing_since(seen);
    for replica in workload.replicas.iter().filter(|replica| replica.ready && !replica.ending) {
        let Some(ip) = &replica.ip else { continue };
        let again = match seen.proofs.get(&replica.uid) {
            // If one replica fails repeatedly, proofs of the others show whether only that one fails.
            Some(proof) if proof.outcome.is_ok() && doubted.is_some_and(|since| proof.at < since) => now,
            Some(proof) if proof.restarts == replica.restarts => {
                let wait = if proof.outcome.is_ok() { jittered(&replica.uid) } else { PROVE_AGAIN };
                proof.at.checked_add(wait).unwrap_or(now)
            }
            Some(_) => now,
            // A proof of an earlier process does not tell the emulated minor.
            None if seen.status.finishing.is_some() => now,
            // Proven by an earlier process: repeated at its interval, and not later.
            None => match proven_at(seen, replica) {
                Some(at)
                    if now.duration_since(at) < jiff::SignedDuration::try_from(PROOF_LASTS).unwrap_or_default() =>
                {
                    at.checked_add(jittered(&replica.uid)).unwrap_or(now)
                }
                _ => now,
            },
        };
        if again <= now {
            let (name, uid, ip) = (replica.name.clone(), replica.uid.clone(), ip.clone());
            let first = seen.status.package_version.is_none();
            proofs.prove.push(ProofTarget { name, uid, ip, restarts: replica.restarts, first });
        } else {
            proofs.next = proofs.next.into_iter().chain([again]).min();
        }
    }
    proofs
}

/// The proof interval of a pod, jittered: pods of a fleet that started together are not proven together.
fn jittered(uid: &str) -> Duration {
    let spread = uid.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))) % 200;
    PROVE_EVERY + Duration::from_secs(spread)
}

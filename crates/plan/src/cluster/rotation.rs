//! Rotation of authorities in phases: while one side already uses the new authority, the other still trusts the old one.
//!
//! Each phase is recorded before anything is done for it. A phase ends when nothing is left to do for it, all components and machines have its
//! result, and the overlap has passed, in which people update the trust bundles of their clients.
//!
//! An expired authority is rotated in the same way: the rotation is the remedy, so nothing that the expiry itself broke blocks it (see `expired`).

use fleetwright_api::{ExtensionStatus, Rotation, RotationPhase, Status, names};
use jiff::{SignedDuration, Timestamp};

use super::certificates::Authority;
use super::decide::Decision;
use super::observed::Observed;
use crate::join::bundle_digest as trusts_of;

/// Requeue after a write whose result the next pass needs.
const REQUEUE_SOON: SignedDuration = SignedDuration::from_secs(1);
/// Interval of queries to machines that lack the present trust bundle.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// A warning is published in the last fifth of an authority's life, for this long at most. A rotation takes two overlaps, a change of every machine
/// in its windows, and new kubeconfigs for people: half a year is enough for that, also where changes are frozen for months.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(180 * 24);

/// Contents of an authority's Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedAuthority {
    pub authority: Authority,
    /// Whether the Secret holds a next authority, which does not sign yet.
    pub next: bool,
    /// Number of trusted authorities.
    pub trusted: usize,
    /// Digest of the trusted authorities and of the signing one.
    pub digest: String,
    /// Start of the validity of the signing authority.
    pub begins: Timestamp,
    /// Expiry of the signing authority.
    pub ends: Timestamp,
    /// Earliest expiry of the trusted authorities.
    pub first_end: Timestamp,
}

impl ObservedAuthority {
    /// Start of the warning before the expiry.
    fn warned_from(&self) -> Timestamp {
        let notice = (self.ends.duration_since(self.begins) / 5).min(EXPIRY_WARNING);
        self.ends.checked_sub(notice).unwrap_or(self.ends)
    }
}

/// When the next authority expires, or the warning before it starts.
pub(super) fn next_expiry(seen: &Observed, now: Timestamp) -> Option<Timestamp> {
    let moments = seen.anchors.iter().flat_map(|anchor| [anchor.warned_from(), anchor.ends]);
    moments.filter(|at| *at > now).min()
}

/// The authorities that have expired or expire soon, and what to do: a reason, and a message. `None` if no warning has started.
pub(super) fn expiry(seen: &Observed, now: Timestamp) -> Option<(&'static str, String)> {
    let near: Vec<_> = seen.anchors.iter().filter(|anchor| anchor.warned_from() <= now).collect();
    let first = near.iter().map(|anchor| anchor.ends).min()?;
    let each = near.iter().map(|anchor| {
        let verb = if anchor.ends <= now { "expired" } else { "expires" };
        format!("{} {verb} at {}", anchor.authority.secret(), anchor.ends)
    });
    let reason = if first <= now { names::reasons::AUTHORITY_EXPIRED } else { names::reasons::AUTHORITY_EXPIRING };
    let message = format!(
        "authorities of Cluster {}/{}: {}. Certificates of an expired authority are rejected. To rotate all authorities, set spec.certificates.rotateAuthorities \
         to a new value, such as before-{first}",
        seen.names.fleet,
        seen.names.name,
        each.collect::<Vec<_>>().join(", "),
    );
    Some((reason, message))
}

/// Whether an authority that the control plane needs has expired. Components accept no certificate that it signed: no API server can be proven, and
/// no worker or person can connect. Therefore a rotation neither waits until the cluster is settled nor, before the new authorities sign, for the
/// overlap and for machines: all of that is possible only after the new ones sign. A proof does not need certificates of the front-proxy and kubelet
/// authorities, so the expiry of these counts as usual, and the overlap still serves the clients that trust the cluster's own authority.
fn expired(seen: &Observed, now: Timestamp) -> bool {
    let needed = |authority| match authority {
        Authority::Cluster => true,
        Authority::Etcd => seen.spec.datastore.etcd.is_some(),
        Authority::FrontProxy | Authority::Kubelet => false,
    };
    seen.anchors.iter().any(|anchor| needed(anchor.authority) && anchor.ends <= now)
}

/// Whether members of etcd with the old and with the new trust bundle cannot connect to each other, because the old etcd authority has expired.
pub(super) fn etcd_authority_expired(seen: &Observed, now: Timestamp) -> bool {
    seen.anchors.iter().any(|anchor| anchor.authority == Authority::Etcd && anchor.first_end <= now)
}

/// The machines that lack the trust bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDistribution {
    /// Time of the query.
    pub at: Timestamp,
    /// Digest of the trust bundle, see [`trust_digest`](crate::join::bundle_digest).
    pub of: String,
    /// Machines with another trust bundle; or why the query failed.
    pub behind: Result<Vec<String>, String>,
}

/// A query to a business cluster: which of its machines have the trust bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustQuery {
    /// See [`TrustDistribution::of`].
    pub of: String,
    /// Addresses of the API servers to query.
    pub servers: Vec<String>,
}

/// A change of an authority's Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationAction {
    /// Create a new authority and trust it beside the old one.
    Trust,
    /// Sign with the new authority.
    Sign,
    /// Trust only the signing authority.
    Drop,
}

/// Digest of the trust bundles of all components: when it changes, components restart, because not all of them reload their files.
pub(super) fn trust_digest(anchors: &[ObservedAuthority]) -> String {
    let all: Vec<_> = anchors.iter().map(|anchor| anchor.digest.as_str()).collect();
    super::digest(&all.join("\n"), 8)
}

/// The digest of an authority's Secret.
pub fn anchor_digest(trusted: &str, signs: &str) -> String {
    super::digest(&format!("{trusted}\n{signs}"), 8)
}

/// Inputs about other work in the same pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct RotationContext<'a> {
    /// Whether everything is as declared and proven, or can become so only by the rotation.
    pub settled: bool,
    /// Whether objects are applied or certificates issued.
    pub updating: bool,
    /// The state of each extension.
    pub extensions: &'a [ExtensionStatus],
}

/// Steps of a rotation of authorities.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RotationSteps {
    /// Changes of authorities.
    pub rotate: Vec<(Authority, RotationAction)>,
    /// The phase after this pass. `None` if no rotation is in progress.
    pub rotation: Option<Rotation>,
    /// Why the next phase does not start, though the overlap is over.
    pub waits: Option<String>,
    /// Query which machines have the trust bundle.
    pub follow: Option<TrustQuery>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

/// Decides the phase of a rotation and its steps.
pub(super) fn rotate(seen: &Observed, underway: &RotationContext<'_>, now: Timestamp) -> RotationSteps {
    let expired = expired(seen, now);
    let underway = &RotationContext { settled: underway.settled || expired, ..*underway };
    let mut rotating = phase(seen, underway, expired, now);
    let rotation = &rotating.rotation;
    let asked = seen.spec.certificates.rotate_authorities.as_ref();
    let open = rotation.is_some() || (asked.is_some() && completed_request(seen, rotation.as_ref()).as_ref() != asked);
    // The next pass observes what this pass writes, and nothing else may happen in between.
    let acts = underway.updating || !rotating.rotate.is_empty();
    if open && underway.settled && (acts || *rotation != seen.status.rotation) {
        let soon = now.checked_add(REQUEUE_SOON).unwrap_or(now);
        rotating.next = rotating.next.into_iter().chain([soon]).min();
    }
    rotating
}

fn phase(seen: &Observed, underway: &RotationContext<'_>, expired: bool, now: Timestamp) -> RotationSteps {
    let asked = seen.spec.certificates.rotate_authorities.as_ref();
    let begin = |value: &String| Rotation { value: value.clone(), phase: RotationPhase::Trusting, since: now };
    let rests = underway.settled && !underway.updating;
    let Some(rotation) = &seen.status.rotation else {
        let new = asked.filter(|asked| seen.status.authorities.as_ref() != Some(asked));
        // The authorities of a new cluster are new.
        let created = seen.status.package_version.is_some();
        let rotation = new.filter(|_| created && rests && !seen.spec.paused).map(begin);
        return RotationSteps { rotation, ..RotationSteps::default() };
    };
    let (turn, left): (RotationAction, fn(&ObservedAuthority) -> bool) = match rotation.phase {
        RotationPhase::Trusting => (RotationAction::Trust, |anchor| !anchor.next),
        RotationPhase::Signing => (RotationAction::Sign, |anchor| anchor.next),
        RotationPhase::Dropping => (RotationAction::Drop, |anchor| anchor.trusted > 1),
    };
    let rotate: Vec<_> =
        seen.anchors.iter().filter(|anchor| left(anchor)).map(|anchor| (anchor.authority, turn)).collect();
    let stays = RotationSteps { rotation: Some(rotation.clone()), ..RotationSteps::default() };
    if !rests || !rotate.is_empty() || seen.spec.paused {
        return RotationSteps { rotate, ..stays };
    }
    let overlap = SignedDuration::try_from(seen.spec.certificates.overlap.0).unwrap_or_default();
    let until = rotation.since.checked_add(overlap).unwrap_or(Timestamp::MAX);
    let next = |phase| Some(Rotation { phase, since: now, ..rotation.clone() });
    match rotation.phase {
        RotationPhase::Dropping => RotationSteps::default(),
        RotationPhase::Trusting if expired => {
            RotationSteps { rotation: next(RotationPhase::Signing), ..RotationSteps::default() }
        }
        _ if now < until => RotationSteps { next: Some(until), ..stays },
        phase => {
            let behind = waits(seen, underway.extensions, now);
            let rotation = match (behind.waits.is_some(), phase) {
                (true, _) => stays.rotation,
                (false, RotationPhase::Trusting) => next(RotationPhase::Signing),
                (false, _) => next(RotationPhase::Dropping),
            };
            RotationSteps { rotation, ..behind }
        }
    }
}

/// Which extensions and machines do not have the present trust bundle yet. Extensions come first: they bring it to the machines.
fn waits(seen: &Observed, extensions: &[ExtensionStatus], now: Timestamp) -> RotationSteps {
    let mut rotating = RotationSteps::default();
    // An extension that does not work, for whatever reason, blocks no rotation: a cluster without workers has no ready DNS either.
    let unready = || extensions.iter().filter(|one| one.ready != Status::True);
    if unready().all(|one| one.reason == names::reasons::APPLYING)
        && let Some(one) = unready().next()
    {
        rotating.waits = Some(format!("applying extension {}: {}", one.name, one.message));
        return rotating;
    }
    let Some(bundle) = seen.extensions.ca_bundle.as_deref() else { return rotating };
    let of = trusts_of(bundle);
    let known = seen.followers.as_ref().filter(|known| known.of == of);
    let why = match known.map(|known| &known.behind) {
        None => "reading which machines have the new authorities".to_owned(),
        Some(Ok(behind)) if behind.is_empty() => return rotating,
        Some(Ok(behind)) => format!(
            "machines without the new authorities: {}; see `fleetwright why`, or delete machines that are lost",
            super::some(behind)
        ),
        Some(Err(why)) => format!("cannot read which machines have the new authorities: {why}"),
    };
    let again = known.map_or(now, |known| known.at.checked_add(ASK_AGAIN).unwrap_or(known.at));
    if again <= now {
        rotating.follow = Some(TrustQuery { of, servers: super::extensions::servers(seen) });
    }
    let again = if again > now { again } else { now.checked_add(ASK_AGAIN).unwrap_or(now) };
    (rotating.next, rotating.waits) = (Some(again), Some(why));
    rotating
}

/// The requested value of `rotateAuthorities`, once nothing is left to do for it.
pub(super) fn followed(seen: &Observed, decision: &Decision) -> Option<String> {
    completed_request(seen, decision.rotation.as_ref())
}

fn completed_request(seen: &Observed, after: Option<&Rotation>) -> Option<String> {
    match (seen.status.rotation.as_ref(), after) {
        (Some(done), None) => Some(done.value.clone()),
        (None, None) if seen.status.package_version.is_none() => seen.spec.certificates.rotate_authorities.clone(),
        _ => seen.status.authorities.clone(),
    }
}

/// Message about the progress of the rotation.
pub(super) fn progress_message(rotation: &Rotation, waits: Option<&str>, overlap: fleetwright_api::Span) -> String {
    let at = rotation.since;
    let text = match rotation.phase {
        RotationPhase::Trusting => {
            format!("new authorities are trusted beside the old ones since {at}; they start to sign {overlap} later")
        }
        RotationPhase::Signing => {
            format!("new authorities have been signing since {at}; the old ones are trusted for {overlap} more")
        }
        RotationPhase::Dropping => format!("the old authorities are no longer trusted since {at}"),
    };
    match waits {
        Some(waits) => format!("{text}. Waiting: {waits}"),
        None => text,
    }
}

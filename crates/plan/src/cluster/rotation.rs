//! New authorities in place of old ones, in phases: while one side already has the new, the other still trusts the old.
//!
//! Each phase is written down before anything of it is done, and is over when nothing of it is left to do, all components and machines have it, and the
//! time passed in which people take what they have to trust.
//!
//! An authority that has expired is replaced all the same: a rotation is the remedy, so nothing that the expiry itself broke holds it (`expired` says what).

use fleetwright_api::{ExtensionStatus, Rotation, RotationPhase, Status, names};
use jiff::{SignedDuration, Timestamp};

use super::certificates::Authority;
use super::decide::Decision;
use super::observed::Observed;
use crate::join::bundle_digest as trusts_of;

/// When what was just written is looked at again.
const REQUEUE_SOON: SignedDuration = SignedDuration::from_secs(1);
/// Machines that do not have what is trusted are asked again after this long.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// People are warned of an authority's end in the last fifth of its life, for this long at most. A rotation takes two overlaps, a change of every machine in its
/// windows, and new kubeconfigs for people: half a year is enough for that, also where changes are frozen for months.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(180 * 24);

/// What is known of an authority's Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedAuthority {
    /// Which.
    pub authority: Authority,
    /// It holds one that is to sign later.
    pub next: bool,
    /// How many are trusted.
    pub trusted: usize,
    /// The digest of all that are trusted and of the one that signs.
    pub digest: String,
    /// Start of the validity of the one that signs.
    pub begins: Timestamp,
    /// When the one that signs expires.
    pub ends: Timestamp,
    /// When the first of all that are trusted expires.
    pub first_end: Timestamp,
}

impl ObservedAuthority {
    /// From when on people are warned of its end.
    fn warned_from(&self) -> Timestamp {
        let notice = (self.ends.duration_since(self.begins) / 5).min(EXPIRY_WARNING);
        self.ends.checked_sub(notice).unwrap_or(self.ends)
    }
}

/// When the next authority expires, or people are to be warned that it does.
pub(super) fn next_expiry(seen: &Observed, now: Timestamp) -> Option<Timestamp> {
    let moments = seen.anchors.iter().flat_map(|anchor| [anchor.warned_from(), anchor.ends]);
    moments.filter(|at| *at > now).min()
}

/// Which authorities have expired or are about to, and what to do: a reason, and a message. None while all are far from their end.
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

/// Whether an authority has expired without which the control plane does not work. Components accept nothing that it signed: no API server is proven, and no
/// worker or person gets through. So a rotation neither waits until the cluster is settled nor, before the new authorities sign, for the overlap and for
/// machines: all of that comes only after the new ones sign. What an expired authority of the front proxy or of kubelets signed is not needed for a proof, and
/// the overlap still serves those who trust the cluster's own authority.
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

/// Which machines do not have what is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDistribution {
    /// When they were asked.
    pub at: Timestamp,
    /// What they should have, see [`trust_digest`](crate::join::bundle_digest).
    pub of: String,
    /// Those that have something else; or why nobody answered.
    pub behind: Result<Vec<String>, String>,
}

/// A question to a business cluster: which of its machines have that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustQuery {
    /// See [`TrustDistribution::of`].
    pub of: String,
    /// The addresses of API servers that can be asked.
    pub servers: Vec<String>,
}

/// What is done with an authority's Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationAction {
    /// A new one is made, and trusted beside the old one.
    Trust,
    /// The new one signs.
    Sign,
    /// Only the one that signs is trusted.
    Drop,
}

/// The digest of what all components trust: when it changes, they begin anew, because not all of them read it again.
pub(super) fn trust_digest(anchors: &[ObservedAuthority]) -> String {
    let all: Vec<_> = anchors.iter().map(|anchor| anchor.digest.as_str()).collect();
    super::digest(&all.join("\n"), 8)
}

/// The digest of an authority's Secret.
pub fn anchor_digest(trusted: &str, signs: &str) -> String {
    super::digest(&format!("{trusted}\n{signs}"), 8)
}

/// What else is under way in the pass that decides about a rotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct RotationContext<'a> {
    /// Everything is as declared and proven, or can only become so by the rotation.
    pub settled: bool,
    /// Objects are applied or certificates made.
    pub updating: bool,
    /// The state of each extension.
    pub extensions: &'a [ExtensionStatus],
}

/// What is done about a rotation of authorities.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RotationSteps {
    /// Do this to these authorities.
    pub rotate: Vec<(Authority, RotationAction)>,
    /// The phase from now on. None if authorities are not being replaced.
    pub rotation: Option<Rotation>,
    /// Why the next phase does not start, though its time has come.
    pub waits: Option<String>,
    /// Ask which machines have the trust bundle.
    pub follow: Option<TrustQuery>,
    /// When to look again.
    pub next: Option<Timestamp>,
}

/// The phase that a rotation is in, and what is done in it.
pub(super) fn rotate(seen: &Observed, underway: &RotationContext<'_>, now: Timestamp) -> RotationSteps {
    let expired = expired(seen, now);
    let underway = &RotationContext { settled: underway.settled || expired, ..*underway };
    let mut rotating = phase(seen, underway, expired, now);
    let rotation = &rotating.rotation;
    let asked = seen.spec.certificates.rotate_authorities.as_ref();
    let open = rotation.is_some() || (asked.is_some() && completed_request(seen, rotation.as_ref()).as_ref() != asked);
    // What is written in this pass is looked at in the next one, and nothing else may happen in between.
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
        // Those of a new cluster are as new as can be.
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

/// Who outside the control plane does not have yet what is trusted now. Extensions come first: by them machines get it.
fn waits(seen: &Observed, extensions: &[ExtensionStatus], now: Timestamp) -> RotationSteps {
    let mut rotating = RotationSteps::default();
    // One that does not work, for whatever reason, holds nobody: a cluster without workers has no names either.
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

/// The value that is followed, once nothing is left to do for it.
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

/// What a person is told of it.
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

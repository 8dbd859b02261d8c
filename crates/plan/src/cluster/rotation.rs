//! New authorities in place of old ones, in phases: while one side already has the new, the other still trusts the old.
//!
//! Each phase is written down before anything of it is done, and is over when nothing of it is left to do, all components and machines have it, and the
//! time passed in which people take what they have to trust.

use fleetwright_api::{Rotation, RotationPhase, Status, names};
use jiff::{SignedDuration, Timestamp};

use super::certificates::Authority;
use super::decide::Decision;
use super::observed::Observed;
use crate::join::trusts as trusts_of;

/// When what was just written is looked at again.
const SOON: SignedDuration = SignedDuration::from_secs(1);
/// Machines that do not have what is trusted are asked again after this long.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// What is known of an authority's Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Which.
    pub authority: Authority,
    /// It holds one that is to sign later.
    pub next: bool,
    /// How many are trusted.
    pub trusted: usize,
    /// The digest of all that are trusted and of the one that signs.
    pub digest: String,
}

/// Which machines do not have what is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followers {
    /// When they were asked.
    pub at: Timestamp,
    /// What they should have, see [`trusts`](crate::join::trusts).
    pub of: String,
    /// Those that have something else; or why nobody answered.
    pub behind: Result<Vec<String>, String>,
}

/// A question to a business cluster: which of its machines have that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    /// See [`Followers::of`].
    pub of: String,
    /// The addresses of API servers that can be asked.
    pub servers: Vec<String>,
}

/// What is done with an authority's Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A new one is made, and trusted beside the old one.
    Trust,
    /// The new one signs.
    Sign,
    /// Only the one that signs is trusted.
    Drop,
}

/// The digest of what all components trust: when it changes, they begin anew, because not all of them read it again.
pub(super) fn trusts(anchors: &[Anchor]) -> String {
    let all: Vec<_> = anchors.iter().map(|anchor| anchor.digest.as_str()).collect();
    super::digest(&all.join("\n"), 8)
}

/// The digest of an authority's Secret.
pub fn anchor_digest(trusted: &str, signs: &str) -> String {
    super::digest(&format!("{trusted}\n{signs}"), 8)
}

/// The phase that it is in, and what is done in it. `None` if authorities are not being replaced.
pub(super) fn rotate(seen: &Observed, decision: &mut Decision, now: Timestamp) -> Option<Rotation> {
    let rotation = phase(seen, decision, now);
    let asked = seen.spec.certificates.rotate_authorities.as_ref();
    let open = rotation.is_some() || (asked.is_some() && followed_with(seen, rotation.as_ref()).as_ref() != asked);
    // What is written in this pass is looked at in the next one, and nothing else may happen in between.
    if open && decision.waiting.is_empty() && (acts(decision) || rotation != seen.status.rotation) {
        let soon = now.checked_add(SOON).unwrap_or(now);
        decision.next = Some(decision.next.map_or(soon, |next| next.min(soon)));
    }
    rotation
}

fn acts(decision: &Decision) -> bool {
    !decision.apply.is_empty() || !decision.certificates.is_empty() || !decision.rotate.is_empty()
}

fn phase(seen: &Observed, decision: &mut Decision, now: Timestamp) -> Option<Rotation> {
    let asked = seen.spec.certificates.rotate_authorities.as_ref();
    let begin = |value: &String| Rotation { value: value.clone(), phase: RotationPhase::Trusting, since: now };
    let rests = decision.waiting.is_empty() && decision.certificates.is_empty() && decision.apply.is_empty();
    let Some(rotation) = &seen.status.rotation else {
        let new = asked.filter(|asked| seen.status.authorities.as_ref() != Some(asked));
        // Those of a new cluster are as new as can be.
        let created = seen.status.package_version.is_some();
        return new.filter(|_| created && rests && !seen.spec.paused).map(begin);
    };
    let (turn, left): (Turn, fn(&Anchor) -> bool) = match rotation.phase {
        RotationPhase::Trusting => (Turn::Trust, |anchor| !anchor.next),
        RotationPhase::Signing => (Turn::Sign, |anchor| anchor.next),
        RotationPhase::Dropping => (Turn::Drop, |anchor| anchor.trusted > 1),
    };
    decision.rotate =
        seen.anchors.iter().filter(|anchor| left(anchor)).map(|anchor| (anchor.authority, turn)).collect();
    if !rests || !decision.rotate.is_empty() || seen.spec.paused {
        return Some(rotation.clone());
    }
    let overlap = SignedDuration::try_from(seen.spec.certificates.overlap.0).unwrap_or_default();
    let until = rotation.since.checked_add(overlap).unwrap_or(Timestamp::MAX);
    let next = |phase| Some(Rotation { phase, since: now, ..rotation.clone() });
    match rotation.phase {
        RotationPhase::Dropping => None,
        _ if now < until => {
            decision.next = Some(decision.next.map_or(until, |next| next.min(until)));
            Some(rotation.clone())
        }
        phase => {
            decision.rotation_waits = waits(seen, decision, now);
            match (decision.rotation_waits.is_some(), phase) {
                (true, _) => Some(rotation.clone()),
                (false, RotationPhase::Trusting) => next(RotationPhase::Signing),
                (false, _) => next(RotationPhase::Dropping),
            }
        }
    }
}

/// Who outside the control plane does not have yet what is trusted now. Extensions come first: by them machines get it.
fn waits(seen: &Observed, decision: &mut Decision, now: Timestamp) -> Option<String> {
    // One that does not work, for whatever reason, holds nobody: a cluster without workers has no names either.
    let unready = || decision.extensions.statuses.iter().filter(|one| one.ready != Status::True);
    if unready().all(|one| one.reason == names::reasons::APPLYING)
        && let Some(one) = unready().next()
    {
        return Some(format!("the extension {} is being put in place: {}", one.name, one.message));
    }
    let of = trusts_of(seen.extensions.ca_bundle.as_deref()?);
    let known = seen.followers.as_ref().filter(|known| known.of == of);
    let why = match known.map(|known| &known.behind) {
        None => "machines are being asked".to_owned(),
        Some(Ok(behind)) if behind.is_empty() => return None,
        Some(Ok(behind)) => format!(
            "machines that do not have them yet: {}; see why with fleetwright why, or delete those that are lost",
            super::some(behind)
        ),
        Some(Err(why)) => format!("machines cannot be asked whether they have them: {why}"),
    };
    let again = known.map_or(now, |known| known.at.checked_add(ASK_AGAIN).unwrap_or(known.at));
    if again <= now {
        decision.follow = Some(Follow { of, servers: super::extensions::servers(seen) });
    }
    let again = if again > now { again } else { now.checked_add(ASK_AGAIN).unwrap_or(now) };
    decision.next = Some(decision.next.map_or(again, |next| next.min(again)));
    Some(why)
}

/// The value that is followed, once nothing is left to do for it.
pub(super) fn followed(seen: &Observed, decision: &Decision) -> Option<String> {
    followed_with(seen, decision.rotation.as_ref())
}

fn followed_with(seen: &Observed, after: Option<&Rotation>) -> Option<String> {
    match (seen.status.rotation.as_ref(), after) {
        (Some(done), None) => Some(done.value.clone()),
        (None, None) if seen.status.package_version.is_none() => seen.spec.certificates.rotate_authorities.clone(),
        _ => seen.status.authorities.clone(),
    }
}

/// What a person is told of it.
pub(super) fn told(rotation: &Rotation, waits: Option<&str>, overlap: fleetwright_api::Span) -> String {
    let at = rotation.since;
    let text = match rotation.phase {
        RotationPhase::Trusting => {
            format!("new authorities are trusted beside the old ones since {at}; they sign {overlap} later")
        }
        RotationPhase::Signing => {
            format!("new authorities sign since {at}; the old ones are trusted for {overlap} more")
        }
        RotationPhase::Dropping => format!("the old authorities are no longer trusted since {at}"),
    };
    match waits {
        Some(waits) => format!("{text}. Waiting: {waits}"),
        None => text,
    }
}

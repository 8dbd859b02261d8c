//! The owner mark: which Machine may change this host.
//!
//! # Guarantees
//! - The mark is on disk before the first step does anything else, and its removal is the last change of a clean-up.
//! - Of two claims at the same time one wins: the mark is read and written under the journal's lock.
//! - Changes are made only for the owner, in the epoch of the mark, with a fencing token that is not lower than the highest received.
//!
//! A mark that cannot be read belongs to an unknown owner: the host is only observed until a person adopts it.
//!
//! Helpers from before the owner mark compared a fencing token from the wall clock, in `journal/fence`. It is no longer read: tokens of the API
//! server are smaller. Once the host has an owner, that file holds the largest number, so that an old operator with its old helper is refused.

use std::io;

use fleetwright_wire::{Claim, Failure, FailureKind, HOME, Mark, Owner};

use crate::System;

const LIMIT: u64 = 64 << 10;

/// Path of the owner mark.
pub(crate) fn path() -> String {
    format!("{HOME}/owner.json")
}

fn no_mark(error: io::Error) -> Failure {
    Failure {
        kind: FailureKind::NoJournal,
        message: format!("cannot read or write {}, and without it no step is started: {error}", path()),
    }
}

/// The owner mark; none if the host has no owner.
pub(crate) fn mark(system: &dyn System) -> Result<Option<Mark>, Failure> {
    let damaged = || Mark {
        owner: Owner { name: "(the owner mark is damaged)".to_owned(), ..Owner::default() },
        ..Mark::default()
    };
    match system.read(&path(), LIMIT) {
        Ok(bytes) => Ok(bytes.map(|bytes| serde_json::from_slice(&bytes).unwrap_or_else(|_| damaged()))),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(Some(damaged())),
        Err(error) => Err(no_mark(error)),
    }
}

/// Admits a claim of the owner, and records its fencing token. To be called under the journal's lock.
pub(crate) fn admit(system: &mut dyn System, claim: &Claim) -> Result<(), Failure> {
    let Some(mark) = mark(system)? else { return Ok(()) };
    owns(&mark, claim)?;
    if claim.fence == 0 {
        return Ok(());
    }
    if claim.fence < mark.fence {
        return Err(Failure {
            kind: FailureKind::Fenced,
            message: format!("stale fencing token {}: the host has seen {} of a newer leader", claim.fence, mark.fence),
        });
    }
    if claim.fence > mark.fence {
        write(system, &Mark { fence: claim.fence, ..mark })?;
    }
    Ok(())
}

/// Whether the host once had an owner: the first mark wrote its number to the file in which earlier versions kept their fencing token.
pub(crate) fn was_owned(system: &dyn System) -> bool {
    system.read(&old_fence(), 64).ok().flatten().as_deref() == Some(never().as_bytes())
}

fn old_fence() -> String {
    format!("{HOME}/journal/fence")
}

/// A fencing token that no operator of an earlier version reaches.
fn never() -> String {
    format!("{}\n", u64::MAX)
}

/// As [`admit`], and a host without an owner is claimed.
pub(crate) fn claim(system: &mut dyn System, claim: &Claim) -> Result<(), Failure> {
    if mark(system)?.is_some() {
        return admit(system, claim);
    }
    if claim.epoch != 0 {
        return Err(Failure {
            kind: FailureKind::NotOwner,
            message: format!("host has no owner any more: observe it again before claiming it for {}", claim.owner),
        });
    }
    write(system, &Mark { owner: claim.owner.clone(), epoch: 1, fence: claim.fence })
}

/// Changes the owner of a host that belongs to exactly `from`, in the epoch of the claim, to the caller.
pub(crate) fn adopt(system: &mut dyn System, claim: &Claim, from: &Owner) -> Result<Mark, Failure> {
    let refused = |message| Err(Failure { kind: FailureKind::NotOwner, message });
    let adopted = Mark { owner: claim.owner.clone(), epoch: claim.epoch.saturating_add(1), fence: claim.fence };
    match mark(system)? {
        // The request is repeated because the answer was lost.
        Some(mark) if mark.owner.is(&claim.owner) && mark.epoch == adopted.epoch => Ok(mark),
        Some(mark) if mark.owner.is(from) && mark.epoch == claim.epoch => {
            write(system, &adopted)?;
            Ok(adopted)
        }
        Some(mark) => refused(format!("host is owned by {} (epoch {}), not by {from}", mark.owner, mark.epoch)),
        None => refused("host has no owner: claim it instead of adopting it".to_owned()),
    }
}

/// Removes the owner mark.
pub(crate) fn release(system: &mut dyn System) -> Result<(), Failure> {
    system.remove(&path()).map(drop).map_err(no_mark)
}

fn owns(mark: &Mark, claim: &Claim) -> Result<(), Failure> {
    // A caller that saw no owner may have claimed the host since, and lost the answer.
    if mark.owner.is(&claim.owner) && mark.epoch == claim.epoch.max(1) {
        return Ok(());
    }
    let message = if mark.owner.is(&claim.owner) {
        format!("host is in epoch {} of {}, not in epoch {}: observe it again", mark.epoch, mark.owner, claim.epoch)
    } else {
        format!("host is owned by {} (epoch {}), not by {}", mark.owner, mark.epoch, claim.owner)
    };
    Err(Failure { kind: FailureKind::NotOwner, message })
}

fn write(system: &mut dyn System, mark: &Mark) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(mark).map_err(|error| no_mark(io::Error::other(error)))?;
    if !was_owned(system) {
        system.write(&old_fence(), never().as_bytes(), 0o600, "root", "root").map_err(no_mark)?;
    }
    system.write(&path(), &bytes, 0o600, "root", "root").map_err(no_mark)?;
    // The journal and kept files may contain secrets: no other user may read them.
    if system.stat(HOME).map_err(no_mark)?.is_none_or(|home| home.mode != 0o700) {
        system.set_mode(HOME, 0o700, "root", "root").map_err(no_mark)?;
    }
    Ok(())
}

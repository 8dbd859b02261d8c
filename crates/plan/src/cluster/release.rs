//! Machines that are joined to a cluster that is to be deleted: whether they block the deletion, and which of them are released.

use std::fmt;

use fleetwright_api::{ClusterOnDelete, names};
use jiff::{SignedDuration, Timestamp};

use super::{counted, some};

/// Type of the Operation of the deletion of a cluster.
pub const CLUSTER_DELETE: &str = "ClusterDelete";
/// Type of the Operation that releases machines.
pub const RELEASE_MACHINES: &str = "ReleaseMachines";
/// Interval at which joined objects are listed.
const RELIST_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// Age at which a list is no longer acted on.
const JOINED_ANSWER_TTL: SignedDuration = SignedDuration::from_secs(30);
/// Number of failed attempts to list joined objects, and the minimum time that they span, after which API servers count as permanently unavailable: a
/// restart, or the drain of a node, takes less.
const DEAD_AFTER: (u32, SignedDuration) = (3, SignedDuration::from_mins(2));
/// One Operation deletes at most this many objects: a pass waits for it.
const BATCH: usize = 50;

/// An object of a business cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    pub namespace: String,
    pub name: String,
    /// Its uid: another object of that name is not deleted in its place.
    pub uid: String,
    /// Whether the object is marked for deletion.
    pub terminating: bool,
}

impl fmt::Display for ListedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Objects that are joined to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinedObjects {
    /// Machines of the cluster.
    pub machines: Vec<ListedObject>,
    /// Names of its Nodes.
    pub nodes: Vec<String>,
    /// Disruption budgets, if the cluster has Machines.
    pub budgets: Vec<ListedObject>,
}

/// Why the joined objects of a cluster are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListJoinedError {
    /// No API server of the cluster is ready.
    #[error("no API server is ready")]
    NoServer,
    /// The request to a ready API server, or the request to the meta cluster for its certificates, failed. That proves nothing about the cluster.
    #[error("{0}")]
    Failed(String),
}

/// Consecutive attempts that found no ready API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAttempts {
    /// Time of the first failed attempt.
    pub since: Timestamp,
    /// Number of attempts.
    pub times: u32,
}

/// Answer of a business cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedAnswer {
    /// Time of the answer.
    pub at: Timestamp,
    /// Value of `onDelete` at the time of the query.
    pub on_delete: ClusterOnDelete,
    /// The joined objects, or why they are unknown.
    pub found: Result<JoinedObjects, ListJoinedError>,
    /// Consecutive attempts up to this one that found no API server, if it found none.
    pub unanswered: Option<FailedAttempts>,
    /// Whether an Operation has released machines since, or failed to: only the next answer tells what is left.
    pub acted_on: bool,
}

impl JoinedAnswer {
    /// An answer that follows the previous one.
    pub fn after(
        before: Option<&Self>,
        at: Timestamp,
        on_delete: ClusterOnDelete,
        found: Result<JoinedObjects, ListJoinedError>,
    ) -> Self {
        let known = before.and_then(|before| before.unanswered).unwrap_or(FailedAttempts { since: at, times: 0 });
        let unanswered = matches!(found, Err(ListJoinedError::NoServer))
            .then(|| FailedAttempts { times: known.times.saturating_add(1), ..known });
        Self { at, on_delete, found, unanswered, acted_on: false }
    }

    /// The same answer while a restore keeps the API servers stopped: that none of them is ready then proves nothing.
    #[must_use]
    pub fn while_restoring(self) -> Self {
        Self { unanswered: None, ..self }
    }

    /// Whether no API server was ready for so long that no recovery is expected.
    fn is_dead(&self) -> bool {
        let (times, span) = DEAD_AFTER;
        self.unanswered.is_some_and(|none| none.times >= times && self.at.duration_since(none.since) >= span)
    }
}

/// Objects of a business cluster that are to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseBatch {
    /// Disruption budgets, which are deleted first: pods of the last machine cannot run elsewhere, so a budget could block the drain of the machine
    /// for ever.
    pub budgets: Vec<ListedObject>,
    pub machines: Vec<ListedObject>,
}

impl ReleaseBatch {
    /// Fingerprint of exactly these objects.
    pub fn fingerprint(&self) -> String {
        let uids: Vec<_> = self.budgets.iter().chain(&self.machines).map(|one| one.uid.as_str()).collect();
        super::digest(&uids.join("\n"), 16)
    }
}

/// Why the deletion of a cluster is blocked, and the next steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionHold {
    /// The reason, and what to do; `None` before the first answer.
    pub message: Option<String>,
    /// Whether machines or nodes are known to be joined.
    pub joined: bool,
    /// Whether to list the joined objects.
    pub ask: bool,
    /// Objects to delete.
    pub release: Option<ReleaseBatch>,
    /// Whether all joined objects are being deleted, so that none is left to release.
    pub released: bool,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

/// Whether machines block the deletion of a cluster; `None` if they do not.
pub fn deletion_hold(
    on_delete: ClusterOnDelete,
    answer: Option<&JoinedAnswer>,
    now: Timestamp,
) -> Option<DeletionHold> {
    let release = on_delete == ClusterOnDelete::ReleaseMachines;
    let Some(answer) = answer.filter(|answer| answer.on_delete == on_delete) else {
        return Some(DeletionHold { ask: true, ..DeletionHold::default() });
    };
    let fresh = now.duration_since(answer.at) < JOINED_ANSWER_TTL;
    let free = match &answer.found {
        Ok(joined) => joined.machines.is_empty() && (release || joined.nodes.is_empty()),
        // Machines are not released. That is right only if no control plane is left that could release them.
        Err(_) => release && answer.is_dead(),
    };
    if free {
        return if fresh { None } else { Some(DeletionHold { ask: true, ..DeletionHold::default() }) };
    }
    let message = match &answer.found {
        Ok(joined) if release => format!(
            "deletion is waiting for {} to be released, as spec.onDelete of each says: {}; if a host is lost, annotate its Machine with {}=true",
            counted(joined.machines.len(), "machine"),
            some(&shown(&joined.machines)),
            names::FORCE_RELEASE
        ),
        Ok(joined) => format!(
            "deletion is blocked: {} and {} are joined: {}. Remove them, or set spec.onDelete to ReleaseMachines; until then the cluster keeps running",
            counted(joined.machines.len(), "machine"),
            counted(joined.nodes.len(), "node"),
            if joined.machines.is_empty() { some(&joined.nodes) } else { some(&shown(&joined.machines)) }
        ),
        Err(why @ ListJoinedError::NoServer) if release => format!(
            "deletion is waiting: cannot list the joined machines: {why}. If this lasts {} minutes, the cluster is deleted and joined machines are left unchanged",
            DEAD_AFTER.1.as_mins()
        ),
        Err(why) if release => format!(
            "deletion is waiting: cannot list the joined machines: {why}. Retrying; the cluster is deleted without the list only if no API server is ready for {} minutes",
            DEAD_AFTER.1.as_mins()
        ),
        Err(why) => format!(
            "deletion is blocked: cannot list the joined machines: {why}. If the API servers do not come back, set spec.onDelete to ReleaseMachines to delete the cluster anyway; joined machines are then left unchanged"
        ),
    };
    let next = answer.at.checked_add(RELIST_AFTER).unwrap_or(now);
    let ask = now >= next;
    let listed = answer.found.as_ref().ok().filter(|_| release && fresh && !answer.acted_on);
    let left = listed.and_then(left);
    let released = listed.is_some() && left.is_none();
    Some(DeletionHold {
        message: Some(message),
        joined: answer.found.is_ok(),
        ask,
        release: left,
        released,
        next: Some(next).filter(|next| *next > now),
    })
}

/// The next objects to delete.
fn left(joined: &JoinedObjects) -> Option<ReleaseBatch> {
    let here = |all: &[ListedObject]| -> Vec<ListedObject> {
        all.iter().filter(|one| !one.terminating).take(BATCH).cloned().collect()
    };
    let (budgets, machines) = (here(&joined.budgets), here(&joined.machines));
    (!budgets.is_empty() || !machines.is_empty()).then_some(ReleaseBatch { budgets, machines })
}

fn shown(all: &[ListedObject]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn listed(name: &str, terminating: bool) -> ListedObject {
        let (namespace, uid) = ("default".to_owned(), format!("uid-{name}"));
        ListedObject { namespace, name: name.to_owned(), uid, terminating }
    }

    fn answer(on_delete: ClusterOnDelete, machines: &[ListedObject]) -> JoinedAnswer {
        let joined =
            JoinedObjects { machines: machines.to_vec(), nodes: Vec::new(), budgets: vec![listed("budget", false)] };
        JoinedAnswer::after(None, NOW, on_delete, Ok(joined))
    }

    #[test]
    fn an_error_never_counts_as_having_no_machines() {
        use ClusterOnDelete::{ReleaseMachines, WaitForMachines};
        let after = |seconds: i64| NOW + SignedDuration::from_secs(seconds);
        let failed = |why: &str| Err(ListJoinedError::Failed(why.to_owned()));
        // One attempt, whatever the reason.
        for found in
            [failed("cannot read the operator's certificate: 500"), failed("timed out"), Err(ListJoinedError::NoServer)]
        {
            let held =
                deletion_hold(ReleaseMachines, Some(&JoinedAnswer::after(None, NOW, ReleaseMachines, found)), NOW)
                    .unwrap();
            assert!(held.message.is_some() && held.release.is_none() && held.next.is_some(), "{held:?}");
            assert!(!held.joined, "{held:?}");
        }
        // Any number of attempts that failed while an API server is ready, or the meta cluster did not answer.
        let mut known = None;
        for attempt in 0..200 {
            let answer = JoinedAnswer::after(known.as_ref(), after(attempt * 10), ReleaseMachines, failed("no answer"));
            assert!(deletion_hold(ReleaseMachines, Some(&answer), after(attempt * 10)).is_some(), "attempt {attempt}");
            known = Some(answer);
        }
        // No API server is ready: several consecutive attempts over two minutes.
        let none = |known: Option<&JoinedAnswer>, at: i64, on_delete| {
            JoinedAnswer::after(known, after(at), on_delete, Err(ListJoinedError::NoServer))
        };
        let mut answer = none(known.as_ref(), 0, ReleaseMachines);
        assert!(
            deletion_hold(ReleaseMachines, Some(&answer), after(0)).is_some(),
            "what failed otherwise does not count"
        );
        for at in [10, 60, 119] {
            answer = none(Some(&answer), at, ReleaseMachines);
            assert!(deletion_hold(ReleaseMachines, Some(&answer), after(at)).is_some(), "after {at} s");
        }
        let dead = none(Some(&answer), 120, ReleaseMachines);
        assert_eq!(deletion_hold(ReleaseMachines, Some(&dead), after(120)), None);
        let restoring = dead.clone().while_restoring();
        assert!(deletion_hold(ReleaseMachines, Some(&restoring), after(120)).is_some(), "a restore stopped them");
        let waits = none(Some(&answer), 120, WaitForMachines);
        assert!(deletion_hold(WaitForMachines, Some(&waits), after(120)).is_some(), "that is for a person to decide");
        // Two attempts, however far apart: the operator may have been stopped in between.
        let two = none(Some(&none(None, 0, ReleaseMachines)), 600, ReleaseMachines);
        assert!(deletion_hold(ReleaseMachines, Some(&two), after(600)).is_some());
        // An answer or another error in between resets the count.
        let between = JoinedAnswer::after(Some(&answer), after(115), ReleaseMachines, failed("timed out"));
        let answer = none(Some(&between), 120, ReleaseMachines);
        assert_eq!(answer.unanswered, Some(FailedAttempts { since: after(120), times: 1 }));
    }

    #[test]
    fn machines_are_released_once_for_each_answer_and_only_if_that_is_declared() {
        use ClusterOnDelete::{ReleaseMachines, WaitForMachines};
        assert_eq!(
            deletion_hold(ReleaseMachines, None, NOW),
            Some(DeletionHold { ask: true, ..DeletionHold::default() })
        );
        let machines = [listed("a", false), listed("b", true)];
        let waits = deletion_hold(WaitForMachines, Some(&answer(WaitForMachines, &machines)), NOW).unwrap();
        assert_eq!((waits.release, waits.joined, waits.ask), (None, true, false));
        // After a change of `onDelete`, the objects are listed again.
        let changed = deletion_hold(ReleaseMachines, Some(&answer(WaitForMachines, &machines)), NOW).unwrap();
        assert!(changed.ask && changed.release.is_none());

        let mut known = answer(ReleaseMachines, &machines);
        let release = deletion_hold(ReleaseMachines, Some(&known), NOW).unwrap().release.unwrap();
        let names = |all: &[ListedObject]| all.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&release.machines), names(&release.budgets)),
            (vec!["a".to_owned()], vec!["budget".to_owned()])
        );
        let late = deletion_hold(ReleaseMachines, Some(&known), NOW + JOINED_ANSWER_TTL).unwrap();
        assert!(late.ask && late.release.is_none(), "what is old is not acted on");
        let none = answer(ReleaseMachines, &[]);
        assert_eq!(deletion_hold(ReleaseMachines, Some(&none), NOW), None);
        let stale = deletion_hold(ReleaseMachines, Some(&none), NOW + JOINED_ANSWER_TTL);
        assert_eq!(
            stale,
            Some(DeletionHold { ask: true, ..DeletionHold::default() }),
            "what was so before a pause may be so no more"
        );
        known.acted_on = true;
        assert_eq!(deletion_hold(ReleaseMachines, Some(&known), NOW).unwrap().release, None);
        let other = ReleaseBatch { machines: vec![listed("c", false)], ..release.clone() };
        assert_ne!(release.fingerprint(), other.fingerprint());
    }

    #[test]
    fn one_operation_is_of_a_bounded_number_of_machines() {
        let machines: Vec<_> = (0..BATCH + 7).map(|number| listed(&number.to_string(), false)).collect();
        let on_delete = ClusterOnDelete::ReleaseMachines;
        let release = deletion_hold(on_delete, Some(&answer(on_delete, &machines)), NOW).unwrap().release.unwrap();
        assert_eq!(release.machines.len(), BATCH);
    }
}

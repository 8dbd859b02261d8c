//! Machines that are joined to a cluster that is to be deleted: whether they hold it, and which of them are released.

use std::fmt;

use fleetwright_api::{ClusterOnDelete, names};
use jiff::{SignedDuration, Timestamp};

use super::some;

/// The type of the Operation that releases machines.
pub const RELEASE_MACHINES: &str = "ReleaseMachines";
/// What is joined is listed again after this long.
const LIST_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// What was listed this long ago is not acted on.
const FRESH: SignedDuration = SignedDuration::from_secs(30);
/// One Operation deletes at most this many objects: a pass waits for it.
const BATCH: usize = 50;

/// An object of a business cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: another object of that name is not deleted in its place.
    pub uid: String,
    /// It is marked for deletion already.
    pub terminating: bool,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is joined to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Its Machines.
    pub machines: Vec<Listed>,
    /// The names of its Nodes.
    pub nodes: Vec<String>,
    /// Its disruption budgets, if it has Machines.
    pub budgets: Vec<Listed>,
}

/// What a business cluster answered, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When it answered.
    pub at: Timestamp,
    /// What `onDelete` said when it was asked.
    pub on_delete: ClusterOnDelete,
    /// What is joined, or why it is not known.
    pub found: Result<Joined, String>,
    /// An Operation released machines since, or failed to: only another answer tells what is left.
    pub acted_on: bool,
}

/// Objects of a business cluster that are to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Disruption budgets, which go first: pods of the last machine cannot go anywhere else, and a budget that wants them to would keep the machine for ever.
    pub budgets: Vec<Listed>,
    /// Machines.
    pub machines: Vec<Listed>,
}

impl Release {
    /// Stands for these objects and no others.
    pub fn fingerprint(&self) -> String {
        let uids: Vec<_> = self.budgets.iter().chain(&self.machines).map(|one| one.uid.as_str()).collect();
        super::digest(&uids.join("\n"), 16)
    }
}

/// Why a cluster that is to be deleted stays for now, and what is done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Why, and what to do; none before there was an answer.
    pub message: Option<String>,
    /// List what is joined.
    pub ask: bool,
    /// Delete these.
    pub release: Option<Release>,
    /// When to look again.
    pub next: Option<Timestamp>,
}

/// Whether machines hold a cluster that is to be deleted; none if nothing does.
pub fn hold(on_delete: ClusterOnDelete, answer: Option<&Answer>, now: Timestamp) -> Option<Hold> {
    let release = on_delete == ClusterOnDelete::ReleaseMachines;
    let Some(answer) = answer.filter(|answer| answer.on_delete == on_delete) else {
        return Some(Hold { ask: true, ..Hold::default() });
    };
    let fresh = now.duration_since(answer.at) < FRESH;
    let free = match &answer.found {
        Ok(joined) => joined.machines.is_empty() && (release || joined.nodes.is_empty()),
        // Machines are left as they are.
        Err(_) => release,
    };
    if free {
        return if fresh { None } else { Some(Hold { ask: true, ..Hold::default() }) };
    }
    let message = match &answer.found {
        Ok(joined) if release => format!(
            "it is marked for deletion, and {} must be let go first, as its own onDelete says: {}; one whose host is gone goes with the annotation {}=true",
            count(joined.machines.len(), "machine"),
            some(&shown(&joined.machines)),
            names::LET_GO
        ),
        Ok(joined) => format!(
            "it is marked for deletion, but {} and {} are joined: {}. Remove them, or set spec.onDelete to ReleaseMachines to let them go; until then it runs on",
            count(joined.machines.len(), "machine"),
            count(joined.nodes.len(), "node"),
            if joined.machines.is_empty() { some(&joined.nodes) } else { some(&shown(&joined.machines)) }
        ),
        Err(why) => format!(
            "it is marked for deletion, but nobody can tell whether machines are joined: {why}. Set spec.onDelete to ReleaseMachines to delete it all the same; machines that are joined are then left as they are"
        ),
    };
    let next = answer.at.checked_add(LIST_AGAIN).unwrap_or(now);
    let ask = now >= next;
    let left = answer.found.as_ref().ok().filter(|_| release && fresh && !answer.acted_on).and_then(left);
    Some(Hold { message: Some(message), ask, release: left, next: Some(next).filter(|next| *next > now) })
}

/// What is to be deleted next.
fn left(joined: &Joined) -> Option<Release> {
    let here =
        |all: &[Listed]| -> Vec<Listed> { all.iter().filter(|one| !one.terminating).take(BATCH).cloned().collect() };
    let (budgets, machines) = (here(&joined.budgets), here(&joined.machines));
    (!budgets.is_empty() || !machines.is_empty()).then_some(Release { budgets, machines })
}

fn shown(all: &[Listed]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn listed(name: &str, terminating: bool) -> Listed {
        let (namespace, uid) = ("default".to_owned(), format!("uid-{name}"));
        Listed { namespace, name: name.to_owned(), uid, terminating }
    }

    fn answer(on_delete: ClusterOnDelete, machines: &[Listed]) -> Answer {
        let joined = Joined { machines: machines.to_vec(), nodes: Vec::new(), budgets: vec![listed("budget", false)] };
        Answer { at: NOW, on_delete, found: Ok(joined), acted_on: false }
    }

    #[test]
    fn machines_are_released_once_for_each_answer_and_only_if_that_is_declared() {
        use ClusterOnDelete::{ReleaseMachines, WaitForMachines};
        assert_eq!(hold(ReleaseMachines, None, NOW), Some(Hold { ask: true, ..Hold::default() }));
        let machines = [listed("a", false), listed("b", true)];
        let waits = hold(WaitForMachines, Some(&answer(WaitForMachines, &machines)), NOW).unwrap();
        assert_eq!((waits.release, waits.ask), (None, false));
        // What was listed before somebody changed onDelete is listed again.
        let changed = hold(ReleaseMachines, Some(&answer(WaitForMachines, &machines)), NOW).unwrap();
        assert!(changed.ask && changed.release.is_none());

        let mut known = answer(ReleaseMachines, &machines);
        let release = hold(ReleaseMachines, Some(&known), NOW).unwrap().release.unwrap();
        let names = |all: &[Listed]| all.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&release.machines), names(&release.budgets)),
            (vec!["a".to_owned()], vec!["budget".to_owned()])
        );
        let late = hold(ReleaseMachines, Some(&known), NOW + FRESH).unwrap();
        assert!(late.ask && late.release.is_none(), "what is old is not acted on");
        let none = answer(ReleaseMachines, &[]);
        assert_eq!(hold(ReleaseMachines, Some(&none), NOW), None);
        let stale = hold(ReleaseMachines, Some(&none), NOW + FRESH);
        assert_eq!(stale, Some(Hold { ask: true, ..Hold::default() }), "what was so before a pause may be so no more");
        known.acted_on = true;
        assert_eq!(hold(ReleaseMachines, Some(&known), NOW).unwrap().release, None);
        let other = Release { machines: vec![listed("c", false)], ..release.clone() };
        assert_ne!(release.fingerprint(), other.fingerprint());
    }

    #[test]
    fn one_operation_is_of_a_bounded_number_of_machines() {
        let machines: Vec<_> = (0..BATCH + 7).map(|number| listed(&number.to_string(), false)).collect();
        let on_delete = ClusterOnDelete::ReleaseMachines;
        let release = hold(on_delete, Some(&answer(on_delete, &machines)), NOW).unwrap().release.unwrap();
        assert_eq!(release.machines.len(), BATCH);
    }
}

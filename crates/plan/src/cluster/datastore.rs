//! The members of etcd: whether they can decide anything, and which of them has lost what it knew.

use std::time::Duration;

use fleetwright_api::{Condition, ControlPlaneComponent, Status, condition, names};
use jiff::{SignedDuration, Timestamp};

use super::Names;
use super::decide::{Decision, Replica, Seen};

/// A member that could not be replaced is tried again after this long.
const MEND_AGAIN: Duration = Duration::from_secs(10);
/// What the others agreed to is done within this time, or they are asked again: the member may have been well meanwhile.
const AGREED: Duration = Duration::from_secs(60);
/// Members that are only slow to start are given so long before their quorum counts as lost.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// A member that ended so often, while others with the same template are well, does not get over what is on its volume.
const TOO_OFTEN: i32 = 5;

/// What etcd says at its end when its volume does not hold what the other members remember of it, or nothing that can be read. The last words of a
/// process are cut from the front, so that the place in a trace tells as much as the sentence before it.
const LOST: [&str; 14] = [
    "has already been bootstrapped",
    "tocommit(",
    "out of range [lastIndex(",
    "(*raftLog).commitTo",
    "permanently removed from the cluster",
    "unmatched member while checking PeerURLs",
    "member count is unequal",
    "crc mismatch",
    "wal: file not found",
    "walpb: ",
    "failed to recover v3 backend from snapshot",
    "invalid database",
    "checksum error",
    "failed to find database snapshot file",
];

/// Whether these last words of a member say that it has lost what it knew.
pub fn lost(said: &str) -> bool {
    LOST.iter().any(|word| said.contains(word))
}

/// How many members are well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// So many are ready.
    pub ready: usize,
    /// Of so many.
    pub members: usize,
    /// The cluster was made once, and fewer than a majority are ready: nothing can be written, and nothing must be made worse.
    pub missing: bool,
    /// And it does not come back by itself.
    pub lost: bool,
}

impl Quorum {
    /// So many must be ready.
    pub fn needed(&self) -> usize {
        self.members / 2 + 1
    }
}

/// How many members are well; none where etcd is somebody else's.
pub fn quorum(seen: &Seen<'_>, now: Timestamp) -> Option<Quorum> {
    let members = usize::try_from(seen.spec.datastore.etcd.as_ref()?.members).unwrap_or(usize::MAX);
    let replicas = members_of(seen);
    let ready = replicas.iter().filter(|replica| replica.ready && !replica.ending).count();
    let needed = members / 2 + 1;
    let missing = seen.status.package_version.is_some() && ready < needed;
    // Those that begin, and those that are about to be made, may yet be well.
    let begins = |replica: &&Replica| {
        let waits = ["", "ContainerCreating", "PodInitializing"];
        !replica.ready && replica.restarts == 0 && (replica.ending || waits.contains(&replica.message.as_str()))
    };
    let coming = replicas.iter().filter(begins).count() + members.saturating_sub(replicas.len());
    let over = unhealthy_since(seen).is_some_and(|since| now.duration_since(since) >= PATIENCE);
    Some(Quorum { ready, members, missing, lost: missing && (ready + coming < needed || over) })
}

fn members_of<'a>(seen: &'a Seen<'_>) -> &'a [Replica] {
    seen.workloads.get(&ControlPlaneComponent::Etcd).map(|workload| &workload.replicas[..]).unwrap_or_default()
}

fn unhealthy_since(seen: &Seen<'_>) -> Option<Timestamp> {
    let known = condition(&seen.status.conditions, names::DATASTORE_HEALTHY)?;
    (known.status == Status::False).then_some(known.last_transition_time)
}

/// A member that seems to have lost what it knew, and who could tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The name of its pod, which is its own.
    pub name: String,
    /// The uid of its pod.
    pub uid: String,
    /// Where the others find it.
    pub peer_url: String,
    /// How many members there should be.
    pub members: usize,
    /// The addresses of those that are well.
    pub others: Vec<String>,
}

impl Suspect {
    /// The claim of its volume.
    pub fn claim(&self) -> String {
        claim(&self.name)
    }
}

/// The claim of the volume of a member.
pub fn claim(member: &str) -> String {
    format!("data-{member}")
}

/// What became of the attempt to have a member replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mending {
    /// When.
    pub at: Timestamp,
    /// A place is kept for it, and it may begin anew; or why not.
    pub outcome: Result<(), String>,
}

/// A member of etcd, as the others know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: String,
    /// Empty until it has started for the first time.
    pub name: String,
    /// Where the others find it.
    pub peer_urls: Vec<String>,
}

/// What the members that are well say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// All members.
    pub members: Vec<Member>,
    /// The numbers of those that answered, and whom each takes for the leader.
    pub answered: Vec<(String, String)>,
}

/// What is next for a member that has lost what it knew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mend {
    /// The others forget it.
    Remove(String),
    /// The others keep a place for a new one.
    Add,
    /// A place is kept for it: it may begin anew, without what it has.
    Begin,
    /// It would cost the quorum, or nobody knows.
    Leave(String),
}

/// What is next for that member. Each answer is one step: when it is done, the others are asked again.
pub fn mend(told: &Told, suspect: &Suspect) -> Mend {
    let own = told.members.iter().find(|member| member.peer_urls.contains(&suspect.peer_url));
    let others = told.members.iter().filter(|member| own.is_none_or(|own| own.id != member.id)).count();
    let leader = told.answered.first().map(|(_, leader)| leader.as_str()).unwrap_or_default();
    let agree = told.answered.iter().filter(|(id, of)| {
        let known = told.members.iter().any(|member| member.id == *id);
        known && of == leader && own.is_none_or(|own| own.id != *id)
    });
    let (agree, needed) = (agree.count(), suspect.members / 2 + 1);
    let led = told.members.iter().any(|member| member.id == leader) && own.is_none_or(|own| own.id != leader);
    if !led || agree < needed {
        return Mend::Leave(format!(
            "{agree} of its {} other members agree on a leader, and {needed} must, so that nothing is lost with it",
            suspect.members.saturating_sub(1)
        ));
    }
    // With another number of members, one more or one less might take the quorum away.
    if others + 1 != suspect.members {
        return Mend::Leave(format!("etcd knows {others} other members, and there should be {}", suspect.members - 1));
    }
    match own {
        None => Mend::Add,
        Some(own) if own.name.is_empty() => Mend::Begin,
        Some(own) => Mend::Remove(own.id.clone()),
    }
}

/// The member that seems to have lost what it knew, if there are others who could tell. One at a time.
fn suspect(seen: &Seen<'_>) -> Option<Suspect> {
    seen.status.package_version.as_ref()?;
    let members = usize::try_from(seen.spec.datastore.etcd.as_ref()?.members).unwrap_or(usize::MAX);
    let replicas = members_of(seen);
    let well = |replica: &&Replica| replica.ready && !replica.ending;
    let others: Vec<&Replica> = replicas.iter().filter(well).collect();
    if others.len() < members / 2 + 1 {
        return None;
    }
    let sick = replicas.iter().find(|replica| {
        let alike = others.iter().filter(|other| other.template == replica.template).count() > members / 2;
        let ended = replica.restarts > 0 && (replica.lost || (replica.restarts >= TOO_OFTEN && alike));
        !replica.ready && !replica.ending && ended
    })?;
    Some(Suspect {
        name: sick.name.clone(),
        uid: sick.uid.clone(),
        peer_url: peer_url(seen.names, &sick.name),
        members,
        others: others.iter().filter_map(|other| other.ip.clone()).collect(),
    })
}

fn peer_url(names: &Names, member: &str) -> String {
    format!("https://{member}.etcd.{}.svc:2380", names.namespace)
}

/// What is to be done about members: one that has lost what it knew is replaced, if the others are asked and agree.
pub(super) fn keep(seen: &Seen<'_>, decision: &mut Decision, now: Timestamp) {
    if quorum(seen, now).is_some_and(|quorum| quorum.missing && !quorum.lost) {
        let since = unhealthy_since(seen).unwrap_or(now);
        let over = since.checked_add(PATIENCE).unwrap_or(now);
        decision.next = decision.next.into_iter().chain([over]).min();
    }
    let Some(suspect) = suspect(seen) else { return };
    match seen.mendings.get(&suspect.uid) {
        Some(Mending { at, outcome: Ok(()) }) if at.checked_add(AGREED).is_ok_and(|until| until > now) => {
            decision.anew = members_of(seen).iter().find(|replica| replica.uid == suspect.uid).cloned();
        }
        Some(Mending { at, outcome: Err(_) }) if at.checked_add(MEND_AGAIN).is_ok_and(|again| again > now) => {
            decision.next = decision.next.into_iter().chain(at.checked_add(MEND_AGAIN).ok()).min();
        }
        _ => decision.mend = Some(suspect),
    }
}

/// Whether the datastore is well, and what to do if nobody else does anything.
pub(super) fn healthy(seen: &Seen<'_>, now: Timestamp) -> Condition {
    let said = |status, reason, message| super::status::said(names::DATASTORE_HEALTHY, status, reason, message);
    let Some(quorum) = quorum(seen, now) else {
        return said(Status::Unknown, names::reasons::UNREACHABLE, "it is run by somebody else".to_owned());
    };
    let count = format!("{} of {} members are ready", quorum.ready, quorum.members);
    if super::restore::replaces(seen) {
        return said(Status::False, names::reasons::RESTORING, format!("{count}: a snapshot is restored"));
    }
    if quorum.lost {
        let snapshot = match &seen.status.last_snapshot {
            Some(last) => format!("set spec.restore.snapshot to {}, which has the data of {}", last.name, last.at),
            None => "there is no snapshot that spec.restore could bring back".to_owned(),
        };
        let message = format!(
            "{count}, and {} must be: nothing can be written, and nothing is changed until they are; bring their pods and volumes back, or, if these are lost, {snapshot}",
            quorum.needed()
        );
        return said(Status::False, names::reasons::QUORUM_LOST, message);
    }
    if quorum.ready >= quorum.members {
        return said(Status::True, names::reasons::ALL_MEMBERS_HEALTHY, count);
    }
    let message = match suspect(seen) {
        None => count,
        Some(suspect) => {
            let mending = seen.mendings.get(&suspect.uid).and_then(|mending| mending.outcome.as_ref().err());
            let why = mending.map_or("is being replaced".to_owned(), |why| format!("is not replaced yet: {why}"));
            format!("{count}; {} has lost what it knew and {why}", suspect.name)
        }
    };
    said(Status::False, names::reasons::MEMBERS_MISSING, message)
}

/// Why no change of version begins now: it would need what the datastore cannot give.
pub(super) fn refused(seen: &Seen<'_>, target: &str, now: Timestamp) -> Option<(&'static str, String)> {
    let quorum = quorum(seen, now).filter(|quorum| quorum.missing)?;
    let begun = seen.workloads.values().any(|workload| workload.package.as_deref() == Some(target));
    (!begun).then(|| {
        let why = format!(
            "{} of {} members of etcd are ready, and {} must be before anything is changed",
            quorum.ready,
            quorum.members,
            quorum.needed()
        );
        (names::reasons::QUORUM_LOST, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u32, name: &str) -> Member {
        let peer_urls = vec![format!("https://etcd-{number}.etcd.fleet-pay.svc:2380")];
        Member { id: format!("{}", 100 + number), name: name.to_owned(), peer_urls }
    }

    fn suspect() -> Suspect {
        Suspect {
            name: "etcd-2".to_owned(),
            uid: "uid".to_owned(),
            peer_url: "https://etcd-2.etcd.fleet-pay.svc:2380".to_owned(),
            members: 3,
            others: Vec::new(),
        }
    }

    fn told(members: Vec<Member>, answered: &[(&str, &str)]) -> Told {
        let answered = answered.iter().map(|(id, leader)| ((*id).to_owned(), (*leader).to_owned())).collect();
        Told { members, answered }
    }

    #[test]
    fn a_member_is_removed_then_added_and_only_then_begins_anew() {
        let both = [("100", "100"), ("101", "100")];
        let others = || vec![member(0, "etcd-0"), member(1, "etcd-1")];
        let with = |more: Member| others().into_iter().chain([more]).collect::<Vec<_>>();
        assert_eq!(mend(&told(with(member(2, "etcd-2")), &both), &suspect()), Mend::Remove("102".to_owned()));
        assert_eq!(mend(&told(others(), &both), &suspect()), Mend::Add);
        assert_eq!(mend(&told(with(member(2, "")), &both), &suspect()), Mend::Begin);
    }

    #[test]
    fn nothing_is_done_that_could_cost_the_quorum() {
        let all = || vec![member(0, "etcd-0"), member(1, "etcd-1"), member(2, "etcd-2")];
        let left = |told: &Told| matches!(mend(told, &suspect()), Mend::Leave(_));
        assert!(left(&told(all(), &[("100", "100")])), "one alone");
        assert!(left(&told(all(), &[("100", "100"), ("101", "101")])), "they do not agree");
        assert!(left(&told(all(), &[("100", "0"), ("101", "0")])), "nobody leads");
        assert!(left(&told(all(), &[("100", "102"), ("101", "102")])), "it leads them itself");
        assert!(left(&told(all(), &[("100", "100"), ("102", "100")])), "its own word does not count");
        assert!(left(&told(vec![member(0, "etcd-0")], &[("100", "100"), ("101", "100")])), "there are too few");
        assert!(left(&told(Vec::new(), &[])));
    }

    #[test]
    fn the_last_words_of_members_tell_what_they_lost() {
        assert!(lost(
            "panic: tocommit(5) is out of range [lastIndex(0)]. Was the raft log corrupted, truncated, or lost?"
        ));
        assert!(lost("member 8e9e05c52164694d has already been bootstrapped"));
        assert!(!lost("listen tcp 0.0.0.0:2379: bind: address already in use"));
        assert!(!lost("cannot fetch cluster info from peer urls: could not retrieve cluster information"));
    }
}

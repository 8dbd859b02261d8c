//! The members of etcd: whether they have a quorum, and which of them has lost its data.

use std::time::Duration;

use fleetwright_api::{
    ClusterSpec, ClusterStatus, Condition, ControlPlaneComponent, EtcdDatastore, EtcdStatus, MemberChangeType,
    RestoreStage, Status, condition, names,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::certificates::RenewalReason;
use super::components::Components;
use super::counted;
use super::decide::Decision;
use super::etcd_data;
use super::members::{self, MemberInputs, NextMemberStep, VolumeClaim};
use super::objects::Kind;
use super::observed::{Observed, Replica};
use super::restore;
use super::step::package_missing_message;

/// Answers of members are valid for this long; then they are queried again.
const MEMBER_ANSWER_TTL: Duration = Duration::from_secs(5);
/// Members are asked this often whether one that is not ready is a learner, while another step waits for it.
const LEARNER_QUERY_INTERVAL: Duration = Duration::from_secs(30);
/// Grace period for members that are slow to start, before their quorum counts as lost.
const QUORUM_LOST_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// A member with this restart count that was not ready in between, while others with the same template are ready, cannot start from its volume.
/// (Restarts are counted over the life of a pod: those of a member that was ready until its last crash are older.)
const CRASH_LOOP_RESTARTS: i32 = 5;

/// Last log messages of an etcd whose volume lacks data that the other members remember of it, or has no readable data. The termination message of a
/// process is cut from the front, so a function in the stack trace proves as much as the message before it.
const DATA_LOSS_MESSAGES: [&str; 14] = [
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

/// Whether this termination message of a member shows that the member lost its data.
pub fn is_data_loss(said: &str) -> bool {
    DATA_LOSS_MESSAGES.iter().any(|word| said.contains(word))
}

/// Health of the quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Number of ready members.
    pub ready: usize,
    /// Number of voting members.
    pub members: usize,
    /// The cluster exists, and fewer than a majority are ready: etcd accepts no writes, and no step may make it worse.
    pub missing: bool,
    /// The quorum is missing and does not recover by itself.
    pub lost: bool,
}

impl Quorum {
    /// Number of members that must be ready.
    pub fn needed(&self) -> usize {
        self.members / 2 + 1
    }
}

/// Health of the quorum; `None` for an external etcd.
pub fn quorum(seen: &Observed, now: Timestamp) -> Option<Quorum> {
    seen.spec.datastore.etcd.as_ref()?;
    let record = record(seen);
    let mut members = usize::try_from(record.members).unwrap_or(usize::MAX);
    // A learner has no vote yet, and a removed member loses its vote.
    let apart = record
        .change
        .as_ref()
        .filter(|change| matches!(change.type_, MemberChangeType::Add | MemberChangeType::Remove));
    let apart = apart.map(|change| change.member.as_str());
    let replicas: Vec<_> = members_of(seen).iter().filter(|replica| Some(replica.name.as_str()) != apart).collect();
    if apart.is_some_and(|apart| (0..record.members).any(|number| apart == format!("etcd-{number}"))) {
        members -= 1;
    }
    let ready = replicas.iter().filter(|replica| replica.ready && !replica.ending).count();
    let needed = members / 2 + 1;
    let missing = seen.status.package_version.is_some() && ready < needed;
    // Members that are starting, and members that are about to be created, may still become ready.
    let begins = |replica: &&&Replica| {
        let waits = ["", "ContainerCreating", "PodInitializing"];
        !replica.ready && replica.restarts == 0 && (replica.ending || waits.contains(&replica.message.as_str()))
    };
    let coming = replicas.iter().filter(begins).count() + members.saturating_sub(replicas.len());
    let over = unhealthy_since(seen).is_some_and(|since| now.duration_since(since) >= QUORUM_LOST_AFTER);
    Some(Quorum { ready, members, missing, lost: missing && (ready + coming < needed || over) })
}

fn members_of(seen: &Observed) -> &[Replica] {
    seen.workloads.get(&ControlPlaneComponent::Etcd).map(|workload| &workload.replicas[..]).unwrap_or_default()
}

fn unhealthy_since(seen: &Observed) -> Option<Timestamp> {
    let known = condition(&seen.status.conditions, names::DATASTORE_HEALTHY)?;
    (known.status == Status::False).then_some(known.last_transition_time)
}

/// The number of members that run, and the member change in progress: as recorded, or, without a record, from the StatefulSet.
pub fn recorded(spec: &ClusterSpec, status: &ClusterStatus, set: Option<&Value>) -> EtcdStatus {
    let declared = spec.datastore.etcd.as_ref().map_or(0, |etcd| etcd.members);
    if let Some(known) = &status.etcd {
        return known.clone();
    }
    let live = set.and_then(|set| set["spec"]["replicas"].as_u64()).and_then(|count| u32::try_from(count).ok());
    // A StatefulSet that is scaled to zero does not tell the number of members.
    let members = live.filter(|count| *count > 0).unwrap_or(declared);
    EtcdStatus { members, serving: members, ..EtcdStatus::default() }
}

/// The same, of an observed cluster.
pub(super) fn record(seen: &Observed) -> EtcdStatus {
    match &seen.status.etcd {
        Some(known) => known.clone(),
        None => {
            let set = seen.object(Kind::StatefulSet, ControlPlaneComponent::Etcd.binary());
            recorded(&seen.spec, &seen.status, set.as_ref())
        }
    }
}

/// The member that probably lost its data, if there are others that can confirm it. One at a time.
fn suspected_data_loss(seen: &Observed) -> Option<&Replica> {
    seen.status.package_version.as_ref()?;
    seen.spec.datastore.etcd.as_ref()?;
    let members = usize::try_from(record(seen).members).unwrap_or(usize::MAX);
    let replicas = members_of(seen);
    let well = |replica: &&Replica| replica.ready && !replica.ending;
    let others: Vec<&Replica> = replicas.iter().filter(well).collect();
    if others.len() < members / 2 + 1 {
        return None;
    }
    replicas.iter().find(|replica| {
        let alike = others.iter().filter(|other| other.template == replica.template).count() > members / 2;
        let too_often = replica.looping && !replica.was_ready && replica.restarts >= CRASH_LOOP_RESTARTS && alike;
        !replica.ready && !replica.ending && replica.restarts > 0 && (replica.lost || too_often)
    })
}

/// Whether the volume claim of a member is being deleted while its pod runs: the claim is removed when that pod ends, and the data with it.
pub(super) fn claim_ends(seen: &Observed, replica: &Replica) -> bool {
    let name = members::claim(&replica.name);
    !replica.ending && seen.claims.iter().any(|claim| claim.ending && claim.name == name)
}

/// Steps for the members of etcd.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Members {
    /// Record of the members for the status; `None` for an external etcd.
    pub record: Option<EtcdStatus>,
    /// The next step towards the declared members.
    pub step: NextMemberStep,
    /// Whether the members are queried beside that step.
    pub query: bool,
    /// Volume claims to expand, and their new size.
    pub expand: Vec<(VolumeClaim, String)>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

/// Decides the steps for the members of a cluster that is changed to that package version: the number of members follows the spec, one at a time, and
/// a member that lost its data is replaced.
pub(super) fn keep(seen: &Observed, package: &str, components: &Components, now: Timestamp) -> Members {
    let mut members = Members::default();
    let Some(etcd) = &seen.spec.datastore.etcd else { return members };
    let record = record(seen);
    members.record = Some(record.clone());
    let quorum = quorum(seen, now);
    if quorum.is_some_and(|quorum| quorum.missing && !quorum.lost) {
        let since = unhealthy_since(seen).unwrap_or(now);
        let over = since.checked_add(QUORUM_LOST_AFTER).unwrap_or(now);
        members.next = Some(over);
    }
    // A member that loses its data while a restore starts the control plane is replaced, or the restore would never end. Nothing else about members
    // changes then.
    let starts = restore::stage(seen) == Some(RestoreStage::Starting);
    if restore::takes_over(seen) && !starts || seen.spec.paused {
        return members;
    }
    if seen.status.package_version.is_none() {
        if etcd.members != record.members {
            let why = "members are not changed before the cluster was ready once".to_owned();
            members.step = NextMemberStep::Refuse(why);
        }
        return members;
    }
    // A member that is removed needs no larger volume. If members are not ready, full volumes may be the cause, and the removal waits for the others.
    let ready = quorum.is_some_and(|quorum| quorum.ready >= quorum.members);
    let kept = if ready { record.members.min(etcd.members) } else { record.members };
    let small = undersized_claims(seen, kept).filter(|claim| claim.expandable && !claim.ending && !starts);
    members.expand = small.map(|claim| (claim.clone(), etcd.storage.size.0.clone())).collect();
    let asked =
        seen.members.as_ref().filter(|asked| asked.at.checked_add(MEMBER_ANSWER_TTL).is_ok_and(|until| until > now));
    let wanted = if starts { record.members } else { etcd.members };
    let busy = if starts { Some("waiting for the restore".to_owned()) } else { busy(seen, package, components) };
    let member_list = asked.and_then(|asked| asked.outcome.as_ref().ok());
    let facts = MemberInputs { member_list, busy, ..inputs(seen, etcd, record, wanted) };
    members.step = match (members::next(&facts, now), asked.map(|asked| &asked.outcome)) {
        (NextMemberStep::QueryMembers, Some(Err(why))) => NextMemberStep::Wait(why.clone()),
        (next, _) => next,
    };
    if facts.asks_for_learner() {
        let again = seen.members.as_ref().and_then(|asked| asked.at.checked_add(LEARNER_QUERY_INTERVAL).ok());
        match again.filter(|again| *again > now) {
            Some(again) => members.next = members.next.into_iter().chain([again]).min(),
            None => members.query = true,
        }
    }
    if matches!(members.step, NextMemberStep::Wait(_) | NextMemberStep::Refuse(_)) {
        // No watch event tells when the members agree again, or a learner has caught up.
        let again = asked.map_or(now, |asked| asked.at).checked_add(MEMBER_ANSWER_TTL).ok();
        members.next = members.next.into_iter().chain(again).min();
    }
    members
}

/// Inputs for the next step without a member list, if that many members are wanted.
fn inputs<'a>(seen: &'a Observed, etcd: &'a EtcdDatastore, record: EtcdStatus, wanted: u32) -> MemberInputs<'a> {
    MemberInputs {
        names: &seen.names,
        wanted,
        record,
        pods: members_of(seen),
        claims: &seen.claims,
        lost: suspected_data_loss(seen),
        size: &etcd.storage.size.0,
        member_list: None,
        busy: None,
    }
}

/// The member change in progress, or else the one that starts next, whether or not it may start now.
pub(super) fn next_change(seen: &Observed) -> Option<(MemberChangeType, String)> {
    let etcd = seen.spec.datastore.etcd.as_ref()?;
    let record = record(seen);
    if let Some(change) = record.change {
        return Some((change.type_, change.member));
    }
    inputs(seen, etcd, record, etcd.members).candidate()
}

/// The volume claims of that many members that request less than the declared size.
pub(super) fn undersized_claims(seen: &Observed, members: u32) -> impl Iterator<Item = &VolumeClaim> {
    let size = seen.spec.datastore.etcd.as_ref().map_or("", |etcd| etcd.storage.size.0.as_str());
    let ours =
        move |claim: &&VolumeClaim| (0..members).any(|number| claim.name == members::claim(&format!("etcd-{number}")));
    seen.claims.iter().filter(ours).filter(move |claim| claim.is_below(size))
}

/// Why no member change starts now: pods of etcd are replaced for another reason.
fn busy(seen: &Observed, package: &str, components: &Components) -> Option<String> {
    if let Some(why) = &components.held {
        return Some(why.clone());
    }
    if seen.due.iter().any(|(_, why)| *why == RenewalReason::Missing) {
        return Some("waiting for missing Secrets of the control plane".to_owned());
    }
    if components.orphan.is_some() {
        return Some("waiting for the StatefulSet of etcd to get its new volume claim template".to_owned());
    }
    let Some(template) = components.templates.get(&ControlPlaneComponent::Etcd) else {
        return Some(package_missing_message(package));
    };
    let mut old = members_of(seen).iter().filter(|replica| replica.template.as_ref() != Some(template)).peekable();
    let is_current = old.peek().is_none();
    let restarted = old.find(|replica| !claim_ends(seen, replica));
    // A member whose volume would be deleted with its pod is not restarted: it is replaced, with the new template. A change of version or a rotation
    // that restarts members waits for that.
    if !is_current && restarted.is_none() {
        return None;
    }
    if seen.status.package_version.as_deref() != Some(package) {
        return Some(format!("waiting for the change to {package}"));
    }
    if seen.status.rotation.is_some() {
        return Some("waiting for the rotation of authorities".to_owned());
    }
    restarted.map(|old| format!("waiting for {} to restart with its new template", old.name))
}

/// Why the members are not as declared; `None` if they are.
pub(super) fn unsettled(record: Option<&EtcdStatus>, step: &NextMemberStep, declared: u32) -> Option<String> {
    let record = record?;
    let change = record.change.as_ref();
    let what = match change {
        Some(change) => {
            let verb = match change.type_ {
                MemberChangeType::Add => "is being added",
                MemberChangeType::Remove => "is being removed",
                MemberChangeType::Replace | MemberChangeType::RecreateVolume => "is being replaced",
            };
            format!("etcd member {} {verb}", change.member)
        }
        None if record.members != declared => {
            format!("etcd has {}, declared: {declared}", counted(record.members, "member"))
        }
        None if matches!(step, NextMemberStep::Refuse(_)) => "etcd members are not changed".to_owned(),
        None => return None,
    };
    Some(match step {
        NextMemberStep::Wait(why) | NextMemberStep::Refuse(why) => format!("{what}: {why}"),
        _ => what,
    })
}

/// The condition whether the members are as declared.
pub(super) fn as_declared(seen: &Observed, decision: &Decision) -> Option<Condition> {
    let declared = seen.spec.datastore.etcd.as_ref()?.members;
    if let Some(why) = decision.held.clone() {
        let reason = names::reasons::PACKAGE_VERSION_NOT_FOUND;
        return Some(super::status::condition_of(names::MEMBERS_UP_TO_DATE, Status::False, reason, why));
    }
    let record = decision.etcd.as_ref()?;
    let ends = members_of(seen).iter().find(|replica| claim_ends(seen, replica));
    // A recorded member change replaces this member, or precedes its replacement.
    if let Some(member) =
        ends.filter(|_| record.change.is_none() && !matches!(decision.members, NextMemberStep::Record(_)))
    {
        let ends = members::claim_terminating_message(&member.name);
        let message = match &decision.members {
            NextMemberStep::Wait(why) | NextMemberStep::Refuse(why) if why.starts_with(&ends) => why.clone(),
            NextMemberStep::Wait(why) | NextMemberStep::Refuse(why) => {
                format!("{ends}. The member is replaced later: {why}")
            }
            _ => ends,
        };
        return Some(super::status::condition_of(
            names::MEMBERS_UP_TO_DATE,
            Status::False,
            names::reasons::VOLUME_TERMINATING,
            message,
        ));
    }
    let (status, reason, message) = match (unsettled(Some(record), &decision.members, declared), &decision.members) {
        (None, _) => (
            Status::True,
            names::reasons::ALL_MEMBERS_UP_TO_DATE,
            format!("etcd has {}", counted(record.members, "member")),
        ),
        (Some(why), NextMemberStep::Refuse(_)) => (Status::False, names::reasons::MEMBERS_UNHEALTHY, why),
        (Some(why), _) => (Status::False, names::reasons::MEMBER_CHANGE_IN_PROGRESS, why),
    };
    Some(super::status::condition_of(names::MEMBERS_UP_TO_DATE, status, reason, message))
}

/// The condition whether the datastore is healthy, and what a person has to do.
pub(super) fn healthy(seen: &Observed, now: Timestamp) -> Condition {
    let said = |status, reason, message| super::status::condition_of(names::DATASTORE_HEALTHY, status, reason, message);
    let Some(quorum) = quorum(seen, now) else {
        return said(Status::Unknown, names::reasons::UNREACHABLE, "etcd is external and not monitored".to_owned());
    };
    let count = format!("{} of {} members are ready", quorum.ready, quorum.members);
    if super::restore::replaces(seen) {
        return said(Status::False, names::reasons::RESTORING, format!("{count}: restoring a snapshot"));
    }
    if quorum.lost {
        let snapshot = match &seen.status.last_snapshot {
            Some(last) => format!("set spec.restore to {{snapshot: {}}}, which has the data of {}", last.name, last.at),
            None => "there is no snapshot to restore".to_owned(),
        };
        let message = format!(
            "{count}, {} required: etcd accepts no writes, and the operator changes nothing; bring the pods and volumes back, or, if they are lost, {snapshot}",
            quorum.needed()
        );
        return said(Status::False, names::reasons::QUORUM_LOST, message);
    }
    if quorum.ready >= quorum.members {
        return said(Status::True, names::reasons::ALL_MEMBERS_HEALTHY, count);
    }
    let message = match suspected_data_loss(seen) {
        None => count,
        Some(suspect) => {
            format!("{count}; {} lost its data and is replaced when the other members agree", suspect.name)
        }
    };
    said(Status::False, names::reasons::MEMBERS_MISSING, message)
}

/// Why no change of version starts now: the datastore cannot serve it.
pub(super) fn refused(seen: &Observed, target: &str, now: Timestamp) -> Option<(&'static str, String)> {
    if etcd_data::begun(seen, target) {
        return None;
    }
    let change = record(seen).change.filter(|_| seen.spec.datastore.etcd.is_some());
    if let Some(change) = change {
        let why = format!("waiting for the change of etcd member {} ({})", change.member, change.type_.as_str());
        return Some((names::reasons::MEMBER_CHANGE_IN_PROGRESS, why));
    }
    let quorum = quorum(seen, now).filter(|quorum| quorum.missing)?;
    let why = format!(
        "{} of {} etcd members are ready; {} required before anything is changed",
        quorum.ready,
        quorum.members,
        quorum.needed()
    );
    Some((names::reasons::QUORUM_LOST, why))
}

/// Why no upgrade starts now: it would restart a member whose volume is deleted with its pod. That member is replaced first, if possible.
pub(super) fn upgrade_loses_data(seen: &Observed, target: &str) -> Option<(&'static str, String)> {
    let begun = etcd_data::begun(seen, target);
    let member = members_of(seen).iter().find(|replica| claim_ends(seen, replica)).filter(|_| !begun)?;
    Some((
        names::reasons::VOLUME_TERMINATING,
        format!("the change to {target} is waiting: {}", members::claim_terminating_message(&member.name)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_members_tell_what_they_lost() {
        assert!(is_data_loss(
            "panic: tocommit(5) is out of range [lastIndex(0)]. Was the raft log corrupted, truncated, or lost?"
        ));
        assert!(is_data_loss("member 8e9e05c52164694d has already been bootstrapped"));
        assert!(!is_data_loss("listen tcp 0.0.0.0:2379: bind: address already in use"));
        assert!(!is_data_loss("cannot fetch cluster info from peer urls: could not retrieve cluster information"));
    }
}

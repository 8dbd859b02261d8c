//! The members of etcd: the next single step towards the declared members.
//!
//! A change concerns one member at a time and is recorded in the Cluster's status before its first step. The next steps are derived from that record
//! and from the observed state, so that any process can continue after a crash:
//!
//! - Add: the member is added to etcd as a learner, its pod starts, it catches up, it is promoted.
//! - Remove: the member is removed from etcd, then the StatefulSet is scaled down by one, then the volume is deleted.
//! - RecreateVolume: as Replace, for a healthy member whose volume is too small and cannot grow, or whose claim was deleted, so that the volume is
//!   removed with the pod.
//! - Replace: the member is removed from etcd, its volume and its pod are deleted, and only when a new pod with a new volume exists it is added as a
//!   learner, catches up and is promoted.
//!
//! Guarantees:
//! - the StatefulSet never has fewer replicas than etcd has members, so that no edit stops a member that still has a vote;
//! - a member is removed only while the other members answer, agree on a leader, and are a quorum without it;
//! - a volume is deleted only when etcd has no member for it, and a member is added only when the deleted volume is gone. Otherwise the old
//!   container, which may restart at any time, would start on the old volume as the new member and lose its data with that volume.

use std::cmp::Ordering;

use fleetwright_api::{EtcdStatus, MemberChange, MemberChangeType};
use jiff::Timestamp;

use super::observed::Replica;
use super::{Names, counted};

/// A member in the member list of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its etcd id.
    pub id: String,
    /// Name; empty until the member has started for the first time.
    pub name: String,
    pub peer_urls: Vec<String>,
    /// Whether the member is a learner without a vote.
    pub learner: bool,
}

/// Status that one member reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberAnswer {
    /// Its etcd id.
    pub id: String,
    /// Id of the leader, as the member sees it.
    pub leader: String,
    /// Index of the member's last raft entry.
    pub index: u64,
    /// Index of the last raft entry that the member has applied.
    pub applied: u64,
    /// Address of the member that answered.
    pub address: String,
}

/// Member list and the status of each member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberList {
    pub members: Vec<Member>,
    /// Status of the members that answered.
    pub answered: Vec<MemberAnswer>,
}

/// Result of a query to the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberQueryResult {
    /// Time of the query.
    pub at: Timestamp,
    /// The member list; or why the members are not queried again for a moment.
    pub outcome: Result<MemberList, String>,
}

/// The volume claim of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeClaim {
    pub name: String,
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// Whether the claim is being deleted.
    pub ending: bool,
    /// Requested size.
    pub size: String,
    /// Whether the StorageClass allows expansion; false if it is unknown.
    pub expandable: bool,
}

/// An irreversible act on members or volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberAction {
    /// Remove the member with that id from etcd.
    Remove {
        /// Name of the member.
        member: String,
        /// Its etcd id.
        id: String,
        /// Number of other members that must agree on a leader.
        needed: usize,
        /// Uid of the pod that lost its data, if that is the reason: the member is kept if the pod is another one or ready by now.
        lost: Option<String>,
    },
    /// Add a member as a learner.
    Add {
        /// Name of the member.
        member: String,
        /// Peer URL of the member.
        peer_url: String,
        /// Uid of the new volume's claim, or the start of the change: it separates this act from an earlier one for the same name.
        volume: String,
    },
    /// Promote a learner to a voting member.
    Promote {
        /// Name of the member.
        member: String,
        /// Its etcd id.
        id: String,
    },
    /// Delete the volume of a member that is not in etcd's member list.
    DeleteVolume {
        /// Name of the member.
        member: String,
        claim: VolumeClaim,
    },
}

/// Operation types of the acts.
pub const OPERATIONS: [&str; 4] = ["EtcdMemberRemove", "EtcdMemberAdd", "EtcdMemberPromote", "EtcdVolumeDelete"];

impl MemberAction {
    /// Operation type of the act.
    pub fn type_(&self) -> &'static str {
        match self {
            Self::Remove { .. } => "EtcdMemberRemove",
            Self::Add { .. } => "EtcdMemberAdd",
            Self::Promote { .. } => "EtcdMemberPromote",
            Self::DeleteVolume { .. } => "EtcdVolumeDelete",
        }
    }

    /// Name of the member.
    pub fn member(&self) -> &str {
        match self {
            Self::Remove { member, .. }
            | Self::Add { member, .. }
            | Self::Promote { member, .. }
            | Self::DeleteVolume { member, .. } => member,
        }
    }

    /// Fingerprint of the act: the same for the same act on the same member and the same volume.
    pub fn fingerprint(&self) -> String {
        match self {
            Self::Remove { member, id, .. } | Self::Promote { member, id } => format!("{member}-{id}"),
            Self::Add { member, volume, .. } => format!("{member}-{volume}"),
            Self::DeleteVolume { member, claim } => format!("{member}-{}", claim.uid),
        }
    }

    /// Why the act must not be carried out now; `None` if it may. Checked right before the act, with the member list of that time.
    pub fn refused(&self, member_list: &MemberList) -> Option<String> {
        match self {
            Self::Remove { id, lost: Some(_), .. } if member_list.answers(id) => {
                Some("it responds, so it has not lost its data".to_owned())
            }
            Self::Remove { id, needed, .. } => member_list.agreed_leader(Some(id), *needed).err(),
            Self::Add { .. } => member_list.agreed_leader(None, member_list.voters()).err(),
            Self::Promote { id, .. } => member_list.promotion_blocker(id),
            Self::DeleteVolume { .. } => None,
        }
    }

    /// Whether the act is complete, as far as the member list shows.
    pub fn done(&self, member_list: &MemberList) -> bool {
        match self {
            Self::Remove { id, .. } => member_list.member(id).is_none(),
            Self::Add { peer_url, .. } => member_list.at(peer_url).is_some(),
            Self::Promote { id, .. } => member_list.member(id).is_some_and(|member| !member.learner),
            Self::DeleteVolume { .. } => false,
        }
    }
}

/// Whether an act is complete, as far as the member list and the volumes show, if only the type and the fingerprint of its Operation are known. The
/// fingerprint is that of the act, with the number of the attempt.
pub fn was_done(
    type_: &str,
    fingerprint: &str,
    names: &Names,
    member_list: &MemberList,
    claims: &[VolumeClaim],
) -> bool {
    let mut parts = fingerprint.splitn(3, '-');
    let (Some(set), Some(number), Some(rest)) = (parts.next(), parts.next(), parts.next()) else { return false };
    let Some((subject, _)) = rest.rsplit_once('-') else { return false };
    match type_ {
        "EtcdMemberRemove" => member_list.member(subject).is_none(),
        "EtcdMemberAdd" => member_list.at(&peer_url(names, &format!("{set}-{number}"))).is_some(),
        "EtcdMemberPromote" => member_list.member(subject).is_some_and(|member| !member.learner),
        "EtcdVolumeDelete" => claims.iter().all(|claim| claim.uid != subject || claim.ending),
        _ => false,
    }
}

impl MemberList {
    /// The member with that id.
    pub fn member(&self, id: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The member at that peer URL.
    pub fn at(&self, peer_url: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.peer_urls.iter().any(|url| url == peer_url))
    }

    /// Number of members with a vote.
    pub fn voters(&self) -> usize {
        self.members.iter().filter(|member| !member.learner).count()
    }

    /// Id of the leader, if `needed` voters agree on it; the member with the id `except` counts neither as a voter nor as a leader, unless it leads
    /// and is about to transfer its leadership.
    fn agreed_leader(&self, except: Option<&str>, needed: usize) -> Result<&str, String> {
        let voters: Vec<_> =
            self.members.iter().filter(|one| !one.learner && Some(one.id.as_str()) != except).collect();
        let answers = |member: &&&Member| self.answered.iter().find(|answer| answer.id == member.id);
        let leader = voters.iter().find_map(|member| answers(&member)).map(|answer| answer.leader.as_str());
        let leader = leader.filter(|leader| self.member(leader).is_some_and(|member| !member.learner));
        let agree = voters.iter().filter(|member| answers(member).is_some_and(|one| Some(&*one.leader) == leader));
        let agree = agree.count();
        match leader {
            Some(leader) if agree >= needed && (Some(leader) != except || self.answers(leader)) => Ok(leader),
            _ => Err(format!(
                "{agree} of {} other etcd members respond and agree on a leader; {needed} required",
                voters.len()
            )),
        }
    }

    fn answers(&self, id: &str) -> bool {
        self.answered.iter().any(|answer| answer.id == id)
    }

    /// Why that learner cannot be promoted yet.
    fn promotion_blocker(&self, id: &str) -> Option<String> {
        let newest = self.answered.iter().filter(|one| one.id != id).map(|one| one.index).max().unwrap_or_default();
        match self.answered.iter().find(|one| one.id == id) {
            None => Some("not responding yet".to_owned()),
            // etcd itself refuses to promote a learner that has less than nine tenths of the entries.
            Some(own) if own.leader.is_empty() || own.leader == "0" || own.applied < newest - newest / 10 => {
                Some(format!("applied {} of {newest} raft entries", own.applied))
            }
            Some(_) => None,
        }
    }
}

/// Inputs for the next step.
pub(super) struct MemberInputs<'a> {
    pub names: &'a Names,
    /// Declared number of members.
    pub wanted: u32,
    /// Record of the status: the number of members that run, and the change in progress.
    pub record: EtcdStatus,
    /// Pods of etcd.
    pub pods: &'a [Replica],
    /// Volume claims of the namespace.
    pub claims: &'a [VolumeClaim],
    /// The member that lost its data, if other members can confirm it.
    pub lost: Option<&'a Replica>,
    /// Declared size of volumes.
    pub size: &'a str,
    /// The member list, if it is recent.
    pub member_list: Option<&'a MemberList>,
    /// Why no change starts now, whatever the member list shows.
    pub busy: Option<String>,
}

/// The next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NextMemberStep {
    /// The members are as declared.
    #[default]
    Nothing,
    /// Record this in the status. Nothing else is done before the record is written.
    Record(EtcdStatus),
    /// Carry out this act.
    Act(MemberAction),
    /// Delete this pod: its StatefulSet recreates it with a new volume.
    Recreate(Replica),
    QueryMembers,
    /// The change in progress waits for this reason.
    Wait(String),
    /// A change is declared, and is refused for this reason.
    Refuse(String),
}

/// Name of a member's volume claim.
pub fn claim(member: &str) -> String {
    format!("data-{member}")
}

/// Message about a member whose volume claim is being deleted while its pod runs.
pub(super) fn claim_terminating_message(member: &str) -> String {
    format!(
        "PersistentVolumeClaim {} is terminating: the data of {member} is lost when its pod stops, so the pod is not restarted",
        claim(member)
    )
}

/// Peer URL of a member.
pub fn peer_url(names: &Names, member: &str) -> String {
    format!("https://{member}.etcd.{}.svc:2380", names.namespace)
}

fn name(ordinal: u32) -> String {
    format!("etcd-{ordinal}")
}

fn ordinal(member: &str) -> u32 {
    member.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

/// The next single step.
pub(super) fn next(facts: &MemberInputs<'_>, now: Timestamp) -> NextMemberStep {
    match &facts.record.change {
        None => facts.start_change(now),
        Some(change) if facts.is_withdrawn(change) => facts.change_finished(),
        Some(change) => match change.type_ {
            MemberChangeType::Add => facts.add(change, now),
            MemberChangeType::Remove => facts.remove(change, now),
            MemberChangeType::Replace | MemberChangeType::RecreateVolume => facts.replace(change, now),
        },
    }
}

impl MemberInputs<'_> {
    fn running(&self) -> u32 {
        self.record.members
    }

    fn pod(&self, member: &str) -> Option<&Replica> {
        self.pods.iter().find(|pod| pod.name == member)
    }

    fn claim(&self, member: &str) -> Option<&VolumeClaim> {
        let name = claim(member);
        self.claims.iter().find(|claim| claim.name == name)
    }

    fn change(&self, type_: MemberChangeType, member: &str, id: Option<&Member>, now: Timestamp) -> NextMemberStep {
        let change = MemberChange {
            type_,
            member: member.to_owned(),
            member_id: id.map(|member| member.id.clone()),
            pod_uid: self.pod(member).map(|pod| pod.uid.clone()),
            claim_uid: self.claim(member).map(|claim| claim.uid.clone()),
            since: now,
        };
        NextMemberStep::Record(EtcdStatus { change: Some(change), ..self.record.clone() })
    }

    /// The change has finished, or is withdrawn. API servers are configured with the new members when all members are as declared.
    fn change_finished(&self) -> NextMemberStep {
        let members = self.running();
        let serving = if members == self.wanted { members } else { self.record.serving };
        NextMemberStep::Record(EtcdStatus { members, serving, change: None, ..self.record.clone() })
    }

    fn scaled(&self, members: u32) -> NextMemberStep {
        NextMemberStep::Record(EtcdStatus { members, ..self.record.clone() })
    }

    /// Whether a change that has not reached etcd yet is withdrawn: it would wait for a member that lost its data, and that member for the end of the
    /// change.
    fn is_withdrawn(&self, change: &MemberChange) -> bool {
        let (Some(member_list), Some(lost)) = (self.member_list, self.lost) else { return false };
        let own = member_list.at(&peer_url(self.names, &change.member));
        let waits = match change.type_ {
            MemberChangeType::Add => own.is_none() && self.running() <= ordinal(&change.member),
            MemberChangeType::Remove => own.is_some_and(|own| !own.learner),
            MemberChangeType::RecreateVolume => {
                change.member_id.as_ref().and_then(|id| member_list.member(id)).is_some_and(|own| !own.learner)
            }
            // A replacement does not need all other members to be healthy.
            MemberChangeType::Replace => false,
        };
        waits && lost.name != change.member
    }

    /// Without a change in progress: the change that starts next, whether or not it may start now.
    pub(super) fn candidate(&self) -> Option<(MemberChangeType, String)> {
        let running = self.running();
        if let Some(lost) = self.lost {
            let leaves = self.wanted < running && ordinal(&lost.name) + 1 == running;
            let type_ = if leaves { MemberChangeType::Remove } else { MemberChangeType::Replace };
            return Some((type_, lost.name.clone()));
        }
        // A member that is removed next needs no new volume, and one that cannot be replaced yet waits for members that are added.
        let replaced = |member: &String| match self.wanted.cmp(&running) {
            Ordering::Less => ordinal(member) + 1 != running,
            Ordering::Equal => true,
            Ordering::Greater => running >= 3,
        };
        let small = || self.undersized_volume().filter(|_| self.wanted == running);
        if let Some(member) = self.terminating_claim().filter(replaced).or_else(small) {
            return Some((MemberChangeType::RecreateVolume, member));
        }
        match self.wanted.cmp(&running) {
            Ordering::Less => Some((MemberChangeType::Remove, name(running - 1))),
            Ordering::Equal => None,
            Ordering::Greater => Some((MemberChangeType::Add, name(running))),
        }
    }

    /// Without a change in progress: starts one, if one is needed and all other members are healthy.
    fn start_change(&self, now: Timestamp) -> NextMemberStep {
        let running = self.running();
        let candidate = self.candidate();
        if self.may_have_learner() {
            let idle = candidate.is_none() && self.busy.is_none();
            match self.member_list {
                None if idle => return NextMemberStep::QueryMembers,
                None => {}
                Some(member_list) => {
                    if let Some((member, learner)) = self.abandoned_learner(member_list, candidate.as_ref()) {
                        return self.change(MemberChangeType::Add, &member, Some(learner), now);
                    }
                }
            }
        }
        let Some((type_, member)) = candidate else {
            return if self.record.serving == running { NextMemberStep::Nothing } else { self.change_finished() };
        };
        if let Some(lost) = self.lost {
            let Some(member_list) = self.member_list else { return NextMemberStep::QueryMembers };
            let url = peer_url(self.names, &lost.name);
            let own = member_list.at(&url);
            let others = member_list.members.iter().filter(|member| own.is_none_or(|own| own.id != member.id)).count();
            // The status of the pod may be outdated: a member that lost its data does not answer.
            if own.is_some_and(|own| member_list.answers(&own.id)) {
                return NextMemberStep::Wait(format!("{} responds, but its pod is not ready yet", lost.name));
            }
            let needed = quorum(running);
            if let Err(why) = member_list.agreed_leader(own.map(|own| own.id.as_str()), needed) {
                return NextMemberStep::Refuse(why);
            }
            if let Some((left, learner)) = self.left_learner(member_list) {
                return self.change(MemberChangeType::Remove, &left, Some(learner), now);
            }
            // With another number of members, adding or removing one might lose the quorum.
            if others + 1 != running as usize {
                return NextMemberStep::Refuse(format!(
                    "etcd has {}; expected {}",
                    counted(others, "other member"),
                    running.saturating_sub(1)
                ));
            }
            if self.claim(&lost.name).is_none() {
                return NextMemberStep::Wait(format!(
                    "the PersistentVolumeClaim of {} is not in the cache yet",
                    lost.name
                ));
            }
            return self.change(type_, &lost.name, own, now);
        }
        let renews = type_ == MemberChangeType::RecreateVolume;
        if renews && running < 3 && self.terminating_claim().is_some() {
            return NextMemberStep::Refuse(format!(
                "{}. Take a snapshot, then set spec.datastore.etcd.members to 3: when two others run, the member is replaced without data loss",
                claim_terminating_message(&member)
            ));
        }
        if let Some(why) = &self.busy {
            return NextMemberStep::Refuse(why.clone());
        }
        if renews && running < 3 {
            let why = "the StorageClass does not allow volume expansion, and a member is replaced by one with a larger volume only while two others run";
            return NextMemberStep::Refuse(format!(
                "{why}: set spec.datastore.etcd.members to 3, or set allowVolumeExpansion of the class to true"
            ));
        }
        if let Some(why) = self.unready_others(type_, &member) {
            return NextMemberStep::Refuse(why);
        }
        let Some(member_list) = self.member_list else { return NextMemberStep::QueryMembers };
        let own = member_list.at(&peer_url(self.names, &member));
        if let Some((left, learner)) = self.left_learner(member_list).filter(|(left, _)| *left != member) {
            return self.change(MemberChangeType::Remove, &left, Some(learner), now);
        }
        let listed = member_list.members.iter().filter(|one| own.is_none_or(|own| own.id != one.id)).count();
        let expected = self.expected_others(type_);
        if listed != expected {
            return NextMemberStep::Refuse(format!(
                "etcd has {}; expected {expected}",
                counted(listed, "other member")
            ));
        }
        if let Err(why) = member_list.agreed_leader(own.map(|own| own.id.as_str()), expected) {
            return NextMemberStep::Refuse(why);
        }
        self.change(type_, &member, own, now)
    }

    /// The number of other members that must be ready for a change of that type. A member that is removed may be unhealthy: that is one reason to remove
    /// it.
    fn expected_others(&self, type_: MemberChangeType) -> usize {
        let others = if type_ == MemberChangeType::Add { self.running() } else { self.running() - 1 };
        others as usize
    }

    /// Why a change that needs all other members does not start: not all of them are ready.
    pub(super) fn unready_others(&self, type_: MemberChangeType, member: &str) -> Option<String> {
        let others: Vec<_> = self.pods.iter().filter(|pod| pod.name != member).collect();
        let ready = others.iter().filter(|pod| pod.ready && !pod.ending).count();
        let expected = self.expected_others(type_);
        (ready != expected || others.len() != expected)
            .then(|| format!("{ready} of {expected} other etcd members are ready; all must be ready"))
    }

    /// Whether an unready member may be a learner whose change ended before it was promoted: by a process that led at the same time for a moment, or
    /// because the change was decided with an outdated status of its pod.
    fn may_have_learner(&self) -> bool {
        let ready = self.pods.iter().filter(|pod| pod.ready && !pod.ending).count();
        let runs = |pod: &Replica| !pod.ready && !pod.ending && !pod.looping && pod.ip.is_some();
        // A learner is one of the members that run, and has no vote.
        ready >= quorum(self.running().saturating_sub(1)) && self.pods.iter().any(runs)
    }

    /// Whether the members are asked for a learner, though the next step needs no answer of theirs.
    pub(super) fn asks_for_learner(&self) -> bool {
        self.record.change.is_none() && self.member_list.is_none() && self.may_have_learner()
    }

    /// The learner to promote before the candidate: that one waits until all members are ready, and a learner is not until it is promoted.
    fn abandoned_learner<'t>(
        &self,
        member_list: &'t MemberList,
        candidate: Option<&(MemberChangeType, String)>,
    ) -> Option<(String, &'t Member)> {
        let idle = candidate.is_none() && self.busy.is_none();
        (0..self.running()).map(name).find_map(|member| {
            let own = member_list.at(&peer_url(self.names, &member)).filter(|own| own.learner)?;
            let handled = candidate.is_some_and(|(type_, of)| {
                let starts = self.busy.is_none() && self.running() >= 3 && self.unready_others(*type_, of).is_none();
                *of == member && (*type_ != MemberChangeType::RecreateVolume || starts)
            });
            let unwanted = self.wanted <= ordinal(&member) && self.busy.is_some();
            let caught_up = || idle || member_list.promotion_blocker(&own.id).is_none();
            (!handled && !unwanted && caught_up()).then_some((member, own))
        })
    }

    /// A learner without a replica in the StatefulSet, whose change ended before it was removed.
    fn left_learner<'t>(&self, member_list: &'t MemberList) -> Option<(String, &'t Member)> {
        member_list.members.iter().filter(|one| one.learner).find_map(|one| {
            let left = one.peer_urls.iter().find_map(|url| {
                let number = ordinal(url.strip_prefix("https://")?.split('.').next()?);
                let left = name(number);
                (number >= self.running() && *url == peer_url(self.names, &left)).then_some(left)
            })?;
            Some((left, one))
        })
    }

    /// The last member whose volume is smaller than declared and cannot grow.
    fn undersized_volume(&self) -> Option<String> {
        let small =
            |member: &String| self.claim(member).is_some_and(|claim| !claim.expandable && claim.is_below(self.size));
        (0..self.running()).rev().map(name).find(small)
    }

    /// The last member whose volume claim is being deleted while its pod runs.
    fn terminating_claim(&self) -> Option<String> {
        let runs = |member: &String| self.pod(member).is_some_and(|pod| !pod.ending);
        let ends = |member: &String| runs(member) && self.claim(member).is_some_and(|claim| claim.ending);
        (0..self.running()).rev().map(name).find(ends)
    }

    fn add(&self, change: &MemberChange, now: Timestamp) -> NextMemberStep {
        let Some(member_list) = self.member_list else { return NextMemberStep::QueryMembers };
        let (member, number) = (&change.member, ordinal(&change.member));
        let url = peer_url(self.names, member);
        let own = member_list.at(&url);
        if self.wanted <= number && number + 1 >= self.running() && own.is_none_or(|own| own.learner) {
            // Scaling down was declared before the member had a vote. Members are removed from the end: another learner is promoted first.
            return match own {
                None if self.running() <= number && self.claim(member).is_none() => self.change_finished(),
                _ => self.change(MemberChangeType::Remove, member, own, now),
            };
        }
        if self.running() > number {
            return self.joins(member, member_list, now);
        }
        match (own, self.claim(member)) {
            (Some(_), _) => self.scaled(number + 1),
            // The claim of an earlier member, which is not in etcd any more: a new member would not start with it.
            (None, Some(left)) if left.ending => {
                NextMemberStep::Wait(format!("the old PersistentVolumeClaim {} is terminating", left.name))
            }
            (None, Some(left)) => {
                NextMemberStep::Act(MemberAction::DeleteVolume { member: member.clone(), claim: left.clone() })
            }
            (None, None) => match member_list.agreed_leader(None, member_list.voters()) {
                Err(why) => NextMemberStep::Wait(why),
                Ok(_) => {
                    let volume = change.since.as_second().to_string();
                    NextMemberStep::Act(MemberAction::Add { member: member.clone(), peer_url: url, volume })
                }
            },
        }
    }

    /// Steps for a member that was added, and whose pod may run: it catches up and is promoted.
    fn joins(&self, member: &str, member_list: &MemberList, now: Timestamp) -> NextMemberStep {
        let Some(own) = member_list.at(&peer_url(self.names, member)) else {
            // Somebody else removed the member from etcd.
            return self.change(MemberChangeType::Replace, member, None, now);
        };
        let pod = self.pod(member);
        if !own.learner {
            // The change ends only when the pod is ready: a termination message from before the member was added must not count against it. While the
            // member answers, a pod status that shows otherwise is outdated.
            let runs = |pod: &Replica| !pod.lost || member_list.answers(&own.id);
            let waits = pod.is_some_and(|pod| !pod.ready && !pod.ending && runs(pod));
            return match waits && self.wanted > ordinal(member) {
                true => NextMemberStep::Wait(format!("{member} is a voting member, but its pod is not ready yet")),
                false => self.change_finished(),
            };
        }
        // Its data goes when its pod stops: it gets no vote with that volume.
        if self.claim(member).is_some_and(|claim| claim.ending) && pod.is_some_and(|pod| !pod.ending) {
            return self.change(MemberChangeType::RecreateVolume, member, Some(own), now);
        }
        // A member that started and lost its data again does not catch up.
        let lost = |pod: &Replica| pod.lost || self.lost.is_some_and(|lost| lost.uid == pod.uid);
        let lost = pod.is_some_and(|pod| !pod.ending && lost(pod));
        if lost && !own.name.is_empty() && !member_list.answers(&own.id) {
            return self.change(MemberChangeType::Replace, member, Some(own), now);
        }
        match member_list.promotion_blocker(&own.id) {
            None => NextMemberStep::Act(MemberAction::Promote { member: member.to_owned(), id: own.id.clone() }),
            Some(why) => {
                let more = pod.filter(|pod| !pod.message.is_empty()).map(|pod| format!(" ({})", pod.message));
                NextMemberStep::Wait(format!("{member} is a learner: {why}{}", more.unwrap_or_default()))
            }
        }
    }

    fn remove(&self, change: &MemberChange, now: Timestamp) -> NextMemberStep {
        let (member, number) = (&change.member, ordinal(&change.member));
        let Some(member_list) = self.member_list else { return NextMemberStep::QueryMembers };
        // A learner is in etcd before the StatefulSet has a replica for it: only etcd tells whether the learner is removed.
        match member_list.at(&peer_url(self.names, member)) {
            // Scaling up was declared before the member was removed.
            Some(own) if self.wanted > number && !own.learner => self.change_finished(),
            Some(own) => {
                let needed = match own.learner {
                    true => quorum_of(member_list.voters()),
                    false => member_list.voters() - 1,
                };
                match member_list.agreed_leader(Some(&own.id), needed) {
                    Err(why) => NextMemberStep::Wait(why),
                    Ok(_) if needed == 0 => NextMemberStep::Wait(format!("{member} is the last voting member")),
                    Ok(_) => {
                        let (member, id) = (member.clone(), own.id.clone());
                        NextMemberStep::Act(MemberAction::Remove { member, id, needed, lost: None })
                    }
                }
            }
            None if self.running() == number + 1 => self.scaled(number),
            // It is not the last one: scaling down would stop another member, which has a vote.
            None if self.running() > number => self.change(MemberChangeType::Replace, member, None, now),
            // Neither etcd nor the StatefulSet has the member any more.
            None => match (self.pod(member), self.claim(member)) {
                (Some(_), _) => NextMemberStep::Wait(format!("pod {member} is terminating")),
                (None, Some(claim)) if claim.ending => {
                    NextMemberStep::Wait(format!("PersistentVolumeClaim {} is terminating", claim.name))
                }
                (None, Some(claim)) => {
                    NextMemberStep::Act(MemberAction::DeleteVolume { member: member.clone(), claim: claim.clone() })
                }
                (None, None) => self.change_finished(),
            },
        }
    }

    fn replace(&self, change: &MemberChange, now: Timestamp) -> NextMemberStep {
        let Some(member_list) = self.member_list else { return NextMemberStep::QueryMembers };
        let (member, number) = (&change.member, ordinal(&change.member));
        let url = peer_url(self.names, member);
        let own = member_list.at(&url);
        if self.wanted <= number && number + 1 == self.running() {
            return self.change(MemberChangeType::Remove, member, own, now);
        }
        if let Some(old) = change.member_id.as_ref().and_then(|id| member_list.member(id)) {
            let renews = change.type_ == MemberChangeType::RecreateVolume;
            let Some(pod) = self.pod(member) else {
                return NextMemberStep::Wait(format!("waiting for pod {member} to be recreated"));
            };
            // The member runs again, whatever the last termination message of its pod says; or it has a new pod, which may work.
            let runs = !renews && (member_list.answers(&old.id) || !pod.lost && !pod.looping);
            if runs || Some(&pod.uid) != change.pod_uid.as_ref() {
                // A learner still has to be promoted. Of a voter it is decided again whether it lost its data.
                return if old.learner { self.joins(member, member_list, now) } else { self.change_finished() };
            }
            let needed = match old.learner {
                true => quorum_of(member_list.voters()),
                false if renews => member_list.voters() - 1,
                false => quorum(self.running()),
            };
            return match member_list.agreed_leader(Some(&old.id), needed) {
                Err(why) => NextMemberStep::Wait(why),
                Ok(_) => {
                    let (member, id) = (member.clone(), old.id.clone());
                    NextMemberStep::Act(MemberAction::Remove {
                        member,
                        id,
                        needed,
                        lost: change.pod_uid.clone().filter(|_| !renews),
                    })
                }
            };
        }
        let (pod, claim) = (self.pod(member), self.claim(member));
        let recreate = |why: &str| match pod {
            Some(pod) if !pod.ending => NextMemberStep::Recreate(pod.clone()),
            _ => NextMemberStep::Wait(why.to_owned()),
        };
        let old_pod = pod.is_some_and(|pod| Some(&pod.uid) == change.pod_uid.as_ref());
        match claim {
            Some(old) if Some(&old.uid) == change.claim_uid.as_ref() => match own {
                // Its pod may start with the old volume at any moment.
                Some(own) => self.change(MemberChangeType::Replace, member, Some(own), now),
                None if !old.ending => {
                    NextMemberStep::Act(MemberAction::DeleteVolume { member: member.clone(), claim: old.clone() })
                }
                None => recreate("the old pod and its PersistentVolumeClaim are terminating"),
            },
            _ if old_pod => recreate("the old pod is terminating"),
            Some(new) if !new.ending && pod.is_some() => match own {
                Some(_) => self.joins(member, member_list, now),
                None => match member_list.agreed_leader(None, member_list.voters()) {
                    Err(why) => NextMemberStep::Wait(why),
                    Ok(_) => {
                        let (member, volume) = (member.clone(), new.uid.clone());
                        NextMemberStep::Act(MemberAction::Add { member, peer_url: url, volume })
                    }
                },
            },
            _ => NextMemberStep::Wait(format!("waiting for a new pod and a new PersistentVolumeClaim of {member}")),
        }
    }
}

impl VolumeClaim {
    /// Whether the claim requests less than that size.
    pub(super) fn is_below(&self, size: &str) -> bool {
        super::survey::amount(&self.size).zip(super::survey::amount(size)).is_some_and(|(own, size)| own < size)
    }
}

/// Size of the quorum.
fn quorum(members: u32) -> usize {
    quorum_of(members as usize)
}

fn quorum_of(voters: usize) -> usize {
    voters / 2 + 1
}

//! A simulated etcd cluster: its members, which of them run, and their shared data.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fleetwright_apiserver::Storage;
use fleetwright_kit::Random;
use serde_json::{Value, json};
use tokio::sync::watch;

/// The major and minor of a version of etcd.
pub(in super::super) type Minor = (u32, u32);

/// The minor of a version such as `3.7.0`; the oldest possible minor if the version cannot be parsed.
pub(in super::super) fn minor(version: &str) -> Minor {
    let mut parts = version.trim_start_matches('v').split('.').map(|part| part.parse().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub(super) id: u64,
    /// The name; empty until the member has started for the first time.
    pub(super) name: String,
    pub(super) peer_urls: Vec<String>,
    pub(super) client_urls: Vec<String>,
    pub(super) learner: bool,
    /// Whether the member has started before: then its log is on its volume, and nowhere else.
    started: bool,
    alive: bool,
    /// The minor of its last start.
    minor: Minor,
}

impl Member {
    pub(super) fn shown(&self) -> Value {
        let mut shown = json!({ "ID": self.id.to_string(), "peerURLs": self.peer_urls });
        if !self.name.is_empty() {
            shown["name"] = self.name.as_str().into();
        }
        if !self.client_urls.is_empty() {
            shown["clientURLs"] = json!(self.client_urls);
        }
        if self.learner {
            shown["isLearner"] = true.into();
        }
        shown
    }
}

#[derive(Default)]
struct State {
    members: Vec<Member>,
    leader: Option<u64>,
    term: u64,
    /// The minor of the data: an older etcd does not start with it.
    data: Minor,
}

/// The reason of a refusal, with the gRPC code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EtcdError(pub(super) u8, pub(super) String);

impl EtcdError {
    fn new(code: u8, message: &str) -> Self {
        Self(code, format!("etcdserver: {message}"))
    }

    pub(super) fn no_leader() -> Self {
        Self::new(14, "no leader")
    }
}

/// The reason why a member cannot join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum JoinError {
    /// The cluster has no such member.
    Unknown,
    /// The member had started before, and its log is lost.
    LogLost(u64),
}

/// A simulated etcd cluster. It exists while a volume holds it.
pub(in super::super::super) struct Cluster {
    pub(super) id: u64,
    storage: Storage,
    state: Mutex<State>,
    random: Random,
    /// Counts the changes of the cluster.
    epoch: AtomicU64,
    changed: watch::Sender<u64>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({:x})", self.id)
    }
}

impl Cluster {
    /// A new cluster with these members, by name and peer URL, and with data of this minor.
    pub(super) fn new(members: &[(String, String)], storage: Storage, data: Minor, random: Random) -> Arc<Self> {
        let id = |random: &Random| random.below(u64::MAX).max(1);
        let member =
            |(_, url): &(String, String)| Member { id: id(&random), peer_urls: vec![url.clone()], ..Member::default() };
        let state = State { members: members.iter().map(member).collect(), leader: None, term: 1, data };
        Arc::new(Self {
            id: id(&random),
            storage,
            state: Mutex::new(state),
            random,
            epoch: AtomicU64::new(1),
            changed: watch::Sender::new(1),
        })
    }

    /// The shared data of the members.
    pub(in super::super::super) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The change counter; callers compare it to detect changes.
    pub(in super::super::super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notifies about each change of the epoch.
    pub(in super::super::super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Records a change that matters to clients.
    pub(super) fn touch(&self) {
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.send_replace(epoch);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn members(&self) -> Vec<Member> {
        self.state().members.clone()
    }

    /// Whether the cluster has this member.
    pub(super) fn has(&self, id: u64) -> bool {
        self.state().members.iter().any(|member| member.id == id)
    }

    /// The leader and its term; none without a quorum.
    pub(in super::super::super) fn leader(&self) -> Option<(u64, u64)> {
        let state = self.state();
        state.leader.map(|leader| (leader, state.term))
    }

    pub(super) fn term(&self) -> u64 {
        self.state().term
    }

    /// The minor of the data: the oldest minor of all members at a time when all of them ran. It never decreases.
    pub(in super::super) fn data(&self) -> Minor {
        self.state().data
    }

    /// Assigns a member without a log to its entry in the member list.
    pub(in super::super) fn claim_member(&self, peer_url: &str) -> Result<u64, JoinError> {
        let state = self.state();
        let member = state.members.iter().find(|member| member.peer_urls.iter().any(|url| url == peer_url));
        match member {
            None => Err(JoinError::Unknown),
            Some(member) if member.started => Err(JoinError::LogLost(member.id)),
            Some(member) => Ok(member.id),
        }
    }

    /// Marks a member as running, with this minor of etcd.
    pub(super) fn join(&self, id: u64, name: &str, client_urls: Vec<String>, minor: Minor) {
        self.with(id, |member| {
            member.minor = minor;
            member.name = name.to_owned();
            member.client_urls = client_urls;
            member.started = true;
            member.alive = true;
        });
    }

    /// Marks a member as stopped.
    pub(super) fn leave(&self, id: u64) {
        self.with(id, |member| member.alive = false);
    }

    fn with(&self, id: u64, change: impl FnOnce(&mut Member)) {
        {
            let mut state = self.state();
            if let Some(member) = state.members.iter_mut().find(|member| member.id == id) {
                change(member);
            }
            state.raise();
            state.elect();
        }
        self.touch();
    }

    /// Adds a member to the list.
    pub(super) fn add(&self, peer_urls: Vec<String>, learner: bool) -> Result<Member, EtcdError> {
        let added = {
            let mut state = self.state();
            state.leader.ok_or_else(EtcdError::no_leader)?;
            if state.members.iter().any(|member| member.peer_urls.iter().any(|url| peer_urls.contains(url))) {
                return Err(EtcdError::new(9, "Peer URLs already exists"));
            }
            let voters = || state.members.iter().filter(|member| !member.learner);
            let (started, after) = (voters().filter(|member| member.started).count(), voters().count() + 1);
            // A new voter beside a single member takes the quorum away until it starts; etcd allows that case all the same.
            if !learner && started < after / 2 + 1 && (started, after) != (1, 2) {
                return Err(EtcdError::new(9, "re-configuration failed due to not enough started members"));
            }
            if state.members.iter().any(|member| !member.alive) {
                return Err(EtcdError::new(14, "unhealthy cluster"));
            }
            if learner && state.members.iter().any(|member| member.learner) {
                return Err(EtcdError::new(9, "too many learner members in cluster"));
            }
            let id = self.random.below(u64::MAX).max(1);
            let member = Member { id, peer_urls, learner, ..Member::default() };
            state.members.push(member.clone());
            state.elect();
            member
        };
        self.touch();
        Ok(added)
    }

    /// Removes a member from the list.
    pub(super) fn remove(&self, id: u64) -> Result<(), EtcdError> {
        {
            let mut state = self.state();
            state.leader.ok_or_else(EtcdError::no_leader)?;
            let Some(at) = state.members.iter().position(|member| member.id == id) else {
                return Err(EtcdError::new(5, "member not found"));
            };
            let others = || state.members.iter().filter(|member| !member.learner && member.id != id);
            let voter = !state.members[at].learner;
            let started = others().filter(|member| member.started).count();
            if voter && (others().count() == 0 || started < others().count() / 2 + 1) {
                return Err(EtcdError::new(9, "re-configuration failed due to not enough started members"));
            }
            let (alive, voters) = state.voters();
            if voter && state.members[at].alive && alive - 1 < 1 + (voters - 1) / 2 {
                return Err(EtcdError::new(14, "unhealthy cluster"));
            }
            state.members.remove(at);
            state.raise();
            state.elect();
        }
        self.touch();
        Ok(())
    }

    /// Changes the peer URLs of a member.
    pub(super) fn update(&self, id: u64, peer_urls: Vec<String>) -> Result<(), EtcdError> {
        self.leader().ok_or_else(EtcdError::no_leader)?;
        if !self.has(id) {
            return Err(EtcdError::new(5, "member not found"));
        }
        self.with(id, |member| member.peer_urls = peer_urls);
        Ok(())
    }

    /// Transfers the leadership to another voter. Only the leader itself accepts this.
    pub(super) fn transfer(&self, asked: u64, to: u64) -> Result<(), EtcdError> {
        {
            let mut state = self.state();
            match state.leader {
                None => return Err(EtcdError::no_leader()),
                Some(leader) if leader != asked => return Err(EtcdError::new(9, "not leader")),
                Some(_) => {}
            }
            if !state.members.iter().any(|member| member.id == to && member.alive && !member.learner) {
                return Err(EtcdError::new(9, "bad leader transferee"));
            }
            state.leader = Some(to);
            state.term += 1;
        }
        self.touch();
        Ok(())
    }

    /// Whether this member is a learner.
    pub(super) fn learns(&self, id: u64) -> bool {
        self.state().members.iter().any(|member| member.id == id && member.learner)
    }

    /// Promotes a learner to a voter.
    pub(super) fn promote(&self, id: u64) -> Result<(), EtcdError> {
        self.leader().ok_or_else(EtcdError::no_leader)?;
        let member = self.members().into_iter().find(|member| member.id == id);
        match member {
            None => Err(EtcdError::new(5, "member not found")),
            Some(member) if !member.learner => Err(EtcdError::new(9, "can only promote a learner member")),
            Some(member) if !member.alive => {
                Err(EtcdError::new(9, "can only promote a learner member which is in sync with leader"))
            }
            Some(_) => {
                self.with(id, |member| member.learner = false);
                Ok(())
            }
        }
    }
}

impl State {
    /// The numbers of running voters and of all voters.
    fn voters(&self) -> (usize, usize) {
        let voters = || self.members.iter().filter(|member| !member.learner);
        (voters().filter(|member| member.alive).count(), voters().count())
    }

    /// Raises the minor of the data, after every member runs a known and newer version.
    fn raise(&mut self) {
        if self.members.iter().all(|member| member.alive) {
            let oldest = self.members.iter().map(|member| member.minor).min();
            self.data = self.data.max(oldest.unwrap_or_default());
        }
    }

    /// Keeps the leader while it runs and has a quorum; otherwise the first running voter becomes leader.
    fn elect(&mut self) {
        let (alive, voters) = self.voters();
        if alive < voters / 2 + 1 {
            self.leader = None;
            return;
        }
        let living = |member: &&Member| member.alive && !member.learner;
        let stays =
            self.leader.is_some_and(|leader| self.members.iter().filter(living).any(|member| member.id == leader));
        if !stays {
            self.leader = self.members.iter().find(living).map(|member| member.id);
            self.term += 1;
        }
    }
}

/// The data directory of a member.
#[derive(Debug)]
pub(in super::super) struct Data {
    pub(in super::super) cluster: Arc<Cluster>,
    pub(in super::super) member: u64,
}

/// The data directories that snapshots were restored to on a volume, by folder.
#[derive(Debug, Default)]
pub(in super::super) struct Restored(Mutex<HashMap<String, Arc<Data>>>);

impl Restored {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Data>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in super::super) fn get(&self, folder: &str) -> Option<Arc<Data>> {
        self.all().get(folder).cloned()
    }

    pub(in super::super) fn take(&self, folder: &str) -> Option<Arc<Data>> {
        self.all().remove(folder)
    }

    /// Stores the data unless the folder has some; returns whether it stored them.
    pub(in super::super) fn put(&self, folder: &str, data: Data) -> bool {
        let mut all = self.all();
        let free = !all.contains_key(folder);
        if free {
            all.insert(folder.to_owned(), Arc::new(data));
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(number: usize) -> (Arc<Cluster>, Vec<u64>) {
        let members: Vec<_> = (0..number).map(|n| (format!("etcd-{n}"), format!("https://etcd-{n}:2380"))).collect();
        let cluster = Cluster::new(&members, Storage::default(), (3, 6), Random::seeded(1));
        let ids = cluster.members().iter().map(|member| member.id).collect();
        (cluster, ids)
    }

    fn join(cluster: &Cluster, id: u64) {
        cluster.join(id, "x", Vec::new(), (3, 6));
    }

    #[test]
    fn the_minor_of_the_data_is_raised_when_all_members_have_it_and_never_lowered() {
        let (cluster, ids) = cluster(3);
        ids.iter().for_each(|id| join(&cluster, *id));
        for (id, data) in ids.iter().zip([(3, 6), (3, 6), (3, 7)]) {
            cluster.leave(*id);
            cluster.join(*id, "x", Vec::new(), minor("v3.7.0"));
            assert_eq!(cluster.data(), data);
        }
        cluster.leave(ids[0]);
        join(&cluster, ids[0]);
        assert_eq!(cluster.data(), (3, 7));
    }

    #[test]
    fn a_majority_of_living_members_has_a_leader() {
        let (cluster, ids) = cluster(3);
        join(&cluster, ids[0]);
        assert_eq!(cluster.leader(), None);
        join(&cluster, ids[1]);
        let (leader, term) = cluster.leader().unwrap();
        cluster.leave(leader);
        assert_eq!(cluster.leader(), None);
        join(&cluster, ids[2]);
        let next = cluster.leader().unwrap();
        assert!(next.0 != leader && next.1 > term, "{next:?}");
    }

    #[test]
    fn a_member_that_lost_its_log_comes_back_only_as_another() {
        let (cluster, ids) = cluster(3);
        ids.iter().for_each(|id| join(&cluster, *id));
        cluster.leave(ids[2]);
        let url = "https://etcd-2:2380";
        assert_eq!(cluster.claim_member(url), Err(JoinError::LogLost(ids[2])));
        cluster.remove(ids[2]).unwrap();
        assert_eq!(cluster.claim_member(url), Err(JoinError::Unknown));
        let added = cluster.add(vec![url.to_owned()], false).unwrap();
        assert_eq!(cluster.claim_member(url), Ok(added.id));
        assert_eq!(cluster.add(vec![url.to_owned()], false).unwrap_err().1, "etcdserver: Peer URLs already exists");
    }

    #[test]
    fn a_learner_has_no_vote_until_it_is_promoted_and_the_leader_hands_over() {
        let (cluster, ids) = cluster(1);
        join(&cluster, ids[0]);
        let added = cluster.add(vec!["https://etcd-1:2380".to_owned()], true).unwrap().id;
        assert_eq!(cluster.leader().map(|(id, _)| id), Some(ids[0]), "a learner takes no quorum away");
        assert!(cluster.promote(added).is_err(), "it has not started");
        assert!(cluster.transfer(ids[0], added).is_err(), "it has no vote");
        join(&cluster, added);
        assert!(cluster.learns(added));
        cluster.promote(added).unwrap();
        assert!(!cluster.learns(added));
        assert_eq!(cluster.transfer(added, ids[0]).unwrap_err().1, "etcdserver: not leader");
        cluster.transfer(ids[0], added).unwrap();
        assert_eq!(cluster.leader().map(|(id, _)| id), Some(added));
        cluster.leave(ids[0]);
        assert_eq!(cluster.leader(), None, "both are needed now");
    }

    #[test]
    fn nothing_is_changed_that_would_take_the_quorum_away() {
        let (cluster, ids) = cluster(3);
        join(&cluster, ids[0]);
        join(&cluster, ids[1]);
        assert!(cluster.remove(ids[0]).is_err());
        assert!(cluster.add(vec!["https://new:2380".to_owned()], false).is_err());
        assert_eq!(
            cluster.add(vec!["https://new:2380".to_owned()], true).unwrap_err().1,
            "etcdserver: unhealthy cluster"
        );
        cluster.remove(ids[2]).unwrap();
        assert!(cluster.leader().is_some());
        assert_eq!(cluster.remove(7).unwrap_err().1, "etcdserver: member not found");
        cluster.leave(ids[0]);
        assert_eq!(cluster.remove(ids[0]).unwrap_err(), EtcdError::no_leader());
    }
}

//! Members of etcd: lost ones are replaced, and their number changes one by one.

use fleetwright_api::{EtcdStatus, MemberChange, MemberChangeType};

use super::*;
use crate::cluster::members::{
    Member, MemberAction, MemberAnswer, MemberList, MemberQueryResult, NextMemberStep, VolumeClaim, was_done,
};

impl TestCluster {
    fn members(&mut self) -> &mut Vec<Replica> {
        &mut self.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas
    }

    /// As a member looks whose volume was emptied.
    fn wipe(&mut self, number: usize) {
        let member = &mut self.members()[number];
        (member.ready, member.lost, member.restarts) = (false, true, 1);
        member.message = "CrashLoopBackOff; exited with 1: member 1 has already been bootstrapped".to_owned();
    }

    fn healthy(&self) -> (Status, String, String) {
        self.said(names::DATASTORE_HEALTHY)
    }

    fn said(&self, type_: &str) -> (Status, String, String) {
        let status = self.status();
        let one = condition(&status.conditions, type_).unwrap();
        (one.status, one.reason.clone(), one.message.clone())
    }
}

/// A real etcd of that many members, as far as its members and their volumes go.
#[derive(Clone)]
struct Etcd {
    world: TestCluster,
    members: Vec<Member>,
    /// Ids of members that answer.
    alive: Vec<String>,
    next: u32,
    /// The order of everything that was done.
    log: Vec<String>,
    /// Whether volumes can grow.
    expandable: bool,
}

fn url(member: &str) -> String {
    format!("https://{member}.etcd.fleet-pay.svc:2380")
}

impl Etcd {
    fn new(members: u32) -> Self {
        let mut world = TestCluster::new();
        world.spec.datastore.etcd.as_mut().unwrap().members = members;
        world.settle();
        let mut etcd =
            Self { world, members: Vec::new(), alive: Vec::new(), next: 100, log: Vec::new(), expandable: true };
        for number in 0..members {
            let name = format!("etcd-{number}");
            let id = etcd.id();
            etcd.members.push(Member {
                id: id.clone(),
                peer_urls: vec![url(&name)],
                name: name.clone(),
                learner: false,
            });
            etcd.alive.push(id);
            etcd.claim(&name);
        }
        etcd
    }

    fn id(&mut self) -> String {
        self.next += 1;
        self.next.to_string()
    }

    fn claim(&mut self, member: &str) {
        let uid = format!("claim-{}", self.id());
        let name = crate::cluster::members::claim(member);
        let set = &self.world.live[&(Kind::StatefulSet, "etcd".to_owned())];
        let size = &set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"];
        let size = size.as_str().unwrap().to_owned();
        let (version, expandable) = ("1".to_owned(), self.expandable);
        self.world.claims.push(VolumeClaim { name, uid, version, ending: false, size, expandable });
    }

    fn declare(&mut self, members: u32) {
        self.world.spec.datastore.etcd.as_mut().unwrap().members = members;
    }

    fn member_list(&self) -> MemberList {
        let voters: Vec<_> = self.members.iter().filter(|member| !member.learner).collect();
        let alive = voters.iter().filter(|member| self.alive.contains(&member.id)).count();
        let leader = voters.iter().find(|member| self.alive.contains(&member.id)).filter(|_| alive > voters.len() / 2);
        let leader = leader.map_or("0", |leader| leader.id.as_str()).to_owned();
        let answer = |id: &String| MemberAnswer {
            id: id.clone(),
            leader: leader.clone(),
            index: 1000,
            applied: 1000,
            address: format!("address of {id}"),
        };
        MemberList { members: self.members.clone(), answered: self.alive.iter().map(answer).collect() }
    }

    fn quorum(&self) -> bool {
        let voters: Vec<_> = self.members.iter().filter(|member| !member.learner).collect();
        voters.iter().filter(|member| self.alive.contains(&member.id)).count() > voters.len() / 2
    }

    /// What the StatefulSet and etcd do by themselves: pods come and go with the replicas, and start if they can.
    fn live(&mut self) {
        let Some(set) = self.world.live.get(&(Kind::StatefulSet, "etcd".to_owned())).cloned() else { return };
        let replicas = usize::try_from(set["spec"]["replicas"].as_u64().unwrap()).unwrap();
        self.world.members().truncate(replicas);
        for number in 0..replicas {
            let name = format!("etcd-{number}");
            if self.world.members().iter().all(|pod| pod.name != name) {
                let claim = crate::cluster::members::claim(&name);
                self.world.claims.retain(|known| known.name != claim || !known.ending);
                if self.world.claims.iter().all(|known| known.name != claim) {
                    self.claim(&name);
                }
                let template = self.world.decide().templates[&ControlPlaneComponent::Etcd].clone();
                let mut pod = replica(ControlPlaneComponent::Etcd, number as u64, Some(template));
                (pod.uid, pod.ready) = (format!("uid-{}", self.id()), false);
                self.world.members().push(pod);
                self.world.members().sort_by(|a, b| a.name.cmp(&b.name));
            }
            let member = self.members.iter_mut().find(|member| member.peer_urls == [url(&name)]);
            let pod = self.world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap();
            let pod = pod.replicas.iter_mut().find(|pod| pod.name == name).unwrap();
            match member {
                Some(member) if member.name.is_empty() => {
                    member.name = name;
                    self.alive.push(member.id.clone());
                }
                Some(member) => pod.ready = self.alive.contains(&member.id) && !member.learner,
                None => pod.ready = false,
            }
        }
        let known: Vec<String> = self.members.iter().map(|member| member.id.clone()).collect();
        self.alive.retain(|id| known.contains(id));
        let pods: Vec<String> = self.world.members().iter().map(|pod| url(&pod.name)).collect();
        let gone = |member: &Member| !pods.contains(&member.peer_urls[0]);
        let stopped: Vec<_> = self.members.iter().filter(|one| gone(one)).map(|one| one.id.clone()).collect();
        self.alive.retain(|id| !stopped.contains(id));
    }

    /// One pass: what is decided is done and written down.
    fn pass(&mut self) -> NextMemberStep {
        self.world.members = Some(MemberQueryResult { at: self.world.now, outcome: Ok(self.member_list()) });
        let decision = self.world.next_decision();
        self.world.status = self.world.status_after(&decision);
        match &decision.members {
            NextMemberStep::Act(act) => {
                let member_list = self.member_list();
                assert_eq!(act.refused(&member_list), None, "it is refused when it is done: {act:?}");
                assert!(!act.done(&member_list), "{act:?}");
                self.act(act);
            }
            NextMemberStep::Recreate(pod) => {
                self.log.push(format!("recreate {}", pod.name));
                self.world.members().retain(|known| known.uid != pod.uid);
            }
            _ => {}
        }
        if decision.orphan.is_some() {
            self.world.live.remove(&(Kind::StatefulSet, "etcd".to_owned()));
            self.world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().package = None;
        }
        for (claim, size) in &decision.expand {
            let known = self.world.claims.iter_mut().find(|known| known.uid == claim.uid).unwrap();
            known.size.clone_from(size);
        }
        self.world.applied(&decision);
        self.live();
        assert!(self.quorum(), "quorum lost after {:?}", self.log);
        decision.members
    }

    fn act(&mut self, act: &MemberAction) {
        self.log.push(format!("{} {}", act.type_().trim_start_matches("Etcd"), act.member()));
        match act {
            MemberAction::Remove { id, .. } => {
                self.members.retain(|member| member.id != *id);
                self.alive.retain(|alive| alive != id);
            }
            MemberAction::Add { peer_url, .. } => {
                let id = self.id();
                self.members.push(Member { id, name: String::new(), peer_urls: vec![peer_url.clone()], learner: true });
            }
            MemberAction::Promote { id, .. } => {
                self.members.iter_mut().find(|member| member.id == *id).unwrap().learner = false;
            }
            MemberAction::DeleteVolume { claim, member } => {
                assert!(self.members.iter().all(|one| one.peer_urls != [url(member)]), "etcd still has {member}");
                let used = self.world.members().iter().any(|pod| pod.name == *member);
                for known in self.world.claims.iter_mut().filter(|known| known.uid == claim.uid) {
                    known.ending = true;
                }
                if !used {
                    self.world.claims.retain(|known| known.uid != claim.uid);
                }
            }
        }
    }

    /// Until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..80 {
            let before = self.world.status.clone();
            let rests = self.pass() == NextMemberStep::Nothing && self.world.status == before;
            // A StatefulSet that was deleted without its pods is applied again in the next pass.
            let whole = self.world.live.contains_key(&(Kind::StatefulSet, "etcd".to_owned()));
            if rests && whole && self.world.status.waiting_for.is_none() {
                self.world.decide();
                return;
            }
        }
        panic!("it does not come to rest: {:?}\n{:#?}", self.log, self.world.status);
    }

    fn names(&self) -> Vec<&str> {
        self.members.iter().filter(|member| !member.learner).map(|member| member.name.as_str()).collect()
    }
}

#[test]
fn members_are_added_one_by_one_as_learners_and_removed_before_their_pods_and_volumes() {
    let mut etcd = Etcd::new(1);
    etcd.declare(3);
    etcd.settle();
    assert_eq!(etcd.names(), ["etcd-0", "etcd-1", "etcd-2"]);
    let each = |member: &str| ["MemberAdd", "MemberPromote"].map(|act| format!("{act} {member}"));
    assert_eq!(etcd.log, [each("etcd-1"), each("etcd-2")].concat());
    assert_eq!(etcd.world.claims.len(), 3);
    etcd.log.clear();
    etcd.declare(1);
    etcd.settle();
    let each = |member: &str| ["MemberRemove", "VolumeDelete"].map(|act| format!("{act} {member}"));
    assert_eq!(etcd.log, [each("etcd-2"), each("etcd-1")].concat());
    assert_eq!((etcd.names(), etcd.world.claims.len()), (vec!["etcd-0"], 1));
    let known = etcd.world.status.etcd.clone().unwrap();
    assert_eq!((known.members, known.serving, known.change), (1, 1, None));
    for members in [5, 7, 3] {
        etcd.declare(members);
        etcd.settle();
        assert_eq!(etcd.names().len(), members as usize);
    }
}

#[test]
fn a_plan_names_the_change_that_is_recorded_next() {
    for (from, to) in [(1, 3), (3, 1)] {
        let mut etcd = Etcd::new(from);
        etcd.declare(to);
        let mut changes = Vec::new();
        for _ in 0..40 {
            // Whoever plans has no answers of the members.
            etcd.world.members = None;
            let planned = etcd.world.look(|seen| cluster_plan::rehearse(seen, NOW)).members;
            if let NextMemberStep::Record(EtcdStatus { change: Some(change), .. }) = etcd.pass() {
                let planned = planned.expect("a change is planned");
                assert_eq!((planned.action, &planned.member), (change.type_.as_str(), &change.member));
                changes.push(change.member);
            }
        }
        changes.dedup();
        assert_eq!(changes, if to > from { ["etcd-1", "etcd-2"] } else { ["etcd-2", "etcd-1"] });
        assert_eq!(etcd.world.look(|seen| cluster_plan::rehearse(seen, NOW)).members, None);
    }
}

#[test]
fn a_smaller_number_scales_nothing_down_before_etcd_has_forgotten_the_member() {
    let mut etcd = Etcd::new(3);
    etcd.declare(1);
    let replicas = |etcd: &Etcd| etcd.world.live[&(Kind::StatefulSet, "etcd".to_owned())]["spec"]["replicas"].clone();
    for _ in 0..40 {
        etcd.pass();
        let listed = etcd.members.len();
        assert!(replicas(&etcd).as_u64().unwrap() >= listed as u64, "{:?}", etcd.log);
    }
    assert_eq!(replicas(&etcd), 1);
}

#[test]
fn the_number_is_not_changed_while_members_are_unhealthy_and_it_says_so() {
    for declared in [1, 5] {
        let mut etcd = Etcd::new(3);
        let down = etcd.members[1].id.clone();
        etcd.alive.retain(|id| *id != down);
        etcd.live();
        etcd.declare(declared);
        for _ in 0..10 {
            assert!(matches!(etcd.pass(), NextMemberStep::Refuse(_)));
        }
        assert!(etcd.log.is_empty(), "{:?}", etcd.log);
        let (status, reason, message) = etcd.world.said(names::MEMBERS_UP_TO_DATE);
        assert_eq!((status, reason.as_str()), (Status::False, names::reasons::MEMBERS_UNHEALTHY));
        assert!(message.contains("must be ready"), "{message}");
        etcd.alive.push(down);
        etcd.live();
        etcd.settle();
        assert_eq!(etcd.names().len(), declared as usize);
    }
}

#[test]
fn the_opposite_edit_is_followed_at_any_step() {
    for (from, to) in [(1, 3), (3, 1), (3, 5), (5, 3), (5, 7), (7, 5)] {
        let mut undisturbed = Etcd::new(from);
        undisturbed.declare(to);
        for steps in 0..16 {
            let mut etcd = undisturbed.clone();
            undisturbed.pass();
            etcd.declare(from);
            etcd.settle();
            assert_eq!(etcd.names().len(), from as usize, "after {steps} steps: {:?}", etcd.log);
            assert_eq!(etcd.members.len(), from as usize, "no learner is left after {steps} steps: {:?}", etcd.log);
            assert_eq!(etcd.world.claims.len(), from as usize, "after {steps} steps: {:?}", etcd.log);
            etcd.declare(to);
            etcd.settle();
            assert_eq!(etcd.names().len(), to as usize);
        }
    }
}

#[test]
fn an_unwanted_learner_is_removed_before_the_next_change() {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    // An older operator ended the change without removing it.
    etcd.act(&MemberAction::Add { member: "etcd-3".to_owned(), peer_url: url("etcd-3"), volume: String::new() });
    etcd.log.clear();
    etcd.declare(1);
    etcd.settle();
    let each = |member: &str| ["MemberRemove", "VolumeDelete"].map(|act| format!("{act} {member}"));
    let all = [vec!["MemberRemove etcd-3".to_owned()], [each("etcd-2"), each("etcd-1")].concat()].concat();
    assert_eq!((etcd.log, etcd.members.len()), (all, 1));
}

#[test]
fn a_learner_that_never_starts_is_taken_back_by_the_opposite_edit() {
    let mut etcd = Etcd::new(1);
    etcd.declare(3);
    while etcd.world.members().len() < 2 {
        etcd.pass();
    }
    // Its pod finds no node.
    let learner = etcd.members[1].id.clone();
    etcd.alive.retain(|id| *id != learner);
    for _ in 0..5 {
        assert!(matches!(etcd.pass(), NextMemberStep::Wait(_)));
    }
    assert_eq!(etcd.world.said(names::MEMBERS_UP_TO_DATE).1, names::reasons::MEMBER_CHANGE_IN_PROGRESS);
    assert_eq!(etcd.world.healthy().0, Status::True, "a learner is not missed");
    etcd.declare(1);
    etcd.settle();
    assert_eq!((etcd.names(), etcd.world.claims.len()), (vec!["etcd-0"], 1));
}

#[test]
fn a_member_that_lost_its_data_is_removed_then_its_volume_then_it_is_added() {
    let mut etcd = Etcd::new(3);
    for number in [2, 0] {
        let name = format!("etcd-{number}");
        let lost = etcd.members.iter().find(|member| member.name == name).unwrap().id.clone();
        etcd.alive.retain(|id| *id != lost);
        etcd.live();
        etcd.world.wipe(number);
        etcd.settle();
        let steps = ["MemberRemove", "VolumeDelete", "recreate", "MemberAdd", "MemberPromote"];
        assert_eq!(etcd.log, steps.map(|step| format!("{step} {name}")));
        etcd.log.clear();
        let now = etcd.members.iter().find(|member| member.name == name).unwrap();
        assert!(now.id != lost && !now.learner);
    }
}

/// A member loses its data, and its new pod's container ends before the member is added. The status of that pod is that old for `stale` passes after the container runs as the new
/// member, and the pod becomes ready `late` passes after the promotion.
fn replaced(stale: usize, late: usize) -> Etcd {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    let lost = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != lost);
    etcd.live();
    etcd.world.wipe(2);
    let old = etcd.world.members()[2].uid.clone();
    let (mut running, mut voting) = (0, 0);
    for _ in 0..60 {
        etcd.pass();
        let own = etcd.members.iter().find(|member| member.peer_urls == [url("etcd-2")]);
        let (runs, votes) = (own.is_some_and(|own| !own.name.is_empty()), own.is_some_and(|own| !own.learner));
        let new = etcd.world.members().iter_mut().find(|pod| pod.name == "etcd-2" && pod.uid != old);
        let Some(pod) = new else { continue };
        running += usize::from(runs);
        voting += usize::from(votes);
        pod.lost = running <= stale || !runs;
        pod.looping = pod.lost;
        pod.ready = pod.ready && !pod.lost && voting > late;
        pod.restarts = 1;
        pod.message = if pod.lost { "exited with 1: member count is unequal".to_owned() } else { String::new() };
    }
    etcd
}

#[test]
fn a_new_member_whose_container_ended_before_it_was_added_is_not_replaced_again_however_late_its_pod_is_ready() {
    let steps = ["MemberRemove", "VolumeDelete", "recreate", "MemberAdd", "MemberPromote"];
    let passes = [0, 1, 5];
    for (stale, late) in passes.into_iter().flat_map(|stale| passes.map(|late| (stale, late))) {
        let mut etcd = replaced(stale, late);
        let when = format!("status {stale} passes old, ready {late} passes after the promotion");
        assert_eq!(etcd.log, steps.map(|step| format!("{step} etcd-2")), "{when}");
        assert_eq!(etcd.pass(), NextMemberStep::Nothing, "{when}");
        let known = etcd.world.status.etcd.clone().unwrap();
        assert_eq!((known.members, known.serving, known.change), (3, 3, None), "{when}");
        assert!(etcd.world.members()[2].ready && etcd.names().len() == 3, "{when}");
    }
}

#[test]
fn a_member_that_answers_has_not_lost_its_data_whatever_its_pod_says() {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    etcd.world.wipe(2);
    assert!(matches!(etcd.pass(), NextMemberStep::Wait(_)));
    assert_eq!((etcd.log.len(), etcd.world.status.etcd.clone().unwrap().change), (0, None));
    // One that really did does not answer.
    let lost = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != lost);
    etcd.world.wipe(2);
    let NextMemberStep::Record(recorded) = etcd.pass() else { panic!("{:?}", etcd.log) };
    assert_eq!(recorded.change.unwrap().type_, MemberChangeType::Replace);
}

#[test]
fn nothing_starts_as_the_new_member_while_the_old_volume_exists() {
    let mut etcd = Etcd::new(3);
    let lost = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != lost);
    etcd.live();
    etcd.world.wipe(2);
    let old = etcd.world.claims.iter().find(|claim| claim.name == "data-etcd-2").unwrap().uid.clone();
    for _ in 0..30 {
        let next = etcd.pass();
        if matches!(next, NextMemberStep::Act(MemberAction::Add { .. })) {
            assert!(etcd.world.claims.iter().all(|claim| claim.uid != old), "the old volume is still there");
        }
    }
    assert_eq!(etcd.names().len(), 3);
    // Somebody, or an older operator, added it too early: the container that restarts could have taken that place on the old volume.
    etcd.log.clear();
    let lost = etcd.members.iter().find(|member| member.name == "etcd-2").unwrap().id.clone();
    etcd.alive.retain(|id| *id != lost);
    etcd.live();
    etcd.world.wipe(2);
    while !etcd.log.iter().any(|one| one.starts_with("MemberRemove")) {
        etcd.pass();
    }
    etcd.act(&MemberAction::Add { member: "etcd-2".to_owned(), peer_url: url("etcd-2"), volume: String::new() });
    // It does not run on that volume.
    etcd.members.last_mut().unwrap().name = "etcd-2".to_owned();
    etcd.settle();
    let removed = etcd.log.iter().filter(|one| one.starts_with("MemberRemove")).count();
    assert_eq!(removed, 2, "{:?}", etcd.log);
}

#[test]
fn a_member_that_lost_its_data_again_as_a_learner_is_replaced_again() {
    let mut etcd = Etcd::new(3);
    let lost = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != lost);
    etcd.live();
    etcd.world.wipe(2);
    while !etcd.members.iter().any(|member| member.learner && !member.name.is_empty()) {
        etcd.pass();
    }
    let learner = etcd.members.iter().find(|member| member.learner).unwrap().id.clone();
    etcd.alive.retain(|id| *id != learner);
    etcd.world.wipe(2);
    etcd.settle();
    assert_eq!(etcd.names().len(), 3);
    assert!(etcd.members.iter().all(|member| member.id != learner));
}

#[test]
fn an_act_whose_answer_was_not_heard_counts_as_done_when_the_members_and_volumes_say_so() {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    let lost = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != lost);
    etcd.live();
    etcd.world.wipe(2);
    let mut acts = Vec::new();
    for _ in 0..20 {
        let (member_list, claims) = (etcd.member_list(), etcd.world.claims.clone());
        let names = etcd.world.names.clone();
        let NextMemberStep::Act(act) = etcd.pass() else { continue };
        let fingerprint = format!("{}-1", act.fingerprint());
        let done = |member_list: &MemberList, claims: &[VolumeClaim]| {
            was_done(act.type_(), &fingerprint, &names, member_list, claims)
        };
        assert!(!done(&member_list, &claims), "{act:?} is not done yet");
        assert!(done(&etcd.member_list(), &etcd.world.claims), "{act:?} is done");
        acts.push(act.type_());
    }
    assert_eq!(acts, ["EtcdMemberRemove", "EtcdVolumeDelete", "EtcdMemberAdd", "EtcdMemberPromote"]);
}

#[test]
fn a_member_is_removed_only_while_the_others_agree_without_it() {
    let member = |number: u32| Member {
        id: (100 + number).to_string(),
        name: format!("etcd-{number}"),
        peer_urls: vec![url(&format!("etcd-{number}"))],
        learner: false,
    };
    let all = || (0..3).map(member).collect::<Vec<_>>();
    let member_list = |members: Vec<Member>, answered: &[(&str, &str)]| MemberList {
        members,
        answered: answered
            .iter()
            .map(|(id, leader)| MemberAnswer {
                id: (*id).to_owned(),
                leader: (*leader).to_owned(),
                ..MemberAnswer::default()
            })
            .collect(),
    };
    let act = MemberAction::Remove { member: "etcd-2".to_owned(), id: "102".to_owned(), needed: 2, lost: None };
    let refused = |member_list: &MemberList| act.refused(member_list).is_some();
    assert!(!refused(&member_list(all(), &[("100", "100"), ("101", "100")])));
    assert!(
        !refused(&member_list(all(), &[("100", "102"), ("101", "102"), ("102", "102")])),
        "it leads, and can hand over"
    );
    assert!(refused(&member_list(all(), &[("100", "100")])), "one alone");
    assert!(refused(&member_list(all(), &[("100", "100"), ("101", "101")])), "they do not agree");
    assert!(refused(&member_list(all(), &[("100", "0"), ("101", "0")])), "there is no leader");
    assert!(refused(&member_list(all(), &[("100", "102"), ("101", "102")])), "it leads and does not answer");
    assert!(refused(&member_list(all(), &[("100", "100"), ("102", "100")])), "its own answer does not count");
    assert!(refused(&member_list(Vec::new(), &[])));
}

#[test]
fn a_change_is_recorded_before_its_first_step() {
    let mut etcd = Etcd::new(3);
    etcd.declare(1);
    let NextMemberStep::Record(recorded) = etcd.pass() else { panic!("{:?}", etcd.log) };
    let change = recorded.change.clone().unwrap();
    assert_eq!((change.type_, change.member.as_str()), (MemberChangeType::Remove, "etcd-2"));
    assert!(change.member_id.is_some() && change.claim_uid.is_some() && etcd.log.is_empty());
    assert_eq!(etcd.world.status.etcd, Some(recorded));
    // Unrecorded values are taken from the live objects, not from the spec.
    etcd.world.status.etcd = None;
    let decision = etcd.world.decide();
    assert_eq!(decision.etcd.unwrap().members, 3);
}

#[test]
fn a_change_of_version_and_of_members_at_once_are_done_one_after_the_other() {
    let mut etcd = Etcd::new(3);
    etcd.world.spec.package_version = "v1.37".to_owned();
    etcd.declare(5);
    etcd.settle();
    assert_eq!(etcd.world.status.package_version.as_deref(), Some("v1.37"));
    assert_eq!(etcd.names().len(), 5);
}

/// The sizes of volumes, and the size that new ones would have.
fn sizes(etcd: &Etcd) -> (Vec<String>, Value) {
    let set = &etcd.world.live[&(Kind::StatefulSet, "etcd".to_owned())];
    let size = set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"].clone();
    (etcd.world.claims.iter().map(|claim| claim.size.clone()).collect(), size)
}

fn grow(etcd: &mut Etcd) {
    etcd.world.spec.datastore.etcd.as_mut().unwrap().storage.size.0 = "20Gi".to_owned();
}

#[test]
fn volumes_grow_in_place_and_no_write_of_the_immutable_template_is_tried() {
    let mut etcd = Etcd::new(3);
    let uids = |etcd: &mut Etcd| etcd.world.members().iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>();
    let before = uids(&mut etcd);
    grow(&mut etcd);
    let decision = etcd.world.decide();
    assert!(decision.orphan.is_some() && decision.expand.len() == 3);
    assert!(!kinds(&decision).iter().any(|(kind, _)| *kind == Kind::StatefulSet));
    etcd.settle();
    assert_eq!(sizes(&etcd), (vec!["20Gi".to_owned(); 3], "20Gi".into()));
    assert_eq!((uids(&mut etcd), etcd.log.len()), (before, 0), "no pod was touched");
}

#[test]
fn volumes_of_members_that_are_removed_grow_only_while_members_are_not_ready() {
    let mut etcd = Etcd::new(3);
    grow(&mut etcd);
    etcd.declare(1);
    let expanded =
        |etcd: &Etcd| etcd.world.decide().expand.into_iter().map(|(claim, _)| claim.name).collect::<Vec<_>>();
    assert_eq!(expanded(&etcd), ["data-etcd-0"]);
    // The removal of etcd-2 waits for this member, whose volume may be full.
    let down = etcd.members[1].id.clone();
    etcd.alive.retain(|id| *id != down);
    etcd.live();
    assert_eq!(expanded(&etcd), ["data-etcd-0", "data-etcd-1", "data-etcd-2"]);
    etcd.alive.push(down);
    etcd.live();
    for _ in 0..40 {
        etcd.pass();
        let small = etcd.world.claims.iter().filter(|claim| claim.name != "data-etcd-0");
        assert!(small.clone().all(|claim| claim.size != "20Gi"), "{:?}", small.collect::<Vec<_>>());
    }
    etcd.settle();
    assert_eq!(sizes(&etcd), (vec!["20Gi".to_owned()], "20Gi".into()));
}

#[test]
fn volumes_that_cannot_grow_are_replaced_member_by_member() {
    let mut etcd = Etcd::new(3);
    etcd.expandable = false;
    etcd.world.claims.iter_mut().for_each(|claim| claim.expandable = false);
    grow(&mut etcd);
    etcd.settle();
    assert_eq!(sizes(&etcd), (vec!["20Gi".to_owned(); 3], "20Gi".into()));
    let steps = ["MemberRemove", "VolumeDelete", "recreate", "MemberAdd", "MemberPromote"];
    let all: Vec<_> =
        ["etcd-2", "etcd-1", "etcd-0"].iter().flat_map(|name| steps.map(|step| format!("{step} {name}"))).collect();
    assert_eq!(etcd.log, all);
    // A single member cannot be replaced without losing its data.
    let mut etcd = Etcd::new(1);
    etcd.world.claims[0].expandable = false;
    grow(&mut etcd);
    for _ in 0..5 {
        etcd.pass();
    }
    assert!(etcd.log.is_empty(), "{:?}", etcd.log);
    assert_eq!(etcd.world.said(names::MEMBERS_UP_TO_DATE).1, names::reasons::MEMBERS_UNHEALTHY);
}

/// What replaces a member whose volume claim is being deleted already.
fn renewed(member: &str) -> Vec<String> {
    ["MemberRemove", "recreate", "MemberAdd", "MemberPromote"].iter().map(|step| format!("{step} {member}")).collect()
}

/// Other arguments, and with them another template.
fn edit(etcd: &mut Etcd) {
    let args = [("snapshot-count".to_owned(), "5000".to_owned())].into();
    etcd.world.spec.components.etcd = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
}

#[test]
fn a_member_whose_volume_goes_with_its_pod_is_not_restarted_for_a_new_template() {
    let mut etcd = Etcd::new(1);
    etcd.settle();
    etcd.world.claims[0].ending = true;
    assert_eq!(
        etcd.world.said(names::MEMBERS_UP_TO_DATE).1,
        names::reasons::VOLUME_TERMINATING,
        "also without an edit"
    );
    edit(&mut etcd);
    let uid = etcd.world.members()[0].uid.clone();
    for _ in 0..10 {
        etcd.pass();
    }
    assert_eq!((&etcd.world.members()[0].uid, etcd.log.len()), (&uid, 0), "{:?}", etcd.log);
    let (status, reason, message) = etcd.world.said(names::MEMBERS_UP_TO_DATE);
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::VOLUME_TERMINATING));
    assert!(message.contains("data-etcd-0") && message.contains("members to 3"), "{message}");
    let waits = etcd.world.status.waiting_for.clone().unwrap();
    assert!(waits.contains("data-etcd-0"), "{waits}");
    // As it says: with two others it is replaced, and gets the new template.
    etcd.declare(3);
    etcd.settle();
    let added = ["etcd-1", "etcd-2"].map(|member| ["MemberAdd", "MemberPromote"].map(|act| format!("{act} {member}")));
    assert_eq!(etcd.log, [added.concat(), renewed("etcd-0")].concat());
    assert!(etcd.world.claims.iter().all(|claim| !claim.ending) && etcd.names().len() == 3);
    assert_eq!(etcd.world.said(names::MEMBERS_UP_TO_DATE).1, names::reasons::ALL_MEMBERS_UP_TO_DATE);
}

#[test]
fn one_of_three_members_whose_volume_goes_with_its_pod_is_replaced_and_all_others_are_restarted() {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    etcd.world.claims[1].ending = true;
    edit(&mut etcd);
    etcd.settle();
    assert_eq!(etcd.log, renewed("etcd-1"));
    let template = etcd.world.decide().templates[&ControlPlaneComponent::Etcd].clone();
    assert!(etcd.world.members().iter().all(|pod| pod.template.as_ref() == Some(&template)));
    // It is replaced before those go that it could have its data from.
    etcd.log.clear();
    etcd.world.claims.iter_mut().find(|claim| claim.name == "data-etcd-0").unwrap().ending = true;
    etcd.declare(1);
    etcd.settle();
    assert_eq!((etcd.names(), &etcd.log[..4]), (vec!["etcd-0"], &renewed("etcd-0")[..]));
}

#[test]
fn no_upgrade_begins_before_a_member_is_replaced_whose_volume_goes_with_its_pod() {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    etcd.world.claims[1].ending = true;
    etcd.world.spec.package_version = "v1.37".to_owned();
    let decision = etcd.world.decide();
    assert_eq!((decision.package.as_str(), decision.apply.len()), ("v1.36", 0));
    assert_eq!(decision.refused.unwrap().0, names::reasons::VOLUME_TERMINATING);
    for _ in 0..20 {
        etcd.pass();
    }
    assert_eq!(etcd.log, renewed("etcd-1"));
    let refused = etcd.world.decide().refused.map(|(reason, _)| reason);
    assert_ne!(refused, Some(names::reasons::VOLUME_TERMINATING));
}

/// A cluster that soaks with a package version whose etcd differs in the patch version.
fn soaking(members: u32) -> Etcd {
    let mut etcd = Etcd::new(members);
    let newer = ClusterPackageVersionSpec::of_images("registry.example", "1.37.1", "3.6.17");
    etcd.world.packages.insert("v1.37".to_owned(), newer);
    etcd.world.spec.package_version = "v1.37".to_owned();
    etcd.settle();
    assert_eq!(etcd.world.status.phase, Some(ClusterPhase::Soaking));
    etcd
}

/// Somebody deletes the volume claim of that member.
fn delete_claim(etcd: &mut Etcd, member: &str) {
    let name = crate::cluster::members::claim(member);
    etcd.world.claims.iter_mut().find(|claim| claim.name == name).unwrap().ending = true;
}

#[test]
fn a_rollback_goes_on_when_a_member_was_replaced_whose_volume_goes_with_its_pod() {
    let mut etcd = soaking(3);
    etcd.world.spec.package_version = "v1.36".to_owned();
    while etcd.world.workloads[&ControlPlaneComponent::Etcd].package.as_deref() != Some("v1.36") {
        etcd.pass();
    }
    delete_claim(&mut etcd, "etcd-1");
    etcd.settle();
    assert_eq!(etcd.log, renewed("etcd-1"));
    assert_eq!(etcd.world.status.package_version.as_deref(), Some("v1.36"));

    // A single one is replaced when there are two others, as it says.
    let mut etcd = soaking(1);
    delete_claim(&mut etcd, "etcd-0");
    etcd.world.spec.package_version = "v1.36".to_owned();
    for _ in 0..20 {
        etcd.pass();
    }
    assert_eq!((etcd.log.len(), etcd.world.status.package_version.as_deref()), (0, Some("v1.37")));
    let message = etcd.world.said(names::MEMBERS_UP_TO_DATE).2;
    assert!(message.contains("members to 3"), "{message}");
    etcd.declare(3);
    etcd.settle();
    assert_eq!((etcd.names().len(), &etcd.log[4..]), (3, &renewed("etcd-0")[..]));
    assert_eq!(etcd.world.status.package_version.as_deref(), Some("v1.36"));
}

/// A cluster of three members in the first phase of a rotation of its authorities.
fn rotating() -> Etcd {
    let mut etcd = Etcd::new(3);
    let every = fleetwright_api::Span::seconds(0);
    etcd.world.spec.snapshots = Some(fleetwright_api::Snapshots { every, ..Default::default() });
    etcd.settle();
    etcd.world.spec.certificates.rotate_authorities = Some("2026-11".to_owned());
    while etcd.world.status.rotation.is_none() {
        etcd.pass();
    }
    etcd
}

/// The overlaps of a rotation pass.
fn rotated(etcd: &mut Etcd) {
    for _ in 0..3 {
        for _ in 0..40 {
            etcd.pass();
        }
        etcd.world.now += SignedDuration::from_hours(24);
    }
    etcd.settle();
    assert_eq!(etcd.world.status.authorities.as_deref(), Some("2026-11"));
    assert!(etcd.world.anchors.iter().all(|anchor| anchor.trusted == 1 && !anchor.next));
}

#[test]
fn a_rotation_of_authorities_ends_though_other_members_are_declared_and_then_these_come() {
    let mut etcd = rotating();
    etcd.declare(5);
    for _ in 0..40 {
        etcd.pass();
    }
    assert!(etcd.log.is_empty() && etcd.world.status.rotation.is_some(), "{:?}", etcd.log);
    rotated(&mut etcd);
    assert_eq!(etcd.names().len(), 5);
}

#[test]
fn a_rotation_of_authorities_goes_on_when_a_member_was_replaced_whose_volume_goes_with_its_pod() {
    let mut etcd = rotating();
    delete_claim(&mut etcd, "etcd-1");
    for _ in 0..40 {
        etcd.pass();
    }
    assert_eq!(etcd.log, renewed("etcd-1"));
    assert!(etcd.world.status.rotation.is_some());
    rotated(&mut etcd);
    assert_eq!(etcd.log, renewed("etcd-1"));
}

#[test]
fn no_version_is_changed_while_a_member_is() {
    let mut etcd = Etcd::new(3);
    let change = MemberChange {
        type_: MemberChangeType::Remove,
        member: "etcd-2".to_owned(),
        member_id: None,
        pod_uid: None,
        claim_uid: None,
        since: NOW,
    };
    etcd.world.status.etcd = Some(EtcdStatus { members: 3, serving: 3, change: Some(change), ..EtcdStatus::default() });
    etcd.world.spec.package_version = "v1.37".to_owned();
    assert_eq!(etcd.world.decide().refused.unwrap().0, names::reasons::MEMBER_CHANGE_IN_PROGRESS);
}

#[test]
fn a_new_member_whose_pod_finds_no_node_gets_a_template_that_was_corrected() {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    etcd.declare(5);
    while etcd.world.members().len() < 4 {
        etcd.pass();
    }
    let learner = etcd.members[3].id.clone();
    etcd.alive.retain(|id| *id != learner);
    etcd.world.members()[3].has_run = false;
    for _ in 0..3 {
        assert!(matches!(etcd.pass(), NextMemberStep::Wait(_)));
    }
    // Such as a smaller request, or another node selector.
    edit(&mut etcd);
    assert_eq!(etcd.world.decide().replace.map(|pod| pod.name).as_deref(), Some("etcd-3"));
    etcd.pass();
    assert_eq!(etcd.world.decide().replace, None, "members that work wait for the end of the change");
    etcd.world.members()[3].has_run = true;
    etcd.alive.push(learner);
    etcd.settle();
    assert_eq!(etcd.names().len(), 5);
}

#[test]
fn an_edit_that_broke_a_member_is_taken_back_though_another_one_is_gone() {
    let mut world = TestCluster::new();
    world.settle();
    let args = [("quota-backend-bytes".to_owned(), "16g".to_owned())].into();
    world.spec.components.etcd = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
    let decision = world.decide();
    assert_eq!(decision.replace.as_ref().map(|pod| pod.name.as_str()), Some("etcd-2"));
    world.applied(&decision);
    let broken = &mut world.members()[2];
    (broken.ready, broken.looping, broken.restarts) = (false, true, 3);
    // The node of another one is lost.
    (world.members()[1].ready, world.members()[1].ending) = (false, true);
    assert_eq!(world.decide().replace, None);
    world.spec.components.etcd = None;
    assert_eq!(world.decide().replace.map(|pod| pod.name).as_deref(), Some("etcd-2"));
}

/// That many members, this one a learner that runs and that no change promotes.
fn with_learner_at(members: u32, number: usize) -> Etcd {
    let mut etcd = Etcd::new(members);
    etcd.settle();
    etcd.members[number].learner = true;
    etcd.live();
    etcd
}

fn with_learner() -> Etcd {
    with_learner_at(3, 2)
}

/// A member stops, and its volume is emptied.
fn lose(etcd: &mut Etcd, number: usize) {
    let name = format!("etcd-{number}");
    let lost = etcd.members.iter().find(|member| member.name == name).unwrap().id.clone();
    etcd.alive.retain(|id| *id != lost);
    etcd.live();
    etcd.world.wipe(number);
}

/// Records that the learner is replaced.
fn replacing(etcd: &mut Etcd) {
    let claim = etcd.world.claims.iter().find(|claim| claim.name == "data-etcd-2").unwrap().uid.clone();
    let change = MemberChange {
        type_: MemberChangeType::Replace,
        member: "etcd-2".to_owned(),
        member_id: Some(etcd.members[2].id.clone()),
        pod_uid: Some(etcd.world.members()[2].uid.clone()),
        claim_uid: Some(claim),
        since: NOW,
    };
    etcd.world.status.etcd = Some(EtcdStatus { members: 3, serving: 3, change: Some(change), ..EtcdStatus::default() });
}

#[test]
fn a_learner_whose_change_another_process_ended_is_promoted() {
    let mut etcd = with_learner();
    assert_eq!(etcd.world.status.etcd.as_ref().and_then(|record| record.change.clone()), None);
    etcd.settle();
    assert_eq!(etcd.names(), ["etcd-0", "etcd-1", "etcd-2"]);
    assert_eq!(etcd.log.len(), 1, "nothing but the promotion: {:?}", etcd.log);
}

#[test]
fn a_learner_that_was_taken_for_lost_and_runs_again_is_promoted() {
    let mut etcd = with_learner();
    replacing(&mut etcd);
    etcd.settle();
    assert_eq!(etcd.names(), ["etcd-0", "etcd-1", "etcd-2"]);
    assert_eq!(etcd.log.len(), 1, "nothing but the promotion: {:?}", etcd.log);
}

/// All other changes wait until all members are ready: a learner that waited for them would never be promoted.
#[test]
fn a_learner_is_promoted_whatever_else_is_declared() {
    let edits: [fn(&mut Etcd); 3] = [
        |etcd| {
            // Its own volume is large enough already.
            etcd.world.claims.iter_mut().for_each(|claim| claim.expandable = false);
            etcd.world.claims.iter_mut().find(|claim| claim.name == "data-etcd-2").unwrap().size = "20Gi".to_owned();
            etcd.expandable = false;
            grow(etcd);
        },
        |etcd| etcd.declare(5),
        |etcd| edit(etcd),
    ];
    for (number, change) in edits.into_iter().enumerate() {
        for replaced in [false, true] {
            let mut etcd = with_learner();
            change(&mut etcd);
            if replaced {
                replacing(&mut etcd);
            }
            etcd.settle();
            assert_eq!(etcd.log[0], "MemberPromote etcd-2", "edit {number}, {replaced}: {:?}", etcd.log);
            assert!(etcd.members.iter().all(|member| !member.learner), "edit {number}, {replaced}");
        }
    }
}

#[test]
fn a_learner_is_promoted_while_secrets_of_the_control_plane_are_refused() {
    let mut etcd = with_learner();
    let accepted = etcd.world.status.conditions.iter_mut().find(|one| one.type_ == names::ACCEPTED).unwrap();
    (accepted.status, accepted.reason) = (Status::False, names::reasons::WRITE_REFUSED.to_owned());
    let wanted = certificates::required_certificates(&etcd.world.names, &etcd.world.spec, &[]);
    etcd.world.due = vec![(wanted[0].clone(), RenewalReason::Missing)];
    etcd.world.members = Some(MemberQueryResult { at: etcd.world.now, outcome: Ok(etcd.member_list()) });
    let NextMemberStep::Record(recorded) = etcd.world.decide().members else { panic!("{:#?}", etcd.world.decide()) };
    assert_eq!(recorded.change.unwrap().type_, MemberChangeType::Add);
    // One that does not run waits, for it may need what is missing.
    let learner = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != learner);
    etcd.world.members = Some(MemberQueryResult { at: etcd.world.now, outcome: Ok(etcd.member_list()) });
    assert_eq!(etcd.world.decide().members, NextMemberStep::Nothing);
}

/// The status of its pod is old, and the member answers: it is not removed again, as a learner and as a voter.
#[test]
fn a_learner_that_answers_is_not_removed_whatever_its_pod_says() {
    let mut etcd = with_learner();
    replacing(&mut etcd);
    for _ in 0..6 {
        etcd.world.wipe(2);
        etcd.pass();
    }
    assert_eq!(etcd.log, ["MemberPromote etcd-2"]);
    assert_eq!(etcd.world.status.etcd.clone().unwrap().change, None);
    etcd.world.members()[2].lost = false;
    etcd.settle();
    assert_eq!(etcd.log, ["MemberPromote etcd-2"]);
}

/// Removing it from etcd and scaling down would stop the members after it, which have votes.
#[test]
fn a_learner_that_is_not_the_last_member_is_promoted_before_members_are_removed() {
    for (members, number, declared) in [(3, 1, 1), (5, 3, 3), (5, 1, 1), (5, 1, 3)] {
        let mut etcd = with_learner_at(members, number);
        etcd.declare(declared);
        etcd.settle();
        assert_eq!(etcd.log[0], format!("MemberPromote etcd-{number}"), "{members} → {declared}: {:?}", etcd.log);
        assert_eq!(etcd.names().len(), declared as usize, "{members} → {declared}");
    }
    // Its removal was recorded already.
    let mut etcd = with_learner_at(3, 1);
    etcd.declare(1);
    let change = MemberChange {
        type_: MemberChangeType::Remove,
        member: "etcd-1".to_owned(),
        member_id: Some(etcd.members[1].id.clone()),
        pod_uid: None,
        claim_uid: None,
        since: NOW,
    };
    etcd.world.status.etcd = Some(EtcdStatus { members: 3, serving: 3, change: Some(change), ..EtcdStatus::default() });
    etcd.settle();
    assert_eq!(etcd.world.members().len(), 1);
    assert_eq!(etcd.names(), ["etcd-0"], "{:?}", etcd.log);
}

/// etcd has one learner at a time: the replacement would wait for its place.
#[test]
fn a_learner_is_promoted_before_another_member_is_replaced() {
    let mut etcd = with_learner_at(5, 4);
    lose(&mut etcd, 1);
    etcd.settle();
    assert_eq!(etcd.log[..2], ["MemberPromote etcd-4", "MemberRemove etcd-1"], "{:?}", etcd.log);
    assert_eq!(etcd.names().len(), 5);
}

#[test]
fn the_second_of_two_members_is_found_when_it_is_a_learner() {
    let mut etcd = Etcd::new(1);
    etcd.declare(3);
    while etcd.world.members().len() < 2 {
        etcd.pass();
    }
    etcd.world.status.etcd.as_mut().unwrap().change = None;
    etcd.settle();
    assert_eq!(etcd.names(), ["etcd-0", "etcd-1", "etcd-2"]);
}

#[test]
fn a_learner_gets_no_vote_with_a_volume_that_goes() {
    let mut etcd = with_learner();
    delete_claim(&mut etcd, "etcd-2");
    etcd.settle();
    assert_eq!(etcd.log[0], "MemberRemove etcd-2", "{:?}", etcd.log);
    // While it is added as the second member.
    let mut etcd = Etcd::new(1);
    etcd.declare(3);
    while etcd.world.members().len() < 2 {
        etcd.pass();
    }
    delete_claim(&mut etcd, "etcd-1");
    etcd.log.clear();
    etcd.settle();
    assert_eq!(etcd.log[0], "MemberRemove etcd-1", "{:?}", etcd.log);
    assert_eq!(etcd.names(), ["etcd-0", "etcd-1", "etcd-2"]);
}

/// Its last words are not among those that show a loss.
#[test]
fn a_learner_that_cannot_start_from_its_volume_is_replaced() {
    let mut etcd = with_learner();
    let learner = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != learner);
    etcd.pass();
    assert!(etcd.world.status.etcd.as_ref().unwrap().change.is_some(), "its change is recorded");
    let pod = &mut etcd.world.members()[2];
    (pod.looping, pod.restarts) = (true, 5);
    etcd.settle();
    assert_eq!(etcd.log[0], "MemberRemove etcd-2", "{:?}", etcd.log);
    assert_eq!(etcd.names().len(), 3);
}

#[test]
fn an_unwanted_learner_is_removed_while_a_voter_is_gone() {
    let mut etcd = Etcd::new(3);
    etcd.declare(5);
    while etcd.world.members().len() < 4 {
        etcd.pass();
    }
    let learner = etcd.members[3].id.clone();
    etcd.alive.retain(|id| *id != learner);
    lose(&mut etcd, 1);
    etcd.declare(3);
    etcd.settle();
    assert_eq!((etcd.names().len(), etcd.members.len()), (3, 3), "{:?}", etcd.log);
}

#[test]
fn a_member_that_answers_is_not_removed_because_it_lost_its_data() {
    let etcd = Etcd::new(3);
    let (member, id, lost) = ("etcd-2".to_owned(), etcd.members[2].id.clone(), Some("uid".to_owned()));
    let removes = MemberAction::Remove { member, id: id.clone(), needed: 2, lost };
    assert!(removes.refused(&etcd.member_list()).unwrap().contains("responds"));
    let without = MemberList {
        answered: etcd.member_list().answered.into_iter().filter(|one| one.id != id).collect(),
        ..etcd.member_list()
    };
    assert_eq!(removes.refused(&without), None);
}

/// The members are asked now and then, and what is reported meanwhile stays as it is.
#[test]
fn members_are_asked_for_a_learner_beside_a_change_that_waits() {
    let mut etcd = Etcd::new(3);
    etcd.settle();
    etcd.declare(5);
    let silent = etcd.members[2].id.clone();
    etcd.alive.retain(|id| *id != silent);
    etcd.live();
    etcd.pass();
    let told = etcd.world.said(names::MEMBERS_UP_TO_DATE);
    assert_eq!(told.1, names::reasons::MEMBERS_UNHEALTHY);
    let begun = etcd.world.now;
    for (after, asks) in [(1, false), (6, false), (29, false), (31, true)] {
        etcd.world.now = begun + SignedDuration::from_secs(after);
        let decision = etcd.world.decide();
        assert!(matches!(decision.members, NextMemberStep::Refuse(_)), "{:?}", decision.members);
        assert_eq!(
            (decision.query_members, etcd.world.said(names::MEMBERS_UP_TO_DATE)),
            (asks, told.clone()),
            "{after}"
        );
    }
    // A pod that has no address cannot be one.
    etcd.world.members()[2].ip = None;
    assert!(!etcd.world.decide().query_members);
}

#[test]
fn a_member_that_lost_its_data_is_replaced_before_a_change_that_is_only_recorded() {
    let renew = |etcd: &mut Etcd| {
        etcd.expandable = false;
        etcd.world.claims.iter_mut().for_each(|claim| claim.expandable = false);
        grow(etcd);
    };
    for (number, (members, declared)) in [(3, 3), (3, 5), (5, 3)].into_iter().enumerate() {
        let mut etcd = Etcd::new(members);
        etcd.settle();
        if members == declared {
            renew(&mut etcd);
        } else {
            etcd.declare(declared);
        }
        while etcd.world.status.etcd.as_ref().unwrap().change.is_none() {
            etcd.pass();
        }
        assert!(etcd.log.is_empty(), "case {number}: {:?}", etcd.log);
        let lost = etcd.members[0].id.clone();
        etcd.alive.retain(|id| *id != lost);
        etcd.live();
        etcd.world.wipe(0);
        etcd.settle();
        assert_eq!(etcd.log[0], "MemberRemove etcd-0", "case {number}: {:?}", etcd.log);
        assert!(etcd.members.iter().all(|member| member.id != lost && !member.learner));
    }
}

#[test]
fn a_member_that_ends_for_another_reason_keeps_its_volume() {
    let mut world = TestCluster::new();
    world.settle();
    world.wipe(2);
    world.members()[2].lost = false;
    assert_eq!(world.decide().members, NextMemberStep::QueryMembers, "it may be a learner");
    // While others are well with the same template, it cannot be the template.
    world.members()[2].restarts = 5;
    world.members()[2].looping = true;
    assert_eq!(world.decide().members, NextMemberStep::QueryMembers);
    assert!(world.healthy().2.contains("lost its data"));
    // One that ended so often before it was ready for a while ended once since.
    world.members()[2].was_ready = true;
    assert!(!world.healthy().2.contains("lost its data"));
    world.members()[2].was_ready = false;
    // One that runs again and has yet to become ready has lost nothing, however often it was restarted before.
    world.members()[2].looping = false;
    assert!(!world.healthy().2.contains("lost its data"));
    world.members()[2].template = Some("another".to_owned());
    let decision = world.decide();
    assert_eq!((decision.members, decision.query_members), (NextMemberStep::Nothing, true), "it may be a learner");
    assert!(!world.healthy().2.contains("lost its data"));
}

#[test]
fn no_member_is_replaced_when_the_quorum_is_lost_and_it_says_what_to_do() {
    let mut world = TestCluster::new();
    world.settle();
    world.wipe(1);
    world.wipe(2);
    let decision = world.decide();
    assert_eq!((decision.members, decision.replace), (NextMemberStep::Nothing, None));
    let (status, reason, message) = world.healthy();
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::QUORUM_LOST));
    assert!(message.contains("1 of 3") && message.contains("2 required"), "{message}");
    assert!(message.contains("no snapshot"), "{message}");
}

#[test]
fn no_change_of_version_begins_and_no_api_server_moves_without_a_quorum() {
    let mut world = TestCluster::new();
    world.settle();
    world.wipe(1);
    world.wipe(2);
    world.spec.package_version = "v1.37".to_owned();
    let decision = world.decide();
    assert!(decision.apply.is_empty(), "{:?}", kinds(&decision));
    assert_eq!(decision.refused.unwrap().0, names::reasons::QUORUM_LOST);
    world.spec.package_version = "v1.36".to_owned();
    let args = [("v".to_owned(), "4".to_owned())].into();
    world.spec.components.apiserver = Some(ComponentOverrides { args, ..ComponentOverrides::default() });
    assert!(world.decide().apply.is_empty());
    // Manual changes of it are repaired all the same.
    let key = (Kind::Deployment, "kube-scheduler".to_owned());
    world.live.get_mut(&key).unwrap()["spec"]["replicas"] = 0.into();
    assert_eq!(kinds(&world.decide()), [(Kind::Deployment, "kube-scheduler")]);
    // And when they are back, all of it continues.
    world.live.get_mut(&key).unwrap()["spec"]["replicas"] = 2.into();
    world.members().iter_mut().for_each(|member| member.ready = true);
    assert_eq!(kinds(&world.decide()), [(Kind::Deployment, "kube-apiserver")]);
}

#[test]
fn members_that_begin_are_waited_for_before_their_quorum_counts_as_lost() {
    let mut world = TestCluster::new();
    world.settle();
    world.members().iter_mut().for_each(|member| member.ready = false);
    assert_eq!(world.healthy().1, names::reasons::MEMBERS_MISSING);
    assert!(world.decide().next.is_some());
    world.status = world.status();
    let since = NOW - SignedDuration::from_secs(61);
    for one in world.status.conditions.iter_mut().filter(|one| one.type_ == names::DATASTORE_HEALTHY) {
        one.last_transition_time = since;
    }
    assert_eq!(world.healthy().1, names::reasons::QUORUM_LOST);
}

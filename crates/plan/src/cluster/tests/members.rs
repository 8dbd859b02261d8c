//! Members of etcd that are lost.

use super::*;

impl World {
    fn members(&mut self) -> &mut Vec<Replica> {
        &mut self.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas
    }

    /// As a member looks whose volume was emptied.
    fn wipe(&mut self, number: usize) {
        let member = &mut self.members()[number];
        (member.ready, member.lost, member.restarts) = (false, true, 1);
        member.message = "CrashLoopBackOff; it ended with 1: member 1 has already been bootstrapped".to_owned();
    }

    fn healthy(&self) -> (Status, String, String) {
        let status = self.status();
        let one = condition(&status.conditions, names::DATASTORE_HEALTHY).unwrap();
        (one.status, one.reason.clone(), one.message.clone())
    }
}

#[test]
fn a_member_that_lost_what_it_knew_is_asked_about_and_begins_anew_when_the_others_agreed() {
    let mut world = World::new();
    world.settle();
    assert_eq!((world.decide().mend, world.decide().anew), (None, None));
    world.wipe(2);
    let decision = world.decide();
    let suspect = decision.mend.unwrap();
    assert_eq!((suspect.name.as_str(), suspect.others.len(), decision.anew), ("etcd-2", 2, None));
    assert_eq!(suspect.peer_url, "https://etcd-2.etcd.fleet-pay.svc:2380");
    let mut mending = datastore::Mending { at: NOW, outcome: Err("they do not agree".to_owned()) };
    world.mendings.insert(suspect.uid.clone(), mending.clone());
    let decision = world.decide();
    assert_eq!((decision.mend, decision.anew), (None, None), "not again at once");
    assert!(decision.next.is_some_and(|next| next <= NOW + SignedDuration::from_secs(10)));
    assert!(world.healthy().2.contains("etcd-2 has lost what it knew and is not replaced yet: they do not agree"));
    mending.outcome = Ok(());
    world.mendings.insert(suspect.uid.clone(), mending.clone());
    assert_eq!(world.decide().anew.map(|member| member.name).as_deref(), Some("etcd-2"));
    // What was agreed long ago does not count: it may have been well since.
    mending.at = NOW - SignedDuration::from_secs(61);
    world.mendings.insert(suspect.uid, mending);
    let decision = world.decide();
    assert!(decision.anew.is_none() && decision.mend.is_some());
}

#[test]
fn a_member_that_ends_for_another_reason_keeps_its_volume() {
    let mut world = World::new();
    world.settle();
    world.wipe(2);
    world.members()[2].lost = false;
    assert_eq!(world.decide().mend, None);
    // While others are well with the same template, it cannot be the template.
    world.members()[2].restarts = 5;
    assert!(world.decide().mend.is_some());
    world.members()[2].template = Some("another".to_owned());
    assert_eq!(world.decide().mend, None);
}

#[test]
fn nobody_is_replaced_when_the_quorum_is_lost_and_it_says_what_to_do() {
    let mut world = World::new();
    world.settle();
    world.wipe(1);
    world.wipe(2);
    let decision = world.decide();
    assert_eq!((decision.mend, decision.anew, decision.replace), (None, None, None));
    let (status, reason, message) = world.healthy();
    assert_eq!((status, reason.as_str()), (Status::False, names::reasons::QUORUM_LOST));
    assert!(message.contains("1 of 3 members are ready, and 2 must be"), "{message}");
    assert!(message.contains("no snapshot"), "{message}");
}

#[test]
fn no_change_of_version_begins_and_no_api_server_moves_without_a_quorum() {
    let mut world = World::new();
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
    // What was done to it by hand is put right all the same.
    let key = (Kind::Deployment, "kube-scheduler".to_owned());
    world.live.get_mut(&key).unwrap()["spec"]["replicas"] = 0.into();
    assert_eq!(kinds(&world.decide()), [(Kind::Deployment, "kube-scheduler")]);
    // And when they are back, all of it goes on.
    world.live.get_mut(&key).unwrap()["spec"]["replicas"] = 2.into();
    world.members().iter_mut().for_each(|member| member.ready = true);
    assert_eq!(kinds(&world.decide()), [(Kind::Deployment, "kube-apiserver")]);
}

#[test]
fn members_that_begin_are_waited_for_before_their_quorum_counts_as_lost() {
    let mut world = World::new();
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

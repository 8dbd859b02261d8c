//! Replicas that do not work.

use super::*;

const SERVER: ControlPlaneComponent = ControlPlaneComponent::Apiserver;

fn after(seconds: i64) -> Timestamp {
    NOW + SignedDuration::from_secs(seconds)
}

impl TestCluster {
    /// A cluster without changes, with two API servers.
    fn rested() -> Self {
        let mut world = Self::new();
        world.settle();
        world
    }

    fn replicas(&mut self, component: ControlPlaneComponent) -> &mut Vec<Replica> {
        &mut self.workloads.get_mut(&component).unwrap().replicas
    }

    fn uid(&mut self, number: usize) -> String {
        self.replicas(SERVER)[number].uid.clone()
    }

    /// The proof of that API server fails since and for so long.
    fn fails(&mut self, number: usize, since: i64, began: i64, times: u32) {
        let failing = Some(FailedProofs { since: after(since), began: after(began), times });
        let proof =
            Proof { at: after(began + 1), restarts: 0, outcome: Err("it lies".to_owned()), emulates: None, failing };
        let uid = self.uid(number);
        self.proofs.insert(uid, proof);
    }

    fn works(&mut self, number: usize, at: i64) {
        let uid = self.uid(number);
        let proof =
            Proof { at: after(at), restarts: 0, outcome: Ok("1.36.4".to_owned()), emulates: None, failing: None };
        self.proofs.insert(uid, proof);
    }

    fn heal(&self, at: i64) -> heal::HealSteps {
        self.look(|seen| decide(seen, after(at))).heal
    }

    /// What the labels are after that.
    fn labelled(&mut self, at: i64) -> heal::HealSteps {
        let heal = self.heal(at);
        for one in &heal.serves {
            let uid = &one.replica.uid;
            self.replicas(SERVER).iter_mut().find(|replica| replica.uid == *uid).unwrap().serves = Some(one.serves);
        }
        heal
    }
}

fn out(heal: &heal::HealSteps) -> Vec<(&str, bool)> {
    heal.serves.iter().map(|one| (one.replica.uid.as_str(), one.serves)).collect()
}

#[test]
fn a_replica_that_fails_where_another_does_well_gets_no_clients() {
    let mut world = TestCluster::rested();
    world.fails(0, 10, 20, 3);
    world.works(1, 15);
    let uid = world.uid(0);
    let heal = world.labelled(21);
    assert_eq!(out(&heal), [(uid.as_str(), false)]);
    assert!(heal.serves[0].why.contains("it lies"), "{heal:?}");
    assert!(world.status().components[1].replicas[0].message.contains("endpoint"));
    assert!(world.heal(22).serves.is_empty());
    world.works(0, 30);
    assert_eq!(out(&world.heal(31)), [(uid.as_str(), true)], "it works again");
}

#[test]
fn what_all_of_them_suffer_from_takes_none_out() {
    let mut world = TestCluster::rested();
    world.fails(0, 10, 20, 9);
    world.fails(1, 11, 21, 1);
    assert!(world.heal(30).serves.is_empty());
    // The other did well, but that was before the failures, or after the last of them.
    for at in [5, 25] {
        world.works(1, at);
        assert!(world.heal(30).serves.is_empty(), "{at}");
    }
}

#[test]
fn the_others_are_asked_when_one_fails_again() {
    let mut world = TestCluster::rested();
    world.fails(0, 10, 12, 2);
    let second = world.uid(1);
    let asked = |world: &TestCluster| -> Vec<String> {
        let decision = world.look(|seen| decide(seen, after(13)));
        decision.prove.into_iter().map(|prover| prover.uid).collect()
    };
    assert!(asked(&world).contains(&second));
    world.works(1, 12);
    assert!(!asked(&world).contains(&second));
}

#[test]
fn the_last_good_one_stays_and_when_it_goes_the_bad_one_is_better_than_none() {
    let mut world = TestCluster::rested();
    world.fails(0, 10, 20, 3);
    world.works(1, 15);
    world.labelled(21);
    world.replicas(SERVER)[1].ready = false;
    let first = world.uid(0);
    let heal = world.heal(22);
    assert_eq!(out(&heal), [(first.as_str(), true)]);
    assert!(heal.replace.is_none() && heal.announce.is_none());
}

#[test]
fn it_is_written_down_before_it_is_done_and_the_next_one_waits() {
    let mut world = TestCluster::rested();
    world.fails(0, 10, 20, 3);
    world.works(1, 15);
    assert!(world.labelled(21).announce.is_none(), "first it is out");
    let heal = world.heal(22);
    let note = heal.announce.unwrap();
    assert!(heal.replace.is_none() && note.times == 1 && note.message.contains("it lies"));
    world.status.replaced = Some(note.clone());
    assert_eq!(world.heal(23).replace.unwrap().0.uid, note.uid);
    // Recreated, and still failing.
    world.replicas(SERVER)[0].uid = "another".to_owned();
    world.fails(0, 40, 50, 3);
    world.works(1, 45);
    let heal = world.heal(51);
    assert!(heal.announce.is_none() && heal.replace.is_none(), "{heal:?}");
    assert_eq!(heal.next, Some(after(22 + 600)));
    assert_eq!(world.heal(22 + 600).announce.unwrap().times, 2);
    world.status.replaced.as_mut().unwrap().times = 20;
    assert_eq!(world.heal(51).next, Some(after(22 + 6 * 3600)), "at most six hours");
    world.status.replaced.as_mut().unwrap().at = after(-25 * 3600);
    assert_eq!(world.heal(51).announce.unwrap().times, 1, "what was yesterday is forgotten");
}

#[test]
fn nothing_is_recreated_while_pods_come_and_go_for_another_reason_or_without_quorum() {
    let broken = || {
        let mut world = TestCluster::rested();
        world.fails(0, 10, 20, 3);
        world.works(1, 15);
        world.labelled(21);
        assert!(world.heal(22).announce.is_some());
        world
    };
    let mut world = broken();
    let surge = Replica { template: Some("newer".to_owned()), ..replica(SERVER, 7, None) };
    world.replicas(SERVER).push(surge);
    assert!(world.heal(22).announce.is_none());
    let mut world = broken();
    world.spec.package_version = "v1.37".to_owned();
    assert!(world.heal(22).announce.is_some(), "what is not well is held back, and mended first");
    world.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().package = Some("v1.37".to_owned());
    assert!(world.heal(22).announce.is_none(), "it has begun");
    let mut world = broken();
    for member in world.replicas(ControlPlaneComponent::Etcd).iter_mut().take(2) {
        member.ready = false;
    }
    assert_eq!(world.heal(22), heal::HealSteps::default());
}

#[test]
fn one_that_crashes_again_and_again_is_recreated_if_another_works() {
    for component in [SERVER, ControlPlaneComponent::ControllerManager, ControlPlaneComponent::Scheduler] {
        let mut world = TestCluster::rested();
        let crashing = &mut world.replicas(component)[1];
        (crashing.ready, crashing.looping, crashing.restarts) = (false, true, 2);
        assert!(world.labelled(1).announce.is_none(), "{component}: twice may be chance");
        world.replicas(component)[1].restarts = 3;
        world.labelled(1);
        let note = world.heal(2).announce.unwrap();
        assert_eq!((note.component, note.uid), (component, world.replicas(component)[1].uid.clone()));
        world.replicas(component)[0].ready = false;
        assert!(world.heal(2).announce.is_none(), "{component}: it is the last");
    }
}

#[test]
fn one_that_does_not_become_ready_is_recreated_after_five_minutes_unless_it_has_no_place() {
    let mut world = TestCluster::rested();
    let stuck = &mut world.replicas(SERVER)[0];
    (stuck.ready, stuck.unready_since) = (false, Some(NOW));
    let heal = world.heal(60);
    assert!(heal.announce.is_none());
    assert_eq!(heal.next, Some(after(300)));
    assert!(world.heal(300).announce.is_some());
    world.replicas(SERVER)[0].unready_since = None;
    assert!(world.heal(300).announce.is_none());
}

#[test]
fn pods_without_the_label_get_it_before_the_service_asks_for_it() {
    let mut world = TestCluster::rested();
    world.live.get_mut(&(Kind::Service, "kube-apiserver".to_owned())).unwrap()["spec"]["selector"] =
        serde_json::json!({});
    let selector = |world: &TestCluster| {
        let decision = world.decide();
        let service = decision.apply.iter().find(|(object, _)| object.kind == Kind::Service).unwrap();
        service.0.body["spec"]["selector"].get(names::SERVING).is_some()
    };
    assert!(selector(&world));
    world.replicas(SERVER)[0].serves = None;
    assert!(!selector(&world));
    world.labelled(1);
    assert!(selector(&world));
}

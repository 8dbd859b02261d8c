use fleetwright_api::{ComponentState, Disruption, Drift, OnDelete, OnFailure, Phase, names};
use fleetwright_wire::Deviation;
use jiff::SignedDuration;

use super::super::Act;
use super::world::{Crash, NodeModel, World, package};

fn four(kubelet: &str) -> Vec<crate::package::Rendered> {
    vec![
        package("kubelet", kubelet, Disruption::Drain, &["containerd", "cni"]),
        package("cni", "1.0", Disruption::None, &["containerd"]),
        package("containerd", "2.0", Disruption::Restart, &["sysctl"]),
        package("sysctl", "1", Disruption::None, &[]),
    ]
}

fn ready(kubelet: &str) -> World {
    let mut world = World::new(four(kubelet));
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
    world.done.clear();
    world
}

fn deviation(what: &str, disrupts: bool) -> Deviation {
    Deviation { what: what.to_owned(), found: "0".to_owned(), wanted: "1".to_owned(), disrupts }
}

#[test]
fn a_bare_host_gets_its_packages_in_the_order_of_their_dependencies() {
    let mut world = World::new(four("1.36"));
    let plan = ["install sysctl 1", "install containerd 2.0", "install cni 1.0", "install kubelet 1.36"];
    assert_eq!(world.plan(), plan);
    world.settle();
    assert_eq!(
        world.did(),
        ["install sysctl 1", "install containerd 2.0", "install cni 1.0", "install kubelet 1.36"],
        "{:#?}",
        world.status()
    );
    assert_eq!(world.status().phase, Some(Phase::Ready));
    assert!(world.operations.is_empty(), "a host that nobody uses yet needs no window");
    assert_eq!(world.status().host_keys, ["ssh-ed25519 A"]);
    assert_eq!(world.says(names::PACKAGES_READY).0, "True");
    assert!(world.plan().is_empty());
}

#[test]
fn a_host_at_rest_is_looked_at_without_a_write() {
    let mut world = ready("1.36");
    let (writes, seen) = (world.writes, world.memory.seen.as_ref().unwrap().0);
    world.settle_for(SignedDuration::from_hours(5));
    assert!(world.memory.seen.as_ref().unwrap().0 > seen + SignedDuration::from_hours(4), "it was not looked at");
    assert_eq!(world.writes, writes);
    assert!(world.done.is_empty());
}

#[test]
fn after_a_restart_a_host_at_rest_is_not_looked_at_before_its_time() {
    let mut world = ready("1.36");
    world.forget();
    let decision = world.decide();
    assert_eq!(decision.act, crate::machine::Act::Rest);
    assert!(decision.next.unwrap() > world.now);
    assert!(decision.next.unwrap() <= world.now + SignedDuration::from_mins(10));
    // And when it has come, drift is found.
    world.drifted.insert("kubelet".to_owned(), vec![deviation("unit kubelet.service", true)]);
    world.settle();
    assert!(world.drifted.is_empty() && world.status().last_drift.is_some_and(|drift| drift.repaired));
}

#[test]
fn other_authorities_than_it_joined_with_are_followed_also_after_a_restart() {
    let trusting = |trusts: &str| {
        let mut all = four("1.36");
        let kubelet = all.iter_mut().find(|one| one.package.component == "kubelet").unwrap();
        kubelet.trusts = Some(trusts.to_owned());
        // It has them in a file.
        let content = fleetwright_wire::Content::Text(trusts.to_owned());
        let file = fleetwright_wire::File { path: "/etc/kubernetes/ca.crt".to_owned(), content, ..Default::default() };
        kubelet.package.files = vec![file];
        kubelet.digest = kubelet.package.digest();
        all
    };
    let mut world = World::new(trusting("old"));
    world.settle();
    assert_eq!(world.status().trusts.as_deref(), Some("old"));
    world.want(trusting("new"));
    world.forget();
    assert!(matches!(world.decide().act, crate::machine::Act::Observe(_)), "{:?}", world.decide().act);
    assert_eq!(world.status().trusts.as_deref(), Some("old"), "until it is in place and works");
    world.settle();
    assert_eq!(world.status().trusts.as_deref(), Some("new"));
}

#[test]
fn an_upgrade_that_drains_closes_the_node_and_opens_it_again() {
    let mut world = ready("1.36");
    world.pods = 5;
    world.want(four("1.37"));
    assert_eq!(world.plan(), ["upgrade kubelet 1.36 → 1.37"]);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
    assert!(world.done[0].2, "the Node was open");
    assert_eq!(world.node.as_ref().unwrap().closed, None);
    assert_eq!(world.operations.len(), 1);
    assert_eq!(world.operations[0].level, Disruption::Drain);
    assert!(world.operations[0].ended.as_ref().unwrap().0);
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn while_the_gate_is_shut_what_is_there_counts_as_ready() {
    let mut world = ready("1.36");
    world.gate_open = false;
    world.want(four("1.37"));
    world.settle();
    assert!(world.did().is_empty());
    assert_eq!(world.says(names::PACKAGES_READY).1, "ChangePending");
    assert_eq!(world.says(names::PACKAGES_READY).0, "True");
    assert!(
        world.message("kubelet").contains("waits for the gate: OperationPolicy drains"),
        "{}",
        world.message("kubelet")
    );
    // Not wanted any more: nothing waits.
    world.want(four("1.36"));
    world.settle();
    assert!(world.operations.iter().all(|operation| operation.ended.is_some()));
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn a_drain_that_is_blocked_is_given_up_and_says_by_what() {
    let mut world = ready("1.36");
    (world.pods, world.blocked) = (3, true);
    world.want(four("1.37"));
    world.settle_for(SignedDuration::from_mins(31));
    let (well, _, text) = world.operations[0].ended.clone().unwrap();
    assert!(!well && text.contains("PodDisruptionBudget pay/web"), "{text}");
    assert!(world.did().is_empty());
    assert_eq!(world.node.as_ref().unwrap().closed, None, "what we closed is opened");
    world.blocked = false;
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
}

#[test]
fn what_disrupts_shares_one_window() {
    let mut world = ready("1.36");
    let mut wanted = four("1.37");
    wanted[2] = package("containerd", "2.1", Disruption::Restart, &["sysctl"]);
    wanted.push(package("kernel", "6.2", Disruption::Reboot, &[]));
    world.want(wanted);
    world.settle();
    assert_eq!(world.operations.len(), 1, "{:#?}", world.operations);
    assert_eq!(world.operations[0].level, Disruption::Reboot);
    let did = world.did();
    assert_eq!(did.iter().filter(|what| *what == "reboot").count(), 1, "{did:?}");
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
}

#[test]
fn a_change_that_does_not_work_goes_back_once() {
    let mut world = ready("1.36");
    let wanted = four("1.37");
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    world.settle_for(SignedDuration::from_hours(10));
    assert_eq!(world.did(), ["install kubelet 1.37", "back kubelet 1.36"]);
    assert_eq!(world.state("kubelet"), Some(ComponentState::RolledBack));
    assert!(world.message("kubelet").contains("unit kubelet.service: failed"), "{}", world.message("kubelet"));
    assert_eq!(world.status().phase, Some(Phase::Degraded));
    assert_eq!(world.node.as_ref().unwrap().closed, None);
    // A person says that it is mended.
    world.broken.clear();
    world.machine.metadata.annotations = Some([(names::RETRY.to_owned(), "1".to_owned())].into());
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready));
    assert_eq!(world.carries("kubelet").as_deref(), Some("1.37"));
}

#[test]
fn what_was_too_late_is_seen_to_work_without_another_try() {
    let wanted = four("1.36");
    let mut world = World::new(wanted.clone());
    world.broken.insert(wanted[0].digest.clone());
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed));
    let did = world.did().len();
    world.broken.clear();
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
    assert_eq!(world.did().len(), did);
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

/// A kubelet was installed and its Node has not joined, when somebody breaks it.
fn broken_in_proof() -> World {
    let mut wanted = four("1.36");
    wanted[0].node_conditions = vec!["Ready".to_owned()];
    let mut world = World::new(wanted);
    world.joins = false;
    while !world.did().contains(&"install kubelet 1.36".to_owned()) {
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(10);
    }
    world.drifted.insert("kubelet".to_owned(), vec![deviation("unit kubelet.service", true)]);
    world
}

#[test]
fn what_somebody_broke_in_a_first_installation_is_repaired_before_it_is_given_up() {
    let mut world = broken_in_proof();
    while !world.did().contains(&"repair kubelet".to_owned()) {
        assert_eq!(world.state("kubelet"), Some(ComponentState::Installing));
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(500);
    }
    world.node = Some(NodeModel { closed: None, ready: true, boot: "boot-1".to_owned() });
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
}

#[test]
fn what_breaks_again_in_a_first_installation_is_repaired_once() {
    let mut world = broken_in_proof();
    world.fights = true;
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed), "{}", world.message("kubelet"));
    assert_eq!(world.did().iter().filter(|did| *did == "repair kubelet").count(), 1, "{:?}", world.did());
}

#[test]
fn a_change_has_its_time_to_prove_itself_also_when_nobody_looked_for_long() {
    let mut world = ready("1.36");
    world.want(four("1.37"));
    while !world.did().contains(&"install kubelet 1.37".to_owned()) {
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(10);
    }
    world.pass(Crash::After);
    world.now += SignedDuration::from_hours(3);
    world.forget();
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"], "{}", world.message("kubelet"));
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready));
}

#[test]
fn an_installation_that_fails_goes_back_with_the_end_of_its_output() {
    let mut world = ready("1.36");
    let wanted = four("1.37");
    world.failing.insert(wanted[0].digest.clone());
    world.want(wanted);
    world.settle_for(SignedDuration::from_hours(3));
    assert_eq!(world.did(), ["install kubelet 1.37 in vain", "back kubelet 1.36"]);
    assert!(world.message("kubelet").contains("no space left on device"), "{}", world.message("kubelet"));
    // Another version is declared.
    world.want(four("1.38"));
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn what_is_to_be_held_is_left_and_the_node_stays_closed() {
    let mut world = ready("1.36");
    let mut wanted = four("1.37");
    wanted[0].on_failure = OnFailure::Hold;
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed));
    assert!(world.node.as_ref().unwrap().closed.is_some());
    world.want(four("1.36"));
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

#[test]
fn a_first_installation_that_fails_is_left_until_asked() {
    let mut world = World::new(vec![package("sysctl", "1", Disruption::None, &[])]);
    world.failing.insert(world.wanted[0].digest.clone());
    world.settle_for(SignedDuration::from_hours(5));
    assert_eq!(world.did(), ["install sysctl 1 in vain"]);
    assert_eq!(world.says(names::PACKAGES_READY).1, "PackageFailed");
    world.failing.clear();
    world.machine.metadata.annotations = Some([(names::RETRY.to_owned(), "again".to_owned())].into());
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn what_cannot_be_fetched_is_tried_again() {
    let mut world = World::new(vec![package("sysctl", "1", Disruption::None, &[])]);
    world.unfetchable = 4;
    world.settle();
    assert_eq!(world.did().len(), 5);
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn rolling_back_in_the_middle_of_an_upgrade_works() {
    let mut world = ready("1.36");
    world.pods = 1000;
    world.want(four("1.37"));
    for _ in 0..10 {
        world.pass(super::world::Crash::Never);
        world.now += SignedDuration::from_secs(2);
    }
    world.want(four("1.36"));
    world.settle();
    assert_eq!(world.carries("kubelet").as_deref(), Some("1.36"));
    assert_eq!(world.status().phase, Some(Phase::Ready));
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

#[test]
fn what_is_no_longer_declared_is_removed_after_what_needs_it_no_more() {
    let mut world = ready("1.36");
    let mut wanted = four("1.37");
    wanted.retain(|package| package.package.component != "cni");
    wanted[0].depends_on = vec!["containerd".to_owned()];
    world.want(wanted);
    assert_eq!(world.plan(), ["upgrade kubelet 1.36 → 1.37", "remove cni 1.0"]);
    world.settle();
    assert_eq!(world.carries("cni"), None);
    assert!(world.status().components.iter().all(|entry| entry.component != "cni"));
}

#[test]
fn what_is_in_the_way_is_removed_first() {
    let mut world = World::new(vec![package("docker", "1", Disruption::None, &[])]);
    world.settle();
    world.done.clear();
    let mut containerd = package("containerd", "2", Disruption::None, &[]);
    containerd.conflicts_with = vec!["docker".to_owned()];
    world.want(vec![containerd]);
    world.settle();
    assert_eq!(world.did(), ["remove docker", "install containerd 2"]);
}

#[test]
fn drift_is_repaired_and_told() {
    let mut world = ready("1.36");
    world.drifted.insert("sysctl".to_owned(), vec![deviation("sysctl vm.swappiness", false)]);
    world.settle();
    assert_eq!(world.did(), ["repair sysctl"]);
    assert!(world.operations.is_empty());
    let drift = world.status().last_drift.unwrap();
    assert!(drift.repaired && drift.items[0].what == "sysctl vm.swappiness", "{drift:?}");
    assert_eq!(world.says(names::IN_SHAPE).0, "True");
}

#[test]
fn drift_whose_repair_restarts_something_needs_a_window() {
    let mut world = ready("1.36");
    world.drifted.insert("containerd".to_owned(), vec![deviation("unit containerd.service", true)]);
    world.settle();
    assert_eq!(world.did(), ["repair containerd"]);
    assert_eq!(world.operations.len(), 1);
    assert_eq!(world.operations[0].level, Disruption::Restart);
}

#[test]
fn what_a_window_taught_is_written_before_it_ends() {
    let mut world = ready("1.36");
    world.drifted.insert("containerd".to_owned(), vec![deviation("unit containerd.service", true)]);
    let mut ended = 0;
    for _ in 0..100 {
        let before = world.status();
        let decision = world.pass(Crash::Never);
        if let Act::End { .. } = decision.act {
            ended += 1;
            assert_eq!(decision.status.components, before.components);
            assert_eq!(decision.status.last_drift, before.last_drift);
        }
        world.now += SignedDuration::from_secs(1);
        if let Some(next) = decision.next.filter(|_| decision.act == Act::Rest) {
            world.now = world.now.max(next);
        }
    }
    assert_eq!(ended, 1);
    assert!(world.status().last_drift.unwrap().repaired);
}

#[test]
fn drift_that_is_only_reported_is_left() {
    let mut world = ready("1.36");
    world.machine.spec.drift = Drift::Report;
    world.drifted.insert("sysctl".to_owned(), vec![deviation("sysctl vm.swappiness", false)]);
    world.settle();
    assert!(world.did().is_empty());
    assert_eq!(world.state("sysctl"), Some(ComponentState::Drifted));
    assert_eq!(world.says(names::IN_SHAPE).1, "Drifted");
    world.drifted.clear();
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn a_host_that_fights_back_is_repaired_less_and_less_often() {
    let mut world = ready("1.36");
    world.fights = true;
    world.drifted.insert("sysctl".to_owned(), vec![deviation("sysctl vm.swappiness", false)]);
    world.settle_for(SignedDuration::from_hours(12));
    let repairs = world.did().len();
    assert!((5..40).contains(&repairs), "{repairs} repairs in twelve hours");
    assert_eq!(world.says(names::IN_SHAPE).1, "FightsBack");
}

#[test]
fn nothing_is_done_with_packages_that_cannot_be_made_or_do_not_go_together() {
    let mut world = World::new(four("1.36"));
    world.cannot = Some("MachinePackageVersion kubelet-1.36, spec.files[0].template: unknown name".to_owned());
    world.settle();
    assert!(world.did().is_empty());
    assert!(world.says(names::PACKAGES_READY).2.contains("spec.files[0].template"));
    world.cannot = None;
    for (wanted, reason) in [
        (
            vec![package("a", "1", Disruption::None, &["b"]), package("b", "1", Disruption::None, &["a"])],
            "DependencyCycle",
        ),
        (vec![package("a", "1", Disruption::None, &["b"])], "DependencyMissing"),
    ] {
        world.want(wanted);
        world.settle();
        assert!(world.did().is_empty());
        assert_eq!(world.says(names::PACKAGES_READY).1, reason);
        assert_eq!(world.status().phase, Some(Phase::Degraded));
    }
}

#[test]
fn a_changed_host_key_stops_all_work() {
    let mut world = ready("1.36");
    (world.silent, world.key_trusted) = (Some("shows the host key B".to_owned()), false);
    world.want(four("1.37"));
    world.settle();
    assert!(world.did().is_empty());
    assert_eq!(
        world.says(names::HOST_KEY_TRUSTED),
        ("False".into(), "HostKeyChanged".into(), world.says(names::HOST_KEY_TRUSTED).2)
    );
    (world.silent, world.key_trusted) = (None, true);
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn a_host_that_does_not_answer_is_lost_and_comes_back() {
    let mut world = ready("1.36");
    world.silent = Some("no route to host".to_owned());
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Lost));
    assert_eq!(world.says(names::REACHABLE).1, "NoAnswer");
    world.silent = None;
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

#[test]
fn a_paused_machine_is_only_looked_at() {
    let mut world = ready("1.36");
    world.machine.spec.paused = true;
    world.want(four("1.37"));
    world.drifted.insert("sysctl".to_owned(), vec![deviation("sysctl vm.swappiness", false)]);
    world.settle();
    assert!(world.did().is_empty() && world.operations.is_empty());
    world.machine.spec.paused = false;
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

fn delete(world: &mut World) {
    world.machine.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
}

#[test]
fn a_deleted_machine_is_drained_and_left_clean() {
    let mut world = ready("1.36");
    world.pods = 4;
    delete(&mut world);
    world.settle();
    assert!(world.gone, "{:#?}", world.status());
    assert_eq!(world.did(), ["remove kubelet", "remove cni", "remove containerd", "remove sysctl"]);
    assert!(world.clean && world.node_deleted);
    assert_eq!(world.pods, 0);
    assert!(world.operations.iter().all(|operation| operation.ended.is_some()));
}

#[test]
fn an_orphaned_host_is_left_alone() {
    let mut world = ready("1.36");
    world.machine.spec.on_delete = OnDelete::Orphan;
    delete(&mut world);
    world.settle();
    assert!(world.gone && world.did().is_empty() && !world.clean && !world.node_deleted);
}

#[test]
fn a_host_that_is_gone_is_let_go_when_a_person_says_so() {
    let mut world = ready("1.36");
    world.silent = Some("no route to host".to_owned());
    delete(&mut world);
    world.settle();
    assert!(!world.gone);
    assert!(world.says(names::REACHABLE).2.contains(names::LET_GO));
    assert_eq!(world.status().phase, Some(Phase::Leaving));
    world.machine.metadata.annotations = Some([(names::LET_GO.to_owned(), "true".to_owned())].into());
    world.settle();
    assert!(world.gone);
}

#[test]
fn a_kernel_that_does_not_come_up_goes_back_with_another_boot() {
    let mut world = World::new(vec![package("kernel", "6.1", Disruption::Reboot, &[])]);
    world.settle();
    assert_eq!(world.did(), ["install kernel 6.1", "reboot"]);
    world.done.clear();
    let wanted = package("kernel", "6.2", Disruption::Reboot, &[]);
    world.broken.insert(wanted.digest.clone());
    world.want(vec![wanted]);
    world.settle();
    assert_eq!(world.did(), ["install kernel 6.2", "reboot", "back kernel 6.1", "reboot"]);
    assert_eq!(world.state("kernel"), Some(ComponentState::RolledBack));
}

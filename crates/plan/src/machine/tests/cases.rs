use fleetwright_api::{ComponentState, Disruption, Drift, OnDelete, OnFailure, Phase, Taint, names};
use fleetwright_wire::Deviation;
use jiff::SignedDuration;

use super::super::Act;
use super::world::{Crash, NodeModel, TestMachine, owner, package};

fn four(kubelet: &str) -> Vec<crate::package::Rendered> {
    vec![
        package("kubelet", kubelet, Disruption::Drain, &["containerd", "cni"]),
        package("cni", "1.0", Disruption::None, &["containerd"]),
        package("containerd", "2.0", Disruption::Restart, &["sysctl"]),
        package("sysctl", "1", Disruption::None, &[]),
    ]
}

fn ready(kubelet: &str) -> TestMachine {
    let mut world = TestMachine::new(four(kubelet));
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
    let mut world = TestMachine::new(four("1.36"));
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
    assert_eq!(decision.act, crate::machine::Act::Nothing);
    assert!(decision.next.unwrap() > world.now);
    assert!(decision.next.unwrap() <= world.now + SignedDuration::from_mins(10));
    // At that time drift is found.
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
        // The kubelet has its authorities in a file.
        let content = fleetwright_wire::Content::Text(trusts.to_owned());
        let file = fleetwright_wire::File { path: "/etc/kubernetes/ca.crt".to_owned(), content, ..Default::default() };
        kubelet.package.files = vec![file];
        kubelet.digest = kubelet.package.digest();
        all
    };
    let mut world = TestMachine::new(trusting("old"));
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
    assert!(world.message("kubelet").contains("OperationPolicy drains"), "{}", world.message("kubelet"));
    // The change is no longer wanted: nothing waits.
    world.want(four("1.36"));
    world.settle();
    assert!(world.operations.iter().all(|operation| operation.ended.is_some()));
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

/// The same versions, with another content of the kubelet's file: as after an edit of `cluster-values`.
fn rendered(content: &str) -> Vec<crate::package::Rendered> {
    let mut all = four("1.36");
    let file = |path: &str, content: &str, secret| fleetwright_wire::File {
        path: path.to_owned(),
        content: fleetwright_wire::Content::Text(content.to_owned()),
        secret,
        ..Default::default()
    };
    all[0].package.files = vec![
        file("/etc/kubernetes/kubelet.yaml", content, false),
        file("/etc/kubernetes/same.yaml", "the same", false),
        file("/etc/kubernetes/token", "hunter2", true),
    ];
    all[0].digest = all[0].package.digest();
    all
}

#[test]
fn rendered_content_that_changes_is_planned_and_waits_for_the_gate() {
    let mut world = TestMachine::new(rendered("server: old"));
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
    let written = serde_json::to_string(&world.status()).unwrap();
    assert!(!written.contains("hunter2"), "a secret is in the status");
    let digest = crate::package::Rendered::inputs(&world.wanted[0])["file /etc/kubernetes/token"].clone();
    assert_eq!(digest, "secret 0000 :", "of a secret there is no digest");
    world.done.clear();
    world.gate_open = false;
    world.want(rendered("server: new"));
    // From the recorded inputs, and with the same result when the host was observed.
    for looked in [false, true] {
        if looked {
            world.settle();
        } else {
            world.forget();
        }
        assert_eq!(world.plan(), ["change kubelet 1.36"], "looked: {looked}");
        let steps = world.steps();
        let what: Vec<&str> = steps[0].changes.iter().map(|change| change.what.as_str()).collect();
        assert_eq!(what, ["file /etc/kubernetes/kubelet.yaml"]);
        assert_ne!(steps[0].changes[0].from, steps[0].changes[0].to);
        assert_eq!(steps[0].disruption, Disruption::Drain);
    }
    assert!(world.did().is_empty(), "it was changed while the gate is shut");
    assert_eq!(world.says(names::UP_TO_DATE).1, "ChangePending");
    assert_eq!(world.says(names::PACKAGES_READY).0, "True");
    assert_eq!(world.operations.last().unwrap().level, Disruption::Drain);
    world.gate_open = true;
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.36"]);
    assert!(world.done[0].2, "the Node was open");
    assert_eq!(world.says(names::UP_TO_DATE).0, "True");
    assert!(world.plan().is_empty());
}

/// An earlier version of the operator recorded no inputs: without the host, an edited file cannot be distinguished from an unchanged one.
#[test]
fn a_component_without_written_inputs_is_named_as_not_compared() {
    let mut world = TestMachine::new(rendered("one"));
    world.settle();
    assert!(crate::machine::components_without_inputs(&world.machine, &world.wanted).is_empty());
    for entry in &mut world.machine.status.as_mut().unwrap().components {
        entry.inputs = Default::default();
    }
    world.memory.seen = None;
    world.want(rendered("two"));
    assert!(world.plan().is_empty(), "the version is the same");
    let names: Vec<String> = world.wanted.iter().map(|wanted| wanted.package.component.clone()).collect();
    assert_eq!(crate::machine::components_without_inputs(&world.machine, &world.wanted), names);
}

#[test]
fn rendered_content_that_changed_while_the_operator_was_down_is_followed_at_once() {
    let mut world = TestMachine::new(rendered("server: old"));
    world.settle();
    world.forget();
    assert_eq!(world.decide().act, Act::Nothing);
    world.want(rendered("server: new"));
    world.machine.metadata.generation = world.status().observed_generation;
    assert!(matches!(world.decide().act, Act::Observe(_)), "{:?}", world.decide().act);
}

#[test]
fn a_kubelet_that_is_newer_than_its_api_server_is_refused_until_the_server_is_upgraded() {
    let mut world = ready("1.36.4");
    world.server = Some((1, 36));
    world.settle();
    assert_eq!(world.says(names::UP_TO_DATE).0, "True");
    world.want(four("1.37.1"));
    assert!(world.plan().is_empty(), "{:?}", world.plan());
    world.settle();
    assert!(world.did().is_empty(), "{:?}", world.did());
    let (status, reason, message) = world.says(names::UP_TO_DATE);
    assert_eq!((&*status, &*reason), ("False", "KubeletTooNew"));
    for part in ["1.37.1", "1.36", "control plane"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    assert_eq!(world.says(names::PACKAGES_READY).0, "True", "what is there works");
    assert_eq!(world.node.as_ref().unwrap().closed, None);
    assert!(world.operations.is_empty(), "no window is asked for");
    world.server = Some((1, 37));
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37.1"]);
    assert_eq!(world.says(names::UP_TO_DATE).0, "True");
}

#[test]
fn a_first_kubelet_that_is_newer_than_its_api_server_is_refused_and_all_else_is_installed() {
    let mut world = TestMachine::new(four("1.37.1"));
    world.server = Some((1, 36));
    world.settle();
    assert_eq!(world.did(), ["install sysctl 1", "install containerd 2.0", "install cni 1.0"]);
    assert_eq!(world.says(names::UP_TO_DATE).1, "KubeletTooNew");
    assert_eq!(world.says(names::PACKAGES_READY).1, "Installing");
    assert!(world.says(names::PACKAGES_READY).2.contains("KubeletTooNew"));
    world.server = Some((1, 40));
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
    // A version that is far behind is refused as well.
    world.want(four("1.36.0"));
    world.settle();
    assert_eq!(world.says(names::UP_TO_DATE).1, "KubeletTooOld");
    assert_eq!(world.carries("kubelet").as_deref(), Some("1.37.1"));
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

/// Runs passes for a number of minutes.
fn minutes(world: &mut TestMachine, count: u32) {
    for _ in 0..count {
        (0..4).for_each(|_| drop(world.pass(Crash::Never)));
        world.now += SignedDuration::from_mins(1);
    }
}

#[test]
fn a_node_that_cannot_be_closed_or_read_ends_its_window_when_the_drain_had_to_be_over() {
    for (unclosable, parts) in [(true, ["closed", "1800s", "the patch"]), (false, ["drained", "1800s", "the list"])] {
        let mut world = ready("1.36");
        (world.unclosable, world.unreadable) = (unclosable, !unclosable);
        world.want(four("1.37"));
        minutes(&mut world, 25);
        assert_eq!(world.operations.len(), 1, "{:#?}", world.operations);
        assert_eq!(world.operations[0].ended, None, "its time is not over");
        minutes(&mut world, 10);
        let (well, _, told) = world.operations[0].ended.clone().expect("timeouts.drain is over");
        assert!(!well && parts.iter().all(|part| told.contains(part)), "{told}");
        assert!(world.did().is_empty());
        assert_eq!(world.node.as_ref().unwrap().closed, None, "what we closed is opened");
        (world.unclosable, world.unreadable) = (false, false);
        world.settle();
        assert_eq!(world.did(), ["install kubelet 1.37"]);
    }
}

#[test]
fn an_operator_that_starts_after_the_deadline_of_a_drain_looks_before_it_gives_up() {
    let mut world = ready("1.36");
    (world.pods, world.blocked) = (3, true);
    world.want(four("1.37"));
    world.settle_for(SignedDuration::from_mins(20));
    assert!(world.operations[0].ended.is_none() && world.node.as_ref().unwrap().closed.is_some());
    world.forget();
    (world.pods, world.blocked) = (0, false);
    world.now += SignedDuration::from_mins(20);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
    assert_eq!(world.operations.len(), 1, "{:#?}", world.operations);
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
    // A person repairs it and asks for a retry.
    world.broken.clear();
    world.machine.metadata.annotations = Some([(names::RETRY.to_owned(), "1".to_owned())].into());
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready));
    assert_eq!(world.carries("kubelet").as_deref(), Some("1.37"));
}

/// Runs passes until that step was done on the host.
fn until_installed(world: &mut TestMachine, what: &str) {
    for _ in 0..10_000 {
        if world.did().iter().any(|did| did == what) {
            return;
        }
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(10);
    }
    panic!("{what} was not done: {:?}\n{:#?}", world.did(), world.status());
}

/// The gates of a fleet require `PackagesReady`: a machine that works is not closed because its version differs from the declared one.
#[test]
fn a_restored_version_counts_as_ready_and_not_as_up_to_date() {
    let mut world = ready("1.36");
    assert_eq!(world.says(names::UP_TO_DATE).0, "True");
    let wanted = four("1.37");
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37", "back kubelet 1.36"]);
    assert_eq!(world.says(names::PACKAGES_READY).0, "True", "{:?}", world.says(names::PACKAGES_READY));
    let (status, reason, message) = world.says(names::UP_TO_DATE);
    assert_eq!((&*status, &*reason), ("False", "RolledBack"), "{message}");
    for part in ["kubelet", "1.37", "1.36", "unit kubelet.service", "machine retry host-17"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    assert_eq!(world.rollback("kubelet").unwrap().version, "1.36");
    // Another version that works ends the failure.
    world.want(four("1.38"));
    world.settle();
    assert_eq!(world.says(names::UP_TO_DATE).0, "True");
    assert_eq!(world.rollback("kubelet"), None);
}

#[test]
fn a_rollback_is_forgotten_when_its_component_is_not_declared_any_more() {
    let mut world = ready("1.36");
    let wanted = four("1.37");
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    world.settle();
    assert_eq!(world.says(names::UP_TO_DATE).1, "RolledBack");
    world.gate_open = false;
    world.want(four("1.36").into_iter().filter(|package| package.package.component != "kubelet").collect());
    world.settle();
    assert_eq!(world.carries("kubelet").as_deref(), Some("1.36"), "the removal waits for the gate");
    world.want(four("1.36"));
    world.settle();
    assert_eq!(world.says(names::UP_TO_DATE), ("True".to_owned(), "MatchesSpec".to_owned(), String::new()));
    assert_eq!(world.rollback("kubelet"), None);
}

/// A second edit while the first version is not proven, or after it was held back: only 1.36 ever worked.
#[test]
fn a_version_that_never_worked_is_not_what_a_rollback_restores() {
    for (hold, fails) in [(false, false), (false, true), (true, false)] {
        let mut world = ready("1.36");
        let (mut bad, worse) = (four("1.37"), four("1.38"));
        if hold {
            bad[0].on_failure = OnFailure::Hold;
        }
        world.broken.insert(bad[0].digest.clone());
        let spoilt = if fails { &mut world.failing } else { &mut world.broken };
        spoilt.insert(worse[0].digest.clone());
        world.want(bad);
        until_installed(&mut world, "install kubelet 1.37");
        if hold {
            world.settle();
            assert_eq!(world.state("kubelet"), Some(ComponentState::Failed));
        }
        world.want(worse);
        world.settle();
        let second = if fails { "install kubelet 1.38 in vain" } else { "install kubelet 1.38" };
        assert_eq!(world.did(), ["install kubelet 1.37", second, "back kubelet 1.36"], "{:#?}", world.status());
        assert_eq!(world.state("kubelet"), Some(ComponentState::RolledBack));
        assert_eq!(world.node.as_ref().unwrap().closed, None);
    }
}

#[test]
fn the_version_that_worked_is_kept_when_it_is_declared_again_and_fails() {
    let mut world = ready("1.36");
    let (good, bad) = (four("1.36"), four("1.37"));
    world.broken.insert(bad[0].digest.clone());
    world.want(bad);
    until_installed(&mut world, "install kubelet 1.37");
    world.broken.insert(good[0].digest.clone());
    world.want(good);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37", "install kubelet 1.36"], "1.37 never worked");
    world.broken.clear();
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
}

#[test]
fn a_version_in_service_is_not_rolled_back_because_another_was_declared_for_a_while() {
    let mut world = ready("1.36");
    world.want(four("1.37"));
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
    world.done.clear();
    // While the gate holds the next version back, the one in service stops working for another reason, and the edit is reverted.
    world.gate_open = false;
    world.want(four("1.38"));
    world.settle_for(SignedDuration::from_mins(2));
    let serving = four("1.37");
    world.broken.insert(serving[0].digest.clone());
    world.want(serving);
    world.gate_open = true;
    world.settle();
    assert!(world.did().is_empty(), "{:?}", world.did());
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed));
    world.broken.clear();
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

/// Runs passes until the earlier version was restored and is not yet proven.
fn restored(world: &mut TestMachine) {
    while world.rollback("kubelet").is_none() {
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(500);
    }
}

#[test]
fn a_restored_version_proves_itself_before_the_node_opens() {
    let mut world = ready("1.36");
    let (good, wanted) = (world.wanted[0].digest.clone(), four("1.37"));
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    restored(&mut world);
    world.broken.insert(good.clone());
    for _ in 0..60 {
        world.pass(Crash::Never);
        world.now += SignedDuration::from_secs(1);
        assert!(world.node.as_ref().unwrap().closed.is_some(), "open before the restored version was healthy");
        assert_eq!(world.state("kubelet"), Some(ComponentState::Downgrading));
        assert_eq!(world.says(names::PACKAGES_READY).1, "RollingBack");
    }
    world.broken.remove(&good);
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::RolledBack));
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

#[test]
fn a_restored_version_that_fails_too_stays_closed_and_shows_both_failures() {
    let mut world = ready("1.36");
    let (good, wanted) = (world.wanted[0].digest.clone(), four("1.37"));
    world.failing.insert(wanted[0].digest.clone());
    world.broken.insert(good.clone());
    world.want(wanted);
    world.settle_for(SignedDuration::from_hours(10));
    assert_eq!(world.did(), ["install kubelet 1.37 in vain", "back kubelet 1.36"], "it is not tried again and again");
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed));
    assert_eq!(world.status().phase, Some(Phase::Degraded));
    assert!(world.node.as_ref().unwrap().closed.is_some(), "the Node is open");
    for type_ in [names::PACKAGES_READY, names::UP_TO_DATE] {
        let (status, reason, message) = world.says(type_);
        assert_eq!((&*status, &*reason), ("False", "PackageFailed"), "{message}");
        assert!(message.contains("no space left on device"), "the first failure: {message}");
        assert!(message.contains("unit kubelet.service: failed"), "the second failure: {message}");
    }
    // The version works after all: that is recognized without another step.
    world.broken.remove(&good);
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::RolledBack));
    assert_eq!(world.node.as_ref().unwrap().closed, None);
    assert_eq!(world.did().len(), 2);
}

#[test]
fn drift_of_a_restored_version_is_repaired_to_that_version() {
    let mut world = ready("1.36");
    let wanted = four("1.37");
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    world.settle();
    for crash in [Crash::Never, Crash::BeforeStatus, Crash::After] {
        world.done.clear();
        world.drifted.insert("kubelet".to_owned(), vec![deviation("file /etc/kubernetes/kubelet.yaml", true)]);
        world.now += SignedDuration::from_mins(11);
        for _ in 0..40 {
            world.pass(crash);
            world.now += SignedDuration::from_secs(1);
        }
        world.settle();
        assert_eq!(world.did(), ["back kubelet 1.36"], "{crash:?}: {:#?}", world.status());
        assert!(world.done[0].2, "a repair that disrupts needs its window");
        assert!(world.drifted.is_empty());
        assert_eq!(world.state("kubelet"), Some(ComponentState::RolledBack), "{crash:?}");
        assert_eq!(world.says(names::PACKAGES_READY).0, "True");
        assert_eq!(world.says(names::UP_TO_DATE).1, "RolledBack");
        assert_eq!(world.node.as_ref().unwrap().closed, None);
        assert!(world.operations.last().unwrap().ended.as_ref().unwrap().0, "the window did what it was for");
    }
}

#[test]
fn drift_of_a_restored_version_is_only_reported_where_the_machine_says_so() {
    let mut world = ready("1.36");
    let wanted = four("1.37");
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    world.settle();
    world.done.clear();
    world.machine.spec.drift = Drift::Report;
    world.drifted.insert("kubelet".to_owned(), vec![deviation("file /etc/kubernetes/kubelet.yaml", true)]);
    world.settle();
    assert!(world.did().is_empty());
    assert_eq!(world.says(names::IN_SYNC).1, "Drifted");
    assert_eq!(world.says(names::UP_TO_DATE).1, "RolledBack");
}

#[test]
fn what_was_too_late_is_seen_to_work_without_another_try() {
    let wanted = four("1.36");
    let mut world = TestMachine::new(wanted.clone());
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
fn broken_in_proof() -> TestMachine {
    let mut wanted = four("1.36");
    wanted[0].node_conditions = vec!["Ready".to_owned()];
    let mut world = TestMachine::new(wanted);
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
    world.node = Some(NodeModel::new("boot-1"));
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
fn a_change_has_its_time_to_prove_itself_also_after_a_long_time_without_a_pass() {
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

/// A kubelet whose Node has not joined, with an API server that does not answer for ten minutes.
fn joins_after_an_outage(counts: bool) -> TestMachine {
    let mut wanted = four("1.36");
    if counts {
        wanted[0].node_conditions = vec!["Ready".to_owned()];
    }
    let digest = wanted[0].digest.clone();
    let mut world = TestMachine::new(wanted);
    world.joins = false;
    // A check on the host needs no API server.
    world.broken.extend((!counts).then_some(digest));
    while !world.did().contains(&"install kubelet 1.36".to_owned()) {
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(10);
    }
    let from = world.now + SignedDuration::from_secs(5);
    world.outages = vec![(from, from + SignedDuration::from_mins(10))];
    world
}

#[test]
fn an_outage_of_the_api_server_does_not_count_against_a_kubelet_that_joins() {
    let mut world = joins_after_an_outage(true);
    // Three minutes to join, of which two are left after the outage.
    world.settle_for(SignedDuration::from_mins(11));
    assert_eq!(world.state("kubelet"), Some(ComponentState::Installing), "{}", world.message("kubelet"));
    world.node = Some(NodeModel::new("boot-1"));
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
}

/// One watch that always fails must not keep a bad version on its host without end.
#[test]
fn an_outage_that_does_not_end_excuses_a_kubelet_for_half_an_hour() {
    let mut world = ready("1.36");
    let mut wanted = four("1.37");
    wanted[0].node_conditions = vec!["Ready".to_owned()];
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    let start = world.now;
    world.outages = vec![(start, start + SignedDuration::from_hours(100))];
    world.settle_for(SignedDuration::from_mins(25));
    assert_eq!(world.rollback("kubelet"), None, "the API server may be gone");
    world.settle_for(SignedDuration::from_mins(20));
    assert_eq!(world.carries("kubelet").as_deref(), Some("1.36"), "{:#?}", world.status());
}

#[test]
fn a_kubelet_that_does_not_join_when_the_api_server_is_back_has_failed() {
    let mut world = joins_after_an_outage(true);
    world.settle_for(SignedDuration::from_mins(14));
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed), "{}", world.message("kubelet"));
}

#[test]
fn a_kubelet_that_did_not_join_gets_another_token_when_a_person_asks() {
    let mut wanted = four("1.36");
    (wanted[0].needs_credential, wanted[0].node_conditions) = (true, vec!["Ready".to_owned()]);
    let mut world = TestMachine::new(wanted);
    world.joins = false;
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed), "its token is not valid any more");
    world.done.clear();
    world.joins = true;
    world.machine.metadata.annotations = Some([(names::RETRY.to_owned(), "1".to_owned())].into());
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.36"], "a token is issued for an installation alone");
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
}

#[test]
fn another_token_is_issued_although_the_first_try_to_issue_it_failed() {
    let mut wanted = four("1.36");
    (wanted[0].needs_credential, wanted[0].node_conditions) = (true, vec!["Ready".to_owned()]);
    let mut world = TestMachine::new(wanted);
    world.joins = false;
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed));
    world.done.clear();
    world.joins = true;
    world.machine.metadata.annotations = Some([(names::RETRY.to_owned(), "1".to_owned())].into());
    let mut decision = world.decide();
    while !matches!(decision.act, Act::RunStep(_)) {
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(10);
        decision = world.decide();
    }
    // The status is written first, and the API server rejects the token.
    world.machine.status = Some(decision.status);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.36"]);
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
}

#[test]
fn an_outage_of_the_api_server_excuses_nothing_that_needs_none() {
    let mut world = joins_after_an_outage(false);
    world.settle_for(SignedDuration::from_mins(4));
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed), "{}", world.message("kubelet"));
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
    let mut world = TestMachine::new(vec![package("sysctl", "1", Disruption::None, &[])]);
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
    let mut world = TestMachine::new(vec![package("sysctl", "1", Disruption::None, &[])]);
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
    let mut world = TestMachine::new(vec![package("docker", "1", Disruption::None, &[])]);
    world.settle();
    world.done.clear();
    let mut containerd = package("containerd", "2", Disruption::None, &[]);
    containerd.conflicts_with = vec!["docker".to_owned()];
    world.want(vec![containerd]);
    world.settle();
    assert_eq!(world.did(), ["remove docker", "install containerd 2"]);
}

#[test]
fn drift_is_repaired_and_reported() {
    let mut world = ready("1.36");
    world.drifted.insert("sysctl".to_owned(), vec![deviation("sysctl vm.swappiness", false)]);
    world.settle();
    assert_eq!(world.did(), ["repair sysctl"]);
    assert!(world.operations.is_empty());
    let drift = world.status().last_drift.unwrap();
    assert!(drift.repaired && drift.items[0].what == "sysctl vm.swappiness", "{drift:?}");
    assert_eq!(world.says(names::IN_SYNC).0, "True");
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
        if let Act::EndWindow { .. } = decision.act {
            ended += 1;
            assert_eq!(decision.status.components, before.components);
            assert_eq!(decision.status.last_drift, before.last_drift);
        }
        world.now += SignedDuration::from_secs(1);
        if let Some(next) = decision.next.filter(|_| decision.act == Act::Nothing) {
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
    assert_eq!(world.says(names::IN_SYNC).1, "Drifted");
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
    assert_eq!(world.says(names::IN_SYNC).1, "DriftRecurring");
}

#[test]
fn nothing_is_done_with_packages_that_cannot_be_made_or_do_not_go_together() {
    let mut world = TestMachine::new(four("1.36"));
    world.cannot = Some("MachinePackageVersion kubelet-1.36, spec.files[0].template: unknown name".to_owned());
    world.settle();
    assert!(world.did().is_empty());
    for type_ in [names::PACKAGES_READY, names::UP_TO_DATE] {
        assert!(world.says(type_).2.contains("spec.files[0].template"), "{type_}");
    }
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
        assert_eq!(world.says(names::UP_TO_DATE).1, reason);
        assert_eq!(world.says(names::PACKAGES_READY).1, "Installing", "it was never whole");
        assert_eq!(world.status().phase, Some(Phase::Degraded));
    }
}

/// Gates require `PackagesReady`: a missing value, or a Secret that is no longer shared, must not close a fleet that works.
#[test]
fn an_edit_that_cannot_be_carried_out_leaves_a_machine_in_service_ready() {
    let mut world = ready("1.36");
    world.cannot = Some("MachinePackageVersion kubelet-1.36, spec.files[0].template: unknown name".to_owned());
    world.machine.metadata.generation = Some(9);
    world.settle();
    assert_eq!(world.says(names::UP_TO_DATE).1, "RenderFailed");
    assert_eq!(world.says(names::PACKAGES_READY).0, "True", "{:?}", world.says(names::PACKAGES_READY));
    assert_eq!(world.status().phase, Some(Phase::Degraded));
    // Versions that do not fit together are handled the same way.
    world.cannot = None;
    world.want(vec![package("a", "1", Disruption::None, &["b"])]);
    world.settle();
    assert_eq!(world.says(names::UP_TO_DATE).1, "DependencyMissing");
    assert_eq!(world.says(names::PACKAGES_READY).0, "True");
    assert!(world.did().is_empty());
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
    assert_eq!(world.says(names::REACHABLE).1, "NoResponse");
    world.silent = None;
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready));
}

/// A machine whose kernel needs a reboot, and whose host does not answer after it.
fn never_back(booted: bool) -> TestMachine {
    let mut world = ready("1.36");
    let mut wanted = four("1.36");
    wanted.push(package("kernel", "6.2", Disruption::Reboot, &[]));
    world.stays_down = Some(booted);
    world.want(wanted);
    world.settle_for(SignedDuration::from_mins(14));
    assert!(world.silent.is_some() && world.operations.len() == 1, "{:#?}", world.operations);
    assert_eq!(world.operations[0].ended, None, "its time is not over");
    world.settle_for(SignedDuration::from_mins(2));
    world
}

#[test]
fn a_host_that_does_not_return_from_a_reboot_frees_its_place_and_is_resumed_when_it_is_back() {
    let mut world = never_back(true);
    let (well, _, text) = world.operations[0].ended.clone().expect("timeouts.reboot is over");
    assert!(!well && text.contains("RebootTimedOut") && text.contains("900s"), "{text}");
    assert!(world.node.as_ref().unwrap().closed.is_some(), "pods are kept away from a host that is down");
    assert_eq!(world.status().phase, Some(Phase::Lost));
    assert_eq!(world.says(names::REACHABLE).1, "RebootTimedOut");
    world.settle_for(SignedDuration::from_hours(3));
    assert_eq!(world.operations.len(), 1, "no window is asked for while it is gone");
    (world.silent, world.stays_down) = (None, None);
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
    assert_eq!(world.status().reboot_due_from, None);
    assert_eq!(world.did(), ["install kernel 6.2", "reboot"], "it booted: once is enough");
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

#[test]
fn a_host_that_returns_in_the_same_boot_is_booted_in_another_window() {
    let mut world = never_back(false);
    assert!(world.operations[0].ended.is_some());
    (world.silent, world.stays_down) = (None, None);
    world.unbooted.clear();
    world.settle();
    assert_eq!(world.did(), ["install kernel 6.2", "reboot", "reboot"]);
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
    assert_eq!(world.operations.len(), 2);
}

#[test]
fn a_kernel_that_was_reverted_before_its_step_does_not_boot_the_host() {
    let with_kernel = |version: &str| {
        let mut wanted = four("1.36");
        wanted.push(package("kernel", version, Disruption::Reboot, &[]));
        wanted
    };
    let mut world = TestMachine::new(with_kernel("6.1"));
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
    world.done.clear();
    let before = world.operations.len();
    (world.pods, world.blocked) = (3, true);
    world.want(with_kernel("6.2"));
    world.settle_for(SignedDuration::from_mins(2));
    assert_eq!(world.operations[before].level, Disruption::Reboot);
    world.silent = Some("no route to host".to_owned());
    world.settle_for(SignedDuration::from_mins(20));
    assert!(world.operations[before].ended.is_some(), "timeouts.reboot is over");
    assert_eq!((world.status().reboot_due_from, world.says(names::REACHABLE).1), (None, "NoResponse".to_owned()));
    world.want(with_kernel("6.1"));
    (world.silent, world.blocked) = (None, false);
    world.settle();
    assert!(world.did().is_empty(), "{:?}", world.did());
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

/// A machine whose host was lost during the drain, before any step was started, and whose window ended.
fn lost_while_draining() -> TestMachine {
    let mut world = draining();
    world.silent = Some("no route to host".to_owned());
    world.settle_for(SignedDuration::from_mins(20));
    assert!(world.operations[0].ended.is_some(), "timeouts.reboot is over");
    assert!(world.node.as_ref().unwrap().closed.is_some());
    world
}

#[test]
fn a_node_that_a_lost_host_left_closed_is_opened_while_its_change_waits() {
    let mut world = lost_while_draining();
    (world.silent, world.gate_open) = (None, false);
    world.settle_for(SignedDuration::from_mins(3));
    assert_eq!(world.node.as_ref().unwrap().closed, None, "it waits after a window that was given up");
    world.node.as_mut().unwrap().closed = Some("of an operation that ended".to_owned());
    world.settle();
    assert!(world.operations.iter().any(|op| op.ended.is_none() && !op.granted), "it waits for the gate");
    assert_eq!(world.node.as_ref().unwrap().closed, None);
    assert!(world.did().is_empty());
    (world.gate_open, world.blocked) = (true, false);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

#[test]
fn a_host_that_was_left_broken_stays_closed_while_what_may_mend_it_waits() {
    for retry in [false, true] {
        let mut world = ready("1.36");
        let (good, bad) = (four("1.36"), four("1.37"));
        world.broken.extend([good[0].digest.clone(), bad[0].digest.clone()]);
        world.want(bad);
        world.settle();
        assert_eq!(world.did(), ["install kubelet 1.37", "back kubelet 1.36"]);
        assert_eq!(world.state("kubelet"), Some(ComponentState::Failed), "what was restored does not work either");
        assert!(world.node.as_ref().unwrap().closed.is_some());
        world.gate_open = false;
        match retry {
            true => world.machine.metadata.annotations = Some([(names::RETRY.to_owned(), "1".to_owned())].into()),
            false => world.want(four("1.38")),
        }
        world.settle_for(SignedDuration::from_mins(3));
        assert!(world.operations.iter().any(|op| op.ended.is_none() && !op.granted), "it waits for the gate");
        assert!(world.node.as_ref().unwrap().closed.is_some(), "nothing on the host works now that did not before");
        world.broken.clear();
        world.gate_open = true;
        world.settle();
        assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
        assert_eq!(world.node.as_ref().unwrap().closed, None);
    }
}

#[test]
fn a_machine_that_leaves_its_host_opens_the_node_that_an_earlier_window_left_closed() {
    for orphan in [true, false] {
        let mut world = lost_while_draining();
        match orphan {
            true => world.machine.spec.on_delete = OnDelete::Orphan,
            false => world.machine.spec.ssh = None,
        }
        if orphan {
            delete(&mut world);
        }
        world.settle();
        assert_eq!((world.gone, world.node.unwrap().closed), (orphan, None));
    }
}

#[test]
fn an_operator_that_started_since_the_reboot_ends_its_window_too() {
    let mut world = ready("1.36");
    let mut wanted = four("1.36");
    wanted.push(package("kernel", "6.2", Disruption::Reboot, &[]));
    world.stays_down = Some(true);
    world.want(wanted);
    while world.silent.is_none() {
        let crash = if matches!(world.decide().act, Act::RunStep(run) if run.step == fleetwright_wire::Step::Reboot) {
            Crash::BeforeStatus
        } else {
            Crash::Never
        };
        world.pass(crash);
        world.now += SignedDuration::from_millis(10);
    }
    world.settle_for(SignedDuration::from_mins(16));
    assert!(world.operations[0].ended.is_some(), "{:#?}", world.status());
}

#[test]
fn what_is_down_already_is_repaired_at_once_and_without_a_drain() {
    let mut world = ready("1.36");
    (world.pods, world.blocked, world.gate_open) = (3, true, false);
    world.drifted.insert("kubelet".to_owned(), vec![deviation("file /etc/kubelet.yaml", true)]);
    world.dead.insert("kubelet".to_owned());
    world.settle();
    assert_eq!(world.did(), ["repair kubelet"]);
    assert!(world.operations.is_empty(), "it needs no place at the gate: {:#?}", world.operations);
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
}

/// A slow answer of one check is no reason to restart a component under its pods.
#[test]
fn a_health_check_that_fails_once_does_not_let_a_repair_pass_the_gate() {
    let mut world = ready("1.36");
    world.gate_open = false;
    world.drifted.insert("kubelet".to_owned(), vec![deviation("file /etc/kubelet.yaml", true)]);
    world.slow.insert("kubelet".to_owned(), 1);
    world.settle();
    assert_eq!(world.slow["kubelet"], 0, "the check was run");
    assert!(world.did().is_empty(), "{:?}", world.did());
    assert_eq!(world.operations.len(), 1, "it waits for the gate");
    assert_eq!(world.says(names::PACKAGES_READY).0, "True");
    // A check that keeps failing means that the component is down, and it is repaired at once.
    world.slow.insert("kubelet".to_owned(), 1000);
    world.settle_for(SignedDuration::from_mins(15));
    assert_eq!(world.did().first().map(String::as_str), Some("repair kubelet"));
    assert!(!world.done[0].2, "no Node was closed for it");
}

/// `PackagesReady` says whether the installed version works.
#[test]
fn a_component_that_is_down_and_cannot_be_repaired_is_not_ready() {
    let mut world = ready("1.36");
    world.fights = true;
    world.drifted.insert("containerd".to_owned(), vec![deviation("unit containerd.service", false)]);
    world.dead.insert("containerd".to_owned());
    world.settle();
    let (status, reason, message) = world.says(names::PACKAGES_READY);
    assert_eq!((&*status, &*reason), ("False", "ComponentUnhealthy"), "{message}");
    assert!(message.contains("containerd.service"), "{message}");
    world.fights = false;
    world.settle_for(SignedDuration::from_hours(10));
    assert_eq!(world.says(names::PACKAGES_READY).0, "True");
    // A component that only differs works.
    world.machine.spec.drift = Drift::Report;
    world.drifted.insert("sysctl".to_owned(), vec![deviation("sysctl vm.swappiness", false)]);
    world.settle();
    assert_eq!(world.state("sysctl"), Some(ComponentState::Drifted));
    assert_eq!(world.says(names::PACKAGES_READY).0, "True");
}

/// A restored version whose package the host cannot read any more was compared with nothing.
#[test]
fn a_restored_version_that_cannot_be_compared_is_not_proven() {
    let mut world = ready("1.36");
    let wanted = four("1.37");
    world.broken.insert(wanted[0].digest.clone());
    world.want(wanted);
    restored(&mut world);
    world.lost_copies.insert("kubelet".to_owned());
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Failed), "{}", world.message("kubelet"));
    assert!(world.node.as_ref().unwrap().closed.is_some(), "the Node was opened");
    world.lost_copies.clear();
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::RolledBack));
}

#[test]
fn what_dies_while_its_node_is_drained_is_repaired_without_waiting_for_pods() {
    let mut world = ready("1.36");
    (world.pods, world.blocked) = (3, true);
    world.drifted.insert("kubelet".to_owned(), vec![deviation("file /etc/kubelet.yaml", true)]);
    world.settle_for(SignedDuration::from_mins(11));
    assert!(world.did().is_empty() && world.operations.len() == 1, "it works, so pods leave first");
    world.dead.insert("kubelet".to_owned());
    world.settle_for(SignedDuration::from_mins(3));
    assert_eq!(world.did(), ["repair kubelet"]);
    assert!(world.operations[0].ended.clone().is_some_and(|(well, ..)| well), "{:#?}", world.operations);
}

fn foreign() -> TestMachine {
    let mut world = TestMachine::new(four("1.36"));
    world.owner = Some(fleetwright_wire::Mark { owner: owner("cluster-2", "uid-2"), epoch: 4, fence: 9 });
    world.settle();
    world
}

fn adopt(world: &mut TestMachine, value: &str) {
    world.machine.metadata.annotations = Some([(names::ADOPT_HOST.to_owned(), value.to_owned())].into());
}

#[test]
fn a_host_of_another_is_looked_at_and_left() {
    let mut world = foreign();
    assert!(world.did().is_empty() && world.operations.is_empty());
    assert_eq!(world.says(names::HOST_OWNED).1, "HostOwnedByAnother");
    assert_eq!(world.status().phase, Some(Phase::Degraded));
    assert_eq!(world.status().host_owner.map(|owner| owner.adoption()), Some("cluster-2/uid-2/4".to_owned()));
    for other in ["cluster-2/uid-2/3", "cluster-1/uid-2/4", "cluster-2/uid-1/4"] {
        adopt(&mut world, other);
        world.settle();
        assert!(world.did().is_empty(), "{other}");
    }
    adopt(&mut world, "cluster-2/uid-2/4");
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
    assert_eq!(world.owner.as_ref().unwrap().epoch, 5);
    assert_eq!(world.says(names::HOST_OWNED).0, "True");
}

/// Epochs start at 1 again on a host that was wiped.
#[test]
fn an_adoption_that_was_followed_means_nothing_afterwards() {
    let mut world = foreign();
    adopt(&mut world, "cluster-2/uid-2/4");
    world.settle();
    assert_eq!(world.status().adopted.as_deref(), Some("cluster-2/uid-2/4"));
    world.done.clear();
    let theirs = fleetwright_wire::Mark { owner: owner("cluster-2", "uid-2"), epoch: 4, fence: 9 };
    world.owner = Some(theirs.clone());
    world.want(four("1.37"));
    world.settle();
    assert!(world.did().is_empty() && world.owner.as_ref() == Some(&theirs), "it was taken without being asked");
    assert_eq!(world.says(names::HOST_OWNED).1, "HostOwnedByAnother");
    // Requested again, as the command does.
    adopt(&mut world, "cluster-2/uid-2/4/2030-01-02T00:00:00Z");
    world.settle();
    assert_eq!(world.owner.as_ref().unwrap().epoch, 5);
}

/// Hosts that an earlier version installed have no owner mark.
#[test]
fn a_machine_claims_the_host_that_it_installed_before_hosts_had_owners() {
    let mut world = ready("1.36");
    (world.owner, world.never_owned) = (None, true);
    world.settle_for(SignedDuration::from_mins(11));
    assert_eq!(world.owner.as_ref().map(|mark| mark.owner.clone()), Some(world.identity()));
    assert!(world.did().is_empty() && world.operations.is_empty(), "nothing else is done for it");
    assert_eq!(world.says(names::HOST_OWNED).1, "Owned");
    // A paused machine is left as it is.
    (world.owner, world.never_owned, world.machine.spec.paused) = (None, true, true);
    world.settle();
    assert_eq!(world.owner, None);
}

/// The attack: a second Machine for a host in service, before its first Machine has claimed it.
#[test]
fn a_host_that_another_machine_installed_is_not_claimed_by_a_step() {
    let mut world = TestMachine::new(vec![]);
    let kubelet = four("1.36").remove(0);
    let there = fleetwright_wire::Installed {
        reference: kubelet.package.reference.clone(),
        version: "1.36".to_owned(),
        digest: kubelet.digest.clone(),
    };
    world.installed.insert("kubelet".to_owned(), vec![there]);
    world.shelf.insert(kubelet.digest.clone(), std::sync::Arc::new(kubelet));
    world.never_owned = true;
    world.settle();
    assert!(world.did().is_empty() && world.owner.is_none(), "{:?}", world.did());
    let (status, reason, message) = world.says(names::HOST_OWNED);
    assert_eq!((&*status, &*reason), ("False", "HostNotClaimed"));
    assert!(message.contains("--from unclaimed"), "{message}");
    let before = world.machine.clone();
    world.machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
    delete(&mut world);
    world.settle();
    assert!(world.gone && world.did().is_empty() && !world.clean, "it leaves what is not its own");
    (world.machine, world.gone) = (before, false);
    // A person decides who owns the host.
    adopt(&mut world, "unclaimed/2030-01-02T00:00:00Z");
    world.settle();
    assert_eq!(world.owner.as_ref().map(|mark| mark.owner.clone()), Some(world.identity()));
    assert_eq!(world.did(), ["remove kubelet"]);
}

#[test]
fn a_host_that_heard_a_newer_leader_is_left_until_it_is_adopted_again() {
    let mut world = ready("1.36");
    world.owner.as_mut().unwrap().fence = 8;
    world.want(four("1.37"));
    world.settle();
    assert!(world.did().is_empty());
    assert_eq!(world.says(names::HOST_OWNED).1, "StaleFencingToken");
    let own = world.status().host_owner.unwrap().adoption();
    adopt(&mut world, &own);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
    assert_eq!(world.owner.as_ref().unwrap().epoch, 2);
}

#[test]
fn a_deleted_machine_leaves_the_host_of_another_alone() {
    let mut world = foreign();
    world.machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
    delete(&mut world);
    world.settle();
    assert!(world.gone && world.did().is_empty() && !world.clean);
    assert_eq!(world.owner.as_ref().unwrap().epoch, 4);
}

#[test]
fn a_host_that_was_adopted_by_another_ends_our_window() {
    let mut world = ready("1.36");
    (world.pods, world.blocked) = (3, true);
    world.want(four("1.37"));
    world.settle_for(SignedDuration::from_mins(2));
    world.owner = Some(fleetwright_wire::Mark { owner: owner("cluster-2", "uid-2"), epoch: 2, fence: 9 });
    world.settle_for(SignedDuration::from_mins(10));
    assert!(world.did().is_empty());
    assert!(world.operations[0].ended.clone().is_some_and(|(well, ..)| !well), "{:#?}", world.operations);
}

#[test]
fn a_machine_with_the_address_of_an_older_one_waits() {
    let mut world = TestMachine::new(four("1.36"));
    world.same_address = Some("host-3".to_owned());
    world.settle();
    assert!(world.did().is_empty() && world.memory.seen.is_none(), "it is not even connected to");
    assert_eq!(world.says(names::HOST_OWNED).1, "AddressInUse");
    world.same_address = None;
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
}

#[test]
fn a_machine_that_loses_its_address_to_another_gives_its_place_at_the_gate_back() {
    let mut world = ready("1.36");
    (world.pods, world.blocked) = (3, true);
    world.want(four("1.37"));
    world.settle_for(SignedDuration::from_mins(2));
    assert!(world.operations[0].granted && world.operations[0].ended.is_none());
    world.same_address = Some("host-3".to_owned());
    world.settle_for(SignedDuration::from_mins(1));
    let (well, _, text) = world.operations[0].ended.clone().expect("the window ends");
    assert!(!well && text.contains("AddressInUse"), "{text}");
}

/// A machine in a window whose drain does not end.
fn draining() -> TestMachine {
    let mut world = ready("1.36");
    (world.pods, world.blocked) = (3, true);
    world.want(four("1.37"));
    world.settle_for(SignedDuration::from_mins(2));
    assert!(world.operations[0].granted && world.operations[0].ended.is_none());
    assert!(world.node.as_ref().unwrap().closed.is_some());
    world
}

#[test]
fn a_machine_whose_package_is_deleted_in_a_window_gives_its_place_back_and_opens_its_node() {
    let mut world = draining();
    world.cannot = Some("there is no MachinePackageVersion kubelet-1.37".to_owned());
    let decision = world.pass(Crash::Never);
    assert!(matches!(decision.act, Act::EndWindow { open: true, well: false, .. }), "{:?}", decision.act);
    let (_, _, text) = world.operations[0].ended.clone().expect("the window ends");
    assert!(text.contains("RenderFailed") && text.contains("kubelet-1.37"), "{text}");
    let (status, reason, message) = world.says(names::UP_TO_DATE);
    assert_eq!((&*status, &*reason), ("False", "RenderFailed"));
    assert!(message.contains("Node host-17") && message.contains("opened"), "{message}");
    world.settle_for(SignedDuration::from_mins(5));
    assert_eq!((world.node.as_ref().unwrap().closed.clone(), world.operations.len()), (None, 1));
    (world.cannot, world.blocked) = (None, false);
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"]);
}

#[test]
fn a_machine_that_is_only_observed_from_now_on_gives_its_place_back_and_opens_its_node() {
    let mut world = draining();
    world.machine.spec.paused = true;
    let ssh = world.machine.spec.ssh.take();
    world.settle_for(SignedDuration::from_mins(1));
    assert!(world.operations[0].ended.is_none(), "a pause keeps it as it is");
    world.machine.spec.paused = false;
    world.settle_for(SignedDuration::from_mins(1));
    assert!(world.operations[0].ended.clone().is_some_and(|(well, ..)| !well), "{:#?}", world.operations);
    assert_eq!(world.node.as_ref().unwrap().closed, None);
    let (status, reason, message) = world.says(names::UP_TO_DATE);
    assert_eq!((&*status, &*reason), ("Unknown", "NotManaged"));
    assert!(message.contains("Node host-17") && message.contains("opened"), "{message}");
    (world.machine.spec.ssh, world.blocked) = (ssh, false);
    world.settle();
    assert_eq!(
        (world.did(), world.says(names::UP_TO_DATE).1),
        (vec!["install kubelet 1.37".to_owned()], "MatchesSpec".to_owned())
    );
}

#[test]
fn a_node_under_which_something_was_begun_stays_closed_when_its_window_ends_in_vain() {
    let mut world = ready("1.36");
    world.want(four("1.37"));
    for _ in 0..100 {
        if !world.did().is_empty() {
            break;
        }
        world.pass(Crash::Never);
        world.now += SignedDuration::from_secs(1);
    }
    assert_eq!(world.state("kubelet"), Some(ComponentState::Upgrading));
    world.cannot = Some("there is no MachinePackageVersion kubelet-1.37".to_owned());
    world.settle_for(SignedDuration::from_mins(5));
    assert!(world.operations[0].ended.clone().is_some_and(|(well, ..)| !well), "{:#?}", world.operations);
    assert!(world.node.as_ref().unwrap().closed.is_some(), "what was begun has not proven itself");
    world.cannot = None;
    world.settle();
    assert_eq!((world.status().phase, world.did().len()), (Some(Phase::Ready), 1));
    assert_eq!(world.node.as_ref().unwrap().closed, None);
}

#[test]
fn a_serial_number_that_differs_stops_everything_and_an_unknown_one_does_not() {
    let mut world = TestMachine::new(four("1.36"));
    world.machine.spec.hardware.serial = Some("SN-1".to_owned());
    world.serial = Some("SN-2".to_owned());
    world.settle();
    assert!(world.did().is_empty());
    assert_eq!(world.says(names::HOST_OWNED).1, "SerialMismatch");
    world.serial = None;
    world.settle();
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
    let (status, reason, message) = world.says(names::HOST_OWNED);
    assert_eq!((&*status, &*reason), ("True", "SerialUnknown"), "{message}");
    assert!(message.contains("SN-1"), "{message}");
    world.serial = Some("sn-1".to_owned());
    world.settle();
    assert_eq!(world.says(names::HOST_OWNED).1, "Owned");
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

/// Edits the labels in the spec.
fn declare_labels(world: &mut TestMachine, labels: &[(&str, &str)]) {
    let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    world.machine.spec.node_labels = labels.iter().map(owned).collect();
    world.machine.metadata.generation = world.machine.metadata.generation.map(|generation| generation + 1);
}

fn labels_of(world: &TestMachine) -> Vec<String> {
    let labels = &world.node.as_ref().unwrap().labels;
    let mut labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.sort();
    labels
}

#[test]
fn labels_that_are_edited_reach_the_node_and_those_of_others_stay() {
    let mut world = ready("1.36");
    world.node.as_mut().unwrap().labels = vec![("team".into(), "a".into())];
    declare_labels(&mut world, &[("pool", "online")]);
    world.settle();
    assert_eq!(labels_of(&world), ["pool=online", "team=a"]);
    assert_eq!(world.status().node_labels, ["pool"]);
    declare_labels(&mut world, &[("pool", "gpu")]);
    world.settle();
    assert_eq!(labels_of(&world), ["pool=gpu", "team=a"], "its value is another one");
    world.node.as_mut().unwrap().labels.retain(|(key, _)| &**key != "pool");
    world.settle();
    assert_eq!(labels_of(&world), ["pool=gpu", "team=a"], "somebody removed it");
    world.node.as_mut().unwrap().labels = vec![("pool".into(), "batch".into()), ("team".into(), "a".into())];
    world.settle();
    assert_eq!(labels_of(&world), ["pool=gpu", "team=a"], "somebody changed it");
    assert_eq!(world.says(names::UP_TO_DATE).1, "MatchesSpec");
    declare_labels(&mut world, &[]);
    world.settle();
    assert_eq!(labels_of(&world), ["team=a"], "it is declared no more");
    assert!(world.status().node_labels.is_empty());
    assert!(world.did().is_empty() && world.operations.is_empty(), "nothing was disrupted");
}

/// A label that a kubelet may not set on its Node.
const TIER: &str = "node-restriction.kubernetes.io/tier";

/// Earlier versions recorded the labels in an annotation of the Node, which its kubelet may write.
#[test]
fn an_annotation_of_the_node_has_no_label_removed() {
    let mut world = ready("1.36");
    declare_labels(&mut world, &[("pool", "online")]);
    world.settle();
    let node = world.node.as_mut().unwrap();
    node.labels.push((TIER.into(), "1".into()));
    node.annotated = true;
    world.settle();
    assert_eq!(labels_of(&world), ["node-restriction.kubernetes.io/tier=1", "pool=online"]);
    assert_eq!(world.status().node_labels, ["pool"]);
    assert!(!world.node.as_ref().unwrap().annotated);
    declare_labels(&mut world, &[]);
    world.node.as_mut().unwrap().annotated = true;
    world.settle();
    assert_eq!(labels_of(&world), ["node-restriction.kubernetes.io/tier=1"]);
    assert!(!world.node.as_ref().unwrap().annotated);
}

/// A user with write access to Machines must not move a Node that others isolated.
#[test]
fn a_label_that_others_gave_the_node_is_neither_changed_nor_removed() {
    let mut world = ready("1.36");
    world.node.as_mut().unwrap().labels = vec![(TIER.into(), "1".into())];
    let edits: [(&[(&str, &str)], &str); 3] =
        [(&[(TIER, "1")], "MatchesSpec"), (&[(TIER, "2")], "LabelMismatch"), (&[], "MatchesSpec")];
    for (declared, reason) in edits {
        declare_labels(&mut world, declared);
        world.settle();
        assert_eq!(labels_of(&world), ["node-restriction.kubernetes.io/tier=1"], "{declared:?}");
        assert!(world.status().node_labels.is_empty(), "{declared:?}");
        assert_eq!(world.says(names::UP_TO_DATE).1, reason, "{declared:?}");
    }
    // Another label of the machine is set all the same.
    declare_labels(&mut world, &[(TIER, "2"), ("pool", "gpu")]);
    world.settle();
    assert_eq!(labels_of(&world), ["node-restriction.kubernetes.io/tier=1", "pool=gpu"]);
    let (status, _, message) = world.says(names::UP_TO_DATE);
    let command = "kubectl label node host-17 node-restriction.kubernetes.io/tier-";
    assert!(status == "False" && message.contains(command), "{message}");
    // The owner of the label removes it, and from then on it is the machine's.
    world.node.as_mut().unwrap().labels.retain(|(key, _)| &**key != TIER);
    world.settle();
    assert_eq!(labels_of(&world), ["node-restriction.kubernetes.io/tier=2", "pool=gpu"]);
    assert_eq!(world.says(names::UP_TO_DATE).1, "MatchesSpec");
    declare_labels(&mut world, &[]);
    world.settle();
    assert!(labels_of(&world).is_empty() && world.status().node_labels.is_empty());
}

/// Its configuration may have the value of an earlier spec.
#[test]
fn a_label_that_the_kubelet_registered_its_node_with_is_the_machine_s() {
    let mut world = TestMachine::new(four("1.36"));
    world.joins = false;
    declare_labels(&mut world, &[("pool", "online"), (TIER, "1")]);
    world.settle();
    let labels = vec![(TIER.into(), "2".into()), ("pool".into(), "batch".into()), ("zone".into(), "a".into())];
    world.node = Some(NodeModel { labels, ..NodeModel::new("boot-1") });
    world.settle();
    let restricted = "node-restriction.kubernetes.io/tier=2";
    assert_eq!(labels_of(&world), [restricted, "pool=online", "zone=a"], "no kubelet sets a restricted label");
    assert_eq!(world.status().node_labels, ["pool"]);
    declare_labels(&mut world, &[]);
    world.settle();
    assert_eq!(labels_of(&world), [restricted, "zone=a"]);
}

#[test]
fn a_label_is_recorded_before_the_node_gets_it_and_a_paused_machine_gets_none() {
    let mut world = ready("1.36");
    world.machine.spec.paused = true;
    declare_labels(&mut world, &[("pool", "gpu")]);
    world.settle();
    assert!(labels_of(&world).is_empty() && world.status().node_labels.is_empty());
    world.machine.spec.paused = false;
    for _ in 0..1000 {
        let recorded = world.status().node_labels;
        if let Act::Label { .. } = world.pass(Crash::Never).act {
            assert_eq!(recorded, ["pool"], "after a crash it would be a label of others");
            break;
        }
        world.now += SignedDuration::from_secs(1);
    }
    assert_eq!(labels_of(&world), ["pool=gpu"]);
}

#[test]
fn what_was_changed_before_a_pause_proves_itself_during_it() {
    let mut world = ready("1.36");
    world.slow.insert("kubelet".to_owned(), 1);
    world.want(four("1.37"));
    until_installed(&mut world, "install kubelet 1.37");
    world.machine.spec.paused = true;
    world.settle();
    assert_eq!(world.state("kubelet"), Some(ComponentState::Ready), "{}", world.message("kubelet"));
    assert!(world.operations[0].ended.is_none(), "the window stays as it is");
    world.machine.spec.paused = false;
    world.settle();
    assert_eq!(world.did(), ["install kubelet 1.37"], "a version that works is not rolled back");
    assert_eq!(world.status().phase, Some(Phase::Ready), "{:#?}", world.status());
}

#[test]
fn a_paused_host_that_stops_answering_is_noticed() {
    let mut world = ready("1.36");
    world.machine.spec.paused = true;
    world.settle();
    assert_eq!(world.says(names::REACHABLE).0, "True");
    world.silent = Some("no route to host".to_owned());
    world.settle();
    assert_eq!(world.says(names::REACHABLE).1, "NoResponse");
    assert_eq!(world.status().phase, Some(Phase::Lost));
}

fn taint(text: &str) -> Taint {
    let (key, value, effect) = match text.split([':', '=']).collect::<Vec<_>>()[..] {
        [key, value, effect] => (key, value, effect),
        [key, effect] => (key, "", effect),
        _ => panic!("{text} is no taint"),
    };
    serde_json::from_value(serde_json::json!({ "key": key, "value": value, "effect": effect })).unwrap()
}

/// Edits the taints in the spec.
fn declare_taints(world: &mut TestMachine, taints: &[&str]) {
    world.machine.spec.taints = taints.iter().map(|text| taint(text)).collect();
    world.machine.metadata.generation = world.machine.metadata.generation.map(|generation| generation + 1);
}

fn taints_of(world: &TestMachine) -> Vec<String> {
    let mut taints: Vec<String> =
        world.node.as_ref().unwrap().taints.iter().map(|taint| format!("{}={}", taint.id(), taint.value)).collect();
    taints.sort();
    taints
}

#[test]
fn taints_that_are_edited_reach_the_node_and_those_of_others_stay() {
    let mut world = ready("1.36");
    let others = ["fleetwright.io/unready:NoSchedule", "gpu:NoExecute", "node.kubernetes.io/not-ready:NoSchedule"];
    world.node.as_mut().unwrap().taints = others.iter().map(|text| taint(text)).collect();
    let foreign = ["fleetwright.io/unready:NoSchedule=", "gpu:NoExecute=", "node.kubernetes.io/not-ready:NoSchedule="];
    declare_taints(&mut world, &["gpu=yes:NoSchedule", "node.kubernetes.io/out-of-service:NoExecute"]);
    world.settle();
    let with = |ours: &str| {
        let mut all: Vec<String> = foreign.iter().chain([&ours]).map(|&text| text.to_owned()).collect();
        all.sort();
        all
    };
    assert_eq!(taints_of(&world), with("gpu:NoSchedule=yes"));
    assert_eq!(world.status().node_taints, ["gpu:NoSchedule"]);
    declare_taints(&mut world, &["gpu=no:NoSchedule"]);
    world.settle();
    assert_eq!(taints_of(&world), with("gpu:NoSchedule=no"), "its value is another one");
    world.node.as_mut().unwrap().taints.retain(|taint| taint.value != "no");
    world.settle();
    assert_eq!(taints_of(&world), with("gpu:NoSchedule=no"), "somebody removed it");
    declare_taints(&mut world, &[]);
    world.settle();
    assert_eq!(taints_of(&world), foreign, "it is declared no more");
    assert!(world.status().node_taints.is_empty());
    assert!(world.did().is_empty() && world.operations.is_empty(), "nothing was disrupted");
}

/// A user with write access to Machines must not lift a quarantine.
#[test]
fn a_taint_that_others_gave_the_node_is_neither_changed_nor_removed() {
    let mut world = ready("1.36");
    world.node.as_mut().unwrap().taints = vec![taint("quarantine=incident:NoExecute")];
    for declared in [&["quarantine=incident:NoExecute"][..], &["quarantine=over:NoExecute"], &[]] {
        declare_taints(&mut world, declared);
        world.settle();
        assert_eq!(taints_of(&world), ["quarantine:NoExecute=incident"], "{declared:?}");
        assert!(world.status().node_taints.is_empty(), "{declared:?}");
    }
    declare_taints(&mut world, &["quarantine=over:NoExecute"]);
    world.settle();
    let (status, reason, message) = world.says(names::UP_TO_DATE);
    assert_eq!((&*status, &*reason), ("False", "TaintMismatch"), "{message}");
    assert!(message.contains("kubectl taint node host-17 quarantine:NoExecute-"), "{message}");
    // The author of the taint removes it, and from then on it is the machine's.
    world.node.as_mut().unwrap().taints.clear();
    world.settle();
    assert_eq!(taints_of(&world), ["quarantine:NoExecute=over"]);
    assert_eq!(world.says(names::UP_TO_DATE).1, "MatchesSpec");
    declare_taints(&mut world, &[]);
    world.settle();
    assert!(taints_of(&world).is_empty());
}

#[test]
fn a_taint_that_the_kubelet_registered_its_node_with_is_the_machine_s() {
    let mut world = TestMachine::new(four("1.36"));
    world.joins = false;
    declare_taints(&mut world, &["gpu=yes:NoSchedule"]);
    world.settle();
    let taints = vec![taint("gpu=yes:NoSchedule"), taint("other:NoSchedule")];
    world.node = Some(NodeModel { taints, ..NodeModel::new("boot-1") });
    world.settle();
    assert_eq!(world.status().node_taints, ["gpu:NoSchedule"]);
    declare_taints(&mut world, &[]);
    world.settle();
    assert_eq!(taints_of(&world), ["other:NoSchedule="]);
}

#[test]
fn a_taint_is_recorded_before_the_node_gets_it_and_a_paused_machine_gets_none() {
    let mut world = ready("1.36");
    world.machine.spec.paused = true;
    declare_taints(&mut world, &["gpu=yes:NoSchedule"]);
    world.settle();
    assert!(taints_of(&world).is_empty() && world.status().node_taints.is_empty());
    world.machine.spec.paused = false;
    for _ in 0..1000 {
        let recorded = world.status().node_taints;
        if let Act::Taint { .. } = world.pass(Crash::Never).act {
            assert_eq!(recorded, ["gpu:NoSchedule"], "after a crash it would be a taint of others");
            break;
        }
        world.now += SignedDuration::from_secs(1);
    }
    assert_eq!(taints_of(&world), ["gpu:NoSchedule=yes"]);
    declare_taints(&mut world, &[]);
    world.settle();
    assert!(taints_of(&world).is_empty());
}

#[test]
fn taints_reach_the_node_while_the_gate_is_shut_the_host_is_silent_or_a_package_is_missing() {
    type Prepare = fn(&mut TestMachine);
    let ways: [Prepare; 3] = [
        |world| world.gate_open = false,
        |world| world.silent = Some("no route to host".to_owned()),
        |world| world.cannot = Some("there is no MachinePackageVersion kubelet-1.37".to_owned()),
    ];
    for (way, prepare) in ways.into_iter().enumerate() {
        let mut world = ready("1.36");
        prepare(&mut world);
        world.want(four("1.37"));
        world.settle();
        declare_taints(&mut world, &["gpu=yes:NoSchedule"]);
        world.settle();
        assert_eq!(taints_of(&world), ["gpu:NoSchedule=yes"], "way {way}");
        assert!(world.did().is_empty(), "way {way}: {:?}", world.did());
        (world.gate_open, world.silent, world.cannot) = (true, None, None);
        world.settle();
        assert_eq!(world.did(), ["install kubelet 1.37"], "way {way}");
    }
}

/// A Node that rejects its taints must not keep its machine from the gate.
#[test]
fn the_pass_that_taints_a_node_asks_for_the_window_as_well() {
    let mut world = ready("1.36");
    world.gate_open = false;
    world.want(four("1.37"));
    world.settle();
    declare_taints(&mut world, &["gpu=yes:NoSchedule"]);
    for _ in 0..10 {
        let decision = world.pass(Crash::Never);
        if let Act::Taint { .. } = decision.act {
            assert!(decision.also_ask.is_some(), "the window is not asked for");
            return;
        }
        world.now += SignedDuration::from_secs(1);
    }
    panic!("the Node gets no taint: {:?}", world.decide().act);
}

#[test]
fn a_host_is_looked_at_between_windows_that_are_given_up() {
    let mut world = draining();
    let ended = |world: &TestMachine| world.operations.iter().filter(|operation| operation.ended.is_some()).count();
    // The third window is requested after twenty minutes.
    for _ in 0..120 {
        if ended(&world) == 2 {
            break;
        }
        minutes(&mut world, 1);
    }
    assert_eq!(ended(&world), 2, "{:#?}", world.operations);
    world.silent = Some("no route to host".to_owned());
    minutes(&mut world, 15);
    assert_eq!(world.operations.len(), 2, "it waits for its next window");
    assert_eq!(world.says(names::REACHABLE).0, "False");
}

#[test]
fn a_provider_id_that_is_set_late_is_given_to_a_node_without_one_and_another_one_is_reported() {
    let mut world = ready("1.36");
    world.machine.spec.provider_id = Some("bare://host-17".to_owned());
    world.settle();
    assert_eq!(world.node.as_ref().unwrap().provider_id.as_deref(), Some("bare://host-17"));
    assert_eq!(world.says(names::UP_TO_DATE).1, "MatchesSpec");
    world.node.as_mut().unwrap().provider_id = Some("cloud://other".to_owned());
    world.settle();
    let (status, reason, message) = world.says(names::UP_TO_DATE);
    assert_eq!((&*status, &*reason), ("False", "ProviderIDMismatch"), "{message}");
    assert!(message.contains("cloud://other") && message.contains("bare://host-17"), "{message}");
    assert_eq!(world.node.as_ref().unwrap().provider_id.as_deref(), Some("cloud://other"));
}

fn delete(world: &mut TestMachine) {
    world.machine.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
}

#[test]
fn a_paused_machine_is_not_released_when_it_is_deleted() {
    type Prepare = fn(&mut TestMachine);
    let ways: [Prepare; 4] = [
        |_| {},
        |world| world.machine.spec.on_delete = OnDelete::Orphan,
        |world| world.machine.spec.ssh = None,
        |world| {
            let force_release = [(names::FORCE_RELEASE.to_owned(), "true".to_owned())];
            world.machine.metadata.annotations.get_or_insert_default().extend(force_release);
        },
    ];
    for prepare in ways {
        let mut world = ready("1.36");
        world.pods = 4;
        world.machine.spec.paused = true;
        prepare(&mut world);
        delete(&mut world);
        world.settle();
        assert!(!world.gone && !world.clean && !world.node_deleted && world.did().is_empty());
        assert!(world.operations.is_empty() && world.pods == 4);
        let progress = world.status().progress.expect("the status names what blocks the deletion");
        assert!(progress.message.contains("spec.paused"), "{progress:?}");
        world.machine.spec.paused = false;
        world.settle();
        assert!(world.gone);
    }
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
    assert_eq!(world.owner, None, "another may have it");
}

#[test]
fn a_machine_that_leaves_its_host_in_a_window_opens_the_node_unless_a_step_was_begun() {
    type Prepare = fn(&mut TestMachine);
    let ways: [Prepare; 2] =
        [|world| world.machine.spec.on_delete = OnDelete::Orphan, |world| world.machine.spec.ssh = None];
    for prepare in ways {
        let mut world = draining();
        prepare(&mut world);
        delete(&mut world);
        world.settle();
        assert!(world.gone && world.operations[0].ended.is_some());
        assert_eq!(world.node.as_ref().unwrap().closed, None, "no machine is left that would open it");

        let mut world = ready("1.36");
        world.want(four("1.37"));
        until_installed(&mut world, "install kubelet 1.37");
        prepare(&mut world);
        delete(&mut world);
        world.settle();
        assert!(world.gone && world.node.unwrap().closed.is_some(), "what was begun has not proven itself");
    }
}

#[test]
fn a_window_that_waits_does_not_outlive_its_machine() {
    let mut world = ready("1.36");
    world.gate_open = false;
    delete(&mut world);
    world.settle_for(SignedDuration::from_mins(1));
    assert!(!world.gone && world.operations[0].ended.is_none() && !world.operations[0].granted);
    // Somebody deletes the Node: no window is needed any more.
    world.node = None;
    world.settle();
    assert!(world.gone && world.clean, "{:#?}", world.status());
    assert!(world.operations.iter().all(|operation| operation.ended.is_some()), "{:#?}", world.operations);
}

#[test]
fn an_orphaned_host_that_does_not_answer_keeps_its_mark_and_no_machine() {
    let mut world = ready("1.36");
    world.machine.spec.on_delete = OnDelete::Orphan;
    world.silent = Some("no route to host".to_owned());
    delete(&mut world);
    world.settle();
    assert!(world.gone && world.owner.is_some());
}

#[test]
fn a_host_that_is_gone_is_released_when_a_person_says_so() {
    let mut world = ready("1.36");
    world.silent = Some("no route to host".to_owned());
    delete(&mut world);
    world.settle();
    assert!(!world.gone);
    assert!(world.says(names::REACHABLE).2.contains(names::FORCE_RELEASE));
    assert_eq!(world.status().phase, Some(Phase::Deleting));
    world.machine.metadata.annotations = Some([(names::FORCE_RELEASE.to_owned(), "true".to_owned())].into());
    world.settle();
    assert!(world.gone);
}

#[test]
fn a_kernel_that_does_not_come_up_goes_back_with_another_boot() {
    let mut world = TestMachine::new(vec![package("kernel", "6.1", Disruption::Reboot, &[])]);
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

#[test]
fn a_restored_kernel_that_is_not_in_place_after_its_boots_shows_both_failures() {
    let mut world = TestMachine::new(vec![package("kernel", "6.1", Disruption::Reboot, &[])]);
    world.settle();
    let wanted = package("kernel", "6.2", Disruption::Reboot, &[]);
    world.failing.insert(wanted.digest.clone());
    world.boots_in_vain = true;
    world.want(vec![wanted]);
    world.settle();
    assert_eq!(world.state("kernel"), Some(ComponentState::Failed), "{:#?}", world.status());
    let message = world.message("kernel");
    assert!(message.contains("no space left on device"), "the first failure: {message}");
    assert!(message.contains("3 reboots"), "the second failure: {message}");
}

/// A Machine with the name of another host's Node, which any user with write access to Machines may choose.
#[test]
fn a_node_that_is_not_bound_is_left_alone_and_so_is_the_host() {
    let mut world = TestMachine::new(four("1.36"));
    world.node = Some(NodeModel::new("boot-1"));
    world.foreign = true;
    world.settle();
    assert_eq!(world.did(), [""; 0], "nothing is installed");
    assert_eq!(world.says(names::PACKAGES_READY).0, "False");
    assert_eq!(world.says(names::UP_TO_DATE).1, "NodeNotBound");
    assert_eq!(world.status().node_ref, None);
    world.machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]);
    delete(&mut world);
    world.settle();
    assert!(world.gone, "nothing of ours is on the host");
    assert!(!world.node_deleted && world.node.as_ref().unwrap().closed.is_none(), "the Node was touched");
}

/// A host in service whose Node was replaced by one that is not bound.
#[test]
fn packages_stay_under_a_node_that_is_not_bound_until_it_is_bound() {
    let mut world = ready("1.36");
    world.foreign = true;
    world.want(four("1.37"));
    world.settle_for(SignedDuration::from_hours(1));
    assert_eq!(world.carries("kubelet").as_deref(), Some("1.36"));
    assert_eq!(world.says(names::PACKAGES_READY).0, "True", "what the host carries works");
    assert_eq!(world.says(names::UP_TO_DATE).1, "NodeNotBound");
    delete(&mut world);
    world.settle_for(SignedDuration::from_hours(1));
    assert!(!world.gone && world.carries("kubelet").is_some(), "it waits");
    assert!(world.status().progress.is_some_and(|progress| progress.message.contains("bind-node")));
    world.foreign = false;
    world.settle();
    assert!(world.gone && world.node_deleted);
}

#[test]
fn a_host_that_was_left_broken_stays_closed_when_the_window_that_may_mend_it_is_given_up() {
    for (drains, minutes) in [(true, 35), (false, 65)] {
        let mut world = ready("1.36");
        let mut held = four("1.37");
        (held[0].on_failure, held[0].disruption) = (OnFailure::Hold, Disruption::Restart);
        world.broken.insert(held[0].digest.clone());
        world.want(held);
        world.settle();
        assert!(world.node.as_ref().unwrap().closed.is_some());
        if drains {
            (world.pods, world.blocked) = (3, true);
        } else {
            world.unfetchable = u32::MAX;
        }
        world.want(four("1.38"));
        world.settle_for(SignedDuration::from_mins(minutes));
        let ended = world.operations.iter().filter_map(|one| one.ended.as_ref());
        assert!(ended.map(|(.., text)| text).any(|text| text.starts_with("timed out")), "drains: {drains}");
        assert!(world.node.as_ref().unwrap().closed.is_some(), "drains: {drains}");
        (world.blocked, world.unfetchable) = (false, 0);
        world.settle();
        assert_eq!(world.node.as_ref().unwrap().closed, None);
    }
}

#[test]
fn a_version_in_service_has_time_to_prove_itself_when_a_step_was_withdrawn_before_its_turn() {
    let twice = |version: &str| {
        let mut all = four(version);
        all[0].times.healthy_times = 2;
        all
    };
    let mut world = TestMachine::new(twice("1.36"));
    world.settle();
    world.done.clear();
    world.want(twice("1.37"));
    let written = loop {
        let decision = world.decide();
        if matches!(decision.act, Act::RunStep(_)) {
            break decision.status;
        }
        world.pass(Crash::Never);
        world.now += SignedDuration::from_millis(10);
    };
    world.machine.status = Some(written);
    world.now += SignedDuration::from_mins(10);
    world.want(twice("1.36"));
    for _ in 0..100 {
        world.pass(Crash::Never);
        assert_ne!(world.state("kubelet"), Some(ComponentState::Failed), "{}", world.message("kubelet"));
        world.now += SignedDuration::from_millis(100);
    }
    world.settle();
    assert!(world.did().is_empty() && world.node.as_ref().unwrap().closed.is_none());
}

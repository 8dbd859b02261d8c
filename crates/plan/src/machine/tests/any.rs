use std::collections::BTreeSet;

use fleetwright_api::{ComponentState, Disruption, Phase};
use jiff::SignedDuration;
use proptest::prelude::*;

use super::world::{Crash, TestMachine, package};
use crate::machine::Act;
use crate::package::Rendered;

/// A random event.
#[derive(Clone, Debug)]
enum Event {
    /// Declares other versions: one for each component; none to remove it.
    Want([Option<u8>; 3]),
    /// Runs that number of passes.
    Pass(u8),
    /// Runs one pass that ends in a crash.
    Crash(u8),
    Drift(u8, bool),
    Silent(bool),
    Gate(bool),
    Pods(u8, bool),
    Pause(bool),
    Unfetchable(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let version = prop_oneof![Just(None), (0_u8..4).prop_map(Some)];
    prop_oneof![
        3 => [version.clone(), version.clone(), version].prop_map(Event::Want),
        6 => (1_u8..30).prop_map(Event::Pass),
        6 => (0_u8..3).prop_map(Event::Crash),
        1 => (0_u8..3, any::<bool>()).prop_map(|(component, disrupts)| Event::Drift(component, disrupts)),
        1 => any::<bool>().prop_map(Event::Silent),
        1 => any::<bool>().prop_map(Event::Gate),
        1 => (0_u8..6, any::<bool>()).prop_map(|(pods, blocked)| Event::Pods(pods, blocked)),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => (0_u8..3).prop_map(Event::Unfetchable),
    ]
}

const NAMES: [&str; 3] = ["sysctl", "kubelet", "kernel"];

/// Version 3 of each component does not work, and version 2 cannot be installed.
fn wanted(versions: &[Option<u8>; 3]) -> Vec<Rendered> {
    let levels = [Disruption::None, Disruption::Drain, Disruption::Reboot];
    let of = |n: usize| versions[n].map(|version| package(NAMES[n], &format!("1.{version}"), levels[n], &[]));
    let mut all: Vec<Rendered> = (0..3).filter_map(of).collect();
    if versions[0].is_some() {
        for package in all.iter_mut().skip(1) {
            package.depends_on = vec![NAMES[0].to_owned()];
        }
    }
    all
}

fn world(versions: &[Option<u8>; 3]) -> TestMachine {
    let mut world = TestMachine::new(wanted(versions));
    for on in [true, false] {
        for n in 0..3 {
            let mut versions = [None; 3];
            versions[0] = on.then_some(0);
            for (version, set) in [(3, 0), (2, 1)] {
                versions[n] = Some(version);
                for package in wanted(&versions).into_iter().filter(|package| package.package.component == NAMES[n]) {
                    if set == 0 {
                        world.broken.insert(package.digest)
                    } else {
                        world.failing.insert(package.digest)
                    };
                }
            }
        }
    }
    world
}

fn pass(world: &mut TestMachine, crash: Crash) {
    let boots = world.boot;
    let decision = world.pass(crash);
    world.check_invariants(&decision);
    assert!(world.boot <= boots + 1);
    if let Act::RunStep(run) = &decision.act {
        let entry = world.journal.iter().filter(|record| record.id == run.id).count();
        assert!(entry <= 1, "{} is in the journal {entry} times", run.id);
    }
    world.now += SignedDuration::from_secs(1);
    if let Some(next) = decision.next.filter(|_| decision.act == Act::Nothing) {
        world.now = world.now.max(next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is declared, breaks, crashes and drifts: in the end the host has the declared version, or one that worked before and
    /// the status says why; no step is running, and no Node is left closed.
    #[test]
    fn any_history_ends_well(first in [Just(Some(0_u8)), Just(Some(0_u8)), Just(Some(0_u8))], events in prop::collection::vec(event(), 1..25)) {
        let mut world = world(&first);
        // A component that was broken while it had to prove itself cannot be distinguished from a version that does not work.
        let mut disturbed = BTreeSet::new();
        for event in events {
            match event {
                Event::Want(versions) => world.want(wanted(&versions)),
                Event::Pass(times) => (0..times).for_each(|_| pass(&mut world, Crash::Never)),
                Event::Crash(how) => {
                    pass(&mut world, [Crash::Before, Crash::BeforeStatus, Crash::After][usize::from(how)]);
                }
                Event::Drift(component, disrupts) => {
                    let what = fleetwright_wire::Deviation { what: "unit x".into(), found: "dead".into(), wanted: "running".into(), disrupts };
                    let name = NAMES[usize::from(component)];
                    if world.state(name) != Some(ComponentState::Ready) {
                        disturbed.insert(name.to_owned());
                    }
                    world.drifted.insert(name.to_owned(), vec![what]);
                }
                Event::Silent(silent) => world.silent = silent.then(|| "no answer".to_owned()),
                Event::Gate(open) => world.gate_open = open,
                Event::Pods(pods, blocked) => {
                    // No pod is scheduled to a closed Node.
                    let closed = world.node.as_ref().is_some_and(|node| node.closed.is_some());
                    world.blocked = blocked;
                    world.pods = if closed { world.pods.min(pods.into()) } else { pods.into() };
                }
                Event::Pause(paused) => world.machine.spec.paused = paused,
                Event::Unfetchable(times) => world.unfetchable = times.into(),
            }
        }
        (world.silent, world.gate_open, world.blocked, world.machine.spec.paused) = (None, true, false, false);
        world.settle_for(SignedDuration::from_hours(30));
        let status = world.status();
        let ids: BTreeSet<&String> = world.done.iter().map(|(id, ..)| id).collect();
        prop_assert_eq!(ids.len(), world.done.len(), "a step ran twice");
        prop_assert!(world.operations.iter().all(|operation| operation.ended.is_some()), "{:#?}", world.operations);
        for wanted in &world.wanted {
            let name = &wanted.package.component;
            let state = world.state(name);
            let there = world.installed.get(name).and_then(|kept| kept.first());
            let works = !world.broken.contains(&wanted.digest) && !world.failing.contains(&wanted.digest);
            let blocked = wanted.depends_on.iter().any(|on| world.state(on) != Some(ComponentState::Ready));
            let blamed = disturbed.contains(name) && world.message(name).contains("unit x is dead, wanted running");
            if works && !blocked && !blamed {
                prop_assert_eq!(there.map(|there| &there.digest), Some(&wanted.digest), "{}: {:#?}", name, status);
                prop_assert_eq!(state, Some(ComponentState::Ready), "{}: {:#?}", name, status);
            } else if !works {
                let given_up = [Some(ComponentState::Failed), Some(ComponentState::RolledBack)];
                prop_assert!(blocked || given_up.contains(&state), "{}: {:#?}", name, status);
            }
        }
        let all = status.components.iter().all(|entry| entry.state == ComponentState::Ready);
        if all {
            prop_assert_eq!(status.phase, Some(Phase::Ready));
            prop_assert!(world.plan().is_empty(), "{:?}", world.plan());
            let drifted = world.drifted.keys().find(|name| world.installed.contains_key(*name));
            prop_assert!(drifted.is_none(), "{:?} is as it was broken", drifted);
            prop_assert!(world.node.as_ref().is_none_or(|node| node.closed.is_none()));
            prop_assert!(world.installed.len() == world.wanted.len(), "{:?}", world.installed);
        }
    }
}

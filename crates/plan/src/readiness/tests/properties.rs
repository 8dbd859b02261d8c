//! Properties that hold for every machine at every time.

use fleetwright_api::{Absence, Gate, GateWhen, Span, Status};
use proptest::prelude::*;

use super::{ReadinessFixture, ReportInput, StoredCondition, at, filing, from_node, from_reporter, gate, kept};
use crate::readiness::after;
use crate::readiness::gate::GateState;
use crate::readiness::verdict::NodeAction;

fn status() -> impl Strategy<Value = Status> {
    prop_oneof![3 => Just(Status::True), 2 => Just(Status::False), 1 => Just(Status::Unknown)]
}

fn absence() -> impl Strategy<Value = Absence> {
    prop_oneof![Just(Absence::Fail), Just(Absence::Pass), Just(Absence::Keep)]
}

/// Gates on types A to E, each from a different kind of source.
fn a_gate() -> impl Strategy<Value = Gate> {
    let numbers = (0..5usize, 0..90u64, 0..90u64, prop::option::of(1..120u64));
    (numbers, any::<bool>(), absence(), absence(), any::<bool>()).prop_map(
        |((n, hold, tolerate, stale), bootstrap, missing, on_stale, wants_true)| {
            let base = match n {
                0 => gate("A"),
                1 => from_node("B", "B"),
                2 => from_reporter("C", "c-agent"),
                3 => from_reporter("D", "d-agent"),
                _ => from_node("E", "E"),
            };
            Gate {
                status: if wants_true { Status::True } else { Status::False },
                when: if bootstrap { GateWhen::Bootstrap } else { GateWhen::Always },
                hold_for: Span::seconds(hold),
                tolerate_for: Span::seconds(tolerate),
                stale_after: if n == 0 { None } else { stale.map(Span::seconds) },
                missing,
                stale: on_stale,
                ..base
            }
        },
    )
}

fn unique(gates: Vec<Gate>) -> Vec<Gate> {
    let mut out: Vec<Gate> = Vec::new();
    for gate in gates {
        if out.iter().all(|other| other.type_ != gate.type_) {
            out.push(gate);
        }
    }
    out
}

/// A random event.
#[derive(Clone, Debug)]
enum Event {
    Machine(Status),
    Node(usize, Status),
    Report(usize, Option<Status>),
    Broken(usize),
    Cordon(bool),
    Pause(bool),
    NodeGone(bool),
    Replaced,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => status().prop_map(Event::Machine),
        4 => (0..2usize, status()).prop_map(|(n, status)| Event::Node(n, status)),
        6 => (0..2usize, prop::option::weighted(0.8, status())).prop_map(|(n, status)| Event::Report(n, status)),
        1 => (0..2usize).prop_map(Event::Broken),
        1 => any::<bool>().prop_map(Event::Cordon),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => any::<bool>().prop_map(Event::NodeGone),
        1 => Just(Event::Replaced),
    ]
}

fn happen(world: &mut ReadinessFixture, event: &Event, now: i64) {
    let set = |list: &mut Vec<StoredCondition>, type_: &str, status: Status| {
        let before = list.iter().find(|kept| kept.type_ == type_ && kept.status == status).map(|kept| kept.since);
        list.retain(|kept| kept.type_ != type_);
        let mut new = kept(type_, status, now);
        new.since = before.unwrap_or(new.since);
        new.heartbeat = Some(at(now));
        list.push(new);
    };
    match event {
        Event::Machine(status) => set(&mut world.conditions, "A", *status),
        Event::Node(n, status) => set(&mut world.node_conditions, ["B", "E"][*n], *status),
        Event::Report(n, status) => {
            let (type_, reporter) = [("C", "c-agent"), ("D", "d-agent")][*n];
            world.filed.retain(|filing| filing.reporter != reporter);
            if let Some(status) = status {
                let mut says = kept(type_, *status, 0);
                says.heartbeat = Some(at(now));
                world.filed.push(filing(reporter, vec![says]));
            }
        }
        Event::Broken(n) => {
            let reporter = ["c-agent", "d-agent"][*n];
            world.filed.retain(|filing| filing.reporter != reporter);
            world.filed.push(ReportInput { broken: Some("nonsense".to_owned()), ..filing(reporter, Vec::new()) });
        }
        Event::Cordon(on) => world.cordoned = *on,
        Event::Pause(on) => world.paused = *on,
        Event::NodeGone(on) => world.node = !on,
        Event::Replaced => {
            world.uid.push('+');
            world.closed = true;
            world.closed_at = None;
            world.node_created = now;
        }
    }
}

fn gates_and_events() -> impl Strategy<Value = (Vec<Gate>, Vec<Gate>, Vec<(i64, Event)>)> {
    (
        prop::collection::vec(a_gate(), 0..5).prop_map(unique),
        prop::collection::vec(a_gate(), 0..3).prop_map(unique),
        prop::collection::vec((0..100i64, event()), 1..25),
    )
}

fn world(first: Vec<Gate>, second: Vec<Gate>) -> ReadinessFixture {
    let mut world = ReadinessFixture::new(first);
    if !second.is_empty() {
        world.objects.push(("others".to_owned(), -900, second));
    }
    world
}

/// The state in the API after a step, without fields that change with time alone.
fn shown(world: &ReadinessFixture) -> String {
    format!("{:?} {:?} {:?} {:?}", world.conditions, world.closed, world.closed_at, world.bootstrapped)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_decision_that_was_carried_out_is_not_made_again((first, second, events) in gates_and_events()) {
        let mut world = world(first, second);
        let mut now = 0;
        for (wait, event) in events {
            now += wait;
            happen(&mut world, &event, now);
            world.step(at(now));
            let once = shown(&world);
            let again = world.step(at(now));
            prop_assert_eq!(again.turn, None);
            prop_assert_eq!(shown(&world), once);
        }
    }

    #[test]
    fn nothing_changes_before_the_time_that_the_decision_named((first, second, events) in gates_and_events(), share in 0.0..1.0f64) {
        let mut world = world(first, second);
        let mut now = 0;
        for (wait, event) in events {
            now += wait;
            happen(&mut world, &event, now);
            world.step(at(now));
            let decision = world.step(at(now));
            if let Some(next) = decision.next {
                prop_assert!(next >= at(now));
            }
            // A time before the next decision, or far away if there is none.
            let until = decision.next.map_or(100_000.0, |next| next.as_second() as f64 - at(now).as_second() as f64);
            if until > 0.0 {
                let later = at(now) + jiff::SignedDuration::from_millis((until * 1000.0 * share) as i64);
                if decision.next.is_none_or(|next| later < next) {
                    let mut then = world.clone();
                    let quiet = then.step(later);
                    prop_assert_eq!(quiet.turn, None);
                    prop_assert_eq!(shown(&then), shown(&world));
                }
            }
        }
    }

    #[test]
    fn the_order_in_which_gates_are_written_does_not_matter((first, second, events) in gates_and_events()) {
        let mut straight = world(first, second);
        let mut turned = straight.clone();
        turned.objects.reverse();
        turned.objects.iter_mut().for_each(|object| object.2.reverse());
        let mut now = 0;
        for (wait, event) in events {
            now += wait;
            happen(&mut straight, &event, now);
            happen(&mut turned, &event, now);
            turned.filed.reverse();
            prop_assert_eq!(straight.step(at(now)), turned.step(at(now)));
        }
    }

    #[test]
    fn a_machine_in_service_never_flaps_faster_than_its_gates_allow((first, second, events) in gates_and_events()) {
        let mut world = world(first, second);
        let mut now = 0;
        for (wait, event) in events {
            // Checks every second until then, as the operator would at each decision's `next`.
            for second in now..=now + wait {
                if second == now + wait {
                    happen(&mut world, &event, second);
                }
                let now = at(second);
                let uid = world.uid.clone();
                let proven = world.bootstrapped.as_ref().is_some_and(|b| b.node_uid == uid);
                let (opens, closes) = world.with(now, |_, _, judgement| {
                    let opens = judgement.checked.iter().all(|gate| match gate.state {
                        GateState::Holds { since } => after(since, gate.gate.hold_for.0) <= now,
                        _ => false,
                    });
                    let closes = judgement.checked.iter().any(|gate| match gate.state {
                        GateState::Fails { since } => after(since, gate.gate.tolerate_for.0) <= now,
                        _ => false,
                    });
                    (opens, closes)
                });
                match world.step(now).turn {
                    Some(NodeAction::Open) => prop_assert!(opens),
                    Some(NodeAction::Close) => prop_assert!(closes || !proven),
                    None => {}
                }
                prop_assert!(!(world.paused && world.conditions.is_empty()));
            }
            now += wait;
        }
    }

    #[test]
    fn a_report_is_copied_with_the_time_at_which_its_status_changed((_, _, events) in gates_and_events()) {
        let mut world = world(vec![from_reporter("C", "c-agent")], Vec::new());
        let mut now = 0;
        let mut status = None;
        let mut since = 0;
        for (wait, event) in events {
            now += wait;
            happen(&mut world, &event, now);
            let says = world.filed.iter().find(|filing| filing.reporter == "c-agent" && filing.broken.is_none());
            let new = says.map_or(Status::Unknown, |filing| filing.says[0].status);
            if status != Some(new) {
                status = Some(new);
                since = now;
            }
            world.step(at(now));
            let copy = world.conditions.iter().find(|kept| kept.type_ == "C").unwrap();
            prop_assert_eq!((copy.status, copy.since), (new, at(since)));
        }
    }
}

use std::sync::Arc;

use fleetwright_api::{Amount, SafetyNet, Span};
use jiff::Timestamp;
use proptest::prelude::*;

use super::at;
use crate::readiness::safety_net::{Net, NetMembership, NetState, limit};

fn place(scope: &str) -> NetMembership {
    NetMembership { gates: "workers".into(), scope: scope.into() }
}

/// A net over one scope of healthy machines: a third may be lost, at least 3.
fn nets(size: usize) -> (Net, Vec<Arc<str>>) {
    let mut net = Net::default();
    net.rule(&"workers".into(), Some(&SafetyNet::default()));
    let machines: Vec<Arc<str>> = (0..size).map(|n| Arc::from(format!("m{n:04}"))).collect();
    for machine in &machines {
        net.place(machine, vec![place("")], NetState::InService);
    }
    (net, machines)
}

fn fail(net: &mut Net, machine: &Arc<str>) {
    net.place(machine, vec![place("")], NetState::Failing);
}

fn close(net: &mut Net, machine: &Arc<str>, now: Timestamp) -> bool {
    net.may_close(machine, now, now).is_empty()
}

#[test]
fn machines_that_fail_together_are_all_kept_open_until_enough_of_them_recover() {
    let (mut net, machines) = nets(30);
    for machine in &machines[..11] {
        fail(&mut net, machine);
    }
    for machine in &machines[..11] {
        assert!(!close(&mut net, machine, at(0)));
    }
    assert_eq!(net.holding("workers")[0].1.held, 11);
    assert_eq!(net.holding("workers")[0].1.limit, 9);
    net.place(&machines[10], vec![place("")], NetState::InService);
    assert!(net.machines_to_wake(&[place("")]).is_empty(), "10 are still one too many");
    assert!(!close(&mut net, &machines[0], at(100_000)), "the clock alone does not let go");
    net.place(&machines[9], vec![place("")], NetState::InService);
    assert_eq!(net.machines_to_wake(&[place("")]), machines[..9]);
    for machine in &machines[..9] {
        assert!(close(&mut net, machine, at(200)));
    }
    assert!(net.holding("workers").is_empty());
}

#[test]
fn machines_that_fail_one_after_another_are_closed_up_to_the_limit() {
    let (mut net, machines) = nets(100);
    let mut closed = 0;
    for (n, machine) in machines.iter().enumerate() {
        fail(&mut net, machine);
        closed += usize::from(close(&mut net, machine, at(n as i64)));
    }
    assert_eq!(closed, 33);
}

#[test]
fn machines_that_fail_far_apart_in_time_do_not_count_together() {
    let (mut net, machines) = nets(10);
    for (n, machine) in machines.iter().enumerate() {
        fail(&mut net, machine);
        assert!(close(&mut net, machine, at(n as i64 * 601)), "{n}");
    }
}

#[test]
fn a_machine_counts_once_it_fails_even_while_that_is_tolerated() {
    let (mut net, machines) = nets(9);
    for machine in &machines[..4] {
        fail(&mut net, machine);
    }
    assert!(!close(&mut net, &machines[0], at(0)));
}

#[test]
fn machines_out_of_service_neither_count_nor_make_the_scope_larger() {
    let (mut net, machines) = nets(100);
    for machine in &machines[10..] {
        net.place(machine, vec![place("")], NetState::NotInService);
    }
    let counts = net.counts(&place(""));
    assert_eq!((counts.size, counts.limit), (10, 3));
}

#[test]
fn scopes_are_counted_apart() {
    let (mut net, _) = nets(0);
    let machines: Vec<Arc<str>> = (0..8).map(|n| Arc::from(format!("m{n}"))).collect();
    for (n, machine) in machines.iter().enumerate() {
        let rack = if n < 4 { "r1" } else { "r2" };
        net.place(machine, vec![place(rack)], if n == 4 { NetState::InService } else { NetState::Failing });
    }
    assert!(!close(&mut net, &machines[0], at(0)), "4 of 4 in r1");
    assert!(close(&mut net, &machines[5], at(0)), "3 of 4 in r2");
}

#[test]
fn a_machine_in_two_nets_needs_room_in_both() {
    let (mut net, machines) = nets(4);
    net.rule(&"strict".into(), Some(&SafetyNet { max: Amount::Count(0), ..SafetyNet::default() }));
    let strict = NetMembership { gates: "strict".into(), scope: "".into() };
    net.place(&machines[0], vec![place(""), strict.clone()], NetState::Failing);
    let full = net.may_close(&machines[0], at(0), at(0));
    assert_eq!(full.len(), 1);
    assert_eq!(full[0].place, strict);
}

#[derive(Clone, Debug)]
enum Step {
    Fail(usize),
    Recover(usize),
    Leave(usize),
    Close(usize),
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..20usize).prop_map(Step::Fail),
        2 => (0..20usize).prop_map(Step::Recover),
        1 => (0..20usize).prop_map(Step::Leave),
        4 => (0..20usize).prop_map(Step::Close),
        1 => (1..900i64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Compares the net with a model that counts from scratch.
    #[test]
    fn the_net_counts_as_one_would_by_hand(steps in steps(), max in 0u32..60, at_least in 0u32..5) {
        let rule = SafetyNet { max: Amount::Percent(max), at_least, within: Span::minutes(10), by: None };
        let mut net = Net::default();
        net.rule(&"workers".into(), Some(&rule));
        let names: Vec<Arc<str>> = (0..20).map(|n| Arc::from(format!("m{n:02}"))).collect();
        let mut model = [NetState::NotInService; 20];
        let mut now = 0;
        for step in steps {
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Leave(n) => { net.remove(&names[n]); model[n] = NetState::NotInService; }
                Step::Recover(n) => { net.place(&names[n], vec![place("")], NetState::InService); model[n] = NetState::InService; }
                Step::Fail(n) => { net.place(&names[n], vec![place("")], NetState::Failing); model[n] = NetState::Failing; }
                Step::Close(n) if model[n] == NetState::Failing => {
                    let size = model.iter().filter(|standing| **standing != NetState::NotInService).count();
                    let together = model.iter().filter(|standing| match standing {
                        NetState::Failing => true,
                        NetState::Closed { since } => since.duration_until(at(now)).as_secs() <= 600,
                        _ => false,
                    }).count();
                    let may = together <= limit(&rule, size);
                    prop_assert_eq!(close(&mut net, &names[n], at(now)), may);
                    if may { model[n] = NetState::Closed { since: at(now) }; }
                }
                Step::Close(_) => {}
            }
            let counts = net.counts(&place(""));
            prop_assert_eq!(counts.size, model.iter().filter(|standing| **standing != NetState::NotInService).count());
            prop_assert_eq!(counts.failing, model.iter().filter(|standing| **standing == NetState::Failing).count());
            for machine in net.machines_to_wake(&[place("")]) {
                prop_assert_eq!(net.standing(&machine), Some((NetState::Failing, true)), "only the held are woken");
            }
        }
    }

    /// After a restart an operator decides the same from the objects in the API.
    #[test]
    fn the_net_is_the_same_in_whatever_order_it_is_built(
        standings in prop::collection::vec(0..4u8, 1..30),
        order in any::<prop::sample::Index>(),
        due in 0..2000i64,
    ) {
        let standing = |n: usize, kind: u8| match kind {
            0 => NetState::NotInService,
            1 => NetState::InService,
            2 => NetState::Failing,
            _ => NetState::Closed { since: at(n as i64 * 50) },
        };
        let build = |reverse: bool| {
            let mut net = Net::default();
            net.rule(&"workers".into(), Some(&SafetyNet::default()));
            let mut all: Vec<usize> = (0..standings.len()).collect();
            if reverse { all.reverse(); }
            for n in all {
                net.place(&Arc::from(format!("m{n}")), vec![place("")], standing(n, standings[n]));
            }
            net
        };
        let machine = Arc::from(format!("m{}", order.index(standings.len())));
        prop_assert_eq!(
            build(false).may_close(&machine, at(due), at(due)),
            build(true).may_close(&machine, at(due), at(due))
        );
    }
}

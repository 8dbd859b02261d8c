use fleetwright_api::{Absence, Bootstrapped, Gate, GateSource, GateWhen, Span, Status, TaintEffect};
use jiff::Timestamp;

use super::reports::{CopiedConditions, FiledReport, MAX_CLOCK_SKEW, ReportContent, copy};
use super::safety_net::NetState;
use super::verdict::{
    Decision, ForeignTaint, GateVerdict, MachineObservation, ManualChange, Node, NodeAction, NodeObservation, judge,
    reason,
};
use super::{Gates, ObservedCondition};

/// The time `seconds` after the start of the test.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn gate(type_: &str) -> Gate {
    Gate {
        type_: type_.to_owned(),
        from: None,
        status: Status::True,
        when: GateWhen::Always,
        hold_for: Span::default(),
        tolerate_for: Span::default(),
        stale_after: None,
        missing: Absence::Fail,
        stale: Absence::Fail,
    }
}

fn from_node(type_: &str, condition: &str) -> Gate {
    let from = GateSource { node_condition: Some(condition.to_owned()), ..GateSource::default() };
    Gate { from: Some(from), ..gate(type_) }
}

fn from_reporter(type_: &str, reporter: &str) -> Gate {
    let from = GateSource { reporter: Some(reporter.to_owned()), ..GateSource::default() };
    Gate { from: Some(from), ..gate(type_) }
}

/// A condition with heartbeats.
#[derive(Clone, Debug)]
struct StoredCondition {
    type_: String,
    status: Status,
    reason: String,
    message: String,
    since: Timestamp,
    heartbeat: Option<Timestamp>,
    reporter: Option<String>,
}

impl StoredCondition {
    fn fact(&self) -> ObservedCondition<'_> {
        ObservedCondition {
            type_: &self.type_,
            status: self.status,
            reason: &self.reason,
            message: &self.message,
            since: self.since,
            heartbeat: self.heartbeat,
            reporter: self.reporter.as_deref(),
        }
    }
}

fn kept(type_: &str, status: Status, since: i64) -> StoredCondition {
    StoredCondition {
        type_: type_.to_owned(),
        status,
        reason: "Because".to_owned(),
        message: String::new(),
        since: at(since),
        heartbeat: None,
        reporter: None,
    }
}

#[derive(Clone, Debug)]
struct ReportInput {
    name: String,
    created: i64,
    reporter: String,
    says: Vec<StoredCondition>,
    broken: Option<String>,
}

fn filing(reporter: &str, says: Vec<StoredCondition>) -> ReportInput {
    ReportInput { name: format!("m.{reporter}"), created: 0, reporter: reporter.to_owned(), says, broken: None }
}

/// One machine and its context, to which decisions are applied as the operator applies them.
#[derive(Clone, Debug)]
struct ReadinessFixture {
    objects: Vec<(String, i64, Vec<Gate>)>,
    conditions: Vec<StoredCondition>,
    filed: Vec<ReportInput>,
    bootstrapped: Option<Bootstrapped>,
    paused: bool,
    node: bool,
    uid: String,
    node_created: i64,
    closed: bool,
    closed_at: Option<Timestamp>,
    cordoned: bool,
    foreign: Vec<(String, TaintEffect)>,
    node_conditions: Vec<StoredCondition>,
    taken: Option<String>,
}

impl ReadinessFixture {
    /// A machine whose Node joined closed, after the gates were created.
    fn new(gates: Vec<Gate>) -> Self {
        Self {
            objects: vec![("workers".to_owned(), -1000, gates)],
            conditions: Vec::new(),
            filed: Vec::new(),
            bootstrapped: None,
            paused: false,
            node: true,
            uid: "uid-1".to_owned(),
            node_created: -10,
            closed: true,
            closed_at: None,
            cordoned: false,
            foreign: Vec::new(),
            node_conditions: Vec::new(),
            taken: None,
        }
    }

    /// The same, in service.
    fn open(gates: Vec<Gate>) -> Self {
        let bootstrapped = Some(Bootstrapped { at: at(-5), node_uid: "uid-1".to_owned() });
        Self { closed: false, bootstrapped, ..Self::new(gates) }
    }

    fn with<R>(
        &self,
        now: Timestamp,
        f: impl FnOnce(&MachineObservation<'_>, &CopiedConditions<'_>, &GateVerdict<'_>) -> R,
    ) -> R {
        let node = if !self.node {
            NodeObservation::Missing("host-1")
        } else if let Some(by) = &self.taken {
            NodeObservation::Taken { node: "host-1", by }
        } else {
            NodeObservation::Found(Node {
                name: "host-1",
                uid: &self.uid,
                created: at(self.node_created),
                closed: self.closed,
                closed_at: self.closed_at,
                cordoned: self.cordoned,
                cordoned_by: Some(ManualChange { manager: "kubectl-cordon", at: Some(at(0)) }),
                foreign: self.foreign.iter().map(|(key, effect)| ForeignTaint { key, effect: *effect }).collect(),
                tainted_by: Some(ManualChange { manager: "kubectl-taint", at: None }),
                conditions: self.node_conditions.iter().map(StoredCondition::fact).collect(),
            })
        };
        let seen = MachineObservation {
            created: at(-100),
            changed: at(-100),
            paused: self.paused,
            bootstrapped: self.bootstrapped.as_ref().map(|b| (b.at, b.node_uid.as_str())),
            conditions: self.conditions.iter().map(StoredCondition::fact).collect(),
            node,
            gates: self
                .objects
                .iter()
                .map(|(name, made, gates)| Gates { name, created: at(*made), changed: at(*made), gates })
                .collect(),
        };
        let filed: Vec<FiledReport<'_>> = self
            .filed
            .iter()
            .map(|filing| FiledReport {
                name: &filing.name,
                created: at(filing.created),
                content: match &filing.broken {
                    Some(why) => ReportContent::Broken(why),
                    None => ReportContent::Read {
                        reporter: &filing.reporter,
                        facts: filing.says.iter().map(StoredCondition::fact).collect(),
                    },
                },
            })
            .collect();
        let copies = copy(&seen.conditions, &filed, &seen.gates, now);
        let judgement = judge(&seen, &copies, now);
        f(&seen, &copies, &judgement)
    }

    /// Decides, with nets that have room, and applies the decision.
    fn step(&mut self, now: Timestamp) -> Decision {
        let (decision, copied) = self.with(now, |seen, copies, judgement| {
            let copied: Vec<StoredCondition> = copies
                .copied
                .iter()
                .map(|copy| StoredCondition {
                    type_: copy.condition.type_.clone(),
                    status: copy.condition.status,
                    reason: copy.condition.reason.clone(),
                    message: copy.condition.message.clone(),
                    since: copy.condition.last_transition_time,
                    heartbeat: None,
                    reporter: copy.condition.reporter.clone(),
                })
                .collect();
            (judgement.decide(seen, &[], now), copied)
        });
        match decision.turn {
            Some(NodeAction::Open) => (self.closed, self.closed_at) = (false, None),
            Some(NodeAction::Close) => (self.closed, self.closed_at) = (true, Some(now)),
            None => {}
        }
        let before = self.conditions.iter().find(|kept| kept.type_ == "Schedulable").cloned();
        self.conditions.retain(|kept| kept.reporter.is_none() && kept.type_ != "Schedulable");
        self.conditions.extend(copied);
        self.conditions.push(StoredCondition {
            reason: decision.reason.to_owned(),
            message: decision.message.clone(),
            since: before.filter(|kept| kept.status == decision.status).map_or(now, |kept| kept.since),
            ..kept("Schedulable", decision.status, 0)
        });
        self.bootstrapped.clone_from(&decision.bootstrapped);
        decision
    }

    fn set(&mut self, type_: &str, status: Status, now: i64) {
        self.conditions.retain(|kept| kept.type_ != type_ || kept.reporter.is_some());
        self.conditions.push(kept(type_, status, now));
    }
}

/// Whether a message contains all parts, in this order.
fn names(message: &str, parts: &[&str]) -> bool {
    let mut rest = message;
    parts.iter().all(|part| {
        let found = rest.split_once(*part);
        rest = found.map_or("", |(_, after)| after);
        found.is_some()
    })
}

#[test]
fn a_new_machine_opens_when_all_gates_hold() {
    let mut world = ReadinessFixture::new(vec![gate("PackagesReady"), from_node("NodeReady", "Ready")]);
    world.set("PackagesReady", Status::True, 0);
    let decision = world.step(at(1));
    assert_eq!((decision.turn, decision.status, decision.reason), (None, Status::False, reason::GATES_PENDING));
    let parts = ["1 of 2", "NodeReady", "Node condition Ready", "missing", "2027-01-15T07:59:50Z"];
    assert!(names(&decision.message, &parts) && !decision.message.contains("PackagesReady"), "{}", decision.message);
    world.node_conditions = vec![kept("Ready", Status::True, 2)];
    let decision = world.step(at(2));
    assert_eq!(
        (decision.turn, decision.status, decision.reason),
        (Some(NodeAction::Open), Status::True, reason::READY)
    );
    assert_eq!(decision.bootstrapped, Some(Bootstrapped { at: at(2), node_uid: "uid-1".to_owned() }));
}

#[test]
fn a_node_that_joins_open_is_closed_at_once_and_nothing_is_tolerated() {
    let mut world = ReadinessFixture::new(vec![Gate { tolerate_for: Span::minutes(10), ..gate("PackagesReady") }]);
    world.closed = false;
    let decision = world.step(at(0));
    assert_eq!((decision.turn, decision.reason), (Some(NodeAction::Close), reason::GATES_PENDING));
    world.with(at(1), |_, _, judgement| assert_eq!(judgement.standing, NetState::NotInService));
}

#[test]
fn a_node_that_was_in_service_before_its_gates_were_written_is_adopted_before_it_may_be_closed() {
    let mut world = ReadinessFixture::new(vec![
        Gate { tolerate_for: Span::seconds(60), ..gate("PackagesReady") },
        Gate { when: GateWhen::Bootstrap, ..gate("LogAgentReady") },
    ]);
    world.closed = false;
    world.node_created = -5000;
    world.objects[0].1 = 0;
    let decision = world.step(at(0));
    assert_eq!((decision.turn, decision.status, decision.next), (None, Status::True, Some(at(0))));
    assert!(decision.bootstrapped.is_some(), "{decision:?}");
    world.with(at(0), |_, _, judgement| {
        assert_eq!(judgement.standing, NetState::Failing);
        assert_eq!(judgement.checked.len(), 1, "the bootstrap gate no longer counts");
    });
    assert_eq!(world.step(at(59)).turn, None);
    assert_eq!(world.step(at(60)).turn, Some(NodeAction::Close));
}

#[test]
fn a_machine_that_had_no_gates_is_in_service_when_it_gets_some() {
    let mut world = ReadinessFixture::new(vec![]);
    world.objects.clear();
    world.closed = false;
    let decision = world.step(at(0));
    assert_eq!((decision.status, decision.reason, decision.turn), (Status::Unknown, reason::NO_READINESS_GATES, None));
    assert!(decision.message.contains("spec.selector"), "{}", decision.message);
    world.objects = vec![("workers".to_owned(), -1000, vec![gate("PackagesReady")])];
    assert!(world.step(at(10)).bootstrapped.is_some());
}

#[test]
fn bootstrap_gates_count_until_the_machine_was_first_ready_and_again_for_another_node() {
    let mut world =
        ReadinessFixture::new(vec![gate("PackagesReady"), Gate { when: GateWhen::Bootstrap, ..gate("LogAgentReady") }]);
    world.set("PackagesReady", Status::True, 0);
    assert_eq!(world.step(at(1)).turn, None);
    world.set("LogAgentReady", Status::True, 2);
    assert_eq!(world.step(at(2)).turn, Some(NodeAction::Open));
    world.set("LogAgentReady", Status::False, 3);
    assert_eq!(world.step(at(3)).turn, None);
    world.uid = "uid-2".to_owned();
    world.closed = true;
    let decision = world.step(at(4));
    assert_eq!((decision.turn, decision.reason), (None, reason::GATES_PENDING));
    assert_eq!(decision.bootstrapped, None);
}

#[test]
fn a_failure_is_tolerated_and_a_recovery_must_last() {
    let mut world = ReadinessFixture::open(vec![Gate {
        hold_for: Span::seconds(30),
        tolerate_for: Span::seconds(40),
        ..from_node("NodeReady", "Ready")
    }]);
    world.node_conditions = vec![kept("Ready", Status::Unknown, 0)];
    let decision = world.step(at(39));
    assert_eq!((decision.turn, decision.status, decision.next), (None, Status::True, Some(at(40))));
    let decision = world.step(at(40));
    assert_eq!(
        (decision.turn, decision.status, decision.reason),
        (Some(NodeAction::Close), Status::False, reason::GATES_FAILING)
    );
    world.node_conditions = vec![kept("Ready", Status::True, 50)];
    let decision = world.step(at(79));
    assert_eq!((decision.turn, decision.next), (None, Some(at(80))));
    let parts = ["NodeReady", "Node condition Ready", "True", "2027-01-15T08:00:50Z", "Because", "30s"];
    assert!(names(&decision.message, &parts), "{}", decision.message);
    assert_eq!(world.step(at(80)).turn, Some(NodeAction::Open));
}

#[test]
fn a_gate_may_wait_for_false() {
    let mut world =
        ReadinessFixture::new(vec![Gate { status: Status::False, ..from_node("NoPressure", "DiskPressure") }]);
    world.node_conditions = vec![kept("DiskPressure", Status::True, 0)];
    let decision = world.step(at(1));
    assert!(names(&decision.message, &["True", "False"]), "{}", decision.message);
    world.node_conditions = vec![kept("DiskPressure", Status::False, 2)];
    assert_eq!(world.step(at(2)).turn, Some(NodeAction::Open));
}

#[test]
fn a_missing_report_fails_passes_or_keeps_as_the_gate_says() {
    for (means, closed, turn) in [
        (Absence::Fail, false, Some(NodeAction::Close)),
        (Absence::Pass, false, None),
        (Absence::Keep, false, None),
        (Absence::Fail, true, None),
        (Absence::Pass, true, Some(NodeAction::Open)),
        (Absence::Keep, true, None),
    ] {
        let mut world =
            ReadinessFixture::open(vec![Gate { missing: means, ..from_reporter("LogAgentReady", "log-agent") }]);
        world.closed = closed;
        assert_eq!(world.step(at(0)).turn, turn, "{means:?} closed {closed}");
    }
}

#[test]
fn a_stale_report_fails_passes_or_keeps_as_the_gate_says() {
    for (means, turn) in [(Absence::Fail, Some(NodeAction::Close)), (Absence::Pass, None), (Absence::Keep, None)] {
        let mut world = ReadinessFixture::open(vec![Gate {
            stale: means,
            stale_after: Some(Span::seconds(60)),
            ..from_reporter("LogAgentReady", "log-agent")
        }]);
        let mut says = kept("LogAgentReady", Status::True, 0);
        says.heartbeat = Some(at(0));
        world.filed = vec![filing("log-agent", vec![says])];
        let decision = world.step(at(1));
        assert_eq!((decision.turn, decision.next), (None, Some(at(60))));
        assert_eq!(world.step(at(60)).turn, turn, "{means:?}");
    }
}

#[test]
fn a_report_that_is_fresh_again_must_hold_before_the_machine_opens() {
    let mut world = ReadinessFixture::open(vec![Gate {
        hold_for: Span::seconds(30),
        stale_after: Some(Span::seconds(60)),
        ..from_reporter("LogAgentReady", "log-agent")
    }]);
    let beat = |seconds| {
        let mut says = kept("LogAgentReady", Status::True, 0);
        says.heartbeat = Some(at(seconds));
        vec![filing("log-agent", vec![says])]
    };
    world.filed = beat(0);
    world.step(at(0));
    assert_eq!(world.step(at(100)).turn, Some(NodeAction::Close));
    world.filed = beat(200);
    let decision = world.step(at(200));
    assert_eq!((decision.turn, decision.next), (None, Some(at(230))));
    world.filed = beat(229);
    assert_eq!(world.step(at(230)).turn, Some(NodeAction::Open));
}

#[test]
fn a_report_that_vanishes_is_tolerated_as_any_failure() {
    let mut world = ReadinessFixture::open(vec![Gate {
        tolerate_for: Span::seconds(60),
        ..from_reporter("LogAgentReady", "log-agent")
    }]);
    world.filed = vec![filing("log-agent", vec![kept("LogAgentReady", Status::True, 0)])];
    world.step(at(0));
    world.filed.clear();
    assert_eq!(world.step(at(100)).next, Some(at(160)));
    assert_eq!(world.step(at(159)).turn, None);
    let decision = world.step(at(160));
    assert_eq!(decision.turn, Some(NodeAction::Close));
    let parts = ["1 of 1", "LogAgentReady", "reporter log-agent", "missing", "2027-01-15T08:01:40Z"];
    assert!(names(&decision.message, &parts), "{}", decision.message);
}

#[test]
fn a_gate_without_from_says_how_to_ask_a_reporter() {
    let mut world = ReadinessFixture::new(vec![gate("LogAgentReady")]);
    world.filed = vec![filing("log-agent", vec![kept("LogAgentReady", Status::True, 0)])];
    let message = world.step(at(0)).message;
    assert!(message.contains("from: {reporter: log-agent}"), "{message}");
}

#[test]
fn a_persons_cordon_is_named_and_the_gates_still_open_and_close() {
    let mut world = ReadinessFixture::open(vec![gate("PackagesReady")]);
    world.set("PackagesReady", Status::True, 0);
    world.cordoned = true;
    let decision = world.step(at(1));
    assert_eq!((decision.turn, decision.status, decision.reason), (None, Status::False, reason::CORDONED));
    let parts =
        ["Node host-1", "cordoned", "kubectl-cordon", "2027-01-15T08:00:00Z", "kubectl uncordon host-1", "no gate"];
    assert!(names(&decision.message, &parts), "{}", decision.message);
    world.set("PackagesReady", Status::False, 2);
    let decision = world.step(at(2));
    assert_eq!((decision.turn, decision.reason), (Some(NodeAction::Close), reason::CORDONED));
    assert!(names(&decision.message, &["1 of 1", "PackagesReady"]), "{}", decision.message);
    world.with(at(3), |_, _, judgement| assert_eq!(judgement.standing, NetState::NotInService));
}

#[test]
fn a_foreign_taint_is_named_with_who_lifts_it() {
    let mut world = ReadinessFixture::open(vec![gate("PackagesReady")]);
    world.set("PackagesReady", Status::True, 0);
    world.foreign = vec![("maintenance".to_owned(), TaintEffect::NoSchedule)];
    let decision = world.step(at(1));
    assert_eq!((decision.turn, decision.status, decision.reason), (None, Status::False, reason::TAINTED));
    assert!(decision.message.contains("by kubectl-taint"), "{}", decision.message);
    assert!(decision.message.contains("kubectl taint node host-1 maintenance:NoSchedule-"), "{}", decision.message);
    world.foreign = vec![(fleetwright_api::names::MAINTENANCE_TAINT.to_owned(), TaintEffect::NoSchedule)];
    let message = world.step(at(1)).message;
    assert!(message.contains("Machine-Operator") && !message.contains("kubectl"), "{message}");

    world.foreign = vec![("node.kubernetes.io/not-ready".to_owned(), TaintEffect::NoExecute)];
    let decision = world.step(at(2));
    assert_eq!((decision.status, decision.reason), (Status::False, reason::TAINTED));
    let named = decision.message.contains("node.kubernetes.io/not-ready:NoExecute");
    assert!(named && !decision.message.contains("kubectl"), "{}", decision.message);
    world.set("PackagesReady", Status::False, 3);
    assert_eq!(world.step(at(3)).reason, reason::GATES_FAILING, "what goes by itself does not hide what does not");
}

#[test]
fn a_paused_machine_reports_whether_its_node_is_open_and_nothing_is_done() {
    let mut world = ReadinessFixture::open(vec![gate("PackagesReady")]);
    world.paused = true;
    let decision = world.step(at(1));
    assert_eq!((decision.turn, decision.status, decision.reason), (None, Status::True, reason::PAUSED));
    assert!(decision.message.contains("closed"), "{}", decision.message);
    world.set("PackagesReady", Status::True, 2);
    assert_eq!(world.step(at(2)).reason, reason::READY);
    world.closed = true;
    let decision = world.step(at(3));
    assert_eq!((decision.turn, decision.status, decision.reason), (None, Status::False, reason::PAUSED));
}

#[test]
fn a_paused_new_machine_is_not_ready_before_it_is_opened() {
    let mut world = ReadinessFixture::new(vec![gate("PackagesReady")]);
    world.paused = true;
    world.set("PackagesReady", Status::True, 0);
    assert_eq!(world.step(at(1)).bootstrapped, None);
}

#[test]
fn without_a_node_or_with_anothers_nothing_is_done() {
    let mut world = ReadinessFixture::open(vec![gate("PackagesReady")]);
    world.taken = Some("host-0".to_owned());
    let decision = world.step(at(1));
    assert_eq!((decision.turn, decision.status, decision.reason), (None, Status::False, reason::NODE_CONFLICT));
    assert!(decision.message.contains("Machine host-0"), "{}", decision.message);
    world.node = false;
    let decision = world.step(at(1));
    assert_eq!((decision.turn, decision.status, decision.reason), (None, Status::False, reason::NODE_NOT_FOUND));
    assert!(decision.bootstrapped.is_some(), "a Node that is away for a moment is not a new one");
}

#[test]
fn a_message_names_at_most_ten_gates_and_cuts_what_others_wrote() {
    let gates: Vec<Gate> = (0..30).map(|n| gate(&format!("G{n:02}"))).collect();
    let mut world = ReadinessFixture::new(gates);
    for n in 0..30 {
        world.set(&format!("G{n:02}"), Status::False, 0);
        world.conditions.last_mut().unwrap().message = "x".repeat(5000);
    }
    let message = world.step(at(0)).message;
    assert!(names(&message, &["30 of 30", "G00", "Machine condition G00", "False", "G09", "20 more"]), "{message}");
    assert!(!message.contains("G10"), "{message}");
    assert!(message.len() < 4096, "{}", message.len());
}

fn refused(world: &ReadinessFixture, now: i64) -> Vec<(String, String)> {
    world.with(at(now), |_, copies, _| copies.refused.iter().map(|r| (r.name.clone(), r.why.clone())).collect())
}

fn reporters(world: &ReadinessFixture, now: i64) -> Vec<(String, String)> {
    world.with(at(now), |_, copies, _| {
        let own = |copy: &super::reports::CopiedCondition<'_>| {
            (copy.condition.type_.clone(), copy.condition.reporter.clone().unwrap_or_default())
        };
        copies.copied.iter().map(own).collect()
    })
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

#[test]
fn a_type_belongs_to_who_reported_it_first() {
    let mut world = ReadinessFixture::new(vec![]);
    let mut young = filing("young", vec![kept("DiskReady", Status::True, 0)]);
    young.created = 10;
    let old = filing("old", vec![kept("DiskReady", Status::False, 0)]);
    world.filed = vec![young.clone(), old.clone()];
    assert_eq!(reporters(&world, 1), [pair("DiskReady", "old")], "the older ConfigMap");
    assert!(names(&refused(&world, 1)[0].1, &["m.young", "DiskReady", "old"]), "{:?}", refused(&world, 1));

    world.filed = vec![young.clone()];
    world.step(at(2));
    world.filed = vec![young.clone(), old.clone()];
    assert_eq!(reporters(&world, 3), [pair("DiskReady", "young")], "who has it keeps it");
    world.filed = vec![old];
    assert_eq!(reporters(&world, 4), [pair("DiskReady", "old")], "until it no longer reports it");
    world.objects[0].2 = vec![from_reporter("DiskReady", "young")];
    assert_eq!(reporters(&world, 5), [pair("DiskReady", "young")], "a gate that names a reporter decides first");
    let refused = refused(&world, 5);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].0 == "m.old" && names(&refused[0].1, &["m.old", "DiskReady", "young"]), "{refused:?}");
}

#[test]
fn a_report_cannot_speak_for_the_machines_own_condition() {
    let mut world = ReadinessFixture::open(vec![gate("DiskReady")]);
    world.set("DiskReady", Status::False, 0);
    world.filed = vec![filing("liar", vec![kept("DiskReady", Status::True, 0)])];
    assert!(reporters(&world, 1).is_empty());
    assert!(names(&refused(&world, 1)[0].1, &["m.liar", "DiskReady", "Machine"]), "{:?}", refused(&world, 1));
    assert_eq!(world.step(at(1)).turn, Some(NodeAction::Close));
}

#[test]
fn broken_reports_are_named_and_the_rest_goes_on() {
    let mut world = ReadinessFixture::new(vec![]);
    let mut broken = filing("bad", vec![]);
    broken.broken = Some("data.conditions is not JSON".to_owned());
    let mut ahead = filing("ahead", vec![kept("ClockReady", Status::True, 0)]);
    ahead.says[0].heartbeat = Some(at(1000));
    world.filed = vec![broken, ahead, filing("good", vec![kept("DiskReady", Status::True, 0)])];
    assert_eq!(reporters(&world, 0), [pair("DiskReady", "good")]);
    let refused = refused(&world, 0);
    assert_eq!(refused.len(), 2);
    assert!(names(&refused[0].1, &["m.ahead", "ClockReady", "future"]), "{refused:?}");
    assert_eq!(refused[1], pair("m.bad", "data.conditions is not JSON"));
    let due = at(1000) - jiff::SignedDuration::try_from(MAX_CLOCK_SKEW).unwrap();
    assert_eq!(world.with(at(0), |_, copies, _| copies.next), Some(due));
    assert_eq!(reporters(&world, 940).len(), 2, "time mends it");
}

#[test]
fn reports_cannot_fill_the_machines_status() {
    let mut world = ReadinessFixture::new(vec![from_reporter("Zzz", "r")]);
    let says = (0..100).map(|n| kept(&format!("T{n:03}"), Status::True, 0)).collect();
    world.filed = vec![filing("r", says), filing("s", vec![kept("Zzz", Status::True, 0)])];
    let types = reporters(&world, 0);
    assert_eq!(types.len(), super::reports::MAX_CONDITIONS);
    assert!(types.contains(&pair("Zzz", "r")), "what a gate asks for comes first");
}

#[test]
fn two_objects_that_ask_different_reporters_for_one_type_are_both_reported() {
    let mut world = ReadinessFixture::new(vec![from_reporter("DiskReady", "a")]);
    world.objects.push(("others".to_owned(), -1000, vec![from_reporter("DiskReady", "b")]));
    world.filed = vec![
        filing("a", vec![kept("DiskReady", Status::True, 0)]),
        filing("b", vec![kept("DiskReady", Status::True, 0)]),
    ];
    let refused = refused(&world, 0);
    let both = refused[0].1.contains("ReadinessGates workers") && refused[0].1.contains("ReadinessGates others");
    assert!(both, "{refused:?}");
    let decision = world.step(at(0));
    assert_eq!(decision.turn, None);
    assert!(names(&decision.message, &["1 of 2", "DiskReady", "ReadinessGates"]), "{}", decision.message);
}

mod net;
mod properties;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{Disruption, Machine, MachineStatus, NodeBinding, NodeRef, OnFailure, Taint, condition, names};
use fleetwright_wire::{self as wire, ComponentSeen, Deviation, Installed, Observation, Outcome, Step, StepRecord};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::join::Binding;
use crate::machine::{
    AbandonedWindows, Act, Decision, DesiredPackages, HostKnowledge, HostObservation, LeavingVersion, MachineInputs,
    Node, ObservedScope, RemainingPods, StepRun, Unreachable, UnreachableReason, Window, WindowPhase, WindowRequest,
    decide, steps,
};
use crate::package::{Rendered, StepTimeouts};

/// A package of a component, with only the fields that the decision reads.
pub fn package(component: &str, version: &str, disruption: Disruption, depends_on: &[&str]) -> Rendered {
    let package = wire::Package {
        component: component.to_owned(),
        version: version.to_owned(),
        reference: format!("{component}-{version}"),
        keep: 1,
        health: wire::Health { checks: vec![wire::Check::Unit(format!("{component}.service"))] },
        ..wire::Package::default()
    };
    Rendered {
        digest: package.digest(),
        package,
        depends_on: depends_on.iter().map(|&name| name.to_owned()).collect(),
        conflicts_with: Vec::new(),
        disruption,
        on_failure: OnFailure::RollBack,
        node_conditions: Vec::new(),
        times: times(),
        needs_credential: false,
        trusts: None,
    }
}

pub fn owner(cluster: &str, uid: &str) -> wire::Owner {
    let [cluster, namespace, name, uid] = [cluster, "fleet", "host-17", uid].map(str::to_owned);
    wire::Owner { cluster, namespace, name, uid }
}

pub fn times() -> StepTimeouts {
    let minute = Duration::from_secs(60);
    StepTimeouts {
        apply: 10 * minute,
        drain: 30 * minute,
        reboot: 15 * minute,
        healthy_within: 3 * minute,
        healthy_every: Duration::from_secs(2),
        healthy_times: 1,
    }
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub uid: String,
    pub level: Disruption,
    pub fingerprint: String,
    pub granted: bool,
    pub since: Timestamp,
    pub ended: Option<(bool, Timestamp, String)>,
}

/// The operator's memory, which is lost with its process.
#[derive(Clone, Debug, Default)]
pub struct ProcessMemory {
    pub seen: Option<(Timestamp, Observation, ObservedScope)>,
    pub current: bool,
    pub step: Option<(Timestamp, StepRecord)>,
    pub streaks: BTreeMap<String, u32>,
    pub failures: BTreeMap<String, u32>,
    pub pods: Option<RemainingPods>,
    pub cleaned: bool,
    pub released: bool,
    pub unreachable: Option<(Timestamp, u32, Timestamp, String)>,
    pub key: Option<String>,
    pub since: Timestamp,
}

#[derive(Clone, Debug)]
pub struct NodeModel {
    pub closed: Option<String>,
    pub ready: bool,
    pub boot: String,
    pub labels: Vec<(Box<str>, Box<str>)>,
    pub annotated: bool,
    pub taints: Vec<Taint>,
    pub provider_id: Option<String>,
}

impl NodeModel {
    /// A Node as a kubelet registers it that has neither labels, taints nor a cloud provider.
    pub fn new(boot: impl Into<String>) -> Self {
        let (labels, taints, boot) = (Vec::new(), Vec::new(), boot.into());
        Self { closed: None, ready: true, boot, labels, annotated: false, taints, provider_id: None }
    }
}

pub struct TestMachine {
    pub now: Timestamp,
    pub machine: Machine,
    pub wanted: Vec<Arc<Rendered>>,
    pub cannot: Option<String>,
    /// Every package that ever existed, by digest.
    pub shelf: BTreeMap<String, Arc<Rendered>>,
    pub installed: BTreeMap<String, Vec<Installed>>,
    pub drifted: BTreeMap<String, Vec<Deviation>>,
    /// Drift that comes back after each repair.
    pub fights: bool,
    pub unbooted: BTreeSet<String>,
    pub journal: Vec<StepRecord>,
    pub boot: u32,
    /// Digests that do not work once installed.
    pub broken: BTreeSet<String>,
    /// Digests whose installation fails.
    pub failing: BTreeSet<String>,
    /// The owner mark of the host.
    pub owner: Option<wire::Mark>,
    /// An earlier version installed the host's packages, and wrote no owner mark.
    pub never_owned: bool,
    /// The fencing token of the operator.
    pub fence: u64,
    /// The serial number from its firmware.
    pub serial: Option<String>,
    /// An older Machine of the same API server with the same address.
    pub same_address: Option<String>,
    /// Components whose unit does not run until they are repaired.
    pub dead: BTreeSet<String>,
    /// How often the health checks of a component fail although it works.
    pub slow: BTreeMap<String, u32>,
    /// Components whose package copy the host cannot read.
    pub lost_copies: BTreeSet<String>,
    /// A change is not effective after a reboot either.
    pub boots_in_vain: bool,
    /// The host does not answer after a requested reboot; whether it rebooted.
    pub stays_down: Option<bool>,
    /// Number of downloads that fail.
    pub unfetchable: u32,
    pub node: Option<NodeModel>,
    /// The Node belongs to another host.
    pub foreign: bool,
    pub joins: bool,
    pub pods: u32,
    pub blocked: bool,
    /// Closing the Node fails.
    pub unclosable: bool,
    /// Listing the pods of the Node fails.
    pub unreadable: bool,
    pub gate_open: bool,
    pub operations: Vec<Operation>,
    pub memory: ProcessMemory,
    pub silent: Option<String>,
    pub key: String,
    pub key_trusted: bool,
    /// The steps that ran: the id, the step, and whether the Node was closed.
    pub done: Vec<(String, String, bool)>,
    pub gone: bool,
    pub node_deleted: bool,
    pub clean: bool,
    pub last: Option<Decision>,
    pub writes: u32,
    pub leaving: BTreeMap<String, LeavingVersion>,
    pub outages: Vec<(Timestamp, Timestamp)>,
    pub server: Option<(u32, u32)>,
}

impl TestMachine {
    pub fn new(wanted: Vec<Rendered>) -> Self {
        let machine: Machine = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": "host-17", "uid": "11111111-1111-1111-1111-111111111111", "generation": 1 },
            "spec": { "addresses": ["198.18.0.17"], "ssh": { "keyRef": { "name": "k" }, "hostKeys": { "policy": "TrustOnFirstUse" } } },
        }))
        .unwrap();
        let mut world = Self {
            now: "2030-01-01T00:00:00Z".parse().unwrap(),
            machine,
            wanted: Vec::new(),
            cannot: None,
            shelf: BTreeMap::new(),
            installed: BTreeMap::new(),
            drifted: BTreeMap::new(),
            fights: false,
            unbooted: BTreeSet::new(),
            journal: Vec::new(),
            boot: 1,
            broken: BTreeSet::new(),
            failing: BTreeSet::new(),
            owner: None,
            never_owned: false,
            fence: 7,
            serial: None,
            same_address: None,
            dead: BTreeSet::new(),
            slow: BTreeMap::new(),
            lost_copies: BTreeSet::new(),
            boots_in_vain: false,
            stays_down: None,
            unfetchable: 0,
            node: None,
            foreign: false,
            joins: true,
            pods: 0,
            blocked: false,
            unclosable: false,
            unreadable: false,
            gate_open: true,
            operations: Vec::new(),
            memory: ProcessMemory::default(),
            silent: None,
            key: "ssh-ed25519 A".to_owned(),
            key_trusted: true,
            done: Vec::new(),
            gone: false,
            node_deleted: false,
            clean: false,
            last: None,
            writes: 0,
            leaving: BTreeMap::new(),
            outages: Vec::new(),
            server: None,
        };
        world.want(wanted);
        world
    }

    /// Declares other packages.
    pub fn want(&mut self, wanted: Vec<Rendered>) {
        self.wanted = wanted.into_iter().map(Arc::new).collect();
        for wanted in &self.wanted {
            self.shelf.insert(wanted.digest.clone(), Arc::clone(wanted));
            let left = LeavingVersion {
                depends_on: wanted.depends_on.clone(),
                disruption: wanted.disruption,
                times: wanted.times,
                node_conditions: wanted.node_conditions.clone(),
            };
            self.leaving.insert(wanted.package.component.clone(), left);
        }
        self.machine.metadata.generation = self.machine.metadata.generation.map(|generation| generation + 1);
    }

    /// The identity by which the host knows the machine.
    pub fn identity(&self) -> wire::Owner {
        owner("cluster-1", self.machine.metadata.uid.as_deref().unwrap())
    }

    pub fn status(&self) -> MachineStatus {
        self.machine.status.clone().unwrap_or_default()
    }

    pub fn state(&self, component: &str) -> Option<fleetwright_api::ComponentState> {
        self.status().components.iter().find(|entry| entry.component == component).map(|entry| entry.state)
    }

    pub fn message(&self, component: &str) -> String {
        let entry = self.status().components.into_iter().find(|entry| entry.component == component);
        entry.map(|entry| entry.message).unwrap_or_default()
    }

    pub fn says(&self, type_: &str) -> (String, String, String) {
        let status = self.status();
        let said = condition(&status.conditions, type_).expect("the condition is there");
        (said.status.as_str().to_owned(), said.reason.clone(), said.message.clone())
    }

    /// The installed version.
    pub fn carries(&self, component: &str) -> Option<String> {
        self.installed.get(component).and_then(|kept| kept.first()).map(|installed| installed.version.clone())
    }

    /// The recorded rollback of a component.
    pub fn rollback(&self, component: &str) -> Option<fleetwright_api::Rollback> {
        self.status().components.into_iter().find(|entry| entry.component == component)?.rollback
    }

    /// The steps that ran, in order.
    pub fn did(&self) -> Vec<String> {
        self.done.iter().map(|(_, what, _)| what.clone()).collect()
    }

    fn known<R>(&self, f: impl FnOnce(&MachineInputs<'_>) -> R) -> R {
        let memory = &self.memory;
        let given_up: BTreeMap<String, AbandonedWindows> =
            self.operations.iter().fold(BTreeMap::new(), |mut all, operation| {
                if let Some((false, at, _)) = &operation.ended {
                    let entry: &mut AbandonedWindows = all.entry(operation.fingerprint.clone()).or_default();
                    entry.times += 1;
                    entry.last = entry.last.max(Some(*at));
                }
                all
            });
        let conditions = self.node.as_ref().map(|node| vec![(Arc::<str>::from("Ready"), node.ready)]);
        let node = self.node.as_ref().zip(conditions.as_ref()).map(|(node, conditions)| Node {
            name: "host-17",
            uid: "node-uid",
            closed: node.closed.as_deref(),
            conditions,
            boot_id: Some(&node.boot),
            labels: &node.labels,
            annotated: node.annotated,
            taints: &node.taints,
            provider_id: node.provider_id.as_deref(),
        });
        let node = node.filter(|_| !self.foreign);
        let binding = match (&self.node, self.foreign) {
            (None, _) => Binding::Missing,
            (Some(_), true) => Binding::Foreign,
            (Some(_), false) => Binding::Bound(NodeRef {
                name: "host-17".to_owned(),
                uid: Some("node-uid".to_owned()),
                binding: Some(NodeBinding::Joined),
            }),
        };
        let operation = self.operations.iter().find(|operation| operation.ended.is_none());
        let window = operation.map(|operation| Window {
            uid: &operation.uid,
            level: operation.level,
            fingerprint: &operation.fingerprint,
            phase: if operation.granted {
                WindowPhase::Running { since: operation.since }
            } else {
                WindowPhase::Waiting("OperationPolicy drains allows 1 at once")
            },
        });
        let identity = self.identity();
        let known = MachineInputs {
            machine: &self.machine,
            identity: &identity,
            fence: self.fence,
            same_address: self.same_address.as_deref(),
            wanted: match &self.cannot {
                None => DesiredPackages::Ready(&self.wanted),
                Some(message) => DesiredPackages::Unavailable { reason: "RenderFailed", message },
            },
            leaving: &self.leaving,
            host: HostKnowledge {
                doing: None,
                seen: memory.seen.as_ref().map(|(at, observation, asked)| HostObservation {
                    at: *at,
                    observation,
                    asked,
                    current: memory.current,
                }),
                step: memory.step.as_ref().map(|(_, step)| step),
                step_at: memory.step.as_ref().map(|(at, _)| *at),
                refused: None,
                cleaned: memory.cleaned,
                released: memory.released,
                unreachable: memory.unreachable.as_ref().map(|(since, attempts, not_before, why)| Unreachable {
                    since: *since,
                    attempts: *attempts,
                    not_before: *not_before,
                    why: if self.key_trusted {
                        UnreachableReason::NoAnswer(why)
                    } else {
                        UnreachableReason::HostKeyChanged(why)
                    },
                }),
                key: memory.key.as_deref(),
            },
            node,
            binding: &binding,
            certified: None,
            pods: memory.pods.as_ref(),
            window,
            given_up: &given_up,
            streaks: &memory.streaks,
            failures: &memory.failures,
            check_every: Duration::from_secs(600),
            known_since: memory.since,
            outages: &self.outages,
            server: self.server.map(Into::into),
        };
        f(&known)
    }

    /// The planned steps as shown to a person.
    pub fn steps(&self) -> Vec<crate::machine::PlannedStep> {
        self.known(|known| steps(known, self.now)).unwrap()
    }

    /// The planned steps in a few words.
    pub fn plan(&self) -> Vec<String> {
        self.steps().iter().map(crate::machine::PlannedStep::text).collect()
    }

    pub fn decide(&self) -> Decision {
        self.known(|known| decide(known, self.now))
    }

    /// The operator restarts.
    pub fn forget(&mut self) {
        self.memory = ProcessMemory { since: self.now, ..ProcessMemory::default() };
    }

    /// Runs one pass. `crash` says where it is interrupted.
    pub fn pass(&mut self, crash: Crash) -> Decision {
        let decision = self.decide();
        if crash == Crash::Before {
            self.forget();
            return decision;
        }
        self.act(&decision);
        if crash == Crash::BeforeStatus {
            self.forget();
            return decision;
        }
        let mut status = decision.status.clone();
        let mut old = self.status();
        old.conditions.retain(|condition| crate::machine::OWNED_CONDITIONS.contains(&&*condition.type_));
        old.next_check = status.next_check;
        if old != status {
            self.writes += 1;
        }
        status.bootstrapped = None;
        self.machine.status = Some(status);
        if crash == Crash::After {
            self.forget();
        }
        self.last = Some(decision.clone());
        decision
    }

    /// Runs passes until there is nothing to do for an hour, or up to a limit.
    pub fn settle(&mut self) {
        self.settle_for(SignedDuration::from_hours(1));
    }

    pub fn settle_for(&mut self, long: SignedDuration) {
        let end = self.now + long;
        for _ in 0..20_000 {
            if self.now >= end || self.gone {
                return;
            }
            let writes = self.writes;
            let decision = self.pass(Crash::Never);
            self.check_invariants(&decision);
            let waits = self.operations.iter().any(|op| op.ended.is_none() && !op.granted);
            let rests = decision.act == Act::Nothing || waits && matches!(decision.act, Act::RequestWindow(_));
            let idle = rests && !decision.withdraw && self.writes == writes;
            match decision.next {
                Some(next) if idle => self.now = next.max(self.now + SignedDuration::from_millis(10)),
                None if idle => self.now = end,
                _ => self.now += SignedDuration::from_millis(10),
            }
        }
        panic!("it does not come to rest: {:?}\n{:#?}", self.decide().act, self.status());
    }

    /// Checks what must hold in every state.
    pub fn check_invariants(&self, decision: &Decision) {
        if let Act::RunStep(run) = &decision.act {
            assert!(!self.machine.spec.paused, "a step on a paused machine");
            assert!(self.key_trusted, "a step on a host whose key is not trusted");
            assert!(self.cannot.is_none() || self.machine.metadata.deletion_timestamp.is_some());
            assert!(run.id.len() <= 128, "{}", run.id);
            let operation = self.operations.iter().find(|op| op.ended.is_none() && op.granted);
            if run.step == Step::Reboot {
                let operation = operation.expect("a boot without a window");
                assert_eq!(operation.level, Disruption::Reboot);
                if let Some(node) = &self.node {
                    assert_eq!(node.closed.as_deref(), Some(operation.uid.as_str()), "a boot of an open Node");
                }
            }
        }
    }

    fn act(&mut self, decision: &Decision) {
        if decision.withdraw {
            for operation in self.operations.iter_mut().filter(|op| op.ended.is_none() && !op.granted) {
                operation.ended = Some((true, self.now, "withdrawn".to_owned()));
            }
        }
        if let Some(wish) = &decision.also_ask {
            self.wish(wish);
        }
        match &decision.act {
            Act::Nothing => {}
            Act::Label { set, remove } => {
                let node = self.node.as_mut().unwrap();
                node.annotated = false;
                node.labels.retain(|(key, _)| !set.contains_key(&**key) && !remove.iter().any(|gone| **gone == **key));
                node.labels.extend(set.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())));
            }
            Act::Taint { set, remove } => {
                let node = self.node.as_mut().unwrap();
                let ours = |taint: &Taint| {
                    remove.contains(&taint.id()) || set.iter().any(|declared| declared.id() == taint.id())
                };
                node.taints.retain(|taint| !ours(taint));
                node.taints.extend(set.iter().cloned());
            }
            Act::SetProviderId => {
                let node = self.node.as_mut().unwrap();
                assert_eq!(node.provider_id, None, "a Node keeps its provider's name");
                node.provider_id = self.machine.spec.provider_id.clone();
            }
            Act::Finalize => self.machine.metadata.finalizers = Some(vec![names::MACHINE_FINALIZER.to_owned()]),
            Act::Observe(observe) => self.visit(None, observe.as_ref()),
            Act::RunStep(run) => self.visit(Some(run.as_ref()), &run.then),
            Act::Clean => {
                assert!(self.installed.is_empty(), "cleaned while components are there");
                (self.clean, self.memory.cleaned, self.owner) = (true, true, None);
            }
            Act::Release => {
                self.visit(None, &wire::Observe::default());
                if self.silent.is_none() {
                    (self.owner, self.memory.released) = (None, true);
                }
            }
            Act::Claim => {
                assert!(self.owner.is_none(), "a host that has an owner is not claimed");
                self.owner = Some(wire::Mark { owner: self.identity(), epoch: 1, fence: self.fence });
                self.never_owned = false;
                self.visit(None, &wire::Observe::default());
            }
            Act::Adopt { from } => {
                let mark = self.owner.clone().expect("there is somebody to adopt it from");
                assert_eq!(mark.owner, *from);
                self.owner = Some(wire::Mark { owner: self.identity(), epoch: mark.epoch + 1, fence: self.fence });
                self.visit(None, &wire::Observe::default());
            }
            Act::RequestWindow(wish) => self.wish(wish),
            Act::CloseNode if self.unclosable => self.hindered("the patch is refused"),
            Act::Drain if self.unreadable => self.hindered("the list is no JSON"),
            Act::CloseNode => {
                let uid = self.operations.iter().find(|op| op.ended.is_none()).unwrap().uid.clone();
                self.node.as_mut().unwrap().closed = Some(uid);
            }
            Act::Drain => {
                if !self.blocked {
                    self.pods = self.pods.saturating_sub(2);
                }
                let why = self.blocked.then(|| "PodDisruptionBudget pay/web".to_owned());
                let left = (0..self.pods).map(|pod| (format!("pay/web-{pod}"), why.clone())).collect();
                self.memory.pods = Some(RemainingPods { at: self.now, left, hindered: None });
            }
            Act::OpenNode => self.node.as_mut().unwrap().closed = None,
            Act::EndWindow { open, well, text } => {
                if *open && let Some(node) = &mut self.node {
                    node.closed = None;
                }
                let now = self.now;
                let operation = self.operations.iter_mut().find(|op| op.ended.is_none()).unwrap();
                operation.ended = Some((*well, now, text.clone()));
            }
            Act::DeleteNode => (self.node, self.node_deleted) = (None, true),
            Act::ReleaseMachine { node } => {
                self.gone = true;
                self.machine.metadata.finalizers = None;
                if *node {
                    self.node = None;
                }
            }
        }
    }

    /// Requests a window from the gate.
    fn wish(&mut self, wish: &WindowRequest) {
        let now = self.now;
        self.operations.retain(|op| op.ended.is_some() || op.granted || op.fingerprint == wish.fingerprint);
        if !self.operations.iter().any(|op| op.ended.is_none()) {
            self.operations.push(Operation {
                uid: format!("{:08}-0000-0000-0000-000000000000", self.operations.len()),
                level: wish.level,
                fingerprint: wish.fingerprint.clone(),
                granted: false,
                since: now,
                ended: None,
            });
            self.memory.pods = None;
        }
        let gate = self.gate_open;
        let operation = self.operations.iter_mut().find(|op| op.ended.is_none()).unwrap();
        operation.granted |= gate;
        operation.since = now;
    }

    /// The Node could not be closed or drained, for the first time or again.
    fn hindered(&mut self, why: &str) {
        let pods = RemainingPods { at: self.now, left: Vec::new(), hindered: Some(why.to_owned()) };
        self.memory.pods.get_or_insert(pods);
    }

    /// The host did not answer.
    fn unanswered(&mut self, why: String) {
        let (since, attempts) = self.memory.unreachable.as_ref().map_or((self.now, 0), |known| (known.0, known.1));
        let not_before = self.now + SignedDuration::from_secs(10);
        self.memory.unreachable = Some((since, attempts + 1, not_before, why));
    }

    fn visit(&mut self, run: Option<&StepRun>, observe: &wire::Observe) {
        self.memory.current = false;
        if let Some(why) = self.silent.clone() {
            return self.unanswered(why);
        }
        self.memory.unreachable = None;
        self.memory.key = Some(self.key.clone());
        if let Some(run) = run {
            let record = match self.journal.iter().find(|record| record.id == run.id) {
                Some(record) => record.clone(),
                None => self.perform(run),
            };
            if let Some(why) = self.silent.clone() {
                return self.unanswered(why);
            }
            self.memory.step = Some((self.now, record));
        }
        let observation = self.observation(observe);
        for wanted in &self.wanted {
            let name = &wanted.package.component;
            let found = observation.components.iter().find(|found| found.component == *name);
            let holds =
                found.is_some_and(|found| !found.health.is_empty() && found.health.iter().all(|check| check.holds));
            let streak = self.memory.streaks.entry(name.clone()).or_default();
            *streak = if holds { *streak + 1 } else { 0 };
            let failed = found.is_some_and(|found| found.health.iter().any(|check| !check.holds));
            let failures = self.memory.failures.entry(name.clone()).or_default();
            *failures = if holds { 0 } else { *failures + u32::from(failed) };
            if let Some(left) = self.slow.get_mut(name).filter(|_| failed) {
                *left = left.saturating_sub(1);
            }
        }
        self.memory.seen = Some((self.now, observation, ObservedScope::of(observe)));
        self.memory.current = true;
    }

    fn perform(&mut self, run: &StepRun) -> StepRecord {
        let (id, step) = (&run.id, &run.step);
        let mark = wire::Mark { owner: self.identity(), epoch: 1, fence: self.fence };
        let mark = self.owner.get_or_insert(mark).clone();
        assert!(mark.owner.is(&self.identity()), "a step on the host of {}", mark.owner);
        assert_eq!(self.same_address, None, "a step on the host of another machine");
        assert!(!self.never_owned, "a step on the packages of somebody who has not claimed the host yet");
        let boot_id = self.boot_id();
        let closed = self.node.as_ref().is_some_and(|node| node.closed.is_some());
        let mut record = StepRecord {
            id: id.clone(),
            verb: step.verb(),
            component: step.component().map(ToOwned::to_owned),
            digest: None,
            boot_id,
            began: 0,
            ended: Some(0),
            outcome: Outcome::Done,
            untouched: false,
            message: String::new(),
            tail: String::new(),
        };
        self.clean = false;
        let what = match step {
            Step::Install(package) => {
                let (component, digest) = (package.component.clone(), package.digest());
                let disruption = self.shelf[&digest].disruption;
                let new = Installed { reference: package.reference.clone(), version: package.version.clone(), digest };
                self.assert_allowed(disruption, &component);
                if self.unfetchable > 0 {
                    self.unfetchable -= 1;
                    (record.outcome, record.untouched) = (Outcome::Failed, true);
                    record.message = "http://packages/x: connection refused".to_owned();
                    format!("fetch {component} {} in vain", new.version)
                } else if self.failing.contains(&new.digest) {
                    record.outcome = Outcome::Failed;
                    record.message = "postinst ended with 1".to_owned();
                    record.tail = "no space left on device".to_owned();
                    format!("install {component} {} in vain", new.version)
                } else {
                    let what = format!("install {component} {}", new.version);
                    let kept = self.installed.entry(component.clone()).or_default();
                    if run.unproven {
                        kept.remove(0);
                    }
                    kept.retain(|kept| kept.digest != new.digest);
                    kept.insert(0, new);
                    kept.truncate(3);
                    self.drifted.remove(&component);
                    if disruption == Disruption::Reboot {
                        self.unbooted.insert(component);
                    } else if component == "kubelet" && self.joins && self.node.is_none() {
                        self.node = Some(NodeModel::new(self.boot_id()));
                    }
                    what
                }
            }
            Step::Repair(package) => {
                if !self.fights {
                    self.drifted.remove(&package.component);
                    self.dead.remove(&package.component);
                }
                format!("repair {}", package.component)
            }
            Step::Remove { component } => {
                self.installed.remove(component);
                self.drifted.remove(component);
                format!("remove {component}")
            }
            Step::Back { component, to } => {
                let kept = self.installed.get_mut(component).expect("something is kept");
                let at = kept.iter().position(|kept| kept.digest == *to).expect("that is kept");
                let old = kept.remove(at);
                kept.insert(0, old);
                if !self.fights {
                    self.drifted.remove(component);
                }
                let rebooting = self.shelf[to].disruption == Disruption::Reboot;
                if rebooting {
                    self.unbooted.insert(component.clone());
                }
                format!("back {component} {}", self.installed[component][0].version)
            }
            Step::Reboot => {
                if let Some(booted) = self.stays_down {
                    self.silent = Some("no route to host".to_owned());
                    record.outcome = if booted { Outcome::Done } else { Outcome::Failed };
                }
                if self.stays_down != Some(false) {
                    self.boot += 1;
                    if !self.boots_in_vain {
                        self.unbooted.clear();
                    }
                }
                let boot = self.boot_id();
                if let Some(node) = &mut self.node {
                    node.boot = boot;
                }
                "reboot".to_owned()
            }
        };
        self.done.push((id.clone(), what, closed));
        self.journal.push(record.clone());
        record
    }

    /// A disruptive step runs only in a window on a closed and drained Node.
    fn assert_allowed(&self, disruption: Disruption, component: &str) {
        let Some(node) = &self.node else { return };
        let status = self.status();
        let new = condition(&status.conditions, names::PACKAGES_READY)
            .is_none_or(|said| ["NotObservedYet", "Installing"].contains(&&*said.reason));
        if disruption == Disruption::None || new {
            return;
        }
        let window = self.operations.iter().find(|op| op.ended.is_none() && op.granted).expect("a window");
        assert!(disruption <= window.level, "{component} in a window of {:?}", window.level);
        assert_eq!(node.closed.as_deref(), Some(window.uid.as_str()), "{component} on an open Node");
        if disruption >= Disruption::Drain {
            assert_eq!(self.pods, 0, "{component} under pods");
        }
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    fn observation(&self, observe: &wire::Observe) -> Observation {
        let mut components = Vec::new();
        let readable = |name: &&String| !self.lost_copies.contains(*name);
        let own = |name: &String| {
            Some(name)
                .filter(readable)
                .and_then(|name| self.installed.get(name))
                .map(|kept| &self.shelf[&kept[0].digest].package)
        };
        let asked = observe.packages.iter().map(|package| (package.component.clone(), Some(package)));
        let asked = asked.chain(observe.installed.iter().map(|name| (name.clone(), own(name))));
        let named = |name: &str| {
            observe.packages.iter().any(|p| p.component == name) || observe.installed.iter().any(|own| own == name)
        };
        let others = self.installed.keys().filter(|name| !named(name));
        for (name, package) in asked.chain(others.map(|name| (name.clone(), None))) {
            let kept = self.installed.get(&name).cloned().unwrap_or_default();
            let installed = kept.first().cloned();
            let in_place = package.is_some_and(|p| installed.as_ref().is_some_and(|i| i.digest == p.digest()));
            let broken = installed.as_ref().is_some_and(|installed| self.broken.contains(&installed.digest));
            let mut deviations =
                if in_place { self.drifted.get(&name).cloned().unwrap_or_default() } else { Vec::new() };
            if observe.installed.contains(&name) && package.is_none() {
                let [what, found, wanted] = ["observation", "unreadable", "to be looked at"].map(str::to_owned);
                deviations.push(Deviation { what, found, wanted, disrupts: false });
            }
            let slow = self.slow.get(&name).is_some_and(|left| *left > 0);
            let checks = package.filter(|_| observe.health).map(|package| &package.health.checks);
            let health = checks.into_iter().flatten().map(|_| wire::CheckSeen {
                check: format!("unit {name}.service"),
                holds: in_place && !broken && !slow && !self.dead.contains(&name),
                message: if broken { "failed".to_owned() } else { String::new() },
            });
            components.push(ComponentSeen {
                component: name.clone(),
                version: installed.as_ref().map(|installed| installed.version.clone()),
                previous: kept.iter().skip(1).cloned().collect(),
                installed,
                deviations,
                needs_reboot: self.unbooted.contains(&name),
                down: self.dead.iter().filter(|dead| **dead == name).map(|dead| format!("{dead}.service")).collect(),
                health: health.collect(),
            });
        }
        let records = observe.records.iter().filter_map(|id| self.journal.iter().find(|record| record.id == *id));
        let facts = wire::Facts {
            os: "debian-12".to_owned(),
            arch: "amd64".to_owned(),
            boot_id: self.boot_id(),
            serials: self.serial.iter().cloned().collect(),
            ..wire::Facts::default()
        };
        let (owner, records) = (self.owner.clone(), records.cloned().collect());
        Observation { facts, owner, never_owned: self.never_owned, components, records }
    }
}

/// Where a pass is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Never,
    /// Before the action.
    Before,
    /// After the action, before the status was written.
    BeforeStatus,
    /// After the status was written.
    After,
}

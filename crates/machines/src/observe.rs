//! The inputs of a decision about one machine, from caches and memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{
    Disruption, MachinePackageVersion, OperationPhase, Phase as MachinePhase, Status, condition, names,
};
use fleetwright_kit::{Cache, FullObject, Key, Source};
use fleetwright_plan::join::Binding;
use fleetwright_plan::machine::{
    self, DesiredPackages, HostKnowledge, HostObservation, LeavingVersion, MachineInputs, Node, OngoingTask,
    Unreachable, Window, WindowPhase,
};
use fleetwright_plan::package::{Lookup, RenderErrorKind, Rendered, SecretUnavailable, StepTimeouts, Values, render};
use fleetwright_plan::skew::ServerMinors;
use fleetwright_transport::{ReachError, Route};
use fleetwright_wire as wire;
use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client};
use serde_json::Value;

use crate::hosts::{HostState, UnreachableCause};
use crate::join::view::addresses;
use crate::memory::MachineMemory;
use crate::route;
use crate::view::{ConfigMapView, MachineView, NodeView, SecretView};
use crate::window::WindowJournal;

/// Index of machines by the name of their Node.
pub const BY_NODE: &str = "node";
/// Index of machines by the package versions that they name.
pub const BY_PACKAGE: &str = "package";
/// Index of machines by the Secrets that are needed to reach them.
pub const BY_SECRET: &str = "secret";
/// Index of machines by their labels.
pub const BY_LABEL: &str = "label";
/// Index of machines by phase.
pub const BY_PHASE: &str = "phase";
/// Index of machines by uid.
pub const BY_UID: &str = "uid";
/// Index of machines by their declared addresses.
pub const BY_ADDRESS: &str = "address";
/// Index of machines by the route to their hosts.
pub const BY_WAY: &str = "way";
/// Index of package versions by the Secrets and ConfigMaps that they name.
pub const BY_REFERENCE: &str = "reference";

/// Requeue interval of a machine that cannot be reached because an object is missing in the API; a change there wakes it.
const MISSING_PACKAGE_RETRY: SignedDuration = SignedDuration::from_mins(5);

/// The phases, as metrics name them.
pub const PHASES: [(MachinePhase, &str); 8] = [
    (MachinePhase::Idle, "Idle"),
    (MachinePhase::Claimed, "Claimed"),
    (MachinePhase::Converging, "Converging"),
    (MachinePhase::Ready, "Ready"),
    (MachinePhase::Degraded, "Degraded"),
    (MachinePhase::Repairing, "Repairing"),
    (MachinePhase::Deleting, "Deleting"),
    (MachinePhase::Lost, "Lost"),
];

/// The source of the machines of a namespace, for all controllers of this crate.
pub fn machines(client: Client, namespace: &str) -> Source<MachineView> {
    Source::new(Api::namespaced(client, namespace))
        .index(BY_NODE, |_, machine: &MachineView| vec![machine.node().to_owned()])
        .index(BY_UID, |_, machine| machine.0.metadata.uid.iter().cloned().collect())
        .index(BY_ADDRESS, |_, machine| addresses(&machine.0.spec.addresses))
        .index(BY_PACKAGE, |_, machine| machine.0.spec.packages.iter().map(|one| one.ref_.clone()).collect())
        .index(BY_WAY, |_, machine| route::way(&machine.0).into_iter().collect())
        .index(BY_SECRET, |_, machine| route::secrets(&machine.0))
        .index(BY_LABEL, |_, machine| machine.scopes().iter().map(|(key, value)| format!("{key}={value}")).collect())
        .index(BY_PHASE, |_, machine| {
            let phase = machine.0.status.as_ref().and_then(|status| status.phase);
            PHASES.iter().filter(|(known, _)| Some(*known) == phase).map(|(_, name)| (*name).to_owned()).collect()
        })
}

/// The source of the ConfigMaps of a namespace, without reports: they are ConfigMaps, too, and many.
pub fn maps(client: Client, namespace: &str) -> Source<ConfigMapView> {
    Source::new(Api::namespaced(client, namespace)).labels(&format!("!{}", names::MACHINE))
}

/// The caches.
#[derive(Clone)]
pub struct Caches {
    pub machines: Cache<MachineView>,
    pub packages: Cache<FullObject<MachinePackageVersion>>,
    pub secrets: Cache<SecretView>,
    pub maps: Cache<ConfigMapView>,
    pub nodes: Cache<NodeView>,
}

/// The inputs of a decision about one machine.
pub struct Observed {
    pub machine: Arc<MachineView>,
    /// The identity by which its host knows it.
    pub identity: wire::Owner,
    /// The fencing token of this leader.
    pub fence: u64,
    /// An older Machine with the same address.
    pub same_address: Option<String>,
    /// The Node that is bound to it.
    pub node: Option<Arc<NodeView>>,
    pub binding: Binding,
    pub certified: Option<Timestamp>,
    pub wanted: Result<Vec<Arc<Rendered>>, NotReady>,
    pub leaving: BTreeMap<String, LeavingVersion>,
    pub host: HostState,
    pub memory: MachineMemory,
    pub windows: WindowJournal,
    pub route: Result<Arc<Route>, String>,
    pub cluster: BTreeMap<String, String>,
    pub check_every: Duration,
    /// When the API server did not answer.
    pub outages: Vec<(Timestamp, Timestamp)>,
    /// The minor version of the API server, if it matters.
    pub server: Option<ServerMinors>,
}

/// Why the packages of a host are unknown.
#[derive(Clone, Debug)]
pub struct NotReady {
    pub reason: &'static str,
    pub message: String,
}

struct PackageContents<'a> {
    caches: &'a Caches,
    namespace: &'a str,
}

impl Lookup for PackageContents<'_> {
    fn secret(&self, machine: &str, name: &str, key: &str) -> Result<Vec<u8>, SecretUnavailable> {
        let secret = self.caches.secrets.get(&Key::new(self.namespace, name)).ok_or(SecretUnavailable::Missing)?;
        secret.content(machine, key)
    }

    fn config_map(&self, name: &str, key: &str) -> Option<Vec<u8>> {
        self.caches.maps.get(&Key::new(self.namespace, name))?.bytes(key)
    }
}

impl Caches {
    /// The cluster's values.
    pub fn cluster(&self, namespace: &str) -> BTreeMap<String, String> {
        let values = self.maps.get(&Key::new(namespace, names::CLUSTER_VALUES));
        values.map(|values| values.data.clone()).unwrap_or_default()
    }

    /// The packages that the host of a machine should have.
    pub fn wanted(
        &self,
        machine: &MachineView,
        cluster: &BTreeMap<String, String>,
        host: &HostState,
    ) -> Result<Vec<Arc<Rendered>>, NotReady> {
        let namespace = machine.0.metadata.namespace.as_deref().unwrap_or_default();
        let seen = host.seen.as_ref().map(|(_, seen)| machine::facts(&seen.facts));
        let written = machine.0.status.as_ref().and_then(|status| status.facts.as_ref());
        let values = Values { machine: &machine.0, facts: seen.as_ref().or(written), cluster };
        let contents = PackageContents { caches: self, namespace };
        let mut all = Vec::with_capacity(machine.0.spec.packages.len());
        for (at, package) in machine.0.spec.packages.iter().enumerate() {
            let name = &package.ref_;
            let Some(found) = self.packages.get(&Key::new(namespace, name)) else {
                let message = format!(
                    "Machine {}, spec.packages[{at}].ref: MachinePackageVersion {name} not found in namespace {namespace}: create it or correct \
                     the reference",
                    machine.0.metadata.name.as_deref().unwrap_or_default()
                );
                return Err(NotReady { reason: "PackageVersionNotFound", message });
            };
            if found.0.spec.component != package.component {
                let message = format!(
                    "Machine {}, spec.packages[{at}].ref: MachinePackageVersion {name} is for component {}, not {}: correct the reference or the component",
                    machine.0.metadata.name.as_deref().unwrap_or_default(),
                    found.0.spec.component,
                    package.component
                );
                return Err(NotReady { reason: "ComponentMismatch", message });
            }
            let rendered = render(&found.0, &values, &contents).map_err(|error| {
                let reason = match error.kind {
                    RenderErrorKind::NotShared => names::reasons::SECRET_NOT_SHARED,
                    _ => "RenderFailed",
                };
                NotReady { reason, message: error.to_string() }
            })?;
            all.push(Arc::new(rendered));
        }
        Ok(all)
    }

    /// The versions that are on the host and not declared.
    pub fn leaving(&self, machine: &MachineView, host: &HostState) -> BTreeMap<String, LeavingVersion> {
        let namespace = machine.0.metadata.namespace.as_deref().unwrap_or_default();
        let gone = machine.0.metadata.deletion_timestamp.is_some();
        let components = machine.0.status.as_ref().map(|status| status.components.as_slice()).unwrap_or_default();
        let restored = |name: &str| components.iter().any(|entry| entry.component == name && entry.rollback.is_some());
        let declared = |name: &str| {
            !gone && !restored(name) && machine.0.spec.packages.iter().any(|package| package.component == name)
        };
        let Some((_, seen)) = &host.seen else { return BTreeMap::new() };
        let mut all = BTreeMap::new();
        for found in seen.components.iter().filter(|found| !declared(&found.component)) {
            let Some(installed) = &found.installed else { continue };
            let Some(package) = self.packages.get(&Key::new(namespace, &installed.reference)) else { continue };
            let spec = &package.0.spec;
            let times = StepTimeouts {
                apply: spec.timeouts.apply.0,
                drain: spec.timeouts.drain.0,
                reboot: spec.timeouts.reboot.0,
                healthy_within: spec.health.within.0,
                healthy_every: spec.health.every.0,
                healthy_times: spec.health.times,
            };
            // A component whose change needs a reboot can be removed without one.
            let disruption = spec.disruption.min(Disruption::Drain);
            let node_conditions = spec.health.checks.iter().filter_map(|check| check.node_condition.clone()).collect();
            let left = LeavingVersion { depends_on: spec.depends_on.clone(), disruption, times, node_conditions };
            all.insert(found.component.clone(), left);
        }
        all
    }

    /// The oldest Machine with the same route as this one, if it is not this one: the same address and port through the same
    /// jump hosts. Two networks may have the same private addresses.
    pub fn same_address(&self, key: &Key, machine: &MachineView) -> Option<String> {
        let way = route::way(&machine.0)?;
        let age = |key: &Key, machine: &MachineView| {
            (machine.0.metadata.creation_timestamp.as_ref().map(|at| at.0), key.clone())
        };
        // A Machine whose host has its owner mark does not depend on age: an older Machine whose address was edited by
        // mistake must not stop one in service.
        // If both claim the mark, one of them has another host, and the mark shows which.
        if machine.has_host() {
            return None;
        }
        let ours = age(key, machine);
        let others: Vec<_> = self.machines.by(BY_WAY, &way).into_iter().filter(|(other, _)| other != key).collect();
        if let Some((owner, _)) = others.iter().find(|(_, other)| other.has_host()) {
            return Some(owner.name.to_string());
        }
        let older = others.into_iter().filter(|(other, machine)| age(other, machine) < ours);
        older.map(|(other, machine)| age(&other, &machine)).min().map(|(_, other)| other.name.to_string())
    }

    /// The Machines with the same route as one of these.
    pub fn machines_like(&self, machines: [Option<&Arc<MachineView>>; 2]) -> Vec<Key> {
        let ways = machines.iter().flatten().filter_map(|machine| route::way(&machine.0));
        ways.flat_map(|way| self.machines.by(BY_WAY, &way)).map(|(key, _)| key).collect()
    }

    /// The machines that a package version concerns.
    pub fn machines_with(&self, package: &str) -> Vec<Key> {
        self.machines.by(BY_PACKAGE, package).into_iter().map(|(key, _)| key).collect()
    }

    /// The machines that a Secret or ConfigMap concerns, by `secret/NAME` or `configMap/NAME`.
    pub fn machines_referring(&self, reference: &str) -> Vec<Key> {
        let packages = self.packages.by(BY_REFERENCE, reference);
        let mut keys: Vec<Key> = packages.iter().flat_map(|(key, _)| self.machines_with(&key.name)).collect();
        if let Some(secret) = reference.strip_prefix("secret/") {
            keys.extend(self.machines.by(BY_SECRET, secret).into_iter().map(|(key, _)| key));
        }
        if reference.strip_prefix("configMap/") == Some(names::CLUSTER_VALUES) {
            keys.extend(self.machines.keys());
        }
        keys
    }
}

/// The Secrets and ConfigMaps that a package version names.
pub fn references(package: &MachinePackageVersion) -> Vec<String> {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let name = value["name"].as_str().filter(|_| value["key"].is_string());
                    match (key.as_str(), name) {
                        ("secret" | "configMap", Some(name)) => found.push(format!("{key}/{name}")),
                        _ => walk(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&serde_json::to_value(&package.spec).unwrap_or_default(), &mut found);
    found.sort();
    found.dedup();
    found
}

impl Observed {
    /// Passes all inputs to `f`.
    pub fn known<R>(&self, now: Timestamp, f: impl FnOnce(&MachineInputs<'_>) -> R) -> R {
        let machine = &self.machine.0;
        let texts = UnreachableText::of(&self.host);
        let seen = self.host.seen.as_ref().map(|(at, observation)| HostObservation {
            at: *at,
            observation,
            asked: &self.memory.asked,
            current: self.memory.answered(observation),
        });
        let reached = machine.status.as_ref().and_then(|status| condition(&status.conditions, names::REACHABLE));
        let unreachable = match (&self.route, &self.host.unreachable) {
            (Err(message), _) if machine.spec.ssh.is_some() => Some(Unreachable {
                // Every pass finds that the key is missing: only the condition has since when.
                since: reached
                    .filter(|said| said.status == Status::False)
                    .map_or(now, |said| said.last_transition_time),
                attempts: 2,
                not_before: now + MISSING_PACKAGE_RETRY,
                why: machine::UnreachableReason::Refused("SSHKeyNotFound", message),
            }),
            (_, Some(known)) => Some(Unreachable {
                since: known.since,
                attempts: known.attempts,
                not_before: known.not_before,
                why: texts.why(&known.why),
            }),
            _ => None,
        };
        let doing = self.host.doing.as_ref();
        let host = HostKnowledge {
            doing: doing.map(|doing| OngoingTask {
                what: &doing.what,
                id: doing.id.as_deref(),
                since: doing.since,
                message: &doing.message,
            }),
            seen,
            step: self.host.step.as_ref(),
            step_at: self.memory.step_at(),
            refused: self.host.refused.as_ref().map(|(at, failure)| (*at, failure)),
            cleaned: self.host.cleaned,
            released: self.host.released,
            unreachable,
            key: self.host.host_key.as_deref(),
        };
        let taints = self.node.as_ref().map(|node| node.typed_taints()).unwrap_or_default();
        let node = self.node.as_ref().map(|node| Node {
            name: self.machine.node(),
            uid: &node.uid,
            closed: node.closed.as_deref(),
            conditions: &node.conditions,
            boot_id: node.boot_id.as_deref(),
            labels: &node.labels,
            annotated: node.annotated,
            taints: &taints,
            provider_id: node.provider_id.as_deref(),
        });
        let gate = self.windows.open.as_ref().map(|(_, operation, _)| {
            let granted = operation.0.status.as_ref().and_then(|s| condition(&s.conditions, names::GRANTED));
            let known = operation.0.status.as_ref().and_then(|s| condition(&s.conditions, names::OUTCOME_KNOWN));
            (granted.map_or("", |said| &*said.message), known.map_or("", |said| &*said.message))
        });
        let window = self.windows.open.as_ref().zip(gate).map(|((_, operation, level), (gate, outcome))| {
            let status = operation.0.status.as_ref();
            let since = status.and_then(|status| status.started_at).unwrap_or(now);
            let phase = match status.map_or(OperationPhase::Pending, |status| status.phase) {
                OperationPhase::Running => WindowPhase::Running { since },
                OperationPhase::Unknown => WindowPhase::NeedsPerson(outcome),
                _ => WindowPhase::Waiting(gate),
            };
            Window {
                uid: operation.0.metadata.uid.as_deref().unwrap_or_default(),
                level: *level,
                fingerprint: crate::window::base(&operation.0.spec.fingerprint),
                phase,
            }
        });
        let uid = window.as_ref().map(|window| window.uid);
        let pods = self.memory.pods.as_ref().filter(|(of, _)| Some(of.as_str()) == uid).map(|(_, pods)| pods);
        let known = MachineInputs {
            machine,
            identity: &self.identity,
            fence: self.fence,
            same_address: self.same_address.as_deref(),
            wanted: match &self.wanted {
                Ok(wanted) => DesiredPackages::Ready(wanted),
                Err(not) => DesiredPackages::Unavailable { reason: not.reason, message: &not.message },
            },
            leaving: &self.leaving,
            host,
            node,
            binding: &self.binding,
            certified: self.certified,
            pods,
            window,
            given_up: &self.windows.given_up,
            streaks: &self.memory.streaks,
            failures: &self.memory.failures,
            check_every: self.check_every,
            known_since: self.memory.since(),
            outages: &self.outages,
            server: self.server,
        };
        f(&known)
    }
}

/// The message about an unreachable host.
struct UnreachableText(String);

impl UnreachableText {
    fn of(host: &HostState) -> Self {
        Self(match host.unreachable.as_ref().map(|unreachable| &unreachable.why) {
            Some(UnreachableCause::Reach(error)) => error.to_string(),
            Some(UnreachableCause::Lost(text)) => text.clone(),
            None => String::new(),
        })
    }

    fn why<'a>(&'a self, why: &UnreachableCause) -> machine::UnreachableReason<'a> {
        let text = self.0.as_str();
        match why {
            UnreachableCause::Reach(ReachError::HostKeyChanged { .. }) => {
                machine::UnreachableReason::HostKeyChanged(text)
            }
            UnreachableCause::Reach(ReachError::Unsupported(_)) => machine::UnreachableReason::Unsupported(text),
            UnreachableCause::Reach(ReachError::LoginRefused(_)) => {
                machine::UnreachableReason::Refused("SSHAuthenticationFailed", text)
            }
            UnreachableCause::Reach(ReachError::SudoRefused(_)) => {
                machine::UnreachableReason::Refused("SudoDenied", text)
            }
            UnreachableCause::Reach(ReachError::InvalidLogin(_)) => {
                machine::UnreachableReason::Refused("InvalidSSHCredentials", text)
            }
            UnreachableCause::Reach(ReachError::NoHelper(_)) => {
                machine::UnreachableReason::Refused("HelperInstallFailed", text)
            }
            UnreachableCause::Reach(ReachError::Unreachable(_)) | UnreachableCause::Lost(_) => {
                machine::UnreachableReason::NoAnswer(text)
            }
        }
    }
}

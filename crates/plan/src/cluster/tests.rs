mod backups;
mod building;
mod changing;
mod creation;
mod extension_cases;
mod healing;
mod keeping;
mod members;
mod observing;
mod plans;
mod policies;
mod preflight_checks;
mod recorded_versions;
mod restores;
mod soaking;
mod trusting;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright_api::{
    ClusterPackageVersionSpec, ClusterPhase, ClusterSpec, ClusterStatus, ComponentOverrides, ControlPlaneComponent,
    EtcdDatastore, Status, condition, names,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::certificates::{self, Authority, RenewalReason};
use super::objects::Kind;
use super::*;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// Ten years.
const AUTHORITY_LASTS: SignedDuration = SignedDuration::from_hours(87_600);

fn package(kubernetes: &str) -> ClusterPackageVersionSpec {
    ClusterPackageVersionSpec::of_images("registry.example", kubernetes, "3.6.16")
}

/// A cluster as it is seen, which the tests change.
#[derive(Clone)]
struct TestCluster {
    names: Names,
    spec: ClusterSpec,
    status: ClusterStatus,
    packages: BTreeMap<String, ClusterPackageVersionSpec>,
    live: BTreeMap<(Kind, String), Value>,
    /// What was looked at last: most of it is the same the next time.
    shared: RefCell<SharedObjects>,
    workloads: BTreeMap<ControlPlaneComponent, Workload>,
    proofs: BTreeMap<String, Proof>,
    members: Option<crate::cluster::members::MemberQueryResult>,
    claims: Vec<crate::cluster::members::VolumeClaim>,
    asked: Option<String>,
    tasks: Vec<snapshots::SnapshotPod>,
    restore: restore::RestoreOperation,
    due: Vec<(certificates::CertificateSpec, RenewalReason)>,
    keys: Option<keys::ObservedKeys>,
    anchors: Vec<ObservedAuthority>,
    namespace: bool,
    retry: Option<String>,
    now: Timestamp,
    known: preflight::PreflightInputs,
    extensions: extensions::ExtensionKnowledge,
    followers: Option<TrustDistribution>,
    meta: networks::MetaNetworks,
    rested: RefCell<BTreeMap<ControlPlaneComponent, UnchangedComponent>>,
}

/// Parts of an [`Observed`] that are dear to clone.
#[derive(Clone, Default)]
struct SharedObjects {
    packages: BTreeMap<String, Arc<ClusterPackageVersionSpec>>,
    live: BTreeMap<(Kind, String), Arc<Value>>,
}

/// Makes the shared values those of `now`, and clones only those that differ.
fn renew<K: Ord + Clone, V: PartialEq + Clone>(shared: &mut BTreeMap<K, Arc<V>>, now: &BTreeMap<K, V>) {
    shared.retain(|key, _| now.contains_key(key));
    for (key, value) in now {
        if shared.get(key).is_none_or(|known| **known != *value) {
            shared.insert(key.clone(), Arc::new(value.clone()));
        }
    }
}

impl TestCluster {
    /// One that has its namespace and certificates.
    fn new() -> Self {
        let packages = [("v1.36", "1.36.4"), ("v1.37", "1.37.1")];
        Self {
            names: Names::of("fleet", "pay"),
            spec: ClusterSpec::of("v1.36"),
            status: ClusterStatus::default(),
            packages: packages.into_iter().map(|(name, version)| (name.to_owned(), package(version))).collect(),
            live: BTreeMap::new(),
            shared: RefCell::default(),
            workloads: BTreeMap::new(),
            proofs: BTreeMap::new(),
            members: None,
            claims: Vec::new(),
            asked: None,
            tasks: Vec::new(),
            restore: restore::RestoreOperation { running: true, waits: None },
            due: Vec::new(),
            keys: None,
            anchors: Authority::ALL.into_iter().map(|one| anchor(one, false, &["old"])).collect(),
            namespace: true,
            retry: None,
            now: NOW,
            known: preflight::PreflightInputs::default(),
            extensions: extensions::ExtensionKnowledge::default(),
            followers: None,
            meta: networks::MetaNetworks::default(),
            rested: RefCell::default(),
        }
    }

    /// One that was brought to the next minor, and from there has no way back that keeps its data.
    fn past_the_soak() -> Self {
        let mut world = Self::new();
        world.settle();
        world.spec.package_version = "v1.37".to_owned();
        world.spec.upgrade.soak = fleetwright_api::Span::seconds(0);
        world.settle();
        world
    }

    fn look<T>(&self, with: impl FnOnce(&Observed) -> T) -> T {
        let mut shared = self.shared.borrow_mut();
        let SharedObjects { packages, live } = &mut *shared;
        renew(packages, &self.packages);
        renew(live, &self.live);
        let packages = packages.clone();
        let mut objects = Objects::default();
        for ((kind, name), object) in live {
            objects.insert(*kind, name, Arc::<Value>::clone(object));
        }
        drop(shared);
        with(&Observed {
            names: self.names.clone(),
            spec: self.spec.clone(),
            status: self.status.clone(),
            generation: Some(1),
            retry: self.retry.clone(),
            target: Arc::clone(&packages[&self.spec.package_version]),
            packages,
            namespace: self.namespace.then(|| "namespace-uid".to_owned()),
            keys: self.keys.clone(),
            anchors: self.anchors.clone(),
            due: self.due.clone(),
            due_next: None,
            objects,
            rested: self.rested.borrow().clone(),
            workloads: self.workloads.clone(),
            proofs: self.proofs.clone(),
            endpoint: None,
            members: self.members.clone(),
            claims: self.claims.clone(),
            extensions: self.extensions.clone(),
            backup: snapshots::SnapshotInputs {
                image: "registry.example/fleetwright:v1".to_owned(),
                created: NOW,
                // Another reference is another generation.
                generation: Some(self.spec.package_version.bytes().map(i64::from).sum()),
                asked: self.asked.clone(),
                tasks: self.tasks.clone(),
                restore: self.restore.clone(),
            },
            preflight: self.known.clone(),
            followers: self.followers.clone(),
            meta: self.meta.clone(),
        })
    }

    fn decide(&self) -> Decision {
        let remembered = self.rested.borrow().clone();
        let decision = self.next_decision();
        // The result does not depend on whether the observer remembers unchanged components.
        if !remembered.is_empty() {
            self.rested.take();
            assert_eq!(self.next_decision(), decision);
        }
        decision
    }

    fn next_decision(&self) -> Decision {
        let decision = self.look(|seen| decide(seen, self.now));
        self.rested.replace(decision.rested.clone());
        decision
    }

    /// What the meta cluster does with what is applied: everything is ready at once, if it can be.
    fn applied(&mut self, decision: &Decision) {
        for (object, _) in &decision.apply {
            self.live.insert((object.kind, object.name.clone()), object.body.clone());
            let Some(component) = ControlPlaneComponent::of_binary(&object.name) else { continue };
            if !matches!(object.kind, Kind::Deployment | Kind::StatefulSet) {
                continue;
            }
            let package = object.body["metadata"]["annotations"][objects::PACKAGE_VERSION].as_str().unwrap().to_owned();
            let template = objects::template_digest(object).map(str::to_owned);
            let workload = self.workloads.entry(component).or_default();
            workload.package = Some(package);
            let count = object.body["spec"]["replicas"].as_u64().unwrap();
            // Members of etcd are replaced one by one, when the operator says so.
            if component != ControlPlaneComponent::Etcd || workload.replicas.is_empty() {
                workload.replicas = (0..count).map(|number| replica(component, number, template.clone())).collect();
            }
        }
        for (authority, turn) in &decision.rotate {
            let held = self.anchors.iter_mut().find(|held| held.authority == *authority).unwrap();
            let (begins, ends, first_end) = (held.begins, held.ends, held.first_end);
            let new = (self.now, self.now + AUTHORITY_LASTS);
            *held = match turn {
                RotationAction::Trust => {
                    ObservedAuthority { begins, ends, first_end, ..anchor(*authority, true, &["old", "new"]) }
                }
                RotationAction::Sign => ObservedAuthority {
                    begins: new.0,
                    ends: new.1,
                    first_end,
                    ..anchor(*authority, false, &["new", "old"])
                },
                RotationAction::Drop => {
                    ObservedAuthority { begins, ends, first_end: ends, ..anchor(*authority, false, &["new"]) }
                }
            };
        }
        if let Some(gone) = &decision.replace {
            let template = decision.templates[&ControlPlaneComponent::Etcd].clone();
            let members = &mut self.workloads.get_mut(&ControlPlaneComponent::Etcd).unwrap().replicas;
            let member = members.iter_mut().find(|member| member.name == gone.name).unwrap();
            (member.template, member.uid) = (Some(template), format!("{}+", member.uid));
        }
        self.tasks.retain(|task| !decision.tidy.contains(task));
        // Time stands still here, and no two snapshots have the name of the same second.
        if let Some(last) = self.status.last_snapshot.as_mut().filter(|_| !decision.tidy.is_empty()) {
            last.name = "20000101-000000".to_owned();
        }
        if let Some(taking) = &decision.snapshot {
            self.tasks.push(backups::done(taking, self.now));
        }
        if let Some(ask) = decision.preflight.ask.as_ref().or(decision.soak.ask.as_ref()) {
            let (apis, quotas, kubelets) = (Ok(Default::default()), Ok(Vec::new()), Ok(Default::default()));
            self.known.survey = Some(survey::Survey { of: ask.of.clone(), at: self.now, apis, quotas, kubelets });
        }
        for prover in &decision.prove {
            let args = self.live[&(Kind::Deployment, "kube-apiserver".to_owned())].to_string();
            let emulates = args.contains("emulated-version=1.36").then(|| "1.36".to_owned());
            let (at, restarts, outcome) = (self.now, prover.restarts, Ok("1.36.4".to_owned()));
            self.proofs.insert(prover.uid.clone(), Proof { at, restarts, outcome, emulates, failing: None });
        }
    }

    fn status(&self) -> ClusterStatus {
        self.status_after(&self.look(|seen| decide(seen, self.now)))
    }

    /// The status that is written with that decision.
    fn status_after(&self, decision: &Decision) -> ClusterStatus {
        let outlook = StatusInputs { generation: Some(1), ..StatusInputs::default() };
        self.look(|seen| status(seen, decision, &outlook, self.now))
    }

    /// Until nothing is left to do; the status is written each time.
    fn settle(&mut self) -> Vec<Decision> {
        let mut all = Vec::new();
        for _ in 0..60 {
            let decision = self.next_decision();
            let status = self.status_after(&decision);
            let asks = decision.preflight.ask.is_some() || decision.soak.ask.is_some();
            let works = decision.snapshot.is_some() || !decision.tidy.is_empty();
            let acts = !decision.apply.is_empty() || !decision.prove.is_empty() || !decision.rotate.is_empty();
            let rests = !acts && !works && !asks && decision.replace.is_none();
            let still = status == self.status;
            self.status = status;
            if rests && still {
                assert_eq!(self.decide(), decision);
                return all;
            }
            self.applied(&decision);
            all.push(decision);
        }
        panic!("it does not come to rest: {:#?}", all.last());
    }
}

fn anchor(authority: Authority, next: bool, trusted: &[&str]) -> ObservedAuthority {
    let digest = anchor_digest(&trusted.join("+"), trusted[0]);
    let ends = NOW + AUTHORITY_LASTS;
    ObservedAuthority { authority, next, trusted: trusted.len(), digest, begins: NOW, ends, first_end: ends }
}

fn replica(component: ControlPlaneComponent, number: u64, template: Option<String>) -> Replica {
    let name = match component {
        ControlPlaneComponent::Etcd => format!("etcd-{number}"),
        _ => format!("{component}-{}-{number}", template.as_deref().unwrap_or_default()),
    };
    let (uid, ip) = (format!("uid-{name}"), Some(format!("10.0.0.{number}")));
    let node = Some("meta".to_owned());
    let serves = (component == ControlPlaneComponent::Apiserver).then_some(true);
    Replica { name, uid, ip, node, template, ready: true, has_run: true, serves, ..Replica::default() }
}

fn kinds(decision: &Decision) -> Vec<(Kind, &str)> {
    decision.apply.iter().map(|(object, _)| (object.kind, object.name.as_str())).collect()
}

//! Decides the next steps for a cluster.
//!
//! Each part of a decision is made by its own module, from the observed state and from the parts that it depends on, and is returned as a value of
//! its own. [`decide`] and the functions here call the modules in order, and decide which parts a blocked part blocks.

use std::collections::BTreeMap;

use fleetwright_api::{
    ControlPlaneComponent, EtcdStatus, FailedChange, Rotation, Status, StepProgress, condition, names,
};
use jiff::Timestamp;

use super::certificates::{Authority, CertificateSpec, RenewalReason};
use super::components::{Change, Waiting, components};
use super::datastore::{self, Members};
use super::extensions;
use super::heal::{self, HealSteps};
use super::keys;
use super::members::{NextMemberStep, VolumeClaim};
use super::observed::{Observed, Replica};
use super::preflight::{self, Package, Preflight};
use super::proofs::{ProofTarget, prove};
use super::restore;
use super::rotation::{self, RotationAction, TrustQuery, rotate};
use super::snapshots::{self, NewSnapshot, SnapshotPod};
use super::soak::{self, SoakEnd};
use super::stage::stage;
use super::step::{CurrentVersion, VersionStep, step};
use super::unchanged::UnchangedComponent;

/// The next steps for a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Whether to create the namespace.
    pub namespace: bool,
    /// Steps for the authorities and the key of service-account tokens.
    pub keys: keys::KeyDecision,
    /// Certificates to issue, and why.
    pub certificates: Vec<(CertificateSpec, RenewalReason)>,
    /// Changes of authorities.
    pub rotate: Vec<(Authority, RotationAction)>,
    /// Phase of the rotation of authorities after this pass.
    pub rotation: Option<Rotation>,
    /// Why the rotation does not proceed, though the overlap is over.
    pub rotation_waits: Option<String>,
    /// Query which machines have the trust bundle.
    pub follow: Option<TrustQuery>,
    /// Objects to apply; the first field that differs, if the live object exists.
    pub apply: Vec<Change>,
    /// Pod to delete, so that it is recreated from the present template.
    pub replace: Option<Replica>,
    /// The next step towards the declared members of etcd.
    pub members: NextMemberStep,
    /// Whether the members of etcd are queried beside that step.
    pub query_members: bool,
    /// Volume claims of members and of snapshots to expand, and their new size.
    pub expand: Vec<(VolumeClaim, String)>,
    /// Uid of the StatefulSet of etcd to delete without its pods: its volume claim template is immutable, and the StatefulSet is applied again.
    pub orphan: Option<String>,
    /// Record of the members of etcd for the status.
    pub etcd: Option<EtcdStatus>,
    /// Why etcd is not changed: the package version that it needs no longer exists.
    pub held: Option<String>,
    /// Snapshot to take.
    pub snapshot: Option<NewSnapshot>,
    /// Snapshot pods to delete, which have succeeded or failed.
    pub tidy: Vec<SnapshotPod>,
    /// Claims to create, unless they exist.
    pub claims: Vec<serde_json::Value>,
    /// Pods of a restore to create.
    pub pods: Vec<serde_json::Value>,
    /// The restore whose Operation is to be driven.
    pub restore: Option<restore::Restore>,
    /// Result of the preflight checks of a change that has not started.
    pub preflight: Preflight,
    /// Steps for replicas that do not work.
    pub heal: HealSteps,
    /// API servers to prove.
    pub prove: Vec<ProofTarget>,
    /// The package version that the cluster is changed to: the declared one, unless that is refused.
    pub package: String,
    /// Why the declared package version is refused: a reason and a message.
    pub refused: Option<(&'static str, String)>,
    /// Stage of the change in progress, and its start.
    pub progress: Option<StepProgress>,
    /// Failure of the change: it is recorded, and from then on the change is rolled back.
    pub failed: Option<FailedChange>,
    /// The minor that the components emulate.
    pub emulates: Option<String>,
    /// State of the end of a soak.
    pub soak: SoakEnd,
    /// The version that each component should have.
    pub desired: BTreeMap<ControlPlaneComponent, String>,
    /// Template digest that the pods of each component should have.
    pub templates: BTreeMap<ControlPlaneComponent, String>,
    /// Components that are not yet as declared, and why, in the order in which they are changed.
    pub waiting: Vec<Waiting>,
    /// Components whose objects are all as declared.
    pub rested: BTreeMap<ControlPlaneComponent, UnchangedComponent>,
    /// Steps for the extensions.
    pub extensions: extensions::ExtensionDecision,
    /// When to run the next pass at the latest.
    pub next: Option<Timestamp>,
}

/// Scope of the decision in a pass.
enum DecisionScope {
    /// Only running components: keys are lost or changed, so new pods would find no key, or another one. Running API servers are proven, and the data
    /// is kept.
    Running,
    /// Only keys: the certificates that they sign follow when the keys exist and are recorded.
    Keys,
    /// Only keys and certificates: pods whose Secrets are missing would wait, and the kubelet's backoff delays their start after the Secrets exist.
    Certificates,
    /// Secrets are missing, and the last pass could not create them: whatever needs no restart of a working component is done meanwhile.
    Repairs,
    Everything,
}

impl DecisionScope {
    fn of(seen: &Observed, keys: &keys::KeyDecision) -> Self {
        let recorded = &seen.status.keys;
        let pending = !keys.settled(recorded) && !keys.only_seals(recorded) && !seen.spec.paused;
        let missing = seen.due.iter().any(|(_, why)| *why == RenewalReason::Missing);
        match () {
            () if keys.blocked.is_some() => Self::Running,
            () if (keys.creates() || !pending && missing) && could_not_create(seen) => Self::Repairs,
            () if pending => Self::Keys,
            () if missing => Self::Certificates,
            () => Self::Everything,
        }
    }
}

/// Whether a write of the last pass failed so that the next pass cannot succeed either, in a cluster that was created.
fn could_not_create(seen: &Observed) -> bool {
    let accepted = condition(&seen.status.conditions, names::ACCEPTED);
    seen.status.package_version.is_some()
        && accepted.is_some_and(|accepted| {
            accepted.status == Status::False
                && [names::reasons::WRITE_REFUSED, names::reasons::INVALID_AUTHORITY].contains(&&*accepted.reason)
        })
}

/// Decides the next steps. The decision is idempotent: a completed step is not decided again.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    // The record of the keys is kept, whatever else is missing.
    let recorded = keys::KeyDecision { record: seen.status.keys.clone(), ..keys::KeyDecision::default() };
    if seen.namespace.is_none() {
        return Decision { namespace: true, ..decide_keys_only(seen, recorded) };
    }
    let keys = seen.keys.as_ref().map_or(recorded, |known| keys::choose(seen, known));
    let mut decision = match DecisionScope::of(seen, &keys) {
        DecisionScope::Running => decide_running(seen, keys, now),
        DecisionScope::Repairs => decide_repairs(seen, keys, now),
        DecisionScope::Keys => decide_keys_only(seen, keys),
        // Running components do not wait for a certificate that the API server may refuse for long.
        DecisionScope::Certificates if seen.status.package_version.is_some() => {
            Decision { certificates: seen.due.clone(), ..decide_running(seen, keys, now) }
        }
        DecisionScope::Certificates => Decision { certificates: seen.due.clone(), ..decide_keys_only(seen, keys) },
        DecisionScope::Everything => decide_all(seen, keys, now),
    };
    decision.next = decision.next.into_iter().chain(rotation::next_expiry(seen, now)).min();
    decision
}

/// Only the steps for keys.
fn decide_keys_only(seen: &Observed, keys: keys::KeyDecision) -> Decision {
    Decision { keys, next: seen.due_next, rotation: seen.status.rotation.clone(), ..Decision::default() }
}

/// Running API servers are proven, and the data is kept.
fn decide_running(seen: &Observed, keys: keys::KeyDecision, now: Timestamp) -> Decision {
    let (proofs, snapshots) =
        (prove(seen, now), snapshots::decide_snapshots(seen, snapshots::SnapshotRequests::default(), now));
    Decision {
        prove: proofs.prove,
        snapshot: snapshots.take,
        tidy: snapshots.tidy,
        next: [seen.due_next, proofs.next, snapshots.next].into_iter().flatten().min(),
        ..decide_keys_only(seen, keys)
    }
}

/// Everything but steps that restart working components, which would wait for their Secrets. A stage of a change starts again afterwards.
fn decide_repairs(seen: &Observed, keys: keys::KeyDecision, now: Timestamp) -> Decision {
    let status = &seen.status;
    // Certificates of an authority that is missing follow when it exists.
    let missing = |one: &CertificateSpec| {
        keys.generate.iter().chain(&keys.restore).any(|key| *key == keys::Key::Authority(one.authority))
    };
    let certificates = seen.due.iter().filter(|(one, _)| !missing(one)).cloned().collect();
    Decision {
        certificates,
        rotate: Vec::new(),
        rotation: status.rotation.clone(),
        follow: None,
        apply: Vec::new(),
        replace: None,
        orphan: None,
        claims: Vec::new(),
        pods: Vec::new(),
        restore: None,
        // The time in which the stage could not continue does not count.
        progress: None,
        failed: None,
        emulates: status.emulates.clone(),
        ..decide_all(seen, keys, now)
    }
}

/// Decides every part in order, and which parts a blocked part blocks.
fn decide_all(seen: &Observed, keys: keys::KeyDecision, now: Timestamp) -> Decision {
    let certificates = seen.due.clone();
    let (step, preflight) = preflight::run_checks(seen, step(seen, now), now);
    let package = step.name;
    let mut components = components(seen, &step, now);
    let members = datastore::keep(seen, package, &components, now);
    let waiting = waiting(seen, package, &components.waiting, &members);
    let proofs = prove(seen, now);
    let stage = stage(seen, &step, &waiting, now);
    if stage.failed.is_some() {
        // The failure is recorded first, so that the next leader rolls the change back too: nothing of the change is done in this pass.
        (components.apply, components.replace) = (Vec::new(), None);
    }
    // Members that are not as declared wait for the end of a rotation, so the rotation must not wait for them.
    let settled = match (&seen.status.rotation, &members.record) {
        (Some(_), Some(record)) => components.waiting.is_empty() && record.change.is_none(),
        _ => waiting.is_empty(),
    };
    let extensions = extensions::choose(seen, extended(seen, &step, settled), now);
    let updating = !components.apply.is_empty() || !certificates.is_empty();
    let statuses = &extensions.statuses;
    let rotating = rotate(seen, &rotation::RotationContext { settled, updating, extensions: statuses }, now);
    let soak = soak::SoakContext {
        package,
        rotation: rotating.rotation.is_some(),
        members: &members.step,
        waiting: waiting.first(),
        updating: updating
            || components.replace.is_some()
            || components.orphan.is_some()
            || !members.expand.is_empty()
            || keys.acts(),
    };
    let soak = soak::end(seen, &soak, now);
    let for_change = step.refused.as_ref().is_some_and(|(reason, _)| *reason == names::reasons::SNAPSHOT_REQUIRED);
    let asks = snapshots::SnapshotRequests { for_change, purpose: soak.snapshot.as_deref() };
    let snapshots = snapshots::decide_snapshots(seen, asks, now);
    let restore = restore::keep(seen, preflight.restore_waits.is_some(), now);
    let heal = heal::HealContext {
        package,
        restarts: components.replace.is_some()
            || matches!(members.step, NextMemberStep::Act(_) | NextMemberStep::Recreate(_))
            || !certificates.is_empty(),
        templates: &components.templates,
    };
    let heal = heal::heal(seen, &heal, now);
    let first = [seen.due_next, preflight.next, members.next, proofs.next, stage.next, extensions.next];
    let then = [rotating.next, soak.next, snapshots.next, restore.next, heal.next];
    Decision {
        namespace: false,
        package: package.to_owned(),
        keys,
        certificates,
        rotate: rotating.rotate,
        rotation: rotating.rotation,
        rotation_waits: rotating.waits,
        follow: rotating.follow,
        apply: components.apply,
        replace: components.replace,
        orphan: components.orphan,
        desired: components.desired,
        templates: components.templates,
        rested: components.rested,
        waiting,
        members: members.step,
        query_members: members.query,
        expand: members.expand.into_iter().chain(snapshots.expand).collect(),
        etcd: members.record,
        held: components.held,
        snapshot: snapshots.take,
        tidy: snapshots.tidy.into_iter().chain(restore.tidy).collect(),
        claims: restore.claims,
        pods: restore.pods,
        restore: restore.restore,
        preflight,
        heal,
        prove: proofs.prove,
        refused: step.refused,
        emulates: step.emulates,
        progress: stage.progress.or_else(|| soak.progress.clone()),
        failed: stage.failed,
        soak,
        extensions,
        next: first.into_iter().chain(then).flatten().min(),
    }
}

/// All that is not as declared yet: the components, then the members of etcd, then an emulation that is to end.
fn waiting(seen: &Observed, package: &str, components: &[Waiting], members: &Members) -> Vec<Waiting> {
    let mut waiting = components.to_vec();
    let declared = seen.spec.datastore.etcd.as_ref().map_or(0, |etcd| etcd.members);
    // A change of version does not wait for members: the members wait for the change. The same is true for a restore.
    if !restore::replaces(seen)
        && seen.status.package_version.as_deref() == Some(package)
        && let Some(why) = datastore::unsettled(members.record.as_ref(), &members.step, declared)
    {
        waiting.push((ControlPlaneComponent::Etcd, why));
    }
    if waiting.is_empty()
        && let Some(why) = soak::emulating(seen)
    {
        waiting.push((ControlPlaneComponent::Apiserver, why));
    }
    waiting
}

/// The package version whose extensions the cluster has: extensions follow the control plane, and keep the present version while it changes.
fn extended<'a>(seen: &'a Observed, step: &VersionStep<'a>, settled: bool) -> Option<Package<'a>> {
    match settled {
        true => step.package(),
        // Workers request certificates of a new authority only when all signing components have it.
        false if seen.status.rotation.is_some() => None,
        false => CurrentVersion::of(seen).and_then(|at| Some((at.name, at.spec?))),
    }
}

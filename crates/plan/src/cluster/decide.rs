//! What to do next with a cluster.
//!
//! Each part of a decision is made by its own module, from what was observed and from the parts that it depends on, and is returned as a value of its own.
//! [`decide`] and the functions here put the parts into their order, and say what a part that is blocked means for the others.

use std::collections::BTreeMap;

use fleetwright_api::{ControlPlaneComponent, EtcdStatus, FailedChange, Rotation, StepProgress, names};
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

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Make the namespace.
    pub namespace: bool,
    /// What to do with its authorities and the key of service-account tokens.
    pub keys: keys::KeyDecision,
    /// Make these certificates, and why.
    pub certificates: Vec<(CertificateSpec, RenewalReason)>,
    /// Do this to these authorities.
    pub rotate: Vec<(Authority, RotationAction)>,
    /// How far they are replaced, from now on.
    pub rotation: Option<Rotation>,
    /// Why it does not go on, though its time has come.
    pub rotation_waits: Option<String>,
    /// Ask which machines have what is trusted.
    pub follow: Option<TrustQuery>,
    /// Apply these objects; where they differ from what is there, if they are.
    pub apply: Vec<Change>,
    /// Delete this pod, so that it is made anew from the present template.
    pub replace: Option<Replica>,
    /// The next step towards the members of etcd that are declared.
    pub members: NextMemberStep,
    /// Let these volume claims of members and of snapshots request that size.
    pub expand: Vec<(VolumeClaim, String)>,
    /// Delete the StatefulSet of etcd but not its pods: its volume claim template cannot be changed, and it is applied again.
    /// Its uid.
    pub orphan: Option<String>,
    /// What is recorded of the members of etcd.
    pub etcd: Option<EtcdStatus>,
    /// Why etcd is left as it is: the package version that it needs does not exist any more.
    pub held: Option<String>,
    /// Take a snapshot.
    pub snapshot: Option<NewSnapshot>,
    /// Take these pods away, which have done their work.
    pub tidy: Vec<SnapshotPod>,
    /// Make these claims, unless they are there.
    pub claims: Vec<serde_json::Value>,
    /// Make these pods, which bring a snapshot back.
    pub pods: Vec<serde_json::Value>,
    /// Drive the Operation of this restore on.
    pub restore: Option<restore::Restore>,
    /// How a change that is about to begin stands.
    pub preflight: Preflight,
    /// What is done about replicas that do not work.
    pub heal: HealSteps,
    /// Prove these.
    pub prove: Vec<ProofTarget>,
    /// The package version that it is brought to: the one that it refers to, unless that is refused.
    pub package: String,
    /// Why it is not brought to the one that it refers to: a reason in one word, and a sentence.
    pub refused: Option<(&'static str, String)>,
    /// The stage of a change that it is at, and since when.
    pub progress: Option<StepProgress>,
    /// The change does not work: this is written down, and from then on it is taken back.
    pub failed: Option<FailedChange>,
    /// The minor that its components emulate.
    pub emulates: Option<String>,
    /// How the end of a soak stands.
    pub soak: SoakEnd,
    /// The version that each component should have.
    pub desired: BTreeMap<ControlPlaneComponent, String>,
    /// The digest that each component's pods should have.
    pub templates: BTreeMap<ControlPlaneComponent, String>,
    /// Components that are not yet as they should be, and why, in the order in which they will be.
    pub waiting: Vec<Waiting>,
    /// Components that are as they should be.
    pub rested: BTreeMap<ControlPlaneComponent, UnchangedComponent>,
    /// What to do with its extensions.
    pub extensions: extensions::ExtensionDecision,
    /// When to look again, if nothing happens before.
    pub next: Option<Timestamp>,
}

/// How much of a cluster is decided on in a pass.
enum DecisionScope {
    /// Its keys are lost or changed: new pods would find no key, or another one. Those that run are proven all the same, and their data is kept.
    Running,
    /// Its keys alone: what they sign comes when they exist and are recorded.
    Keys,
    /// Its keys and certificates alone: pods whose Secrets are missing would only wait, and be slow to notice that they came.
    Certificates,
    /// Everything.
    Everything,
}

impl DecisionScope {
    fn of(seen: &Observed, keys: &keys::KeyDecision) -> Self {
        match () {
            () if keys.blocked.is_some() => Self::Running,
            () if !keys.settled(&seen.status.keys) && !seen.spec.paused => Self::Keys,
            () if seen.due.iter().any(|(_, why)| *why == RenewalReason::Missing) => Self::Certificates,
            () => Self::Everything,
        }
    }
}

/// Says what to do next. Nothing of it is done twice if it is done already.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    // What is recorded of keys stays, whatever else is missing.
    let recorded = keys::KeyDecision { record: seen.status.keys.clone(), ..keys::KeyDecision::default() };
    if seen.namespace.is_none() {
        return Decision { namespace: true, ..decide_keys_only(seen, recorded) };
    }
    let keys = seen.keys.as_ref().map_or(recorded, |known| keys::choose(seen, known));
    let mut decision = match DecisionScope::of(seen, &keys) {
        DecisionScope::Running => decide_running(seen, keys, now),
        DecisionScope::Keys => decide_keys_only(seen, keys),
        // What runs does not wait for a certificate that the API server may refuse for long.
        DecisionScope::Certificates if seen.status.package_version.is_some() => {
            Decision { certificates: seen.due.clone(), ..decide_running(seen, keys, now) }
        }
        DecisionScope::Certificates => Decision { certificates: seen.due.clone(), ..decide_keys_only(seen, keys) },
        DecisionScope::Everything => decide_all(seen, keys, now),
    };
    decision.next = decision.next.into_iter().chain(rotation::next_expiry(seen, now)).min();
    decision
}

/// Nothing is done but what is said of keys.
fn decide_keys_only(seen: &Observed, keys: keys::KeyDecision) -> Decision {
    Decision { keys, next: seen.due_next, rotation: seen.status.rotation.clone(), ..Decision::default() }
}

/// What runs is proven, and its data is kept.
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

/// Makes every part in its order, and says what they mean for each other.
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
        // It is written down first, so that whoever comes next takes the change back too: nothing of it is done in this pass.
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
    // A change of version does not wait for members: they wait for it. So they do for a restore.
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

/// The package version whose extensions the cluster has: they follow the control plane, and stay the present ones while it changes.
fn extended<'a>(seen: &'a Observed, step: &VersionStep<'a>, settled: bool) -> Option<Package<'a>> {
    match settled {
        true => step.package(),
        // Workers ask for certificates of a new authority when all who sign have it.
        false if seen.status.rotation.is_some() => None,
        false => CurrentVersion::of(seen).and_then(|at| Some((at.name, at.spec?))),
    }
}

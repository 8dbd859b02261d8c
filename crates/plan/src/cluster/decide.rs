//! What to do next with a cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{
    ClusterPackageVersionSpec, ControlPlaneComponent, EtcdStatus, FailedChange, Rotation, Status, StepProgress,
    condition, names,
};
use jiff::Timestamp;

use super::certificates::{Authority, Due, Wanted};
use super::contains::difference;
use super::datastore;
use super::extensions;
use super::heal::{self, Heal};
use super::keys;
use super::members::{Claim, Next};
use super::objects::{Blueprint, Kind, Object, as_begun, objects, template_digest};
use super::observed::{Observed, Replica, Workload};
use super::policies::{self, Confines};
use super::preflight::{self, Preflight};
use super::rest::{AtRest, Prints};
use super::restore;
use super::rotation::{Follow, Turn, rotate, trusts};
use super::snapshots::{self, Taking, Task};
use super::soak::{self, SoakEnd};
use super::stage::stage;
use super::step::{Step, newer_etcd, step};

/// A proof is done again after this long, so that what breaks without a sign is found.
pub const PROVE_EVERY: Duration = Duration::from_secs(600);
/// A proof that failed is tried again after this long.
const PROVE_AGAIN: Duration = Duration::from_secs(5);
/// When nobody looked for so long, what was proven before counts no more.
const PROOF_LASTS: Duration = Duration::from_secs(3 * 3600);

/// A pod that is to be proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prover {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Where it answers.
    pub ip: String,
    /// Of which beginning of its container.
    pub restarts: i32,
    /// The cluster was never proven: nobody has worked in it before.
    pub first: bool,
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Make the namespace.
    pub namespace: bool,
    /// What to do with its authorities and the key of service-account tokens.
    pub keys: keys::Choice,
    /// Make these certificates, and why.
    pub certificates: Vec<(Wanted, Due)>,
    /// Do this to these authorities.
    pub rotate: Vec<(Authority, Turn)>,
    /// How far they are replaced, from now on.
    pub rotation: Option<Rotation>,
    /// Why it does not go on, though its time has come.
    pub rotation_waits: Option<String>,
    /// Ask which machines have what is trusted.
    pub follow: Option<Follow>,
    /// Apply these objects; where they differ from what is there, if they are.
    pub apply: Vec<(Object, Option<String>)>,
    /// Delete this pod, so that it is made anew from the present template.
    pub replace: Option<Replica>,
    /// The next step towards the members of etcd that are declared.
    pub members: Next,
    /// Let these volume claims of members ask for that size.
    pub expand: Vec<(Claim, String)>,
    /// Delete the StatefulSet of etcd but not its pods: its volume claim template cannot be changed, and it is applied again.
    /// Its uid.
    pub orphan: Option<String>,
    /// What is recorded of the members of etcd.
    pub etcd: Option<EtcdStatus>,
    /// Take a snapshot.
    pub snapshot: Option<Taking>,
    /// Take these pods away, which have done their work.
    pub tidy: Vec<Task>,
    /// Make these claims, unless they are there.
    pub claims: Vec<serde_json::Value>,
    /// Make these pods, which bring a snapshot back.
    pub pods: Vec<serde_json::Value>,
    /// Drive the Operation of this restore on.
    pub restore: Option<restore::Restore>,
    /// How a change that is about to begin stands.
    pub preflight: Preflight,
    /// What is done about replicas that do not work.
    pub heal: Heal,
    /// Prove these.
    pub prove: Vec<Prover>,
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
    pub waiting: Vec<(ControlPlaneComponent, String)>,
    /// Components that are as they should be.
    pub rested: BTreeMap<ControlPlaneComponent, AtRest>,
    /// What to do with its extensions.
    pub extensions: extensions::Choice,
    /// When to look again, if nothing happens before.
    pub next: Option<Timestamp>,
}

/// Says what to do next. Nothing of it is done twice if it is done already.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    let mut decision = Decision { next: seen.due_next, rotation: seen.status.rotation.clone(), ..Decision::default() };
    // What is recorded of keys stays, whatever else is missing.
    decision.keys.record.clone_from(&seen.status.keys);
    if !seen.namespace {
        decision.namespace = true;
        return decision;
    }
    if let Some(known) = &seen.keys {
        decision.keys = keys::choose(seen, known);
        if decision.keys.blocked.is_some() {
            // New pods would find no key, or another one. Those that run are proven all the same, and what they hold is kept.
            prove(seen, &mut decision, now);
            snapshots::keep(seen, &mut decision, now);
            return decision;
        }
        // What they sign comes when they are there, and recorded.
        if !decision.keys.settled(&seen.status.keys) && !seen.spec.paused {
            return decision;
        }
    }
    decision.certificates.clone_from(&seen.due);
    // Pods whose Secrets are missing would only wait, and be slow to notice that they came.
    if decision.certificates.iter().any(|(_, why)| *why == Due::Missing) {
        return decision;
    }
    let (step, preflight) = preflight::hold(seen, step(seen, now), now);
    decision.next = decision.next.into_iter().chain(preflight.next).min();
    decision.preflight = preflight;
    components(seen, &step, &mut decision, now);
    datastore::keep(seen, step.package.0, &mut decision, now);
    let declared = seen.spec.datastore.etcd.as_ref().map_or(0, |etcd| etcd.members);
    // A change of version does not wait for members: they wait for it.
    if seen.status.package_version.as_deref() == Some(step.package.0)
        && let Some(why) = datastore::unsettled(&decision, declared)
    {
        decision.waiting.push((ControlPlaneComponent::Etcd, why));
    }
    if decision.waiting.is_empty()
        && let Some(why) = soak::emulating(seen)
    {
        decision.waiting.push((ControlPlaneComponent::Apiserver, why));
    }
    prove(seen, &mut decision, now);
    stage(seen, &step, &mut decision, now);
    // They follow the control plane: while it changes, they stay those of before.
    let has = seen.status.package_version.as_deref();
    let package = match decision.waiting.is_empty() {
        true => Some(step.package),
        // Workers ask for certificates of a new authority when all who sign have it.
        false if seen.status.rotation.is_some() => None,
        false => has.and_then(|name| seen.package(name).map(|spec| (name, spec))),
    };
    decision.extensions = extensions::choose(seen, package, now);
    decision.next = decision.next.into_iter().chain(decision.extensions.next).min();
    decision.rotation = rotate(seen, &mut decision, now);
    (decision.package, decision.refused, decision.emulates) = (step.package.0.to_owned(), step.refused, step.emulates);
    decision.soak = soak::end(seen, &decision, now);
    decision.next = decision.next.into_iter().chain(decision.soak.next).min();
    if decision.progress.is_none() {
        decision.progress.clone_from(&decision.soak.progress);
    }
    snapshots::keep(seen, &mut decision, now);
    restore::keep(seen, seen.target().1, &mut decision, now);
    decision.heal = heal::heal(seen, &decision, now);
    decision.next = decision.next.into_iter().chain(decision.heal.next).min();
    decision
}

/// Applies what differs, component by component: each is brought to what is declared when those before it are.
fn components(seen: &Observed, step: &Step<'_>, decision: &mut Decision, now: Timestamp) {
    let mut settled = true;
    let (down, replaces) = (restore::down(seen), restore::replaces(seen));
    let restoring = seen.status.restoring.is_some();
    let mute = !replaces && datastore::quorum(seen, now).is_some_and(|quorum| quorum.missing);
    let trusts = trusts(&seen.anchors);
    let etcd = datastore::record(seen);
    let mut prints =
        Prints::of(seen, (&trusts, down, etcd.members, etcd.serving, etcd.change.is_some(), restoring, &seen.meta));
    for component in ControlPlaneComponent::ALL {
        if component == ControlPlaneComponent::Etcd && seen.spec.datastore.etcd.is_none() {
            continue;
        }
        let workload = seen.workloads.get(&component);
        // While those before it change, it stays what it is. Data that a newer etcd wrote is not for an older one.
        let running = workload.and_then(|workload| workload.package.as_deref());
        let package = match running.filter(|name| *name != step.package.0 && !replaces) {
            Some(name) if !settled || newer_etcd(seen, component, name, step) => match seen.package(name) {
                Some(spec) => (name, spec),
                // Nobody knows any more what it was.
                None => continue,
            },
            _ => step.package,
        };
        let emulates = step.emulates.as_deref().filter(|_| package.0 == step.package.0);
        let blueprint = Blueprint {
            names: &seen.names,
            spec: &seen.spec,
            package: package.1,
            etcd_exists: seen.status.package_version.is_some(),
            emulates,
            trusts: &trusts,
            members: (etcd.members, etcd.serving),
        };
        let from = prints.with(package, (component, emulates, heal::selects(seen, component)));
        decision.desired.insert(component, package.1.version_of(component).to_owned());
        let rested = seen.rested.get(&component).filter(|rested| !mute && rested.still(seen, from));
        let template = match rested {
            Some(rested) => {
                decision.rested.insert(component, rested.clone());
                rested.template.to_string()
            }
            None => {
                let mut wanted = named(objects(&blueprint, component), package.0);
                wanted.extend(confines(seen, package.1).policies(component));
                wanted.sort_by_key(|object| object.kind);
                if down {
                    stopped(&mut wanted);
                }
                heal::select(seen, component, &mut wanted);
                let template = wanted.iter().find_map(template_digest).unwrap_or_default().to_owned();
                let begun = workload.is_some_and(|workload| workload.package.is_some());
                let early = match component {
                    ControlPlaneComponent::Etcd => true,
                    ControlPlaneComponent::Apiserver => placed(seen),
                    // They do not wait for the API server.
                    _ => served(seen),
                };
                if begun || early {
                    let all = wanted.iter().map(|object| (object.kind, object.name.as_str()));
                    let rested = AtRest::of(seen, from, all, &template);
                    let before = decision.apply.len();
                    apply(seen, wanted, mute, decision);
                    if let Some(rested) =
                        rested.filter(|_| !mute && decision.orphan.is_none() && decision.apply.len() == before)
                    {
                        decision.rested.insert(component, rested);
                    }
                }
                template
            }
        };
        decision.templates.insert(component, template.clone());
        if down {
            decision.waiting.push((component, format!("{component} is stopped")));
            continue;
        }
        let expected = if newer_etcd(seen, component, package.0, step) { package.0 } else { step.package.0 };
        if let Some(why) = unsettled(seen, component, workload, expected, &template) {
            settled = false;
            decision.waiting.push((component, why));
        }
        if component == ControlPlaneComponent::Etcd {
            decision.replace = replaced(seen, workload, &template);
        }
    }
    deny(seen, step, decision);
}

fn confines<'a>(seen: &'a Observed, package: &'a ClusterPackageVersionSpec) -> Confines<'a> {
    let restoring = seen.status.restoring.is_some();
    Confines { names: &seen.names, spec: &seen.spec, package, meta: &seen.meta, restoring }
}

/// What no policy allows is denied, once all policies that allow something were seen: a pod that runs is never without its own.
fn deny(seen: &Observed, step: &Step<'_>, decision: &mut Decision) {
    let allowed = |name: &str| seen.print(Kind::NetworkPolicy, name).is_some();
    let coming = decision.apply.iter().any(|(object, _)| object.kind == Kind::NetworkPolicy);
    if !coming && confines(seen, step.package.1).expected().into_iter().all(allowed) {
        apply(seen, vec![policies::default_deny(&seen.names)], false, decision);
    }
}

/// Applies those of the objects that are not as they should be.
fn apply(seen: &Observed, wanted: Vec<Object>, mute: bool, decision: &mut Decision) {
    // What follows a change of members is no repair.
    let changing = condition(&seen.status.conditions, names::MEMBERS_AS_DECLARED);
    let changing = changing.is_some_and(|one| one.status == Status::False);
    for mut object in wanted {
        let live = seen.object(object.kind, &object.name);
        if let Some(live) = live.as_ref().filter(|live| claims_differ(live, &object)) {
            let record = seen.status.etcd.as_ref();
            if record.is_some_and(|record| record.change.is_none()) && !mute {
                decision.orphan = Some(live["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
                continue;
            }
            object.body["spec"]["volumeClaimTemplates"] = live["spec"]["volumeClaimTemplates"].clone();
        }
        match live {
            None => decision.apply.push((object, None)),
            // New ones could not begin without etcd, and the old ones would go for them.
            Some(live) if mute && object.kind == Kind::Deployment && moves(&live, &object) => {}
            Some(live) if object.kind == Kind::NetworkPolicy => {
                if let Some(place) = policies::difference(&live, &object.body) {
                    decision.apply.push((object, Some(place)));
                }
            }
            Some(live) => {
                if let Some(place) = difference(&live, &object.body) {
                    // That etcd goes on from now is no repair.
                    let place = difference(&live, &as_begun(&object.body)).filter(|_| !changing).map(|_| place);
                    decision.apply.push((object, place));
                }
            }
        }
    }
}

/// Whether it is the StatefulSet of etcd, with other volume claims than are there: that field cannot be changed.
fn claims_differ(live: &serde_json::Value, object: &Object) -> bool {
    let (place, name) = ("volumeClaimTemplates", ControlPlaneComponent::Etcd.binary());
    object.kind == Kind::StatefulSet
        && object.name == name
        && difference(
            &serde_json::json!({ place: live["spec"][place] }),
            &serde_json::json!({ place: object.body["spec"][place] }),
        )
        .is_some()
}

/// Without any pod.
fn stopped(objects: &mut [Object]) {
    for object in objects.iter_mut().filter(|object| matches!(object.kind, Kind::Deployment | Kind::StatefulSet)) {
        object.body["spec"]["replicas"] = 0.into();
    }
}

/// Whether the object makes other pods than what is there.
fn moves(live: &serde_json::Value, object: &Object) -> bool {
    let digest = &live["spec"]["template"]["metadata"]["annotations"][fleetwright_api::names::APPLIED];
    digest.as_str() != template_digest(object)
}

/// With the name of the package version on the workload.
pub(super) fn named(mut objects: Vec<Object>, package: &str) -> Vec<Object> {
    for object in &mut objects {
        if matches!(object.kind, Kind::Deployment | Kind::StatefulSet) {
            object.body["metadata"]["annotations"] = serde_json::json!({ super::objects::PACKAGE_VERSION: package });
        }
    }
    objects
}

/// Whether etcd begins, so that it is there when an API server that begins now looks for it. That waits for it by itself, but looks again only a second later, and then later still.
fn placed(seen: &Observed) -> bool {
    let workload = seen.workloads.get(&ControlPlaneComponent::Etcd);
    let placed = workload.map_or(0, |etcd| etcd.replicas.iter().filter(|replica| replica.node.is_some()).count());
    seen.spec.datastore.etcd.is_none() || placed > count(seen, ControlPlaneComponent::Etcd) / 2
}

/// Whether an API server answers already.
fn served(seen: &Observed) -> bool {
    seen.workloads
        .get(&ControlPlaneComponent::Apiserver)
        .is_some_and(|workload| workload.replicas.iter().any(|replica| replica.ready && !replica.ending))
}

/// How many pods of a component there should be now.
pub(super) fn count(seen: &Observed, component: ControlPlaneComponent) -> usize {
    let count = match component {
        ControlPlaneComponent::Etcd if seen.spec.datastore.etcd.is_none() => 0,
        ControlPlaneComponent::Etcd => datastore::record(seen).members,
        _ => seen.spec.replicas,
    };
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Why a component is not as it should be, in a few words; none if it is.
fn unsettled(
    seen: &Observed,
    component: ControlPlaneComponent,
    workload: Option<&Workload>,
    package: &str,
    template: &str,
) -> Option<String> {
    let wanted = count(seen, component);
    let Some(workload) = workload.filter(|workload| workload.package.is_some()) else {
        return Some(format!("{component} is about to be made"));
    };
    if workload.package.as_deref() != Some(package) {
        return Some(format!("{component} is still of {}", workload.package.as_deref().unwrap_or("nothing")));
    }
    let here: Vec<_> = workload.replicas.iter().filter(|replica| !replica.ending).collect();
    let new: Vec<_> = here.iter().filter(|replica| replica.template.as_deref() == Some(template)).collect();
    let ready = new.iter().filter(|replica| replica.ready).count();
    if ready < wanted {
        let why =
            new.iter().find(|replica| !replica.message.is_empty()).map(|replica| format!(": {}", replica.message));
        return Some(format!("{component}: {ready} of {wanted} replicas are ready{}", why.unwrap_or_default()));
    }
    if here.len() > new.len() {
        return Some(format!("{component}: {} replicas of before are still there", here.len() - new.len()));
    }
    if component == ControlPlaneComponent::Apiserver {
        let unproven = new.iter().find(|replica| proven_at(seen, replica).is_none())?;
        let why = match seen.proofs.get(&unproven.uid).map(|proof| &proof.outcome) {
            Some(Err(why)) => why.clone(),
            _ => "its proof is under way".to_owned(),
        };
        return Some(format!("{component}: {} is not proven: {why}", unproven.name));
    }
    None
}

/// When a replica was last proven, if it still is: by this process, or by one before it as the status says.
pub(super) fn proven_at(seen: &Observed, replica: &Replica) -> Option<Timestamp> {
    match seen.proofs.get(&replica.uid) {
        Some(proof) if proof.restarts == replica.restarts => proof.outcome.as_ref().ok().map(|_| proof.at),
        Some(_) => None,
        None => {
            let components = seen.status.components.iter();
            let mut replicas = components.flat_map(|component| &component.replicas);
            replicas.find(|known| known.name == replica.name && known.ready)?.proven
        }
    }
}

/// The member of etcd that is made anew next: one that is of before, while all others are well.
fn replaced(seen: &Observed, workload: Option<&Workload>, template: &str) -> Option<Replica> {
    let replicas = &workload?.replicas;
    // One at a time, whatever the reason.
    if seen.status.etcd.as_ref().is_some_and(|etcd| etcd.change.is_some()) {
        return None;
    }
    let wanted = count(seen, ControlPlaneComponent::Etcd);
    if replicas.len() != wanted || replicas.iter().any(|replica| replica.ending) {
        return None;
    }
    let old = |replica: &&Replica| replica.template.as_deref() != Some(template);
    // One that does not work anyway costs nothing; otherwise all must.
    let broken = replicas.iter().filter(|replica| !replica.ready).collect::<Vec<_>>();
    match broken[..] {
        [] => replicas.iter().rev().find(old).cloned(),
        [one] if old(&one) => Some(one.clone()),
        _ => None,
    }
}

/// Whether a controller-manager and a scheduler run, ready or not.
fn acts(seen: &Observed) -> bool {
    let runs = |replica: &Replica| replica.ready || replica.ip.is_some() && replica.message.is_empty();
    [ControlPlaneComponent::ControllerManager, ControlPlaneComponent::Scheduler]
        .iter()
        .all(|one| seen.workloads.get(one).is_some_and(|workload| workload.replicas.iter().any(runs)))
}

/// Which replicas of the API server are to be proven now, and when the next one is.
fn prove(seen: &Observed, decision: &mut Decision, now: Timestamp) {
    let Some(workload) = seen.workloads.get(&ControlPlaneComponent::Apiserver) else { return };
    // A proof waits for those who act. Where they were never there, many would wait for long while others could be proven in their place.
    if seen.status.package_version.is_none() && !acts(seen) {
        return;
    }
    let mut next = decision.next;
    let doubted = heal::doubted(seen);
    for replica in workload.replicas.iter().filter(|replica| replica.ready && !replica.ending) {
        let Some(ip) = &replica.ip else { continue };
        let again = match seen.proofs.get(&replica.uid) {
            // Where one fails again and again, the others show whether it is alone with it.
            Some(proof) if proof.outcome.is_ok() && doubted.is_some_and(|since| proof.at < since) => now,
            Some(proof) if proof.restarts == replica.restarts => {
                let wait = if proof.outcome.is_ok() { jittered(&replica.uid) } else { PROVE_AGAIN };
                proof.at.checked_add(wait).unwrap_or(now)
            }
            Some(_) => now,
            // What a process before us proved does not tell what it emulates.
            None if seen.status.finishing.is_some() => now,
            // Proven by a process before us: in its time, and no longer than that.
            None => match proven_at(seen, replica) {
                Some(at)
                    if now.duration_since(at) < jiff::SignedDuration::try_from(PROOF_LASTS).unwrap_or_default() =>
                {
                    at.checked_add(jittered(&replica.uid)).unwrap_or(now)
                }
                _ => now,
            },
        };
        if again <= now {
            let (name, uid, ip) = (replica.name.clone(), replica.uid.clone(), ip.clone());
            let first = seen.status.package_version.is_none();
            decision.prove.push(Prover { name, uid, ip, restarts: replica.restarts, first });
        } else {
            next = Some(next.map_or(again, |next| next.min(again)));
        }
    }
    decision.next = next;
}

/// The period of a pod: those of a fleet that began together do not stay together.
fn jittered(uid: &str) -> Duration {
    let spread = uid.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))) % 200;
    PROVE_EVERY + Duration::from_secs(spread)
}

//! The objects of the components: which of them are applied, and which components are not as declared yet.

use std::collections::BTreeMap;

use fleetwright_api::{
    ClusterPackageVersionSpec, ControlPlaneComponent, EtcdStatus, MemberChangeType, Status, condition, names,
};
use jiff::Timestamp;

use super::object_drift::difference;
use super::objects::{Blueprint, Kind, Object, for_new_cluster, objects, template_digest};
use super::observed::{Observed, Replica, Workload};
use super::policies::{self, PolicyInputs};
use super::preflight::Package;
use super::proofs::proven_at;
use super::rotation::{etcd_authority_expired, trust_digest};
use super::step::{VersionStep, package_missing_message};
use super::unchanged::{InputHashes, UnchangedComponent};
use super::{counted, datastore, etcd_data, heal, members, restore};

/// An object to apply, and the first field in which the live object differs, if there is one and that is drift.
pub type Change = (Object, Option<String>);
/// A component that is not as declared yet, and why.
pub type Waiting = (ControlPlaneComponent, String);

/// Steps for the objects of the components.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Components {
    /// Objects to apply.
    pub apply: Vec<Change>,
    /// Delete the StatefulSet of etcd with this uid, but not its pods: its volume claim template cannot be changed.
    pub orphan: Option<String>,
    /// Delete this member of etcd, so that it is recreated from the present template.
    pub replace: Option<Replica>,
    /// The version that each component should have.
    pub desired: BTreeMap<ControlPlaneComponent, String>,
    /// The digest of the template that the pods of each component should have.
    pub templates: BTreeMap<ControlPlaneComponent, String>,
    /// Components that are not as declared yet, in the order in which they will be.
    pub waiting: Vec<Waiting>,
    /// Components whose objects are all as declared.
    pub rested: BTreeMap<ControlPlaneComponent, UnchangedComponent>,
    /// Why etcd is left as it is: the package version that it needs does not exist any more.
    pub held: Option<String>,
}

/// Compares the objects of all components in order: a component changes when the components before it are as declared.
pub(super) fn components(seen: &Observed, step: &VersionStep<'_>, now: Timestamp) -> Components {
    let mut all = Components::default();
    let Some(to) = step.package() else {
        let why = restore::recreated(seen).unwrap_or_else(|| package_missing_message(step.name));
        all.waiting.push((ControlPlaneComponent::Apiserver, why));
        return all;
    };
    let shared = ComponentInputs::of(seen, step, to, now);
    let mut prints = shared.prints();
    let mut settled = true;
    for component in ControlPlaneComponent::ALL {
        if component == ControlPlaneComponent::Etcd
            && let Err(why) = &shared.datastore
        {
            all.held = Some(why.clone());
            // The other components keep running with an etcd that works, and do not start without one.
            settled = seen.workloads.get(&component).is_some_and(|workload| workload.package.is_some());
            if !settled {
                all.waiting.push((component, why.clone()));
            }
            continue;
        }
        let Some(package) = shared.package(component, settled) else { continue };
        let from = prints.with(package, (component, shared.emulates(package), heal::selects(seen, component)));
        let compared = shared.compare(component, package, from, all.orphan.is_some());
        let waiting = shared.waiting(component, package, &compared.template);
        settled &= shared.down || waiting.is_none();
        if component == ControlPlaneComponent::Etcd && !shared.down {
            all.replace = replaced(seen, seen.workloads.get(&component), &compared.template, now);
        }
        all.desired.insert(component, package.1.version_of(component).to_owned());
        all.templates.insert(component, compared.template);
        all.waiting.extend(waiting.map(|why| (component, why)));
        all.rested.extend(compared.rested.map(|rested| (component, rested)));
        all.apply.extend(compared.changes.apply);
        all.orphan = compared.changes.orphan.or(all.orphan);
    }
    if let Some(why) = all.held.clone().filter(|_| all.waiting.is_empty()) {
        all.waiting.push((ControlPlaneComponent::Etcd, why));
    }
    let deny = deny(seen, to.1, &all.apply);
    all.apply.extend(deny);
    all
}

/// Inputs on which the objects of all components depend.
struct ComponentInputs<'a> {
    seen: &'a Observed,
    step: &'a VersionStep<'a>,
    /// The package version of that step.
    to: Package<'a>,
    /// The package version that etcd is made from, or why it is left as it is.
    datastore: Result<Package<'a>, String>,
    /// A restore keeps all components stopped.
    down: bool,
    /// A restore replaces the data: the previous package versions of components do not matter.
    replaces: bool,
    /// Etcd has no quorum, and no restore is about to replace its data.
    mute: bool,
    trusts: String,
    etcd: EtcdStatus,
}

/// The objects of one component, compared with the live ones.
#[derive(Default)]
struct ComparedComponent {
    template: String,
    /// Set if all objects are as declared.
    rested: Option<UnchangedComponent>,
    changes: ComponentChanges,
}

/// Changes from the live objects to the wanted ones.
#[derive(Default)]
struct ComponentChanges {
    apply: Vec<Change>,
    /// See [`Components::orphan`].
    orphan: Option<String>,
}

impl<'a> ComponentInputs<'a> {
    fn of(seen: &'a Observed, step: &'a VersionStep<'a>, to: Package<'a>, now: Timestamp) -> Self {
        let (down, replaces) = (restore::down(seen), restore::replaces(seen));
        let mute = !replaces && datastore::quorum(seen, now).is_some_and(|quorum| quorum.missing);
        let (trusts, etcd) = (trust_digest(&seen.anchors), datastore::record(seen));
        let datastore = etcd_data::compatible_package(seen, to);
        Self { seen, step, to, datastore, down, replaces, mute, trusts, etcd }
    }

    fn prints(&self) -> InputHashes<'a> {
        let (etcd, restoring) = (&self.etcd, self.seen.status.restoring.is_some());
        let opened = (etcd.version.as_deref(), etcd.package_version.as_deref());
        let members = (etcd.members, etcd.serving, etcd.change.is_some(), opened);
        InputHashes::of(self.seen, (&self.trusts, self.down, members, restoring, &self.seen.meta))
    }

    /// The package version that a component is built from now; `None` if etcd is external, or if its package version no longer exists.
    fn package(&self, component: ControlPlaneComponent, settled: bool) -> Option<Package<'a>> {
        let Self { seen, to, .. } = *self;
        if component == ControlPlaneComponent::Etcd {
            let package = self.datastore.as_ref().ok().copied();
            return package.filter(|_| seen.spec.datastore.etcd.is_some());
        }
        // While components before it change, it keeps its version.
        let running = seen.workloads.get(&component).and_then(|workload| workload.package.as_deref());
        match running.filter(|name| *name != to.0 && !self.replaces) {
            Some(name) if !settled => Some((name, seen.package(name)?)),
            _ => Some(to),
        }
    }

    /// The minor that components of that package version emulate.
    fn emulates(&self, package: Package<'_>) -> Option<&'a str> {
        self.step.emulates.as_deref().filter(|_| package.0 == self.to.0)
    }

    /// The wanted objects of a component.
    fn wanted(&self, component: ControlPlaneComponent, package: Package<'_>) -> Vec<Object> {
        let seen = self.seen;
        let blueprint = Blueprint {
            names: &seen.names,
            spec: &seen.spec,
            package: package.1,
            etcd_exists: seen.status.package_version.is_some(),
            emulates: self.emulates(package),
            trusts: &self.trusts,
            members: (self.etcd.members, self.etcd.serving),
        };
        let mut wanted = with_package_annotation(objects(&blueprint, component), package.0);
        wanted.extend(confines(seen, package.1).policies(component));
        wanted.sort_by_key(|object| object.kind);
        if self.down {
            scaled_to_zero(&mut wanted);
        }
        heal::select(seen, component, &mut wanted);
        wanted
    }

    /// Compares the objects of a component with the live ones, unless they were as declared and nothing changed since. `from` is the content hash of
    /// all inputs. While the StatefulSet of etcd is being orphaned, no component counts as unchanged.
    fn compare(
        &self,
        component: ControlPlaneComponent,
        package: Package<'_>,
        from: u64,
        orphaned: bool,
    ) -> ComparedComponent {
        let seen = self.seen;
        let rested = seen.rested.get(&component).filter(|rested| !self.mute && !orphaned && rested.still(seen, from));
        if let Some(rested) = rested {
            let template = rested.template.to_string();
            return ComparedComponent { template, rested: Some(rested.clone()), changes: ComponentChanges::default() };
        }
        let wanted = self.wanted(component, package);
        let template = wanted.iter().find_map(template_digest).unwrap_or_default().to_owned();
        if !self.starts(component) {
            return ComparedComponent { template, ..ComparedComponent::default() };
        }
        let all = wanted.iter().map(|object| (object.kind, object.name.as_str()));
        let rested = UnchangedComponent::of(seen, from, all, &template);
        let changes = changes(seen, wanted, self.mute);
        let unchanged = !self.mute && !orphaned && changes.orphan.is_none() && changes.apply.is_empty();
        ComparedComponent { template, rested: rested.filter(|_| unchanged), changes }
    }

    /// Whether the objects of a component are applied: they exist, or their dependencies run.
    fn starts(&self, component: ControlPlaneComponent) -> bool {
        let workload = self.seen.workloads.get(&component);
        let begun = workload.is_some_and(|workload| workload.package.is_some());
        begun
            || match component {
                ControlPlaneComponent::Etcd => true,
                ControlPlaneComponent::Apiserver => etcd_first(self.seen),
                // The others do not wait for the API server.
                _ => served(self.seen),
            }
    }

    /// Why a component is not as declared yet.
    fn waiting(&self, component: ControlPlaneComponent, package: Package<'_>, template: &str) -> Option<String> {
        if self.down {
            return Some(format!("{component} is stopped"));
        }
        let Self { seen, to, .. } = *self;
        // Etcd may stay newer than the other components.
        let is_etcd = component == ControlPlaneComponent::Etcd;
        let expected = if is_etcd { package.0 } else { to.0 };
        let why = unsettled(seen, component, seen.workloads.get(&component), expected, template)?;
        Some(if is_etcd && package.0 != to.0 {
            format!("{why}; {}", etcd_data::etcd_stays_message(package, to))
        } else {
            why
        })
    }
}

fn confines<'a>(seen: &'a Observed, package: &'a ClusterPackageVersionSpec) -> PolicyInputs<'a> {
    let restoring = seen.status.restoring.is_some();
    PolicyInputs { names: &seen.names, spec: &seen.spec, package, meta: &seen.meta, restoring }
}

/// The default-deny policy, once all allowing policies are in the cache: a running pod is never without its own policy.
fn deny(seen: &Observed, package: &ClusterPackageVersionSpec, apply: &[Change]) -> Vec<Change> {
    let allowed = |name: &str| seen.print(Kind::NetworkPolicy, name).is_some();
    let coming = apply.iter().any(|(object, _)| object.kind == Kind::NetworkPolicy);
    if coming || !confines(seen, package).expected().into_iter().all(allowed) {
        return Vec::new();
    }
    changes(seen, vec![policies::default_deny(&seen.names)], false).apply
}

/// Changes from the live objects to the wanted ones.
fn changes(seen: &Observed, wanted: Vec<Object>, mute: bool) -> ComponentChanges {
    // Changes that follow a member change are no repair of drift.
    let changing = condition(&seen.status.conditions, names::MEMBERS_UP_TO_DATE);
    let changing = changing.is_some_and(|one| one.status == Status::False);
    let mut changes = ComponentChanges::default();
    for mut object in wanted {
        let live = seen.object(object.kind, &object.name);
        if let Some(live) = live.as_ref().filter(|live| claims_differ(live, &object)) {
            let record = seen.status.etcd.as_ref();
            // The version of etcd is recorded before its StatefulSet is orphaned, so that it is recreated with the same version. Without a known
            // version there is nothing to record.
            let told = |record: &EtcdStatus| {
                let opened = etcd_data::opened_by(seen);
                let known = (record.version.as_deref(), record.package_version.as_deref());
                opened.is_none_or(|opened| known == (Some(opened.version), opened.package))
            };
            if record.is_some_and(|record| record.change.is_none() && told(record)) && !mute {
                changes.orphan = Some(live["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
                continue;
            }
            object.body["spec"]["volumeClaimTemplates"] = live["spec"]["volumeClaimTemplates"].clone();
        }
        match live {
            None => changes.apply.push((object, None)),
            // New pods cannot start without etcd, and the rollout would delete the old ones.
            Some(live) if mute && object.kind == Kind::Deployment && replaces_pods(&live, &object) => {}
            Some(live) if object.kind == Kind::NetworkPolicy => {
                if let Some(place) = policies::difference(&live, &object.body) {
                    changes.apply.push((object, Some(place)));
                }
            }
            Some(live) => {
                if let Some(place) = difference(&live, &object.body) {
                    // The change from bootstrapping to an existing etcd cluster is no repair of drift.
                    let place = difference(&live, &for_new_cluster(&object.body)).filter(|_| !changing).map(|_| place);
                    changes.apply.push((object, place));
                }
            }
        }
    }
    changes
}

/// Whether the object is the StatefulSet of etcd, with other volume claim templates than the live one: that field is immutable.
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

/// Scales all workloads to zero.
fn scaled_to_zero(objects: &mut [Object]) {
    for object in objects.iter_mut().filter(|object| matches!(object.kind, Kind::Deployment | Kind::StatefulSet)) {
        object.body["spec"]["replicas"] = 0.into();
    }
}

/// Whether the object has another pod template than the live one.
fn replaces_pods(live: &serde_json::Value, object: &Object) -> bool {
    let digest = &live["spec"]["template"]["metadata"]["annotations"][fleetwright_api::names::APPLIED_HASH];
    digest.as_str() != template_digest(object)
}

/// Annotates the workload with its package version.
pub(super) fn with_package_annotation(mut objects: Vec<Object>, package: &str) -> Vec<Object> {
    for object in &mut objects {
        if matches!(object.kind, Kind::Deployment | Kind::StatefulSet) {
            object.body["metadata"]["annotations"] = serde_json::json!({ super::objects::PACKAGE_VERSION: package });
        }
    }
    objects
}

/// Whether etcd is starting, so that it runs when an API server that starts now connects to it. The API server waits for etcd by itself, but retries
/// only after one second, and then with a longer backoff.
fn etcd_first(seen: &Observed) -> bool {
    let workload = seen.workloads.get(&ControlPlaneComponent::Etcd);
    let placed = workload.map_or(0, |etcd| etcd.replicas.iter().filter(|replica| replica.node.is_some()).count());
    seen.spec.datastore.etcd.is_none() || placed > count(seen, ControlPlaneComponent::Etcd) / 2
}

/// Whether an API server is ready.
fn served(seen: &Observed) -> bool {
    seen.workloads
        .get(&ControlPlaneComponent::Apiserver)
        .is_some_and(|workload| workload.replicas.iter().any(|replica| replica.ready && !replica.ending))
}

/// Desired number of pods of a component now.
pub(super) fn count(seen: &Observed, component: ControlPlaneComponent) -> usize {
    let count = match component {
        ControlPlaneComponent::Etcd if seen.spec.datastore.etcd.is_none() => 0,
        ControlPlaneComponent::Etcd => datastore::record(seen).members,
        _ => seen.spec.replicas,
    };
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Why a component is not as declared, in a few words; `None` if it is.
fn unsettled(
    seen: &Observed,
    component: ControlPlaneComponent,
    workload: Option<&Workload>,
    package: &str,
    template: &str,
) -> Option<String> {
    let wanted = count(seen, component);
    let Some(workload) = workload.filter(|workload| workload.package.is_some()) else {
        return Some(format!("creating {component}"));
    };
    if workload.package.as_deref() != Some(package) {
        return Some(format!(
            "{component} is still at {}",
            workload.package.as_deref().unwrap_or("an unknown version")
        ));
    }
    let here: Vec<_> = workload.replicas.iter().filter(|replica| !replica.ending).collect();
    let new: Vec<_> = here.iter().filter(|replica| replica.template.as_deref() == Some(template)).collect();
    let ready = new.iter().filter(|replica| replica.ready).count();
    if let Some(why) = held_member_template(seen, component, &here, template) {
        return Some(format!("{component}: {why}"));
    }
    if ready < wanted {
        let why =
            new.iter().find(|replica| !replica.message.is_empty()).map(|replica| format!(": {}", replica.message));
        return Some(format!("{component}: {ready} of {wanted} replicas are ready{}", why.unwrap_or_default()));
    }
    if here.len() > new.len() {
        let old = here.len() - new.len();
        let are = if old == 1 { "is" } else { "are" };
        return Some(format!("{component}: {} {are} still terminating", counted(old, "old replica")));
    }
    if component == ControlPlaneComponent::Apiserver {
        let unproven = new.iter().find(|replica| proven_at(seen, replica).is_none())?;
        let why = match seen.proofs.get(&unproven.uid).map(|proof| &proof.outcome) {
            Some(Err(why)) => format!("{} is not verified: {why}", unproven.name),
            _ => format!("verifying {}", unproven.name),
        };
        return Some(format!("{component}: {why}"));
    }
    None
}

/// Why a member of etcd keeps its old template: its volume would be deleted with its pod. `None` if there is no such member.
fn held_member_template(
    seen: &Observed,
    component: ControlPlaneComponent,
    here: &[&Replica],
    template: &str,
) -> Option<String> {
    let mut old = here.iter().filter(|replica| replica.template.as_deref() != Some(template));
    let held = old.find(|replica| datastore::claim_ends(seen, replica));
    held.filter(|_| component == ControlPlaneComponent::Etcd)
        .map(|replica| members::claim_terminating_message(&replica.name))
}

/// The member of etcd to recreate next: one with an old template, while all others are ready. Not a member whose volume claim is being deleted: the
/// claim would be removed with the pod, and the data with it.
fn replaced(seen: &Observed, workload: Option<&Workload>, template: &str, now: Timestamp) -> Option<Replica> {
    let replicas = &workload?.replicas;
    let old =
        |replica: &&Replica| replica.template.as_deref() != Some(template) && !datastore::claim_ends(seen, replica);
    // A pod whose container does not run can be deleted without loss: the new template may fix the cause.
    let idle =
        |replica: &&Replica| !replica.ready && !replica.ending && (replica.looping || !replica.has_run) && old(replica);
    // One at a time, whatever the reason: the change waits for the member that is being added or replaced, and for no other one.
    if let Some(change) = seen.status.etcd.as_ref().and_then(|etcd| etcd.change.as_ref()) {
        let is_new = |replica: &&Replica| match change.type_ {
            MemberChangeType::Add => true,
            MemberChangeType::Remove => false,
            MemberChangeType::Replace | MemberChangeType::RecreateVolume => {
                Some(&replica.uid) != change.pod_uid.as_ref()
            }
        };
        let mut members = replicas.iter().filter(|replica| replica.name == change.member);
        return members.find(|replica| is_new(replica) && idle(replica)).cloned();
    }
    // However many others fail: a ready member with the new template shows that the template works.
    let works = |replica: &Replica| replica.ready && !replica.ending && replica.template.as_deref() == Some(template);
    if let Some(member) = replicas.iter().rev().find(idle).filter(|_| replicas.iter().any(works)) {
        return Some(member.clone());
    }
    let wanted = count(seen, ControlPlaneComponent::Etcd);
    if replicas.len() != wanted || replicas.iter().any(|replica| replica.ending) {
        return None;
    }
    // Deleting a member that is not ready costs nothing; otherwise all must be ready.
    let broken = replicas.iter().filter(|replica| !replica.ready).collect::<Vec<_>>();
    match broken[..] {
        [] => replicas.iter().rev().find(old).cloned(),
        [one] if old(&one) => Some(one.clone()),
        // Members with the new template become ready only when the others have it too. Their data is on their volumes. A member with the present
        // trust bundle connects to them, though an authority that is still trusted has expired. If no member is ready, nothing is lost.
        _ if etcd_authority_expired(seen, now) => {
            let (trusted, none_ready) = (trust_digest(&seen.anchors), replicas.iter().all(|replica| !replica.ready));
            let trusts_other = |replica: &&Replica| replica.trusts.as_deref() != Some(&*trusted);
            let apart = |replica: &&Replica| old(replica) && (none_ready || idle(replica) || trusts_other(replica));
            replicas.iter().rev().find(apart).cloned()
        }
        _ => None,
    }
}

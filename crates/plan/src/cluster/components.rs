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

/// What is done about the objects of the components.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Components {
    /// Apply these.
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

/// Compares the objects of all components, one after the other: each is brought to what is declared when those before it are.
pub(super) fn components(seen: &Observed, step: &VersionStep<'_>, now: Timestamp) -> Components {
    let mut all = Components::default();
    let Some(to) = step.package() else {
        all.waiting.push((ControlPlaneComponent::Apiserver, package_missing_message(step.name)));
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
            // The others go on with an etcd that runs, and do not begin without one.
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

/// What the objects of all components depend on.
struct ComponentInputs<'a> {
    seen: &'a Observed,
    step: &'a VersionStep<'a>,
    /// The package version of that step.
    to: Package<'a>,
    /// The package version that etcd is made from, or why it is left as it is.
    datastore: Result<Package<'a>, String>,
    /// A restore keeps all components stopped.
    down: bool,
    /// A restore replaces the data: what components were made from before does not matter.
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

/// What brings live objects to the wanted ones.
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

    /// The package version that a component is made from now; none if etcd is external, or if the package version that it was made from does not exist any more.
    fn package(&self, component: ControlPlaneComponent, settled: bool) -> Option<Package<'a>> {
        let Self { seen, to, .. } = *self;
        if component == ControlPlaneComponent::Etcd {
            let package = self.datastore.as_ref().ok().copied();
            return package.filter(|_| seen.spec.datastore.etcd.is_some());
        }
        // While those before it change, it stays what it is.
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

    /// The objects of a component as they should be.
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

    /// Compares the objects of a component with the live ones, unless they were as declared and nothing changed since. `from` is the content hash of all
    /// that they are made from. While the StatefulSet of etcd is being orphaned, no component counts as unchanged from now on.
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

    /// Whether the objects of a component are applied: they exist, or what they need to start is there.
    fn starts(&self, component: ControlPlaneComponent) -> bool {
        let workload = self.seen.workloads.get(&component);
        let begun = workload.is_some_and(|workload| workload.package.is_some());
        begun
            || match component {
                ControlPlaneComponent::Etcd => true,
                ControlPlaneComponent::Apiserver => etcd_first(self.seen),
                // They do not wait for the API server.
                _ => served(self.seen),
            }
    }

    /// Why a component is not as declared yet.
    fn waiting(&self, component: ControlPlaneComponent, package: Package<'_>, template: &str) -> Option<String> {
        if self.down {
            return Some(format!("{component} is stopped"));
        }
        let Self { seen, to, .. } = *self;
        // Etcd may stay newer than the others.
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

/// What no policy allows is denied, once all policies that allow something were seen: a pod that runs is never without its own.
fn deny(seen: &Observed, package: &ClusterPackageVersionSpec, apply: &[Change]) -> Vec<Change> {
    let allowed = |name: &str| seen.print(Kind::NetworkPolicy, name).is_some();
    let coming = apply.iter().any(|(object, _)| object.kind == Kind::NetworkPolicy);
    if coming || !confines(seen, package).expected().into_iter().all(allowed) {
        return Vec::new();
    }
    changes(seen, vec![policies::default_deny(&seen.names)], false).apply
}

/// What brings those of the objects that differ to what is wanted.
fn changes(seen: &Observed, wanted: Vec<Object>, mute: bool) -> ComponentChanges {
    // What follows a change of members is no repair.
    let changing = condition(&seen.status.conditions, names::MEMBERS_UP_TO_DATE);
    let changing = changing.is_some_and(|one| one.status == Status::False);
    let mut changes = ComponentChanges::default();
    for mut object in wanted {
        let live = seen.object(object.kind, &object.name);
        if let Some(live) = live.as_ref().filter(|live| claims_differ(live, &object)) {
            let record = seen.status.etcd.as_ref();
            // What it runs is recorded before it goes, so that it comes back as that. Where nothing is known there is nothing to wait for.
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
            // New ones could not begin without etcd, and the old ones would go for them.
            Some(live) if mute && object.kind == Kind::Deployment && replaces_pods(&live, &object) => {}
            Some(live) if object.kind == Kind::NetworkPolicy => {
                if let Some(place) = policies::difference(&live, &object.body) {
                    changes.apply.push((object, Some(place)));
                }
            }
            Some(live) => {
                if let Some(place) = difference(&live, &object.body) {
                    // That etcd goes on from now is no repair.
                    let place = difference(&live, &for_new_cluster(&object.body)).filter(|_| !changing).map(|_| place);
                    changes.apply.push((object, place));
                }
            }
        }
    }
    changes
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
fn scaled_to_zero(objects: &mut [Object]) {
    for object in objects.iter_mut().filter(|object| matches!(object.kind, Kind::Deployment | Kind::StatefulSet)) {
        object.body["spec"]["replicas"] = 0.into();
    }
}

/// Whether the object makes other pods than what is there.
fn replaces_pods(live: &serde_json::Value, object: &Object) -> bool {
    let digest = &live["spec"]["template"]["metadata"]["annotations"][fleetwright_api::names::APPLIED_HASH];
    digest.as_str() != template_digest(object)
}

/// With the name of the package version on the workload.
pub(super) fn with_package_annotation(mut objects: Vec<Object>, package: &str) -> Vec<Object> {
    for object in &mut objects {
        if matches!(object.kind, Kind::Deployment | Kind::StatefulSet) {
            object.body["metadata"]["annotations"] = serde_json::json!({ super::objects::PACKAGE_VERSION: package });
        }
    }
    objects
}

/// Whether etcd begins, so that it is there when an API server that begins now looks for it. That waits for it by itself, but looks again only a second later, and then later still.
fn etcd_first(seen: &Observed) -> bool {
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

/// Why a member of etcd keeps its old template: its volume would go with its pod. None if there is no such member.
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

/// The member of etcd that is recreated next: one with an old template, while all others are ready. Not one whose volume claim is being deleted: the claim would
/// go with the pod, and the data with it.
fn replaced(seen: &Observed, workload: Option<&Workload>, template: &str, now: Timestamp) -> Option<Replica> {
    let replicas = &workload?.replicas;
    let old =
        |replica: &&Replica| replica.template.as_deref() != Some(template) && !datastore::claim_ends(seen, replica);
    // Nothing is lost with the pod of one whose container does not run: what keeps it from that may have been corrected since.
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
    // However many others do not work: a ready member shows that it is not the template.
    let works = |replica: &Replica| replica.ready && !replica.ending && replica.template.as_deref() == Some(template);
    if let Some(member) = replicas.iter().rev().find(idle).filter(|_| replicas.iter().any(works)) {
        return Some(member.clone());
    }
    let wanted = count(seen, ControlPlaneComponent::Etcd);
    if replicas.len() != wanted || replicas.iter().any(|replica| replica.ending) {
        return None;
    }
    // One that does not work anyway costs nothing; otherwise all must.
    let broken = replicas.iter().filter(|replica| !replica.ready).collect::<Vec<_>>();
    match broken[..] {
        [] => replicas.iter().rev().find(old).cloned(),
        [one] if old(&one) => Some(one.clone()),
        // Those with the new template become ready when the others have it too. Their data is on their volumes.
        // One that trusts what is trusted now connects to them, though an authority that is still trusted has expired. Where none works, nothing is lost with it.
        _ if etcd_authority_expired(seen, now) => {
            let (trusted, none_ready) = (trust_digest(&seen.anchors), replicas.iter().all(|replica| !replica.ready));
            let trusts_other = |replica: &&Replica| replica.trusts.as_deref() != Some(&*trusted);
            let apart = |replica: &&Replica| old(replica) && (none_ready || idle(replica) || trusts_other(replica));
            replicas.iter().rev().find(apart).cloned()
        }
        _ => None,
    }
}

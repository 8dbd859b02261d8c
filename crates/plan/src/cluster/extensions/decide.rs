//! Decides the next steps for the extensions of a cluster.

use std::time::Duration;

use fleetwright_api::{
    ControlPlaneComponent, ExtensionCheck, ExtensionPlacement, ExtensionStatus, Status, condition as found, names,
};
use fleetwright_wire::text::truncate_line;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::super::counted;
use super::super::object_drift::difference;
use super::super::objects::{Kind, Object};
use super::super::observed::Observed;
use super::super::proofs::proven_at;
use super::inventory::{self, INVENTORY, Inventory, InventoryEntry};
use super::{
    EXTENSION, ExtensionError, ExtensionInputs, ExtensionOutcome, ExtensionReport, MAX_IN_META, ObjectRef,
    OrphanedObject, RenderedExtension, health, render,
};

/// Type of the Operation that deletes orphaned objects of an extension.
pub const EXTENSION_PRUNE: &str = "ExtensionPrune";
/// One Operation deletes at most this many objects: a pass waits for it.
const BATCH: usize = 50;
/// Start of the fingerprint of a removal in the meta cluster.
const IN_META: &str = "meta-";

/// First interval at which an extension that is not ready is checked again.
const RECHECK_AFTER: Duration = Duration::from_secs(3);

/// Work in the business cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtensionWork {
    pub extension: String,
    /// Digest of the rendered extension; empty for one that is removed.
    pub digest: String,
    /// Objects to apply.
    pub objects: Vec<Value>,
    /// Whether the extension was already applied: a difference is drift that somebody else caused.
    pub again: bool,
    /// Objects that the extension no longer has; which of them still exist is reported after the apply.
    pub surplus: Vec<ObjectRef>,
    /// Checks that must pass.
    pub checks: Vec<ExtensionCheck>,
}

/// Objects that an Operation deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub extension: String,
    /// The cluster that they are deleted from.
    pub placement: ExtensionPlacement,
    /// The objects to delete.
    pub objects: Vec<OrphanedObject>,
}

impl Removal {
    /// Fingerprint of exactly these objects.
    pub fn fingerprint(&self) -> String {
        let uids: Vec<_> = self.objects.iter().map(|one| one.uid.as_str()).collect();
        let digest = super::super::digest(&format!("{}\n{}", self.extension, uids.join("\n")), 16);
        match self.placement {
            ExtensionPlacement::Cluster => digest,
            ExtensionPlacement::Meta => format!("{IN_META}{digest}"),
        }
    }

    /// The cluster that the removal with that fingerprint deletes from.
    pub fn placement_of(fingerprint: &str) -> ExtensionPlacement {
        match fingerprint.starts_with(IN_META) {
            true => ExtensionPlacement::Meta,
            false => ExtensionPlacement::Cluster,
        }
    }
}

/// Next steps for the extensions, and their status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtensionDecision {
    /// Inventory to write before all other steps.
    pub inventory: Option<Object>,
    /// Objects to apply in the meta cluster; the first field that differs, if the live object exists.
    pub apply: Vec<(Object, Option<String>)>,
    /// Objects that an Operation deletes in the meta cluster.
    pub prune: Option<Removal>,
    /// Whether no object is left to delete in the meta cluster.
    pub all_pruned: bool,
    /// Objects that an Operation deletes in the business cluster.
    pub remove: Option<Removal>,
    /// Whether the business cluster has confirmed that every object to remove is gone.
    pub all_removed: bool,
    /// Work in the business cluster.
    pub work: Vec<ExtensionWork>,
    /// Addresses of the API servers for that work.
    pub servers: Vec<String>,
    /// Status of each extension.
    pub statuses: Vec<ExtensionStatus>,
    /// Error in the extensions of the spec.
    pub refused: Option<String>,
    /// When to run the next pass.
    pub next: Option<Timestamp>,
}

/// Decides the next steps for the extensions of `package`, or of the present package version while the cluster changes.
pub(in super::super) fn choose(
    seen: &Observed,
    package: Option<(&str, &fleetwright_api::ClusterPackageVersionSpec)>,
    now: Timestamp,
) -> ExtensionDecision {
    let live = seen.object(Kind::ConfigMap, INVENTORY);
    let mut held = inventory::read(live.as_ref());
    let Some(package) = package else {
        return ExtensionDecision { statuses: seen.status.extensions.clone(), ..ExtensionDecision::default() };
    };
    add_strays(seen, &mut held);
    if package.1.extensions.is_empty() && seen.spec.extensions.is_empty() && held.is_empty() {
        return ExtensionDecision { all_removed: true, all_pruned: true, ..ExtensionDecision::default() };
    }
    let known = &seen.extensions;
    let given = ExtensionInputs {
        names: &seen.names,
        labels: &known.labels,
        spec: &seen.spec,
        package,
        server: seen.endpoint.as_deref(),
        ca_bundle: known.ca_bundle.as_deref(),
    };
    let all = render(&given);
    let mut choosing = Choosing { seen, now, choice: ExtensionDecision::default(), held, wanted: Vec::new() };
    choosing.choice.servers = servers(seen);
    choosing.wanted = all
        .iter()
        .flatten()
        .flat_map(|one| one.objects.iter().map(|object| (one.placement, ObjectRef::of(object))))
        .collect();
    choosing.install_extensions(&all);
    choosing.remove_extensions(&all);
    let none_left = |placement| choosing.held.keys().all(|name| choosing.orphaned_objects(name, placement).is_empty());
    let (in_cluster, in_meta) = (none_left(ExtensionPlacement::Cluster), none_left(ExtensionPlacement::Meta));
    (choosing.choice.all_removed, choosing.choice.all_pruned) = (in_cluster, in_meta);
    let Choosing { mut choice, held, .. } = choosing;
    let written = inventory::object(&seen.names, &held);
    // A removed entry is not seen by a comparison of contained fields.
    if inventory::read(live.as_ref()) != held
        || live.as_ref().is_none_or(|live| difference(live, &written.body).is_some())
    {
        choice.inventory = Some(written);
    }
    choice
}

/// Adds objects of extensions that exist in the meta cluster and are not in the inventory: an outdated leader applied them after the present leader
/// had deleted them and recorded that.
fn add_strays(seen: &Observed, held: &mut Inventory) {
    for (extension, kind, name, live) in seen.objects.of_extensions() {
        let known = held.get(extension);
        let is_other = |known: &InventoryEntry| known.placement != ExtensionPlacement::Meta;
        let has =
            |known: &InventoryEntry| known.objects.iter().any(|one| one.kind == kind.as_str() && one.name == name);
        if known.is_some_and(|known| is_other(known) || has(known)) {
            continue;
        }
        let none = InventoryEntry { order: 0, placement: ExtensionPlacement::Meta, objects: Vec::new() };
        held.entry(extension.to_owned()).or_insert(none).objects.push(ObjectRef::of(&live.value()));
    }
}

/// Addresses of API servers that are proven.
pub(in super::super) fn servers(seen: &Observed) -> Vec<String> {
    let Some(workload) = seen.workloads.get(&ControlPlaneComponent::Apiserver) else { return Vec::new() };
    let here = workload.replicas.iter().filter(|replica| replica.ready && !replica.ending);
    here.filter(|replica| proven_at(seen, replica).is_some()).filter_map(|replica| replica.ip.clone()).collect()
}

struct Choosing<'a> {
    seen: &'a Observed,
    now: Timestamp,
    choice: ExtensionDecision,
    held: Inventory,
    wanted: Vec<(ExtensionPlacement, ObjectRef)>,
}

impl Choosing<'_> {
    /// Installs the declared extensions: each order number when those with lower numbers are ready.
    fn install_extensions(&mut self, all: &[Result<RenderedExtension, ExtensionError>]) {
        let mut blocked: Option<(u32, String)> = None;
        for one in all {
            let status = match one {
                Err(mistake) => {
                    if mistake.chosen && self.choice.refused.is_none() {
                        self.choice.refused = Some(mistake.to_string());
                    }
                    let applied = self.before(&mistake.extension).and_then(|before| before.applied.clone());
                    let message = format!("{}: {}", mistake.place, mistake.message);
                    extension_status(
                        &mistake.extension,
                        Status::False,
                        names::reasons::INVALID_EXTENSION,
                        message,
                        applied,
                    )
                }
                Ok(extension) => {
                    self.record_inventory(extension);
                    let held_back = blocked.as_ref().filter(|(order, _)| *order < extension.order);
                    let held_back = held_back.map(|(_, name)| name.clone());
                    match extension.placement {
                        ExtensionPlacement::Cluster => self.in_cluster(extension, held_back.as_deref()),
                        ExtensionPlacement::Meta => self.in_meta(extension, held_back.as_deref()),
                    }
                }
            };
            // Leftover objects of an extension do not block the next ones.
            let stands = status.ready != Status::True && status.reason != names::reasons::REMOVING;
            if stands && blocked.is_none() {
                let order = one.as_ref().map_or_else(|mistake| self.order(&mistake.extension), |one| one.order);
                blocked = Some((order, status.name.clone()));
            }
            self.choice.statuses.push(status);
        }
    }

    /// Order number; an extension that cannot be rendered blocks the later ones, and one that does not exist blocks none.
    fn order(&self, name: &str) -> u32 {
        let package = self.seen.target().1;
        package.extensions.iter().find(|one| one.name == name).map_or(u32::MAX, |one| one.order)
    }

    fn before(&self, name: &str) -> Option<&ExtensionStatus> {
        self.seen.status.extensions.iter().find(|one| one.name == name)
    }

    fn report(&self, name: &str) -> Option<&ExtensionReport> {
        self.seen.extensions.reports.get(name)
    }

    fn record_inventory(&mut self, extension: &RenderedExtension) {
        let pruned = self.report(&extension.name).map(|report| report.pruned.clone()).unwrap_or_default();
        let held = self.held.entry(extension.name.clone()).or_default();
        // Objects of an extension that moved to the other cluster are first removed from the old one.
        if held.placement != extension.placement && !held.objects.is_empty() {
            return;
        }
        let wanted: Vec<_> = extension.objects.iter().map(ObjectRef::of).collect();
        let mut objects = wanted.clone();
        let old = held.objects.iter().filter(|old| !pruned.iter().any(|gone| gone.is(old)));
        objects.extend(old.filter(|old| !wanted.iter().any(|new| new.is(old))).cloned());
        *held = InventoryEntry { order: extension.order, placement: extension.placement, objects };
    }

    /// Objects that the extension created and no extension has any more.
    fn orphaned_objects(&self, name: &str, placement: ExtensionPlacement) -> Vec<ObjectRef> {
        let held = self.held.get(name).filter(|held| held.placement == placement);
        let objects = held.into_iter().flat_map(|held| &held.objects);
        let wanted = |old: &&ObjectRef| self.wanted.iter().any(|(at, new)| *at == placement && new.is(old));
        objects.filter(|old| !wanted(old)).cloned().collect()
    }

    /// Objects to delete next, of those that the report found; not those that an extension has again.
    fn removal(&self, name: &str, report: &ExtensionReport) -> Option<Removal> {
        let surplus = self.orphaned_objects(name, ExtensionPlacement::Cluster);
        let left = report.surplus.iter().filter(|one| surplus.iter().any(|old| old.is(&one.object)));
        let objects: Vec<_> = left.take(BATCH).cloned().collect();
        let placement = ExtensionPlacement::Cluster;
        (!objects.is_empty()).then(|| Removal { extension: name.to_owned(), placement, objects })
    }

    fn in_cluster(&mut self, extension: &RenderedExtension, held_back: Option<&str>) -> ExtensionStatus {
        let name = &extension.name;
        let report = self.report(name).filter(|report| report.digest == extension.digest).cloned();
        // The new objects are applied before the old ones are removed.
        let removal = report.as_ref().filter(|report| !matches!(report.outcome, ExtensionOutcome::Failed(_)));
        let removal = removal.and_then(|report| self.removal(name, report));
        let before = self.before(name).filter(|before| before.applied.as_ref() == Some(&extension.digest)).cloned();
        let applied = Some(extension.digest.clone());
        let (status, due) = match (&report, before) {
            (Some(report), _) => self.status_from_report(extension, report),
            // A process before this one applied the extension: it is checked at its usual interval, and not earlier.
            (None, Some(before)) if before.ready == Status::True => {
                let since = self.seen.extensions.since.unwrap_or(self.now);
                (before, after(since, self.seen.extensions.every.mul_f64(start_offset(&self.seen.names.namespace))))
            }
            (None, before) if held_back.is_some() && before.is_none() => {
                let message = format!("waiting for extension {}", held_back.unwrap_or_default());
                let applied = self.before(name).and_then(|before| before.applied.clone());
                return extension_status(name, Status::False, names::reasons::APPLYING, message, applied);
            }
            (None, _) if self.choice.servers.is_empty() => {
                let message = "no API server is verified".to_owned();
                let applied = self.before(name).and_then(|before| before.applied.clone());
                return extension_status(name, Status::False, names::reasons::APPLYING, message, applied);
            }
            (None, _) => {
                let message = "applying objects".to_owned();
                (extension_status(name, Status::False, names::reasons::APPLYING, message, None), self.now)
            }
        };
        if due > self.now {
            self.requeue_at(due);
        } else if !self.choice.servers.is_empty() {
            // While the work only waits, it is not repeated again and again.
            let waits = report.as_ref().filter(|report| matches!(report.outcome, ExtensionOutcome::Waits(_)));
            let young = waits.is_some_and(|report| self.now < after(report.since, extension.health.within.0));
            let surplus = self.orphaned_objects(name, ExtensionPlacement::Cluster);
            let objects = if young { Vec::new() } else { extension.objects.clone() };
            self.choice.work.push(ExtensionWork {
                extension: name.clone(),
                digest: extension.digest.clone(),
                objects,
                again: report.is_some() || status.ready == Status::True,
                surplus,
                checks: extension.health.checks.clone(),
            });
        }
        let status = ExtensionStatus {
            applied: status.applied.clone().or_else(|| applied.filter(|_| report.is_some())),
            ..status
        };
        let left = report.as_ref().map(|report| report.surplus.len()).unwrap_or_default();
        let failed = report.as_ref().is_some_and(|report| report.look_at.is_some());
        let (Some(report), true) = (&report, removal.is_some() || failed) else { return status };
        if let Some(removal) = removal {
            self.choice.remove.get_or_insert(removal);
        }
        if status.ready != Status::True {
            return status;
        }
        let first = report.surplus.first().map(|one| &one.object);
        let why = orphans_message(first, left, report.waits.as_ref());
        extension_status(name, Status::False, names::reasons::REMOVING, why, status.applied)
    }

    /// Status of an extension from its report, and when it is checked next.
    fn status_from_report(
        &self,
        extension: &RenderedExtension,
        report: &ExtensionReport,
    ) -> (ExtensionStatus, Timestamp) {
        let (name, applied) = (&extension.name, Some(extension.digest.clone()));
        let elapsed = Duration::try_from(report.at.duration_since(report.since)).unwrap_or_default();
        // The longer an extension is not ready, the less often it is checked, down to the interval of the ready ones.
        let patience = (elapsed / 8).clamp(RECHECK_AFTER, self.seen.extensions.every.max(RECHECK_AFTER));
        let (status, due) = match &report.outcome {
            ExtensionOutcome::Healthy => {
                let message = healthy_message(&report.skipped);
                let spread = 1.0 + start_offset(&self.seen.names.namespace) / 3.0;
                let due = after(report.at, self.seen.extensions.every.mul_f64(spread));
                (extension_status(name, Status::True, names::reasons::HEALTHY, message, applied), due)
            }
            ExtensionOutcome::Waits(why) => {
                let late = self.now >= after(report.since, extension.health.within.0);
                let reason = if late { names::reasons::UNHEALTHY } else { names::reasons::APPLYING };
                (extension_status(name, Status::False, reason, why.clone(), applied), after(report.at, patience))
            }
            ExtensionOutcome::Failed(why) => {
                let applied = self.before(name).and_then(|before| before.applied.clone());
                let status = extension_status(name, Status::False, names::reasons::APPLY_FAILED, why.clone(), applied);
                (status, after(report.at, patience))
            }
        };
        (status, report.look_at.map_or(due, |at| at.min(due)))
    }

    fn in_meta(&mut self, extension: &RenderedExtension, held_back: Option<&str>) -> ExtensionStatus {
        let name = &extension.name;
        let before = self.before(name).and_then(|before| before.applied.clone());
        let applied = before.as_ref() == Some(&extension.digest);
        let not_yet =
            |why: String| extension_status(name, Status::False, names::reasons::APPLYING, why, before.clone());
        if let Some(other) = held_back.filter(|_| !applied) {
            return not_yet(format!("waiting for extension {other}"));
        }
        let mut trouble = None;
        for body in &extension.objects {
            let this = ObjectRef::of(body);
            let Some(kind) = this.kind_in_meta() else { continue };
            let live = self.seen.object(kind, &this.name);
            if let Some(live) = live.as_ref().filter(|live| live["metadata"]["labels"][EXTENSION].is_null()) {
                let owner = live["metadata"]["labels"][names::COMPONENT].as_str().unwrap_or("another owner");
                let why = format!("{this} already exists and belongs to {owner}; choose another name");
                return extension_status(name, Status::False, names::reasons::APPLY_FAILED, why, before);
            }
            let place = live.as_ref().and_then(|live| difference(live, body));
            if live.is_none() || place.is_some() {
                trouble.get_or_insert_with(|| format!("applying {this}"));
                let object = Object { kind, name: this.name, body: body.clone() };
                self.choice.apply.push((object, place.filter(|_| applied)));
            }
        }
        self.remove_in_meta(name);
        if let Some(why) = trouble {
            return not_yet(why);
        }
        let now = Some(extension.digest.clone());
        let checks = extension.health.checks.iter().filter_map(health::subject);
        let trouble = checks.into_iter().find_map(|(what, _, checked)| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == what.kind().1);
            let Some(kind) = kind else {
                return Some(format!(
                    "{} {checked} is not supported in the meta cluster; remove this health check",
                    what.kind().1
                ));
            };
            health::health_problem(what, checked, self.seen.object(kind, checked).as_ref())
        });
        let left = self.orphaned_objects(name, ExtensionPlacement::Meta);
        match trouble {
            None if !left.is_empty() => {
                let waits = self.seen.extensions.in_meta.waits.get(name);
                let why = orphans_message(left.first(), left.len(), waits);
                extension_status(name, Status::False, names::reasons::REMOVING, why, now)
            }
            None => {
                let message = healthy_message(&[]);
                extension_status(name, Status::True, names::reasons::HEALTHY, message, now)
            }
            Some(why) => {
                let old = found(&self.seen.status.conditions, names::EXTENSIONS_READY);
                let since =
                    old.filter(|old| old.status == Status::False).map_or(self.now, |old| old.last_transition_time);
                let end = after(since, extension.health.within.0);
                if end > self.now {
                    self.requeue_at(end);
                    return extension_status(name, Status::False, names::reasons::APPLYING, why, now);
                }
                extension_status(name, Status::False, names::reasons::UNHEALTHY, why, now)
            }
        }
    }

    /// Chooses the objects to delete next in the meta cluster; the inventory drops those that are gone, or not ours.
    fn remove_in_meta(&mut self, extension: &str) {
        let mut objects = Vec::new();
        for object in self.orphaned_objects(extension, ExtensionPlacement::Meta) {
            let live = object.kind_in_meta().and_then(|kind| self.seen.object(kind, &object.name));
            match live.filter(|live| live["metadata"]["labels"][EXTENSION] == *extension) {
                Some(live) => {
                    let uid = live["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                    objects.push(OrphanedObject { object, uid });
                }
                None => {
                    if let Some(held) = self.held.get_mut(extension) {
                        held.objects.retain(|one| *one != object);
                    }
                }
            }
        }
        let in_meta = &self.seen.extensions.in_meta;
        objects.retain(|one| !in_meta.deleted.contains(&one.uid));
        let due = |one: &OrphanedObject| in_meta.not_before.get(&one.object).copied().filter(|at| *at > self.now);
        let later = objects.iter().filter_map(due).min();
        objects.retain(|one| due(one).is_none());
        objects.truncate(MAX_IN_META);
        if let Some(later) = later {
            self.requeue_at(later);
        }
        if !objects.is_empty() {
            let placement = ExtensionPlacement::Meta;
            self.choice.prune.get_or_insert(Removal { extension: extension.to_owned(), placement, objects });
        }
    }

    /// Removes extensions that are no longer declared, in reverse order.
    fn remove_extensions(&mut self, all: &[Result<RenderedExtension, ExtensionError>]) {
        let stays = |name: &str, placement: ExtensionPlacement| {
            all.iter().any(|one| match one {
                Ok(one) => one.name == name && one.placement == placement,
                Err(mistake) => mistake.extension == name,
            })
        };
        let leaving: Vec<_> = self
            .held
            .iter()
            .filter(|(name, held)| !stays(name, held.placement))
            .map(|(name, held)| (name.clone(), held.clone()))
            .collect();
        let Some(last) = leaving.iter().map(|(_, held)| held.order).max() else { return };
        for (name, held) in leaving {
            if held.order == last {
                self.leave(&name, held.placement);
            }
            let left = self.held.get(&name).map(|held| held.objects.clone()).unwrap_or_default();
            let Some(next) = left.first() else {
                self.held.remove(&name);
                continue;
            };
            if self.choice.statuses.iter().all(|status| status.name != name) {
                let report = self.report(&name).filter(|report| report.digest.is_empty());
                let waits = match (held.placement, report.map(|report| (&report.outcome, &report.waits))) {
                    (ExtensionPlacement::Meta, _) => self.seen.extensions.in_meta.waits.get(&name),
                    (_, Some((ExtensionOutcome::Failed(why), _) | (_, Some(why)))) => Some(why),
                    _ => None,
                };
                let why = match waits {
                    Some(why) => format!("deleting {}: {why}", with_others(next, left.len())),
                    None => format!("deleting {}", with_others(next, left.len())),
                };
                self.choice.statuses.push(extension_status(&name, Status::False, names::reasons::REMOVING, why, None));
            }
        }
    }

    fn leave(&mut self, name: &str, placement: ExtensionPlacement) {
        let surplus = self.orphaned_objects(name, placement);
        if let Some(held) = self.held.get_mut(name) {
            // Objects that another extension has now are dropped.
            held.objects.retain(|one| surplus.contains(one));
        }
        match placement {
            ExtensionPlacement::Meta => self.remove_in_meta(name),
            ExtensionPlacement::Cluster => {
                let report = self.report(name).filter(|report| report.digest.is_empty()).cloned();
                let gone = |one: &ObjectRef| report.iter().flat_map(|report| &report.pruned).any(|gone| gone.is(one));
                if let Some(held) = self.held.get_mut(name) {
                    held.objects.retain(|one| !gone(one));
                }
                let left: Vec<_> = surplus.into_iter().filter(|one| !gone(one)).collect();
                if left.is_empty() || self.choice.servers.is_empty() {
                    return;
                }
                if let Some(removal) = report.as_ref().and_then(|report| self.removal(name, report)) {
                    self.choice.remove.get_or_insert(removal);
                    return;
                }
                let due =
                    report.map_or(self.now, |report| report.look_at.unwrap_or_else(|| after(report.at, RECHECK_AFTER)));
                if due > self.now {
                    return self.requeue_at(due);
                }
                self.choice.work.push(ExtensionWork {
                    extension: name.to_owned(),
                    digest: String::new(),
                    objects: Vec::new(),
                    again: false,
                    surplus: left,
                    checks: Vec::new(),
                });
            }
        }
    }

    fn requeue_at(&mut self, at: Timestamp) {
        self.choice.next = Some(self.choice.next.map_or(at, |next| next.min(at)));
    }
}

fn extension_status(
    name: &str,
    ready: Status,
    reason: &str,
    message: String,
    applied: Option<String>,
) -> ExtensionStatus {
    ExtensionStatus {
        name: name.to_owned(),
        ready,
        reason: reason.to_owned(),
        message: truncate_line(&message, 1000),
        applied,
    }
}

/// Message about an extension that works, with the objects that were left out.
fn healthy_message(skipped: &[ObjectRef]) -> String {
    let message = "objects are applied and health checks pass";
    match skipped.first() {
        None => message.to_owned(),
        Some(first) => {
            let left_out = with_others(first, skipped.len());
            format!("{message}; left out {left_out}, because the API server does not serve such objects")
        }
    }
}

/// Message about objects that an extension no longer has and that still exist.
fn orphans_message(first: Option<&ObjectRef>, left: usize, waits: Option<&String>) -> String {
    let what = match first {
        Some(first) => format!("objects are applied; deleting {} that it no longer has", with_others(first, left)),
        None => "objects are applied; deleting objects that it no longer has".to_owned(),
    };
    waits.map_or_else(|| what.clone(), |why| format!("{what}: {why}"))
}

/// The first object, and the number of the others.
fn with_others(first: &ObjectRef, count: usize) -> String {
    match count.saturating_sub(1) {
        0 => first.to_string(),
        others => format!("{first} and {}", counted(others, "other object")),
    }
}

fn after(at: Timestamp, wait: Duration) -> Timestamp {
    at.checked_add(SignedDuration::try_from(wait).unwrap_or_default()).unwrap_or(at)
}

/// Number from 0 to 1: clusters of a fleet that started together are checked at different times. Extensions of one cluster are checked together, and
/// share a connection.
fn start_offset(text: &str) -> f64 {
    let sum = text.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    f64::from(sum % 1000) / 1000.0
}

/// The condition about the extensions: status, reason, and a message that names the first extension that is not ready.
pub(in super::super) fn condition(choice: &ExtensionDecision) -> (Status, String, String) {
    let count = choice.statuses.len();
    // Errors that a person must fix come before states that end by themselves.
    let worst = [names::reasons::INVALID_EXTENSION, names::reasons::APPLY_FAILED, names::reasons::UNHEALTHY];
    let not: Vec<_> = choice.statuses.iter().filter(|one| one.ready != Status::True).collect();
    let first = worst.iter().find_map(|reason| not.iter().find(|one| one.reason == *reason)).or(not.first());
    match first {
        None if count == 0 => (Status::True, names::reasons::ALL_READY.to_owned(), "no extensions".to_owned()),
        None => (Status::True, names::reasons::ALL_READY.to_owned(), format!("{} ready", counted(count, "extension"))),
        Some(one) => {
            let more = match not.len() - 1 {
                0 => String::new(),
                others => format!("; {} not ready", counted(others, "other extension")),
            };
            (Status::False, one.reason.clone(), format!("{}: {}{more}", one.name, one.message))
        }
    }
}

//! Applies extensions in business clusters and checks them. Objects that an extension no longer has are only found here: an Operation deletes them.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetwright_api::{ExtensionPlacement, names};
use fleetwright_kit::{Clock, Key};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::extensions::health::{self, CheckTarget};
use fleetwright_plan::cluster::extensions::{
    EXTENSION, ExtensionOutcome, ExtensionReport, ExtensionWork, IF_SERVED, KEEP, ObjectRef, OrphanedObject,
    PruneInMeta, Removal,
};
use fleetwright_wire::text::truncate_line;
use jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, GetParams, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind, Request};
use kube::discovery::Scope;
use kube::{Client, Resource as _};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::background_tasks::BackgroundTasks;
use crate::connect::MetaAccess;
use crate::messages::api_error_message;
use crate::meters::Meters;
use crate::proofs::client_of;
use crate::thin::{ThinMeta, ThinObject};

/// Timeout of the work for a cluster.
const WITHIN: Duration = Duration::from_secs(90);
/// Interval between two deletions of one orphaned object.
pub const PRUNE_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Time within which the API server serves a new CustomResourceDefinition.
const CRD_SERVED_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum length of an error message of a business cluster.
const MAX_SAID: usize = 500;
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Reports about extensions, and running work: at most one task per cluster.
pub struct ExtensionInstaller {
    background: BackgroundTasks<ExtensionResults>,
    meters: Meters,
}

/// Reports about the extensions of a cluster.
#[derive(Default)]
pub struct ExtensionResults {
    since: Option<Timestamp>,
    reports: BTreeMap<String, ExtensionReport>,
    /// Objects whose drift was repaired, until their Events are published.
    repaired: Vec<String>,
    in_meta: PruneInMeta,
}

impl ExtensionInstaller {
    pub fn new(background: BackgroundTasks<ExtensionResults>, meters: Meters) -> Self {
        Self { background, meters }
    }

    /// Since when the operator knows the cluster, and since then the report of each of its extensions and the deletion of their objects in the meta
    /// cluster.
    pub fn known(&self, key: &Key) -> (Timestamp, BTreeMap<String, ExtensionReport>, PruneInMeta) {
        let now = self.background.clock().now();
        self.background.state_or_default(key, |known| {
            (*known.since.get_or_insert(now), known.reports.clone(), known.in_meta.clone())
        })
    }

    /// Objects that were repaired since the last call.
    pub fn repaired(&self, key: &Key) -> Vec<String> {
        self.background.known(key, |known| std::mem::take(&mut known.repaired)).unwrap_or_default()
    }

    /// Access to the meta cluster, for requests of a pass itself.
    pub fn meta(&self) -> MetaAccess {
        self.background.meta()
    }

    /// Records that the objects are deleted.
    pub fn pruned(&self, key: &Key, removal: &Removal) {
        if removal.placement == ExtensionPlacement::Meta {
            self.background.state_or_default(key, |known| {
                known.in_meta.deleted.extend(removal.objects.iter().map(|one| one.uid.clone()));
                known.in_meta.waits.remove(&removal.extension);
            });
            return self.not_before(key, removal, self.background.clock().now().checked_add(PRUNE_AGAIN_AFTER).ok());
        }
        self.change(key, removal, |report| {
            report.surplus.retain(|one| !removal.objects.contains(one));
            report.pruned.extend(removal.objects.iter().map(|one| one.object.clone()));
            (report.waits, report.look_at) = (None, None);
        });
    }

    /// Records why the deletion of the objects waits.
    pub fn prune_waits(&self, key: &Key, removal: &Removal, why: &str) {
        if removal.placement == ExtensionPlacement::Meta {
            return self.waits_in_meta(key, removal, why);
        }
        self.change(key, removal, |report| report.waits = Some(truncate_line(why, MAX_SAID)));
    }

    /// Records why the deletion of the objects failed, and when to look for the rest.
    pub fn prune_failed(&self, key: &Key, removal: &Removal, again: Timestamp, why: &str) {
        if removal.placement == ExtensionPlacement::Meta {
            self.waits_in_meta(key, removal, why);
            return self.not_before(key, removal, Some(again));
        }
        self.change(key, removal, |report| {
            report.surplus.clear();
            (report.waits, report.look_at) = (Some(truncate_line(why, MAX_SAID)), Some(again));
        });
    }

    /// No object is left to delete in the meta cluster.
    pub fn all_pruned(&self, key: &Key) {
        let now = self.background.clock().now();
        self.background.known(key, |known| {
            // An object that somebody recreates is not deleted again at once.
            known.in_meta.not_before.retain(|_, at| *at > now);
            let not_before = std::mem::take(&mut known.in_meta.not_before);
            known.in_meta = PruneInMeta { not_before, ..PruneInMeta::default() };
        });
    }

    fn not_before(&self, key: &Key, removal: &Removal, at: Option<Timestamp>) {
        let objects = removal.objects.iter().filter_map(|one| Some((one.object.clone(), at?)));
        self.background.state_or_default(key, |known| known.in_meta.not_before.extend(objects));
    }

    fn waits_in_meta(&self, key: &Key, removal: &Removal, why: &str) {
        let why = truncate_line(why, MAX_SAID);
        self.background.state_or_default(key, |known| known.in_meta.waits.insert(removal.extension.clone(), why));
    }

    /// Changes the report from which the removal was decided; a newer report already has the current state.
    fn change(&self, key: &Key, removal: &Removal, change: impl FnOnce(&mut ExtensionReport)) {
        self.background.known(key, |known| {
            if let Some(report) = known.reports.get_mut(&removal.extension)
                && removal.objects.iter().all(|one| report.surplus.contains(one))
            {
                change(report);
            }
        });
    }

    /// Cancels the running task.
    pub fn stop_tasks(&self, key: &Key) {
        self.background.abort_others(key, |_| false);
    }

    /// Drops the reports of a deleted cluster.
    pub fn forget(&self, key: &Key) {
        self.background.forget(key);
    }

    /// Starts the work at one of these API servers, unless a task is running. Its end triggers a pass of the cluster.
    pub fn begin(&self, key: &Key, names: &Names, servers: &[String], work: &[ExtensionWork]) {
        if work.is_empty() {
            return;
        }
        let (names, servers, work, meters) = (names.clone(), servers.to_vec(), work.to_vec(), self.meters.clone());
        let operation_future = async move |meta: MetaAccess, clock: Clock| {
            let mut done: BTreeMap<String, ExtensionResult> = BTreeMap::new();
            let outcome = tokio::time::timeout(WITHIN, all(&meta, &names, &servers, &work, &mut done)).await;
            let why = match outcome {
                Ok(Ok(())) => String::new(),
                Ok(Err(why)) => why,
                Err(_) => format!("timed out after {} s", WITHIN.as_secs()),
            };
            (clock.now(), work, done, why)
        };
        self.background.begin(key, "", operation_future, move |known, (now, work, done, why)| {
            known.report(now, &work, done, &why);
            for outcome in work.iter().filter_map(|one| known.reports.get(&one.extension)).map(|report| &report.outcome)
            {
                meters.extended(outcome);
            }
        });
    }
}

impl ExtensionResults {
    fn report(
        &mut self,
        now: Timestamp,
        work: &[ExtensionWork],
        mut done: BTreeMap<String, ExtensionResult>,
        why: &str,
    ) {
        for one in work {
            let done = done.remove(&one.extension).unwrap_or_default();
            let old = self.reports.get(&one.extension).filter(|old| old.digest == one.digest);
            let outcome = done.outcome.unwrap_or_else(|| ExtensionOutcome::Failed(truncate_line(why, MAX_SAID)));
            let report = ExtensionReport {
                at: now,
                // If an extension stops working, its wait starts then.
                since: match old {
                    Some(old) if old.outcome != ExtensionOutcome::Healthy => old.since,
                    _ => now,
                },
                digest: one.digest.clone(),
                outcome,
                // A removal that waited for the gate still waits.
                waits: old.filter(|old| old.surplus == done.surplus).and_then(|old| old.waits.clone()),
                look_at: None,
                surplus: done.surplus,
                pruned: done.pruned,
                // Work that only checks applies no object.
                skipped: match one.objects.is_empty() {
                    true => old.map(|old| old.skipped.clone()).unwrap_or_default(),
                    false => done.skipped,
                },
            };
            self.reports.insert(one.extension.clone(), report);
            self.repaired.extend(done.repaired.into_iter().map(|what| format!("extension {}: {what}", one.extension)));
        }
    }
}

/// Result of the work for one extension.
#[derive(Default)]
struct ExtensionResult {
    outcome: Option<ExtensionOutcome>,
    surplus: Vec<OrphanedObject>,
    pruned: Vec<ObjectRef>,
    skipped: Vec<ObjectRef>,
    repaired: Vec<String>,
}

async fn all(
    meta: &MetaAccess,
    names: &Names,
    servers: &[String],
    work: &[ExtensionWork],
    done: &mut BTreeMap<String, ExtensionResult>,
) -> Result<(), String> {
    let ip = servers.first().ok_or("no API server is verified")?;
    let mut place = BusinessCluster::of(meta, names, ip).await?;
    for one in work {
        let entry = done.entry(one.extension.clone()).or_default();
        entry.outcome = Some(match place.one(one, entry).await {
            Ok(None) => ExtensionOutcome::Healthy,
            Ok(Some(why)) => ExtensionOutcome::Waits(truncate_line(&why, MAX_SAID)),
            Err(why) => ExtensionOutcome::Failed(truncate_line(&why, MAX_SAID)),
        });
    }
    Ok(())
}

/// A client of a business cluster, and the discovered kinds.
pub struct BusinessCluster {
    client: Client,
    kinds: BTreeMap<(String, String), (ApiResource, Scope)>,
}

impl BusinessCluster {
    /// A client of the API server at that address.
    pub async fn of(meta: &MetaAccess, names: &Names, ip: &str) -> Result<Self, String> {
        let client = client_of(meta, names, ip).await.map_err(|error| error.to_string())?;
        Ok(Self { client, kinds: BTreeMap::new() })
    }

    /// Applies and checks one extension. Returns the check that does not pass, if any.
    async fn one(&mut self, work: &ExtensionWork, done: &mut ExtensionResult) -> Result<Option<String>, String> {
        for object in &work.objects {
            self.apply(object, work.again, done).await?;
        }
        for object in &work.surplus {
            match self.find(&work.extension, object).await? {
                Some(uid) => done.surplus.push(OrphanedObject { object: object.clone(), uid }),
                None => done.pruned.push(object.clone()),
            }
        }
        for (what, namespace, name) in work.checks.iter().filter_map(health::subject) {
            let object = self.read(what, namespace, name).await?;
            if let Some(why) = health::health_problem(what, name, object.as_ref()) {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// The resource of the kind, if it is served. A new CustomResourceDefinition is served after a moment.
    async fn kind(&mut self, this: &ObjectRef, patience: Duration) -> Result<Option<(ApiResource, Scope)>, String> {
        let key = (this.api_version.clone(), this.kind.clone());
        if let Some(known) = self.kinds.get(&key) {
            return Ok(Some(known.clone()));
        }
        let (group, version) = this.api_version.split_once('/').unwrap_or(("", &this.api_version));
        let kind = GroupVersionKind::gvk(group, version, &this.kind);
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            match kube::discovery::pinned_kind(&self.client, &kind).await {
                Ok((resource, capabilities)) => {
                    self.kinds.insert(key, (resource.clone(), capabilities.scope.clone()));
                    return Ok(Some((resource, capabilities.scope)));
                }
                Err(kube::Error::Discovery(_)) if tokio::time::Instant::now() >= deadline => return Ok(None),
                Err(kube::Error::Discovery(_)) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    if tokio::time::Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(error) => {
                    return Err(format!(
                        "discovering {} {}: {}",
                        this.api_version,
                        this.kind,
                        api_error_message(&error)
                    ));
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn requests(&mut self, this: &ObjectRef) -> Result<Request, String> {
        match self.kind(this, CRD_SERVED_TIMEOUT).await? {
            Some((resource, scope)) => Self::at(this, &resource, &scope),
            None => Err(format!("{} {} is not served by the API server", this.api_version, this.kind)),
        }
    }

    /// Sends a request and decodes only the used fields: an object with a field that does not parse would otherwise fail its extension.
    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> kube::Result<T> {
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    async fn metadata(&self, requests: &Request, this: &ObjectRef) -> Result<Option<ThinMeta>, String> {
        let found = self.send::<ThinObject>(requests.get_metadata(&this.name, &GetParams::default())).await;
        Ok(existing(found).map_err(failed("reading", this))?.map(|object| object.metadata))
    }

    fn at(this: &ObjectRef, resource: &ApiResource, scope: &Scope) -> Result<Request, String> {
        let kind = &this.kind;
        let of = |namespace: Option<&str>| Request::new(DynamicObject::url_path(resource, namespace));
        match (scope, &this.namespace) {
            (Scope::Cluster, None) => Ok(of(None)),
            (Scope::Namespaced, Some(namespace)) => Ok(of(Some(namespace))),
            (Scope::Cluster, Some(_)) => Err(format!("{this}: {kind} is cluster-scoped; remove metadata.namespace")),
            (Scope::Namespaced, None) => Err(format!("{this}: {kind} is namespaced; set metadata.namespace")),
        }
    }

    async fn apply(&mut self, object: &Value, again: bool, done: &mut ExtensionResult) -> Result<(), String> {
        let this = ObjectRef::of(object);
        // Kinds that are part of the API server are served from its start.
        let optional = object["metadata"]["annotations"][IF_SERVED] == "true";
        if optional && self.kind(&this, Duration::ZERO).await?.is_none() {
            done.skipped.push(this);
            return Ok(());
        }
        let requests = self.requests(&this).await?;
        let before = match again {
            true => Some(self.metadata(&requests, &this).await?),
            false => None,
        };
        let params = PatchParams::apply(names::CLUSTERS_MANAGER).force();
        let applied = self.send::<ThinObject>(requests.patch(&this.name, &params, &Patch::Apply(object))).await;
        let applied = applied.map_err(failed("applying", &this))?;
        match before {
            Some(None) => done.repaired.push(format!("recreated {this}, which was missing")),
            Some(Some(before)) if changed(&before, &applied.metadata) => {
                done.repaired.push(format!("corrected drift of {this}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// The uid of an object that an extension no longer has: `None` if the object is gone or terminating, is to be kept, or does not belong to the
    /// extension.
    pub async fn find(&mut self, extension: &str, old: &ObjectRef) -> Result<Option<String>, String> {
        let lasting = ["Namespace", "CustomResourceDefinition"].contains(&old.kind.as_str());
        // The objects were deleted with their CustomResourceDefinition.
        let Some((resource, scope)) = self.kind(old, Duration::ZERO).await? else { return Ok(None) };
        // The name or namespace is invalid, so the object was never created.
        let Ok(requests) = Self::at(old, &resource, &scope) else { return Ok(None) };
        let Some(meta) = self.metadata(&requests, old).await? else { return Ok(None) };
        let note = meta.annotations.iter().flatten().find(|(key, _)| *key == KEEP).map(|(_, value)| value == "true");
        let ours = meta.labels.iter().flatten().any(|(key, value)| key == EXTENSION && value == extension);
        let stays = !ours || note.unwrap_or(lasting) || meta.deletion_timestamp.is_some();
        Ok(meta.uid.filter(|_| !stays))
    }

    /// Deletes the object with that uid.
    pub async fn delete(&mut self, one: &OrphanedObject) -> Result<(), String> {
        let this = &one.object;
        let requests = self.requests(this).await?;
        let preconditions = Preconditions { uid: Some(one.uid.clone()), resource_version: None };
        let params = DeleteParams::background().preconditions(preconditions);
        match self.send::<IgnoredAny>(requests.delete(&this.name, &params)).await {
            Ok(_) => Ok(()),
            // The object is gone, or another one has its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(failed("deleting", this)(error)),
        }
    }

    async fn read(&mut self, what: CheckTarget, namespace: Option<&str>, name: &str) -> Result<Option<Value>, String> {
        let (api_version, kind) = what.kind();
        let this = ObjectRef {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let requests = self.requests(&this).await?;
        let found = self.send::<Value>(requests.get(name, &GetParams::default())).await;
        existing(found).map_err(failed("reading", &this))
    }
}

/// `None` for a missing object.
fn existing<T>(found: kube::Result<T>) -> kube::Result<Option<T>> {
    match found {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Error of a request, with the message of the server.
fn failed(what: &str, this: &ObjectRef) -> impl Fn(kube::Error) -> String {
    move |error| format!("{what} {this}: {}", api_error_message(&error))
}

/// Whether the apply changed the object: by its generation if it has one, because the status changes all the time.
fn changed(before: &ThinMeta, after: &ThinMeta) -> bool {
    match (before.generation, after.generation) {
        (Some(before), Some(after)) => before != after,
        _ => before.resource_version != after.resource_version,
    }
}

//! Acts that must not happen twice.
//!
//! A controller that wants to change something outside the API server describes the change as an [`Act`] and asks the [`Journal`] to
//! drive it, pass by pass, until the act has ended. The journal keeps an `Operation` object for each act.
//!
//! Expected flow: the journal writes the intent (`Pending`); it asks the gate and records the granted places in the policies
//! (`Granted`); it writes that this process starts the act (`Running`); it starts the act; it writes the outcome (`Succeeded`, `Failed`).
//! A process that finds a `Running` act that it did not claim itself calls the act's probe. If the probe cannot determine the outcome,
//! the Operation waits for a person (`Unknown`).
//!
//! Guarantees:
//! - the act is started at most once for each Operation, across crashes, lost answers and two leaders for a moment: only by the process whose
//!   token the API server confirmed, only while that process leads, and only if it remembers not to have started it;
//! - an Operation that was started cannot be removed before its outcome is known: it has a finalizer from its creation on. The journal removes the
//!   finalizer when somebody deleted the Operation and either its act was never started, or the act has ended;
//! - never more Operations are in progress than each policy allows, since places are taken with a precondition on the policy's resourceVersion;
//! - an outcome that this process knows is written again until the API server keeps it.
//!
//! Caveats:
//! - between the last check of the lease and the first effect of [`Act::start`] no lock spans both the API server and the outside world: a process
//!   that is paused exactly there starts its act when it resumes. Therefore no other process ever starts *the same* Operation;
//!   an act that never started is recorded as failed, and a controller that still wants it creates a new Operation, with the number of the attempt
//!   in its fingerprint. The target of an act should refuse a key that it has already received.
//! - a person who may write Operations can remove the finalizer too. The journal adds it again, unless the Operation is being deleted, when the API
//!   server accepts no new finalizer.
//! - the journal does not remember an Operation that was removed: a new one with the same intent is a new act. Drive only acts that are still needed.

mod act;
mod attempts;
mod name;
mod operations;
mod policies;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{
    GROUP, Operation, OperationPhase, OperationPolicy, OperationPolicySpec, OperationPolicyStatus, OperationSpec,
    OperationStatus, Span, condition, names,
};
use fleetwright_plan::gate::{self, GateAnswer, Population};
use fleetwright_plan::operation::{self, ManualOutcome, OperationStep};
use futures::future::{Either, select};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::ObjectMeta;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::cache::FullObject;
use crate::client::{CallError, retry_after};
use crate::events::{Level, reference};
use crate::operator::Triggers;
use crate::rights::rule;
use crate::{Budget, Cache, Change, JsonPatch, Key, Operator, Pass, Source, View, WriteError};
use attempts::Attempts;

pub use act::{Act, Intent, JournalError, OperationKey, Progress};
pub use fleetwright_plan::operation::{CallOutcome, ProbeResult};

/// An Operation in the journal's cache.
pub type CachedOperation = FullObject<Operation>;
/// An OperationPolicy in the journal's cache.
pub type CachedPolicy = FullObject<OperationPolicy>;

/// Drives the Operations of one namespace; cheap to clone.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    namespace: String,
    name: String,
    identity: String,
    operations: Cache<CachedOperation>,
    policies: Cache<CachedPolicy>,
    population: Box<dyn Population>,
    attempts: Attempts,
    /// Held while places are taken. Passes of one process need not race each other for the version of a policy.
    gate: tokio::sync::Mutex<()>,
}

/// Index of Operations that wait for the gate, by type.
const WAITING: &str = "waiting";
/// Index of Operations that hold a place, by type.
const UNDER_WAY: &str = "under-way";
/// Index of Operations by kind and name of their target.
const TARGET: &str = "target";
/// Index of policies by the types that they name.
const TYPE: &str = "type";
/// Index of policies by the Operations that hold places in them.
const HOLDER: &str = "holder";

/// Timeout of a probe: a pass that probes a host that hangs must not hang too.
const MAX_PROBE: Duration = Duration::from_secs(60);

impl Journal {
    /// Calls of a pass that [`Journal::drive`] may need when two policies name the type: an intent, two places, a grant, a claim and an
    /// outcome, after an Operation with other labels was deleted and released, or a finalizer that somebody removed was added again; and reads of
    /// the conflicting objects. Each further policy needs one more write.
    pub const BUDGET: Budget = Budget { reads: 2, writes: 8 };

    /// Adds a journal for that namespace to an operator: its caches, and the controllers that delete old Operations, apply the outcomes that
    /// people record, and keep the counts of the policies correct. `population` is the total of which a percentage is taken.
    ///
    /// Operations are separated by the operator's name: each operator drives, and deletes, its own.
    pub fn add(operator: &mut Operator, namespace: &str, population: impl Population + 'static) -> Self {
        let operations = Source::new(Api::<Operation>::namespaced(operator.client(), namespace))
            .index(WAITING, |_, op: &CachedOperation| {
                if phase(op) == OperationPhase::Pending { vec![op.0.spec.type_.clone()] } else { Vec::new() }
            })
            .index(UNDER_WAY, |_, op| if phase(op).holds_room() { vec![op.0.spec.type_.clone()] } else { Vec::new() })
            .index(TARGET, |_, op| vec![target(&op.0.spec.target.kind, &op.0.spec.target.name)])
            .index(operations::COUNTED, |_, op| vec![operations::counted(op)]);
        let policies = Source::new(Api::<OperationPolicy>::namespaced(operator.client(), namespace))
            .index(TYPE, |_, policy: &CachedPolicy| policy.0.spec.operations.clone())
            .index(HOLDER, |_, policy| {
                let holders = policy.0.status.iter().flat_map(|status| &status.holders);
                holders.map(|holder| holder.operation.clone()).collect()
            });
        let inner = Inner {
            namespace: namespace.to_owned(),
            name: operator.name().to_owned(),
            identity: operator.identity().to_owned(),
            operations: operator.cache(operations),
            policies: operator.cache(policies),
            population: Box::new(population),
            attempts: Attempts::default(),
            gate: tokio::sync::Mutex::default(),
        };
        let journal = Self { inner: Arc::new(inner) };
        operations::add(operator, &journal);
        policies::add(operator, &journal);
        journal
    }

    /// Triggers the controller that drives acts on objects of that kind: when one of their Operations changes, and when the gate may
    /// grant one that waits.
    #[must_use = "what wakes a controller is complete only when all of it is said"]
    pub fn wake<'a>(&self, wakes: Triggers<'a>, kind: &'static str) -> Triggers<'a> {
        let journal = self.clone();
        wakes
            .on(&self.inner.operations, move |change: &Change<'_, CachedOperation>| {
                let changed = change.new.or(change.old).filter(|op| op.0.spec.target.kind == kind);
                changed.map(|op| Key::new(&change.key.namespace, &op.0.spec.target.name)).into_iter().collect()
            })
            .on(&self.inner.policies, move |change: &Change<'_, CachedPolicy>| journal.waiting(kind, change))
    }

    /// The targets of that kind whose Operations wait for a policy that changed.
    fn waiting(&self, kind: &str, change: &Change<'_, CachedPolicy>) -> Vec<Key> {
        let (Some(policy), old) = (change.new, change.old) else {
            // The policy was deleted: the Operations that it blocked may be granted.
            let types = change.old.map(|old| old.0.spec.operations.clone()).unwrap_or_default();
            return self.waiting_of(kind, &types);
        };
        // A place that was taken unblocks no other Operation.
        let observed = |policy: &CachedPolicy| {
            (policy.0.metadata.generation, policy.0.status.as_ref().and_then(|status| status.observed_generation))
        };
        let places = |policy: &CachedPolicy| -> BTreeSet<(String, String)> {
            let holders = policy.0.status.iter().flat_map(|status| &status.holders);
            holders.map(|holder| (holder.operation.clone(), holder.scope.clone())).collect()
        };
        if old.is_some_and(|old| observed(old) == observed(policy) && places(old).is_subset(&places(policy))) {
            return Vec::new();
        }
        let mut types = policy.0.spec.operations.clone();
        types.extend(old.iter().flat_map(|old| old.0.spec.operations.clone()));
        self.waiting_of(kind, &types)
    }

    fn waiting_of(&self, kind: &str, types: &[String]) -> Vec<Key> {
        let waiting = types.iter().flat_map(|type_| self.inner.operations.by(WAITING, type_));
        let mut waiting: Vec<_> = waiting.filter(|(_, op)| op.0.spec.target.kind == kind).collect();
        // The Operation that has waited longest asks first.
        waiting.sort_by(|(_, a), (_, b)| a.0.metadata.creation_timestamp.cmp(&b.0.metadata.creation_timestamp));
        waiting.into_iter().map(|(key, op)| Key::new(&key.namespace, &op.0.spec.target.name)).collect()
    }

    /// The Operations on an object of that kind and name that are in the cache, sorted by name.
    pub fn of_target(&self, kind: &str, name: &str) -> Vec<(Key, Arc<CachedOperation>)> {
        self.inner.operations.by(TARGET, &target(kind, name))
    }

    /// Key of the Operation object of that intent.
    pub fn key(&self, intent: &Intent) -> Key {
        Key::new(&self.inner.namespace, &name::operation_name(intent))
    }

    /// Writes this policy, unless a policy names one of its types: an operator brings a default limit for acts that have none, which people may
    /// change. The gate counts with the policy as soon as it is in the cache.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn limit(&self, pass: &Pass, name: &str, spec: OperationPolicySpec) -> Result<(), JournalError> {
        let known = |type_: &String| {
            let policies = self.inner.policies.by(TYPE, type_);
            policies.iter().any(|(key, _)| *key.namespace == *self.inner.namespace)
        };
        if spec.operations.iter().any(known) {
            return Ok(());
        }
        let mut policy = OperationPolicy::new(name, spec);
        policy.metadata.namespace = Some(self.inner.namespace.clone());
        pass.writer().create_in(&self.inner.policies, &policy).await?;
        Ok(())
    }

    /// The intent with the number of the attempt in its fingerprint: one more than the attempts that are known never to have started.
    ///
    /// For acts that may be requested again although a process that was paused right before its start could still run
    /// the earlier attempt: acts that do no harm if they run twice, or whose target refuses late attempts.
    #[must_use]
    pub fn next_attempt(&self, intent: &Intent) -> Intent {
        let mut attempt = intent.clone();
        let mut number = 1;
        while self.inner.operations.get(&self.key(&attempt)).is_some_and(|op| never_started(&op)) {
            number += 1;
            attempt.fingerprint = format!("{}-{number}", intent.fingerprint);
        }
        attempt
    }

    /// The RBAC rules that a journal needs in its namespace.
    pub fn rules() -> Vec<PolicyRule> {
        vec![
            rule(GROUP, &["operations"], &["get", "list", "watch", "create", "patch", "delete"]),
            rule(GROUP, &["operations/status"], &["patch"]),
            rule(GROUP, &["operationpolicies"], &["get", "list", "watch"]),
            rule(GROUP, &["operationpolicies/status"], &["patch"]),
        ]
    }

    /// Drives an act as far as possible now. Call it in every pass of the controller that wants the act, until the act has ended.
    ///
    /// # Errors
    /// See [`JournalError`]. Whatever the error, calling it again is safe.
    pub async fn drive<A: Act>(&self, pass: &Pass, act: &A) -> Result<Progress, JournalError> {
        let intent = act.intent();
        let mut operation = self.find_or_write(pass, &intent).await?;
        let key = Key::of(&operation.0);
        loop {
            let uid = operation.0.metadata.uid.clone().unwrap_or_default();
            let id = OperationKey { key: key.clone(), uid };
            let status = operation.0.status.clone().unwrap_or_default();
            let memory = self.inner.attempts.memory(&id, status.started_by.as_deref());
            let now = pass.clock().now();
            match operation::next(&status, &memory, &manual_outcome(&operation), now) {
                OperationStep::AskGate | OperationStep::Claim if is_terminating(&operation) => {
                    self.release(pass, &operation).await?;
                    let why = format!(
                        "Operation {key} was deleted before it started; it is created again after it is removed"
                    );
                    return Ok(Progress::Waiting { why, until: None });
                }
                OperationStep::Claim if !is_protected(&operation) => self.protect(pass, &operation).await?,
                OperationStep::AskGate => {
                    if let Some(waiting) = self.ask(pass, &id, &operation, &status).await? {
                        return Ok(waiting);
                    }
                }
                OperationStep::Claim => {
                    let token = self.inner.attempts.token(&id, &self.inner.identity);
                    self.write(pass, &operation, &operation::claimed(&status, &token, now)).await?;
                }
                OperationStep::Start => {
                    if !pass.leads() {
                        return Err(WriteError::Fenced(format!("the act of Operation {key}")).into());
                    }
                    self.start(pass, &id, act).await;
                }
                OperationStep::Probe => {
                    let probed = match select(Box::pin(act.probe(&id)), Box::pin(pass.clock().sleep(MAX_PROBE))).await {
                        Either::Left((probed, _)) => probed,
                        Either::Right(_) => ProbeResult::NoAnswer(format!("timed out after {}", Span(MAX_PROBE))),
                    };
                    tracing::info!(operation = %id, ?probed, "probed the outcome");
                    let now = pass.clock().now();
                    let news = operation::probed(&status, &probed, now);
                    if let Some(news) = &news {
                        self.write(pass, &operation, news).await?;
                    }
                    let ended = matches!(
                        probed,
                        ProbeResult::Succeeded(_) | ProbeResult::Failed(_) | ProbeResult::NeverStarted
                    );
                    if !ended && !matches!(probed, ProbeResult::Unknowable(_)) {
                        return Ok(Progress::Running { ask_again_after: operation::ask_again_after(&status, now) });
                    }
                }
                OperationStep::Record(ended) => self.write(pass, &operation, &ended).await?,
                // The controller of Operations writes the outcome, and that change triggers the driver.
                OperationStep::RecordManualOutcome(_) | OperationStep::Wait => {
                    return Ok(Progress::Running { ask_again_after: operation::ask_again_after(&status, now) });
                }
                OperationStep::WaitForPerson => return Ok(self.request_manual_outcome(pass, &id, &status).await),
                OperationStep::Ended => {
                    self.inner.attempts.forget(&key);
                    return Ok(Progress::of(&status));
                }
            }
            operation = self.cached(&key)?;
        }
    }

    /// Withdraws an Operation that was not started; false if it has already started, or does not exist.
    ///
    /// A controller that no longer wants an act calls it: otherwise the Operation waits, or holds a place, for ever.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub async fn withdraw(&self, pass: &Pass, key: &Key, why: &str) -> Result<bool, JournalError> {
        let Some(operation) = self.inner.operations.get(key) else { return Ok(false) };
        let status = operation.0.status.clone().unwrap_or_default();
        let Some(ended) = operation::withdrawn(&status, why, pass.clock().now()) else { return Ok(false) };
        self.write(pass, &operation, &ended).await?;
        Ok(true)
    }

    /// The Operation of that intent, created if it does not exist.
    async fn find_or_write(&self, pass: &Pass, intent: &Intent) -> Result<Arc<CachedOperation>, JournalError> {
        let key = self.key(intent);
        let mut known = self.inner.operations.get(&key);
        if let Some(stale) = known.take_if(|op| phase(op) == OperationPhase::Pending && labels_changed(op, intent)) {
            // The gate selects by labels, and a specification is immutable. An Operation that only waits can be created again.
            let meta = &stale.0.metadata;
            let (uid, version) = (meta.uid.as_deref(), meta.resource_version.as_deref());
            let (uid, version) = (uid.unwrap_or_default(), version.unwrap_or_default());
            pass.writer().delete(&self.inner.operations, &key, uid, version).await?;
            if let Some(marked) = self.inner.operations.get(&key) {
                self.release(pass, &marked).await?;
            }
        }
        if known.is_none() {
            let object = self.written_down(&key, intent);
            if !pass.writer().create_in(&self.inner.operations, &object).await? {
                // The cache does not have the Operation yet, or the answer to our own create was lost.
                refresh(pass, &self.inner.operations, &key).await?;
            }
        }
        let operation = self.cached(&key)?;
        let theirs = &operation.0.spec;
        for (field, theirs, ours) in [
            ("type", &theirs.type_, &intent.type_),
            ("target.kind", &theirs.target.kind, &intent.target.kind),
            ("target.name", &theirs.target.name, &intent.target.name),
            ("fingerprint", &theirs.fingerprint, &intent.fingerprint),
            ("requestedBy", &theirs.requested_by, &self.inner.name),
        ] {
            if theirs != ours {
                return Err(JournalError::NameTaken { key, field, theirs: theirs.clone(), ours: ours.clone() });
            }
        }
        Ok(operation)
    }

    fn written_down(&self, key: &Key, intent: &Intent) -> Operation {
        let spec = OperationSpec {
            type_: intent.type_.clone(),
            target: intent.target.clone(),
            reason: intent.reason.clone(),
            requested_by: self.inner.name.clone(),
            fingerprint: intent.fingerprint.clone(),
            keep_for: intent.keep_for.unwrap_or_else(OperationSpec::default_keep_for),
        };
        let metadata = ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            finalizers: Some(vec![names::OPERATION_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        };
        Operation { metadata, spec, status: None }
    }

    /// Asks the gate and records its answer; the reason to wait if it refused.
    async fn ask(
        &self,
        pass: &Pass,
        id: &OperationKey,
        operation: &CachedOperation,
        status: &OperationStatus,
    ) -> Result<Option<Progress>, JournalError> {
        let spec = &operation.0.spec;
        let turn = self.inner.gate.lock().await;
        let policies = self.inner.policies.by(TYPE, &spec.type_);
        let none = OperationPolicyStatus::default();
        let seen =
            policies.iter().filter(|(key, _)| key.namespace == id.key.namespace).map(|(key, policy)| gate::Policy {
                name: &key.name,
                generation: policy.0.metadata.generation,
                spec: &policy.0.spec,
                status: policy.0.status.as_ref().unwrap_or(&none),
            });
        let request =
            gate::Request { operation: &id.key.name, uid: &id.uid, type_: &spec.type_, labels: &spec.target.labels };
        let now = pass.clock().now();
        match gate::judge(request, seen, &*self.inner.population) {
            GateAnswer::Granted { places, by } => {
                for place in places.iter().filter(|place| !place.held) {
                    let Some((_, policy)) = policies.iter().find(|(key, _)| *key.name == *place.policy) else {
                        continue;
                    };
                    let held = gate::take(policy.0.status.as_ref().unwrap_or(&none), &place.holder);
                    self.write_holders(pass, policy, &held).await?;
                }
                drop(turn);
                self.write(pass, operation, &operation::granted(status, &by, now)).await?;
                Ok(None)
            }
            GateAnswer::Refused(refusal) => {
                // Another policy turned out to be full: the places that were already taken are released for other Operations.
                for (_, policy) in &policies {
                    let Some(held) = policy.0.status.as_ref() else { continue };
                    if held.holders.iter().any(|holder| *holder.operation == *id.key.name) {
                        self.write_holders(pass, policy, &gate::release(held, &id.key.name)).await?;
                    }
                }
                drop(turn);
                if let Some(news) = operation::refused(status, &refusal, now) {
                    self.write(pass, operation, &news).await?;
                }
                Ok(Some(Progress::Waiting { why: refusal.to_string(), until: refusal.until }))
            }
        }
    }

    async fn start<A: Act>(&self, pass: &Pass, id: &OperationKey, act: &A) {
        // Two passes may reach this line with the same token: only one of them gets the attempt.
        let Some(attempt) = self.inner.attempts.begin(id) else { return };
        tracing::info!(operation = %id, "starting");
        let timeout = act.timeout();
        let ending = match select(Box::pin(act.start(id)), Box::pin(pass.clock().sleep(timeout))).await {
            Either::Left((ending, _)) => ending,
            Either::Right(_) => CallOutcome::Unknown(format!("timed out after {}", Span(timeout))),
        };
        tracing::info!(operation = %id, ?ending, "returned");
        attempt.ended(ending);
    }

    async fn request_manual_outcome(&self, pass: &Pass, id: &OperationKey, status: &OperationStatus) -> Progress {
        let known = condition(&status.conditions, names::OUTCOME_KNOWN);
        let why = known.map(|known| known.message.clone()).unwrap_or_default();
        let since = known.map(|known| known.last_transition_time.to_string()).unwrap_or_default();
        let about = reference::<Operation>(&id.key, Some(&id.uid));
        pass.events().publish(&about, Level::Warning, "OutcomeUnknown", &why, &since).await;
        Progress::NeedsPerson(why)
    }

    fn cached(&self, key: &Key) -> Result<Arc<CachedOperation>, JournalError> {
        self.inner.operations.get(key).ok_or_else(|| JournalError::CacheBehind(key.clone()))
    }

    /// Adds the finalizer to an Operation that lacks it: one of an older version, or one whose finalizers somebody edited.
    async fn protect(&self, pass: &Pass, operation: &CachedOperation) -> Result<(), JournalError> {
        let patch = JsonPatch::add_finalizer(&operation.0.metadata, names::OPERATION_FINALIZER);
        self.patch(pass, operation, patch).await
    }

    /// Removes the finalizer, if the Operation still has the version that was decided on: a claim in between keeps the finalizer.
    async fn release(&self, pass: &Pass, operation: &CachedOperation) -> Result<(), JournalError> {
        let meta = &operation.0.metadata;
        let patch = JsonPatch::new().test_version(meta.resource_version.as_deref().unwrap_or_default());
        let Some(patch) = patch.remove_finalizer(meta, names::OPERATION_FINALIZER) else { return Ok(()) };
        match self.patch(pass, operation, patch).await {
            // Another writer already removed it.
            Err(JournalError::Write(WriteError::Gone(_))) => Ok(()),
            done => done,
        }
    }

    async fn patch(&self, pass: &Pass, operation: &CachedOperation, patch: JsonPatch) -> Result<(), JournalError> {
        let (cache, key) = (&self.inner.operations, Key::of(&operation.0));
        match pass.writer().json_patch(cache, &key, patch).await {
            Err(error @ WriteError::Conflict { .. }) => {
                refresh(pass, cache, &key).await?;
                Err(error.into())
            }
            done => Ok(done?),
        }
    }

    async fn write(
        &self,
        pass: &Pass,
        operation: &CachedOperation,
        status: &OperationStatus,
    ) -> Result<(), JournalError> {
        merge(pass, &self.inner.operations, &operation.0, json!(status)).await
    }

    async fn write_holders(
        &self,
        pass: &Pass,
        policy: &CachedPolicy,
        holders: &[fleetwright_api::Holder],
    ) -> Result<(), JournalError> {
        merge(pass, &self.inner.policies, &policy.0, json!({ "holders": holders, "held": holders.len() })).await
    }
}

/// Writes status with the version that was decided on as precondition. After a conflict, the cache gets the conflicting object, so that the next pass
/// does not lose the same race again while the watch is late.
async fn merge<K>(
    pass: &Pass,
    cache: &Cache<FullObject<K>>,
    object: &K,
    status: serde_json::Value,
) -> Result<(), JournalError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static,
    K: Resource<Scope = kube::core::NamespaceResourceScope>,
{
    let key = Key::of(object);
    let version = object.meta().resource_version.clone().unwrap_or_default();
    match pass.writer().merge_status(cache, &key, &version, status).await {
        Err(error @ WriteError::Conflict { .. }) => {
            refresh(pass, cache, &key).await?;
            Err(error.into())
        }
        done => Ok(done?),
    }
}

/// Reads an object from the API server and stores it in the cache.
async fn refresh<K>(pass: &Pass, cache: &Cache<FullObject<K>>, key: &Key) -> Result<Option<K>, JournalError>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static,
    FullObject<K>: View<Object = K>,
{
    let api = Api::<K>::namespaced(pass.client(), &key.namespace);
    match api.get_opt(&key.name).await {
        Ok(Some(object)) => {
            cache.written(object.clone());
            Ok(Some(object))
        }
        Ok(None) => Ok(None),
        Err(error) => {
            let after = retry_after(&error);
            let message = CallError::of(&error).map_or_else(|| error.to_string(), |error| error.to_string());
            Err(JournalError::Read { what: format!("{} {key}", K::kind(&())), message, after })
        }
    }
}

fn phase(operation: &CachedOperation) -> OperationPhase {
    operation.0.status.as_ref().map_or(OperationPhase::Pending, |status| status.phase)
}

fn labels_changed(operation: &CachedOperation, intent: &Intent) -> bool {
    operation.0.spec.target.labels != intent.target.labels
}

fn is_terminating(operation: &CachedOperation) -> bool {
    operation.0.metadata.deletion_timestamp.is_some()
}

/// Whether the finalizer blocks the removal of the Operation.
fn is_protected(operation: &CachedOperation) -> bool {
    operation.0.metadata.finalizers.iter().flatten().any(|name| name == names::OPERATION_FINALIZER)
}

fn never_started(operation: &CachedOperation) -> bool {
    operation.0.status.as_ref().is_some_and(|status| Progress::of(status) == Progress::NeverStarted)
}

fn manual_outcome(operation: &CachedOperation) -> ManualOutcome {
    operation.0.metadata.annotations.as_ref().map_or(ManualOutcome::Unset, ManualOutcome::read)
}

fn target(kind: &str, name: &str) -> String {
    format!("{kind}/{name}")
}

//! Keeps the counts of OperationPolicies correct: a finished Operation releases its place, even if the process that drove it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::{OperationPolicy, OperationPolicyStatus};
use fleetwright_plan::gate::{self, ActiveOperation};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::json;

use super::{CachedOperation, CachedPolicy, HOLDER, Journal, JournalError, TYPE, UNDER_WAY, merge, phase, refresh};
use crate::cache::FullObject;
use crate::controller::{Budget, Controller, Next, Options, Outcome};
use crate::events::reference;
use crate::{Change, Key, Operator, Pass};

/// Maximum number of holders missing in the cache that are read in one pass; the others stay until the next.
const MAX_ASKED: usize = 8;
/// Wait before the next holders are read.
const ASK_NEXT_AFTER: Duration = Duration::from_secs(1);

pub(super) fn add(operator: &mut Operator, journal: &Journal) {
    let woken = journal.clone();
    let _complete = operator
        .controller(Policies { journal: journal.clone() }, Options { workers: 2, ..Options::default() })
        .on(&journal.inner.policies, |change: &Change<'_, CachedPolicy>| vec![change.key.clone()])
        .on(&journal.inner.operations, move |change: &Change<'_, CachedOperation>| woken.policies_of(change));
}

impl Journal {
    /// The policies whose counts may be affected by a change of an Operation.
    fn policies_of(&self, change: &Change<'_, CachedOperation>) -> Vec<Key> {
        let policies = &self.inner.policies;
        let holding = || policies.by(HOLDER, &change.key.name);
        let found = match change.new {
            Some(operation) if phase(operation).holds_room() => {
                let mut naming = policies.by(TYPE, &operation.0.spec.type_);
                naming.retain(|(_, policy)| !holders(policy).any(|holder| *holder.operation == *change.key.name));
                naming
            }
            Some(operation) if !phase(operation).ended() => Vec::new(),
            _ => holding(),
        };
        found.into_iter().map(|(key, _)| key).filter(|key| key.namespace == change.key.namespace).collect()
    }
}

struct Policies {
    journal: Journal,
}

/// A policy, and the Operations that its counts depend on.
#[derive(Clone)]
struct Found {
    policy: Arc<CachedPolicy>,
    operations: BTreeMap<Key, Arc<CachedOperation>>,
    /// Holders that were not read yet.
    unsure: BTreeSet<String>,
}

impl Controller for Policies {
    const NAME: &'static str = "operation-policies";
    const BUDGET: Budget = Budget { reads: MAX_ASKED as u32 + 1, writes: 1 };

    type Found = Found;
    type Valid = Found;
    /// The status to write; `None` if it is correct.
    type Decision = Option<OperationPolicyStatus>;
    type Done = ();
    type DereferenceError = JournalError;
    type ValidateError = Infallible;
    type ActError = JournalError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, found: Option<&Found>) -> ObjectReference {
        reference::<OperationPolicy>(key, found.and_then(|found| found.policy.0.metadata.uid.as_deref()))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Found>, JournalError> {
        let inner = &self.journal.inner;
        let Some(policy) = inner.policies.get(pass.key()) else { return Ok(None) };
        let under_way = policy.0.spec.operations.iter().flat_map(|type_| inner.operations.by(UNDER_WAY, type_));
        let mut operations: BTreeMap<_, _> =
            under_way.filter(|(key, _)| key.namespace == pass.key().namespace).collect();
        let mut asked = 0;
        let mut unsure = BTreeSet::new();
        for holder in holders(&policy) {
            let key = Key::new(&pass.key().namespace, &holder.operation);
            let mut known = inner.operations.get(&key);
            if known.as_ref().is_none_or(|op| op.0.metadata.uid.as_deref() != Some(&holder.uid)) {
                if asked == MAX_ASKED {
                    unsure.insert(holder.operation.clone());
                    continue;
                }
                // A place is released only if the Operation is really gone: the cache may not have it yet.
                asked += 1;
                known = refresh(pass, &inner.operations, &key).await?.map(|operation| Arc::new(FullObject(operation)));
            }
            if let Some(operation) = known {
                operations.insert(key, operation);
            }
        }
        Ok(Some(Found { policy, operations, unsure }))
    }

    fn validate(&self, found: &Found) -> Result<Found, Infallible> {
        Ok(found.clone())
    }

    fn decide(&self, found: &Found, now: Timestamp) -> Option<OperationPolicyStatus> {
        let counted: Vec<_> = found.operations.iter().map(|(key, op)| counted(key, op)).collect();
        let policy = &found.policy.0;
        let old = policy.status.clone().unwrap_or_default();
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let seen = gate::Policy { name, generation: policy.metadata.generation, spec: &policy.spec, status: &old };
        let new = gate::keep_true(seen, &counted, &found.unsure, now);
        (policy.status.is_none() || new != old).then_some(new)
    }

    async fn act(
        &self,
        pass: &Pass,
        found: &Found,
        status: &Option<OperationPolicyStatus>,
    ) -> Result<(), JournalError> {
        let Some(status) = status else { return Ok(()) };
        let mut body = json!(status);
        // The type omits an empty list, and a merge patch would keep the old one.
        body["holders"] = json!(status.holders);
        merge(pass, &self.journal.inner.policies, &found.policy.0, body).await
    }

    async fn report(&self, _: &Pass, found: &Found, _: Outcome<'_, Self>) -> Result<Next, Infallible> {
        Ok(if found.unsure.is_empty() { Next::AwaitChange } else { Next::After(ASK_NEXT_AFTER) })
    }
}

fn holders(policy: &CachedPolicy) -> impl Iterator<Item = &fleetwright_api::Holder> {
    policy.0.status.iter().flat_map(|status| &status.holders)
}

fn counted<'a>(key: &'a Key, operation: &'a CachedOperation) -> ActiveOperation<'a> {
    ActiveOperation {
        name: &key.name,
        uid: operation.0.metadata.uid.as_deref().unwrap_or_default(),
        type_: &operation.0.spec.type_,
        labels: &operation.0.spec.target.labels,
        phase: phase(operation),
    }
}

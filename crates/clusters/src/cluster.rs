//! The controller of clusters: the steps of a pass in their order.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_api::{CertificateStatus, Cluster, ClusterStatus, ControlPlaneComponent, names};
use fleetwright_kit::events::reference;
use fleetwright_kit::journal::Journal;
use fleetwright_kit::{Budget, Controller, JsonPatch, Key, Next, Outcome, Pass, StepError, WriteError};
use fleetwright_plan::cluster::networks::MetaNetworks;
use fleetwright_plan::cluster::release::DeletionHold;
use fleetwright_plan::cluster::{self, Decision, Names, Observed, StatusInputs, UnchangedComponent};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::accepted::{AcceptedSpecs, Refused};
use crate::access::{self, Account};
use crate::act::ActResult;
use crate::caches::Caches;
use crate::deletion::{self, DeletionState};
use crate::deletion_operation::DeletionGrant;
use crate::errors::{ActError, Invalid, Refusal};
use crate::extension_tasks::ExtensionInstaller;
use crate::joined::JoinedMachines;
use crate::members::MemberQueries;
use crate::meters::Meters;
use crate::namespace_claim::CreatedNamespaces;
use crate::proofs::ProofRunner;
use crate::secrets::SecretError;
use crate::survey::Surveys;
use crate::trust_queries;
use crate::view::{ClusterView, NamespaceView};

/// Interval at which a missing Secret is read again.
const SECRETS_RETRY_AFTER: Duration = Duration::from_secs(30);
/// Interval at which the operator checks whether the Secrets of a namespace were listed.
const RIGHTS_RETRY_AFTER: Duration = Duration::from_millis(200);

/// Reconciles clusters.
pub struct Clusters {
    pub caches: Caches,
    pub provers: ProofRunner,
    pub members: MemberQueries,
    pub journal: Journal,
    pub extenders: ExtensionInstaller,
    pub askers: JoinedMachines,
    pub followers: trust_queries::TrustQueries,
    pub look_after: Duration,
    /// Image of the pods that take snapshots.
    pub image: &'static str,
    /// Account of the operator.
    pub account: Option<Account>,
    pub surveys: Surveys,
    pub meters: Meters,
    /// Networks of the meta cluster, from the operator's flags.
    pub networks: &'static MetaNetworks,
    /// Components that were as declared in the last pass.
    pub rested: Mutex<HashMap<Key, UnchangedComponents>>,
    /// When the status of each cluster was last written.
    pub wrote: Mutex<HashMap<Key, Timestamp>>,
    /// Accepted specs of Clusters whose declared spec is invalid.
    pub kept: Mutex<AcceptedSpecs>,
    /// Namespaces that this process created.
    pub created: Mutex<CreatedNamespaces>,
}

/// Components of a cluster whose objects are all as declared.
pub type UnchangedComponents = BTreeMap<ControlPlaneComponent, UnchangedComponent>;

/// State of a cluster in a pass.
pub struct Found {
    pub(crate) cluster: Arc<ClusterView>,
    pub(crate) names: Names,
    /// The uids of the package versions that the spec is accepted with, by their names.
    pub(crate) packages: BTreeMap<String, String>,
    /// Whether the package version in the spec exists.
    packaged: bool,
    /// Input of the decision about the control plane; `None` if there can be no decision: the package version is missing, the cluster is being
    /// deleted, the namespace belongs to another Cluster, or the operator may not read it.
    pub(crate) observed: Option<Box<Observed>>,
    /// Expiry of each certificate.
    certificates: Vec<CertificateStatus>,
    /// The other Cluster that already has the namespace.
    taken_by: Option<String>,
    /// A namespace with the labels of this Cluster's namespace that is not recorded as its own.
    unrecorded: Option<Arc<NamespaceView>>,
    ending: Option<DeletionState>,
    hold: Option<DeletionHold>,
    /// Why the gate refused the deletion of a cluster that is reconciled until the gate grants it.
    pub(crate) gated: Option<String>,
    /// Why the spec of `cluster` is not the declared one.
    pub(crate) refused: Option<Refused>,
    /// Whether the operator may read and write in its namespace, if there is one.
    admitted: bool,
}

/// Input of the decision.
pub struct Valid {
    found: Arc<Found>,
}

/// Result of the act.
pub enum Done {
    /// The cluster is gone.
    Gone,
    /// The namespace with that uid is the one that this process created.
    Recorded(String),
    /// The cluster exists.
    Kept {
        /// Why the gate does not grant the release of its machines, or its deletion, if it does not.
        waits: Option<String>,
        /// When to run the next pass, besides the decision's own time.
        next: Option<Timestamp>,
        /// Error of a Secret that the cluster refers to: only the steps that need the Secret are skipped.
        trouble: Option<SecretError>,
    },
}

impl Done {
    pub(crate) const KEPT: Self = Self::Kept { waits: None, next: None, trouble: None };
}

/// The decision about a cluster, or about its deletion.
pub enum Choice {
    /// Reconcile the cluster.
    Keep(Box<Decision>, Box<ClusterStatus>),
    /// Change nothing except the status.
    Paused {
        /// The status to write.
        status: Box<ClusterStatus>,
        /// When to run the next pass.
        next: Option<Timestamp>,
        /// Components whose objects are all as declared, if they were compared.
        rested: Option<UnchangedComponents>,
    },
    /// Handle only the machines that block the deletion: the package version of the cluster is missing.
    HoldDeletion(DeletionHold),
    /// Delete the cluster.
    Delete(DeletionState),
    /// Add the finalizer before everything else.
    Finalize,
    /// Record the namespace, which has the labels of the cluster's namespace.
    Claim(Arc<NamespaceView>),
    /// Get the rights in the cluster's namespace, or wait until its Secrets are listed.
    Admit,
}

impl Controller for Clusters {
    const NAME: &'static str = crate::NAME;
    /// Reads: signing authorities, the sealed copy of keys and its seal key, a namespace that may exist, the keys of a store and of snapshots, and
    /// Secrets in the spec, new ones twice. For a snapshot, its key, the sealed keys that go into it, and the copy with its seal key. Writes: all
    /// objects of the first step of a new cluster, the key of its snapshots with its copy, the sealed keys for snapshots, the Operation that releases
    /// machines, the accepted spec, and the status. Also the calls of the journal for an act on a member of etcd, a restore, objects of an extension
    /// in either cluster, machines and the deletion, each with its policy, with reads of the operator's certificate and of a pod. Also volumes that
    /// grow, with their StatefulSet. 10 of the writes are for policies besides the one of etcd.
    const BUDGET: Budget =
        Budget { reads: 28 + 6 * Journal::BUDGET.reads + 5, writes: 44 + 6 * Journal::BUDGET.writes + 13 };

    type Found = Arc<Found>;
    type Valid = Valid;
    type Decision = Choice;
    type Done = Done;
    type DereferenceError = std::convert::Infallible;
    type ValidateError = Invalid;
    type ActError = ActError;
    type ReportError = WriteError;

    fn about(&self, key: &Key, found: Option<&Arc<Found>>) -> ObjectReference {
        reference::<Cluster>(key, found.and_then(|found| found.cluster.0.metadata.uid.as_deref()))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Arc<Found>>, std::convert::Infallible> {
        let key = pass.key();
        let Some(cluster) = self.caches.clusters.get(key) else {
            self.provers.forget(key);
            self.members.forget(key);
            self.extenders.forget(key);
            self.askers.forget(key);
            self.followers.forget(key);
            self.surveys.forget(key);
            self.rested().remove(key);
            self.wrote().remove(key);
            self.forget_accepted(key);
            self.created().remove(key);
            return Ok(None);
        };
        let names = self.caches.names(&cluster);
        // Read once: a namespace that appears between two decisions must not be deleted by the one and be missing for the other.
        let namespace = self.caches.namespace(&names);
        let here = namespace.as_ref().is_some_and(|namespace| !namespace.ending);
        let admitted = !here || access::is_admitted(&self.caches, &names);
        // Only the cache of the namespace knows the existing copies.
        let lacks = if here && admitted { self.lacks(pass, &names, &cluster.0).await } else { None };
        let (cluster, packages, refused) = self.acted_on(key, &names, cluster, lacks);
        let package = self.package(key, &cluster.0.spec.package_version);
        // No control plane is created from a spec that was never accepted.
        let package = package.filter(|_| refused.as_ref().is_none_or(|refused| refused.instead.is_some()));
        let (answer, namespace) = (self.askers.answer(key), namespace.as_deref());
        let hold = deletion::deletion_hold(&self.caches, answer.as_ref(), namespace, &names, &cluster, pass.now());
        // A deletion that has deleted something is not stopped by machines. One that only started, such as before a pause, is.
        let deletes = namespace.is_some_and(|namespace| self.deletion_runs(&cluster, namespace))
            && deletion::has_deleted(&self.caches, &names, &cluster);
        let hold = hold.filter(|_| !deletes);
        let (taken_by, unrecorded) = (self.caches.taken_by(&names), self.caches.unrecorded(&names));
        let packaged = package.is_some();
        let ending = deletion::ending(&self.caches, namespace, &names, &cluster);
        let deletable = namespace.filter(|_| ending.as_ref().is_some_and(DeletionState::deletes));
        let gated = deletable.filter(|_| packaged && admitted && taken_by.is_none());
        let gated = gated.filter(|_| !deletion::has_started(&self.caches, &names, &cluster));
        let gated = gated.and_then(|namespace| self.refused_deletion(&cluster, namespace));
        let ending = ending.filter(|_| hold.is_none() && gated.is_none());
        let observable = package.filter(|_| admitted && ending.is_none() && taken_by.is_none());
        let (observed, certificates) = match observable {
            Some(package) => {
                let (observed, certificates) = self.observe(&names, &cluster, &package, pass.now());
                (Some(Box::new(observed)), certificates)
            }
            None => (None, Vec::new()),
        };
        Ok(Some(Arc::new(Found {
            cluster,
            names,
            packages,
            packaged,
            observed,
            certificates,
            taken_by,
            unrecorded,
            ending,
            hold,
            gated,
            refused,
            admitted,
        })))
    }

    fn validate(&self, found: &Arc<Found>) -> Result<Valid, Invalid> {
        // A deletion changes only the cluster's own namespace.
        if found.ending.is_none()
            && let Some(other) = &found.taken_by
        {
            return Err(Invalid::Taken { namespace: found.names.namespace.clone(), other: other.clone() });
        }
        // A deletion needs no package version, and a paused cluster needs none to stay unchanged.
        let needs_none = deletion::paused(&found.cluster) || found.ending.is_some() || found.hold.is_some();
        if found.packaged || needs_none {
            return Ok(Valid { found: Arc::clone(found) });
        }
        let why = found.refused.as_ref().map(|refused| refused.why.clone());
        Err(why.unwrap_or_else(|| Invalid::NoPackage(found.cluster.0.spec.package_version.clone())))
    }

    fn decide(&self, valid: &Valid, now: Timestamp) -> Choice {
        let found = &valid.found;
        // Nothing is read or changed there while the deletion is paused.
        if !found.admitted && !deletion::paused(&found.cluster) {
            return Choice::Admit;
        }
        if let Some(ending) = &found.ending {
            return Choice::Delete(ending.clone());
        }
        if deletion::paused(&found.cluster) {
            return match found.observed.as_ref().filter(|observed| observed.namespace.is_some()) {
                Some(observed) => choose(found, observed, now),
                None => {
                    let generation = found.cluster.0.metadata.generation;
                    let status = Box::new(cluster::deletion_paused(&found.status(), generation, now));
                    Choice::Paused { status, next: None, rested: None }
                }
            };
        }
        let finalizers = found.cluster.0.metadata.finalizers.iter().flatten();
        let finalized = finalizers.clone().any(|name| name == names::CLUSTER_FINALIZER);
        // Nothing is created for a paused cluster, so no object needs the protection of a finalizer.
        if !finalized && !found.cluster.0.spec.paused && found.gated.is_none() {
            return Choice::Finalize;
        }
        if let Some(namespace) = found.unrecorded.as_ref().filter(|_| !found.cluster.0.spec.paused) {
            return Choice::Claim(Arc::clone(namespace));
        }
        match (&found.observed, &found.hold) {
            (Some(observed), _) => choose(found, observed, now),
            (None, Some(hold)) => Choice::HoldDeletion(hold.clone()),
            (None, None) => Choice::Finalize,
        }
    }

    async fn act(&self, pass: &Pass, valid: &Valid, choice: &Choice) -> Result<Done, ActError> {
        let found = &valid.found;
        match choice {
            Choice::Delete(ending) => self.delete(pass, found, ending).await,
            Choice::Finalize => {
                let patch = JsonPatch::add_finalizer(&found.cluster.0.metadata, names::CLUSTER_FINALIZER);
                pass.writer().json_patch(&self.caches.clusters, pass.key(), patch).await?;
                Ok(Done::KEPT)
            }
            Choice::Claim(namespace) => self.claim(pass, found, namespace).await,
            Choice::Admit => {
                if !found.cluster.0.spec.paused {
                    access::bind(&self.caches, pass, &found.names, self.account).await?;
                }
                Ok(Done::KEPT)
            }
            Choice::Paused { rested, .. } => {
                self.remember_unchanged(pass.key(), found, rested.as_ref());
                self.stop_tasks(pass.key());
                Ok(Done::KEPT)
            }
            Choice::Keep(decision, _) => {
                self.remember_unchanged(pass.key(), found, Some(&decision.rested));
                if decision.namespace {
                    return Ok(self.namespace(pass, found).await?.map_or(Done::KEPT, Done::Recorded));
                }
                // Before the other steps, of which one may fail. A refused write of the Operation does not stop them.
                let mut refused = Refusal::default();
                let again = match (&found.gated, &found.hold) {
                    (Some(_), None) => refused.noted(self.ask_to_delete(pass, found).await)?.flatten(),
                    _ => None,
                };
                if matches!(again, Some(DeletionGrant::Granted | DeletionGrant::Ended(_))) {
                    return Ok(Done::KEPT);
                }
                let kept = self.keep(pass, found, decision).await?;
                let waits = self.held(pass, found, found.hold.as_ref()).await?;
                let ActResult { trouble, next, refusal } = kept;
                let again = match again {
                    Some(DeletionGrant::Waits(_, again)) => again,
                    _ => None,
                };
                let next = next.into_iter().chain(again).min();
                match refused.0.or(refusal.0) {
                    Some(refusal) => {
                        let (refusal, trouble) = (Box::new(refusal), trouble.map(Box::new));
                        Err(ActError::Incomplete { refusal, next, trouble })
                    }
                    None => Ok(Done::Kept { waits, next, trouble }),
                }
            }
            Choice::HoldDeletion(hold) => {
                let waits = self.held(pass, found, Some(hold)).await?;
                Ok(Done::Kept { waits, next: None, trouble: None })
            }
        }
    }

    async fn report(&self, pass: &Pass, found: &Arc<Found>, outcome: Outcome<'_, Self>) -> Result<Next, WriteError> {
        let (status, next) = match outcome {
            Outcome::Done { done: Done::Gone, .. } => return Ok(Next::AwaitChange),
            Outcome::Done { done: Done::Recorded(uid), .. } => {
                let (namespace, namespace_uid) = (Some(found.names.namespace.clone()), Some(uid.clone()));
                (ClusterStatus { namespace, namespace_uid, ..found.status() }, None)
            }
            Outcome::Done {
                decision: Choice::Keep(decision, status),
                done: Done::Kept { waits, next, trouble },
                ..
            } => {
                let status = waits.as_ref().map_or_else(|| (**status).clone(), |why| gated(status, why));
                let next = decision.next.into_iter().chain(*next).min();
                // People's Secrets are in no cache.
                let awaits = trouble.is_some() || found.refused.as_ref().is_some_and(Refused::awaits_secret);
                let again = pass.now().checked_add(SECRETS_RETRY_AFTER).ok().filter(|_| awaits);
                let next = next.into_iter().chain(again).min();
                match (found.refusal(), trouble) {
                    (Some((reason, why)), _) => (found.not_accepted(&status, reason, &why, pass.now()), next),
                    (None, Some(error)) if found.gated.is_none() => {
                        (found.not_accepted(&status, error.reason(), &error.to_string(), pass.now()), next)
                    }
                    (None, _) => (status, next),
                }
            }
            Outcome::Done { decision: Choice::HoldDeletion(hold), .. } => {
                let before = found.cluster.0.status.clone().unwrap_or_default();
                let (reason, generation) = (names::reasons::MACHINES_JOINED, found.cluster.0.metadata.generation);
                let status = hold
                    .message
                    .as_ref()
                    .map(|why| cluster::failed_pass_status(&before, reason, why, generation, pass.now()));
                (status.unwrap_or(before), hold.next)
            }
            Outcome::Done { decision: Choice::Paused { status, next, .. }, .. } => match found.refusal() {
                Some((reason, why)) => (found.not_accepted(status, reason, &why, pass.now()), *next),
                None => ((**status).clone(), *next),
            },
            Outcome::Done { decision: Choice::Delete(_), done: Done::Kept { waits: Some(why), next, .. }, .. } => {
                let (reason, generation) = (names::reasons::DELETION_PENDING, found.cluster.0.metadata.generation);
                (cluster::failed_pass_status(&found.status(), reason, why, generation, pass.now()), *next)
            }
            Outcome::Done { decision: Choice::Delete(_), done: Done::Kept { next, .. }, .. } => {
                (deletion::status(&found.cluster, pass.now()), *next)
            }
            Outcome::Done { decision: Choice::Finalize, .. } => return Ok(Next::AwaitChange),
            Outcome::Done { decision: Choice::Claim(_), done: Done::Kept { next, .. }, .. } => {
                return Ok(next.map_or(Next::AwaitChange, Next::At));
            }
            Outcome::Done { decision: Choice::Admit, .. } => {
                // The end of the pause triggers a pass, and so does a RoleBinding that a person creates.
                let waits = found.cluster.0.spec.paused && !access::is_bound(&self.caches, &found.names);
                let again = if waits { None } else { pass.now().checked_add(RIGHTS_RETRY_AFTER).ok() };
                return Ok(again.map_or(Next::AwaitChange, Next::At));
            }
            // All other steps were done: the observed state and the decision are recorded beside the refusal.
            Outcome::Failed { trouble, decision: Some(Choice::Keep(decision, status)), .. }
                if trouble.source.downcast_ref::<ActError>().is_some_and(ActError::is_refusal) =>
            {
                let again = trouble.source.downcast_ref::<ActError>().and_then(ActError::next);
                (
                    self.failed_pass_status(found, status, trouble, pass.now()),
                    decision.next.into_iter().chain(again).min(),
                )
            }
            Outcome::Failed { trouble, .. } => {
                let before = found.cluster.0.status.clone().unwrap_or_default();
                (self.failed_pass_status(found, &before, trouble, pass.now()), None)
            }
        };
        let later = self.write(pass, found, &status).await?;
        let next = next.into_iter().chain(later).min();
        Ok(next.map_or(Next::AwaitChange, Next::At))
    }
}

impl Found {
    /// The spec that is reconciled.
    pub(crate) fn spec(&self) -> &fleetwright_api::ClusterSpec {
        &self.cluster.0.spec
    }

    /// The last written status.
    pub(crate) fn status(&self) -> ClusterStatus {
        self.cluster.0.status.clone().unwrap_or_default()
    }

    /// The uid of the Cluster.
    pub(crate) fn uid(&self) -> &str {
        self.cluster.0.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Why the declared spec is not reconciled, unless the cluster is being deleted, which needs none.
    fn refusal(&self) -> Option<(&'static str, String)> {
        let deleted = self.hold.is_some() || self.gated.is_some() || deletion::paused(&self.cluster);
        let refused = self.refused.as_ref().filter(|_| !deleted)?;
        Some((refused.why.reason(), refused.message()))
    }

    fn not_accepted(&self, status: &ClusterStatus, reason: &str, why: &str, now: Timestamp) -> ClusterStatus {
        let before = self.cluster.0.status.clone().unwrap_or_default();
        cluster::not_accepted(status, &before, (reason, why), self.cluster.0.metadata.generation, now)
    }
}

impl Clusters {
    pub(crate) fn rested(&self) -> MutexGuard<'_, HashMap<Key, UnchangedComponents>> {
        // No panic leaves the map half changed, so a poisoned lock is usable.
        self.rested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wrote(&self) -> MutexGuard<'_, HashMap<Key, Timestamp>> {
        self.wrote.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decides the steps for a cluster, and its status.
fn choose(found: &Found, observed: &Observed, now: Timestamp) -> Choice {
    let mut decision = cluster::decide(observed, now);
    decision.next = decision.next.into_iter().chain(found.hold.as_ref().and_then(|hold| hold.next)).min();
    let outlook = StatusInputs {
        generation: found.cluster.0.metadata.generation,
        certificates: found.certificates.clone(),
        paused: observed.spec.paused,
        deletion_paused: deletion::paused(&found.cluster),
        protected: deletion::protected(&found.cluster),
        held: match found.hold.as_ref().and_then(|hold| hold.message.clone()) {
            Some(why) => Some((names::reasons::MACHINES_JOINED, why)),
            None => found.gated.clone().map(|why| (names::reasons::DELETION_PENDING, why)),
        },
    };
    let status = Box::new(cluster::status(observed, &decision, &outlook, now));
    match observed.spec.paused {
        true => Choice::Paused { status, next: decision.next, rested: Some(decision.rested) },
        false => Choice::Keep(Box::new(decision), status),
    }
}

/// The status of a cluster whose machines block its deletion, with the reason why they are not released yet.
fn gated(status: &ClusterStatus, why: &str) -> ClusterStatus {
    let mut status = status.clone();
    for one in status.conditions.iter_mut().filter(|one| one.reason == names::reasons::MACHINES_JOINED) {
        one.message = format!("{}. The machines are not released yet: {why}", one.message);
    }
    status
}

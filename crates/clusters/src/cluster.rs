//! The controller of clusters: what was decided is done and written down.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_api::{
    CertificateStatus, Cluster, ClusterStatus, ControlPlaneComponent, FinishingUpgrade, Status, condition, names,
};
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::journal::{Journal, JournalError};
use fleetwright_kit::{Budget, Controller, Key, Next, Outcome, Pass, Remedy, StepError, WriteError};
use fleetwright_plan::cluster::arguments::Unknown;
use fleetwright_plan::cluster::borrowed::borrowed;
use fleetwright_plan::cluster::limits::{Violation, summary};
use fleetwright_plan::cluster::networks::{MetaNetworks, Network};
use fleetwright_plan::cluster::objects::{Kind, Object};
use fleetwright_plan::cluster::release::Hold;
use fleetwright_plan::cluster::{self, AtRest, Decision, Names, Observed, Outlook, certificates, extensions};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::ResourceExt;
use kube::api::{ObjectMeta, PropagationPolicy};
use serde_json::json;

use crate::accepted::{Kept, Refused};
use crate::access::{self, Account};
use crate::borrow;
use crate::ending::{self, Ending};
use crate::extend::Extenders;
use crate::eyes::Eyes;
use crate::follow;
use crate::joined::Askers;
use crate::members::Members;
use crate::meters::Meters;
use crate::prove::Provers;
use crate::secrets::{Authorities, Maker, SecretError};
use crate::snapshots;
use crate::survey::Surveys;
use crate::view::ClusterView;

/// A Secret that could not be had is asked for again after this long.
const SECRETS_AGAIN: Duration = Duration::from_secs(30);
/// Whether the Secrets of a namespace were read is asked again after this long.
const ADMITTED_AGAIN: Duration = Duration::from_millis(200);

/// Keeps clusters.
pub struct Clusters {
    pub eyes: Eyes,
    pub provers: Provers,
    pub members: Members,
    pub journal: Journal,
    pub extenders: Extenders,
    pub askers: Askers,
    pub followers: follow::Askers,
    pub look_after: Duration,
    /// Of pods that take snapshots.
    pub image: &'static str,
    /// That the operator runs as.
    pub account: Option<Account>,
    pub surveys: Surveys,
    pub meters: Meters,
    /// The networks of the meta cluster, by the operators' flags.
    pub networks: &'static MetaNetworks,
    /// Components that were as they should be in the last pass.
    pub rested: Mutex<HashMap<Key, Rested>>,
    /// Accepted specs of Clusters whose declared spec is invalid.
    pub kept: Mutex<Kept>,
}

/// Components of a cluster whose objects are all as declared.
pub type Rested = BTreeMap<ControlPlaneComponent, AtRest>;

/// Everything that is known of a cluster in a pass.
pub struct Found {
    cluster: Arc<ClusterView>,
    pub(crate) names: Names,
    /// The package version that the spec names exists.
    packaged: bool,
    /// What a decision about its control plane is made from; none if none can be made: there is no package version, the cluster is being deleted, its
    /// namespace is another Cluster's, or the operator may not read there.
    observed: Option<Box<Observed>>,
    /// When each of its certificates ends.
    certificates: Vec<CertificateStatus>,
    /// The other Cluster whose namespace this one would have.
    taken_by: Option<String>,
    ending: Option<Ending>,
    hold: Option<Hold>,
    /// Why the spec of `cluster` is not the declared one.
    pub(crate) refused: Option<Refused>,
    /// Whether the operator may read and write in its namespace, if there is one.
    admitted: bool,
}

/// What the decision is made from.
pub struct Valid {
    found: Arc<Found>,
}

/// What is wrong with what is declared.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Invalid {
    /// The package version is not there.
    #[error(
        "spec.packageVersion names {0}, which is not in the namespace: make that ClusterPackageVersion, or name another"
    )]
    NoPackage(String),
    /// An argument that the component does not know in this version. A component that has it does not start.
    #[error("{0}")]
    Argument(Unknown),
    /// The namespace is another Cluster's.
    #[error(
        "Namespace {namespace} of the control plane is of Cluster {other}, and nothing was done in it: give this Cluster another name, or delete Cluster {other} first"
    )]
    Taken { namespace: String, other: String },
    /// ClusterLimits of the namespace do not allow it.
    #[error("{}", summary(.0))]
    Limits(Vec<Violation>),
    /// What its API servers connect to at these addresses would be in the meta cluster.
    #[error(
        "{field} {network} overlaps {meta}, a network of the meta cluster: delete this Cluster, of which nothing was made, and create it with another network, such as {free}"
    )]
    Overlap {
        /// Which field.
        field: &'static str,
        /// What it says.
        network: String,
        /// The network of the meta cluster.
        meta: Network,
        /// One that overlaps none.
        free: String,
    },
}

impl StepError for Invalid {
    fn reason(&self) -> &'static str {
        match self {
            Self::NoPackage(_) => names::reasons::NO_PACKAGE_VERSION,
            Self::Argument(_) => names::reasons::BAD_ARGUMENT,
            Self::Taken { .. } => names::reasons::NAMESPACE_TAKEN,
            Self::Limits(_) => names::reasons::LIMIT_EXCEEDED,
            Self::Overlap { .. } => names::reasons::NETWORK_OVERLAPS,
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::NoPackage(_) | Self::Argument(_) | Self::Limits(_) | Self::Overlap { .. } => Remedy::Person,
            // What happens to that namespace wakes the other Cluster.
            Self::Taken { .. } => Remedy::Wait(Duration::from_secs(30)),
        }
    }
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// It was not written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// A key or certificate was not made.
    #[error("{0}")]
    Secret(#[from] SecretError),
    /// An Operation was not driven on.
    #[error("{0}")]
    Journal(#[from] JournalError),
}

impl StepError for ActError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Secret(error) => error.reason(),
            Self::Journal(error) => error.reason(),
        }
    }

    fn remedy(&self) -> Remedy {
        let remedy = match self {
            Self::Write(error) => error.remedy(),
            Self::Secret(error) => error.remedy(),
            Self::Journal(error) => error.remedy(),
        };
        match remedy {
            // A refusal may be mended by a role or a quota, which nobody watches.
            Remedy::Person => Remedy::Wait(Duration::from_secs(30)),
            remedy => remedy,
        }
    }
}

impl ActError {
    /// The API server refuses what was written, and will again.
    fn is_refusal(&self) -> bool {
        let refused = |error: &WriteError| matches!(error, WriteError::Refused { .. });
        match self {
            Self::Write(error)
            | Self::Secret(SecretError::Write(error))
            | Self::Journal(JournalError::Write(error)) => refused(error),
            Self::Secret(_) | Self::Journal(_) => false,
        }
    }
}

/// The first write of a pass that the API server refused.
#[derive(Default)]
struct Refusal(Option<ActError>);

impl Refusal {
    /// A refusal concerns what was written and nothing else: the pass goes on. Any other error ends it.
    fn noted<T>(&mut self, outcome: Result<T, impl Into<ActError>>) -> Result<Option<T>, ActError> {
        match outcome.map_err(Into::into) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_refusal() => {
                self.0.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// What came of doing what was decided.
#[derive(Default)]
struct Acted {
    /// A Secret that the cluster refers to cannot be read: that stops what needs it, and nothing else.
    trouble: Option<SecretError>,
    /// When to look again, besides what was decided.
    next: Option<Timestamp>,
    refusal: Refusal,
}

/// What was done.
pub enum Done {
    /// The cluster is gone.
    Gone,
    /// It is still there.
    Kept {
        /// Why the gate does not let its machines be released, if it does not.
        waits: Option<String>,
        /// When to look at it again, besides what was decided.
        next: Option<Timestamp>,
        /// A Secret that it refers to cannot be had: that stops what needs it, and nothing else.
        trouble: Option<SecretError>,
    },
}

impl Done {
    const KEPT: Self = Self::Kept { waits: None, next: None, trouble: None };
}

/// What was decided: what to do with a cluster, or with its end.
pub enum Choice {
    /// It is to be as declared.
    Keep(Box<Decision>, Box<ClusterStatus>),
    /// Nothing is done to it; this is how it is.
    Paused {
        /// The status to write.
        status: Box<ClusterStatus>,
        /// When to look again.
        next: Option<Timestamp>,
        /// Components whose objects are all as declared, if they were compared.
        rested: Option<Rested>,
    },
    /// It is to be deleted, machines hold it, and its package version is not there: nothing else is done to it.
    Held(Hold),
    /// It is to go.
    End(Ending),
    /// First of all it must be ours to end.
    Finalize,
    /// The operator has not its rights in the cluster's namespace yet, or has not read the Secrets there.
    Admit,
}

impl Controller for Clusters {
    const NAME: &'static str = crate::NAME;
    /// Reads: authorities that sign, the sealed copy of keys and what seals it, a namespace that may be there, the keys of a store and of snapshots, and
    /// Secrets that it refers to. For a snapshot, its key, the sealed keys that go into it, and the copy that these are of with what opens it. Writes:
    /// everything of a new cluster's step, the key of its snapshots with its copy, the sealed keys for snapshots, the Operation that releases machines,
    /// the accepted spec, and the status. And what the journal needs for an act on a member of etcd, a restore, objects of an extension and machines, each with its policy,
    /// with reads of the operator's certificate and of a pod. And volumes that grow, with their StatefulSet. Of the writes, 9 are policies that came after the one of etcd.
    const BUDGET: Budget =
        Budget { reads: 24 + 4 * Journal::BUDGET.reads + 5, writes: 44 + 4 * Journal::BUDGET.writes + 12 };

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
        let Some(cluster) = self.eyes.clusters.get(key) else {
            self.provers.forget(key);
            self.members.forget(key);
            self.extenders.forget(key);
            self.askers.forget(key);
            self.followers.forget(key);
            self.surveys.forget(key);
            self.rested().remove(key);
            self.forget_accepted(key);
            return Ok(None);
        };
        let names = self.eyes.names(&cluster);
        let (cluster, refused) = self.acted_on(key, &names, cluster);
        let package = self.eyes.packages.get(&Key::new(&key.namespace, &cluster.0.spec.package_version));
        // Nothing is made of a spec that was never accepted.
        let package = package.filter(|_| refused.as_ref().is_none_or(|refused| refused.instead.is_some()));
        let hold = ending::hold(&self.eyes, self.askers.answer(key).as_ref(), &names, &cluster, pass.now());
        let ending = ending::ending(&self.eyes, &names, &cluster).filter(|_| hold.is_none());
        let here = self.eyes.namespace(&names).is_some_and(|namespace| !namespace.ending);
        let admitted = !here || access::is_admitted(&self.eyes, &names);
        let taken_by = self.eyes.taken_by(&names);
        let packaged = package.is_some();
        let observable = package.filter(|_| admitted && ending.is_none() && taken_by.is_none());
        let (observed, certificates) = match observable {
            Some(package) => {
                let (observed, certificates) = self.observe(&names, &cluster, &package, pass.now());
                (Some(Box::new(observed)), certificates)
            }
            None => (None, Vec::new()),
        };
        let found =
            Found { cluster, names, packaged, observed, certificates, taken_by, ending, hold, refused, admitted };
        Ok(Some(Arc::new(found)))
    }

    fn validate(&self, found: &Arc<Found>) -> Result<Valid, Invalid> {
        // What goes touches only a namespace of its own.
        if found.ending.is_none()
            && let Some(other) = &found.taken_by
        {
            return Err(Invalid::Taken { namespace: found.names.namespace.clone(), other: other.clone() });
        }
        // What goes needs no package version, and what is paused none to stay as it is.
        let needs_none = ending::paused(&found.cluster) || found.ending.is_some() || found.hold.is_some();
        if found.packaged || needs_none {
            return Ok(Valid { found: Arc::clone(found) });
        }
        let why = found.refused.as_ref().map(|refused| refused.why.clone());
        Err(why.unwrap_or_else(|| Invalid::NoPackage(found.cluster.0.spec.package_version.clone())))
    }

    fn decide(&self, valid: &Valid, now: Timestamp) -> Choice {
        let found = &valid.found;
        if !found.admitted {
            return Choice::Admit;
        }
        if let Some(ending) = &found.ending {
            return Choice::End(ending.clone());
        }
        if ending::paused(&found.cluster) {
            return match found.observed.as_ref().filter(|observed| observed.namespace) {
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
        // Nothing is made for a paused cluster, so there is nothing that a finalizer would have to wait for.
        if !finalized && !found.cluster.0.spec.paused {
            return Choice::Finalize;
        }
        match (&found.observed, &found.hold) {
            (Some(observed), _) => choose(found, observed, now),
            (None, Some(hold)) => Choice::Held(hold.clone()),
            (None, None) => Choice::Finalize,
        }
    }

    async fn act(&self, pass: &Pass, valid: &Valid, choice: &Choice) -> Result<Done, ActError> {
        let found = &valid.found;
        match choice {
            Choice::End(ending) => {
                self.close_all(pass).await?;
                let gone = ending::end(&self.eyes, pass, &found.names, &found.cluster, ending).await?;
                Ok(if gone { Done::Gone } else { Done::KEPT })
            }
            Choice::Finalize => {
                let meta = &found.cluster.0.metadata;
                let test = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": meta.resource_version });
                let add = match &meta.finalizers {
                    Some(_) => {
                        json!({ "op": "add", "path": "/metadata/finalizers/-", "value": names::CLUSTER_FINALIZER })
                    }
                    None => json!({ "op": "add", "path": "/metadata/finalizers", "value": [names::CLUSTER_FINALIZER] }),
                };
                pass.writer().json_patch(&self.eyes.clusters, pass.key(), json!([test, add])).await?;
                Ok(Done::KEPT)
            }
            Choice::Admit => {
                if !found.cluster.0.spec.paused {
                    access::bind(&self.eyes, pass, &found.names, self.account).await?;
                }
                Ok(Done::KEPT)
            }
            Choice::Paused { rested, .. } => {
                self.remember_rested(pass.key(), found, rested.as_ref());
                self.halt(pass.key());
                Ok(Done::KEPT)
            }
            Choice::Keep(decision, _) => {
                self.remember_rested(pass.key(), found, Some(&decision.rested));
                let kept = self.keep(pass, found, decision).await?;
                let waits = self.held(pass, found, found.hold.as_ref()).await?;
                match kept.refusal.0 {
                    Some(error) => Err(error),
                    None => Ok(Done::Kept { waits, next: kept.next, trouble: kept.trouble }),
                }
            }
            Choice::Held(hold) => {
                let waits = self.held(pass, found, Some(hold)).await?;
                Ok(Done::Kept { waits, next: None, trouble: None })
            }
        }
    }

    async fn report(&self, pass: &Pass, found: &Arc<Found>, outcome: Outcome<'_, Self>) -> Result<Next, WriteError> {
        let (status, next) = match outcome {
            Outcome::Done { done: Done::Gone, .. } => return Ok(Next::Rest),
            Outcome::Done {
                decision: Choice::Keep(decision, status),
                done: Done::Kept { waits, next, trouble },
                ..
            } => {
                let status = waits.as_ref().map_or_else(|| (**status).clone(), |why| gated(status, why));
                let next = decision.next.into_iter().chain(*next).min();
                // No cache has the Secrets of people.
                let again = trouble.as_ref().and_then(|_| pass.now().checked_add(SECRETS_AGAIN).ok());
                let next = next.into_iter().chain(again).min();
                match (found.refusal(), trouble) {
                    (Some((reason, why)), _) => (found.not_accepted(&status, reason, &why, pass.now()), next),
                    (None, Some(error)) => {
                        (found.not_accepted(&status, error.reason(), &error.to_string(), pass.now()), next)
                    }
                    (None, None) => (status, next),
                }
            }
            Outcome::Done { decision: Choice::Held(hold), .. } => {
                let before = found.cluster.0.status.clone().unwrap_or_default();
                let (reason, generation) = (names::reasons::MACHINES_JOINED, found.cluster.0.metadata.generation);
                let status =
                    hold.message.as_ref().map(|why| cluster::troubled(&before, reason, why, generation, pass.now()));
                (status.unwrap_or(before), hold.next)
            }
            Outcome::Done { decision: Choice::Paused { status, next, .. }, .. } => match found.refusal() {
                Some((reason, why)) => (found.not_accepted(status, reason, &why, pass.now()), *next),
                None => ((**status).clone(), *next),
            },
            Outcome::Done { decision: Choice::End(_), .. } => (ending::status(&found.cluster, pass.now()), None),
            Outcome::Done { decision: Choice::Finalize, .. } => return Ok(Next::Rest),
            Outcome::Done { decision: Choice::Admit, .. } => {
                return Ok(pass.now().checked_add(ADMITTED_AGAIN).map_or(Next::Rest, Next::At));
            }
            // All the rest was done: what was found and decided is written down beside the refusal.
            Outcome::Failed { trouble, decision: Some(Choice::Keep(decision, status)), .. }
                if trouble.source.downcast_ref::<ActError>().is_some_and(ActError::is_refusal) =>
            {
                (self.troubled(found, status, trouble, pass.now()), decision.next)
            }
            Outcome::Failed { trouble, .. } => {
                let before = found.cluster.0.status.clone().unwrap_or_default();
                (self.troubled(found, &before, trouble, pass.now()), None)
            }
        };
        self.write(pass, found, &status).await?;
        Ok(next.map_or(Next::Rest, Next::At))
    }
}

impl Found {
    /// What is acted on.
    pub(crate) fn spec(&self) -> &fleetwright_api::ClusterSpec {
        &self.cluster.0.spec
    }

    /// What was written about it last.
    pub(crate) fn status(&self) -> ClusterStatus {
        self.cluster.0.status.clone().unwrap_or_default()
    }

    /// The uid of the Cluster.
    pub(crate) fn uid(&self) -> &str {
        self.cluster.0.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Why the declared spec is not acted on, unless the cluster is being deleted, which needs none.
    fn refusal(&self) -> Option<(&'static str, String)> {
        let refused = self.refused.as_ref().filter(|_| self.hold.is_none() && !ending::paused(&self.cluster))?;
        Some((refused.why.reason(), refused.message()))
    }

    fn not_accepted(&self, status: &ClusterStatus, reason: &str, why: &str, now: Timestamp) -> ClusterStatus {
        let before = self.cluster.0.status.clone().unwrap_or_default();
        cluster::not_accepted(status, &before, (reason, why), self.cluster.0.metadata.generation, now)
    }
}

impl Clusters {
    /// A network of a new cluster that is one of the meta cluster as well. One that is there already is kept: its networks cannot be changed, and its
    /// API servers do not reach the meta cluster by them.
    pub(crate) fn overlap(&self, names: &Names, cluster: &Cluster) -> Option<Invalid> {
        let status = cluster.status.as_ref();
        let made = status.is_some_and(|status| status.package_version.is_some());
        if made || self.eyes.namespace(names).is_some() {
            return None;
        }
        let network = &cluster.spec.network;
        let own = [("spec.network.pods", &network.pods), ("spec.network.services", &network.services)];
        own.into_iter().find_map(|(field, own)| {
            let meta = self.networks.overlapped(own)?;
            let all = (64..=127).map(|number| format!("10.{number}.0.0/16"));
            let mut free = all.filter(|one| *one != network.pods && *one != network.services);
            let free = free.find(|one| self.networks.overlapped(one).is_none());
            let free = free.unwrap_or_else(|| "one that you use nowhere else".to_owned());
            Some(Invalid::Overlap { field, network: own.clone(), meta, free })
        })
    }

    pub(crate) fn rested(&self) -> MutexGuard<'_, HashMap<Key, Rested>> {
        // Every change is whole before the lock is given back.
        self.rested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what was decided about machines that hold the deletion.
    async fn held(&self, pass: &Pass, found: &Found, hold: Option<&Hold>) -> Result<Option<String>, ActError> {
        match hold {
            Some(hold) => self.hold(pass, found, hold).await,
            None => Ok(None),
        }
    }

    /// Stops background tasks that change something. A proof that runs already is left to delete the object that it made.
    fn halt(&self, key: &Key) {
        self.members.0.only(key, |_| false);
        self.extenders.halt(key);
        self.askers.0.only(key, |_| false);
    }

    /// Remembers which components are as declared, so that the next pass does not compare their objects again if nothing changed.
    fn remember_rested(&self, key: &Key, found: &Found, rested: Option<&Rested>) {
        let known = found.observed.as_ref().map(|observed| &observed.rested);
        if let Some(rested) = rested.filter(|rested| known != Some(*rested)) {
            self.rested().insert(key.clone(), rested.clone());
        }
    }

    /// Does what was decided. A write that the API server refuses stops nothing else.
    async fn keep(&self, pass: &Pass, found: &Found, decision: &Decision) -> Result<Acted, ActError> {
        let names = &found.names;
        if decision.namespace {
            self.namespace(pass, names).await?;
            return Ok(Acted::default());
        }
        let mut refusal = Refusal::default();
        refusal.noted(self.record_accepted(pass, found).await)?;
        let recorded = found.cluster.0.status.as_ref().map(|status| &status.keys[..]).unwrap_or_default();
        let maker = Maker { eyes: &self.eyes, pass, names, spec: &found.cluster.0.spec, recorded };
        let done = refusal.noted(maker.keys(&decision.keys).await)?;
        for key in done.iter().flat_map(|()| &decision.keys.restore) {
            let message = format!(
                "Secret {}/{} was missing: recreated with the same key from the sealed copy",
                names.namespace,
                key.secret()
            );
            self.tell(pass, found, Level::Warning, "KeyRestored", &message).await;
        }
        let copied = borrow::copy(&self.eyes, pass, names, &borrowed(&found.cluster.0.spec)).await;
        let mut trouble = refusal.noted(copied)?.flatten();
        refusal.noted(maker.turn(&decision.rotate).await)?;
        let mut authorities = Authorities::new();
        for (wanted, why) in &decision.certificates {
            if refusal.noted(maker.certificate_of(wanted, &mut authorities).await)?.is_none() {
                continue;
            }
            self.meters.certificate(why.as_str());
            if *why != certificates::Due::Missing {
                let message = format!("the certificate {} was made anew: {}", wanted.secret, why.as_str());
                self.tell(pass, found, Level::Normal, "CertificateReplaced", &message).await;
            }
        }
        for (object, place) in &decision.apply {
            let applied = refusal.noted(self.apply(pass, names, object).await)?;
            if let (Some(()), Some(place)) = (applied, place)
                && found
                    .cluster
                    .0
                    .status
                    .as_ref()
                    .is_some_and(|status| status.observed_generation == found.cluster.0.metadata.generation)
            {
                let message = format!(
                    "{} {} was not as declared at {place}, and was put right",
                    object.kind.as_str(),
                    object.name
                );
                self.meters.repaired(object.kind.as_str());
                self.tell(pass, found, Level::Normal, "Repaired", &message).await;
            }
        }
        if let Some(replica) = &decision.replace {
            let key = Key::new(&names.namespace, &replica.name);
            match pass.writer().delete(&self.eyes.pods, &key, &replica.uid, &replica.version).await {
                Err(WriteError::Gone(_)) => {}
                deleted => {
                    refusal.noted(deleted)?;
                }
            }
        }
        if let Some(uid) = &decision.orphan {
            let etcd = Key::new(&names.namespace, ControlPlaneComponent::Etcd.binary());
            refusal.noted(pass.writer().delete_uid::<StatefulSet>(&etcd, uid, PropagationPolicy::Orphan).await)?;
        }
        for (claim, size) in &decision.expand {
            let key = Key::new(&names.namespace, &claim.name);
            let patch = json!([
                { "op": "test", "path": "/metadata/uid", "value": claim.uid },
                { "op": "replace", "path": "/spec/resources/requests/storage", "value": size },
            ]);
            refusal.noted(pass.writer().json_patch(&self.eyes.claims, &key, patch).await)?;
        }
        let mut next = refusal.noted(self.change_members(pass, found, decision).await)?.flatten();
        refusal.noted(self.heal(pass, found, &decision.heal).await)?;
        match decision.preflight.ask.as_ref().or(decision.soak.ask.as_ref()) {
            Some(ask) => self.surveys.begin(pass.key(), names, ask),
            None if !decision.preflight.begins && !decision.soak.surveyed => self.surveys.forget(pass.key()),
            None => {}
        }
        match &decision.follow {
            Some(follow) => self.followers.begin(pass.key(), names, follow),
            None if decision.rotation.is_none() => self.followers.forget(pass.key()),
            None => {}
        }
        for prover in &decision.prove {
            self.provers.begin(pass.key(), names, prover);
        }
        let again = refusal.noted(self.drive_restore(pass, found, decision.restore.as_ref()).await)?.flatten();
        next = next.into_iter().chain(again).min();
        for task in &decision.tidy {
            refusal.noted(snapshots::tidy(&self.eyes, pass, names, task).await)?;
        }
        let status = found.cluster.0.status.clone().unwrap_or_default();
        let (eyes, spec) = (&self.eyes, &found.cluster.0.spec);
        let supplies = snapshots::Supplies { eyes, pass, names, spec, status: &status };
        let restored = supplies.restore(decision).await;
        let taken = match &decision.snapshot {
            Some(taking) => supplies.take(taking).await,
            None => Ok(()),
        };
        for done in [restored, taken] {
            match done {
                Err(ActError::Secret(error)) if error.needs_person() => trouble = trouble.or(Some(error)),
                done => drop(refusal.noted(done)?),
            }
        }
        let again = self.extend(pass, found, &decision.extensions, &mut refusal).await?;
        next = next.into_iter().chain(again).min();
        Ok(Acted { trouble, next, refusal })
    }

    /// What is brought is written down first: whatever happens then, nothing of it is forgotten.
    async fn extend(
        &self,
        pass: &Pass,
        found: &Found,
        choice: &extensions::Choice,
        refusal: &mut Refusal,
    ) -> Result<Option<Timestamp>, ActError> {
        let names = &found.names;
        if let Some(inventory) = &choice.inventory
            && refusal.noted(self.apply(pass, names, inventory).await)?.is_none()
        {
            return Ok(None);
        }
        for (object, place) in choice.apply.iter().take(extensions::MOST_IN_META) {
            let applied = refusal.noted(self.apply(pass, names, object).await)?;
            if let (Some(()), Some(place)) = (applied, place) {
                let (kind, name) = (object.kind.as_str(), &object.name);
                let message = format!("{kind} {name} was not as its extension says at {place}, and was put right");
                self.tell(pass, found, Level::Normal, "Repaired", &message).await;
            }
        }
        for (kind, name, uid) in choice.prune.iter().take(extensions::MOST_IN_META) {
            refusal.noted(self.take_away(pass, &Key::new(&names.namespace, name), *kind, uid).await)?;
        }
        self.extenders.begin(pass.key(), names, &choice.servers, &choice.work);
        for message in self.extenders.repaired(pass.key()) {
            self.tell(pass, found, Level::Normal, "Repaired", &message).await;
        }
        Ok(refusal.noted(self.prune(pass, found, choice).await)?.flatten())
    }

    async fn take_away(&self, pass: &Pass, key: &Key, kind: Kind, uid: &str) -> Result<(), WriteError> {
        use k8s_openapi::api::{
            apps::v1 as apps, core::v1 as core, networking::v1 as networking, policy::v1 as policy,
        };
        let (writer, policy) = (pass.writer(), PropagationPolicy::Background);
        match kind {
            Kind::ConfigMap => writer.delete_uid::<core::ConfigMap>(key, uid, policy).await,
            Kind::Service => writer.delete_uid::<core::Service>(key, uid, policy).await,
            Kind::NetworkPolicy => writer.delete_uid::<networking::NetworkPolicy>(key, uid, policy).await,
            Kind::PodDisruptionBudget => writer.delete_uid::<policy::PodDisruptionBudget>(key, uid, policy).await,
            Kind::StatefulSet => writer.delete_uid::<apps::StatefulSet>(key, uid, policy).await,
            Kind::Deployment => writer.delete_uid::<apps::Deployment>(key, uid, policy).await,
        }
        .map(drop)
    }

    async fn namespace(&self, pass: &Pass, names: &Names) -> Result<(), WriteError> {
        let mut labels = names.labels();
        for level in ["enforce", "audit", "warn"] {
            labels.insert(format!("pod-security.kubernetes.io/{level}"), "restricted".to_owned());
        }
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(names.namespace.clone()), labels: Some(labels), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let created = pass.writer().create_in(&self.eyes.namespaces, &namespace).await?;
        if created && self.account.is_none() {
            self.eyes.secrets.begins_empty(&names.namespace);
        }
        if !created && self.eyes.namespace(names).is_none() {
            let what = format!("Namespace {}", names.namespace);
            let message = format!(
                "it is there and does not belong to this cluster: rename the Cluster, or label the namespace {}={} and {}={} to give it up to it",
                names::FLEET,
                names.fleet,
                names::CLUSTER,
                names.name
            );
            return Err(WriteError::Refused { what, code: 409, message });
        }
        access::bind(&self.eyes, pass, names, self.account).await
    }

    pub(crate) async fn apply(&self, pass: &Pass, names: &Names, object: &Object) -> Result<(), WriteError> {
        let (key, writer, eyes) = (Key::new(&names.namespace, &object.name), pass.writer(), &self.eyes);
        match object.kind {
            Kind::ConfigMap => writer.apply(&eyes.config_maps, &key, &object.body).await,
            Kind::Service => writer.apply(&eyes.services, &key, &object.body).await,
            Kind::NetworkPolicy => writer.apply(&eyes.policies, &key, &object.body).await,
            Kind::PodDisruptionBudget => writer.apply(&eyes.budgets, &key, &object.body).await,
            Kind::StatefulSet => writer.apply(&eyes.stateful_sets, &key, &object.body).await,
            Kind::Deployment => writer.apply(&eyes.deployments, &key, &object.body).await,
        }
    }

    /// A pass that failed says why; what was known before stays.
    fn troubled(
        &self,
        found: &Found,
        known: &ClusterStatus,
        trouble: &fleetwright_kit::Trouble,
        now: Timestamp,
    ) -> ClusterStatus {
        let generation = found.cluster.0.metadata.generation;
        let mut status = cluster::troubled(known, trouble.reason, &trouble.source.to_string(), generation, now);
        // It is refused since the first time.
        let old = found.cluster.0.status.as_ref().and_then(|old| condition(&old.conditions, names::ACCEPTED));
        let first = status.conditions.iter_mut().find(|one| one.type_ == names::ACCEPTED);
        if let (Some(old), Some(now)) = (old.filter(|old| old.status == Status::False), first) {
            now.last_transition_time = old.last_transition_time;
        }
        status
    }

    async fn write(&self, pass: &Pass, found: &Found, new: &ClusterStatus) -> Result<(), WriteError> {
        let old = found.cluster.0.status.clone().unwrap_or_default();
        let cached = self.eyes.clusters.get(pass.key());
        let known = cached.as_ref().unwrap_or(&found.cluster);
        if let Some(field) = overtaken(&old, known.0.status.as_ref()) {
            let what = format!("status of Cluster {}", pass.key());
            let message = format!("another process recorded status.{field} meanwhile: this is decided again");
            return Err(WriteError::Conflict { what, message });
        }
        let version = known.0.resource_version().unwrap_or_default();
        let (current, desired) = (json!(old), json!(new));
        if !pass.writer().apply_status(&self.eyes.clusters, pass.key(), &version, &current, desired).await? {
            return Ok(());
        }
        self.meters.told(&old, new);
        for (kind, reason, event) in TOLD {
            let of = |status: &ClusterStatus| {
                let found = fleetwright_api::condition(&status.conditions, kind).cloned();
                found.filter(|one| one.status == Status::False && reason.is_none_or(|reason| one.reason == reason))
            };
            if let Some(now) = of(new)
                && of(&old).is_none_or(|old| old.reason != now.reason)
            {
                self.tell(pass, found, Level::Warning, event, &now.message).await;
            }
        }
        match (&old.finishing, &new.finishing) {
            (None, Some(finishing)) => {
                let FinishingUpgrade { package_version, emulated, .. } = finishing;
                let message = format!(
                    "the soak of {package_version} is over: the components restart without emulation of {emulated}; only restoring a snapshot leads back"
                );
                self.tell(pass, found, Level::Normal, "SoakEnded", &message).await;
            }
            (Some(finishing), None) => {
                let message =
                    format!("{} works without emulation of {}", finishing.package_version, finishing.emulated);
                self.tell(pass, found, Level::Normal, "UpgradeFinished", &message).await;
            }
            _ => {}
        }
        if old.phase != new.phase
            && let Some(phase) = new.phase
        {
            let ready = fleetwright_api::condition(&new.conditions, names::READY);
            let message = ready.map(|ready| ready.message.clone()).unwrap_or_default();
            self.tell(pass, found, Level::Normal, phase.as_str(), &message).await;
        }
        if let Some(failed) = &new.failed
            && old.failed != new.failed
        {
            let message = format!("{} is taken back: {}", failed.package_version, failed.message);
            self.tell(pass, found, Level::Warning, "TakenBack", &message).await;
        }
        Ok(())
    }

    pub(crate) async fn tell(&self, pass: &Pass, found: &Found, level: Level, reason: &'static str, message: &str) {
        let about = reference::<Cluster>(pass.key(), found.cluster.0.metadata.uid.as_deref());
        pass.events().publish(&about, level, reason, message, message).await;
    }
}

/// Decides what to do with a cluster, and what its status says then.
fn choose(found: &Found, observed: &Observed, now: Timestamp) -> Choice {
    let mut decision = cluster::decide(observed, now);
    decision.next = decision.next.into_iter().chain(found.hold.as_ref().and_then(|hold| hold.next)).min();
    let outlook = Outlook {
        generation: found.cluster.0.metadata.generation,
        certificates: found.certificates.clone(),
        paused: observed.spec.paused,
        deletion_paused: ending::paused(&found.cluster),
        protected: ending::protected(&found.cluster),
        held: found.hold.as_ref().and_then(|hold| hold.message.clone()),
    };
    let status = Box::new(cluster::status(observed, &decision, &outlook, now));
    match observed.spec.paused {
        true => Choice::Paused { status, next: decision.next, rested: Some(decision.rested) },
        false => Choice::Keep(Box::new(decision), status),
    }
}

/// The first field of the status that another process has recorded since it was decided on. What was decided from an old record must not set back the new
/// one: a stage of a restore or rotation would be repeated, and a soak that has ended would seem to go on.
fn overtaken(decided_on: &ClusterStatus, now: Option<&ClusterStatus>) -> Option<&'static str> {
    let none = ClusterStatus::default();
    let (old, now) = (decided_on, now.unwrap_or(&none));
    let fields = [
        ("packageVersion", old.package_version != now.package_version),
        ("previous", old.previous != now.previous),
        ("emulates", old.emulates != now.emulates),
        ("soakSince", old.soak_since != now.soak_since),
        ("finishing", old.finishing != now.finishing),
        ("progress", old.progress != now.progress),
        ("failed", old.failed != now.failed),
        ("etcd", old.etcd != now.etcd),
        ("replaced", old.replaced != now.replaced),
        ("keys", old.keys != now.keys),
        ("authorities", old.authorities != now.authorities),
        ("rotation", old.rotation != now.rotation),
        ("lastSnapshot", old.last_snapshot != now.last_snapshot),
        ("snapshotted", old.snapshotted != now.snapshotted),
        ("restored", old.restored != now.restored),
        ("restoring", old.restoring != now.restoring),
        ("restoreFollowed", old.restore_followed != now.restore_followed),
        ("retried", old.retried != now.retried),
    ];
    fields.into_iter().find(|(_, differs)| *differs).map(|(field, _)| field)
}

/// The status of a cluster whose machines hold it, with why they are not released yet.
fn gated(status: &ClusterStatus, why: &str) -> ClusterStatus {
    let mut status = status.clone();
    for one in status.conditions.iter_mut().filter(|one| one.reason == names::reasons::MACHINES_JOINED) {
        one.message = format!("{}. They are not released yet: {why}", one.message);
    }
    status
}

/// The event about a soak that does not end though its time is over, or would not.
const SOAK_HELD_BACK: &str = "SoakEndHeldBack";

/// Conditions that are told by an event when they become false: for which reason, and that of the event.
const TOLD: [(&str, Option<&str>, &str); 17] = [
    (names::ACCEPTED, Some(names::reasons::MACHINES_JOINED), names::reasons::MACHINES_JOINED),
    (names::ACCEPTED, Some(names::reasons::LIMIT_EXCEEDED), names::reasons::LIMIT_EXCEEDED),
    (names::CERTIFICATES_VALID, Some(names::reasons::AUTHORITY_LOST), names::reasons::AUTHORITY_LOST),
    (names::CERTIFICATES_VALID, Some(names::reasons::AUTHORITY_CHANGED), names::reasons::AUTHORITY_CHANGED),
    (
        names::CERTIFICATES_VALID,
        Some(names::reasons::SERVICE_ACCOUNT_KEY_LOST),
        names::reasons::SERVICE_ACCOUNT_KEY_LOST,
    ),
    (
        names::CERTIFICATES_VALID,
        Some(names::reasons::SERVICE_ACCOUNT_KEY_CHANGED),
        names::reasons::SERVICE_ACCOUNT_KEY_CHANGED,
    ),
    (names::UPGRADABLE, None, "UpgradeHeldBack"),
    (names::FINISHABLE, Some(names::reasons::FINISH_FAILED), names::reasons::FINISH_FAILED),
    (names::FINISHABLE, Some(names::reasons::REMOVED_APIS_IN_USE), SOAK_HELD_BACK),
    (names::FINISHABLE, Some(names::reasons::CALLERS_UNKNOWN), SOAK_HELD_BACK),
    (names::FINISHABLE, Some(names::reasons::KUBELET_TOO_OLD), SOAK_HELD_BACK),
    (names::FINISHABLE, Some(names::reasons::KUBELET_TOO_NEW), SOAK_HELD_BACK),
    (names::FINISHABLE, Some(names::reasons::KUBELETS_UNKNOWN), SOAK_HELD_BACK),
    (names::FINISHABLE, Some(names::reasons::NO_ROOM), SOAK_HELD_BACK),
    (names::FINISHABLE, Some(names::reasons::NO_SNAPSHOT), SOAK_HELD_BACK),
    (names::SNAPSHOTS_RECENT, Some(names::reasons::SNAPSHOT_FAILED), names::reasons::SNAPSHOT_FAILED),
    (names::SNAPSHOTS_RECENT, Some(names::reasons::OVERDUE), names::reasons::OVERDUE),
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_status_that_was_decided_on_an_old_record_is_not_written() {
        let record: Value = json!({
            "packageVersion": "v1.37", "previous": "v1.36", "emulates": "1.36", "soakSince": "2026-11-17T12:00:00Z",
            "soakUntil": "2026-11-18T12:00:00Z",
            "finishing": {"packageVersion": "v1.37", "emulated": "1.36", "since": "2026-11-17T12:00:00Z"},
            "progress": {"step": "a", "since": "2026-11-17T12:00:00Z"},
            "failed": {"packageVersion": "v1.38", "at": "2026-11-17T12:00:00Z", "message": "b"},
            "etcd": {"members": 3, "serving": 3},
            "replaced": {"component": "apiserver", "name": "c", "uid": "d", "at": "2026-11-17T12:00:00Z", "times": 1, "message": ""},
            "keys": [{"name": "ca", "fingerprint": "e", "digest": "f"}], "authorities": "g",
            "rotation": {"value": "h", "phase": "Signing", "since": "2026-11-17T12:00:00Z"},
            "lastSnapshot": {"name": "i", "at": "2026-11-17T12:00:00Z"}, "snapshotted": "j",
            "restored": {"snapshot": "k", "at": "2026-11-17T12:00:00Z", "dataOf": "2026-11-17T12:00:00Z"},
            "restoring": {"snapshot": "l", "stage": "Starting", "began": "2026-11-17T12:00:00Z"},
            "restoreFollowed": "m", "retried": "n",
        });
        let status = |value: &Value| serde_json::from_value::<ClusterStatus>(value.clone()).unwrap();
        let now = status(&record);
        assert_eq!(overtaken(&now, Some(&now)), None);
        assert!(overtaken(&now, None).is_some() && overtaken(&ClusterStatus::default(), None).is_none());
        for field in record.as_object().unwrap().keys() {
            let mut old = record.clone();
            old.as_object_mut().unwrap().remove(field);
            // That follows from another field and the specification, and no decision is made from it.
            let expected = Some(field.as_str()).filter(|field| *field != "soakUntil");
            assert_eq!(overtaken(&status(&old), Some(&now)), expected);
        }
        // What is only observed may change meanwhile.
        let seen = ClusterStatus { waiting_for: Some("another".to_owned()), ..now.clone() };
        assert_eq!(overtaken(&seen, Some(&now)), None);
    }
}

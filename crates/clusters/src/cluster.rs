//! The controller of clusters: what was decided is done and written down.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_api::{
    CertificateStatus, Cluster, ClusterPackageVersion, ClusterStatus, ControlPlaneComponent, Status, names,
};
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::{Budget, Controller, Key, Next, Outcome, Pass, Remedy, StepError, Whole, WriteError};
use fleetwright_plan::cluster::arguments::{Unknown, unknown};
use fleetwright_plan::cluster::borrowed::borrowed;
use fleetwright_plan::cluster::certificates::Authority;
use fleetwright_plan::cluster::objects::{Kind, Object};
use fleetwright_plan::cluster::preflight::Known;
use fleetwright_plan::cluster::snapshots::Backup;
use fleetwright_plan::cluster::{
    self, AtRest, Decision, Names, Outlook, Replica, Seen, certificates, datastore, extensions,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::json;

use crate::borrow;
use crate::ending::{self, Ending, Hold};
use crate::extend::Extenders;
use crate::eyes::{Eyes, Papers};
use crate::follow;
use crate::joined::Askers;
use crate::mend::Menders;
use crate::meters::Meters;
use crate::prove::Provers;
use crate::secrets::{Maker, SecretError};
use crate::snapshots;
use crate::survey::Surveys;
use crate::view::ClusterView;

/// Keeps clusters.
pub struct Clusters {
    pub eyes: Eyes,
    pub provers: Provers,
    pub menders: Menders,
    pub extenders: Extenders,
    pub askers: Askers,
    pub followers: follow::Askers,
    pub look_after: Duration,
    /// Of pods that take snapshots.
    pub image: &'static str,
    pub surveys: Surveys,
    pub meters: Meters,
    /// Components that were as they should be in the last pass.
    pub rested: Mutex<Rested>,
}

/// Of each cluster.
pub type Rested = HashMap<Key, BTreeMap<ControlPlaneComponent, AtRest>>;

/// Everything that is known of a cluster in a pass.
pub struct Found {
    cluster: Arc<ClusterView>,
    pub(crate) names: Names,
    package: Option<Arc<Whole<ClusterPackageVersion>>>,
    ending: Option<Ending>,
    hold: Option<Hold>,
}

/// What the decision is made from.
pub struct Valid {
    found: Arc<Found>,
}

/// What is wrong with what is declared.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The package version is not there.
    #[error(
        "spec.packageVersion names {0}, which is not in the namespace: make that ClusterPackageVersion, or name another"
    )]
    NoPackage(String),
    /// It is to be deleted, and machines hold it.
    #[error("{0}")]
    Held(String),
    /// An argument that the component does not know in this version. A component that has it does not start.
    #[error("{0}")]
    Argument(Unknown),
}

impl StepError for Invalid {
    fn reason(&self) -> &'static str {
        match self {
            Self::NoPackage(_) => names::reasons::NO_PACKAGE_VERSION,
            Self::Held(_) => names::reasons::MACHINES_JOINED,
            Self::Argument(_) => names::reasons::BAD_ARGUMENT,
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::NoPackage(_) | Self::Argument(_) => Remedy::Person,
            // Nobody tells when they go.
            Self::Held(_) => Remedy::Wait(Duration::from_secs(10)),
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
}

impl StepError for ActError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Secret(error) => error.reason(),
        }
    }

    fn remedy(&self) -> Remedy {
        let remedy = match self {
            Self::Write(error) => error.remedy(),
            Self::Secret(error) => error.remedy(),
        };
        match remedy {
            // A refusal may be mended by a role or a quota, which nobody watches.
            Remedy::Person => Remedy::Wait(Duration::from_secs(30)),
            remedy => remedy,
        }
    }
}

/// What was decided: what to do with a cluster, or with its end.
pub enum Choice {
    /// It is to be as declared.
    Keep(Box<Decision>, Box<ClusterStatus>),
    /// Nothing is done to it; this is how it is.
    Paused(Box<ClusterStatus>, Option<Timestamp>),
    /// It is to go.
    End(Ending),
    /// First of all it must be ours to end.
    Finalize,
}

impl Controller for Clusters {
    const NAME: &'static str = crate::NAME;
    /// Reads: authorities that sign, a namespace that may be there, the keys of a store, and Secrets that it refers to. Writes: everything of a new cluster's step, and the status.
    const BUDGET: Budget = Budget { reads: 9, writes: 24 };

    type Found = Arc<Found>;
    type Valid = Valid;
    type Decision = Choice;
    type Done = bool;
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
            self.menders.forget(key);
            self.extenders.forget(key);
            self.askers.forget(key);
            self.followers.forget(key);
            self.surveys.forget(key);
            self.rested().remove(key);
            return Ok(None);
        };
        let names = Names::of(&key.namespace, &key.name);
        let package = self.eyes.packages.get(&Key::new(&key.namespace, &cluster.0.spec.package_version));
        let hold = ending::hold(&self.eyes, self.askers.answer(key).as_ref(), &names, &cluster, pass.now());
        if hold.as_ref().is_some_and(|hold| hold.ask) {
            self.askers.ask(key, &names, &self.eyes.servers(&names.namespace), cluster.0.spec.on_delete);
        }
        let ending = ending::ending(&self.eyes, &names, &cluster).filter(|_| hold.is_none());
        Ok(Some(Arc::new(Found { cluster, names, package, ending, hold })))
    }

    fn validate(&self, found: &Arc<Found>) -> Result<Valid, Invalid> {
        // What goes needs no package version.
        if found.package.is_none() && found.ending.is_none() {
            if let Some(message) = found.hold.as_ref().and_then(|hold| hold.message.clone()) {
                return Err(Invalid::Held(message));
            }
            return Err(Invalid::NoPackage(found.cluster.0.spec.package_version.clone()));
        }
        let spec = &found.cluster.0.spec;
        let has = found.cluster.0.status.as_ref().and_then(|status| status.package_version.as_ref());
        // Before a change of the version it is found by its preflight, and what is there is kept as it is.
        let changes = has.is_some_and(|has| *has != spec.package_version);
        if let Some(package) = found.package.as_ref().filter(|_| !changes && found.ending.is_none())
            && let Some(unknown) = unknown(spec, (&spec.package_version, &package.0.spec)).into_iter().next()
        {
            return Err(Invalid::Argument(unknown));
        }
        Ok(Valid { found: Arc::clone(found) })
    }

    fn decide(&self, valid: &Valid, now: Timestamp) -> Choice {
        let found = &valid.found;
        if let Some(ending) = &found.ending {
            return Choice::End(ending.clone());
        }
        let finalizers = found.cluster.0.metadata.finalizers.iter().flatten();
        if !finalizers.clone().any(|name| name == names::CLUSTER_FINALIZER) {
            return Choice::Finalize;
        }
        let Some(package) = &found.package else { return Choice::Finalize };
        self.choose(found, package, now)
    }

    async fn act(&self, pass: &Pass, valid: &Valid, choice: &Choice) -> Result<bool, ActError> {
        let found = &valid.found;
        match choice {
            Choice::End(ending) => Ok(ending::end(&self.eyes, pass, &found.names, &found.cluster, ending).await?),
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
                Ok(false)
            }
            Choice::Paused(..) => Ok(false),
            Choice::Keep(decision, _) => {
                self.keep(pass, found, decision).await?;
                Ok(false)
            }
        }
    }

    async fn report(&self, pass: &Pass, found: &Arc<Found>, outcome: Outcome<'_, Self>) -> Result<Next, WriteError> {
        let (status, next) = match outcome {
            Outcome::Done { done: true, .. } => return Ok(Next::Rest),
            Outcome::Done { decision: Choice::Keep(decision, status), .. } => ((**status).clone(), decision.next),
            Outcome::Done { decision: Choice::Paused(status, next), .. } => ((**status).clone(), *next),
            Outcome::Done { decision: Choice::End(_), .. } => (ending::status(&found.cluster, pass.now()), None),
            Outcome::Done { decision: Choice::Finalize, .. } => return Ok(Next::Rest),
            Outcome::Failed { trouble, .. } => (self.troubled(found, trouble, pass.now()), None),
        };
        self.write(pass, found, &status).await?;
        Ok(next.map_or(Next::Rest, Next::At))
    }
}

impl Clusters {
    fn rested(&self) -> MutexGuard<'_, Rested> {
        // Every change is whole before the lock is given back.
        self.rested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self, found: &Found, package: &Whole<ClusterPackageVersion>, now: Timestamp) -> Choice {
        let (spec, names) = (&found.cluster.0.spec, &found.names);
        let status = found.cluster.0.status.clone().unwrap_or_default();
        let key = Key::new(&names.fleet, &names.name);
        let (endpoint, addresses) = self.eyes.endpoint(names, &found.cluster);
        let mut wanted = certificates::wanted(names, spec, &addresses);
        wanted.extend(certificates::of_extensions(&package.0.spec));
        let papers = self.eyes.papers(names, wanted, spec.certificates.leaf_lifetime.0, now);
        let workloads = self.eyes.workloads(&names.namespace);
        let servers = workloads.get(&ControlPlaneComponent::Apiserver).map(|one| &one.replicas[..]).unwrap_or_default();
        let uids: Vec<_> = servers.iter().map(|replica| replica.uid.as_str()).collect();
        let proofs = self.provers.known(&key, &uids);
        let members = workloads.get(&ControlPlaneComponent::Etcd).map(|one| &one.replicas[..]).unwrap_or_default();
        let uids: Vec<_> = members.iter().map(|replica| replica.uid.as_str()).collect();
        let mendings = self.menders.known(&key, &uids);
        // Those of before, while it changes from one to another.
        let others: Vec<_> = workloads
            .values()
            .filter_map(|workload| workload.package.clone())
            .chain(status.package_version.clone())
            .chain(status.previous.clone())
            .filter_map(|name| self.eyes.packages.get(&Key::new(&names.fleet, &name)).map(|package| (name, package)))
            .collect();
        let packages = |name: &str| others.iter().find(|(known, _)| known == name).map(|(_, package)| &package.0.spec);
        let namespace = self.eyes.namespaces.get(&Key::cluster(&names.namespace));
        let object = |kind: Kind, name: &str| self.eyes.object(&names.namespace, kind, name);
        let print = |kind: Kind, name: &str| self.eyes.content(&names.namespace, kind, name, |object| object.print);
        let rested = self.rested().get(&key).cloned().unwrap_or_default();
        let Papers { authorities, anchors, service_account, due, due_next, ends } = papers;
        let (since, reports) = self.extenders.known(&key);
        let authority = self.eyes.secrets.get(&Key::new(&names.namespace, Authority::Cluster.secret()));
        let extensions = extensions::Known {
            labels: found.cluster.0.metadata.labels.clone().unwrap_or_default(),
            ca_bundle: authority.and_then(|authority| authority.trusts.as_deref().map(str::to_owned)),
            every: self.look_after,
            since: Some(since),
            reports,
        };
        let seen = Seen {
            names,
            spec,
            status: &status,
            generation: found.cluster.0.metadata.generation,
            retry: found.cluster.0.annotations().get(names::RETRY).map(String::as_str),
            package: (&spec.package_version, &package.0.spec),
            packages: &packages,
            namespace: namespace.is_some_and(|namespace| !namespace.ending),
            authorities,
            anchors,
            service_account,
            due,
            due_next,
            object: &object,
            print: &print,
            rested,
            workloads,
            proofs,
            mendings,
            backup: Backup {
                image: self.image,
                created: found.cluster.0.creation_timestamp().map_or(now, |time| time.0),
                generation: found.cluster.0.metadata.generation,
                asked: found.cluster.0.annotations().get(names::SNAPSHOT).map(String::as_str),
                tasks: self.eyes.tasks(&names.namespace),
            },
            endpoint,
            extensions,
            preflight: Known {
                survey: self.surveys.known(&key),
                overrides: found.cluster.0.annotations().get(names::OVERRIDE).cloned(),
            },
            followers: self.followers.known(&key),
        };
        let mut decision = cluster::decide(&seen, now);
        if decision.rested != seen.rested {
            self.rested().insert(key.clone(), decision.rested.clone());
        }
        decision.next = decision.next.into_iter().chain(found.hold.as_ref().and_then(|hold| hold.next)).min();
        let outlook = Outlook {
            generation: found.cluster.0.metadata.generation,
            certificates: ends.into_iter().map(|(name, not_after)| CertificateStatus { name, not_after }).collect(),
            paused: spec.paused,
            protected: ending::protected(&found.cluster),
            held: found.hold.as_ref().and_then(|hold| hold.message.clone()),
        };
        let new = cluster::status(&seen, &decision, &outlook, now);
        match spec.paused {
            true => Choice::Paused(Box::new(new), decision.next),
            false => Choice::Keep(Box::new(decision), Box::new(new)),
        }
    }

    async fn keep(&self, pass: &Pass, found: &Found, decision: &Decision) -> Result<(), ActError> {
        let names = &found.names;
        if decision.namespace {
            return Ok(self.namespace(pass, names).await?);
        }
        borrow::copy(&self.eyes, pass, names, &borrowed(&found.cluster.0.spec)).await?;
        let maker = Maker { eyes: &self.eyes, pass, names, spec: &found.cluster.0.spec };
        for authority in &decision.authorities {
            maker.authority(*authority).await?;
        }
        if decision.service_account {
            maker.service_account().await?;
        }
        for (authority, turn) in &decision.rotate {
            maker.turn(*authority, *turn).await?;
        }
        maker.certificates(decision.certificates.iter().map(|(wanted, _)| wanted)).await?;
        for (wanted, why) in &decision.certificates {
            self.meters.certificate(why.as_str());
            if *why != certificates::Due::Missing {
                let message = format!("the certificate {} was made anew: {}", wanted.secret, why.as_str());
                self.tell(pass, found, Level::Normal, "CertificateReplaced", &message).await;
            }
        }
        for (object, place) in &decision.apply {
            self.apply(pass, names, object).await?;
            if let Some(place) = place
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
                Ok(()) | Err(WriteError::Gone(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(suspect) = &decision.mend {
            self.menders.begin(pass.key(), names, suspect);
        }
        if let Some(member) = &decision.anew {
            self.anew(pass, found, member).await?;
        }
        self.heal(pass, found, &decision.heal).await?;
        match &decision.preflight.ask {
            Some(ask) => self.surveys.begin(pass.key(), names, ask),
            None if !decision.preflight.begins => self.surveys.forget(pass.key()),
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
        for task in &decision.tidy {
            snapshots::tidy(&self.eyes, pass, names, task).await?;
        }
        let policy = found.cluster.0.spec.snapshots.as_ref();
        let bucket = policy.and_then(|policy| policy.s3.as_ref());
        snapshots::restore(&self.eyes, pass, names, decision, bucket).await?;
        if let Some(taking) = &decision.snapshot {
            snapshots::take(&self.eyes, pass, names, taking, bucket).await?;
        }
        self.extend(pass, found, &decision.extensions).await
    }

    /// What is brought is written down first: whatever happens then, nothing of it is forgotten.
    async fn extend(&self, pass: &Pass, found: &Found, choice: &extensions::Choice) -> Result<(), ActError> {
        let names = &found.names;
        if let Some(inventory) = &choice.inventory {
            self.apply(pass, names, inventory).await?;
        }
        for (object, place) in choice.apply.iter().take(extensions::MOST_IN_META) {
            self.apply(pass, names, object).await?;
            if let Some(place) = place {
                let (kind, name) = (object.kind.as_str(), &object.name);
                let message = format!("{kind} {name} was not as its extension says at {place}, and was put right");
                self.tell(pass, found, Level::Normal, "Repaired", &message).await;
            }
        }
        for (kind, name) in choice.prune.iter().take(extensions::MOST_IN_META) {
            self.take_away(pass, &Key::new(&names.namespace, name), *kind).await?;
        }
        self.extenders.begin(pass.key(), names, &choice.servers, &choice.work);
        for message in self.extenders.repaired(pass.key()) {
            self.tell(pass, found, Level::Normal, "Repaired", &message).await;
        }
        Ok(())
    }

    /// Lets a member of etcd begin anew. Its volume goes first: what it holds is of a member that is none any more, and the pod would take it again.
    async fn anew(&self, pass: &Pass, found: &Found, member: &Replica) -> Result<(), WriteError> {
        let names = &found.names;
        let claim = Key::new(&names.namespace, &datastore::claim(&member.name));
        pass.writer().delete_by_name::<PersistentVolumeClaim>(&claim).await?;
        let key = Key::new(&names.namespace, &member.name);
        match pass.writer().delete(&self.eyes.pods, &key, &member.uid, &member.version).await {
            Ok(()) | Err(WriteError::Gone(_)) => {}
            Err(error) => return Err(error),
        }
        let message = format!(
            "{} has lost what it knew: the other members keep a place for it, and it begins anew with an empty volume",
            member.name
        );
        self.tell(pass, found, Level::Warning, "MemberReplaced", &message).await;
        Ok(())
    }

    async fn take_away(&self, pass: &Pass, key: &Key, kind: Kind) -> Result<(), WriteError> {
        use k8s_openapi::api::{
            apps::v1 as apps, core::v1 as core, networking::v1 as networking, policy::v1 as policy,
        };
        let writer = pass.writer();
        match kind {
            Kind::ConfigMap => writer.delete_by_name::<core::ConfigMap>(key).await,
            Kind::Service => writer.delete_by_name::<core::Service>(key).await,
            Kind::NetworkPolicy => writer.delete_by_name::<networking::NetworkPolicy>(key).await,
            Kind::PodDisruptionBudget => writer.delete_by_name::<policy::PodDisruptionBudget>(key).await,
            Kind::StatefulSet => writer.delete_by_name::<apps::StatefulSet>(key).await,
            Kind::Deployment => writer.delete_by_name::<apps::Deployment>(key).await,
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
        if !pass.writer().create_in(&self.eyes.namespaces, &namespace).await?
            && self.eyes.namespaces.get(&Key::cluster(&names.namespace)).is_none()
        {
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
        Ok(())
    }

    async fn apply(&self, pass: &Pass, names: &Names, object: &Object) -> Result<(), WriteError> {
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
    fn troubled(&self, found: &Found, trouble: &fleetwright_kit::Trouble, now: Timestamp) -> ClusterStatus {
        let before = found.cluster.0.status.clone().unwrap_or_default();
        cluster::troubled(
            &before,
            trouble.reason,
            &trouble.source.to_string(),
            found.cluster.0.metadata.generation,
            now,
        )
    }

    async fn write(&self, pass: &Pass, found: &Found, new: &ClusterStatus) -> Result<(), WriteError> {
        let old = found.cluster.0.status.clone().unwrap_or_default();
        let cached = self.eyes.clusters.get(pass.key());
        let version = cached.as_ref().and_then(|now| now.0.resource_version()).unwrap_or_default();
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

/// Conditions that are told by an event when they become false: for which reason, and that of the event.
const TOLD: [(&str, Option<&str>, &str); 4] = [
    (names::ACCEPTED, Some(names::reasons::MACHINES_JOINED), names::reasons::MACHINES_JOINED),
    (names::UPGRADABLE, None, "UpgradeHeldBack"),
    (names::SNAPSHOTS_RECENT, Some(names::reasons::SNAPSHOT_FAILED), names::reasons::SNAPSHOT_FAILED),
    (names::SNAPSHOTS_RECENT, Some(names::reasons::OVERDUE), names::reasons::OVERDUE),
];

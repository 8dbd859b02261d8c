//! A small operator that has parcels (ConfigMaps) carried to a yard, through the journal; and the shop it works in.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fleetwright_api::{Operation, OperationPhase, OperationPolicy, OperationStatus, Span, Target};
use fleetwright_kit::cache::FullObject;
use fleetwright_kit::events::reference;
use fleetwright_kit::journal::{Act, CallOutcome, Intent, Journal, JournalError, OperationKey, ProbeResult, Progress};
use fleetwright_kit::leader::Lease;
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::{
    Budget, Cache, Clock, Controller, Key, Next, Operator, Options, Outcome, Pass, Settings, Source,
};
use fleetwright_rig::{TestEnv, TestServer};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// How parcels are carried.
#[derive(Clone, Copy, PartialEq)]
pub enum Style {
    /// At once.
    Prompt,
    /// The act ends in a moment; until then the probe only knows that it runs.
    Slow,
    /// Until the yard's door is opened.
    Held,
    /// The parcel is lost on the way, and no probe can determine the outcome.
    Vanishes,
}

/// The world outside: what was carried into it, in order. Outlives every operator.
#[derive(Clone)]
pub struct DeliveredParcels {
    pub style: Style,
    inner: Arc<Mutex<DeliveryState>>,
    door: Arc<tokio::sync::watch::Sender<bool>>,
}

#[derive(Default)]
struct DeliveryState {
    /// The operations whose acts were started.
    started: Vec<OperationKey>,
    /// The parcels that arrived.
    arrived: Vec<String>,
    ended: Vec<OperationKey>,
    most_at_once: usize,
    progress: BTreeMap<String, Vec<Progress>>,
}

impl DeliveredParcels {
    pub fn new(style: Style) -> Self {
        Self { style, inner: Arc::default(), door: Arc::new(tokio::sync::watch::Sender::new(false)) }
    }

    fn inside(&self) -> MutexGuard<'_, DeliveryState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets in what is held.
    pub fn open_door(&self) {
        self.door.send_replace(true);
    }

    /// The acts that were started, in order.
    pub fn started(&self) -> Vec<OperationKey> {
        self.inside().started.clone()
    }

    /// The parcels that arrived, in order of their names.
    pub fn arrived(&self) -> Vec<String> {
        let mut arrived = self.inside().arrived.clone();
        arrived.sort();
        arrived
    }

    /// The most acts that were under way at the same time.
    pub fn most_at_once(&self) -> usize {
        self.inside().most_at_once
    }

    /// Brings in what is held, without those who carry it noticing.
    pub fn bring_in(&self, parcel: &str) {
        let under_way = self.started();
        self.end(&under_way[0], parcel);
    }

    /// The last progress that the driver got for a parcel.
    pub fn told(&self, parcel: &str) -> Option<Progress> {
        self.inside().progress.get(parcel).and_then(|told| told.last().cloned())
    }

    fn start(&self, id: &OperationKey) {
        let mut inside = self.inside();
        inside.started.push(id.clone());
        let under_way = inside.started.len() - inside.ended.len();
        inside.most_at_once = inside.most_at_once.max(under_way);
    }

    fn end(&self, id: &OperationKey, parcel: &str) {
        let mut inside = self.inside();
        inside.arrived.push(parcel.to_owned());
        inside.ended.push(id.clone());
    }
}

/// Carries one parcel.
struct Carry<'a> {
    porter: &'a Porter,
    intent: Intent,
    pass: &'a Pass,
}

impl Act for Carry<'_> {
    fn intent(&self) -> Intent {
        self.intent.clone()
    }

    async fn start(&self, id: &OperationKey) -> CallOutcome {
        let (yard, parcel) = (&self.porter.yard, &self.intent.target.name);
        yard.start(id);
        if let Some(look) = &self.porter.look {
            look(id.clone()).await;
        }
        match yard.style {
            Style::Prompt => {}
            Style::Slow => self.pass.clock().sleep(Duration::from_millis(20)).await,
            Style::Held => drop(yard.door.subscribe().wait_for(|open| *open).await),
            Style::Vanishes => return CallOutcome::Unknown("the porter did not come back".to_owned()),
        }
        yard.end(id, parcel);
        CallOutcome::Done(format!("{parcel} is in the yard"))
    }

    async fn probe(&self, id: &OperationKey) -> ProbeResult {
        let inside = self.porter.yard.inside();
        let started = inside.started.contains(id);
        match self.porter.yard.style {
            _ if inside.ended.contains(id) => ProbeResult::Succeeded("the yard has it".to_owned()),
            Style::Vanishes if started => ProbeResult::Unknowable("the yard keeps no list".to_owned()),
            // Two drivers without a lease: the other one may be just about to start.
            Style::Slow => ProbeResult::StillRunning,
            _ if started => ProbeResult::StillRunning,
            _ => ProbeResult::NeverStarted,
        }
    }
}

/// What an act does besides carrying.
pub type ActHook = Arc<dyn Fn(OperationKey) -> futures::future::BoxFuture<'static, ()> + Send + Sync>;

/// Has every ConfigMap with its label carried to the yard.
struct Porter {
    parcels: Cache<FullObject<ConfigMap>>,
    journal: Journal,
    yard: DeliveredParcels,
    look: Option<ActHook>,
}

impl Porter {
    /// Whether there is something to do: the yard lacks it, or an operation on it has not ended.
    fn wanted(&self, parcel: &str) -> bool {
        let under_way = |op: &Operation| op.status.as_ref().is_none_or(|status| !status.phase.ended());
        !self.yard.inside().arrived.iter().any(|arrived| arrived == parcel)
            || self.journal.of_target("ConfigMap", parcel).iter().any(|(_, op)| under_way(&op.0))
    }
}

impl Controller for Porter {
    const NAME: &'static str = "porter";
    const BUDGET: Budget = Journal::BUDGET;

    type Found = Arc<FullObject<ConfigMap>>;
    type Valid = Arc<FullObject<ConfigMap>>;
    type Decision = ();
    type Done = Option<Progress>;
    type DereferenceError = Infallible;
    type ValidateError = Infallible;
    type ActError = JournalError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, _: Option<&Self::Found>) -> ObjectReference {
        reference::<ConfigMap>(key, None)
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Self::Found>, Infallible> {
        Ok(self.parcels.get(pass.key()))
    }

    fn validate(&self, found: &Self::Found) -> Result<Self::Valid, Infallible> {
        Ok(found.clone())
    }

    fn decide(&self, _: &Self::Valid, _: Timestamp) {}

    async fn act(&self, pass: &Pass, parcel: &Self::Valid, (): &()) -> Result<Option<Progress>, JournalError> {
        let name = parcel.0.name_any();
        let mut data = parcel.0.data.clone().unwrap_or_default();
        if data.contains_key("withdrawn") {
            for (key, _) in self.journal.of_target("ConfigMap", &name) {
                self.journal.withdraw(pass, &key, "nobody wants it").await?;
            }
            return Ok(None);
        }
        if !self.wanted(&name) {
            return Ok(None);
        }
        let intent = Intent {
            type_: "Carry".to_owned(),
            target: Target { kind: "ConfigMap".to_owned(), name, labels: std::mem::take(&mut data) },
            reason: "somebody ordered it".to_owned(),
            fingerprint: "once".to_owned(),
            keep_for: Some(Span::minutes(60)),
        };
        let act = Carry { porter: self, intent: self.journal.next_attempt(&intent), pass };
        self.journal.drive(pass, &act).await.map(Some)
    }

    async fn report(&self, pass: &Pass, _: &Self::Found, outcome: Outcome<'_, Self>) -> Result<Next, Infallible> {
        let Outcome::Done { done: Some(progress), .. } = outcome else { return Ok(Next::AwaitChange) };
        let mut inside = self.yard.inside();
        inside.progress.entry(pass.key().name.to_string()).or_default().push(progress.clone());
        Ok(match progress {
            Progress::NeverStarted => Next::After(Duration::from_millis(1)),
            progress => progress.next(),
        })
    }
}

/// An operator that runs in a runtime of its own, and stops dead when this is dropped.
pub struct Running {
    runtime: Option<Runtime>,
    task: JoinHandle<()>,
    pub metrics: Metrics,
}

impl Running {
    /// Whether it ended by itself.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A runtime may not be dropped inside another, and must be gone when this returns: the dead do not act.
        let runtime = self.runtime.take();
        let _ = std::thread::spawn(move || drop(runtime)).join();
    }
}

/// A server with a namespace, and what is needed to look at it.
pub struct JournalFixture {
    world: Arc<TestEnv>,
    pub clock: Clock,
}

/// What an operator may have besides.
#[derive(Default)]
pub struct Extras {
    between: Option<Box<dyn FnOnce(Client) -> Client + Send>>,
    look: Option<ActHook>,
    identity: Option<String>,
}

impl Extras {
    /// Something around its client.
    pub fn between(layer: impl FnOnce(Client) -> Client + Send + 'static) -> Self {
        Self { between: Some(Box::new(layer)), ..Self::default() }
    }

    /// Something that its acts do besides.
    pub fn look(look: ActHook) -> Self {
        Self { look: Some(look), ..Self::default() }
    }

    /// As [`Extras::look`], besides what was given before.
    pub fn and_look(mut self, look: ActHook) -> Self {
        self.look = Some(look);
        self
    }

    /// A lease of ten seconds that it holds under that identity.
    pub fn leads_as(mut self, identity: &str) -> Self {
        self.identity = Some(identity.to_owned());
        self
    }
}

impl JournalFixture {
    pub async fn new(test_server: &TestServer) -> Self {
        let world = TestEnv::new(test_server, &fleetwright_api::crds()).await.expect("a world");
        Self { world: Arc::new(world), clock: Clock::system() }
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.world.admin(), self.world.namespace())
    }

    /// Starts an operator of that name.
    pub fn start(&self, name: &str, yard: &DeliveredParcels) -> Running {
        self.start_with(name, yard, Extras::default())
    }

    /// As [`JournalFixture::start`], with extras.
    pub fn start_with(&self, name: &str, yard: &DeliveredParcels, extras: Extras) -> Running {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (world, clock) = (self.world.clone(), self.clock.clone());
        let (name, yard) = (name.to_owned(), yard.clone());
        let metrics = Metrics::new();
        let counted = metrics.clone();
        let task = runtime.spawn(async move {
            let Extras { between, look, identity } = extras;
            let client = world.client().await.expect("a client");
            let client = between.map_or_else(|| client.clone(), |between| between(client.clone()));
            let namespace = world.namespace().to_owned();
            drop(world);
            let lease = identity.map(|identity| Lease {
                namespace: namespace.clone(),
                name: name.clone(),
                identity,
                duration: Duration::from_secs(30),
            });
            let settings =
                Settings { clock, lease, metrics: counted, strict_budgets: true, ..Settings::new(&name, client) };
            let mut operator = Operator::new(settings);
            let parcels = Source::new(Api::namespaced(operator.client(), &namespace)).labels(&format!("porter={name}"));
            let parcels: Cache<FullObject<ConfigMap>> = operator.cache(parcels);
            let journal = Journal::add(&mut operator, &namespace, ());
            let porter = Porter { parcels: parcels.clone(), journal: journal.clone(), yard, look };
            let options = Options {
                backoff: Duration::from_millis(5),
                longest_backoff: Duration::from_millis(50),
                ..Options::default()
            };
            let wakes = operator.controller(porter, options).on(&parcels, |change| vec![change.key.clone()]);
            let _ = journal.wake(wakes, "ConfigMap");
            // One that loses its lease has ended, as its process would.
            let _ = operator.run(std::future::pending()).await;
        });
        Running { runtime: Some(runtime), task, metrics }
    }

    /// Orders a parcel from the operator of that name.
    pub async fn order(&self, porter: &str, parcel: &str) {
        self.create::<ConfigMap>(json!({ "metadata": { "name": parcel, "labels": { "porter": porter } } })).await;
    }

    pub async fn policy(&self, name: &str, max: u32) {
        self.create::<OperationPolicy>(
            json!({ "metadata": { "name": name }, "spec": { "operations": ["Carry"], "max": max } }),
        )
        .await;
    }

    pub async fn create<K>(&self, mut object: Value)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug,
    {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let object: K = serde_json::from_value(object).expect("an object");
        self.api::<K>().create(&PostParams::default(), &object).await.expect("created");
    }

    pub async fn merge<K>(&self, name: &str, patch: Value)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
    }

    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// The operations on a parcel, in the order of their names.
    pub async fn operations(&self, parcel: &str) -> Vec<Operation> {
        let all = self.api::<Operation>().list(&ListParams::default()).await.expect("listed");
        all.into_iter().filter(|op| op.spec.target.name == parcel).collect()
    }

    /// The status of the operation on a parcel, once it is in that phase.
    pub async fn reaches(&self, parcel: &str, phase: OperationPhase) -> (Operation, OperationStatus) {
        let what = format!("an operation on {parcel} is {phase:?}");
        self.until(&what, async || {
            let mut operations = self.operations(parcel).await;
            operations.retain(|op| op.status.as_ref().is_some_and(|status| status.phase == phase));
            operations.pop().map(|op| (op.clone(), op.status.unwrap_or_default()))
        })
        .await
    }

    /// The names of the Operations that hold places in a policy, once it has `count` of them.
    pub async fn held(&self, policy: &str, count: usize) -> Vec<String> {
        self.until(&format!("{policy} has {count} holders"), async || {
            let policy = self.api::<OperationPolicy>().get(policy).await.expect("the policy");
            let status = policy.status.unwrap_or_default();
            let settled = status.holders.len() == count && status.held as usize == count;
            settled.then(|| status.holders.into_iter().map(|holder| holder.operation).collect())
        })
        .await
    }

    /// Waits until it is there; a clock that is moved by hand is moved meanwhile.
    pub async fn until<T, F: Future<Output = Option<T>>>(&self, what: &str, look: impl Fn() -> F) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = look().await {
                return found;
            }
            if Instant::now() > deadline {
                let operations = self.api::<Operation>().list(&ListParams::default()).await.expect("listed");
                let policies = self.api::<OperationPolicy>().list(&ListParams::default()).await.expect("listed");
                let text = serde_json::to_string_pretty(&json!([operations.items, policies.items])).unwrap_or_default();
                panic!("not within a minute: {what}\n{text}");
            }
            self.clock.advance(Duration::from_millis(50));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

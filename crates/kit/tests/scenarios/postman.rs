//! A small operator on the kit, and a server to run it on.
//!
//! A Parcel names a ConfigMap, which holds an address. The postman copies the address into the parcel's status and signs the ConfigMap
//! with an annotation.

#![allow(dead_code, reason = "operators of tests have more than their tests read")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fleetwright_kit::events::reference;
use fleetwright_kit::operator::RunError;
use fleetwright_kit::write::WriteError;
use fleetwright_kit::{
    Budget, Cache, Clock, Controller, Idle, Key, Next, Operator, Options, Outcome, Pass, PassRecord, Random, Remedy,
    Settings, Source, StepError, View,
};
use fleetwright_lab::{ServerKind, Target, define};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ObjectReference};
use kube::api::{ObjectMeta, PostParams};
use kube::client::Body;
use kube::{Api, Client, CustomResource, CustomResourceExt, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Something to deliver.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "test.fleetwright.io", version = "v1", kind = "Parcel", namespaced, status = "ParcelStatus")]
pub struct ParcelSpec {
    /// The ConfigMap with the address.
    pub to: String,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParcelStatus {
    /// Where it went.
    pub address: Option<String>,
    /// Why it did not go.
    pub problem: Option<String>,
    /// Said by others.
    pub remark: Option<String>,
}

/// What the postman reads of a parcel.
#[derive(Debug)]
pub struct ParcelView {
    pub uid: String,
    pub version: String,
    pub to: String,
    pub status: Value,
}

impl View for ParcelView {
    type Object = Parcel;

    fn of(parcel: Parcel) -> Self {
        let status = parcel.status.unwrap_or_default();
        Self {
            uid: parcel.metadata.uid.unwrap_or_default(),
            version: parcel.metadata.resource_version.unwrap_or_default(),
            to: parcel.spec.to,
            status: json!({ "address": status.address, "problem": status.problem }),
        }
    }
}

/// What the postman reads of a ConfigMap.
#[derive(Debug)]
pub struct Address {
    pub version: String,
    pub address: Option<String>,
    pub signed: bool,
    pub annotated: bool,
}

impl View for Address {
    type Object = ConfigMap;

    fn of(map: ConfigMap) -> Self {
        Self {
            signed: map.annotations().contains_key(SIGNATURE),
            annotated: map.metadata.annotations.is_some(),
            version: map.metadata.resource_version.unwrap_or_default(),
            address: map.data.and_then(|mut data| data.remove("address")),
        }
    }
}

pub const SIGNATURE: &str = "postman";

#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    #[error("there is no ConfigMap {0} with an address: create it, or change spec.to")]
    Recipient(String),
    #[error("the postman is bitten by {0}'s dog")]
    Dog(String),
}

impl StepError for Unknown {
    fn reason(&self) -> &'static str {
        match self {
            Self::Recipient(_) => "UnknownRecipient",
            Self::Dog(_) => "Bitten",
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::Recipient(_) => Remedy::NeedsPerson,
            Self::Dog(_) => Remedy::Retry,
        }
    }
}

/// Called with the pass before it acts, so that a test can interfere.
pub type BeforeActHook = Arc<dyn Fn(&Pass) -> futures::future::BoxFuture<'static, ()> + Send + Sync>;

pub struct Postman {
    pub parcels: Cache<ParcelView>,
    pub addresses: Cache<Address>,
    pub before_act: Option<BeforeActHook>,
}

pub struct Found {
    key: Key,
    parcel: Arc<ParcelView>,
    to: Key,
    address: Option<Arc<Address>>,
}

impl Controller for Postman {
    const NAME: &'static str = "postman";
    const BUDGET: Budget = Budget { reads: 0, writes: 2 };

    type Found = Found;
    type Valid = (Key, Arc<Address>);
    type Decision = String;
    type Done = ();
    type DereferenceError = Infallible;
    type ValidateError = Unknown;
    type ActError = WriteError;
    type ReportError = WriteError;

    fn about(&self, key: &Key, found: Option<&Found>) -> ObjectReference {
        reference::<Parcel>(key, found.map(|found| found.parcel.uid.as_str()))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Found>, Infallible> {
        let Some(parcel) = self.parcels.get(pass.key()) else { return Ok(None) };
        let to = Key::new(&pass.key().namespace, &parcel.to);
        let address = self.addresses.get(&to);
        Ok(Some(Found { key: pass.key().clone(), parcel, to, address }))
    }

    fn validate(&self, found: &Found) -> Result<Self::Valid, Unknown> {
        let address = found.address.clone().filter(|address| address.address.is_some());
        match address {
            Some(address) if address.address.as_deref() == Some("dog") => Err(Unknown::Dog(found.to.to_string())),
            Some(_) if &*found.to.name == "panic" => panic!("{} is too heavy", found.key),
            Some(address) => Ok((found.to.clone(), address)),
            None => Err(Unknown::Recipient(found.to.to_string())),
        }
    }

    fn decide(&self, (_, address): &Self::Valid, _: Timestamp) -> String {
        address.address.clone().unwrap_or_default()
    }

    async fn act(&self, pass: &Pass, (to, address): &Self::Valid, _: &String) -> Result<(), WriteError> {
        if let Some(before_act) = &self.before_act {
            before_act(pass).await;
        }
        if address.signed {
            return Ok(());
        }
        let mut patch = vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": address.version})];
        if !address.annotated {
            patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        patch.push(json!({"op": "add", "path": format!("/metadata/annotations/{SIGNATURE}"), "value": "was here"}));
        pass.writer().json_patch(&self.addresses, to, Value::Array(patch)).await
    }

    async fn report(&self, pass: &Pass, found: &Found, outcome: Outcome<'_, Self>) -> Result<Next, WriteError> {
        let desired = match outcome {
            Outcome::Done { decision, .. } => {
                // What was written in this pass is in the cache before the watch tells it.
                let signed = self.addresses.get(&found.to).is_none_or(|address| address.signed);
                assert!(signed, "{} was signed, and the cache does not know", found.to);
                json!({ "address": decision })
            }
            Outcome::Failed { trouble, .. } => json!({ "problem": trouble.source.to_string() }),
        };
        let (version, current) = (&found.parcel.version, &found.parcel.status);
        pass.writer().apply_status(&self.parcels, pass.key(), version, current, desired).await?;
        Ok(Next::AwaitChange)
    }
}

/// A server, and a namespace on it.
pub struct PostmanServer {
    pub client: Client,
    pub namespace: String,
    server: Arc<Target>,
}

impl PostmanServer {
    /// A new embedded server.
    pub async fn embedded() -> Result<Self> {
        Self::on(Arc::new(Target::start(ServerKind::Embedded).await?), "post").await
    }

    /// A namespace of its own on a running server.
    pub async fn on(server: Arc<Target>, namespace: &str) -> Result<Self> {
        let client = server.admin();
        define(&client, &[Parcel::crd()]).await?;
        let space = Namespace {
            metadata: ObjectMeta { name: Some(namespace.into()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &space).await?;
        Ok(Self { client, namespace: namespace.to_owned(), server })
    }

    /// Forgets the server's history.
    pub async fn compact(&self) -> Result<()> {
        self.server.compact().await
    }

    pub fn key(&self, name: &str) -> Key {
        Key::new(&self.namespace, name)
    }

    pub fn parcels(&self) -> Api<Parcel> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn parcel(&self, name: &str, to: &str) -> Result<Parcel> {
        let parcel = Parcel::new(name, ParcelSpec { to: to.into() });
        Ok(self.parcels().create(&PostParams::default(), &parcel).await?)
    }

    pub async fn address(&self, name: &str, address: &str) -> Result<ConfigMap> {
        let data = [("address".to_owned(), address.to_owned())].into();
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        Ok(self.maps().create(&PostParams::default(), &map).await?)
    }

    pub async fn status(&self, name: &str) -> Result<ParcelStatus> {
        Ok(self.parcels().get(name).await?.status.unwrap_or_default())
    }

    /// The postman's settings, strict.
    pub fn settings(&self) -> Settings {
        Settings { random: Random::seeded(1), strict_budgets: true, ..Settings::new("postman", self.client.clone()) }
    }

    pub fn run(&self) -> Running {
        self.run_with(self.settings(), Options::default(), None)
    }

    pub fn run_with(&self, mut settings: Settings, options: Options, before_act: Option<BeforeActHook>) -> Running {
        let records: Arc<Mutex<Vec<PassRecord>>> = Arc::default();
        let kept = records.clone();
        settings.on_pass = Some(Arc::new(move |record| kept.lock().unwrap().push(record.clone())));
        let clock = settings.clock.clone();
        let mut operator = Operator::new(settings);
        let client = operator.client();
        let parcels = operator.cache(
            Source::<ParcelView>::new(Api::namespaced(client.clone(), &self.namespace))
                .index("to", |key, parcel| vec![format!("{}/{}", key.namespace, parcel.to)]),
        );
        let addresses = operator.cache(Source::<Address>::new(Api::namespaced(client, &self.namespace)));
        let by_address = parcels.clone();
        operator
            .controller(Postman { parcels: parcels.clone(), addresses: addresses.clone(), before_act }, options)
            .on(&parcels, |change| vec![change.key.clone()])
            .on(&addresses, move |change| {
                by_address.by("to", &change.key.to_string()).into_iter().map(|(key, _)| key).collect()
            });
        let idle = operator.watch_idle();
        let metrics = operator.metrics().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(operator.run(async {
            let _ = stopped.await;
        }));
        Running { idle, records, parcels, addresses, clock, metrics, stop, task }
    }
}

/// An operator under way.
pub struct Running {
    pub idle: Idle,
    pub records: Arc<Mutex<Vec<PassRecord>>>,
    pub parcels: Cache<ParcelView>,
    pub addresses: Cache<Address>,
    pub clock: Clock,
    pub metrics: fleetwright_kit::metrics::Metrics,
    pub stop: oneshot::Sender<()>,
    pub task: tokio::task::JoinHandle<Result<(), RunError>>,
}

impl Running {
    /// Stops it in order.
    pub async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        tokio::time::timeout(Duration::from_secs(60), self.task).await.context("does not stop")???;
        Ok(())
    }

    pub fn writes(&self) -> u32 {
        self.records.lock().unwrap().iter().map(|record| record.writes).sum()
    }

    /// Waits until it is idle and nothing more happens.
    pub async fn settle(&self) -> Result<()> {
        eventually("the operator is idle", async || {
            let before = self.idle.passes();
            if !self.idle.is_idle() {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(self.idle.is_idle() && self.idle.passes() == before)
        })
        .await
    }
}

/// A door between an operator and its server, which a test opens and closes.
#[derive(Clone, Default)]
pub struct ConnectionSwitch {
    refuses: Arc<Mutex<Option<Refuses>>>,
    pub refused: Arc<AtomicU32>,
}

type Refuses = Box<dyn Fn(&http::Request<Body>) -> Option<u16> + Send>;

impl ConnectionSwitch {
    /// Answers the requests for which `with` gives an HTTP status itself.
    pub fn refuse(&self, with: impl Fn(&http::Request<Body>) -> Option<u16> + Send + 'static) {
        *self.refuses.lock().unwrap() = Some(Box::new(with));
    }

    pub fn open(&self) {
        *self.refuses.lock().unwrap() = None;
    }

    /// The client behind the door.
    pub fn before(&self, client: Client) -> Client {
        let door = self.clone();
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (door, client) = (door.clone(), client.clone());
            async move {
                let refused = door.refuses.lock().unwrap().as_ref().and_then(|refuses| refuses(&request));
                let Some(code) = refused else { return client.send(request).await };
                door.refused.fetch_add(1, Ordering::SeqCst);
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "the door is closed"});
                Ok::<_, kube::Error>(
                    http::Response::builder().status(code).body(Body::from(status.to_string().into_bytes())).unwrap(),
                )
            }
        });
        Client::new(service, namespace)
    }
}

/// Whether a request is a watch.
pub fn is_watch(request: &http::Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("watch=true"))
}

/// Polls until it holds.
pub async fn eventually(what: &str, holds: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !holds().await? {
        if tokio::time::Instant::now() > deadline {
            bail!("in vain waited until {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

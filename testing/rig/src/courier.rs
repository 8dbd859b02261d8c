//! A small operator to test the kit with: it delivers parcels.
//!
//! A parcel is a ConfigMap labelled `courier: parcel` with `data.contents`. A delivery is a side effect outside of the API server: a line in a
//! file. A second ConfigMap, the receipt, holds its result. Changed contents are delivered again.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::Target;
use fleetwright_kit::cache::FullObject;
use fleetwright_kit::events::reference;
use fleetwright_kit::journal::{Act, CallOutcome, Intent, Journal, JournalError, OperationKey, ProbeResult, Progress};
use fleetwright_kit::{
    Budget, Cache, Change, Clock, Controller, JsonPatch, Key, Next, Operator, Options, Outcome, Pass, Remedy, Settings,
    Source, StepError, WriteError,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::{Api, ResourceExt};
use serde_json::json;

/// The type of its operations.
pub const DELIVER: &str = "Deliver";

/// The destination of parcels outside of the API server: a file with a line for each delivery.
///
/// The log refuses a key whose outcome was queried before. Without that, a courier that is paused just before the delivery would deliver
/// after it resumes, although another one had learned that nothing was delivered, and had sent a second one.
#[derive(Clone, Debug)]
pub struct DeliveryLog {
    file: PathBuf,
    takes: Duration,
    clock: Clock,
}

/// The word for a key that the log refuses.
const CLOSED: &str = "closed";

impl DeliveryLog {
    /// A log in this file, with the duration of a delivery.
    pub fn new(file: &Path, takes: Duration, clock: Clock) -> Self {
        Self { file: file.to_owned(), takes, clock }
    }

    /// The deliveries: the operation's key, the parcel, its contents.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn delivered(file: &Path) -> io::Result<Vec<[String; 3]>> {
        let lines = match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => words(&text?),
        };
        Ok(lines.into_iter().filter(|[_, word, _]| word != CLOSED).collect())
    }

    /// One write at the end: a courier that is killed earlier has delivered nothing, and no reader sees half a line.
    async fn deliver(&self, key: &OperationKey, parcel: &str, contents: &str) -> io::Result<()> {
        if !self.takes.is_zero() {
            self.clock.sleep(self.takes).await;
        }
        self.locked(|file, lines| {
            if lines.iter().any(|[known, word, _]| *known == key.to_string() && word == CLOSED) {
                return Err(io::Error::other("nothing is taken under this key any more"));
            }
            file.write_all(format!("{key}\t{parcel}\t{contents}\n").as_bytes())
        })
    }

    /// Returns whether the key was delivered. If not, the log refuses it from now on.
    fn ask(&self, key: &OperationKey) -> io::Result<bool> {
        self.locked(|file, lines| {
            let known = lines.iter().find(|[known, ..]| *known == key.to_string());
            match known {
                Some([_, word, _]) => Ok(word != CLOSED),
                None => file.write_all(format!("{key}\t{CLOSED}\t\n").as_bytes()).map(|()| false),
            }
        })
    }

    /// The lock belongs to the open file, so that it is released when the process is killed.
    /// Callers do not wait for a process that was paused with the lock.
    fn locked<T>(&self, change: impl FnOnce(&mut File, Vec<[String; 3]>) -> io::Result<T>) -> io::Result<T> {
        let mut file = File::options().create(true).read(true).append(true).open(&self.file)?;
        file.try_lock().map_err(io::Error::from)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        change(&mut file, words(&text))
    }
}

fn words(text: &str) -> Vec<[String; 3]> {
    let words = |line: &str| {
        let mut words = line.split('\t').map(str::to_owned);
        [words.next(), words.next(), words.next()].map(Option::unwrap_or_default)
    };
    text.lines().map(words).collect()
}

/// An operator that delivers the parcels of a namespace.
pub fn operator(settings: Settings, namespace: &str, place: DeliveryLog) -> Operator {
    let mut operator = Operator::new(settings);
    let journal = Journal::add(&mut operator, namespace, ());
    let maps = || Api::<ConfigMap>::namespaced(operator.client(), namespace);
    let (parcels, receipts) =
        (Source::new(maps()).labels("courier=parcel"), Source::new(maps()).labels("courier=receipt"));
    let (parcels, receipts) = (operator.cache(parcels), operator.cache(receipts));
    let courier = Courier { parcels: parcels.clone(), receipts: receipts.clone(), journal: journal.clone(), place };
    let options = Options { workers: 4, ..Options::default() };
    let wakes = operator.controller(courier, options);
    let wakes = wakes.on(&parcels, |change| vec![change.key.clone()]);
    let wakes = wakes.on(&receipts, |change: &Change<'_, FullObject<ConfigMap>>| {
        let parcel = change.key.name.strip_suffix("-receipt");
        parcel.map(|parcel| Key::new(&change.key.namespace, parcel)).into_iter().collect()
    });
    drop(journal.wake(wakes, "ConfigMap"));
    operator
}

struct Courier {
    parcels: Cache<FullObject<ConfigMap>>,
    receipts: Cache<FullObject<ConfigMap>>,
    journal: Journal,
    place: DeliveryLog,
}

struct Found {
    parcel: Arc<FullObject<ConfigMap>>,
    receipt: Option<Arc<FullObject<ConfigMap>>>,
}

/// The validated objects that the decision needs.
struct Valid {
    contents: String,
    /// Whether the receipt records the delivery.
    delivered: bool,
    attempt: u32,
}

/// The action of a pass.
enum Decision {
    Nothing,
    Deliver { attempt: u32 },
}

/// The parcel has no contents that can be delivered.
#[derive(Debug, thiserror::Error)]
#[error("ConfigMap {0}: data.contents: is missing; write what is to be delivered")]
struct NoContents(String);

impl StepError for NoContents {
    fn reason(&self) -> &'static str {
        "NoContents"
    }

    fn remedy(&self) -> Remedy {
        Remedy::NeedsPerson
    }
}

impl Controller for Courier {
    const NAME: &'static str = "courier";
    const BUDGET: Budget = Budget { reads: Journal::BUDGET.reads, writes: Journal::BUDGET.writes + 1 };

    type Found = Found;
    type Valid = Valid;
    type Decision = Decision;
    type Done = Option<Progress>;
    type DereferenceError = std::convert::Infallible;
    type ValidateError = NoContents;
    type ActError = JournalError;
    type ReportError = WriteError;

    fn about(&self, key: &Key, found: Option<&Found>) -> ObjectReference {
        reference::<ConfigMap>(key, found.and_then(|found| found.parcel.0.metadata.uid.as_deref()))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Found>, Self::DereferenceError> {
        let parcel = self.parcels.get(pass.key());
        Ok(parcel.map(|parcel| Found { parcel, receipt: self.receipts.get(&receipt_of(pass.key())) }))
    }

    fn validate(&self, found: &Found) -> Result<Valid, NoContents> {
        let contents = field(&found.parcel.0, "contents").filter(|contents| !contents.is_empty());
        let contents = contents.ok_or_else(|| NoContents(Key::of(&found.parcel.0).to_string()))?;
        // A receipt of other contents does not count.
        let receipt = found.receipt.as_ref().map(|receipt| &receipt.0);
        let receipt = receipt.filter(|receipt| field(receipt, "contents") == Some(contents));
        let said = |name| receipt.and_then(|receipt| field(receipt, name));
        Ok(Valid {
            contents: contents.to_owned(),
            delivered: said("state") == Some("Delivered"),
            attempt: said("attempt").and_then(|attempt| attempt.parse().ok()).unwrap_or(0),
        })
    }

    fn decide(&self, valid: &Valid, _: Timestamp) -> Decision {
        if valid.delivered { Decision::Nothing } else { Decision::Deliver { attempt: valid.attempt } }
    }

    async fn act(&self, pass: &Pass, valid: &Valid, decision: &Decision) -> Result<Option<Progress>, JournalError> {
        let Decision::Deliver { attempt } = decision else { return Ok(None) };
        let delivery =
            Delivery { place: &self.place, parcel: &pass.key().name, contents: &valid.contents, attempt: *attempt };
        self.journal.drive(pass, &delivery).await.map(Some)
    }

    async fn report(&self, pass: &Pass, found: &Found, outcome: Outcome<'_, Self>) -> Result<Next, WriteError> {
        let Outcome::Done { valid, done: Some(progress), .. } = outcome else { return Ok(Next::AwaitChange) };
        let (state, attempt) = match progress {
            Progress::Succeeded(_) => ("Delivered", valid.attempt),
            Progress::NeverStarted | Progress::Failed(_) => ("Again", valid.attempt + 1),
            progress => return Ok(progress.next()),
        };
        let data = json!({ "contents": valid.contents, "state": state, "attempt": attempt.to_string() });
        let key = receipt_of(pass.key());
        match &found.receipt {
            None => {
                let receipt: ConfigMap = serde_json::from_value(json!({
                    "metadata": { "name": &*key.name, "namespace": &*key.namespace, "labels": { "courier": "receipt" } },
                    "data": data,
                }))
                .expect("it is a ConfigMap");
                // A receipt that exists already is in the cache soon, and requeues the parcel.
                pass.writer().create_in(&self.receipts, &receipt).await?;
            }
            Some(receipt) => {
                let version = receipt.0.resource_version().unwrap_or_default();
                let patch = JsonPatch::new().test_version(&version).replace(&["data"], data);
                pass.writer().json_patch(&self.receipts, &key, patch).await?;
            }
        }
        Ok(Next::AwaitChange)
    }
}

fn receipt_of(parcel: &Key) -> Key {
    Key::new(&parcel.namespace, &format!("{}-receipt", parcel.name))
}

fn field<'a>(map: &'a ConfigMap, name: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(name).map(String::as_str)
}

/// The operation that delivers one parcel.
struct Delivery<'a> {
    place: &'a DeliveryLog,
    parcel: &'a str,
    contents: &'a str,
    attempt: u32,
}

impl Act for Delivery<'_> {
    fn intent(&self) -> Intent {
        Intent {
            type_: DELIVER.into(),
            target: Target { kind: "ConfigMap".into(), name: self.parcel.into(), labels: Default::default() },
            reason: format!("{} is to be delivered", self.contents),
            fingerprint: format!("{}.{}", self.contents, self.attempt),
            keep_for: None,
        }
    }

    async fn start(&self, key: &OperationKey) -> CallOutcome {
        match self.place.deliver(key, self.parcel, self.contents).await {
            Ok(()) => CallOutcome::Done("delivered".into()),
            // The error leaves open whether the line was written; the file tells.
            Err(error) => CallOutcome::Unknown(error.to_string()),
        }
    }

    async fn probe(&self, key: &OperationKey) -> ProbeResult {
        match self.place.ask(key) {
            Ok(true) => ProbeResult::Succeeded("it was delivered".into()),
            Ok(false) => ProbeResult::NeverStarted,
            Err(error) => ProbeResult::NoAnswer(error.to_string()),
        }
    }
}

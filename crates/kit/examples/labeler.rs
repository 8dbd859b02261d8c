//! A complete operator with the kit: keeps the label `model` of every Machine equal to `spec.hardware.model`.
//!
//! `cargo run -p fleetwright-kit --example labeler`, with KUBECONFIG pointing at a server that has the kinds.

use std::convert::Infallible;
use std::sync::Arc;

use fleetwright_api::Machine;
use fleetwright_kit::{
    Budget, Cache, Controller, JsonPatch, Key, Next, Operator, Options, Outcome, Pass, Remedy, Settings, Source,
    StepError, View, WriteError, events,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, ResourceExt};
use serde_json::json;

/// The fields of a Machine that the labeler reads.
#[derive(Debug)]
struct Model {
    uid: String,
    version: String,
    declared: Option<String>,
    labelled: bool,
    label: Option<String>,
}

impl View for Model {
    type Object = Machine;

    fn of(machine: Machine) -> Self {
        Self {
            labelled: machine.metadata.labels.is_some(),
            label: machine.labels().get("model").cloned(),
            uid: machine.metadata.uid.unwrap_or_default(),
            version: machine.metadata.resource_version.unwrap_or_default(),
            declared: machine.spec.hardware.model,
        }
    }
}

/// The next step. Pure data: it could be printed, hashed for an approval, or journaled.
#[derive(Debug, PartialEq)]
enum Decision {
    Nothing,
    Label(String),
}

fn decide(declared: &str, label: Option<&str>) -> Decision {
    if label == Some(declared) { Decision::Nothing } else { Decision::Label(declared.to_owned()) }
}

/// Why validation fails: the schema allows a model that no label can hold.
#[derive(Debug, thiserror::Error)]
enum Invalid {
    #[error("spec.hardware.model is {0:?}: a label holds up to 63 letters, digits, '-', '_' and '.'; shorten it")]
    Model(String),
}

impl StepError for Invalid {
    fn reason(&self) -> &'static str {
        "InvalidModel"
    }

    fn remedy(&self) -> Remedy {
        Remedy::NeedsPerson
    }
}

/// Why acting fails.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct ActError(#[from] WriteError);

impl StepError for ActError {
    fn reason(&self) -> &'static str {
        self.0.reason()
    }

    fn remedy(&self) -> Remedy {
        self.0.remedy()
    }
}

struct Labeler {
    machines: Cache<Model>,
}

impl Controller for Labeler {
    const NAME: &'static str = "labeler";
    const BUDGET: Budget = Budget { reads: 0, writes: 1 };

    type Found = Arc<Model>;
    type Valid = (Arc<Model>, Option<String>);
    type Decision = Decision;
    type Done = ();
    type DereferenceError = Infallible;
    type ValidateError = Invalid;
    type ActError = ActError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, found: Option<&Self::Found>) -> ObjectReference {
        events::reference::<Machine>(key, found.map(|machine| machine.uid.as_str()))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Self::Found>, Infallible> {
        Ok(self.machines.get(pass.key()))
    }

    fn validate(&self, found: &Self::Found) -> Result<Self::Valid, Invalid> {
        let wrong =
            |model: &String| model.len() > 63 || !model.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        match found.declared.clone() {
            Some(model) if wrong(&model) => Err(Invalid::Model(model)),
            declared => Ok((found.clone(), declared)),
        }
    }

    fn decide(&self, (machine, declared): &Self::Valid, _: Timestamp) -> Decision {
        declared.as_deref().map_or(Decision::Nothing, |declared| decide(declared, machine.label.as_deref()))
    }

    async fn act(&self, pass: &Pass, (machine, _): &Self::Valid, decision: &Decision) -> Result<(), ActError> {
        let Decision::Label(model) = decision else { return Ok(()) };
        // The test operation turns a lost race into a conflict: the pass is repeated with the fresh object.
        let patch = JsonPatch::new().test_version(&machine.version);
        let patch = if machine.labelled {
            patch.add(&["metadata", "labels", "model"], model)
        } else {
            patch.add(&["metadata", "labels"], json!({ "model": model }))
        };
        Ok(pass.writer().json_patch(&self.machines, pass.key(), patch).await?)
    }

    async fn report(&self, _: &Pass, _: &Self::Found, _: Outcome<'_, Self>) -> Result<Next, Infallible> {
        // The label is the report. For an error the kit publishes an Event, a metric and a log line by itself.
        Ok(Next::AwaitChange)
    }
}

/// Adds the labeler and its triggers to an operator.
pub(crate) fn add(operator: &mut Operator, namespace: &str) {
    let machines = operator.cache(Source::new(Api::namespaced(operator.client(), namespace)));
    let labeler = Labeler { machines: machines.clone() };
    let wakes = operator.controller(labeler, Options::default());
    let _ = wakes.on(&machines, |change| vec![change.key.clone()]);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut operator = Operator::new(Settings::new("labeler", kube::Client::try_default().await?));
    add(&mut operator, "fleet");
    operator.run(async { drop(tokio::signal::ctrl_c().await) }).await?;
    Ok(())
}

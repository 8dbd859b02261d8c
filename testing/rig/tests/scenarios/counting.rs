//! Calls are counted, and controllers with too many calls are detected.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fleetwright_kit::events::reference;
use fleetwright_kit::journal::Journal;
use fleetwright_kit::{
    Budget, Cache, Controller, FullObject, Key, Next, Operator, Options, Outcome, Pass, Source, WriteError,
};
use fleetwright_rig::scenario::{Disturbance, run};
use fleetwright_rig::{Deliveries, Harness, OperatorContext, OperatorInstance, Scenario, TestServer};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// Annotates a ConfigMap with the length of its text.
struct Measurer {
    maps: Cache<FullObject<ConfigMap>>,
    flaw: Flaw,
}

#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// Writes the time of each pass.
    WritesEveryPass,
    /// Reads from the server what the cache holds.
    ReadsPastTheCache,
}

impl Controller for Measurer {
    const NAME: &'static str = "measurer";
    const BUDGET: Budget = Budget { reads: 0, writes: 1 };

    type Found = Arc<FullObject<ConfigMap>>;
    type Valid = Arc<FullObject<ConfigMap>>;
    type Decision = String;
    type Done = ();
    type DereferenceError = std::convert::Infallible;
    type ValidateError = std::convert::Infallible;
    type ActError = WriteError;
    type ReportError = std::convert::Infallible;

    fn about(&self, key: &Key, _: Option<&Self::Found>) -> ObjectReference {
        reference::<ConfigMap>(key, None)
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Self::Found>, Self::DereferenceError> {
        if self.flaw == Flaw::ReadsPastTheCache {
            let maps: Api<ConfigMap> = Api::namespaced(pass.client(), &pass.key().namespace);
            let _ = maps.get(&pass.key().name).await;
        }
        Ok(self.maps.get(pass.key()))
    }

    fn validate(&self, found: &Self::Found) -> Result<Self::Valid, Self::ValidateError> {
        Ok(found.clone())
    }

    fn decide(&self, map: &Self::Valid, now: Timestamp) -> String {
        let text = map.0.data.as_ref().and_then(|data| data.get("text")).map_or(0, String::len);
        if self.flaw == Flaw::WritesEveryPass { format!("{text} at {now}") } else { text.to_string() }
    }

    async fn act(&self, pass: &Pass, map: &Self::Valid, length: &String) -> Result<(), WriteError> {
        if map.0.annotations().get("length") == Some(length) {
            return Ok(());
        }
        let mut annotations = map.0.annotations().clone();
        annotations.insert("length".into(), length.clone());
        let patch = json!([
            { "op": "test", "path": "/metadata/resourceVersion", "value": map.0.resource_version() },
            { "op": "add", "path": "/metadata/annotations", "value": annotations },
        ]);
        pass.writer().json_patch(&self.maps, pass.key(), patch).await
    }

    async fn report(&self, _: &Pass, _: &Self::Found, _: Outcome<'_, Self>) -> Result<Next, Self::ReportError> {
        Ok(Next::After(Duration::from_secs(60)))
    }
}

struct Measuring {
    flaw: Flaw,
    maps: usize,
}

impl Scenario for Measuring {
    const NAME: &'static str = "measuring";

    fn kinds(&self) -> Vec<CustomResourceDefinition> {
        Vec::new()
    }

    fn operator(&self, context: OperatorContext, _: &Path) -> OperatorInstance {
        let mut operator = Operator::new(context.settings("measurer"));
        let maps = Api::namespaced(operator.client(), &context.namespace);
        let maps = operator.cache(Source::new(maps).labels("measured=yes"));
        let measurer = Measurer { maps: maps.clone(), flaw: self.flaw };
        drop(operator.controller(measurer, Options::default()).on(&maps, |change| vec![change.key.clone()]));
        OperatorInstance::of(operator, &context)
    }

    async fn perform(&self, harness: &Harness) -> Result<()> {
        let maps: Api<ConfigMap> = harness.api();
        for number in 0..self.maps {
            let map = json!({
                "metadata": { "name": format!("map-{number}"), "labels": { "measured": "yes" } }, "data": { "text": "abc" },
            });
            maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
        }
        harness.start().await?;
        let measured = || async {
            let all = maps.list(&Default::default()).await.map_err(|error| error.to_string())?;
            let unmeasured =
                |map: &&ConfigMap| map.labels().contains_key("measured") && !map.annotations().contains_key("length");
            all.iter().find(unmeasured).map_or(Ok(()), |map| Err(format!("{} is not measured", map.name_any())))
        };
        harness.settle("all are measured", measured).await
    }

    async fn final_state(&self, harness: &Harness) -> Result<Value> {
        let (calls, passes) = (harness.recorder().mark(), harness.pass_counter().passes());
        harness.run_for(Duration::from_secs(600)).await?;
        anyhow::ensure!(harness.pass_counter().passes() >= passes + 9 * self.maps, "every minute each is looked at");
        if self.flaw == Flaw::None {
            harness.pass_counter().check_no_calls_since(passes).map_err(anyhow::Error::msg)?;
            let calls = harness.recorder().since(calls);
            anyhow::ensure!(calls.iter().all(|record| record.call.verb == "watch"), "{calls:#?}");
        } else {
            anyhow::ensure!(harness.pass_counter().check_no_calls_since(passes).is_err(), "the flaw was not seen");
        }
        Ok(Value::Null)
    }

    fn side_effects(&self, _: &Harness) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

async fn measured(flaw: Flaw, maps: usize) -> Result<Arc<Harness>> {
    Ok(run(&Arc::new(Measuring { flaw, maps }), &TestServer::InProcess, Disturbance::None).await?.1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_writes_what_changed_costs_one_call_for_each_object_and_none_at_rest() {
    let harness = measured(Flaw::None, 20).await.unwrap();
    let budgets = [(Measurer::NAME, Measurer::BUDGET)];
    eprintln!("{}", harness.pass_counter().table(&budgets));
    harness.pass_counter().check_budgets(&budgets).unwrap();
    let sum = &harness.pass_counter().sums()["measurer"];
    assert_eq!((sum.writes, sum.reads, sum.most_of_an_object), (20, 0, 1));
    // The watch returns its own writes, and they must cause one further pass at most.
    assert_eq!(harness.recorder().writes_since(0).len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_writes_on_every_pass_is_found() {
    let harness = measured(Flaw::WritesEveryPass, 3).await.unwrap();
    let sum = &harness.pass_counter().sums()["measurer"];
    assert!(sum.most_of_an_object >= 10, "{sum:?}: it wrote each minute");
    assert!(
        harness.pass_counter().check_budgets(&[(Measurer::NAME, Measurer::BUDGET)]).is_ok(),
        "each pass alone is within its budget"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_calls_more_than_it_declares_is_found() {
    let refused = measured(Flaw::ReadsPastTheCache, 1).await.err().expect("it must not pass").to_string();
    assert!(refused.contains("panicked"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_costs_what_the_courier_declares() {
    let scenario = Arc::new(Deliveries { parcels: &["a", "b", "c", "d", "e", "f"] });
    let (_, harness) = run(&scenario, &TestServer::InProcess, Disturbance::None).await.unwrap();
    let courier = Budget { reads: Journal::BUDGET.reads, writes: Journal::BUDGET.writes + 1 };
    let one = Budget { reads: 2, writes: 1 };
    let budgets = [("courier", courier), ("operations", one), ("operation-policies", one)];
    eprintln!("{}", harness.pass_counter().table(&budgets));
    harness.pass_counter().check_budgets(&budgets).unwrap();
    // Seven deliveries: an intent, a place, a grant, a claim, an outcome, a receipt, and now and then a place that was taken first.
    let sum = &harness.pass_counter().sums()["courier"];
    assert!(sum.writes >= 7 * 6 && sum.writes <= 7 * 10, "{sum:?}");
}

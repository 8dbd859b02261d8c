//! The courier's scenario: each parcel is delivered once, and once more when its contents change.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use fleetwright_api::{Operation, OperationPhase, OperationPolicy};
use fleetwright_kit::Settings;
use fleetwright_kit::leader::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};

use crate::courier::{self, DeliveryLog};
use crate::{Harness, OperatorContext, OperatorInstance, Scenario};

/// The scenario of the courier, from parcels to receipts.
pub struct Deliveries {
    /// The initial parcels.
    pub parcels: &'static [&'static str],
}

impl Deliveries {
    /// The file of the deliveries, outside of the API server.
    pub fn file(outside: &Path) -> std::path::PathBuf {
        outside.join("delivered")
    }

    pub fn parcel(name: &str, contents: &str) -> ConfigMap {
        let parcel = json!({ "metadata": { "name": name, "labels": { "courier": "parcel" } }, "data": { "contents": contents } });
        serde_json::from_value(parcel).expect("it is a ConfigMap")
    }

    /// A policy that allows two deliveries at a time.
    pub fn policy() -> OperationPolicy {
        let policy =
            json!({ "metadata": { "name": "deliveries" }, "spec": { "operations": [courier::DELIVER], "max": 2 } });
        serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "OperationPolicy",
            "metadata": policy["metadata"], "spec": policy["spec"],
        }))
        .expect("it is an OperationPolicy")
    }

    /// Checks that every parcel has a receipt for its contents, and that the gate counts no running operation.
    ///
    /// # Errors
    /// The missing receipt or the operation that still runs.
    pub async fn reached(maps: &Api<ConfigMap>, policies: &Api<OperationPolicy>) -> Result<(), String> {
        let said = |error: kube::Error| error.to_string();
        let all = maps.list(&ListParams::default()).await.map_err(said)?.items;
        let labelled = |map: &&ConfigMap, label: &str| map.labels().get("courier").is_some_and(|is| is == label);
        let data = |map: &ConfigMap, field: &str| map.data.as_ref().and_then(|data| data.get(field)).cloned();
        for parcel in all.iter().filter(|map| labelled(map, "parcel")) {
            let receipt = format!("{}-receipt", parcel.name_any());
            match all.iter().find(|map| map.name_any() == receipt) {
                Some(receipt)
                    if data(receipt, "state").as_deref() == Some("Delivered")
                        && data(receipt, "contents") == data(parcel, "contents") => {}
                Some(receipt) => return Err(format!("{}: the receipt says {:?}", parcel.name_any(), receipt.data)),
                None => return Err(format!("{}: has no receipt", parcel.name_any())),
            }
        }
        let policy = policies.get("deliveries").await.map_err(said)?;
        let held = policy.status.map_or(0, |status| status.held + status.holders.len() as u32);
        if held > 0 { Err(format!("{held} places are still taken in the policy")) } else { Ok(()) }
    }
}

impl Scenario for Deliveries {
    const NAME: &'static str = "courier";

    fn kinds(&self) -> Vec<CustomResourceDefinition> {
        vec![Operation::crd(), OperationPolicy::crd()]
    }

    fn operator(&self, context: OperatorContext, outside: &Path) -> OperatorInstance {
        let place = DeliveryLog::new(&Self::file(outside), Duration::from_secs(2), context.clock.clone());
        let lease = Lease {
            namespace: context.namespace.clone(),
            name: "courier".into(),
            identity: context.identity.clone(),
            duration: Duration::from_secs(15),
        };
        let settings = Settings { lease: Some(lease), ..context.settings("courier") };
        let operator = courier::operator(settings, &context.namespace, place);
        OperatorInstance::of(operator, &context)
    }

    async fn perform(&self, harness: &Harness) -> Result<()> {
        let (maps, policies) = (harness.api::<ConfigMap>(), harness.api::<OperationPolicy>());
        policies.create(&PostParams::default(), &Self::policy()).await?;
        for parcel in self.parcels {
            maps.create(&PostParams::default(), &Self::parcel(parcel, "letters")).await?;
        }
        harness.start().await?;
        harness.settle("all parcels are delivered", || Self::reached(&maps, &policies)).await?;
        let changed = Patch::Merge(json!({ "data": { "contents": "flowers" } }));
        maps.patch(self.parcels[0], &PatchParams::default(), &changed).await?;
        harness.settle("what changed is delivered anew", || Self::reached(&maps, &policies)).await
    }

    async fn final_state(&self, harness: &Harness) -> Result<Value> {
        let mut maps = harness.snapshot::<ConfigMap>().await?;
        for map in maps.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
            // The number of attempts is chance; that it is one more than the number of failures is not checked here.
            map["data"].as_object_mut().map(|data| data.remove("attempt"));
        }
        // An operation that never started is recorded as failed and retried, so that the attempts differ; but only one succeeds for each key.
        let mut succeeded: BTreeMap<String, usize> = BTreeMap::new();
        let mut open = Vec::new();
        for operation in harness.api::<Operation>().list(&ListParams::default()).await? {
            let act = operation.spec.fingerprint.split('.').next().unwrap_or_default();
            let act = format!("{} {act}", operation.spec.target.name);
            match operation.status.as_ref().map(|status| status.phase).unwrap_or_default() {
                OperationPhase::Succeeded => *succeeded.entry(act).or_default() += 1,
                OperationPhase::Failed => {}
                phase => open.push(format!("{act}: {phase:?}")),
            }
        }
        let policies = harness.snapshot::<OperationPolicy>().await?;
        Ok(json!({ "maps": maps, "succeeded": succeeded, "open": open, "policies": policies }))
    }

    fn side_effects(&self, harness: &Harness) -> Result<Vec<String>> {
        let delivered = DeliveryLog::delivered(&Self::file(harness.external_dir()))?;
        let mut acts: Vec<String> =
            delivered.into_iter().map(|[_, parcel, contents]| format!("{parcel} {contents}")).collect();
        acts.sort();
        Ok(acts)
    }
}

//! Carries out the decisions about replicas that do not work: their labels for the endpoint, and their replacement.

use fleetwright_api::names;
use fleetwright_kit::events::Level;
use fleetwright_kit::{JsonPatch, Key, Pass, WriteError};
use fleetwright_plan::cluster::heal::{HealSteps, ServingChange};

use crate::cluster::{Clusters, Found};
use crate::errors::{ActError, Refusal};

impl Clusters {
    /// Carries out the steps. Objects that changed meanwhile are handled in the next pass, and a refused write does not stop the other steps: no step
    /// relies on another one.
    pub(crate) async fn heal(
        &self,
        pass: &Pass,
        found: &Found,
        heal: &HealSteps,
        refusal: &mut Refusal,
    ) -> Result<(), ActError> {
        for one in &heal.serves {
            refusal.noted(self.serves(pass, found, one).await)?;
        }
        let Some((replica, why)) = &heal.replace else { return Ok(()) };
        let key = Key::new(&found.names.namespace, &replica.name);
        match pass.writer().delete(&self.caches.pods, &key, &replica.uid, &replica.version).await {
            Err(WriteError::Gone(_)) => {}
            deleted => {
                if refusal.noted(deleted)?.is_some() {
                    let message = format!("recreating {}: {why}", replica.name);
                    self.publish_event(pass, found, Level::Warning, "ReplicaRecreated", &message).await;
                }
            }
        }
        Ok(())
    }

    async fn serves(&self, pass: &Pass, found: &Found, one: &ServingChange) -> Result<(), WriteError> {
        let ServingChange { replica, serves, why } = one;
        let key = Key::new(&found.names.namespace, &replica.name);
        let label = ["metadata", "labels", names::SERVING];
        let patch = JsonPatch::new().test_uid(&replica.uid).add(&label, serves.to_string());
        match pass.writer().json_patch(&self.caches.pods, &key, patch).await {
            Ok(()) => {}
            Err(WriteError::Gone(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
        let (level, reason, message) = match serves {
            false => (
                Level::Warning,
                "ReplicaRemovedFromEndpoints",
                format!("removed {} from the Service endpoints: {why}", replica.name),
            ),
            true if replica.serves.is_some() => (
                Level::Normal,
                "ReplicaAddedToEndpoints",
                format!("added {} to the Service endpoints again: {why}", replica.name),
            ),
            // The label was missing.
            true => return Ok(()),
        };
        self.publish_event(pass, found, level, reason, &message).await;
        Ok(())
    }
}

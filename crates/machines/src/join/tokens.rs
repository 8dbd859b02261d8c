//! The controller of the tokens of deleted machines.

use std::convert::Infallible;

use fleetwright_api::Machine;
use fleetwright_kit::events::reference;
use fleetwright_kit::{Budget, Cache, Controller, Key, Next, Outcome, Pass, WriteError};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::Credentials;
use crate::view::MachineView;

/// Deletes the token of a machine that is being deleted. A token that an earlier process created, and that of a paused
/// machine, expires by itself; no request of a machine
/// that is being deleted is approved.
pub struct Tokens {
    pub machines: Cache<MachineView>,
    pub credentials: Credentials,
}

impl Controller for Tokens {
    const NAME: &'static str = "join-tokens";
    const BUDGET: Budget = Budget { reads: 0, writes: 1 };

    type Found = String;
    type Valid = String;
    type Decision = ();
    type Done = ();

    type DereferenceError = Infallible;
    type ValidateError = Infallible;
    type ActError = WriteError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, _: Option<&String>) -> ObjectReference {
        reference::<Machine>(key, None)
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<String>, Infallible> {
        let machine = self.machines.get(pass.key());
        let going = machine.filter(|machine| machine.0.metadata.deletion_timestamp.is_some() && !machine.0.spec.paused);
        Ok(going.and_then(|machine| self.credentials.of(machine.0.metadata.uid.as_deref()?)))
    }

    fn validate(&self, id: &String) -> Result<String, Infallible> {
        Ok(id.clone())
    }

    fn decide(&self, _: &String, _: Timestamp) {}

    async fn act(&self, pass: &Pass, id: &String, (): &()) -> Result<(), WriteError> {
        self.credentials.withdraw(pass, id).await?;
        Ok(())
    }

    async fn report(&self, _: &Pass, _: &String, _: Outcome<'_, Self>) -> Result<Next, Infallible> {
        Ok(Next::AwaitChange)
    }
}

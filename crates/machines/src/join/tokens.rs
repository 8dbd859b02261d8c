//! The controller of the tokens of machines that go.

use std::convert::Infallible;

use fleetwright_api::Machine;
use fleetwright_kit::events::reference;
use fleetwright_kit::{Budget, Cache, Controller, Key, Next, Outcome, Pass, WriteError};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::Credentials;
use crate::view::MachineView;

/// Deletes the token of a machine that is deleted, unless the machine is paused: the token then ends by its own expiry.
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

    fn about(&self, key: &Key, found: Option<&String>) -> ObjectReference {
        reference::<Machine>(key, found.map(String::as_str))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<String>, Infallible> {
        let machine = self.machines.get(pass.key());
        let going = machine.filter(|machine| machine.0.metadata.deletion_timestamp.is_some() && !machine.0.spec.paused);
        Ok(going.and_then(|machine| machine.0.metadata.uid.clone()).filter(|uid| !self.credentials.is_withdrawn(uid)))
    }

    fn validate(&self, uid: &String) -> Result<String, Infallible> {
        Ok(uid.clone())
    }

    fn decide(&self, _: &String, _: Timestamp) {}

    async fn act(&self, pass: &Pass, uid: &String, (): &()) -> Result<(), WriteError> {
        self.credentials.withdraw(pass, &pass.key().namespace, uid).await?;
        Ok(())
    }

    async fn report(&self, _: &Pass, _: &String, _: Outcome<'_, Self>) -> Result<Next, Infallible> {
        Ok(Next::Rest)
    }
}

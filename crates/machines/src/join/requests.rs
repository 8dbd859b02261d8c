//! The controller of CertificateSigningRequests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::Machine;
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::{Budget, Controller, Key, Next, Outcome, Pass, WriteError};
use fleetwright_plan::join::{Around, Asked, CLIENT_SIGNER, Joiner, Requestor, SERVING_SIGNER, Verdict, decide};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};

use super::view::{Answered, Eyes, RequestView};
use super::{Credentials, LIFETIME};
use crate::look::{BY_NODE, BY_UID};

/// For so long after a request was made a token may still be there; after that it ended by itself.
const MAY_BE_VALID: Duration = Duration::from_secs(LIFETIME.as_secs() + 60);

/// Answers requests.
pub struct Requests {
    pub eyes: Eyes,
    pub credentials: Credentials,
}

/// A request and what is known around it.
#[derive(Clone)]
pub struct Found {
    request: Arc<RequestView>,
    requestor: Requestor,
    machine: Option<Joiner>,
    rivals: Vec<String>,
    /// What its Node says of itself; none if there is no Node.
    node_addresses: Option<Vec<String>>,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Rest,
    /// Answer the request.
    Answer(Verdict),
    /// The Node is there: the token of that machine has done its work.
    Withdraw(String),
}

impl Controller for Requests {
    const NAME: &'static str = "join";
    const BUDGET: Budget = Budget { reads: 0, writes: 1 };

    type Found = Found;
    type Valid = Found;
    type Decision = Decision;
    type Done = ();

    type DereferenceError = Infallible;
    type ValidateError = Infallible;
    type ActError = WriteError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, found: Option<&Found>) -> ObjectReference {
        reference::<CertificateSigningRequest>(key, found.map(|found| &*found.request.uid))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Found>, Infallible> {
        let Some(request) = self.eyes.requests.get(pass.key()) else { return Ok(None) };
        let ours = [CLIENT_SIGNER, SERVING_SIGNER].contains(&&*request.signer);
        if !ours || request.answered == Answered::Refused {
            return Ok(None);
        }
        let requestor = Requestor::of(&request.username, &request.groups, &self.eyes.namespace);
        let machines = &self.eyes.machines;
        let mut candidates = match &requestor {
            Requestor::Token { uid } => machines.by(BY_UID, uid),
            Requestor::Node { name } => machines.by(BY_NODE, name),
            Requestor::Other => return Ok(None),
        };
        let machine = (!candidates.is_empty()).then(|| candidates.remove(0).1.joiner());
        let (mut rivals, mut node_addresses) = (Vec::new(), None);
        if let Some(machine) = &machine {
            let others = machines.by(BY_NODE, &machine.node).into_iter().map(|(_, other)| other.joiner());
            rivals = others.filter(|other| other.uid != machine.uid).map(|other| other.name).collect();
            let node = self.eyes.nodes.get(&Key::cluster(&machine.node));
            node_addresses = node.map(|node| node.addresses.iter().map(|one| one.to_string()).collect());
        }
        Ok(Some(Found { request, requestor, machine, rivals, node_addresses }))
    }

    fn validate(&self, found: &Found) -> Result<Found, Infallible> {
        Ok(found.clone())
    }

    fn decide(&self, found: &Found, now: Timestamp) -> Decision {
        let request = &found.request;
        if request.answered == Answered::NotYet {
            let uid = found.machine.as_ref().map(|machine| machine.uid.as_str()).unwrap_or_default();
            let asked = Asked { signer: &request.signer, usages: &request.usages, request: &request.pem };
            let around = Around {
                machine: found.machine.as_ref(),
                rivals: &found.rivals,
                node_addresses: found.node_addresses.as_deref().unwrap_or_default(),
                taken: &|address| self.eyes.taken(address, uid),
            };
            return Decision::Answer(decide(&found.requestor, &asked, &around));
        }
        let recent = request.created.filter(|created| *created + MAY_BE_VALID > now);
        match &found.requestor {
            Requestor::Token { uid } if request.signed && found.node_addresses.is_some() => {
                // A token that was made after this request is for another one, which is still to come.
                let used = recent.is_some_and(|created| !self.credentials.joins_since(uid, created));
                let done = !used || self.credentials.is_withdrawn(uid);
                if done { Decision::Rest } else { Decision::Withdraw(uid.clone()) }
            }
            _ => Decision::Rest,
        }
    }

    async fn act(&self, pass: &Pass, found: &Found, decision: &Decision) -> Result<(), WriteError> {
        let condition = match decision {
            Decision::Withdraw(uid) => {
                self.credentials.withdraw(pass, &self.eyes.namespace, uid).await?;
                return Ok(());
            }
            Decision::Answer(Verdict::Approved { message }) => {
                condition("Approved", "MachineMatches", message, pass.now())
            }
            Decision::Answer(Verdict::Denied { reason, message }) => condition("Denied", reason, message, pass.now()),
            Decision::Answer(Verdict::LeftAlone | Verdict::Waits { .. }) | Decision::Rest => return Ok(()),
        };
        let patch = json!({"status": {"conditions": [condition]}});
        let requests = &self.eyes.requests;
        pass.writer().merge_subresource(requests, pass.key(), "approval", &found.request.version, patch).await
    }

    async fn report(&self, pass: &Pass, found: &Found, outcome: Outcome<'_, Self>) -> Result<Next, Infallible> {
        if let Outcome::Done { decision: Decision::Answer(verdict), .. } = outcome {
            self.tell(pass, found, verdict).await;
        }
        Ok(Next::Rest)
    }
}

impl Requests {
    async fn tell(&self, pass: &Pass, found: &Found, verdict: &Verdict) {
        let (level, reason, message) = match verdict {
            Verdict::LeftAlone => return,
            Verdict::Approved { message } => (Level::Normal, "CertificateApproved", message.clone()),
            Verdict::Waits { message } => (Level::Warning, "CertificateWaits", message.clone()),
            Verdict::Denied { reason, message } => {
                (Level::Warning, "CertificateDenied", format!("{reason}: {message}"))
            }
        };
        let name = &pass.key().name;
        if let Some(machine) = &found.machine {
            let about = reference::<Machine>(&Key::new(&self.eyes.namespace, &machine.name), Some(&machine.uid));
            let by = &found.request.username;
            let told = format!("CertificateSigningRequest {name} of {by}: {message}");
            pass.events().publish(&about, level, reason, &told, &found.request.uid).await;
        }
        pass.events().publish(&self.about(pass.key(), Some(found)), level, reason, &message, "").await;
        match level {
            Level::Normal => tracing::info!(request = %name, "{message}"),
            Level::Warning => tracing::warn!(request = %name, "{reason}: {message}"),
        }
    }
}

fn condition(type_: &str, reason: &str, message: &str, now: Timestamp) -> Value {
    json!({"type": type_, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()})
}

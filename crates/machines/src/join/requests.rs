//! The controller of CertificateSigningRequests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fleetwright_api::Machine;
use fleetwright_kit::events::{Level, reference};
use fleetwright_kit::{Budget, Controller, Key, Next, Outcome, Pass, View, WriteError};
use fleetwright_plan::join::{
    ApiAddresses, Binding, CLIENT_SIGNER, JoinContext, JoiningMachine, Requestor, SERVING_SIGNER, SigningDecision,
    SigningRequest, decide, reserved, token_of,
};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Api;
use serde_json::{Value, json};

use super::view::{JoinCaches, MATCHES, RequestAnswer, RequestView};
use super::{Credentials, LIFETIME, api_addresses};
use crate::drain::ReadError;
use crate::observe::{BY_NODE, BY_UID};
use crate::view::{NodeView, ThinNode};

/// The age of a request up to which its token may exist; older tokens have expired.
const MAY_BE_VALID: Duration = Duration::from_secs(LIFETIME.as_secs() + 60);

/// The controller that answers requests.
pub struct Requests {
    pub caches: JoinCaches,
    pub credentials: Credentials,
}

/// A request and its context.
#[derive(Clone)]
pub struct Found {
    request: Arc<RequestView>,
    requestor: Requestor,
    machine: Option<JoiningMachine>,
    rivals: Vec<String>,
    /// The Node of the machine's name.
    node: Binding,
    /// The addresses of the API server; read only for requests of serving certificates.
    api: ApiAddresses,
}

/// The action for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// No action.
    Nothing,
    /// Approve or deny the request.
    Answer(SigningDecision),
    /// Delete the token with that id, with which the request was made: the Node exists, and the token is not needed any more.
    Withdraw(String),
}

impl Controller for Requests {
    const NAME: &'static str = "join";
    /// Reads: the addresses of the API server, for a serving certificate; or whether a Node of that name exists, for the first client certificate.
    const BUDGET: Budget = Budget { reads: api_addresses::READS, writes: 1 };

    type Found = Found;
    type Valid = Found;
    type Decision = Decision;
    type Done = ();

    type DereferenceError = ReadError;
    type ValidateError = Infallible;
    type ActError = WriteError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, found: Option<&Found>) -> ObjectReference {
        reference::<CertificateSigningRequest>(key, found.map(|found| &*found.request.uid))
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Found>, ReadError> {
        let Some(request) = self.caches.requests.get(pass.key()) else { return Ok(None) };
        let ours = [CLIENT_SIGNER, SERVING_SIGNER].contains(&&*request.signer);
        if !ours || request.answered == RequestAnswer::Refused {
            return Ok(None);
        }
        let requestor = Requestor::of(&request.username, &request.groups, &self.caches.namespace);
        let machines = &self.caches.machines;
        let candidates = match &requestor {
            Requestor::Token { uid } => machines.by(BY_UID, uid),
            Requestor::Node { name } => machines.by(BY_NODE, name),
            Requestor::Other => return Ok(None),
        };
        let mut found = Found {
            request,
            requestor,
            machine: None,
            rivals: Vec::new(),
            node: Binding::Missing,
            api: ApiAddresses::default(),
        };
        let pending = found.request.answered == RequestAnswer::NotYet;
        for (_, candidate) in candidates {
            let certified = self.caches.certified(&candidate);
            let mut node = self.caches.nodes.get(&Key::cluster(candidate.node()));
            if node.is_none() && pending && found.request.signer == CLIENT_SIGNER {
                // A cache may lag behind, and the name of an existing Node must not be given away.
                node = live_node(pass, candidate.node()).await?;
            }
            let binding = candidate.bind(certified, node.as_deref());
            // Of several machines that claim one Node, the one that it is bound to counts.
            let bound = matches!(binding, Binding::Bound(_));
            if found.machine.is_none() || bound {
                (found.machine, found.node) = (Some(candidate.joiner(certified)), binding);
            }
            if bound {
                break;
            }
        }
        if let Some(machine) = &found.machine {
            let others = machines.by(BY_NODE, &machine.node).into_iter().map(|(_, other)| other.joiner(None));
            found.rivals = others.filter(|other| other.uid != machine.uid).map(|other| other.name).collect();
            if pending && found.request.signer == SERVING_SIGNER {
                found.api = api_addresses::addresses(pass, &self.caches).await?;
            }
        }
        Ok(Some(found))
    }

    fn validate(&self, found: &Found) -> Result<Found, Infallible> {
        Ok(found.clone())
    }

    fn decide(&self, found: &Found, now: Timestamp) -> Decision {
        let request = &found.request;
        if request.answered == RequestAnswer::NotYet {
            let asked = SigningRequest { signer: &request.signer, usages: &request.usages, request: &request.pem };
            let other = |name: &str| found.machine.as_ref().and_then(|machine| self.caches.other(name, machine));
            let around = JoinContext {
                machine: found.machine.as_ref(),
                rivals: &found.rivals,
                node: &found.node,
                reserved: &|name| reserved(name, &found.api, other),
            };
            return Decision::Answer(decide(&found.requestor, &asked, &around));
        }
        let recent = request.created.filter(|created| *created + MAY_BE_VALID > now);
        match &found.requestor {
            Requestor::Token { .. } if request.signed && found.node != Binding::Missing && recent.is_some() => {
                let id = token_of(&request.username).filter(|id| !self.credentials.is_withdrawn(id));
                id.map_or(Decision::Nothing, |id| Decision::Withdraw(id.to_owned()))
            }
            _ => Decision::Nothing,
        }
    }

    async fn act(&self, pass: &Pass, found: &Found, decision: &Decision) -> Result<(), WriteError> {
        let condition = match decision {
            Decision::Withdraw(id) => {
                self.credentials.withdraw(pass, id).await?;
                return Ok(());
            }
            Decision::Answer(SigningDecision::Approved { message }) => {
                condition("Approved", MATCHES, message, pass.now())
            }
            Decision::Answer(SigningDecision::Denied { reason, message }) => {
                condition("Denied", reason, message, pass.now())
            }
            Decision::Answer(SigningDecision::Ignored | SigningDecision::Waits { .. }) | Decision::Nothing => {
                return Ok(());
            }
        };
        let patch = json!({"status": {"conditions": [condition]}});
        let requests = &self.caches.requests;
        pass.writer().merge_subresource(requests, pass.key(), "approval", &found.request.version, patch).await
    }

    async fn report(&self, pass: &Pass, found: &Found, outcome: Outcome<'_, Self>) -> Result<Next, Infallible> {
        if let Outcome::Done { decision: Decision::Answer(verdict), .. } = outcome {
            self.publish(pass, found, verdict).await;
        }
        Ok(Next::AwaitChange)
    }
}

impl Requests {
    async fn publish(&self, pass: &Pass, found: &Found, verdict: &SigningDecision) {
        let (level, reason, message) = match verdict {
            SigningDecision::Ignored => return,
            SigningDecision::Approved { message } => (Level::Normal, "CertificateApproved", message.clone()),
            SigningDecision::Waits { message } => (Level::Warning, "CertificatePending", message.clone()),
            SigningDecision::Denied { reason, message } => {
                (Level::Warning, "CertificateDenied", format!("{reason}: {message}"))
            }
        };
        let name = &pass.key().name;
        if let Some(machine) = &found.machine {
            let about = reference::<Machine>(&Key::new(&self.caches.namespace, &machine.name), Some(&machine.uid));
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

async fn live_node(pass: &Pass, name: &str) -> Result<Option<Arc<NodeView>>, ReadError> {
    let node = Api::<ThinNode>::all(pass.client()).get_opt(name).await;
    let node = node.map_err(|error| ReadError::of(format!("Node {name}"), &error))?;
    Ok(node.map(|node| Arc::new(NodeView::of(node))))
}

fn condition(type_: &str, reason: &str, message: &str, now: Timestamp) -> Value {
    json!({"type": type_, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()})
}

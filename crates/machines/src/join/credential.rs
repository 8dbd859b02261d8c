//! Bootstrap tokens.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fleetwright_api::names;
use fleetwright_kit::{Pass, Remedy, StepError, View, WriteError};
use fleetwright_pki::{Identity, kubeconfig};
use fleetwright_plan::join::{BOOTSTRAPPERS, token_group};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;

use super::token_key;
use crate::drain::ReadError;
use crate::view::{NodeView, ThinNode};

/// The namespace of bootstrap tokens.
pub const TOKENS_NAMESPACE: &str = "kube-system";
/// Prefix of the name of a token's Secret; the id of the token follows.
pub(crate) const TOKEN_PREFIX: &str = "bootstrap-token-";
/// Type of a token's Secret.
pub(crate) const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Lifetime of a token.
pub const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// A token that is valid for less than this is not used any more: installing a kubelet takes its time.
const MIN_REMAINING_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Label of a token's Secret: the namespace of the machine.
const NAMESPACE: &str = "fleetwright.io/namespace";

/// Why a machine gets no bootstrap credential.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The values that a kubelet needs to join are missing.
    #[error("ConfigMap {namespace}/{}, data.{key}: is missing or empty: {what}", names::CLUSTER_VALUES)]
    NoValue {
        /// The ConfigMap's namespace.
        namespace: String,
        key: &'static str,
        /// The expected content of the key.
        what: &'static str,
    },
    /// Writing the token failed.
    #[error("the bootstrap token: {0}")]
    Token(#[from] WriteError),
    /// Another host has the Node name, or had it when this was decided.
    #[error(
        "Node {0} exists, but is not bound to this Machine: no bootstrap token is issued. If it is the Node of this Machine, run `fleetwright machine bind-node`"
    )]
    ForeignNode(String),
    /// Whether the name is free could not be read.
    #[error("the bootstrap token: {0}")]
    ReadFailed(#[from] ReadError),
    /// The name of the Secret was taken in every attempt.
    #[error("the bootstrap token: Secret {0} was created by another client at the same time")]
    Taken(String),
}

impl StepError for JoinError {
    fn reason(&self) -> &'static str {
        match self {
            Self::NoValue { .. } => "ClusterValueMissing",
            Self::Token(error) => error.reason(),
            Self::ForeignNode(_) => "NodeNotBound",
            Self::ReadFailed(error) => error.reason(),
            Self::Taken(_) => "BootstrapTokenConflict",
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::NoValue { .. } => Remedy::NeedsPerson,
            // A refusal may be fixed by a role, which no informer watches.
            Self::Token(error) => match error.remedy() {
                Remedy::NeedsPerson => Remedy::Wait(Duration::from_secs(60)),
                remedy => remedy,
            },
            // The cache of Nodes catches up, and the machine's status says why it waits.
            Self::ForeignNode(_) => Remedy::Wait(Duration::from_secs(5)),
            Self::ReadFailed(error) => error.remedy(),
            Self::Taken(_) => Remedy::Retry,
        }
    }
}

/// The bootstrap tokens that this process created. Cheap to clone. A restart loses them: the next join gets a new token, and the lost one expires.
#[derive(Clone, Default)]
pub struct Credentials {
    given: Arc<Mutex<IssuedTokens>>,
}

#[derive(Default)]
struct IssuedTokens {
    /// By the uids of machines.
    tokens: HashMap<String, Token>,
    /// The ids of deleted tokens, and when they were deleted.
    withdrawn: HashMap<String, Timestamp>,
}

#[derive(Clone)]
struct Token {
    id: String,
    secret: String,
    until: Timestamp,
    /// The step that the token was created for.
    step: String,
}

impl Credentials {
    /// A store without tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// The kubeconfig with which the kubelet of the machine of this pass, with that uid, requests its certificate.
    /// Created once for each step, and reused
    /// while it is valid for some minutes more. `cluster` holds the cluster's values, of which `server` and `caBundle` are needed. `node` is the name
    /// that the token is for, and the uid of the Node that is bound to the machine, if one is.
    ///
    /// Reads: one. Writes: two at most (an older token of the same machine is deleted), none if the token is reused.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub async fn credential(
        &self,
        pass: &Pass,
        uid: &str,
        step: &str,
        node: (&str, Option<&str>),
        cluster: &BTreeMap<String, String>,
    ) -> Result<String, JoinError> {
        let namespace = &*pass.key().namespace;
        let value = |key: &'static str, what: &'static str| {
            let found = cluster.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
            found.ok_or_else(|| JoinError::NoValue { namespace: namespace.to_owned(), key, what })
        };
        let server =
            value("server", "set it to the URL of the API server as machines reach it, such as https://10.0.0.1:6443")?;
        let ca = value("caBundle", "set it to the certificate of the API server's authority, PEM")?;
        self.name_is_free(pass, node).await?;
        let token = self.token(pass, uid, step).await?;
        // The authority may come from a file without a final newline.
        Ok(kubeconfig("fleetwright", server, &format!("{ca}\n"), Identity::Token(&token)))
    }

    /// Reads from the API server, since a cache may lag behind: no token is issued for the name of a Node that is not the machine's own.
    async fn name_is_free(&self, pass: &Pass, (name, bound): (&str, Option<&str>)) -> Result<(), JoinError> {
        let node = Api::<ThinNode>::all(pass.client()).get_opt(name).await;
        let node = node.map_err(|error| ReadError::of(format!("Node {name}"), &error))?;
        match node.map(NodeView::of) {
            Some(node) if bound != Some(&*node.uid) => Err(JoinError::ForeignNode(name.to_owned())),
            _ => Ok(()),
        }
    }

    async fn token(&self, pass: &Pass, uid: &str, step: &str) -> Result<String, JoinError> {
        let before = self.given().tokens.get(uid).cloned();
        if let Some(Token { id, secret, until, step: of }) = &before
            && *until > pass.now() + MIN_REMAINING_LIFETIME
            && of == step
        {
            return Ok(format!("{id}.{secret}"));
        }
        // Each token has a new name: a late deletion of an earlier one does not reach it.
        let (id, secret, until) = (random(6), random(16), pass.now() + LIFETIME);
        if !pass.writer().create(&token_object(pass, uid, &id, &secret, until)).await? {
            return Err(JoinError::Taken(token_key(&id).to_string()));
        }
        let token = format!("{id}.{secret}");
        {
            let mut given = self.given();
            given.tokens.retain(|_, token| token.until > pass.now());
            given.withdrawn.retain(|_, at| *at + 2 * LIFETIME > pass.now());
            given.tokens.insert(uid.to_owned(), Token { id, secret, until, step: step.to_owned() });
        }
        if let Some(before) = before {
            self.withdraw(pass, &before.id).await?;
        }
        Ok(token)
    }

    /// Deletes the token with that id, if it exists.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn withdraw(&self, pass: &Pass, id: &str) -> Result<bool, WriteError> {
        // From now on no kubelet gets it: the Secret may be gone before the answer to its deletion arrives.
        self.given().tokens.values_mut().filter(|token| token.id == id).for_each(|token| token.until = pass.now());
        let deleted = pass.writer().delete_by_name::<Secret>(&token_key(id)).await?;
        let mut given = self.given();
        given.tokens.retain(|_, token| token.id != id);
        given.withdrawn.insert(id.to_owned(), pass.now());
        Ok(deleted)
    }

    /// Whether this process deleted the token already.
    pub(super) fn is_withdrawn(&self, id: &str) -> bool {
        self.given().withdrawn.contains_key(id)
    }

    /// The id of the token that was issued to the machine with that uid and may be unused.
    pub(super) fn of(&self, uid: &str) -> Option<String> {
        self.given().tokens.get(uid).map(|token| token.id.clone())
    }

    fn given(&self) -> MutexGuard<'_, IssuedTokens> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn token_object(pass: &Pass, uid: &str, id: &str, secret: &str, until: Timestamp) -> Secret {
    let (namespace, name) = (&*pass.key().namespace, &*pass.key().name);
    let data = [
        ("token-id", id.to_owned()),
        ("token-secret", secret.to_owned()),
        // Whole seconds, as Kubernetes writes times.
        ("expiration", until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("auth-extra-groups", format!("{BOOTSTRAPPERS},{}", token_group(namespace, uid))),
        ("description", format!("bootstrap token of Machine {namespace}/{name}")),
    ];
    let labels = [(NAMESPACE, namespace), (names::MACHINE, name)];
    Secret {
        metadata: ObjectMeta {
            name: Some(token_key(id).name.to_string()),
            namespace: Some(TOKENS_NAMESPACE.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        type_: Some(TOKEN_TYPE.to_owned()),
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..Secret::default()
    }
}

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Random letters and digits: 16 of them, the secret half of a token, have 82 bits.
fn random(length: usize) -> String {
    let mut out = String::with_capacity(length);
    while out.len() < length {
        let random = uuid::Uuid::new_v4();
        // Bytes of a UUID that are not fully random are skipped, and those that would favour some digits.
        let bytes = random.as_bytes().iter().enumerate().filter(|(at, byte)| ![6, 8].contains(at) && **byte < 252);
        out.extend(bytes.map(|(_, byte)| char::from(DIGITS[usize::from(*byte) % 36])).take(length - out.len()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_the_form_that_kubernetes_asks_for() {
        let digits = |text: &str| text.bytes().all(|byte| DIGITS.contains(&byte));
        for length in [6, 16] {
            let (one, other) = (random(length), random(length));
            assert!(one.len() == length && digits(&one), "{one}");
            assert_ne!(one, other);
        }
    }
}

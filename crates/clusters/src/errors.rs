//! Errors of a pass over a cluster: an invalid spec, and failed acts.

use std::time::Duration;

use fleetwright_api::names;
use fleetwright_kit::journal::JournalError;
use fleetwright_kit::{Remedy, StepError, WriteError};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::arguments::UnknownArgument;
use fleetwright_plan::cluster::limits::{Violation, summary};
use fleetwright_plan::cluster::networks::Network;
use jiff::Timestamp;

use crate::namespace_claim::adopt;
use crate::secrets::SecretError;

/// Why the spec is invalid.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Invalid {
    /// The package version does not exist.
    #[error(
        "spec.packageVersion: ClusterPackageVersion {0} does not exist in the namespace: create it, or set another one"
    )]
    NoPackage(String),
    /// The accepted spec names a package version that was replaced by another one of the same name since.
    #[error(
        "{why}. ClusterPackageVersion {package} was recreated after it was accepted: the control plane is neither changed nor repaired until the whole spec is valid"
    )]
    Replaced { package: String, why: Box<Self> },
    /// An argument that the component does not have in this version. The component would not start with it.
    #[error("{0}")]
    Argument(UnknownArgument),
    /// The namespace belongs to another Cluster.
    #[error(
        "Namespace {namespace} belongs to Cluster {other} and was not changed: create this Cluster under another name, or delete Cluster {other} first"
    )]
    Taken { namespace: String, other: String },
    /// ClusterLimits of the namespace do not allow the spec.
    #[error("{}", summary(.0))]
    Limits(Vec<Violation>),
    /// A Secret in the spec is missing or not shared, and pods would wait for it.
    #[error("{message}")]
    Secret {
        /// Whether the Secret is missing or not shared.
        reason: &'static str,
        /// The Secret, the field that names it, and what to do.
        message: String,
    },
    /// API servers could not reach the pods: their addresses are in a network of the meta cluster.
    #[error(
        "spec.network.pods {network} overlaps {meta}, a network of the meta cluster, so API servers could not reach these pods: delete this Cluster, for which nothing was created yet, and create it with spec.network.pods: {free}"
    )]
    Overlap {
        /// The pod network.
        network: String,
        /// The overlapping network of the meta cluster.
        meta: Network,
        /// A network that overlaps none.
        free: String,
    },
}

impl StepError for Invalid {
    fn reason(&self) -> &'static str {
        match self {
            Self::NoPackage(_) => names::reasons::PACKAGE_VERSION_NOT_FOUND,
            Self::Replaced { why, .. } => why.reason(),
            Self::Argument(_) => names::reasons::INVALID_ARGUMENT,
            Self::Taken { .. } => names::reasons::NAMESPACE_CONFLICT,
            Self::Limits(_) => names::reasons::LIMIT_EXCEEDED,
            Self::Secret { reason, .. } => reason,
            Self::Overlap { .. } => names::reasons::NETWORK_OVERLAPS,
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::NoPackage(_) | Self::Argument(_) | Self::Limits(_) | Self::Overlap { .. } => Remedy::NeedsPerson,
            Self::Replaced { why, .. } => why.remedy(),
            // The other Cluster is triggered by changes of that namespace, and there is no watch on people's Secrets.
            Self::Taken { .. } | Self::Secret { .. } => Remedy::Wait(Duration::from_secs(30)),
        }
    }
}

/// Why an act failed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// A write failed.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// A key or certificate was not created.
    #[error("{0}")]
    Secret(#[from] SecretError),
    /// An Operation could not be driven.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// The namespace has the labels of the Cluster, but the operator did not create it, or somebody created objects in it before it was recorded.
    #[error(
        "Namespace {} has the labels of this Cluster, but it is not recorded in the status, and the operator did not create it with its present content. Nothing was changed in it: its creator may have rights in it, or pods that wait for the cluster's keys. Delete the namespace; or, if you trust everybody who has rights in it, record it, which requires the right to write clusters/status: {}",
        .names.namespace, adopt(.names, .uid)
    )]
    Unproven { names: Names, uid: String },
    /// The API server refused a write, or a Secret is invalid, and all other steps of the pass were done.
    #[error("{refusal}{}", .trouble.as_ref().map(|trouble| format!(". Also: {trouble}")).unwrap_or_default())]
    Incomplete {
        /// The first refused write.
        refusal: Box<ActError>,
        /// When to run the next pass for the other steps.
        next: Option<Timestamp>,
        /// Error of a Secret that the cluster refers to.
        trouble: Option<Box<SecretError>>,
    },
}

impl StepError for ActError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Secret(error) => error.reason(),
            Self::Journal(error) => error.reason(),
            Self::Unproven { .. } => names::reasons::NAMESPACE_CONFLICT,
            Self::Incomplete { refusal, .. } => match refusal.reason() {
                // A webhook that must be asked does not answer.
                "NoResponse" => names::reasons::WRITE_REFUSED,
                reason => reason,
            },
        }
    }

    fn remedy(&self) -> Remedy {
        let remedy = match self {
            Self::Write(error) => error.remedy(),
            Self::Secret(error) => error.remedy(),
            Self::Journal(error) => error.remedy(),
            Self::Unproven { .. } => Remedy::NeedsPerson,
            // With a backoff, the times of the steps that were done would not count.
            Self::Incomplete { refusal, .. } => match refusal.remedy() {
                Remedy::Retry => Remedy::NeedsPerson,
                remedy => remedy,
            },
        };
        match remedy {
            // A changed role or quota may end the refusal, and the operator watches neither.
            Remedy::NeedsPerson => Remedy::Wait(Duration::from_secs(30)),
            remedy => remedy,
        }
    }
}

impl ActError {
    /// Whether the API server refuses the request, and would refuse it again; or a Secret is invalid until a person corrects it.
    pub(crate) fn is_refusal(&self) -> bool {
        let refused = |error: &WriteError| match error {
            WriteError::Refused { .. } => true,
            // Nothing was written, and other objects may need no webhook.
            WriteError::Unknown { message, .. } => message.contains("failed calling webhook"),
            _ => false,
        };
        match self {
            Self::Write(error)
            | Self::Secret(SecretError::Write(error))
            | Self::Journal(JournalError::Write(error)) => refused(error),
            Self::Secret(SecretError::Broken(..)) | Self::Incomplete { .. } => true,
            Self::Secret(_) | Self::Journal(_) | Self::Unproven { .. } => false,
        }
    }

    /// When to run the next pass for the steps that were done.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        match self {
            Self::Incomplete { next, .. } => *next,
            _ => None,
        }
    }
}

/// The first write of a pass that was refused, or that an invalid Secret prevented.
#[derive(Default)]
pub(crate) struct Refusal(pub(crate) Option<ActError>);

impl Refusal {
    /// Notes a refusal, so that the pass continues with other objects. Any other error ends the pass.
    pub(crate) fn noted<T>(&mut self, outcome: Result<T, impl Into<ActError>>) -> Result<Option<T>, ActError> {
        match outcome.map_err(Into::into) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_refusal() => {
                self.0.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_that_does_not_answer_and_an_invalid_secret_stop_nothing_else() {
        let write = |message: &str| {
            ActError::Write(WriteError::Unknown {
                what: "Deployment kube-scheduler".to_owned(),
                message: message.to_owned(),
            })
        };
        let down = "500 Internal error occurred: failed calling webhook \"check.example\": failed to call webhook: Post \"https://check\": timeout";
        let broken = ActError::Secret(SecretError::Broken("fleetwright-seal".to_owned(), "no key".to_owned()));
        for (refusal, reason) in
            [(write(down), names::reasons::WRITE_REFUSED), (broken, names::reasons::INVALID_AUTHORITY)]
        {
            assert!(refusal.is_refusal());
            let error = ActError::Incomplete { refusal: Box::new(refusal), next: None, trouble: None };
            assert_eq!((error.reason(), error.remedy()), (reason, Remedy::Wait(Duration::from_secs(30))));
        }
        assert!(!write("500 etcdserver: request timed out").is_refusal());
    }

    #[test]
    fn a_refused_write_hides_neither_a_missing_secret_nor_when_to_look_again() {
        let (what, message) = ("PodDisruptionBudget etcd".to_owned(), "exceeded quota".to_owned());
        let refusal = Box::new(ActError::Write(WriteError::Refused { what, code: 403, message }));
        let trouble = Some(Box::new(SecretError::KeyLost { secret: "fleet/pay-snapshot-key".to_owned() }));
        let error = ActError::Incomplete { refusal, next: Some(Timestamp::UNIX_EPOCH), trouble };
        assert!(error.is_refusal());
        assert_eq!(
            (error.reason(), error.remedy()),
            (names::reasons::WRITE_REFUSED, Remedy::Wait(Duration::from_secs(30)))
        );
        assert_eq!(error.next(), Some(Timestamp::UNIX_EPOCH));
        let said = error.to_string();
        assert!(said.contains("exceeded quota") && said.contains("Secret fleet/pay-snapshot-key"), "{said}");
    }
}

//! Why a pass over a cluster fails: what is wrong with what is declared, and what could not be done.

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

/// What is wrong with what is declared.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Invalid {
    /// The package version is not there.
    #[error(
        "spec.packageVersion: ClusterPackageVersion {0} does not exist in the namespace: create it, or set another one"
    )]
    NoPackage(String),
    /// The spec that is acted on instead names a package version that is another one than when the spec was accepted.
    #[error(
        "{why}. ClusterPackageVersion {package} was recreated after it was accepted: the control plane is neither changed nor repaired until the whole spec is valid"
    )]
    Replaced { package: String, why: Box<Self> },
    /// An argument that the component does not know in this version. A component that has it does not start.
    #[error("{0}")]
    Argument(UnknownArgument),
    /// The namespace is another Cluster's.
    #[error(
        "Namespace {namespace} belongs to Cluster {other} and was not changed: create this Cluster under another name, or delete Cluster {other} first"
    )]
    Taken { namespace: String, other: String },
    /// ClusterLimits of the namespace do not allow it.
    #[error("{}", summary(.0))]
    Limits(Vec<Violation>),
    /// A Secret that it refers to is missing or not shared, and its pods would wait for it.
    #[error("{message}")]
    Secret {
        /// Which of both.
        reason: &'static str,
        /// Which Secret, by which field, and what to do.
        message: String,
    },
    /// Its API servers could not reach its pods: their addresses are in the meta cluster.
    #[error(
        "spec.network.pods {network} overlaps {meta}, a network of the meta cluster, so API servers could not reach these pods: delete this Cluster, for which nothing was created yet, and create it with spec.network.pods: {free}"
    )]
    Overlap {
        /// The network of pods.
        network: String,
        /// The network of the meta cluster.
        meta: Network,
        /// One that overlaps none.
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
            // What happens to that namespace wakes the other Cluster, and there is no watch on Secrets of people.
            Self::Taken { .. } | Self::Secret { .. } => Remedy::Wait(Duration::from_secs(30)),
        }
    }
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// It was not written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// A key or certificate was not made.
    #[error("{0}")]
    Secret(#[from] SecretError),
    /// An Operation was not driven on.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// The namespace has the labels of the Cluster, and the operator did not create it, or somebody put something into it before it was recorded.
    #[error(
        "Namespace {} has the labels of this Cluster, but it is not recorded in the status, and the operator did not create it with its present content. Nothing was changed in it: its creator may have rights in it, or pods that wait for the cluster's keys. Delete the namespace; or, if you trust everybody who has rights in it, record it, which requires the right to write clusters/status: {}",
        .names.namespace, adopt(.names, .uid)
    )]
    Unproven { names: Names, uid: String },
    /// The API server refused a write, and everything else of the pass was done.
    #[error("{refusal}{}", .trouble.as_ref().map(|trouble| format!(". Also: {trouble}")).unwrap_or_default())]
    Incomplete {
        /// The first write that was refused.
        refusal: Box<ActError>,
        /// When to look again for what else was done.
        next: Option<Timestamp>,
        /// A Secret that the cluster refers to cannot be had.
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
            Self::Incomplete { refusal, .. } => refusal.reason(),
        }
    }

    fn remedy(&self) -> Remedy {
        let remedy = match self {
            Self::Write(error) => error.remedy(),
            Self::Secret(error) => error.remedy(),
            Self::Journal(error) => error.remedy(),
            Self::Unproven { .. } => Remedy::NeedsPerson,
            Self::Incomplete { refusal, .. } => refusal.remedy(),
        };
        match remedy {
            // A role or a quota may end the refusal, and the operator watches neither.
            Remedy::NeedsPerson => Remedy::Wait(Duration::from_secs(30)),
            remedy => remedy,
        }
    }
}

impl ActError {
    /// The API server refuses what was written, and will again.
    pub(crate) fn is_refusal(&self) -> bool {
        let refused = |error: &WriteError| matches!(error, WriteError::Refused { .. });
        match self {
            Self::Write(error)
            | Self::Secret(SecretError::Write(error))
            | Self::Journal(JournalError::Write(error)) => refused(error),
            Self::Incomplete { .. } => true,
            Self::Secret(_) | Self::Journal(_) | Self::Unproven { .. } => false,
        }
    }

    /// When to look again for what was done in spite of it.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        match self {
            Self::Incomplete { next, .. } => *next,
            _ => None,
        }
    }
}

/// The first write of a pass that the API server refused.
#[derive(Default)]
pub(crate) struct Refusal(pub(crate) Option<ActError>);

impl Refusal {
    /// A refusal concerns what was written and nothing else: the pass goes on. Any other error ends it.
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
    fn a_refused_write_hides_neither_a_missing_secret_nor_when_to_look_again() {
        let (what, message) = ("PodDisruptionBudget etcd".to_owned(), "exceeded quota".to_owned());
        let refusal = Box::new(ActError::Write(WriteError::Refused { what, code: 403, message }));
        let trouble = Some(Box::new(SecretError::KeyLost { secret: "fleet/pay-snapshot-key".to_owned() }));
        let error = ActError::Incomplete { refusal, next: Some(Timestamp::UNIX_EPOCH), trouble };
        assert!(error.is_refusal());
        assert_eq!((error.reason(), error.remedy()), ("WriteRefused", Remedy::Wait(Duration::from_secs(30))));
        assert_eq!(error.next(), Some(Timestamp::UNIX_EPOCH));
        let said = error.to_string();
        assert!(said.contains("exceeded quota") && said.contains("Secret fleet/pay-snapshot-key"), "{said}");
    }
}

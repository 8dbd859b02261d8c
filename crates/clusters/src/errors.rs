//! Why a pass over a cluster fails: what is wrong with what is declared, and what could not be done.

use std::time::Duration;

use fleetwright_api::names;
use fleetwright_kit::journal::JournalError;
use fleetwright_kit::{Remedy, StepError, WriteError};
use fleetwright_plan::cluster::arguments::Unknown;
use fleetwright_plan::cluster::limits::{Violation, summary};
use fleetwright_plan::cluster::networks::Network;

use crate::secrets::SecretError;

/// What is wrong with what is declared.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Invalid {
    /// The package version is not there.
    #[error(
        "spec.packageVersion names {0}, which is not in the namespace: make that ClusterPackageVersion, or name another"
    )]
    NoPackage(String),
    /// An argument that the component does not know in this version. A component that has it does not start.
    #[error("{0}")]
    Argument(Unknown),
    /// The namespace is another Cluster's.
    #[error(
        "Namespace {namespace} of the control plane is of Cluster {other}, and nothing was done in it: give this Cluster another name, or delete Cluster {other} first"
    )]
    Taken { namespace: String, other: String },
    /// ClusterLimits of the namespace do not allow it.
    #[error("{}", summary(.0))]
    Limits(Vec<Violation>),
    /// What its API servers connect to at these addresses would be in the meta cluster.
    #[error(
        "{field} {network} overlaps {meta}, a network of the meta cluster: delete this Cluster, of which nothing was made, and create it with another network, such as {free}"
    )]
    Overlap {
        /// Which field.
        field: &'static str,
        /// What it says.
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
            Self::NoPackage(_) => names::reasons::NO_PACKAGE_VERSION,
            Self::Argument(_) => names::reasons::BAD_ARGUMENT,
            Self::Taken { .. } => names::reasons::NAMESPACE_TAKEN,
            Self::Limits(_) => names::reasons::LIMIT_EXCEEDED,
            Self::Overlap { .. } => names::reasons::NETWORK_OVERLAPS,
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::NoPackage(_) | Self::Argument(_) | Self::Limits(_) | Self::Overlap { .. } => Remedy::Person,
            // What happens to that namespace wakes the other Cluster.
            Self::Taken { .. } => Remedy::Wait(Duration::from_secs(30)),
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
}

impl StepError for ActError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Secret(error) => error.reason(),
            Self::Journal(error) => error.reason(),
        }
    }

    fn remedy(&self) -> Remedy {
        let remedy = match self {
            Self::Write(error) => error.remedy(),
            Self::Secret(error) => error.remedy(),
            Self::Journal(error) => error.remedy(),
        };
        match remedy {
            // A role or a quota may end the refusal, and the operator watches neither.
            Remedy::Person => Remedy::Wait(Duration::from_secs(30)),
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
            Self::Secret(_) | Self::Journal(_) => false,
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

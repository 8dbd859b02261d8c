//! The errors of a patch or an apply.

use thiserror::Error;

/// Why an apply, or the bookkeeping of a write, failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MergeError {
    /// The request itself is wrong (400).
    #[error("{0}")]
    BadRequest(String),
    /// Others own fields that the apply would change (409, reason Conflict).
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// The object does not fit its schema, or what is stored cannot be read (500).
    #[error("{0}")]
    Internal(String),
}

/// One field that an apply would take from its owner: a cause of the Status, with reason `FieldManagerConflict`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The owner as messages name it: `"kubectl" using apps/v1`.
    pub manager: String,
    /// The cause's message: `conflict with "kubectl" using apps/v1`.
    pub message: String,
    /// The cause's field: `.spec.replicas`.
    pub field: String,
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: {}: {}", only.message, only.field);
    }
    let mut lines = Vec::new();
    let mut manager = None;
    // The conflicts of one manager stand together.
    for conflict in conflicts {
        if manager != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.manager));
            manager = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Why a patch could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The patch is not a patch (400).
    #[error("{0}")]
    BadRequest(String),
    /// The patch is too large (413).
    #[error("{0}")]
    TooLarge(String),
    /// The patch does not fit the object (422).
    #[error("{0}")]
    Unprocessable(String),
    /// The patch cannot be worked out (500).
    #[error("{0}")]
    Internal(String),
}

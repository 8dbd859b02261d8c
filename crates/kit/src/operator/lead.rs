//! Whether this process leads.

use tokio::task::JoinSet;

use super::Operator;

/// The lease, if the operator holds one; without one it always leads.
pub(super) enum Lead {
    Always,
}

impl Lead {
    pub fn start(operator: &Operator, _tasks: &mut JoinSet<()>) -> Self {
        assert!(operator.settings.lease.is_none(), "leases are not served yet");
        Self::Always
    }

    /// Returns when we lead.
    pub async fn leads(&self) {}

    /// Returns when the lease is lost, and says how.
    pub async fn lost(&self) -> String {
        std::future::pending().await
    }

    /// Gives the lease back.
    pub async fn release(self, _tasks: &mut JoinSet<()>) {}
}

//! The leadership of this process.

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::Operator;
use crate::client::{self, Fence};
use crate::leader::{Leader, Leading};

/// The lease, if the operator holds one; without one it always leads.
pub(super) enum Lead {
    Always,
    Lease {
        state: watch::Receiver<Leading>,
        stop: oneshot::Sender<()>,
        /// The task of the leader. It is aborted on drop.
        task: JoinSet<()>,
    },
}

impl Lead {
    pub fn start(operator: &Operator) -> Self {
        let settings = &operator.settings;
        let Some(lease) = settings.lease.clone() else { return Self::Always };
        let (clock, metrics) = (settings.clock.clone(), settings.metrics.clone());
        // The leader's own calls open the fence, so they do not ask it.
        let client =
            client::wrap(settings.client.clone(), Fence::open(), clock.clone(), metrics.clone(), &settings.name);
        let leader = Leader::new(client, lease, clock, settings.random.clone(), operator.fence.clone(), metrics);
        let state = leader.watch();
        operator.health.follow(state.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let mut task = JoinSet::new();
        task.spawn(async move {
            // A lost lease is visible in the state; a dropped sender means the same as a stop.
            let _ = leader.run(async { drop(stopped.await) }).await;
        });
        Self::Lease { state, stop, task }
    }

    /// Returns when this process leads.
    pub async fn leads(&self) {
        if let Self::Lease { state, .. } = self
            && state.clone().wait_for(|state| *state == Leading::Leading).await.is_err()
        {
            // The leader's task has ended: `lost` reports that.
            std::future::pending().await
        }
    }

    /// Returns when the lease is lost, with the reason.
    pub async fn lost(&self) -> String {
        let Self::Lease { state, .. } = self else { return std::future::pending().await };
        match state.clone().wait_for(|state| matches!(state, Leading::Lost { .. })).await.as_deref() {
            Ok(Leading::Lost { why }) => why.clone(),
            _ => "the task that renews it has ended".to_owned(),
        }
    }

    /// Releases the lease, so that another process can lead at once.
    pub async fn release(self) {
        if let Self::Lease { stop, mut task, .. } = self {
            let _ = stop.send(());
            task.join_next().await;
        }
    }
}

//! Intercepts requests to an API server: checks the etcd connection and applies the version's defect.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_apiserver::{HealthCheck, InterceptAction, InterceptedRequest, Interceptor, Removal};
use fleetwright_kit::Clock;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::super::{Removals, VersionDefect};
use super::etcd_connection::EtcdConnection;

/// How long a request waits for etcd.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Passes requests on while etcd answers.
pub(super) struct EtcdInterceptor {
    pub(super) etcd_connection: Arc<EtcdConnection>,
    pub(super) clock: Clock,
    pub(super) bad: Option<VersionDefect>,
    pub(super) removals: Removals,
}

impl EtcdInterceptor {
    /// Whether etcd answers, after a wait if necessary.
    async fn open(&self) -> bool {
        if self.etcd_connection.state(self.clock.now()).is_ok() {
            return true;
        }
        let mut patience = std::pin::pin!(self.clock.sleep(WAIT_TIMEOUT));
        let mut member_events = self.etcd_connection.member_events();
        let mut changed = self.etcd_connection.bound.get().map(|cluster| cluster.watch());
        loop {
            let cluster = async {
                match &mut changed {
                    Some(changed) => changed.changed().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut patience => return false,
                () = member_events.next() => {}
                _ = cluster => {}
            }
            if self.etcd_connection.state(self.clock.now()).is_ok() {
                return true;
            }
        }
    }
}

impl Interceptor for EtcdInterceptor {
    fn intercept<'a>(&'a self, _: InterceptedRequest<'a>) -> BoxFuture<'a, InterceptAction> {
        async {
            if let Some(VersionDefect::Slow(time)) = self.bad {
                self.clock.sleep(time).await;
            }
            if !self.open().await {
                return InterceptAction::Refuse(500, "etcdserver: request timed out".to_owned());
            }
            if self.bad == Some(VersionDefect::WrongAnswers) {
                InterceptAction::Pretend
            } else {
                InterceptAction::Continue
            }
        }
        .boxed()
    }

    fn checks(&self) -> Vec<HealthCheck> {
        let passed = self.etcd_connection.state(self.clock.now()).is_ok();
        let mut checks = vec![
            HealthCheck { name: "etcd", live: true, passed },
            HealthCheck { name: "etcd-readiness", live: false, passed },
        ];
        if self.bad == Some(VersionDefect::NeverReady) {
            checks.push(HealthCheck { name: "poststarthook/rbac/bootstrap-roles", live: false, passed: false });
        }
        checks
    }

    fn removals(&self) -> Vec<Removal> {
        self.removals.all()
    }
}

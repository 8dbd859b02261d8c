//! What stands between an API server's clients and its objects: the way to etcd, and what is wrong with its version.

use std::sync::Arc;
use std::time::Duration;

use fleetwright_apiserver::{Asked, Check, Gate, Passage, Removal};
use fleetwright_kit::Clock;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::super::{Bad, Removals};
use super::link::Link;

/// How long a request waits for etcd.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lets requests through while etcd answers.
pub(super) struct Door {
    pub(super) link: Arc<Link>,
    pub(super) clock: Clock,
    pub(super) bad: Option<Bad>,
    pub(super) removals: Removals,
}

impl Door {
    /// Whether etcd answers, after a wait if need be.
    async fn open(&self) -> bool {
        if self.link.state(self.clock.now()).is_ok() {
            return true;
        }
        let mut patience = std::pin::pin!(self.clock.sleep(PATIENCE));
        let mut news = self.link.news();
        let mut changed = self.link.bound.get().map(|cluster| cluster.watch());
        loop {
            let cluster = async {
                match &mut changed {
                    Some(changed) => changed.changed().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut patience => return false,
                () = news.next() => {}
                _ = cluster => {}
            }
            if self.link.state(self.clock.now()).is_ok() {
                return true;
            }
        }
    }
}

impl Gate for Door {
    fn pass<'a>(&'a self, _: Asked<'a>) -> BoxFuture<'a, Passage> {
        async {
            if let Some(Bad::Slow(time)) = self.bad {
                self.clock.sleep(time).await;
            }
            if !self.open().await {
                return Passage::Refuse(500, "etcdserver: request timed out".to_owned());
            }
            if self.bad == Some(Bad::WrongAnswers) { Passage::Pretend } else { Passage::Go }
        }
        .boxed()
    }

    fn checks(&self) -> Vec<Check> {
        let passed = self.link.state(self.clock.now()).is_ok();
        let mut checks =
            vec![Check { name: "etcd", live: true, passed }, Check { name: "etcd-readiness", live: false, passed }];
        if self.bad == Some(Bad::NeverReady) {
            checks.push(Check { name: "poststarthook/rbac/bootstrap-roles", live: false, passed: false });
        }
        checks
    }

    fn removals(&self) -> Vec<Removal> {
        self.removals.all()
    }
}

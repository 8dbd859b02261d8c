//! Many controllers in one process.

use std::future::Future;

use crate::leader::Lease;
use crate::{Cache, Change, Clock, Controller, Key, Options, Random, Source, View, Waker};

/// What an operator is made of.
pub struct Settings {
    /// In lower case, such as `fleetwright-readiness`: the user agent and the reporting controller of events.
    pub name: String,
    /// How to reach the API server. The kit adds fence, counting and retry around it.
    pub client: kube::Client,
    /// Tells the time.
    pub clock: Clock,
    /// Jitter and backoff come from it.
    pub random: Random,
    /// The lease to hold; without one there must be only one process.
    pub lease: Option<Lease>,
    /// Panic when a pass makes more calls than its controller declared. For tests.
    pub strict_budgets: bool,
}

/// Caches and controllers, run together.
pub struct Operator {
    _settings: Settings,
}

impl Operator {
    /// Without caches or controllers yet.
    pub fn new(_settings: Settings) -> Self {
        todo!()
    }

    /// The client with fence and counting, for making [`kube::Api`]s.
    pub fn client(&self) -> kube::Client {
        todo!()
    }

    /// Who we are: the identity of the lease, or the operator's name without one.
    pub fn identity(&self) -> &str {
        todo!()
    }

    /// The operator's name.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// Adds a cache. It fills when the operator runs.
    pub fn cache<V: View>(&mut self, _source: Source<V>) -> Cache<V> {
        todo!()
    }

    /// Adds a controller.
    pub fn controller<C: Controller>(&mut self, _controller: C, _options: Options) -> Wakes<'_> {
        todo!()
    }

    /// Serves until `stop` is ready; then finishes the passes under way, gives the lease back and returns, within seconds.
    ///
    /// # Errors
    /// When it cannot go on: nothing that waiting would mend.
    pub async fn run(self, _stop: impl Future<Output = ()> + Send) -> Result<(), RunError> {
        todo!()
    }
}

/// Why an operator ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The lease was lost: another leads now. The process should end and start anew.
    #[error("the lease was lost: {0}")]
    LeaseLost(String),
}

/// Says what wakes a controller.
pub struct Wakes<'a> {
    _operator: &'a mut Operator,
}

impl Wakes<'_> {
    /// A change in that cache wakes the objects that `keys` names.
    #[must_use = "what wakes a controller is complete only when all of it is said"]
    pub fn on<V: View>(
        self,
        _cache: &Cache<V>,
        _keys: impl Fn(&Change<'_, V>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        todo!()
    }

    /// What is woken by hand. An implementation calls [`Waker`]'s `attach`.
    #[must_use = "what wakes a controller is complete only when all of it is said"]
    pub fn by(self, waker: &Waker) -> Self {
        waker.attach(|_key| todo!());
        self
    }
}

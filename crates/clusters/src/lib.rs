//! The Cluster-Operator: it creates a control plane of pods for each `Cluster`, proves that the control plane works, and repairs it.
//!
//! The decisions are made in [`fleetwright_plan::cluster`], by pure functions. This crate has the I/O: caches of the declared objects and of the
//! objects of the meta cluster, certificates, and proofs, which do real work at each API server.
//!
//! Guarantees:
//! - a pass never waits for a business cluster, except, for seconds, for one Operation that releases its machines, deletes objects of its extensions
//!   or changes the members of its etcd;
//! - private keys are generated once, are stored in Secrets only, and are read only by the processes that sign or connect with them;
//! - a cluster without changes costs one proof for each API server in each period, and no write;
//! - Secrets are read and objects are written only in the namespaces of control planes, and in those of the Clusters and of the operator itself;
//! - objects of another cluster are never changed: all objects of a cluster are in a namespace of its own, with its labels.

mod accepted;
mod access;
mod act;
mod background_tasks;
mod caches;
mod cluster;
mod cluster_plan;
mod connect;
mod creation;
mod deletion;
mod deletion_operation;
mod errors;
mod extension_tasks;
mod heal;
mod joined;
mod keys;
mod members;
mod messages;
mod meters;
mod namespace_claim;
mod observe;
mod operations;
mod proofs;
mod prune;
mod restore;
mod rules;
mod secret_copies;
mod secrets;
mod snapshots;
mod status;
mod survey;
mod thin;
mod trust_queries;
mod view;

use std::sync::Mutex;
use std::time::Duration;

use fleetwright_api::{Cluster, ClusterLimits};
use fleetwright_kit::journal::Journal;
use fleetwright_kit::{Budget, Change, Controller, FullObject, Key, Operator, Source, Waker};
use fleetwright_plan::cluster::PROVE_EVERY;
use fleetwright_plan::cluster::networks::{self, MetaNetworks};
use kube::Api;

pub use access::{Account, admission_policy, control_plane_role};
use background_tasks::BackgroundTasks;
use caches::{Caches, of_cluster};
use cluster::Clusters;
pub use cluster_plan::{ClusterSnapshot, limit_violations, limits};
use connect::MetaAccess;
use extension_tasks::ExtensionInstaller;
use meters::Meters;
use proofs::ProofRunner;
pub use rules::{Rules, rules};

/// Name of the controller of clusters.
pub const NAME: &str = "clusters";

/// Options of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Options of the controller of clusters.
    pub clusters: fleetwright_kit::Options,
    /// Number of concurrent proofs. Most of a proof is waiting for the renewal of leases.
    pub provers: usize,
    /// Number of clusters in which extensions are applied or checked concurrently.
    pub extenders: usize,
    /// Approximate interval at which objects of extensions are checked.
    pub look_after: Duration,
    /// Image of the operator, which the pods that take and restore snapshots run.
    pub image: &'static str,
    /// Account of the operator: it gets its rights in the namespace of each control plane, and its namespace has the sealed copies of keys.
    /// `None` for an administrator, who has all rights: then no RoleBinding is created, and the copies are in the namespaces of the Clusters.
    pub account: Option<Account>,
    /// Networks of the meta cluster, which control planes must not reach.
    pub networks: &'static MetaNetworks,
}

/// Default image of this version.
pub const IMAGE: &str = concat!("ghcr.io/fleetwright/fleetwright:v", env!("CARGO_PKG_VERSION"));

impl Default for Options {
    fn default() -> Self {
        Self {
            clusters: fleetwright_kit::Options { workers: 16, ..fleetwright_kit::Options::default() },
            provers: 256,
            extenders: 32,
            look_after: PROVE_EVERY,
            image: IMAGE,
            account: None,
            networks: &networks::UNKNOWN_NETWORKS,
        }
    }
}

/// Adds the caches and the controller for the clusters of one namespace.
pub fn add(operator: &mut Operator, namespace: &str, options: Options) {
    let client = operator.client();
    let labels = format!("{}={namespace}", fleetwright_api::names::CLUSTER_NAMESPACE);
    macro_rules! cache {
        () => {
            operator.cache(
                Source::new(Api::all(client.clone()))
                    .labels(&labels)
                    .index(caches::BY_NAMESPACE, |key, _| vec![key.namespace.to_string()]),
            )
        };
    }
    let namespaces = Source::<view::NamespaceView>::new(Api::all(client.clone())).labels(&labels);
    let namespaces = operator.cache(namespaces);
    // Not the Secrets of the whole meta cluster: only those of control planes, and of the operator itself.
    let keys = options.account.map_or(namespace, |account| account.namespace);
    let secrets = Source::<view::SecretView>::within(client.clone(), &namespaces, |one| !one.ending).also(keys);
    let secrets = secrets.labels(&labels).index(caches::BY_NAMESPACE, |key, _| vec![key.namespace.to_string()]);
    let caches = Caches {
        keys: keys.into(),
        bindings: options
            .account
            .map(|_| operator.cache(Source::<view::BindingView>::new(Api::all(client.clone())).labels(&labels))),
        clusters: operator.cache(
            Source::new(Api::<Cluster>::namespaced(client.clone(), namespace))
                .index(caches::BY_PACKAGE, |_, cluster: &view::ClusterView| caches::packages(cluster)),
        ),
        packages: operator.cache(Source::<view::PackageView>::new(Api::namespaced(client.clone(), namespace))),
        limits: operator.cache(Source::<FullObject<ClusterLimits>>::new(Api::namespaced(client.clone(), namespace))),
        secrets: operator.cache(secrets),
        namespaces,
        config_maps: cache!(),
        services: cache!(),
        policies: cache!(),
        budgets: cache!(),
        stateful_sets: cache!(),
        deployments: cache!(),
        pods: cache!(),
        claims: cache!(),
        classes: operator.cache(Source::new(Api::all(client.clone()))),
    };
    let waker = Waker::new();
    let clock = operator.clock().clone();
    let meters = Meters::new(operator.metrics(), caches.clusters.clone(), clock.clone());
    Meters::networks(operator.metrics(), options.networks.networks.len());
    if options.networks.networks.is_empty() {
        tracing::warn!(
            "no network of the meta cluster is configured: API servers of business clusters may connect to its pods, Services and nodes; set --meta-network"
        );
    }
    macro_rules! background {
        ($work:literal, $places:expr) => {{
            let meta = MetaAccess {
                client: client.clone(),
                calls: meters.calls($work),
                fence: operator.fence(),
                clock: clock.clone(),
            };
            BackgroundTasks::new(meta, clock.clone(), waker.clone(), $places)
        }};
    }
    let members = background!("members", options.provers);
    let journal = Journal::add(operator, namespace, ());
    let provers = ProofRunner::new(background!("probes", options.provers), meters.clone());
    let extenders = ExtensionInstaller::new(background!("extensions", options.extenders), meters.clone());
    let askers = background!("machines", options.extenders);
    let followers = background!("followers", options.provers);
    let surveys = background!("preflight", options.provers);
    let controller = Clusters {
        caches: caches.clone(),
        provers,
        surveys,
        members,
        journal: journal.clone(),
        extenders,
        askers,
        followers,
        look_after: options.look_after,
        image: options.image,
        account: options.account,
        networks: options.networks,
        meters,
        rested: Mutex::default(),
        wrote: Mutex::default(),
        kept: Mutex::default(),
        created: Mutex::default(),
    };
    let fleet = namespace.to_owned();
    let (by_package, limited, sealed) = (caches.clone(), caches.clusters.clone(), caches.clusters.clone());
    let mut wakes = operator
        .controller(controller, options.clusters)
        .on(&caches.clusters, |change: &Change<'_, view::ClusterView>| vec![change.key.clone()])
        .on(&caches.packages, move |change| {
            let clusters = by_package.clusters.by(caches::BY_PACKAGE, &change.key.name);
            clusters.into_iter().map(|(key, _)| key).collect()
        })
        .on(&caches.limits, move |change: &Change<'_, FullObject<ClusterLimits>>| {
            let concerns =
                |key: &Key| change.old.into_iter().chain(change.new).any(|one| one.0.spec.applies_to(&key.name));
            limited.keys().into_iter().filter(concerns).collect()
        })
        .on(&caches.secrets, move |change| if caches::seal_changed(change) { sealed.keys() } else { Vec::new() });
    macro_rules! on {
        ($($cache:ident),*) => {
            $(
                let fleet_of = fleet.clone();
                wakes = wakes.on(&caches.$cache, move |change| of_cluster(&fleet_of, change).into_iter().collect::<Vec<Key>>());
            )*
        };
    }
    on!(namespaces, secrets, config_maps, services, policies, budgets, stateful_sets, deployments, pods, claims);
    if let Some(bindings) = &caches.bindings {
        let fleet_of = fleet.clone();
        wakes = wakes.on(bindings, move |change| of_cluster(&fleet_of, change).into_iter().collect::<Vec<Key>>());
    }
    drop(journal.wake(wakes.by(&waker), operations::KIND));
}

/// Maximum number of calls of a pass of each controller.
pub fn budgets() -> Vec<(&'static str, Budget)> {
    vec![(Clusters::NAME, Clusters::BUDGET)]
}

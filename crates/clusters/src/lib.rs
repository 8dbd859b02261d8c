//! The Cluster-Operator: one `Cluster` becomes a control plane that runs as pods, proven to work, and is kept so.
//!
//! What is to be done is decided in [`fleetwright_plan::cluster`], by pure functions. Here are the means: caches of what is declared and of what
//! the meta cluster has, certificates, and provers, which do real work at each API server.
//!
//! Guarantees:
//! - a pass never waits for a business cluster, but for one Operation that releases its machines, deletes objects of its extensions or changes the members of its etcd, for seconds;
//! - private keys are made once, are in Secrets only, and are read only by who signs or connects;
//! - a cluster at rest costs one proof for each API server in each period, and no write;
//! - Secrets are read and objects are written only in the namespaces of control planes, and in those of the Clusters and of the operator itself;
//! - nothing of another cluster is ever touched: everything of one is in a namespace of its own, with its labels.

mod accepted;
mod access;
mod act;
mod borrow;
mod claim;
mod cluster;
mod connect;
mod ending;
mod errands;
mod errors;
mod extend;
mod eyes;
mod follow;
mod heal;
mod joined;
mod keys;
mod members;
mod meters;
mod observe;
mod operations;
mod prove;
mod prune;
mod rehearse;
mod restore;
mod rules;
mod secrets;
mod snapshots;
mod status;
mod survey;
mod thin;
mod view;
mod words;

use std::sync::Mutex;
use std::time::Duration;

use fleetwright_api::{Cluster, ClusterLimits};
use fleetwright_kit::journal::Journal;
use fleetwright_kit::{Budget, Change, Controller, Key, Operator, Source, Waker, Whole};
use fleetwright_plan::cluster::PROVE_EVERY;
use fleetwright_plan::cluster::networks::{self, MetaNetworks};
use kube::Api;

pub use access::{Account, admission_policy, control_plane_role};
use cluster::Clusters;
use connect::Meta;
use errands::Errands;
use extend::Extenders;
use eyes::{Eyes, of_cluster};
use joined::Askers;
use members::Members;
use meters::Meters;
use prove::Provers;
pub use rehearse::{Present, beyond, limits};
pub use rules::{Rules, rules};
use survey::Surveys;

/// The name of the controller of clusters.
pub const NAME: &str = "clusters";

/// How the operator is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How the controller of clusters is run.
    pub clusters: fleetwright_kit::Options,
    /// How many API servers are proven at the same time. Most of a proof is waiting until leases move.
    pub provers: usize,
    /// In how many clusters extensions are worked on at the same time.
    pub extenders: usize,
    /// What extensions brought is looked at again about this often.
    pub look_after: Duration,
    /// The operator's own image: pods that take and restore snapshots are of it.
    pub image: &'static str,
    /// The account that the operator runs as: it is given its rights in each control plane's namespace, and its namespace holds the sealed copies of keys.
    /// None for an administrator, who has all rights: then no RoleBinding is made, and the copies are beside the Clusters.
    pub account: Option<Account>,
    /// The networks of the meta cluster, which control planes must not reach.
    pub networks: &'static MetaNetworks,
}

/// The image of this version, where nobody names another.
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
            networks: &networks::UNKNOWN,
        }
    }
}

/// Adds the caches and the controller that keep the clusters of one namespace.
pub fn add(operator: &mut Operator, namespace: &str, options: Options) {
    let client = operator.client();
    let labels = format!("{}={namespace}", fleetwright_api::names::CLUSTER_NAMESPACE);
    macro_rules! cache {
        () => {
            operator.cache(
                Source::new(Api::all(client.clone()))
                    .labels(&labels)
                    .index(eyes::BY_NAMESPACE, |key, _| vec![key.namespace.to_string()]),
            )
        };
    }
    let namespaces = Source::<view::NamespaceView>::new(Api::all(client.clone())).labels(&labels);
    let namespaces = operator.cache(namespaces);
    // Not the Secrets of the whole meta cluster: those of control planes, and of the operator itself.
    let keys = options.account.map_or(namespace, |account| account.namespace);
    let secrets = Source::<view::SecretView>::within(client.clone(), &namespaces, |one| !one.ending).also(keys);
    let secrets = secrets.labels(&labels).index(eyes::BY_NAMESPACE, |key, _| vec![key.namespace.to_string()]);
    let eyes = Eyes {
        keys: keys.into(),
        bindings: options
            .account
            .map(|_| operator.cache(Source::<view::BindingView>::new(Api::all(client.clone())).labels(&labels))),
        clusters: operator.cache(
            Source::new(Api::<Cluster>::namespaced(client.clone(), namespace))
                .index(eyes::BY_PACKAGE, |_, cluster: &view::ClusterView| eyes::packages(cluster)),
        ),
        packages: operator.cache(Source::<view::PackageView>::new(Api::namespaced(client.clone(), namespace))),
        limits: operator.cache(Source::<Whole<ClusterLimits>>::new(Api::namespaced(client.clone(), namespace))),
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
    let meters = Meters::new(operator.metrics(), eyes.clusters.clone(), clock.clone());
    Meters::networks(operator.metrics(), options.networks.networks.len());
    if options.networks.networks.is_empty() {
        tracing::warn!(
            "no network of the meta cluster is configured: API servers of business clusters may connect to its pods, Services and nodes; set --meta-network"
        );
    }
    macro_rules! errands {
        ($work:literal, $places:expr) => {{
            let meta = Meta {
                client: client.clone(),
                calls: meters.calls($work),
                fence: operator.fence(),
                clock: clock.clone(),
            };
            Errands::new(meta, clock.clone(), waker.clone(), $places)
        }};
    }
    let members = Members(errands!("members", options.provers));
    let journal = Journal::add(operator, namespace, ());
    let provers = Provers::new(errands!("probes", options.provers), meters.clone());
    let extenders = Extenders::new(errands!("extensions", options.extenders), meters.clone());
    let askers = Askers(errands!("machines", options.extenders));
    let followers = follow::Askers(errands!("followers", options.provers));
    let surveys = Surveys(errands!("preflight", options.provers));
    let controller = Clusters {
        eyes: eyes.clone(),
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
    let (by_package, limited, sealed) = (eyes.clone(), eyes.clusters.clone(), eyes.clusters.clone());
    let mut wakes = operator
        .controller(controller, options.clusters)
        .on(&eyes.clusters, |change: &Change<'_, view::ClusterView>| vec![change.key.clone()])
        .on(&eyes.packages, move |change| {
            let clusters = by_package.clusters.by(eyes::BY_PACKAGE, &change.key.name);
            clusters.into_iter().map(|(key, _)| key).collect()
        })
        .on(&eyes.limits, move |change: &Change<'_, Whole<ClusterLimits>>| {
            let concerns =
                |key: &Key| change.old.into_iter().chain(change.new).any(|one| one.0.spec.applies_to(&key.name));
            limited.keys().into_iter().filter(concerns).collect()
        })
        .on(&eyes.secrets, move |change| if eyes::seal_changed(change) { sealed.keys() } else { Vec::new() });
    macro_rules! on {
        ($($cache:ident),*) => {
            $(
                let fleet_of = fleet.clone();
                wakes = wakes.on(&eyes.$cache, move |change| of_cluster(&fleet_of, change).into_iter().collect::<Vec<Key>>());
            )*
        };
    }
    on!(namespaces, secrets, config_maps, services, policies, budgets, stateful_sets, deployments, pods, claims);
    if let Some(bindings) = &eyes.bindings {
        let fleet_of = fleet.clone();
        wakes = wakes.on(bindings, move |change| of_cluster(&fleet_of, change).into_iter().collect::<Vec<Key>>());
    }
    drop(journal.wake(wakes.by(&waker), operations::KIND));
}

/// The most calls that a pass of each controller makes.
pub fn budgets() -> Vec<(&'static str, Budget)> {
    vec![(Clusters::NAME, Clusters::BUDGET)]
}

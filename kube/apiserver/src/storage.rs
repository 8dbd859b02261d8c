//! The storage of servers, which corresponds to the etcd of kube-apiservers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fleetwright_pki::Authority;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::registry::Registry;
use crate::service_network::ServiceNetwork;
use crate::store::{Change, Draft, HistoryLimits, Key, Object, Precondition, Store};

/// The objects that are the same in all clusters.
static COMMON: OnceLock<Vec<(Arc<str>, Arc<Object>)>> = OnceLock::new();

/// The objects of one cluster, with their recent history. Clones are the same storage, and several servers may share one: a restarted server
/// finds the
/// earlier objects, and replicas see each other's writes.
#[derive(Clone)]
pub struct Storage {
    shared: Arc<Shared>,
}

struct Shared {
    limits: HistoryLimits,
    store: Store,
    /// By network: two servers must not allocate the same address.
    networks: Mutex<HashMap<String, Arc<ServiceNetwork>>>,
    /// The lock of the controllers: one of all servers that share the storage runs them.
    controllers_lock: Arc<tokio::sync::Mutex<()>>,
    manager: watch::Sender<Option<Arc<ControllerManager>>>,
}

/// The functions that a controller-manager outside of the servers adds.
#[derive(Clone, Debug, Default)]
pub struct ControllerManager {
    /// Signs approved certificate requests of clients, where the server has no authority of its own.
    pub signer: Option<Arc<Authority>>,
    /// Signs approved serving certificates of kubelets. It differs from the authority of the API servers: otherwise a serving certificate for a
    /// wrong name could impersonate the API server.
    pub kubelet_signer: Option<Arc<Authority>>,
    /// Fills the status of ResourceQuotas.
    pub quotas: bool,
}

/// A running controller-manager; dropping it stops it.
#[derive(Debug)]
pub struct ControllerManagerGuard {
    storage: Storage,
    manager: Arc<ControllerManager>,
}

impl ControllerManagerGuard {
    /// Whether it works on these objects, and no other has taken over.
    pub fn works_on(&self, storage: &Storage) -> bool {
        self.storage.is(storage) && self.is(self.storage.shared.manager.borrow().as_ref())
    }

    fn is(&self, now: Option<&Arc<ControllerManager>>) -> bool {
        now.is_some_and(|now| Arc::ptr_eq(now, &self.manager))
    }
}

impl Drop for ControllerManagerGuard {
    fn drop(&mut self) {
        self.storage.shared.manager.send_if_modified(|now| {
            let own = self.is(now.as_ref());
            if own {
                *now = None;
            }
            own
        });
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self::new(HistoryLimits::default())
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage(at revision {})", self.revision())
    }
}

impl Storage {
    /// An empty storage.
    pub fn new(limits: HistoryLimits) -> Self {
        Self::of(Store::new(limits.clone()), limits)
    }

    fn of(store: Store, limits: HistoryLimits) -> Self {
        let shared = Shared {
            limits,
            store,
            networks: Mutex::default(),
            controllers_lock: Arc::default(),
            manager: watch::Sender::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A storage with the objects that are the same in all clusters, such as Kubernetes' default roles: shared with the first server of the
    /// process, which created them, and so with
    /// their age. For processes with thousands of clusters. Empty until a server has been started.
    pub fn prepared(limits: HistoryLimits) -> Self {
        let objects = COMMON.get().map(Vec::as_slice).unwrap_or_default();
        if objects.is_empty() { Self::new(limits) } else { Self::of(Store::holding(limits.clone(), objects), limits) }
    }

    /// Whether the storage has never been written to.
    pub(crate) fn is_new(&self) -> bool {
        self.revision() <= 1
    }

    /// Records the objects that are the same in all clusters, from a storage that a server has just initialized.
    pub(crate) fn seed_common_objects(&self) {
        COMMON.get_or_init(|| {
            let all = |storage: &Arc<str>| {
                let page = self.shared.store.page(storage, None, None, None, 0, |_| true);
                page.map(|page| page.objects).unwrap_or_default()
            };
            let common = Registry::builtins()
                .iter()
                .filter(|resource| matches!(&*resource.group, "rbac.authorization.k8s.io" | "scheduling.k8s.io"));
            common
                .flat_map(|resource| {
                    all(&resource.storage).into_iter().map(|object| (resource.storage.clone(), object))
                })
                .collect()
        });
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.shared.store.revision()
    }

    /// The number of objects, and their size in bytes of JSON.
    pub fn size(&self) -> (usize, usize) {
        let mut size = (0, 0);
        for resource in self.shared.store.resources() {
            let page = self.shared.store.page(&resource, None, None, None, 0, |object| {
                size.0 += 1;
                size.1 += object.json.len();
                false
            });
            drop(page);
        }
        size
    }

    /// Whether both are the same storage.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Starts a controller-manager on these objects, which replaces an earlier one.
    pub fn manage(&self, manager: ControllerManager) -> ControllerManagerGuard {
        let manager = Arc::new(manager);
        self.shared.manager.send_replace(Some(manager.clone()));
        ControllerManagerGuard { storage: self.clone(), manager }
    }

    /// All objects as they are now, as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let store = &self.shared.store;
        let mut lines = format!("{}\n", json!({ "revision": store.revision() })).into_bytes();
        for resource in store.resources() {
            let page = store.page(&resource, None, None, None, 0, |_| true);
            for object in page.map(|page| page.objects).unwrap_or_default() {
                let head = json!({
                    "resource": &*resource, "namespace": &*object.key.namespace, "name": &*object.key.name,
                    "stamp": object.stamp, "fields": object.fields.iter().map(|(name, value)| (&**name, value)).collect::<Vec<_>>(),
                });
                lines.extend(head.to_string().into_bytes());
                lines.push(b'\n');
                lines.extend_from_slice(&object.json);
                lines.push(b'\n');
            }
        }
        lines
    }

    /// Restores the objects of a snapshot into a new storage. Their revisions are new ones, above those of the snapshot, so that clients of the
    /// old storage do not
    /// take them for older.
    ///
    /// # Errors
    /// The bytes are not a snapshot.
    pub fn restore(snapshot: &[u8], limits: HistoryLimits) -> Result<Self, String> {
        let mut lines = snapshot.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut read = |what: &str| -> Result<Option<Value>, String> {
            lines
                .next()
                .map(|line| serde_json::from_slice(line).map_err(|error| format!("{what}: {error}")))
                .transpose()
        };
        let head = read("the first line")?.ok_or("the snapshot is empty")?;
        let revision = head["revision"].as_u64().ok_or("the first line tells no revision")?;
        let store = Store::starting_at(limits.clone(), revision);
        while let Some(head) = read("a head")? {
            let object = read("an object")?.ok_or("the snapshot ends early")?;
            let text = |name: &str| head[name].as_str().unwrap_or_default().to_owned();
            let fields = head["fields"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|field| Some((Arc::from(field[0].as_str()?), field[1].as_str()?.to_owned())));
            let draft = Draft::new(&object, fields.collect(), head["stamp"].as_u64().unwrap_or_default());
            let key = Key::new(&text("namespace"), &text("name"));
            store
                .commit(&text("resource"), &key, Precondition::Absent, Change::Put(draft))
                .map_err(|error| error.to_string())?;
        }
        Ok(Self::of(store, limits))
    }

    /// The limits of its history.
    pub fn limits(&self) -> &HistoryLimits {
        &self.shared.limits
    }

    pub(crate) fn store(&self) -> &Store {
        &self.shared.store
    }

    pub(crate) fn networks(&self, cidr: &str) -> Result<Arc<ServiceNetwork>, String> {
        let mut all = self.shared.networks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(cidr) {
            return Ok(known.clone());
        }
        let networks = Arc::new(ServiceNetwork::new(cidr)?);
        all.insert(cidr.to_owned(), networks.clone());
        Ok(networks)
    }

    pub(crate) fn controllers_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.shared.controllers_lock.clone()
    }

    pub(crate) fn manager(&self) -> watch::Receiver<Option<Arc<ControllerManager>>> {
        self.shared.manager.subscribe()
    }
}

//! Where servers keep their objects: what etcd is to kube-apiservers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fleetwright_pki::Authority;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::admission::ServiceNetwork;
use crate::registry::Registry;
use crate::store::{Change, Draft, HistoryLimits, Key, Object, Precondition, Store};

/// What is the same in all clusters.
static COMMON: OnceLock<Vec<(Arc<str>, Arc<Object>)>> = OnceLock::new();

/// The objects of one cluster, and their recent past. Clones are the same storage, and several servers may share one: a restarted server finds what was
/// there before, and replicas see each other's writes.
#[derive(Clone)]
pub struct Storage {
    shared: Arc<Shared>,
}

struct Shared {
    limits: HistoryLimits,
    store: Store,
    /// By network: two servers must not give the same address.
    networks: Mutex<HashMap<String, Arc<ServiceNetwork>>>,
    /// Who holds it runs the controllers: one server of all that share the storage.
    controllers_lock: Arc<tokio::sync::Mutex<()>>,
    manager: watch::Sender<Option<Arc<ControllerManager>>>,
}

/// What a controller-manager outside of the servers adds to what they do by themselves.
#[derive(Clone, Debug, Default)]
pub struct ControllerManager {
    /// Signs approved certificate requests of clients, where the server has no authority of its own.
    pub signer: Option<Arc<Authority>>,
    /// Signs approved serving certificates of kubelets. Not the authority that API servers have theirs from: whoever gets a serving certificate for a
    /// wrong name could otherwise pose as the API server.
    pub kubelet_signer: Option<Arc<Authority>>,
    /// Fills the status of ResourceQuotas.
    pub quotas: bool,
}

/// A controller-manager at work; it stops when this is dropped.
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
    /// An empty one.
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

    /// One that begins with what is the same in all clusters, such as the roles that Kubernetes brings along: shared with the first server of the process, which made it, and so as old as
    /// that. For processes with thousands of clusters. Empty until a server has been started.
    pub fn prepared(limits: HistoryLimits) -> Self {
        let objects = COMMON.get().map(Vec::as_slice).unwrap_or_default();
        if objects.is_empty() { Self::new(limits) } else { Self::of(Store::holding(limits.clone(), objects), limits) }
    }

    /// Whether nothing was ever written to it.
    pub(crate) fn is_new(&self) -> bool {
        self.revision() <= 1
    }

    /// Remembers what is the same in all clusters, from one that a server has just begun.
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

    /// How many objects there are, and how many bytes of JSON they are.
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

    /// Whether two are the same.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A controller-manager begins to work on these objects, in place of one that did before.
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

    /// Objects as a snapshot has them, in a storage of their own. Their revisions are new ones, above those of the snapshot, so that nobody who saw the others
    /// takes them for older.
    ///
    /// # Errors
    /// The bytes are no snapshot.
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

    /// The limits that it was made with.
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

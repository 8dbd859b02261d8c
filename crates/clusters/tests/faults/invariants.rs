//! Sees everything that ever happens to Secrets and to members of etcd, and remembers what must not.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use fleetwright_api::names;
use fleetwright_plan::cluster::certificates::{Authority, SERVICE_ACCOUNT};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinHandle;

/// Watches the whole meta cluster until it is dropped.
pub struct DowntimeWatcher {
    seen: Arc<Mutex<WatchedState>>,
    tasks: [JoinHandle<()>; 4],
}

#[derive(Default)]
struct WatchedState {
    /// Everything that a Secret ever held, by namespace and name.
    held: BTreeMap<(String, String), BTreeSet<String>>,
    /// Every certificate of an authority that ever signed or was about to, by namespace and name.
    signers: BTreeMap<(String, String), BTreeSet<String>>,
    /// How often authorities of a namespace were to be replaced.
    rotations: BTreeMap<String, usize>,
    /// Members of etcd and whether they are well, by namespace.
    members: HashMap<String, BTreeMap<String, bool>>,
    /// How many members their StatefulSets have, by namespace.
    replicas: HashMap<String, i32>,
    /// The uids of all claims that ever were, by namespace and name.
    claims: BTreeMap<(String, String), BTreeSet<String>>,
    /// Namespaces whose members may go.
    ending: BTreeSet<String>,
    /// The most that were ever well at the same time, and the most that were missing since then.
    well: BTreeMap<String, (usize, usize)>,
}

impl DowntimeWatcher {
    pub fn start(client: Client) -> Self {
        let seen = Arc::<Mutex<WatchedState>>::default();
        let (secrets, pods, sets, claims) = (seen.clone(), seen.clone(), seen.clone(), seen.clone());
        let all_sets = Api::<StatefulSet>::all(client.clone());
        let all_claims = Api::<PersistentVolumeClaim>::all(client.clone());
        let (all_secrets, all_pods) = (Api::<Secret>::all(client.clone()), Api::<Pod>::all(client));
        let tasks = [
            tokio::spawn(async move {
                let mut events = watcher::watcher(all_secrets, watcher::Config::default()).boxed();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(Event::Apply(secret) | Event::InitApply(secret)) => lock(&secrets).secret(&secret),
                        Err(_) => again().await,
                        _ => {}
                    }
                }
            }),
            tokio::spawn(async move {
                let mut events = watcher::watcher(all_pods, watcher::Config::default()).boxed();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(Event::Apply(pod) | Event::InitApply(pod)) => lock(&pods).pod(&pod, false),
                        Ok(Event::Delete(pod)) => lock(&pods).pod(&pod, true),
                        Err(_) => again().await,
                        _ => {}
                    }
                }
            }),
            tokio::spawn(async move {
                let mut events = watcher::watcher(all_sets, watcher::Config::default()).boxed();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(Event::Apply(set) | Event::InitApply(set)) => lock(&sets).scaled(&set),
                        Err(_) => again().await,
                        _ => {}
                    }
                }
            }),
            tokio::spawn(async move {
                let mut events = watcher::watcher(all_claims, watcher::Config::default()).boxed();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(Event::Apply(claim) | Event::InitApply(claim)) => lock(&claims).claim(&claim),
                        Err(_) => again().await,
                        _ => {}
                    }
                }
            }),
        ];
        Self { seen, tasks }
    }

    /// From now on the members of that namespace may go.
    pub fn allow_removal(&self, namespace: &str) {
        lock(&self.seen).ending.insert(namespace.to_owned());
    }

    /// From now on no member of that namespace may go again.
    pub fn hold(&self, namespace: &str) {
        let mut seen = lock(&self.seen);
        seen.ending.remove(namespace);
        let well = seen.members.get(namespace).map_or(0, |members| members.values().filter(|well| **well).count());
        seen.well.insert(namespace.to_owned(), (well, 0));
    }

    /// How many volumes a claim of that name ever had.
    pub fn volumes(&self, namespace: &str, claim: &str) -> usize {
        lock(&self.seen).claims.get(&(namespace.to_owned(), claim.to_owned())).map_or(0, BTreeSet::len)
    }

    /// From now on the authorities of that namespace are replaced once more.
    pub fn rotates(&self, namespace: &str) {
        *lock(&self.seen).rotations.entry(namespace.to_owned()).or_default() += 1;
    }

    /// Fails if something happened that must not.
    pub fn judge(&self) -> Result<()> {
        let seen = lock(&self.seen);
        let once = Authority::ALL.map(Authority::secret).into_iter().chain([SERVICE_ACCOUNT]);
        for name in once {
            for ((namespace, _), held) in seen.held.iter().filter(|((_, own), _)| own == name) {
                let rotations = seen.rotations.get(namespace).copied().unwrap_or_default();
                // The key of tokens is not rotated. An authority is made once for each rotation, and the new one is added, signs, and is the only one then.
                let (signers, contents) =
                    if name == SERVICE_ACCOUNT { (0, 1) } else { (1 + rotations, 1 + 3 * rotations) };
                let made = seen.signers.get(&(namespace.clone(), name.to_owned())).map_or(0, BTreeSet::len);
                if made > signers || held.len() > contents {
                    bail!(
                        "Secret {namespace}/{name} held {} different contents and {made} authorities, and was to be replaced {rotations} times",
                        held.len()
                    );
                }
            }
        }
        for (namespace, (well, missing)) in &seen.well {
            if *missing > 1 {
                bail!("{missing} of {well} members of the etcd of {namespace} were missing at once");
            }
        }
        match seen.held.is_empty() || seen.well.is_empty() {
            true => bail!("nothing was seen at all: the witness is blind"),
            false => Ok(()),
        }
    }
}

impl Drop for DowntimeWatcher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A server that is gone answers with an error at once, every time: a loop without a wait would never end.
async fn again() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// The number at the end of a member's name.
fn ordinal(name: &str) -> i32 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn lock(seen: &Mutex<WatchedState>) -> MutexGuard<'_, WatchedState> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WatchedState {
    fn secret(&mut self, secret: &Secret) {
        let key = (secret.namespace().unwrap_or_default(), secret.name_any());
        let content = serde_json::to_string(&secret.data).unwrap_or_default();
        let data = secret.data.iter().flatten().filter(|(key, _)| ["tls.crt", "next.crt"].contains(&key.as_str()));
        let certificates = data.map(|(_, value)| String::from_utf8_lossy(&value.0).trim().to_owned());
        self.signers.entry(key.clone()).or_default().extend(certificates);
        self.held.entry(key).or_default().insert(content);
    }

    fn claim(&mut self, claim: &PersistentVolumeClaim) {
        let key = (claim.namespace().unwrap_or_default(), claim.name_any());
        self.claims.entry(key).or_default().extend(claim.uid());
    }

    /// Members that a StatefulSet has no more are not missed.
    fn scaled(&mut self, set: &StatefulSet) {
        if set.name_any() != "etcd" {
            return;
        }
        let replicas = set.spec.replicas.unwrap_or(1);
        let namespace = set.namespace().unwrap_or_default();
        if let Some(members) = self.members.get_mut(&namespace) {
            members.retain(|name, _| ordinal(name) < replicas);
            if let Some((most, _)) = self.well.get_mut(&namespace) {
                *most = members.len().min(*most);
            }
        }
        self.replicas.insert(namespace, replicas);
    }

    fn pod(&mut self, pod: &Pod, gone: bool) {
        if pod.labels().get(names::COMPONENT).is_none_or(|component| component != "etcd") {
            return;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let members = self.members.entry(namespace.clone()).or_default();
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
        if self.replicas.get(&namespace).is_some_and(|replicas| ordinal(&pod.name_any()) >= *replicas) {
            members.remove(&pod.name_any());
            return;
        }
        members.insert(pod.name_any(), ready && !gone && pod.metadata.deletion_timestamp.is_none());
        let well = members.values().filter(|well| **well).count();
        if self.ending.contains(&namespace) {
            return;
        }
        let (most, missing) = self.well.entry(namespace).or_default();
        *most = well.max(*most);
        // While the first come up, none is missing yet.
        if *most == members.len() {
            *missing = (*most - well).max(*missing);
        }
    }
}

//! Machines, Nodes and reports.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleetwright_api::names::{MACHINE, REPORT_DATA, REPORTER, UNREADY_TAINT};
use fleetwright_api::{Machine, ReadinessGates};
use fleetwright_lab::define;
use fleetwright_lab::measure::MeasuredServer;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

/// The namespace of the machines.
pub(crate) const NAMESPACE: &str = "fleet";
/// The reporters of each machine, and their condition types.
pub(crate) const REPORTERS: [(&str, &str); 3] =
    [("log-agent", "LogAgentReady"), ("network", "NetworkReady"), ("storage", "StorageReady")];

/// Requests at the same time while the fleet grows.
const AT_ONCE: usize = 32;

/// The machines and the observed state of their Nodes.
pub(crate) struct Fleet {
    pub(crate) client: Client,
    pub(crate) size: usize,
    seen: Arc<ObservedNodes>,
    watching: JoinHandle<()>,
}

/// The observed state of a Node: whether it is open, and when it last opened and closed.
#[derive(Default)]
struct NodeTimes {
    open: bool,
    opened: Option<Instant>,
    closed: Option<Instant>,
}

/// The observed state of all Nodes.
#[derive(Default)]
pub(crate) struct ObservedNodes {
    nodes: Mutex<HashMap<String, NodeTimes>>,
    changed: tokio::sync::Notify,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

pub(crate) fn name(number: usize) -> String {
    format!("host-{number:05}")
}

impl Fleet {
    /// A fleet with the CRDs, a namespace, and gates that may close any number of machines.
    pub(crate) async fn new(server: &MeasuredServer) -> Result<Self> {
        let client = server.client();
        define(&client, &fleetwright_api::crds()).await?;
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let mut conditions = vec![
            json!({ "type": "PackagesReady" }),
            json!({ "type": "NodeReady", "from": { "nodeCondition": "Ready" } }),
        ];
        conditions
            .extend(REPORTERS.map(|(reporter, type_)| json!({ "type": type_, "from": { "reporter": reporter } })));
        let gates: ReadinessGates = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "ReadinessGates", "metadata": { "name": "workers" },
            "spec": { "selector": {}, "conditions": conditions, "safetyNet": { "max": "100%" } },
        }))?;
        Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &gates).await?;
        let seen = Arc::new(ObservedNodes::default());
        let watching = tokio::spawn(watch(client.clone(), seen.clone()));
        Ok(Self { client, size: 0, seen, watching })
    }

    /// Adds machines up to that number, each with its closed Node and its reports, all healthy.
    pub(crate) async fn grow_to(&mut self, size: usize) -> Result<()> {
        let fleet = &*self;
        futures::stream::iter(self.size..size)
            .map(|number| async move { fleet.add(number).await })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.size = self.size.max(size);
        Ok(())
    }

    /// Adds one machine, its Node and its reports.
    pub(crate) async fn add(&self, number: usize) -> Result<()> {
        let name = name(number);
        let (machines, nodes) =
            (Api::<Machine>::namespaced(self.client.clone(), NAMESPACE), Api::<Node>::all(self.client.clone()));
        let (now, post) = (Timestamp::now(), PostParams::default());
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
            "spec": { "taints": [{ "key": UNREADY_TAINT, "effect": "NoSchedule" }] },
            "status": { "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }] },
        }))?;
        let node = nodes.create(&post, &node).await.with_context(|| format!("creating the Node {name}"))?;
        let machine: Machine = serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": name, "labels": { "pool": "online", "rack": format!("r{}", number / 40) } },
            "spec": { "addresses": [format!("198.18.{}.{}", number / 250, number % 250 + 1)] },
        }))?;
        machines.create(&post, &machine).await.with_context(|| format!("creating the Machine {name}"))?;
        let conditions = json!([{
            "type": "PackagesReady", "status": "True", "reason": "MatchesSpec", "message": "", "lastTransitionTime": now,
        }]);
        let bound = json!({ "name": name, "uid": node.metadata.uid, "binding": "Joined" });
        let status = json!({ "status": { "conditions": conditions, "nodeRef": bound } });
        machines.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        for which in 0..REPORTERS.len() {
            let report: ConfigMap = serde_json::from_value(report(&name, which, true))?;
            Api::namespaced(self.client.clone(), NAMESPACE).create(&post, &report).await?;
        }
        Ok(())
    }

    /// Sends a report on a machine.
    pub(crate) async fn report(&self, number: usize, which: usize, good: bool) -> Result<()> {
        let report = report(&name(number), which, good);
        let reports: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let name = report["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let data = json!({ "data": report["data"] });
        reports.patch(&name, &PatchParams::default(), &Patch::Merge(&data)).await.context("reporting")?;
        Ok(())
    }

    /// The number of open Nodes.
    pub(crate) fn open(&self) -> usize {
        self.seen.nodes.lock().unwrap().values().filter(|doors| doors.open).count()
    }

    /// Waits until the Node is open or closed, as wanted; returns when that was observed.
    pub(crate) async fn verdict(&self, number: usize, open: bool, after: Instant) -> Result<Instant> {
        let (name, deadline) = (name(number), Instant::now() + Duration::from_secs(120));
        loop {
            let changed = self.seen.changed.notified();
            let seen = self
                .seen
                .nodes
                .lock()
                .unwrap()
                .get(&name)
                .and_then(|doors| if open { doors.opened } else { doors.closed });
            if let Some(at) = seen.filter(|at| *at >= after) {
                return Ok(at);
            }
            if tokio::time::timeout_at(deadline.into(), changed).await.is_err() {
                bail!("the Node {name} did not become {}", if open { "open" } else { "closed" });
            }
        }
    }
}

/// A ConfigMap as a reporter writes it.
fn report(machine: &str, which: usize, good: bool) -> serde_json::Value {
    let (reporter, type_) = REPORTERS[which];
    let (status, reason) = if good { ("True", "Running") } else { ("False", "NotRunning") };
    let conditions = json!([{
        "type": type_, "status": status, "reason": reason, "message": "seen on the host", "heartbeat": Timestamp::now(),
    }]);
    json!({
        "metadata": {
            "name": format!("{machine}.{reporter}"),
            "labels": { MACHINE: machine, REPORTER: reporter },
        },
        "data": { REPORT_DATA: conditions.to_string() },
    })
}

/// Records when Nodes open and close.
async fn watch(client: Client, seen: Arc<ObservedNodes>) {
    let mut events = std::pin::pin!(watcher(Api::<Node>::all(client), watcher::Config::default().streaming_lists()));
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = event else { continue };
        let at = Instant::now();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let open = !taints.iter().any(|taint| taint.key == UNREADY_TAINT);
        let mut nodes = seen.nodes.lock().unwrap();
        let doors = nodes.entry(node.name_any()).or_default();
        if open && !doors.open {
            doors.opened = Some(at);
        } else if !open && (doors.open || doors.closed.is_none()) {
            doors.closed = Some(at);
        }
        doors.open = open;
        drop(nodes);
        seen.changed.notify_waiters();
    }
}

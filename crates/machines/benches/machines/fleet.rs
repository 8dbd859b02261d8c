//! Machines and their package versions, and their observed state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fleetwright_api::{Machine, MachinePackageVersion, Phase};
use fleetwright_lab::define;
use fleetwright_lab::measure::MeasuredServer;
use fleetwright_sim::demo;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The namespace of the machines.
pub(crate) const NAMESPACE: &str = "fleet";
/// Components of each machine.
pub(crate) const COMPONENTS: usize = 4;
/// Requests at the same time while the fleet grows.
const AT_ONCE: usize = 32;

/// The machines and their observed state.
pub(crate) struct Fleet {
    client: Client,
    size: usize,
    /// The version of the component that changes.
    version: usize,
    seen: Arc<ObservedMachines>,
    watching: JoinHandle<()>,
}

#[derive(Default)]
struct ObservedMachines {
    /// The generation at which each machine was Ready.
    ready: Mutex<HashMap<String, i64>>,
    changed: tokio::sync::Notify,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn name(number: usize) -> String {
    format!("host-{number:05}")
}

/// Sysctls, files, a program with a unit, a script: none of them disrupts pods.
fn packages() -> Vec<(String, Value)> {
    let mut packages = vec![
        (
            "agent-1".to_owned(),
            json!({
                "component": "agent", "version": "1",
                "tarball": {
                    "source": { "urls": ["http://packages.fleet/agent-1.tar.zst"], "sha256": "a".repeat(64) },
                    "links": { "/usr/local/bin/agent": "bin/agent" },
                },
                "dependsOn": ["sysctl"],
                "files": [{ "path": "/etc/agent.yaml", "template": "name: {{ machine.name }}\nrack: {{ machine.hardware.rack }}\n" }],
                "units": [{
                    "name": "agent.service", "enabled": true, "running": true,
                    "content": "[Service]\nExecStart=/usr/local/bin/agent\n", "restartOn": ["/etc/agent.yaml"],
                }],
                "health": { "checks": [{ "unit": "agent.service" }] },
            }),
        ),
        (
            "motd-1".to_owned(),
            json!({
                "component": "motd", "version": "1", "config": {},
                "files": [{ "path": "/etc/motd.d/fleet", "content": "This host belongs to a fleet.\n" }],
            }),
        ),
        (
            "marker-1".to_owned(),
            json!({
                "component": "marker", "version": "1",
                "script": { "check": "test -e /etc/marker", "apply": "touch /etc/marker", "remove": "rm -f /etc/marker" },
            }),
        ),
    ];
    for version in 1..=2 {
        packages.push((
            format!("sysctl-{version}"),
            json!({
                "component": "sysctl", "version": version.to_string(),
                "sysctl": { "vm.max_map_count": "262144", "net.ipv4.ip_forward": "1", "kernel.panic": format!("{version}") },
            }),
        ));
    }
    packages
}

fn references(sysctl: usize) -> Value {
    json!([
        { "component": "sysctl", "ref": format!("sysctl-{sysctl}") },
        { "component": "agent", "ref": "agent-1" },
        { "component": "motd", "ref": "motd-1" },
        { "component": "marker", "ref": "marker-1" },
    ])
}

impl Fleet {
    /// A fleet with the CRDs, a namespace and package versions, and without machines.
    pub(crate) async fn new(server: &MeasuredServer) -> Result<Self> {
        let client = server.client();
        define(&client, &fleetwright_api::crds()).await?;
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        for object in demo::around("https://bench:6443") {
            match object["kind"].as_str() {
                Some("Secret") => {
                    let secret: Secret = serde_json::from_value(object)?;
                    Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &secret).await?;
                }
                _ => {
                    let map: ConfigMap = serde_json::from_value(object)?;
                    Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &map).await?;
                }
            }
        }
        for (name, spec) in packages() {
            let package: MachinePackageVersion = serde_json::from_value(json!({
                "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion",
                "metadata": { "name": name }, "spec": spec,
            }))?;
            let packages: Api<MachinePackageVersion> = Api::namespaced(client.clone(), NAMESPACE);
            packages.create(&PostParams::default(), &package).await.with_context(|| format!("creating {name}"))?;
        }
        let seen = Arc::new(ObservedMachines::default());
        let watching = tokio::spawn(watch(client.clone(), seen.clone()));
        Ok(Self { client, size: 0, version: 1, seen, watching })
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn machines(&self) -> Api<Machine> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Adds machines up to that number.
    pub(crate) async fn grow_to(&mut self, size: usize) -> Result<()> {
        let (machines, version) = (&self.machines(), self.version);
        futures::stream::iter(self.size..size)
            .map(|number| async move {
                let zone = format!("z{}", number % 4);
                let rack = format!("r{}", number / 40);
                let machine: Machine = serde_json::from_value(json!({
                    "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
                    "metadata": { "name": name(number), "labels": { "rack": rack, "zone": zone } },
                    "spec": {
                        "addresses": [format!("10.{}.{}.{}", number / 62_500, number / 250 % 250, number % 250 + 1)],
                        "hardware": { "rack": rack, "zone": zone },
                        "ssh": { "keyRef": { "name": demo::SSH_SECRET }, "hostKeys": { "policy": "TrustOnFirstUse" } },
                        "packages": references(version),
                    },
                }))?;
                machines.create(&PostParams::default(), &machine).await.context("creating a machine")?;
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.size = self.size.max(size);
        Ok(())
    }

    /// Waits until all are Ready with the last requested version.
    pub(crate) async fn all_ready(&self) -> Result<()> {
        self.ready_with(1).await
    }

    async fn ready_with(&self, generation: i64) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(1200);
        loop {
            let changed = self.seen.changed.notified();
            let ready = self.seen.ready.lock().unwrap().values().filter(|seen| **seen >= generation).count();
            if ready >= self.size {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{ready} of {} machines are Ready", self.size);
            let _ = tokio::time::timeout(Duration::from_secs(1), changed).await;
        }
    }

    /// Changes a component's version for all machines; returns when all have it.
    pub(crate) async fn change(&mut self) -> Result<()> {
        self.version += 1;
        let (machines, version) = (&self.machines(), self.version);
        futures::stream::iter(0..self.size)
            .map(|number| async move {
                let patch = json!({ "spec": { "packages": references(version) } });
                machines.patch(&name(number), &PatchParams::default(), &Patch::Merge(&patch)).await?;
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.ready_with(2).await
    }
}

/// Records which machines are Ready.
async fn watch(client: Client, seen: Arc<ObservedMachines>) {
    let machines: Api<Machine> = Api::namespaced(client, NAMESPACE);
    let mut events = std::pin::pin!(watcher(machines, watcher::Config::default().streaming_lists()));
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(machine) | watcher::Event::InitApply(machine)) = event else { continue };
        let (name, generation) = (machine.name_any(), machine.metadata.generation);
        let Some(status) = machine.status else { continue };
        if status.phase == Some(Phase::Ready) && status.observed_generation == generation {
            seen.ready.lock().unwrap().insert(name, generation.unwrap_or_default());
            seen.changed.notify_waiters();
        }
    }
}

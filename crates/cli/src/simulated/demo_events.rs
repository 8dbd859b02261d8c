//! The scenario of the simulated fleet: it creates the objects, and then injects faults as a demonstration.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use fleetwright_api::{Machine, MachineStatus, Phase, Status, condition, names};
use fleetwright_kit::JsonPatch;
use fleetwright_sim::{Fleet, demo};
use futures::{StreamExt, TryStreamExt};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::FLEET_NAMESPACE;

/// The number of concurrent requests while the fleet is created.
const AT_ONCE: usize = 16;

/// The machine that gets a version that does not work.
pub(crate) const BREAKS: usize = 3;
/// The machine whose drift is only reported.
pub(crate) const REPORTS: usize = 5;
/// The machine on whose host the scenario causes drift repeatedly.
pub(crate) const DRIFTS: usize = 7;
/// The machines that are upgraded and downgraded continuously: a rack.
pub(crate) const ROLLS: Range<usize> = 20..30;
/// From this fleet size on, the host of the last machine is off.
const ONE_IS_OFF: usize = 40;

/// The interval between two drifts of the drifting machine.
const DRIFT_EVERY: Duration = Duration::from_secs(60);
/// The interval between two version changes of the rack.
const ROLL_EVERY: Duration = Duration::from_secs(150);
/// The duration of a step in that rack, long enough to be observed.
const ROLL_STEP: Duration = Duration::from_secs(8);

/// Creates the fleet, and runs the scenario.
pub(super) async fn run(client: Client, fleet: Fleet, around: Vec<Value>, machines: usize) {
    if machines >= ONE_IS_OFF {
        fleet.host(&demo::address(machines - 1)).power_off();
    }
    let each = (0..machines).map(|number| {
        let mut machine = demo::machine(number);
        if number == REPORTS {
            machine["spec"]["drift"] = json!("Report");
        }
        machine
    });
    if let Err(error) = make(&client, around, each.collect()).await {
        tracing::error!("the simulated fleet is not complete: {error:#}");
    }
    let api: Api<Machine> = Api::namespaced(client, FLEET_NAMESPACE);
    futures::join!(
        breaks(&api, machines),
        drifts(&api, &fleet, machines),
        reports(&api, &fleet, machines),
        rolls(&api, &fleet, machines),
    );
}

/// Creates machines, after the objects they need and their packages.
pub(super) async fn make(client: &Client, around: Vec<Value>, machines: Vec<Value>) -> anyhow::Result<()> {
    for object in around.into_iter().chain(demo::packages()).chain(demo::rules()) {
        create(client, object).await?;
    }
    let each = machines.into_iter().map(|machine| create(client, machine));
    futures::stream::iter(each).buffer_unordered(AT_ONCE).try_collect::<()>().await
}

async fn create(client: &Client, object: Value) -> anyhow::Result<()> {
    let word = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (word("apiVersion"), word("kind"));
    let (group, version) = version.rsplit_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    // The only plural that is not formed by adding a letter.
    let resource = match kind.as_str() {
        "ReadinessGates" => ApiResource { plural: "readinessgates".to_owned(), ..resource },
        _ => resource,
    };
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), FLEET_NAMESPACE, &resource);
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let object: DynamicObject = serde_json::from_value(object)?;
    objects
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("cannot create the simulated {kind} {name}"))?;
    Ok(())
}

/// Gives one machine a version that does not work.
async fn breaks(api: &Api<Machine>, machines: usize) {
    if machines > BREAKS && ready(api, BREAKS).await {
        kubelet(api, BREAKS, demo::KUBELET, demo::BAD_KUBELET).await;
    }
}

/// Causes drift on a host; the operator repairs it each time.
async fn drifts(api: &Api<Machine>, fleet: &Fleet, machines: usize) {
    if machines <= DRIFTS || !ready(api, DRIFTS).await {
        return;
    }
    let host = fleet.host(&demo::address(DRIFTS));
    loop {
        host.spoil_sysctl("vm.max_map_count", "65530");
        sleep(DRIFT_EVERY).await;
        host.spoil_file("/etc/containerd/config.toml", "# somebody was here\n");
        sleep(DRIFT_EVERY).await;
        host.stop_unit("kubelet.service");
        sleep(DRIFT_EVERY).await;
    }
}

/// Causes drift on a host once; the operator only reports it.
async fn reports(api: &Api<Machine>, fleet: &Fleet, machines: usize) {
    if machines > REPORTS && ready(api, REPORTS).await {
        fleet.host(&demo::address(REPORTS)).spoil_sysctl("net.ipv4.ip_forward", "0");
    }
}

/// Switches a rack between two kubelet versions, as fast as its windows allow.
async fn rolls(api: &Api<Machine>, fleet: &Fleet, machines: usize) {
    if machines < ROLLS.end {
        return;
    }
    for number in ROLLS {
        fleet.host(&demo::address(number)).set_step(ROLL_STEP);
    }
    for number in ROLLS {
        ready(api, number).await;
    }
    let (mut from, mut to) = (demo::KUBELET, demo::NEWER_KUBELET);
    loop {
        for number in ROLLS {
            kubelet(api, number, from, to).await;
        }
        sleep(ROLL_EVERY).await;
        std::mem::swap(&mut from, &mut to);
    }
}

/// Changes the kubelet reference of a machine, unless a person changed it before.
async fn kubelet(api: &Api<Machine>, number: usize, from: &str, to: &str) {
    const PATH: [&str; 4] = ["spec", "packages", "2", "ref"];
    let patch = JsonPatch::new().test(&PATH, from).replace(&PATH, to);
    if let Ok(patch) = serde_json::from_value(patch.into()) {
        let _ = api.patch(&demo::name(number), &PatchParams::default(), &Patch::Json::<()>(patch)).await;
    }
}

/// Waits until a machine is ready and schedulable; returns false if it was deleted.
async fn ready(api: &Api<Machine>, number: usize) -> bool {
    loop {
        match api.get_opt(&demo::name(number)).await {
            Ok(Some(machine)) if machine.status.as_ref().is_some_and(settled) => return true,
            Ok(Some(_)) | Err(_) => sleep(Duration::from_secs(1)).await,
            Ok(None) => return false,
        }
    }
}

fn settled(status: &MachineStatus) -> bool {
    let open = condition(&status.conditions, names::SCHEDULABLE).is_some_and(|open| open.status == Status::True);
    open && status.phase == Some(Phase::Ready)
}

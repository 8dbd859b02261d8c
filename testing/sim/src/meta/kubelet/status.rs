//! The status that a kubelet reports for a pod.

use std::net::Ipv4Addr;
use std::time::Duration;

use fleetwright_kit::Key;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::sandbox::{ContainerRole, ContainerState, PodSandbox, Termination};

/// The status of a pod. `missing` names the object that it waits for before its containers can be created.
pub(super) fn status(key: &Key, sandbox: &mut PodSandbox, host: Ipv4Addr, missing: bool, now: Timestamp) -> Value {
    let main = || sandbox.slots.iter().filter(|slot| slot.role == ContainerRole::Main);
    let ready = !missing && main().all(|slot| slot.ready);
    let unready: Vec<&str> = main().filter(|slot| !slot.ready).map(|slot| slot.name.as_str()).collect();
    let begun = sandbox.slots.iter().all(ContainerState::passed);
    let why = (!ready).then(|| format!("containers with unready status: [{}]", unready.join(" ")));
    let states = [
        ("PodReadyToStartContainers", !missing),
        ("Initialized", begun),
        ("Ready", ready),
        ("ContainersReady", ready),
        ("PodScheduled", true),
    ];
    let mut conditions = Vec::new();
    for (type_, holds) in states {
        let known = sandbox.conditions.get(type_).filter(|(known, _)| *known == holds);
        let since = known.map_or(seconds(now), |(_, since)| *since);
        sandbox.conditions.insert(type_, (holds, since));
        let mut condition = json!({
            "type": type_, "status": if holds { "True" } else { "False" }, "lastTransitionTime": since, "lastProbeTime": null,
        });
        if type_.contains("Ready") && !type_.starts_with("Pod") && !holds {
            condition["reason"] = "ContainersNotReady".into();
            condition["message"] = why.clone().into();
        }
        conditions.push(condition);
    }
    let phase = match sandbox.over() {
        Some(true) => "Succeeded",
        Some(false) => "Failed",
        None if sandbox.slots.iter().any(|slot| slot.role == ContainerRole::Main && slot.life > 0) => "Running",
        None => "Pending",
    };
    let ip = (!missing).then(|| sandbox.address.ip());
    let told = |main: bool| -> Vec<Value> {
        let slots = sandbox.slots.iter().filter(|slot| (slot.role == ContainerRole::Main) == main);
        slots.map(|slot| container(key, &sandbox.uid, slot, now)).collect()
    };
    let first = Some(told(false)).filter(|first| !first.is_empty());
    json!({
        "phase": phase,
        "conditions": conditions,
        "hostIP": host, "hostIPs": [{ "ip": host }],
        "podIP": ip, "podIPs": ip.map(|ip| json!([{ "ip": ip }])),
        "startTime": seconds(sandbox.began),
        "initContainerStatuses": first,
        "containerStatuses": told(true),
    })
}

fn container(key: &Key, uid: &str, slot: &ContainerState, now: Timestamp) -> Value {
    let id = format!("simulated://{uid}-{}-{}", slot.name, slot.life);
    // Report the exit that was not handled yet, not the one before it.
    let just = slot.exit.clone().map(|(exit, started, _)| Termination { exit, started, finished: now });
    let state = match (&slot.running, just.as_ref().or(slot.last.as_ref())) {
        (Some(running), _) => json!({ "running": { "startedAt": seconds(running.since) } }),
        (None, Some(ended)) if just.is_some() => json!({ "terminated": terminated(ended) }),
        (None, Some(_)) if !slot.backoff.is_zero() => {
            let Key { namespace, name } = key;
            let wait = shown(slot.backoff);
            let told =
                format!("back-off {wait} restarting failed container={} pod={name}_{namespace}({uid})", slot.name);
            json!({ "waiting": { "reason": "CrashLoopBackOff", "message": told } })
        }
        (None, Some(last)) => json!({ "terminated": terminated(last) }),
        (None, None) => json!({ "waiting": { "reason": "ContainerCreating" } }),
    };
    json!({
        "name": slot.name, "image": slot.image, "imageID": format!("simulated://{}", slot.image),
        "containerID": if slot.life > 0 { id } else { String::new() },
        "state": state,
        "lastState": slot.last.as_ref().map_or_else(|| json!({}), |last| json!({ "terminated": terminated(last) })),
        "ready": slot.ready, "started": slot.running.is_some(), "restartCount": slot.restarts,
    })
}

fn terminated(ended: &Termination) -> Value {
    let reason = if ended.exit.code == 0 { "Completed" } else { "Error" };
    let message = Some(&ended.exit.message).filter(|message| !message.is_empty());
    json!({
        "exitCode": ended.exit.code, "reason": reason, "message": message,
        "startedAt": seconds(ended.started), "finishedAt": seconds(ended.finished),
    })
}

/// A time in whole seconds, as the API stores it.
pub(super) fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A duration in the notation of Go.
fn shown(wait: Duration) -> String {
    let (minutes, seconds) = (wait.as_secs() / 60, wait.as_secs() % 60);
    if minutes > 0 { format!("{minutes}m{seconds}s") } else { format!("{seconds}s") }
}

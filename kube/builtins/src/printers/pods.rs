//! Pods, and the budgets that protect them.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{age, condition, is_deleting, name, since, text_or, time};
use crate::access::{flag, get, int, list, text};

/// The sum over the containers of a pod.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
    /// Restarts of init containers that run beside the others, and the last of them.
    sidecar_restarts: i64,
    last_sidecar_restart: Option<Timestamp>,
}

pub(super) fn pod(pod: &Value, now: Timestamp) -> Vec<Value> {
    let phase = text(pod, "status.phase");
    let mut sum = Summary { reason: text_or(pod, "status.reason", phase).to_owned(), ..Summary::default() };
    let gated = |c: &Value| text(c, "type") == "PodScheduled" && text(c, "reason") == "SchedulingGated";
    if list(pod, "status.conditions").iter().any(gated) {
        sum.reason = "SchedulingGated".into();
    }
    let initializing = init_containers(pod, &mut sum);
    if !initializing || condition(pod, "Initialized") {
        main_containers(pod, &mut sum);
    }
    if is_deleting(pod) {
        if text(pod, "status.reason") == "NodeLost" {
            sum.reason = "Unknown".into();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            sum.reason = "Terminating".into();
        }
    }
    let sidecars = list(pod, "spec.initContainers").iter().filter(|c| is_sidecar(c)).count();
    let total = list(pod, "spec.containers").len() + sidecars;
    let restarts = match sum.last_restart {
        Some(last) if sum.restarts != 0 => format!("{} ({} ago)", sum.restarts, since(Some(last), now)),
        _ => sum.restarts.to_string(),
    };
    let ip = list(pod, "status.podIPs").first().map_or("", |ip| text(ip, "ip"));
    vec![
        name(pod),
        format!("{}/{total}", sum.ready).into(),
        sum.reason.into(),
        restarts.into(),
        age(pod, now),
        if ip.is_empty() { "<none>".into() } else { ip.into() },
        text_or(pod, "spec.nodeName", "<none>").into(),
        text_or(pod, "status.nominatedNodeName", "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

/// An init container that keeps running beside the others.
fn is_sidecar(container: &Value) -> bool {
    text(container, "restartPolicy") == "Always"
}

/// Counts the init containers; true when one of them still has to finish.
fn init_containers(pod: &Value, sum: &mut Summary) -> bool {
    let specs = list(pod, "spec.initContainers");
    for (index, status) in list(pod, "status.initContainerStatuses").iter().enumerate() {
        let sidecar = specs.iter().any(|spec| text(spec, "name") == text(status, "name") && is_sidecar(spec));
        let restarts = int(status, "restartCount").unwrap_or(0);
        let ended = time(status, "lastState.terminated.finishedAt");
        sum.restarts += restarts;
        sum.last_restart = sum.last_restart.max(ended);
        if sidecar {
            sum.sidecar_restarts += restarts;
            sum.last_sidecar_restart = sum.last_sidecar_restart.max(ended);
        }
        let terminated = get(status, "state.terminated");
        if terminated.is_some_and(|t| int(t, "exitCode").unwrap_or(0) == 0) {
            continue;
        }
        if sidecar && flag(status, "started") {
            sum.ready += usize::from(flag(status, "ready"));
            continue;
        }
        let waiting = text(status, "state.waiting.reason");
        sum.reason = match terminated {
            Some(terminated) => format!("Init:{}", ending(terminated)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", specs.len()),
        };
        return true;
    }
    false
}

fn main_containers(pod: &Value, sum: &mut Summary) {
    sum.restarts = sum.sidecar_restarts;
    sum.last_restart = sum.last_sidecar_restart;
    let mut running = false;
    let mut error = None;
    for status in list(pod, "status.containerStatuses").iter().rev() {
        sum.restarts += int(status, "restartCount").unwrap_or(0);
        sum.last_restart = sum.last_restart.max(time(status, "lastState.terminated.finishedAt"));
        let waiting = text(status, "state.waiting.reason");
        if !waiting.is_empty() {
            sum.reason = waiting.to_owned();
        } else if let Some(terminated) = get(status, "state.terminated") {
            sum.reason = ending(terminated);
            if int(terminated, "exitCode").unwrap_or(0) != 0 {
                error = Some(sum.reason.clone());
            }
        } else if flag(status, "ready") && get(status, "state.running").is_some() {
            running = true;
            sum.ready += 1;
        }
    }
    // A completed container does not decide the status while others still run or have failed.
    if sum.reason == "Completed" {
        let ready =
            list(pod, "status.conditions").iter().any(|c| text(c, "type") == "Ready" && text(c, "status") == "True");
        if running && ready {
            sum.reason = "Running".into();
        } else if let Some(error) = error {
            sum.reason = error;
        } else if running {
            sum.reason = "NotReady".into();
        }
    }
}

/// Why a container ended.
fn ending(terminated: &Value) -> String {
    match (text(terminated, "reason"), int(terminated, "signal").unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "exitCode").unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates.iter().filter(|gate| condition(pod, text(gate, "conditionType"))).count();
    format!("{open}/{}", gates.len())
}

pub(super) fn disruption_budget(budget: &Value, now: Timestamp) -> Vec<Value> {
    let amount = |path: &str| match get(budget, path) {
        Some(Value::String(text)) => text.clone(),
        Some(number) => number.to_string(),
        None => "N/A".into(),
    };
    vec![
        name(budget),
        amount("spec.minAvailable").into(),
        amount("spec.maxUnavailable").into(),
        int(budget, "status.disruptionsAllowed").unwrap_or(0).into(),
        age(budget, now),
    ]
}

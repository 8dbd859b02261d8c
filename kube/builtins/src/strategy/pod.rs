//! The strategy of pods.

use std::collections::BTreeMap;

use fleetwright_syntax::Quantity;
use serde_json::{Value, json};

use crate::access::{flag, get, int, is_empty, items_mut, keep, list, object, remove, set, text};
use crate::strategy::{now, reset_metadata};

pub(super) fn create(pod: &mut Value) {
    let mut status = json!({"phase": "Pending", "qosClass": quality_of_service(pod)});
    if !list(pod, "spec.schedulingGates").is_empty() {
        let gated = json!({
            "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": now(),
            "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
        });
        set(&mut status, "conditions", vec![gated]);
    }
    set(pod, "status", status);
}

/// The QoS class for the order of eviction: `Guaranteed`, `Burstable` or `BestEffort`.
pub fn quality_of_service(pod: &Value) -> &'static str {
    let Some(spec) = pod.get("spec") else { return "BestEffort" };
    if let Some(resources) = get(spec, "resources")
        && !(is_empty(resources.get("requests")) && is_empty(resources.get("limits")))
    {
        return class_of(resources);
    }
    let mut class = None;
    for container in list(spec, "initContainers").iter().chain(list(spec, "containers")) {
        let own = container.get("resources").map_or("BestEffort", class_of);
        match class {
            None => class = Some(own),
            Some(other) if other != own => return "Burstable",
            Some(_) => {}
        }
    }
    class.unwrap_or("BestEffort")
}

fn class_of(resources: &Value) -> &'static str {
    if is_empty(resources.get("requests")) && is_empty(resources.get("limits")) {
        return "BestEffort";
    }
    let amount = |list: &str, name: &str| {
        let text = get(resources, list).and_then(|amounts| amounts.get(name)).and_then(Value::as_str);
        text.and_then(|text| Quantity::parse(text).ok())
    };
    let one = |name: &str| {
        let (request, limit) = (amount("requests", name), amount("limits", name));
        let zero = |quantity: &Option<Quantity>| quantity.as_ref().is_none_or(Quantity::is_zero);
        match (zero(&request), zero(&limit)) {
            (true, true) => "BestEffort",
            (false, false) if request == limit => "Guaranteed",
            _ => "Burstable",
        }
    };
    match (one("cpu"), one("memory")) {
        ("Guaranteed", "Guaranteed") => "Guaranteed",
        ("BestEffort", "BestEffort") => "BestEffort",
        _ => "Burstable",
    }
}

pub(super) fn status_update(old: &Value, new: &mut Value) {
    if let (Some(old), Some(meta)) = (old.get("metadata"), object(new, "metadata")) {
        keep(meta, old, "ownerReferences");
    }
    let Some(status) = object(new, "status") else { return };
    let Some(before) = old.get("status") else { return };
    let kept = [
        "qosClass",
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
        "observedGeneration",
    ];
    for key in kept {
        if is_empty(status.get(key)) {
            keep(status, before, key);
        }
    }
    let mut generations: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for condition in list(before, "conditions").iter().rev() {
        let seen = int(condition, "observedGeneration").unwrap_or(0);
        generations.entry(text(condition, "type")).or_default().push(seen);
    }
    for condition in items_mut(status, "conditions") {
        let seen = generations.get_mut(text(condition, "type")).and_then(Vec::pop).unwrap_or(0);
        if seen != 0 && int(condition, "observedGeneration").unwrap_or(0) == 0 {
            set(condition, "observedGeneration", seen);
        }
    }
}

pub(super) fn ephemeral_update(old: &Value, new: &mut Value) {
    let containers = get(new, "spec.ephemeralContainers").cloned();
    keep(new, old, "spec");
    keep(new, old, "status");
    reset_metadata(old, new);
    if let Some(spec) = object(new, "spec") {
        match containers {
            Some(containers) => set(spec, "ephemeralContainers", containers),
            None => drop(remove(spec, "ephemeralContainers")),
        }
    }
}

pub(super) fn resize_update(old: &Value, new: &mut Value) {
    let names = |pod: &Value, path: &str| {
        list(pod, path).iter().map(|container| text(container, "name").to_owned()).collect::<Vec<_>>()
    };
    // Containers that were added, dropped or renamed are left for validation to refuse.
    for path in ["spec.containers", "spec.initContainers"] {
        if names(old, path) != names(new, path) {
            return;
        }
    }
    let wanted = new.get("spec").cloned().unwrap_or(Value::Null);
    keep(new, old, "spec");
    keep(new, old, "status");
    reset_metadata(old, new);
    let Some(spec) = object(new, "spec") else { return };
    if get(&wanted, "resources").is_some() {
        keep(spec, &wanted, "resources");
    }
    for key in ["containers", "initContainers"] {
        for (container, wanted) in items_mut(spec, key).zip(list(&wanted, key)) {
            keep(container, wanted, "resources");
            keep(container, wanted, "resizePolicy");
        }
    }
}

pub(super) fn grace(pod: &Value, requested: Option<i64>) -> i64 {
    let own = int(pod, "spec.terminationGracePeriodSeconds").unwrap_or(0);
    let unscheduled = text(pod, "spec.nodeName").is_empty();
    if unscheduled || matches!(text(pod, "status.phase"), "Failed" | "Succeeded") {
        return 0;
    }
    match requested.unwrap_or(own) {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

pub(super) fn selectable_fields(pod: &Value) -> Vec<(&'static str, String)> {
    let paths = [
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.nominatedNodeName",
    ];
    let mut fields: Vec<(&'static str, String)> =
        paths.iter().map(|path| (*path, text(pod, path).to_owned())).collect();
    fields.push(("spec.hostNetwork", flag(pod, "spec.hostNetwork").to_string()));
    let ip = list(pod, "status.podIPs").first().map(|first| text(first, "ip").to_owned()).unwrap_or_default();
    fields.push(("status.podIP", ip));
    fields
}

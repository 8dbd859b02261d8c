//! Volumes, claims, and the classes and drivers behind them.

use fleetwright_schema::FieldError;
use serde_json::Value;

use crate::access::{entries, get, int, invalid_each, list, object, text, too_long};
use crate::meta;
use crate::names;
use crate::validation::resources::{amount, quantity_value};
use crate::validation::{difference, immutable, immutable_at, scheduling, without_value};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
/// The fields of a persistent volume's spec that are not its source.
const NOT_A_SOURCE: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

fn access_modes(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let modes: Vec<&str> = list(spec, "accessModes").iter().filter_map(Value::as_str).collect();
    for mode in modes.iter().filter(|mode| !MODES.contains(mode)) {
        errors.push(FieldError::not_supported(format!("{path}.accessModes"), *mode, &MODES));
    }
    let others = modes.iter().any(|mode| *mode != "ReadWriteOncePod" && MODES.contains(mode));
    if modes.contains(&"ReadWriteOncePod") && others {
        let error_text = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(format!("{path}.accessModes"), error_text));
    }
    errors
}

fn volume_mode(spec: &Value, path: &str) -> Option<FieldError> {
    let mode = text(spec, "volumeMode");
    let known = mode.is_empty() || VOLUME_MODES.contains(&mode);
    (!known).then(|| FieldError::not_supported(format!("{path}.volumeMode"), mode, &VOLUME_MODES))
}

pub(super) fn claim(claim: &Value) -> Vec<FieldError> {
    claim_spec(claim.get("spec").unwrap_or(&Value::Null), "spec")
}

pub(super) fn claim_spec(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if list(spec, "accessModes").is_empty() {
        let error_text = "at least 1 access mode is required";
        errors.push(FieldError::required(format!("{path}.accessModes"), error_text));
    }
    if let Some(selector) = get(spec, "selector") {
        errors.extend(meta::validate_selector(selector, &format!("{path}.selector")));
    }
    errors.extend(access_modes(spec, path));
    let field = format!("{path}.resources[storage]");
    match get(spec, "resources.requests.storage") {
        None => errors.push(FieldError::required(field, "")),
        Some(size) => match amount(Some(size)) {
            Some(size) if size.is_zero() || size.is_negative() => {
                errors.push(FieldError::invalid(field, size.to_string(), "must be greater than zero"));
            }
            _ => errors.extend(quantity_value("storage", size, &field)),
        },
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        errors.extend(invalid_each(&format!("{path}.storageClassName"), class, names::dns_subdomain(class)));
    }
    errors.extend(volume_mode(spec, path));
    for key in ["dataSource", "dataSourceRef"] {
        let Some(source) = get(spec, key) else { continue };
        let at = format!("{path}.{key}");
        for part in ["name", "kind"] {
            if text(source, part).is_empty() {
                errors.push(FieldError::required(format!("{at}.{part}"), ""));
            }
        }
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let error_text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(at, kind, error_text));
        }
    }
    errors
}

pub(super) fn claim_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut allowed = new.clone();
    let before = old.get("spec").cloned().unwrap_or(Value::Null);
    let bound = text(new, "status.phase") == "Bound";
    if let Some(spec) = object(&mut allowed, "spec") {
        if text(&before, "volumeName").is_empty() {
            crate::access::keep(spec, &before, "volumeName");
        }
        // A default class may arrive later.
        if get(&before, "storageClassName").is_none() && !text(spec, "storageClassName").is_empty() {
            crate::access::keep(spec, &before, "storageClassName");
        }
        if bound {
            crate::access::keep(spec, &before, "volumeAttributesClassName");
            if let (Some(requests), Some(size)) = (
                crate::access::get_mut(spec, "resources.requests"),
                get(&before, "resources.requests.storage").cloned(),
            ) {
                crate::access::set(requests, "storage", size);
            }
        }
    }
    let after = allowed.get("spec").cloned().unwrap_or(Value::Null);
    if after != before {
        let error_text =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", format!("{error_text}\n{}", difference(&before, &after))));
    }
    let size = |value: &Value, path: &str| amount(get(value, path));
    let (now, was) = (size(new, "spec.resources.requests.storage"), size(old, "spec.resources.requests.storage"));
    if let (Some(now), Some(was)) = (now, was)
        && now < was
        && size(old, "status.capacity.storage").is_some_and(|actual| now <= actual)
    {
        let error_text = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden("spec.resources.requests.storage", error_text));
    }
    errors.extend(immutable_at(new, old, "spec.volumeMode", "volumeMode"));
    errors
}

pub(super) fn volume(volume: &Value) -> Vec<FieldError> {
    let spec = volume.get("spec").unwrap_or(&Value::Null);
    let mut errors = Vec::new();
    if list(spec, "accessModes").is_empty() {
        errors.push(FieldError::required("spec.accessModes", ""));
    }
    errors.extend(access_modes(spec, "spec"));
    let capacity: Vec<(&String, &Value)> = entries(spec, "capacity").collect();
    if capacity.is_empty() {
        errors.push(FieldError::required("spec.capacity", ""));
    }
    if capacity.len() != 1 || capacity.iter().any(|(name, _)| *name != "storage") {
        let found = get(spec, "capacity").cloned().unwrap_or(Value::Null);
        errors.push(FieldError::not_supported("spec.capacity", found, &["storage"]));
    }
    for (name, size) in &capacity {
        let field = format!("spec.capacity[{name}]");
        match amount(Some(size)) {
            None => errors.push(FieldError::invalid(field, (*size).clone(), "must be a valid resource quantity")),
            Some(size) if size.is_zero() || size.is_negative() => {
                errors.push(FieldError::invalid(field, size.to_string(), "must be greater than zero"));
            }
            Some(_) => {}
        }
    }
    let policies = ["Delete", "Recycle", "Retain"];
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    if !policy.is_empty() && !policies.contains(&policy) {
        errors.push(FieldError::not_supported("spec.persistentVolumeReclaimPolicy", policy, &policies));
    }
    if let Some(affinity) = get(spec, "nodeAffinity") {
        match get(affinity, "required") {
            None => {
                let error_text = "must specify required node constraints";
                errors.push(FieldError::required("spec.nodeAffinity.required", error_text));
            }
            Some(selector) => {
                errors.extend(scheduling::node_selector(selector, "spec.nodeAffinity.required"));
            }
        }
    }
    errors.extend(volume_source(spec));
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        errors.extend(invalid_each("spec.storageClassName", class, names::dns_subdomain(class)));
    }
    errors.extend(volume_mode(spec, "spec"));
    errors
}

fn volume_source(spec: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let sources: Vec<(&String, &Value)> = spec
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| !NOT_A_SOURCE.contains(&key.as_str()) && !value.is_null())
        .collect();
    if sources.is_empty() {
        errors.push(FieldError::required("spec", "must specify a volume type"));
    }
    for (key, _) in sources.iter().skip(1) {
        errors.push(FieldError::forbidden(format!("spec.{key}"), "may not specify more than 1 volume type"));
    }
    if let Some((key, source)) = sources.first() {
        let path = format!("spec.{key}");
        let needed: &[&str] = match key.as_str() {
            "local" => &["path"],
            "nfs" => &["server", "path"],
            "csi" => &["driver", "volumeHandle"],
            _ => &[],
        };
        for key in needed.iter().filter(|key| text(source, key).is_empty()) {
            errors.push(FieldError::required(format!("{path}.{key}"), ""));
        }
        if key.as_str() == "hostPath" {
            errors.extend(super::volume::host_path(source, &path));
        }
        if key.as_str() == "local" && get(spec, "nodeAffinity").is_none() {
            errors.push(FieldError::required("spec.nodeAffinity", "Local volume requires node affinity"));
        }
    }
    errors
}

pub(super) fn volume_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let source = |volume: &Value| {
        let mut spec = volume.get("spec").cloned().unwrap_or(Value::Null);
        for key in NOT_A_SOURCE {
            crate::access::remove(&mut spec, key);
        }
        spec
    };
    let (now, was) = (source(new), source(old));
    if now != was {
        let error_text = "spec.persistentvolumesource is immutable after creation";
        let error_text = format!("{error_text}\n{}", difference(&was, &now));
        errors.push(FieldError::forbidden("spec.persistentvolumesource", error_text));
    }
    errors.extend(immutable_at(new, old, "spec.volumeMode", "volumeMode"));
    errors
}

/// Checks a kind of the storage group.
pub(super) fn validate(kind: &str, object: &Value) -> Vec<FieldError> {
    match kind {
        "StorageClass" => storage_class(object),
        "CSIDriver" => csi_driver(object),
        "CSINode" => csi_node(object),
        "VolumeAttachment" => volume_attachment(object),
        _ => Vec::new(),
    }
}

fn storage_class(class: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let provisioner = text(class, "provisioner");
    if !provisioner.is_empty() {
        let error_text = names::qualified_name(&provisioner.to_lowercase());
        errors.extend(invalid_each("provisioner", provisioner, error_text));
    }
    let parameters: Vec<(&String, &Value)> = entries(class, "parameters").collect();
    if parameters.len() > 512 {
        errors.push(too_long("parameters", 512));
    }
    if parameters.iter().any(|(key, _)| key.is_empty()) {
        let error_text = "field can not be empty.";
        errors.push(FieldError::invalid("parameters", "", error_text));
    }
    let size: usize = parameters.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > 256 * 1024 {
        errors.push(too_long("parameters", 256 * 1024));
    }
    let policies = ["Delete", "Retain"];
    let policy = text(class, "reclaimPolicy");
    if !policies.contains(&policy) {
        errors.push(FieldError::not_supported("reclaimPolicy", policy, &policies));
    }
    let modes = ["Immediate", "WaitForFirstConsumer"];
    let mode = text(class, "volumeBindingMode");
    if mode.is_empty() {
        errors.push(FieldError::required("volumeBindingMode", ""));
    } else if !modes.contains(&mode) {
        errors.push(FieldError::not_supported("volumeBindingMode", mode, &modes));
    }
    // Declarative rules are checked last.
    if provisioner.is_empty() {
        errors.push(FieldError::required("provisioner", ""));
    }
    errors
}

fn csi_driver(driver: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    let policy = text(driver, "spec.fsGroupPolicy");
    if !policies.contains(&policy) {
        errors.push(FieldError::not_supported("spec.fsGroupPolicy", policy, &policies));
    }
    for mode in list(driver, "spec.volumeLifecycleModes").iter().filter_map(Value::as_str) {
        if !matches!(mode, "Persistent" | "Ephemeral") {
            let field = "spec.volumeLifecycleModes";
            errors.push(FieldError::not_supported(field, mode, &["Persistent", "Ephemeral"]));
        }
    }
    let mut seen = Vec::new();
    for (index, request) in list(driver, "spec.tokenRequests").iter().enumerate() {
        let audience = text(request, "audience");
        let path = format!("spec.tokenRequests[{index}]");
        if seen.contains(&audience) {
            errors.push(FieldError::duplicate(format!("{path}.audience"), audience));
        }
        seen.push(audience);
        if let Some(seconds) = int(request, "expirationSeconds").filter(|seconds| *seconds < 600) {
            let error_text = "may not specify a duration less than 10 minutes";
            errors.push(FieldError::invalid(format!("{path}.expirationSeconds"), seconds, error_text));
        }
    }
    errors
}

fn csi_node(node: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = Vec::new();
    for (index, driver) in list(node, "spec.drivers").iter().enumerate() {
        let path = format!("spec.drivers[{index}]");
        let (name, id) = (text(driver, "name"), text(driver, "nodeID"));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        if id.is_empty() {
            errors.push(FieldError::required(format!("{path}.nodeID"), ""));
        }
        if id.len() > 192 {
            let error_text = "must be 192 characters or less";
            errors.push(FieldError::invalid(format!("{path}.nodeID"), id, error_text));
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        seen.push(name);
    }
    errors
}

fn volume_attachment(attachment: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text(attachment, "spec.attacher").is_empty() {
        errors.push(FieldError::required("spec.attacher", ""));
    }
    let node = text(attachment, "spec.nodeName");
    errors.extend(invalid_each("spec.nodeName", node, names::dns_subdomain(node)));
    let named = get(attachment, "spec.source.persistentVolumeName");
    let inline = get(attachment, "spec.source.inlineVolumeSpec");
    match (named, inline) {
        (None, None) => {
            let error_text = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::required("spec.source", error_text));
        }
        (Some(_), Some(_)) => {
            let error_text = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.push(FieldError::forbidden("spec.source", error_text));
        }
        _ => {}
    }
    errors
}

/// The immutable fields of the storage group's kinds.
pub(super) fn update(kind: &str, new: &Value, old: &Value) -> Vec<FieldError> {
    let fields: &[&str] = match kind {
        "StorageClass" => &["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"],
        "VolumeAttachment" => &["spec"],
        "CSIDriver" => &["spec.volumeLifecycleModes"],
        _ => &[],
    };
    let mut errors = without_value(fields.iter().filter_map(|field| immutable(new, old, field)));
    if kind == "CSIDriver" {
        errors.extend(immutable_at(new, old, "spec.attachRequired", "spec.attachedRequired"));
    }
    errors
}

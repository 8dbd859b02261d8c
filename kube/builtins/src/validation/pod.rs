//! Pods and pod templates.

use fleetwright_schema::FieldError;
use serde_json::Value;

use crate::access::{entries, flag, get, int, invalid_each, list, object, set, text};
use crate::meta;
use crate::names;
use crate::validation::resources::quantity_value;
use crate::validation::{container, difference, immutable, ip_errors, non_negative, scheduling, volume};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// The errors of a name.
type NameCheck = fn(&str) -> Vec<String>;

/// Checks a pod; what only a new pod must obey is skipped when there is an old one.
pub(super) fn validate(pod: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let Some(spec) = pod.get("spec") else { return vec![FieldError::required("spec", "")] };
    let mut errors = pod_spec(spec, "spec", true);
    errors.extend(non_negative(spec, "terminationGracePeriodSeconds", "spec."));
    for key in ["containers", "initContainers"] {
        for (index, container) in list(spec, key).iter().enumerate() {
            let image = text(container, "image");
            if image.trim() != image {
                let error_text = "must not have leading or trailing whitespace";
                errors.push(FieldError::invalid(format!("spec.{key}[{index}].image"), image, error_text));
            }
        }
    }
    if old.is_none() {
        if !list(spec, "ephemeralContainers").is_empty() {
            errors.push(FieldError::forbidden("spec.ephemeralContainers", "cannot be set on create"));
        }
        if !text(spec, "nodeName").is_empty() && !list(spec, "schedulingGates").is_empty() {
            let error_text = "cannot be set until all schedulingGates have been cleared";
            errors.push(FieldError::forbidden("spec.nodeName", error_text));
        }
    }
    errors
}

/// Checks a pod template at a path.
pub(super) fn template(template: Option<&Value>, path: &str) -> Vec<FieldError> {
    let Some(template) = template.filter(|template| template.is_object()) else {
        return vec![FieldError::required(path, "")];
    };
    let mut errors = meta::validate_labels(get(template, "metadata.labels"), &format!("{path}.labels"));
    for (key, _) in entries(template, "metadata.annotations") {
        let error_text = names::qualified_name(&key.to_lowercase());
        errors.extend(invalid_each(&format!("{path}.annotations"), key, error_text));
    }
    let empty = Value::Object(Default::default());
    errors.extend(pod_spec(template.get("spec").unwrap_or(&empty), &format!("{path}.spec"), false));
    if !list(template, "spec.ephemeralContainers").is_empty() {
        let error_text = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(format!("{path}.spec.ephemeralContainers"), error_text));
    }
    errors
}

fn pod_spec(spec: &Value, path: &str, is_pod: bool) -> Vec<FieldError> {
    let (volumes, mut errors) = volume::validate(spec, &format!("{path}.volumes"));
    errors.extend(container::validate_all(spec, &volumes, path));
    errors.extend(host_ports(spec, path, is_pod));
    let choices: [(&str, &[&str]); 2] = [
        ("restartPolicy", &["Always", "OnFailure", "Never"]),
        ("dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]),
    ];
    for (key, allowed) in choices {
        errors.extend(choice(spec, key, allowed, path));
    }
    errors.extend(meta::validate_labels(spec.get("nodeSelector"), &format!("{path}.nodeSelector")));
    errors.extend(identities(spec, path));
    errors.extend(scheduling::affinity(spec, path));
    errors.extend(dns_config(spec, path));
    for (index, gate) in list(spec, "readinessGates").iter().enumerate() {
        let name = text(gate, "conditionType");
        let at = format!("{path}.readinessGates[{index}].conditionType");
        errors.extend(invalid_each(&at, name, names::qualified_name(name)));
    }
    errors.extend(scheduling::gates(spec, path));
    errors.extend(scheduling::spread(spec, path));
    let named: [(&str, NameCheck); 6] = [
        ("serviceAccountName", names::dns_subdomain),
        ("nodeName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
        ("priorityClassName", names::dns_subdomain),
        ("runtimeClassName", names::dns_subdomain),
    ];
    for (key, rule) in named {
        let name = text(spec, key);
        if !name.is_empty() {
            errors.extend(invalid_each(&format!("{path}.{key}"), name, rule(name)));
        }
    }
    if let Some(seconds) = int(spec, "activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let error_text = names::range_error(1, i64::from(i32::MAX));
        errors.push(FieldError::invalid(format!("{path}.activeDeadlineSeconds"), seconds, error_text));
    }
    errors.extend(scheduling::tolerations(spec, path));
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        let at = format!("{path}.hostAliases[{index}]");
        errors.extend(ip_errors(text(alias, "ip"), &format!("{at}.ip")));
        for (number, name) in list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            errors.extend(invalid_each(&format!("{at}.hostnames[{number}]"), name, names::dns_subdomain(name)));
        }
    }
    let preemption = text(spec, "preemptionPolicy");
    if !preemption.is_empty() && !matches!(preemption, "PreemptLowerPriority" | "Never") {
        let allowed = ["PreemptLowerPriority", "Never"];
        errors.push(FieldError::not_supported(format!("{path}.preemptionPolicy"), preemption, &allowed));
    }
    for (name, amount) in entries(spec, "overhead") {
        errors.extend(quantity_value(name, amount, &format!("{path}.overhead[{name}]")));
    }
    errors
}

fn choice(spec: &Value, key: &str, allowed: &[&str], path: &str) -> Option<FieldError> {
    match text(spec, key) {
        "" => Some(FieldError::required(format!("{path}.{key}"), "")),
        value if allowed.contains(&value) => None,
        other => Some(FieldError::not_supported(format!("{path}.{key}"), other, allowed)),
    }
}

fn host_ports(spec: &Value, path: &str, is_pod: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !flag(spec, "hostNetwork") {
        return errors;
    }
    for (at, container) in list(spec, "containers").iter().enumerate() {
        for (index, port) in list(container, "ports").iter().enumerate() {
            let host = int(port, "hostPort").unwrap_or(0);
            if (is_pod || host != 0) && host != int(port, "containerPort").unwrap_or(0) {
                let error_text = "must match `containerPort` when `hostNetwork` is true";
                let field = format!("{path}.containers[{at}].ports[{index}].hostPort");
                errors.push(FieldError::invalid(field, host, error_text));
            }
        }
    }
    errors
}

/// Users and groups are numbers that a node can have.
fn identities(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(context) = get(spec, "securityContext") else { return errors };
    let error_text = names::range_error(0, i64::from(i32::MAX));
    let fits = |id: i64| (0..=i64::from(i32::MAX)).contains(&id);
    for key in ["fsGroup", "runAsUser", "runAsGroup"] {
        if let Some(id) = int(context, key).filter(|id| !fits(*id)) {
            errors.push(FieldError::invalid(format!("{path}.securityContext.{key}"), id, error_text.clone()));
        }
    }
    for (index, id) in list(context, "supplementalGroups").iter().filter_map(Value::as_i64).enumerate() {
        if !fits(id) {
            let field = format!("{path}.securityContext.supplementalGroups[{index}]");
            errors.push(FieldError::invalid(field, id, error_text.clone()));
        }
    }
    if flag(spec, "hostPID") && flag(spec, "shareProcessNamespace") {
        let error_text = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(format!("{path}.shareProcessNamespace"), true, error_text));
    }
    errors
}

fn dns_config(spec: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let at = format!("{path}.dnsConfig");
    let config = get(spec, "dnsConfig");
    let servers = config.map(|config| list(config, "nameservers")).unwrap_or_default();
    if text(spec, "dnsPolicy") == "None" {
        let error_text = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        if config.is_none() {
            errors.push(FieldError::required(at, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return errors;
        }
        if servers.is_empty() {
            errors.push(FieldError::required(format!("{at}.nameservers"), error_text));
            return errors;
        }
    }
    if servers.len() > 3 {
        let all = Value::from(servers.to_vec());
        errors.push(FieldError::invalid(format!("{at}.nameservers"), all, "must not have more than 3 nameservers"));
    }
    for (index, server) in servers.iter().filter_map(Value::as_str).enumerate() {
        errors.extend(ip_errors(server, &format!("{at}.nameservers[{index}]")));
    }
    for (index, option) in config.map(|config| list(config, "options")).unwrap_or_default().iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.push(FieldError::required(format!("{at}.options[{index}]"), "must not be empty"));
        }
    }
    errors
}

/// Checks that an update changes images, deadlines and tolerations at most.
pub(super) fn update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in ["containers", "initContainers"] {
        let path = format!("spec.{key}");
        let (now, was) = (list(new, &path), list(old, &path));
        if now.len() != was.len() {
            errors.push(FieldError::forbidden(path, "pod updates may not add or remove containers"));
            return errors;
        }
    }
    match (int(new, "spec.activeDeadlineSeconds"), int(old, "spec.activeDeadlineSeconds")) {
        (Some(now), Some(was)) if now > was => {
            let error_text = "must be less than or equal to previous value";
            errors.push(FieldError::invalid("spec.activeDeadlineSeconds", now, error_text));
            return errors;
        }
        (None, Some(_)) => {
            let error_text = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid("spec.activeDeadlineSeconds", Value::Null, error_text));
        }
        _ => {}
    }
    errors.extend(scheduling::only_added_tolerations(new, old));
    errors.extend(scheduling::only_deleted_gates(new, old));
    if new.get("spec") == old.get("spec") {
        return errors;
    }
    let allowed = with_allowed_changes_undone(new, old);
    let before = old.get("spec").unwrap_or(&Value::Null);
    if allowed != *before {
        let error_text =
            format!("pod updates may not change fields other than {UPDATABLE}\n{}", difference(before, &allowed));
        errors.push(FieldError::forbidden("spec", error_text));
    }
    errors
}

/// The new spec with the old value of everything that may change.
fn with_allowed_changes_undone(new: &Value, old: &Value) -> Value {
    let mut holder = new.clone();
    let Some(before) = old.get("spec") else { return Value::Null };
    let Some(spec) = object(&mut holder, "spec") else { return Value::Null };
    for key in ["containers", "initContainers"] {
        for (container, was) in crate::access::items_mut(spec, key).zip(list(before, key)) {
            crate::access::keep(container, was, "image");
        }
    }
    let mut keys = vec!["activeDeadlineSeconds", "schedulingGates", "tolerations"];
    if !list(before, "schedulingGates").is_empty() {
        keys.push("nodeSelector");
    }
    for key in keys {
        crate::access::keep(spec, before, key);
    }
    if !list(before, "schedulingGates").is_empty() {
        scheduling::undo_node_affinity(spec, before);
    }
    if int(before, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0)
        && int(spec, "terminationGracePeriodSeconds") == Some(1)
    {
        crate::access::keep(spec, before, "terminationGracePeriodSeconds");
    }
    spec.clone()
}

/// Checks a write of the ephemeral containers: they are added, never changed.
pub(super) fn ephemeral_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = validate(new, Some(old));
    let path = "spec.ephemeralContainers";
    for was in list(old, path) {
        let name = text(was, "name");
        match list(new, path).iter().position(|now| text(now, "name") == name) {
            None => {
                let error_text = format!("existing ephemeral containers {name:?} may not be removed\n");
                errors.push(FieldError::forbidden(path, error_text));
            }
            Some(index) if list(new, path).get(index) != Some(was) => {
                let error_text = format!("existing ephemeral containers {name:?} may not be changed\n");
                errors.push(FieldError::forbidden(path, error_text));
            }
            Some(_) => {}
        }
    }
    errors
}

/// Checks a change of a pod's resources while it runs.
pub(super) fn resize(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = validate(new, Some(old));
    let mut undone = new.clone();
    let before = old.get("spec").cloned().unwrap_or(Value::Null);
    if let Some(spec) = object(&mut undone, "spec") {
        for key in ["containers", "initContainers"] {
            for (container, was) in crate::access::items_mut(spec, key).zip(list(&before, key)) {
                crate::access::keep(container, was, "resources");
                crate::access::keep(container, was, "resizePolicy");
            }
        }
        crate::access::keep(spec, &before, "resources");
    }
    if undone.get("spec") != Some(&before) {
        errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable"));
    }
    let mut shown = new.clone();
    set(&mut shown, "status", Value::Null);
    if crate::strategy::quality_of_service(&shown) != text(old, "status.qosClass")
        && !text(old, "status.qosClass").is_empty()
    {
        errors.push(FieldError::invalid(
            "spec",
            text(old, "status.qosClass"),
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    errors
}

pub(super) fn status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, condition) in list(new, "status.conditions").iter().enumerate() {
        if int(condition, "observedGeneration").is_some_and(|generation| generation < 0) {
            let field = format!("status.conditions[{index}].observedGeneration");
            let seen = int(condition, "observedGeneration").unwrap_or(0);
            errors.push(FieldError::invalid(field, seen, "must be greater than or equal to zero"));
        }
        let ty = text(condition, "type");
        // The kinds of condition that Kubernetes itself sets are short names; all others are qualified.
        errors.extend(invalid_each(&format!("status.conditions[{index}].Type"), ty, names::qualified_name(ty)));
    }
    errors.extend(immutable(new, old, "status.qosClass"));
    for (index, ip) in list(new, "status.podIPs").iter().enumerate() {
        if !list(old, "status.podIPs").contains(ip) {
            errors.extend(ip_errors(text(ip, "ip"), &format!("status.podIPs[{index}]")));
        }
    }
    if list(new, "status.podIPs").len() > 2 {
        let all = get(new, "status.podIPs").cloned().unwrap_or(Value::Null);
        errors.push(FieldError::invalid("status.podIPs", all, "may specify no more than one IP for each IP family"));
    }
    errors
}

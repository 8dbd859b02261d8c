//! The containers of a pod: names, images, ports, variables, mounts, probes and resources.

use std::collections::BTreeSet;

use fleetwright_schema::{ErrorType, FieldError};
use serde_json::Value;

use crate::access::{about_struct, flag, get, int, invalid_each, list, not_found, text};
use crate::names;
use crate::validation::non_negative;
use crate::validation::resources::{port_or_name, requirements};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Checks all containers of a pod spec.
pub(super) fn validate_all(spec: &Value, volumes: &BTreeSet<String>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let grace = int(spec, "terminationGracePeriodSeconds");
    let main = list(spec, "containers");
    if main.is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut seen: Vec<&str> = Vec::new();
    let mut host_ports = Vec::new();
    for (index, container) in main.iter().enumerate() {
        let at = format!("{path}.containers[{index}]");
        errors.extend(common(container, volumes, &at));
        unique(container, &mut seen, &at, &mut errors);
        errors.extend(lifecycle(container, grace, &at));
        errors.extend(probes(container, grace, &at));
        errors.extend(restart_policy(container, &at));
        errors.extend(unique_host_ports(container, &mut host_ports, &at));
    }
    for (index, container) in list(spec, "initContainers").iter().enumerate() {
        let at = format!("{path}.initContainers[{index}]");
        errors.extend(common(container, volumes, &at));
        errors.extend(restart_policy(container, &at));
        unique(container, &mut seen, &at, &mut errors);
        errors.extend(unique_host_ports(container, &mut Vec::new(), &at));
        if text(container, "restartPolicy") == "Always" {
            errors.extend(lifecycle(container, grace, &at));
            errors.extend(probes(container, grace, &at));
        } else {
            for key in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if get(container, key).is_some() {
                    let error_text = "may not be set for init containers without restartPolicy=Always";
                    errors.push(FieldError::forbidden(format!("{at}.{key}"), error_text));
                }
            }
        }
    }
    let others = seen.clone();
    for (index, container) in list(spec, "ephemeralContainers").iter().enumerate() {
        let at = format!("{path}.ephemeralContainers[{index}]");
        errors.extend(common(container, volumes, &at));
        unique(container, &mut seen, &at, &mut errors);
        let target = text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(&target) {
            errors.push(not_found(format!("{at}.targetContainerName"), target));
        }
        for key in ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"] {
            if !crate::access::is_empty(get(container, key)) {
                let error_text = "cannot be set for an Ephemeral Container";
                errors.push(FieldError::forbidden(format!("{at}.{key}"), error_text));
            }
        }
    }
    errors
}

fn unique<'a>(container: &'a Value, seen: &mut Vec<&'a str>, path: &str, errors: &mut Vec<FieldError>) {
    let name = text(container, "name");
    if seen.contains(&name) && !name.is_empty() {
        errors.push(FieldError::duplicate(format!("{path}.name"), name));
    }
    seen.push(name);
}

fn restart_policy(container: &Value, path: &str) -> Option<FieldError> {
    let policy = text(container, "restartPolicy");
    let allowed = ["Always", "Never", "OnFailure"];
    if policy.is_empty() {
        let error_text = "must specify restartPolicy when restart rules are used";
        let rules = !list(container, "restartPolicyRules").is_empty();
        return rules.then(|| FieldError::required(format!("{path}.restartPolicy"), error_text));
    }
    (!allowed.contains(&policy)).then(|| FieldError::not_supported(format!("{path}.restartPolicy"), policy, &allowed))
}

fn common(container: &Value, volumes: &BTreeSet<String>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = text(container, "name");
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else {
        errors.extend(invalid_each(&format!("{path}.name"), name, names::dns_label(name)));
    }
    if text(container, "image").is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    }
    let policies = ["File", "FallbackToLogsOnError"];
    let policy = text(container, "terminationMessagePolicy");
    if !policies.contains(&policy) {
        errors.push(FieldError::not_supported(format!("{path}.terminationMessagePolicy"), policy, &policies));
    }
    errors.extend(ports(container, path));
    errors.extend(environment(container, path));
    errors.extend(mounts(container, volumes, path));
    let pulls = ["Always", "IfNotPresent", "Never"];
    let pull = text(container, "imagePullPolicy");
    if !pulls.contains(&pull) {
        errors.push(FieldError::not_supported(format!("{path}.imagePullPolicy"), pull, &pulls));
    }
    if let Some(resources) = get(container, "resources") {
        errors.extend(requirements(resources, &format!("{path}.resources")));
    }
    errors.extend(security(container, path));
    errors
}

fn security(container: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(context) = get(container, "securityContext") else { return errors };
    let at = format!("{path}.securityContext");
    for key in ["runAsUser", "runAsGroup"] {
        if let Some(id) = int(context, key).filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            let error_text = names::range_error(0, i64::from(i32::MAX));
            errors.push(FieldError::invalid(format!("{at}.{key}"), id, error_text));
        }
    }
    if get(context, "allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        if flag(context, "privileged") {
            let error_text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(about_struct(ErrorType::Invalid, at.clone(), &as_go(context), error_text));
        }
        if list(context, "capabilities.add").iter().any(|name| name == "CAP_SYS_ADMIN") {
            let error_text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(about_struct(ErrorType::Invalid, at, &as_go(context), error_text));
        }
    }
    errors
}

/// A security context as the real server prints it.
fn as_go(context: &Value) -> Vec<(&'static str, Value)> {
    let keys = [
        ("Capabilities", "capabilities"),
        ("Privileged", "privileged"),
        ("SELinuxOptions", "seLinuxOptions"),
        ("WindowsOptions", "windowsOptions"),
        ("RunAsUser", "runAsUser"),
        ("RunAsGroup", "runAsGroup"),
        ("RunAsNonRoot", "runAsNonRoot"),
        ("ReadOnlyRootFilesystem", "readOnlyRootFilesystem"),
        ("AllowPrivilegeEscalation", "allowPrivilegeEscalation"),
        ("ProcMount", "procMount"),
        ("SeccompProfile", "seccompProfile"),
        ("AppArmorProfile", "appArmorProfile"),
    ];
    keys.into_iter().map(|(go, key)| (go, context.get(key).cloned().unwrap_or(Value::Null))).collect()
}

fn ports(container: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = Vec::new();
    for (index, port) in list(container, "ports").iter().enumerate() {
        let at = format!("{path}.ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let wrong = names::port_name(name);
            if !wrong.is_empty() {
                errors.extend(invalid_each(&format!("{at}.name"), name, wrong));
            } else if seen.contains(&name) {
                errors.push(FieldError::duplicate(format!("{at}.name"), name));
            } else {
                seen.push(name);
            }
        }
        for key in ["containerPort", "hostPort"] {
            let number = int(port, key).unwrap_or(0);
            let field = format!("{at}.{key}");
            if number == 0 && key == "containerPort" {
                errors.push(FieldError::required(field, ""));
            } else if number != 0 {
                let wrong = names::port_number(number).into_iter();
                errors.extend(wrong.map(|error_text| FieldError::invalid(field.clone(), number, error_text)));
            }
        }
        let protocol = text(port, "protocol");
        if protocol.is_empty() {
            errors.push(FieldError::required(format!("{at}.protocol"), ""));
        } else if !PROTOCOLS.contains(&protocol) {
            errors.push(FieldError::not_supported(format!("{at}.protocol"), protocol, &PROTOCOLS));
        }
    }
    errors
}

fn unique_host_ports(container: &Value, seen: &mut Vec<String>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, port) in list(container, "ports").iter().enumerate() {
        let number = int(port, "hostPort").unwrap_or(0);
        if number == 0 {
            continue;
        }
        let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
        if seen.contains(&key) {
            errors.push(FieldError::duplicate(format!("{path}.ports[{index}].hostPort"), key.as_str()));
        } else {
            seen.push(key);
        }
    }
    errors
}

fn environment(container: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, variable) in list(container, "env").iter().enumerate() {
        let at = format!("{path}.env[{index}]");
        let name = text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else {
            errors.extend(invalid_each(&format!("{at}.name"), name, names::env_name(name)));
        }
        if let Some(from) = get(variable, "valueFrom") {
            errors.extend(value_from(from, !text(variable, "value").is_empty(), &format!("{at}.valueFrom")));
        }
    }
    for (index, source) in list(container, "envFrom").iter().enumerate() {
        let at = format!("{path}.envFrom[{index}]");
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            errors.extend(invalid_each(&format!("{at}.prefix"), prefix, names::env_name(prefix)));
        }
        let found: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|key| get(source, key).is_some()).collect();
        for key in &found {
            let name = text(source, &format!("{key}.name"));
            let field = format!("{at}.{key}.name");
            if name.is_empty() {
                errors.push(FieldError::required(field, ""));
            } else {
                errors.extend(invalid_each(&field, name, names::dns_subdomain(name)));
            }
        }
        // The real server points at the list here, not at the item.
        let at = format!("{path}.envFrom");
        match found.len() {
            0 => {
                let error_text = "must specify one of: `configMapRef` or `secretRef`";
                errors.push(FieldError::invalid(at, "", error_text));
            }
            1 => {}
            _ => {
                let error_text = "may not have more than one field specified at a time";
                errors.push(FieldError::invalid(at, "", error_text));
            }
        }
    }
    errors
}

fn value_from(from: &Value, has_value: bool, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut sources = 0;
    if let Some(reference) = get(from, "fieldRef") {
        sources += 1;
        errors.extend(field_ref(reference, &ENV_FIELDS, &format!("{path}.fieldRef")));
    }
    if let Some(reference) = get(from, "resourceFieldRef") {
        sources += 1;
        let resource = text(reference, "resource");
        let field = format!("{path}.resourceFieldRef.resource");
        let huge = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
        if resource.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if !RESOURCE_FIELDS.contains(&resource) && !huge {
            errors.push(FieldError::not_supported(field, resource, &RESOURCE_FIELDS));
        }
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        let Some(reference) = get(from, key) else { continue };
        sources += 1;
        let (name, at) = (text(reference, "name"), format!("{path}.{key}"));
        errors.extend(invalid_each(&format!("{at}.name"), name, names::dns_subdomain(name)));
        let key = text(reference, "key");
        if key.is_empty() {
            errors.push(FieldError::required(format!("{at}.key"), ""));
        } else {
            errors.extend(invalid_each(&format!("{at}.key"), key, names::config_key(key)));
        }
    }
    if get(from, "fileKeyRef").is_some() {
        sources += 1;
    }
    let error_text = match sources {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if has_value => "may not be specified when `value` is not empty",
        1 => return errors,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(path, "", error_text));
    errors
}

/// Checks a reference to a field of the pod.
pub(super) fn field_ref(reference: &Value, allowed: &[&str], path: &str) -> Vec<FieldError> {
    let field = text(reference, "fieldPath");
    let at = format!("{path}.fieldPath");
    if field.is_empty() {
        return vec![FieldError::required(at, "")];
    }
    if let Some((base, key)) = field.strip_suffix("']").and_then(|field| field.split_once("['")) {
        return match base {
            "metadata.annotations" => invalid_each(path, key, names::qualified_name(&key.to_lowercase())).collect(),
            "metadata.labels" => invalid_each(path, key, names::qualified_name(key)).collect(),
            other => vec![FieldError::invalid(path, other, "does not support subscript")],
        };
    }
    let known = ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
    if allowed.contains(&field) {
        return Vec::new();
    }
    if known.contains(&field) || ENV_FIELDS.contains(&field) {
        return vec![FieldError::not_supported(at, field, allowed)];
    }
    let error_text = format!("error converting fieldPath: field label not supported: {field}");
    vec![FieldError::invalid(at, field, error_text)]
}

fn mounts(container: &Value, volumes: &BTreeSet<String>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut points = Vec::new();
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let at = format!("{path}.volumeMounts[{index}]");
        let (name, point) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        }
        if !volumes.contains(name) {
            errors.push(not_found(format!("{at}.name"), name));
        }
        if point.is_empty() {
            errors.push(FieldError::required(format!("{at}.mountPath"), ""));
        }
        if points.contains(&point) {
            errors.push(FieldError::invalid(format!("{at}.mountPath"), point, "must be unique"));
        }
        points.push(point);
        for key in ["subPath", "subPathExpr"] {
            let part = text(mount, key);
            let field = format!("{path}.volumeMounts.{key}");
            if part.starts_with('/') {
                errors.push(FieldError::invalid(field.clone(), part, "must be a relative path"));
            }
            if part.split('/').any(|piece| piece == "..") {
                errors.push(FieldError::invalid(field, part, "must not contain '..'"));
            }
        }
        if !text(mount, "subPath").is_empty() && !text(mount, "subPathExpr").is_empty() {
            let error_text = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(format!("{at}.subPathExpr"), text(mount, "subPathExpr"), error_text));
        }
    }
    for (index, device) in list(container, "volumeDevices").iter().enumerate() {
        let at = format!("{path}.volumeDevices[{index}]");
        let name = text(device, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        }
        if text(device, "devicePath").is_empty() {
            errors.push(FieldError::required(format!("{at}.devicePath"), ""));
        }
        if !volumes.contains(name) {
            errors.push(not_found(format!("{at}.name"), name));
        }
    }
    errors
}

fn lifecycle(container: &Value, grace: Option<i64>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for hook in ["postStart", "preStop"] {
        if let Some(found) = get(container, &format!("lifecycle.{hook}")) {
            errors.extend(handler(found, grace, &format!("{path}.lifecycle.{hook}")));
        }
    }
    errors
}

fn probes(container: &Value, grace: Option<i64>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = get(container, name) else { continue };
        let at = format!("{path}.{name}");
        errors.extend(handler(probe, grace, &at));
        let numbers =
            ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
        for key in numbers {
            errors.extend(non_negative(probe, key, &format!("{at}.")));
        }
        let own_grace = int(probe, "terminationGracePeriodSeconds");
        if let Some(seconds) = own_grace.filter(|seconds| *seconds <= 0) {
            let field = format!("{at}.terminationGracePeriodSeconds");
            errors.push(FieldError::invalid(field, seconds, "must be greater than 0"));
        }
        if name == "readinessProbe" {
            if let Some(seconds) = own_grace {
                let field = format!("{at}.terminationGracePeriodSeconds");
                errors.push(FieldError::invalid(field, seconds, "must not be set for readinessProbes"));
            }
        } else {
            let threshold = int(probe, "successThreshold").unwrap_or(0);
            if threshold != 1 {
                errors.push(FieldError::invalid(format!("{at}.successThreshold"), threshold, "must be 1"));
            }
        }
    }
    errors
}

fn handler(handler: &Value, grace: Option<i64>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut found = 0;
    for key in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = get(handler, key) else { continue };
        found += 1;
        let at = format!("{path}.{key}");
        if found > 1 {
            errors.push(FieldError::forbidden(at, "may not specify more than 1 handler type"));
            continue;
        }
        match key {
            "exec" if list(action, "command").is_empty() => {
                errors.push(FieldError::required(format!("{at}.command"), ""));
            }
            "httpGet" => {
                errors.extend(port_or_name(action.get("port"), &format!("{at}.port")));
                let scheme = text(action, "scheme");
                if !matches!(scheme, "HTTP" | "HTTPS") {
                    errors.push(FieldError::not_supported(format!("{at}.scheme"), scheme, &["HTTP", "HTTPS"]));
                }
                for header in list(action, "httpHeaders") {
                    let name = text(header, "name");
                    errors.extend(invalid_each(&format!("{at}.httpHeaders"), name, names::http_header(name)));
                }
            }
            "tcpSocket" | "grpc" => errors.extend(port_or_name(action.get("port"), &format!("{at}.port"))),
            "sleep" => {
                let seconds = int(action, "seconds").unwrap_or(0);
                if let Some(grace) = grace.filter(|grace| seconds < 0 || seconds > *grace) {
                    let error_text =
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.push(FieldError::invalid(at, seconds, error_text));
                }
            }
            _ => {}
        }
    }
    if found == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    errors
}

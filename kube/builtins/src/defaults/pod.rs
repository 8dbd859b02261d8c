//! Defaults of pods and of the pod templates in other kinds.

use serde_json::{Map, Value, json};

use crate::access::{default, default_nonzero, flag, get, get_mut, int, items_mut, object, set, text};
use crate::defaults::{canonical, claim_spec, resource_list};

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The defaults of a pod: those of a template, and those that only a real pod has.
pub(crate) fn pod(pod: &mut Value) {
    template(pod);
    let Some(spec) = object(pod, "spec") else { return };
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        set(spec, "terminationGracePeriodSeconds", 1);
    }
    let on_host = flag(spec, "hostNetwork");
    for list in ["initContainers", "containers"] {
        for container in items_mut(spec, list) {
            requests_from_limits(container);
            if on_host {
                for port in items_mut(container, "ports") {
                    let number = int(port, "containerPort").unwrap_or(0);
                    default_nonzero(port, "hostPort", number);
                }
            }
        }
    }
    default(spec, "enableServiceLinks", true);
    if let Some(status) = pod.get_mut("status") {
        pod_ips(status);
    }
}

/// The default request of a container is its limit.
fn requests_from_limits(container: &mut Value) {
    let Some(limits) = get(container, "resources.limits").and_then(Value::as_object).cloned() else { return };
    if limits.is_empty() {
        return;
    }
    let Some(requests) = object(container, "resources").and_then(|resources| object(resources, "requests")) else {
        return;
    };
    for (name, amount) in limits {
        default(requests, &name, amount);
    }
}

fn pod_ips(status: &mut Value) {
    let ip = text(status, "podIP").to_owned();
    let first = get(status, "podIPs").and_then(|ips| ips.get(0)).map(|first| text(first, "ip").to_owned());
    match first {
        None if !ip.is_empty() => set(status, "podIPs", json!([{"ip": ip}])),
        Some(first) if ip.is_empty() => set(status, "podIP", first),
        Some(first) if first != ip => set(status, "podIPs", json!([{"ip": ip}])),
        _ => {}
    }
}

/// The defaults of a pod template: metadata and spec.
pub(crate) fn template(template: &mut Value) {
    let Some(spec) = object(template, "spec") else { return };
    let account = match text(spec, "serviceAccountName") {
        "" => text(spec, "serviceAccount").to_owned(),
        name => name.to_owned(),
    };
    if !account.is_empty() {
        set(spec, "serviceAccountName", account.clone());
        set(spec, "serviceAccount", account);
    } else if spec.get("serviceAccount").is_some() {
        crate::access::remove(spec, "serviceAccount");
    }
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "restartPolicy", "Always");
    default(spec, "securityContext", Value::Object(Map::new()));
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "schedulerName", "default-scheduler");
    resource_list(spec.get_mut("overhead"));
    resource_list(get_mut(spec, "resources.limits"));
    resource_list(get_mut(spec, "resources.requests"));
    for volume in items_mut(spec, "volumes") {
        volume_defaults(volume);
    }
    for list in CONTAINERS {
        for container in items_mut(spec, list) {
            container_defaults(container);
        }
    }
}

/// Whether the default pull policy is Always: no tag and no digest, or the tag `latest`.
pub(crate) fn is_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

fn container_defaults(container: &mut Value) {
    let policy = if is_latest(text(container, "image")) { "Always" } else { "IfNotPresent" };
    default(container, "imagePullPolicy", policy);
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    for port in items_mut(container, "ports") {
        default(port, "protocol", "TCP");
    }
    for variable in items_mut(container, "env") {
        if let Some(reference) = get_mut(variable, "valueFrom.fieldRef") {
            default(reference, "apiVersion", "v1");
        }
        if let Some(divisor) = get_mut(variable, "valueFrom.resourceFieldRef.divisor") {
            canonical(divisor, false);
        }
        if let Some(reference) = get_mut(variable, "valueFrom.fileKeyRef") {
            default(reference, "optional", false);
        }
    }
    resource_list(get_mut(container, "resources.limits"));
    resource_list(get_mut(container, "resources.requests"));
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(name).filter(|probe| probe.is_object()) {
            default_nonzero(probe, "timeoutSeconds", 1);
            default_nonzero(probe, "periodSeconds", 10);
            default_nonzero(probe, "successThreshold", 1);
            default_nonzero(probe, "failureThreshold", 3);
            handler(probe);
        }
    }
    for hook in ["lifecycle.postStart", "lifecycle.preStop"] {
        if let Some(hook) = get_mut(container, hook) {
            handler(hook);
        }
    }
}

fn handler(handler: &mut Value) {
    if let Some(http) = get_mut(handler, "httpGet") {
        default(http, "path", "/");
        default(http, "scheme", "HTTP");
    }
    if let Some(grpc) = get_mut(handler, "grpc")
        && grpc.get("service").is_none_or(Value::is_null)
    {
        set(grpc, "service", "");
    }
}

fn volume_defaults(volume: &mut Value) {
    let only_named =
        volume.as_object().is_some_and(|fields| fields.iter().all(|(key, value)| key == "name" || value.is_null()));
    if only_named {
        set(volume, "emptyDir", Value::Object(Map::new()));
    }
    if let Some(size) = get_mut(volume, "emptyDir.sizeLimit") {
        canonical(size, false);
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).filter(|source| source.is_object()) {
            default(source, "defaultMode", 0o644);
        }
    }
    for path in ["downwardAPI.items", "projected.sources"] {
        for item in items_mut(volume, path) {
            downward_item(item);
            for item in items_mut(item, "downwardAPI.items") {
                downward_item(item);
            }
            if let Some(token) = get_mut(item, "serviceAccountToken") {
                default(token, "expirationSeconds", 3600);
            }
        }
    }
    if let Some(spec) = get_mut(volume, "ephemeral.volumeClaimTemplate.spec") {
        claim_spec(spec);
    }
    if let Some(image) = get_mut(volume, "image") {
        let policy = if is_latest(text(image, "reference")) { "Always" } else { "IfNotPresent" };
        default(image, "pullPolicy", policy);
    }
    volume_source(volume);
}

fn downward_item(item: &mut Value) {
    if let Some(reference) = get_mut(item, "fieldRef") {
        default(reference, "apiVersion", "v1");
    }
    if let Some(divisor) = get_mut(item, "resourceFieldRef.divisor") {
        canonical(divisor, false);
    }
}

/// The defaults of the sources that pods and persistent volumes share.
pub(crate) fn volume_source(holder: &mut Value) {
    let fill = |holder: &mut Value, source: &str, values: &[(&str, Value)]| {
        if let Some(source) = holder.get_mut(source).filter(|source| source.is_object()) {
            for (key, value) in values {
                default(source, key, value.clone());
            }
        }
    };
    if let Some(host_path) = holder.get_mut("hostPath").filter(|source| source.is_object())
        && host_path.get("type").is_none_or(Value::is_null)
    {
        set(host_path, "type", "");
    }
    fill(holder, "iscsi", &[("iscsiInterface", json!("default"))]);
    fill(holder, "rbd", &[("pool", json!("rbd")), ("user", json!("admin")), ("keyring", json!("/etc/ceph/keyring"))]);
    fill(holder, "scaleIO", &[("storageMode", json!("ThinProvisioned")), ("fsType", json!("xfs"))]);
    let azure = [
        ("cachingMode", json!("ReadWrite")),
        ("fsType", json!("ext4")),
        ("kind", json!("Shared")),
        ("readOnly", json!(false)),
    ];
    fill(holder, "azureDisk", &azure);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::of;

    #[test]
    fn a_bare_pod_gets_what_the_scheduler_and_kubelet_need() {
        let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [
            {"name": "c", "image": "nginx", "resources": {"limits": {"cpu": "0.5"}}, "ports": [{"containerPort": 80}]}]}});
        of("", "Pod", &mut pod);
        assert_eq!(
            pod.get("spec"),
            Some(&json!({
                "containers": [{
                    "name": "c", "image": "nginx", "imagePullPolicy": "Always",
                    "resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}},
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"
                }],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler", "enableServiceLinks": true
            }))
        );
    }

    #[test]
    fn only_an_untagged_or_latest_image_is_always_pulled() {
        assert!(is_latest("nginx"));
        assert!(is_latest("localhost:5000/a/nginx"));
        assert!(is_latest("nginx:latest"));
        assert!(!is_latest("localhost:5000/nginx:1.2"));
        assert!(!is_latest("nginx@sha256:abc"));
    }

    #[test]
    fn a_volume_without_a_source_is_an_empty_directory() {
        let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [], "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]}});
        of("", "Pod", &mut pod);
        assert_eq!(
            get(&pod, "spec.volumes"),
            Some(
                &json!([{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}}])
            )
        );
    }

    #[test]
    fn a_probe_gets_its_numbers() {
        let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [
            {"name": "c", "livenessProbe": {"httpGet": {"port": 80}, "timeoutSeconds": 5}}]}});
        of("", "Pod", &mut pod);
        assert_eq!(
            pod.pointer("/spec/containers/0/livenessProbe"),
            Some(&json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 5,
                "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}))
        );
    }

    #[test]
    fn the_pod_ip_fills_the_list_of_ips() {
        let mut pod = json!({"metadata": {"name": "a"}, "spec": {"containers": []}, "status": {"podIP": "10.0.0.1"}});
        of("", "Pod", &mut pod);
        assert_eq!(get(&pod, "status.podIPs"), Some(&json!([{"ip": "10.0.0.1"}])));
    }
}

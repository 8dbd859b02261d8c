//! The objects and hosts of a demonstration fleet: package versions, machines, and faults in a few of them.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{BrokenUnit, Faults, Fleet};

/// The package version of the kubelet that every machine starts with.
pub const KUBELET: &str = "kubelet-1.36.4";
/// A newer package version of the kubelet, to upgrade to.
pub const NEWER_KUBELET: &str = "kubelet-1.37.1";
/// A package version of the kubelet that does not start on any host.
pub const BAD_KUBELET: &str = "kubelet-1.37.2";
/// The Secret with the SSH key for the hosts.
pub const SSH_SECRET: &str = "fleet-ssh";

/// The label `pool` of the machines.
pub const POOL: &str = "simulated";

/// The number of machines per rack.
const RACK: usize = 10;
/// The number of zones.
const ZONES: usize = 4;

/// The name of a machine and of its host.
pub fn name(number: usize) -> String {
    format!("sim-{number:03}")
}

/// The address of a machine's host.
pub fn address(number: usize) -> String {
    format!("198.18.{}.{}", number / 250, number % 250 + 1)
}

/// The package versions of a worker: kernel settings, a container runtime, the kubelet in three versions.
pub fn packages() -> Vec<Value> {
    let kubelet = |version: &str| {
        json!({
            "component": "kubelet", "version": version,
            "tarball": { "source": source("kubelet", version), "links": { "/usr/local/bin/kubelet": "bin/kubelet" } },
            "dependsOn": ["containerd"],
            "files": [
                { "path": "/etc/kubernetes/bootstrap-kubelet.conf", "mode": "0600", "bootstrapKubeconfig": true },
                { "path": "/etc/kubernetes/kubelet.yaml", "template": KUBELET_CONFIG },
            ],
            "units": [{
                "name": "kubelet.service", "enabled": true, "running": true, "content": KUBELET_UNIT,
                "restartOn": ["/etc/kubernetes/kubelet.yaml"],
            }],
            "disruption": "Restart",
            "health": { "within": "1m", "every": "2s", "checks": [
                { "unit": "kubelet.service" }, { "nodeCondition": "Ready" },
            ] },
            "remove": { "paths": ["/etc/kubernetes", "/var/lib/kubelet"] },
        })
    };
    let containerd = |version: &str| {
        json!({
            "component": "containerd", "version": version,
            "tarball": { "source": source("containerd", version), "links": { "/usr/local/bin/containerd": "bin/containerd" } },
            "dependsOn": ["sysctl"],
            "files": [{ "path": "/etc/containerd/config.toml", "content": "version = 3\n" }],
            "units": [{
                "name": "containerd.service", "enabled": true, "running": true,
                "content": "[Service]\nExecStart=/usr/local/bin/containerd\n", "restartOn": ["/etc/containerd/config.toml"],
            }],
            "disruption": "Drain",
            "health": { "within": "1m", "checks": [{ "unit": "containerd.service" }] },
            "remove": { "paths": ["/etc/containerd", "/var/lib/containerd"] },
        })
    };
    let sysctl = json!({
        "component": "sysctl", "version": "1",
        "sysctl": { "net.ipv4.ip_forward": "1", "vm.max_map_count": "262144", "kernel.panic": "10" },
    });
    vec![
        version("sysctl-1", sysctl),
        version("containerd-2.3.0", containerd("2.3.0")),
        version("containerd-2.4.2", containerd("2.4.2")),
        version(KUBELET, kubelet("1.36.4")),
        version(NEWER_KUBELET, kubelet("1.37.1")),
        version(BAD_KUBELET, kubelet("1.37.2")),
    ]
}

fn version(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "MachinePackageVersion",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// The source of a package. The archive is never read: on simulated hosts every URL has the declared content.
fn source(component: &str, version: &str) -> Value {
    let digits: String = format!("{component}{version}").bytes().map(|byte| format!("{byte:02x}")).collect();
    let sha256: String = digits.chars().chain(std::iter::repeat('0')).take(64).collect();
    json!({ "urls": [format!("http://packages.fleet/{component}-{version}.tar.zst")], "sha256": sha256 })
}

const KUBELET_CONFIG: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
providerID: \"sim://{{ machine.name }}\"
registerWithTaints:
- {key: fleetwright.io/unready, effect: NoSchedule}
";

const KUBELET_UNIT: &str = "\
[Unit]
After=containerd.service
[Service]
ExecStart=/usr/local/bin/kubelet \\
  --config=/etc/kubernetes/kubelet.yaml \\
  --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \\
  --kubeconfig=/etc/kubernetes/kubelet.conf \\
  --cert-dir=/var/lib/kubelet/pki \\
  --hostname-override={{ machine.nodeName }}
Restart=always
[Install]
WantedBy=multi-user.target
";

/// The Machine with this number.
pub fn machine(number: usize) -> Value {
    machine_at(number, &name(number), &address(number))
}

/// The address of a worker's host, by the numbers of the cluster and of the worker in it.
pub fn worker_address(cluster: usize, worker: usize) -> String {
    format!("198.19.{}.{}", cluster % 250, worker % 250 + 1)
}

/// A Machine of a business cluster.
pub fn worker(name: &str, address: &str) -> Value {
    machine_at(0, name, address)
}

fn machine_at(number: usize, name: &str, address: &str) -> Value {
    let (rack, zone) = (number / RACK, number / RACK % ZONES);
    json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine",
        "metadata": { "name": name, "labels": { "pool": POOL, "zone": format!("z{zone}"), "rack": format!("r{rack}") } },
        "spec": {
            "addresses": [address],
            "hardware": { "zone": format!("z{zone}"), "rack": format!("r{rack}"), "model": "simulated" },
            "ssh": { "keyRef": { "name": SSH_SECRET }, "hostKeys": { "policy": "TrustOnFirstUse" } },
            "packages": [
                { "component": "sysctl", "ref": "sysctl-1" },
                { "component": "containerd", "ref": "containerd-2.4.2" },
                { "component": "kubelet", "ref": KUBELET },
            ],
        },
    })
}

/// The objects that machines need beside their packages: the SSH key, and the cluster information for packages with the API server at `server`.
pub fn around(server: &str) -> Vec<Value> {
    around_with(server, "simulated")
}

/// Like [`around`], for a cluster whose API server has a certificate of the authority `ca`.
pub fn around_with(server: &str, ca: &str) -> Vec<Value> {
    vec![
        key(),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": fleetwright_api::names::CLUSTER_VALUES },
            "data": { "server": server, "caBundle": ca, "dnsAddress": "10.96.0.10", "dnsDomain": "cluster.local" },
        }),
    ]
}

/// The Secret with the SSH key for the hosts.
pub fn key() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": SSH_SECRET }, "type": "kubernetes.io/ssh-auth",
        "stringData": { "ssh-privatekey": "simulated hosts accept every key\n" },
    })
}

/// The readiness gates, and the limit on machines that are changed at the same time.
pub fn rules() -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "ReadinessGates", "metadata": { "name": POOL },
            "spec": { "selector": { "matchLabels": { "pool": POOL } }, "conditions": [
                { "type": "PackagesReady" },
                { "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "40s" },
            ] },
        }),
        json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "OperationPolicy", "metadata": { "name": "windows" },
            "spec": { "operations": ["Restart", "Drain", "Reboot"], "scope": { "by": "zone" }, "max": "10%", "atLeast": 1 },
        }),
    ]
}

/// The rights of a kubelet's bootstrap token: it may request a certificate.
pub fn bootstrappers() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "fleetwright-bootstrappers" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers:fleetwright" }],
    })
}

/// Adds the hosts of this number of machines to the fleet. Each tenth host is slow.
pub fn hosts(fleet: &Fleet, machines: usize) {
    for number in 0..machines {
        host(fleet, &address(number));
        if number % 10 == 9 {
            fleet.host(&address(number)).set_step(Duration::from_secs(10 + number as u64 % 4 * 5));
        }
    }
}

/// Adds a host on which the bad kubelet version does not start.
pub fn host(fleet: &Fleet, address: &str) {
    static SPOILT: LazyLock<Arc<[BrokenUnit]>> = LazyLock::new(|| {
        Arc::from([BrokenUnit {
            unit: "kubelet.service".to_owned(),
            path: format!("{}/kubelet/current", fleetwright_wire::OPT),
            contains: "1.37.2".to_owned(),
        }])
    });
    fleet.host(address).set_faults(Faults { spoilt: SPOILT.clone(), ..Faults::default() });
}

//! The objects that make a fleet of a site's hosts, as a person would write them.

use anyhow::{Context, Result};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{EmulatedMachine, Host, Kernels, Published, Site, archives, images, shipped};

/// The Secret with the SSH key of all hosts.
const KEY: &str = "lab-ssh";
/// The label by which the readiness gates select the lab's machines.
const POOL: &str = "lab";

/// The fields of a host that a Machine needs.
#[derive(Clone, Debug)]
pub struct HostDescription {
    /// The name of the host.
    pub name: String,
    /// The address of the host.
    pub address: String,
    pub host_key: String,
    /// The number of the host in the site; the addresses of its pods follow from it.
    pub number: u8,
}

impl HostDescription {
    /// The description of a host by nspawn.
    pub fn host(host: &Host, number: u8) -> Self {
        Self { name: host.name(), address: host.address().to_string(), host_key: host.host_key(), number }
    }

    /// The description of an emulated machine.
    pub fn emulated(machine: &EmulatedMachine, number: u8) -> Self {
        Self { name: machine.name(), address: machine.address().to_string(), host_key: machine.host_key(), number }
    }

    /// The Machine with these packages (component, name of the package version).
    pub fn machine(&self, namespace: &str, packages: &[(String, String)]) -> Value {
        let packages: Vec<_> =
            packages.iter().map(|(component, name)| json!({ "component": component, "ref": name })).collect();
        json!({
            "apiVersion": "fleetwright.io/v1alpha1",
            "kind": "Machine",
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": { "pool": POOL, "fleetwright.io/pod-cidr": Site::pods(self.number).replace('/', "_") },
            },
            "spec": {
                "addresses": [self.address],
                "hardware": { "zone": "lab", "rack": format!("r{}", self.number) },
                "nodeLabels": { "pool": POOL },
                "ssh": {
                    "keyRef": { "name": KEY },
                    "hostKeys": { "policy": "Pinned", "keys": [self.host_key] },
                },
                "packages": packages,
            },
        })
    }
}

impl Site {
    /// The objects that machines refer to, and their namespace: the SSH key, the cluster's values, package versions, gates.
    pub fn objects(&self, namespace: &str) -> Result<Vec<Value>> {
        let mut objects = vec![
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
            json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": "cluster-values", "namespace": namespace },
                "data": self.cluster_values(),
            }),
            // Bootstrap tokens may request a kubelet certificate, and nothing else.
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": { "name": "fleetwright-lab-bootstrap" },
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "system:node-bootstrapper",
                },
                "subjects": [{
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Group",
                    "name": "system:bootstrappers:fleetwright",
                }],
            }),
        ];
        objects.extend(self.fleet(namespace)?);
        Ok(objects)
    }

    /// The objects among these that only the site has, and that a cluster does not bring itself: the SSH key, package versions, gates.
    pub fn fleet(&self, namespace: &str) -> Result<Vec<Value>> {
        let mut objects = vec![
            json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": { "name": KEY, "namespace": namespace },
                "type": "kubernetes.io/ssh-auth",
                "stringData": { "ssh-privatekey": self.network.ssh_key() },
            }),
            json!({
                "apiVersion": "fleetwright.io/v1alpha1",
                "kind": "ReadinessGates",
                "metadata": { "name": POOL, "namespace": namespace },
                "spec": {
                    "selector": { "matchLabels": { "pool": POOL } },
                    "conditions": [
                        { "type": "PackagesReady" },
                        { "type": "NodeReady", "from": { "nodeCondition": "Ready" }, "tolerateFor": "1m" },
                    ],
                },
            }),
            // The gate of operations allows only types that a policy names.
            json!({
                "apiVersion": "fleetwright.io/v1alpha1",
                "kind": "OperationPolicy",
                "metadata": { "name": POOL, "namespace": namespace },
                "spec": { "operations": ["Restart", "Drain", "Reboot"], "max": 2 },
            }),
        ];
        objects.extend(self.package_versions(namespace)?);
        Ok(objects)
    }

    /// The package versions whose packages the site serves.
    pub fn package_versions(&self, namespace: &str) -> Result<Vec<Value>> {
        let deb = |package: &str, name: &str| -> Result<String> {
            shipped(package, &self.repository.deb(name)?.version, None)
        };
        let mut texts = vec![
            deb("runc", "runc")?,
            deb("containerd", "containerd")?,
            deb("cni-plugins", "containernetworking-plugins")?,
            shipped("node-problem-detector", archives::NODE_PROBLEM_DETECTOR, Some(self.node_problem_detector()))?,
            shipped("sysctl-network", "1", None)?,
        ];
        for version in self.kubelet_versions() {
            texts.push(shipped("kubelet", version, Some(self.kubelet(version)?))?);
        }
        let mut versions = texts.iter().map(|text| package(text, namespace)).collect::<Result<Vec<_>>>()?;
        // Only net.* settings have a namespace here; the sysctl package for the whole kernel would change this machine.
        versions.push(self.images_package(namespace));
        Ok(versions)
    }

    /// The components of a worker, with the name of each one's package version, for a version of the kubelet.
    pub fn worker(&self, kubelet: &str) -> Result<Vec<(String, String)>> {
        let wanted = ["runc", "containerd", "cni-plugins", "images", "node-problem-detector", "sysctl-network"];
        let mut packages = Vec::new();
        for version in self.package_versions("")? {
            let of = |field: &str| version["spec"][field].as_str().unwrap_or_default().to_owned();
            let name = version["metadata"]["name"].as_str().context("a package version has a name")?.to_owned();
            if wanted.contains(&of("component").as_str())
                || (of("component"), of("version")) == ("kubelet".into(), kubelet.into())
            {
                packages.push((of("component"), name));
            }
        }
        Ok(packages)
    }

    /// The package version that imports the images into containerd: the hosts reach no registry.
    fn images_package(&self, namespace: &str) -> Value {
        let Published { url, sha256 } = self.images();
        let import =
            "for image in /opt/fleetwright/images/current/*.tar; do ctr -n k8s.io images import $image || exit 1; done";
        let unit = format!(
            "[Unit]\nDescription=Images that no registry has\nRequires=containerd.service\nAfter=containerd.service\n\n\
             [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c '{import}'\n\n[Install]\nWantedBy=multi-user.target\n"
        );
        let there = format!("ctr -n k8s.io images ls -q | grep -qx {}", images::WEB);
        json!({
            "apiVersion": "fleetwright.io/v1alpha1",
            "kind": "MachinePackageVersion",
            "metadata": { "name": "images-1", "namespace": namespace },
            "spec": {
                "component": "images",
                "version": "1",
                "tarball": { "source": { "urls": [url], "sha256": sha256 } },
                "units": [{ "name": "images.service", "enabled": true, "running": true, "content": unit }],
                "dependsOn": ["containerd"],
                "health": { "within": "1m", "checks": [{ "unit": "images.service" }, { "command": there }] },
            },
        })
    }

    /// A kernel's package version: booted by the links on the disk, as emulated machines do.
    pub fn kernel_package(&self, kernels: &Kernels, package_name: &str, namespace: &str) -> Result<Value> {
        let (deb, source) = kernels.repository.publish(&self.packages, package_name)?;
        let text = shipped("kernel", Kernels::release(package_name), Some(&source))?
            .replace("@PACKAGE_VERSION@", &deb.version)
            .replace("boot: Grub", "boot: Links");
        package(&text, namespace)
    }
}

/// Parses a package version from YAML and sets its namespace.
///
/// # Errors
/// When the text is not a package version.
pub fn package(text: &str, namespace: &str) -> Result<Value> {
    let mut package: Value = serde_saphyr::from_str(text).with_context(|| format!("invalid YAML:\n{text}"))?;
    package["metadata"]["namespace"] = namespace.into();
    Ok(package)
}

/// Applies objects as `kubectl apply --server-side` does.
///
/// # Errors
/// When the server refuses an object: the error names it.
pub async fn apply(client: &Client, objects: &[Value]) -> Result<()> {
    for object in objects {
        let kind = object["kind"].as_str().context("an object has a kind")?;
        let version = object["apiVersion"].as_str().context("an object has a version")?;
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if kind == "ReadinessGates" {
            resource.plural = "readinessgates".to_owned();
        }
        let name = object["metadata"]["name"].as_str().context("an object has a name")?;
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let params = PatchParams::apply("fleetwright-lab").force();
        api.patch(name, &params, &Patch::Apply(object)).await.with_context(|| format!("cannot apply {kind} {name}"))?;
    }
    Ok(())
}

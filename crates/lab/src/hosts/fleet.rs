//! The objects by which a site's hosts become a fleet: what a person would write.

use anyhow::{Context, Result};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{EmulatedMachine, Host, Kernels, Published, Site, archives, images, shipped};

/// The Secret with the key that opens all hosts.
const KEY: &str = "lab-ssh";
/// The label by which the gates choose the lab's machines.
const POOL: &str = "lab";

/// A host, as a Machine names it.
#[derive(Clone, Debug)]
pub struct HostDescription {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Its host key.
    pub host_key: String,
    /// Which of the site's hosts it is; its pods' addresses follow from it.
    pub number: u8,
}

impl HostDescription {
    /// A host.
    pub fn host(host: &Host, number: u8) -> Self {
        Self { name: host.name(), address: host.address().to_string(), host_key: host.host_key(), number }
    }

    /// An emulated machine.
    pub fn emulated(machine: &EmulatedMachine, number: u8) -> Self {
        Self { name: machine.name(), address: machine.address().to_string(), host_key: machine.host_key(), number }
    }

    /// The Machine, with these packages (component, name of the package version).
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
    /// What machines refer to, in a namespace that is made too: the key, the cluster's values, package versions, gates.
    pub fn objects(&self, namespace: &str) -> Result<Vec<Value>> {
        let mut objects = vec![
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
            json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": "cluster-values", "namespace": namespace },
                "data": self.cluster_values(),
            }),
            // Kubelets that are about to join may ask for a certificate, and nothing else.
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

    /// Of these what only the site has, and what a cluster does not bring itself: the key, package versions, gates.
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
            // The gate lets nothing pass that no policy names.
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

    /// The package versions that the site has something for.
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
        // Only net.* settings are a host's own here; the set for the whole kernel would be set for this machine.
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

    /// The images, imported into containerd: no registry is reachable from here.
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

/// The package version of that YAML, in a namespace.
///
/// # Errors
/// When it is none.
pub fn package(text: &str, namespace: &str) -> Result<Value> {
    let mut package: Value = serde_saphyr::from_str(text).with_context(|| format!("invalid YAML:\n{text}"))?;
    package["metadata"]["namespace"] = namespace.into();
    Ok(package)
}

/// Writes objects as a person with `kubectl apply --server-side` would.
///
/// # Errors
/// When the server refuses one: says which.
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

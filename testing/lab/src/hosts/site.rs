//! The environment of machines: a network, a control plane on it, and packages to install.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Host, HostBuilder, Network, PackageServer, Published, Repository, Template, archives, images};
use crate::{Binaries, ControlPlane, DEFAULT_MINOR};

/// The Debian packages that a Kubernetes node needs beside the template.
const DEBS: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "iptables"];

/// The versions of the kubelet that can be installed, oldest first.
pub const KUBELETS: [(&str, &str); 2] = [("1.36", "1.36.4"), ("1.37", "1.37.1")];

/// A network with a real Kubernetes control plane and all packages to turn a bare host into a node. Hosts reach nothing else.
pub struct Site {
    /// The network of the hosts.
    pub network: Network,
    /// The control plane of Kubernetes, with all controllers and a scheduler, but without nodes.
    pub plane: ControlPlane,
    /// The package server.
    pub packages: PackageServer,
    /// The file tree of new hosts.
    pub template: Template,
    /// The Debian packages.
    pub repository: Repository,
    apt: String,
    kubelets: BTreeMap<String, Published>,
    detector: Published,
    images: Published,
}

impl Site {
    /// Starts everything but hosts. Prints what has to be fetched or built once.
    ///
    /// # Errors
    /// When this machine cannot run hosts, or a dependency is not available.
    pub async fn start() -> Result<Self> {
        let ground = SiteBase::prepare().await?;
        let plane = ground.plane(DEFAULT_MINOR).await?;
        Ok(ground.under(plane))
    }

    /// Boots a bare host with the site's Debian repository configured.
    pub async fn host(&self, name: &str) -> Result<Host> {
        self.bare(name).start().await
    }

    /// The configuration of such a host, to extend.
    pub(crate) fn bare(&self, name: &str) -> HostBuilder {
        let bare = Host::builder(&self.network, &self.template, name);
        bare.file("/etc/apt/sources.list.d/site.list", 0o644, self.apt.clone())
    }

    /// The addresses of the pods of the `number`-th host: `10.244.N.0/24`.
    pub fn pods(number: u8) -> String {
        format!("10.244.{number}.0/24")
    }

    /// Adds routes between the pods of all these hosts, in the order of [`Site::pods`], as a pod network does.
    pub async fn connect(&self, hosts: &[&Host]) -> Result<()> {
        for (from, host) in hosts.iter().enumerate() {
            for (to, other) in hosts.iter().enumerate().filter(|(to, _)| *to != from) {
                let number = u8::try_from(to).context("too many hosts")?;
                host.route(&Self::pods(number), other.address()).await?;
            }
        }
        Ok(())
    }

    /// A kubelet's archive, with `bin/kubelet` in it.
    pub fn kubelet(&self, version: &str) -> Result<&Published> {
        self.kubelets.get(version).with_context(|| format!("kubelet {version} not found; run make k8s MINOR=…"))
    }

    /// The available versions of the kubelet, oldest first.
    pub fn kubelet_versions(&self) -> impl Iterator<Item = &str> {
        self.kubelets.keys().map(String::as_str)
    }

    /// The node-problem-detector's archive, with `bin/node-problem-detector` in it.
    pub fn node_problem_detector(&self) -> &Published {
        &self.detector
    }

    /// The archive with `pause.tar` and `web.tar`: [`images::PAUSE`] and [`images::WEB`].
    pub fn images(&self) -> &Published {
        &self.images
    }

    /// The cluster's values for packages, for the ConfigMap `cluster-values`.
    pub fn cluster_values(&self) -> BTreeMap<String, String> {
        let values = [
            ("server", self.plane.url()),
            ("caBundle", self.plane.ca_pem()),
            // No DNS server has this address: pods of tests know each other's addresses.
            ("dnsAddress", "10.96.0.10"),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned()));
        values.into_iter().chain(self.host_values()).collect()
    }

    /// The values among these that depend on the lab's hosts, independent of the cluster that they join.
    pub fn host_values(&self) -> BTreeMap<String, String> {
        let values = [
            ("cgroupDriver", "cgroupfs"),
            ("cgroupV1", if unified() { "false" } else { "true" }),
            ("nested", "true"),
            ("sandboxImage", images::PAUSE),
        ];
        values.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    /// Keeps all logs and prints their path, for a test that failed without a panic.
    pub fn keep_logs(&mut self) {
        self.network.keep_logs();
        self.plane.keep_logs();
    }
}

/// A site without its control plane: a host can boot on it while the control plane starts.
pub(crate) struct SiteBase {
    pub(crate) network: Network,
    pub(crate) template: Template,
    pub(crate) repository: Repository,
    packages: PackageServer,
    apt: String,
    kubelets: BTreeMap<String, Published>,
    detector: Published,
    images: Published,
}

impl SiteBase {
    pub(crate) async fn prepare() -> Result<Self> {
        let network = Network::start().await?;
        let template = Template::debian().await?;
        let packages = PackageServer::start(network.address())?;
        let repository = Repository::with(&template, &DEBS).await?;
        let apt = repository.serve(&packages)?;
        let mut kubelets = BTreeMap::new();
        for (minor, version) in KUBELETS {
            // Prebuilt binaries may have one version only.
            if Binaries::find(minor).and_then(|found| found.path("kubelet")).is_err() {
                continue;
            }
            let archive = archives::kubelet(minor).await?;
            kubelets.insert(version.to_owned(), packages.publish(&format!("kubelet-{version}.tar.zst"), &archive)?);
        }
        let name = format!("node-problem-detector-{}.tar.zst", archives::NODE_PROBLEM_DETECTOR);
        let detector = packages.publish(&name, &archives::node_problem_detector().await?)?;
        let images = packages.publish("images.tar.zst", &archives::images().await?)?;
        Ok(Self { network, template, repository, packages, apt, kubelets, detector, images })
    }

    pub(crate) async fn plane(&self, minor: &str) -> Result<ControlPlane> {
        let plane = ControlPlane::builder().minor(minor).address(self.network.address());
        plane.controller_manager(["*"]).scheduler(true).start().await
    }

    pub(crate) fn under(self, plane: ControlPlane) -> Site {
        let Self { network, template, repository, packages, apt, kubelets, detector, images } = self;
        Site { network, plane, packages, template, repository, apt, kubelets, detector, images }
    }
}

/// Whether this machine has cgroups of version 2 only.
fn unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A package version from the project's own files, as YAML, filled in as `fleetwright package new` does.
///
/// # Errors
/// When there is no file of this name.
pub fn shipped(package: &str, version: &str, source: Option<&Published>) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packages").join(format!("{package}.yaml"));
    let text = fs::read_to_string(&path).with_context(|| format!("no package {}", path.display()))?;
    let lines = text.lines().filter(|line| source.is_some() || !line.ends_with("#@url"));
    let text: String = lines.map(|line| format!("{}\n", line.trim_end_matches("#@url").trim_end())).collect();
    let name =
        format!("{package}-{version}").to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
    let text = text.replace("@NAME@", &name).replace("@VERSION@", version);
    Ok(match source {
        Some(source) => text.replace("@URL@", &source.url).replace("@SHA256@", &source.sha256),
        None => text,
    })
}

//! A real Kubernetes on this machine that runs pods, as the base of business clusters.
//!
//! ```no_run
//! # async fn doc() -> anyhow::Result<()> {
//! use fleetwright_lab::meta::{Meta, Options};
//!
//! let meta = Meta::start(Options::default()).await?;
//! let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::all(meta.client());
//! # Ok(()) }
//! ```
//!
//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler are processes of this machine, as in every [`Site`]; one node runs the
//! pods: kubelet, containerd, runc, CNI plugins and kube-proxy.
//!
//! The node is a [`Host`](crate::hosts::Host) and not a set of processes in namespaces of their own. A kubelet needs its own root, cgroups,
//! network and mounts, and a supervisor that restarts it; a host has them, boots while the control plane starts, and so costs no
//! time; tests of business clusters can power it off and disconnect it; and the cleanup, even if the test is killed, is solved there.
//! Large files are mounted and not copied: the binaries of Kubernetes, and all images, which were imported once.
//!
//! Pods reach each other, Services, and this machine; this machine and hosts on the same bridge reach the node and its NodePorts; this machine
//! has a route to the pods. CoreDNS resolves names; claims are folders on the node. NetworkPolicies are enforced if [`Options::enforce`] is set;
//! otherwise they are only accepted.

mod dns;
mod node;
mod policies;
mod store;
mod volumes;
mod workers;

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use self::policies::Policies;
use self::store::Store;
use self::volumes::Volumes;
pub use self::workers::Workers;
use crate::hosts::command::{aside, call};
use crate::hosts::{Host, Image, Site, SiteBase, apply, images};
use crate::{Binaries, DEFAULT_MINOR};

/// The cluster IP of the DNS server.
pub(crate) const DNS: &str = "10.96.0.10";
/// The domain of all names.
pub(crate) const DOMAIN: &str = "cluster.local";
/// The timeout from the start of the kubelet to a ready node with DNS: it takes seconds, but the machine may be busy.
const READY: Duration = Duration::from_secs(180);

/// The configuration of a [`Meta`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The Kubernetes minor of the meta cluster itself.
    pub minor: String,
    /// The minors whose control plane images are imported; minors that were not built are left out.
    pub minors: Vec<String>,
    /// Further images that are imported at the start. They are cached with the others: for images that change often, see
    /// [`Meta::import`].
    pub images: Vec<Image>,
    /// Whether NetworkPolicies are enforced.
    pub enforce: bool,
}

impl Default for Options {
    fn default() -> Self {
        let minors = Binaries::minors().map(str::to_owned).collect();
        Self { minor: DEFAULT_MINOR.to_owned(), minors, images: Vec::new(), enforce: false }
    }
}

/// A running meta cluster. Dropping it ends all of it and leaves only logs, if the thread panics or [`Meta::keep_logs`] was called.
pub struct Meta {
    // The order of drops.
    _volumes: Volumes,
    _policies: Option<Policies>,
    node: Arc<Host>,
    _store: Store,
    images: Vec<String>,
    /// The network, the control plane and the packages, also for hosts that become workers of business clusters.
    pub site: Site,
}

impl Meta {
    /// Starts the cluster and waits until the node is ready and DNS answers.
    ///
    /// # Errors
    /// When this machine cannot run hosts, or a part does not become ready: the error has the status of the node and its pods.
    pub async fn start(options: Options) -> Result<Self> {
        let begun = Instant::now();
        let said = |what: &str| eprintln!("lab: {what} after {:.1} s", begun.elapsed().as_secs_f64());
        let ground = SiteBase::prepare().await?;
        let images = wanted(&options).await?;
        let names = images.iter().map(|image| image.name().to_owned()).collect();
        said("network and packages are there");
        let (plane, (node, store)) = tokio::try_join!(
            async {
                let plane = ground.plane(&options.minor).await;
                said("the control plane serves");
                plane
            },
            async {
                let node = node::boot(&ground, &options.minor, images).await;
                said("the node has booted");
                node
            },
        )?;
        let (site, node) = (ground.under(plane), Arc::new(node));
        let volumes = Volumes::start(site.plane.kubeconfig(), node.clone())?;
        let policies = match options.enforce {
            true => Some(Policies::start(site.plane.kubeconfig(), node.clone())?),
            false => None,
        };
        let mut meta = Self { _volumes: volumes, _policies: policies, node, _store: store, images: names, site };
        match meta.join(said).await {
            Ok(()) => Ok(meta),
            Err(error) => {
                let seen = meta.seen().await;
                meta.keep_logs();
                Err(error.context(seen))
            }
        }
    }

    async fn join(&self, said: impl Fn(&str)) -> Result<()> {
        let mut objects = dns::objects();
        objects.extend(volumes::objects());
        let client = self.client();
        tokio::try_join!(node::join(&self.node, &self.site.plane), self.route(), apply(&client, &objects))?;
        let nodes: Api<Node> = Api::all(client.clone());
        within(READY, "the node to be ready", || async {
            let node = nodes.get_opt(node::NAME).await?;
            let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
            Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
        })
        .await?;
        said("the node is ready");
        let deployments: Api<Deployment> = Api::namespaced(client, dns::NAMESPACE);
        within(READY, "CoreDNS to be ready", || async {
            let status = deployments.get(dns::NAME).await?.status.unwrap_or_default();
            Ok(status.ready_replicas.unwrap_or_default() > 0)
        })
        .await?;
        said("names are answered");
        Ok(())
    }

    /// Adds a route from this machine to the pods. It is removed with the bridge.
    async fn route(&self) -> Result<()> {
        let (pods, via) = (self.pods(), self.address().to_string());
        let bridge = self.site.network.bridge().to_owned();
        aside(move || call("ip", ["route", "replace", &pods, "via", &via, "dev", &bridge]).map(drop)).await
    }

    /// An administrator's client (group `system:masters`).
    pub fn client(&self) -> Client {
        self.site.plane.client()
    }

    /// An administrator's kubeconfig.
    pub fn kubeconfig(&self) -> String {
        self.site.plane.kubeconfig()
    }

    /// A file with [`Meta::kubeconfig`], for kubectl.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.site.plane.kubeconfig_path()
    }

    pub fn node(&self) -> &Host {
        &self.node
    }

    /// The node's address, on which NodePorts listen.
    pub fn address(&self) -> Ipv4Addr {
        self.node.address()
    }

    /// The addresses of pods, such as `10.200.7.0/24`. This machine has a route to them; a host gets one with [`Host::route`].
    pub fn pods(&self) -> String {
        node::pods(self.site.network.address())
    }

    /// The names of the images that were imported at the start.
    pub fn images(&self) -> &[String] {
        &self.images
    }

    /// ClusterPackageVersions of the control planes with imported images, named like `k8s-1.36.4`.
    pub fn package_versions(&self, namespace: &str) -> Result<Vec<Value>> {
        let mut versions = Vec::new();
        for minor in Binaries::minors() {
            let (kubernetes, etcd) = (Binaries::version(minor)?, Binaries::etcd_version(minor)?);
            let image = |component: &str| {
                let name = images::name(component, if component == "etcd" { etcd } else { kubernetes });
                json!({ "image": name })
            };
            if !self.images.contains(&images::name("kube-apiserver", kubernetes)) {
                continue;
            }
            let number = kubernetes.trim_start_matches('v');
            versions.push(json!({
                "apiVersion": "fleetwright.io/v1alpha1",
                "kind": "ClusterPackageVersion",
                "metadata": { "name": format!("k8s-{number}"), "namespace": namespace },
                "spec": {
                    "kubernetes": number,
                    "components": {
                        "etcd": image("etcd"),
                        "apiserver": image("kube-apiserver"),
                        "controllerManager": image("kube-controller-manager"),
                        "scheduler": image("kube-scheduler"),
                    },
                },
            }));
        }
        Ok(versions)
    }

    /// Whether a pod can connect to this address by TCP. The pod needs no program for it: the check enters its network namespace on the node.
    ///
    /// # Errors
    /// When no pod has the address.
    pub async fn connects(&self, pod: &str, to: &str, port: u16) -> Result<bool> {
        let connect = format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{to}/{port}' 2>/dev/null");
        let script = format!(
            "for own in /var/run/netns/*; do nsenter --net=$own hostname -I | grep -qwF {pod} || continue; \
             nsenter --net=$own {connect} && echo open || echo closed; exit; done; echo nowhere"
        );
        match self.node.run(&script).await?.trim() {
            "open" => Ok(true),
            "closed" => Ok(false),
            said => bail!("no pod of the node has the address {pod}: {said}"),
        }
    }

    /// Makes an image available to pods, under its name.
    ///
    /// # Errors
    /// When one of its files cannot be read, or containerd refuses it.
    pub async fn import(&self, image: &Image) -> Result<()> {
        let (name, image) = (image.name().to_owned(), image.clone());
        let imported = self.node.feed("ctr -n k8s.io images import -", move |to| image.write(to)).await;
        imported.with_context(|| format!("cannot import {name}")).map(drop)
    }

    /// Makes the images of a docker archive available to pods.
    ///
    /// # Errors
    /// When it cannot be read, or containerd refuses it.
    pub async fn import_archive(&self, archive: &Path) -> Result<()> {
        let (name, archive) = (archive.display().to_string(), archive.to_owned());
        let copy = move |to: &mut dyn Write| Ok(std::io::copy(&mut File::open(archive)?, to).map(drop)?);
        let imported = self.node.feed("ctr -n k8s.io images import -", copy).await;
        imported.with_context(|| format!("cannot import {name}")).map(drop)
    }

    /// Deletes the data of an etcd member and kills it, as a disk failure does. The name of the member must be unique.
    pub async fn lose_member(&self, namespace: &str, member: &str) -> Result<()> {
        self.end_member(namespace, member, "rm -rf $data").await
    }

    /// Deletes the data of an etcd member and breaks its volume: the member does not start again. (Two members that lost their data and start at the
    /// same time, without a leader, could otherwise take all data from the third.)
    ///
    /// # Errors
    /// When the member does not exist, or the node does not answer.
    pub async fn break_member(&self, namespace: &str, member: &str) -> Result<()> {
        self.end_member(namespace, member, "mv $data $data.lost; : >$data; rm -rf $data.lost").await
    }

    async fn end_member(&self, namespace: &str, member: &str, harm: &str) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client(), namespace);
        let claim = claims.get(&format!("data-{member}")).await?.uid().context("a claim has a uid")?;
        let kill = format!(r#"tr '\0' ' ' <$p/cmdline | grep -q '^etcd .*--name={member} ' && kill -9 ${{p#/proc/}}"#);
        let data = format!("data={}/{claim}/data", volumes::FOLDER);
        let lose = format!("{data}; {harm}; for p in /proc/[0-9]*; do {kill}; done; true");
        self.node.run(&lose).await.map(drop)
    }

    /// Keeps all logs and prints their path, for a test that failed without a panic.
    pub fn keep_logs(&mut self) {
        self.site.keep_logs();
    }

    /// The status of the node and its pods, to find out why a part is not ready.
    pub async fn seen(&self) -> String {
        let mut seen = String::new();
        let nodes = Api::<Node>::all(self.client()).list(&ListParams::default()).await;
        for node in nodes.map(|list| list.items).unwrap_or_default() {
            for condition in node.status.iter().flat_map(|status| status.conditions.iter().flatten()) {
                let message = condition.message.as_deref().unwrap_or_default();
                seen += &format!("node {}: {}={}: {message}\n", node.name_any(), condition.type_, condition.status);
            }
        }
        let pods = Api::<Pod>::all(self.client()).list(&ListParams::default()).await;
        for pod in pods.map(|list| list.items).unwrap_or_default() {
            let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
            let status = pod.status.unwrap_or_default();
            seen += &format!("pod {name}: {}", status.phase.unwrap_or_default());
            for container in status.container_statuses.into_iter().flatten() {
                let state = serde_json::to_string(&container.state).unwrap_or_default();
                seen += &format!(", {} ready={} {state}", container.name, container.ready);
            }
            for condition in status.conditions.into_iter().flatten().filter(|condition| condition.status != "True") {
                seen += &format!(", {}: {}", condition.type_, condition.message.unwrap_or_default());
            }
            seen += "\n";
        }
        let units =
            "journalctl --no-pager -q -n 15 -u kubelet; journalctl --no-pager -q -n 8 -u containerd -u kube-proxy";
        seen + &self.node.run(units).await.unwrap_or_default()
    }
}

/// All images to import at the start.
async fn wanted(options: &Options) -> Result<Vec<Image>> {
    let mut images = aside(Image::small).await?;
    images.push(Image::coredns().await?);
    for minor in &options.minors {
        match Image::control_plane(minor) {
            Ok(found) => images.extend(found),
            Err(error) => tracing::info!(%error, minor, "no images for this minor"),
        }
    }
    images.extend(options.images.iter().cloned());
    Ok(images)
}

async fn within<F: Future<Output = Result<bool>>>(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> F,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !holds().await? {
        if Instant::now() > deadline {
            bail!("waited {limit:?} for {what}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

//! The node of a meta cluster: a host that boots with containerd, the CNI plugins and all images, and becomes a node within
//! seconds after the API server answers.

use std::net::Ipv4Addr;

use anyhow::Result;
use fleetwright_pki::Leaf;

use super::store::{Store, TAKE};
use super::{DNS, DOMAIN};
use crate::hosts::{Host, Image, SiteBase, images};
use crate::{Binaries, ControlPlane};

/// The name of the node.
pub(crate) const NAME: &str = "meta";

/// The folders of this machine that are mounted in the node.
const BINARIES: &str = "/opt/kubernetes";
pub(crate) const IMAGES: &str = "/opt/images";

/// Debian's unit requests limits that may need CAP_SYS_RESOURCE, which can be missing.
const CONTAINERD_UNIT: &str = "[Service]
OOMScoreAdjust=0
LimitNPROC=
LimitCORE=
LimitNOFILE=
ExecStartPre=/bin/sh -eu /etc/lab-images /opt/images
";

const KUBELET_UNIT: &str = "[Unit]
Description=kubelet
After=containerd.service

[Service]
ExecStart=/opt/kubernetes/kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.conf \
--hostname-override=meta --node-ip=@ADDRESS@
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
";

/// Evictions and image removal are off: the small disk is memory of this machine.
const KUBELET: &str = r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: /etc/kubernetes/kubelet.crt
tlsPrivateKeyFile: /etc/kubernetes/kubelet.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: ["@DNS@"]
clusterDomain: @DOMAIN@
cgroupDriver: cgroupfs
failCgroupV1: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
serializeImagePulls: false
"#;

const PROXY_UNIT: &str = "[Unit]
Description=kube-proxy

[Service]
ExecStart=/opt/kubernetes/kube-proxy --config=/etc/kubernetes/kube-proxy.yaml --hostname-override=meta
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
";

/// Connection tracking belongs to this machine: kube-proxy must not change its limits.
const PROXY: &str = r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: /etc/kubernetes/kube-proxy.conf}
clusterCIDR: "@PODS@"
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 100ms}
"#;

/// The settings with which containerd works without CAP_SYS_RESOURCE.
const CONTAINERD: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "@PAUSE@"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
"#;

/// Each pod has its own link to the host, so that all traffic between pods is routed: with a bridge, answers from a Service on the same
/// node need the kernel's br_netfilter. Traffic that leaves the node has the node's address, since workers of business clusters know no
/// other.
const PODS: &str = r#"{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": true, "mtu": 1500, "ipam": {"type": "host-local", "ranges": [[{"subnet": "@PODS@"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
"#;

/// The pod addresses of a network. They differ for each network, as this machine has a route to each.
pub(crate) fn pods(bridge: Ipv4Addr) -> String {
    let [_, b, c, _] = bridge.octets();
    // Networks are in 198.18.0.0/15.
    format!("10.{}.{c}.0/24", 182 + u16::from(b))
}

/// Boots the host: containerd runs with the images, and nothing else yet.
pub(crate) async fn boot(ground: &SiteBase, minor: &str, images: Vec<Image>) -> Result<(Host, Store)> {
    let template = ground.template.with(&ground.repository).await?;
    let store = Store::with(&template, images).await?;
    let binaries = Binaries::find(minor)?;
    for binary in ["kubelet", "kube-proxy"] {
        binaries.path(binary)?;
    }
    let pods = pods(ground.network.address());
    let host = Host::builder(&ground.network, &template, NAME)
        .bind(binaries.folder(), BINARIES)
        .bind(store.folder(), IMAGES)
        .file("/etc/lab-images", 0o644, TAKE)
        .file("/etc/containerd/config.toml", 0o644, CONTAINERD.replace("@PAUSE@", images::PAUSE))
        .file("/etc/systemd/system/containerd.service.d/lab.conf", 0o644, CONTAINERD_UNIT)
        .file("/etc/cni/net.d/10-pods.conflist", 0o644, PODS.replace("@PODS@", &pods))
        .file("/etc/kubernetes/kubelet.yaml", 0o644, KUBELET.replace("@DNS@", DNS).replace("@DOMAIN@", DOMAIN))
        .file("/etc/kubernetes/kube-proxy.yaml", 0o644, PROXY.replace("@PODS@", &pods))
        .start()
        .await?;
    Ok((host, store))
}

/// Joins the host as a node.
pub(crate) async fn join(host: &Host, plane: &ControlPlane) -> Result<()> {
    let address = host.address();
    // With a certificate that the API server trusts, the kubelet serves logs and exec.
    let own = plane.issue(Leaf::server(NAME, [NAME], [address.into()]))?;
    let files = [
        ("etc/kubernetes/ca.crt", plane.ca_pem().to_owned()),
        ("etc/kubernetes/kubelet.crt", own.cert_pem),
        ("etc/kubernetes/kubelet.key", own.key_pem),
        ("etc/kubernetes/kubelet.conf", plane.kubeconfig_as(&format!("system:node:{NAME}"), &["system:nodes"])?),
        ("etc/kubernetes/kube-proxy.conf", plane.kubeconfig_as("system:kube-proxy", &[])?),
        ("etc/systemd/system/kubelet.service", KUBELET_UNIT.replace("@ADDRESS@", &address.to_string())),
        ("etc/systemd/system/kube-proxy.service", PROXY_UNIT.to_owned()),
    ];
    let start = "tar -x -C / && systemctl daemon-reload && systemctl enable --quiet --now kubelet kube-proxy";
    host.feed(start, move |to| {
        let mut archive = tar::Builder::new(to);
        for (path, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o600);
            header.set_size(text.len() as u64);
            archive.append_data(&mut header, path, text.as_bytes())?;
        }
        Ok(archive.finish()?)
    })
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_two_networks_have_different_addresses() {
        assert_eq!(pods([198, 18, 7, 1].into()), "10.200.7.0/24");
        assert_eq!(pods([198, 19, 7, 1].into()), "10.201.7.0/24");
    }
}

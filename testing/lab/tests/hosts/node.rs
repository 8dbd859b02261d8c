//! A bare host becomes a node by manual steps with the packages of a site: if this fails, the lab is at fault and not an operator.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleetwright_lab::hosts::{Host, Site, images};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

const INSTALL: &str = r#"
set -e
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends containerd runc containernetworking-plugins iptables
mkdir -p /etc/containerd /etc/cni/net.d /etc/systemd/system/containerd.service.d /etc/kubernetes
cat >/etc/containerd/config.toml <<EOF
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "@PAUSE@"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
EOF
printf '[Service]\nOOMScoreAdjust=0\nLimitNPROC=\nLimitCORE=\nLimitNOFILE=\n' >/etc/systemd/system/containerd.service.d/lab.conf
cat >/etc/cni/net.d/10-pods.conflist <<EOF
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "@PODS@"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
cat >/etc/kubernetes/kubelet.yaml <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {x509: {clientCAFile: /etc/kubernetes/ca.crt}}
resolvConf: ""
EOF
cat >/etc/kubernetes/kubelet.conf <<EOF
@KUBECONFIG@
EOF
cat >/etc/kubernetes/ca.crt <<EOF
@CA@
EOF
systemctl daemon-reload
systemctl restart containerd
for archive in images kubelet; do busybox wget -q -O - @SERVER@/$archive.tar | tar -x -C /srv; done
ctr -n k8s.io images import /srv/pause.tar
ctr -n k8s.io images import /srv/web.tar
systemd-run --unit=kubelet -- /srv/bin/kubelet --config=/etc/kubernetes/kubelet.yaml \
  --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override=$(hostname)
"#;

async fn make_a_node(site: &Site, host: &Host, number: u8) -> Result<()> {
    let kubeconfig = site.plane.kubeconfig_as(&format!("system:node:{}", host.name()), &["system:nodes"])?;
    let install = INSTALL
        .replace("@PAUSE@", images::PAUSE)
        .replace("@PODS@", &Site::pods(number))
        .replace("@KUBECONFIG@", &kubeconfig)
        .replace("@CA@", site.plane.ca_pem())
        .replace("@SERVER@", site.packages.url("").trim_end_matches('/'));
    host.run(&install).await.map(drop)
}

async fn eventually<T, F: Future<Output = Result<Option<T>>>>(what: &str, mut look: impl FnMut() -> F) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited two minutes for {what}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_host_can_be_made_a_node_by_hand_on_hosts() -> Result<()> {
    let mut site = Site::start().await?;
    let (first, second) = tokio::try_join!(site.host("first"), site.host("second"))?;
    let tried = by_hand(&site, &first, &second).await;
    if tried.is_err() {
        site.keep_logs();
    }
    tried
}

async fn by_hand(site: &Site, first: &Host, second: &Host) -> Result<()> {
    site.connect(&[first, second]).await?;
    // A bare host cannot unpack zstd; the operator's helper brings its own decoder.
    for (archive, plain) in [("images.tar.zst", "images.tar"), ("kubelet-1.37.1.tar.zst", "kubelet.tar")] {
        let (archive, plain) = (site.packages.folder().join(archive), site.packages.folder().join(plain));
        assert!(Command::new("zstd").args(["-q", "-d", "-f", "-o"]).arg(&plain).arg(&archive).status()?.success());
    }
    tokio::try_join!(make_a_node(site, first, 0), make_a_node(site, second, 1))?;
    let nodes: Api<Node> = Api::all(site.plane.client());
    for name in ["first", "second"] {
        eventually(&format!("{name} to be ready"), || async {
            let node = nodes.get_opt(name).await?;
            let conditions = node.and_then(|node| node.status).and_then(|status| status.conditions).unwrap_or_default();
            Ok(conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
                .then_some(()))
        })
        .await?;
    }
    let pods: Api<Pod> = Api::default_namespaced(site.plane.client());
    for (name, node) in [("one", "first"), ("two", "second")] {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "web", "image": images::WEB, "imagePullPolicy": "Never" }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    }
    let mut addresses = Vec::new();
    for name in ["one", "two"] {
        let address = eventually(&format!("pod {name} to run"), || async {
            let status = pods.get(name).await?.status.context("a pod has a status")?;
            Ok(status.pod_ip.filter(|_| status.phase.as_deref() == Some("Running")))
        })
        .await?;
        addresses.push(address);
    }
    // Debian's static busybox crashes when wget has a timeout.
    let asked = format!("timeout 5 busybox wget -q -O - http://{}:8080/", addresses[1]);
    // From this host to the other's pod, and between the pods.
    eventually("a pod's answer", || async { Ok(first.run(&asked).await.ok().filter(|said| said == "two\n")) }).await?;
    let container = format!("$(ctr -n k8s.io containers ls -q image=={} | head -1)", images::WEB);
    let said = first.run(&format!("ctr -n k8s.io tasks exec --exec-id probe {container} busybox {asked}")).await?;
    assert_eq!(said, "two\n");
    Ok(())
}

//! The objects of one control plane, as the Cluster-Operator writes them, in their shortest form.

use std::net::IpAddr;

use fleetwright_pki::{Authority, Identity, Leaf, LeafUsage, PemPair, ServiceAccountKey, kubeconfig};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Secret, Service};
use serde_json::{Value, json};

use crate::support::{MetaEnv, NAMESPACE};

/// The authorities of a cluster.
pub struct Plane {
    pub ca: Authority,
    pub etcd_ca: Authority,
    pub front_proxy_ca: Authority,
    pub key: ServiceAccountKey,
}

pub const OLD: &str = "v1.36.4";
pub const NEW: &str = "v1.37.1";
pub const ETCD: &str = "v3.6.16";

/// The DNS name of the API server.
pub fn api_name() -> String {
    format!("kube-apiserver.{NAMESPACE}.svc")
}

impl Plane {
    pub fn new() -> Self {
        Self {
            ca: Authority::new("kubernetes").unwrap(),
            etcd_ca: Authority::new("etcd").unwrap(),
            front_proxy_ca: Authority::new("front-proxy").unwrap(),
            key: ServiceAccountKey::generate().unwrap(),
        }
    }

    pub fn serving(&self) -> PemPair {
        let ips: [IpAddr; 1] = ["127.0.0.1".parse().unwrap()];
        self.ca.issue(Leaf::server("kube-apiserver", [api_name(), "localhost".to_owned()], ips)).unwrap()
    }

    fn etcd_leaf(&self, name: &str) -> PemPair {
        let names = ["etcd".to_owned(), format!("etcd.{NAMESPACE}.svc"), format!("*.etcd.{NAMESPACE}.svc")];
        let leaf = Leaf { usages: vec![LeafUsage::Server, LeafUsage::Client], ..Leaf::server(name, names, []) };
        self.etcd_ca.issue(leaf).unwrap()
    }

    pub fn etcd_client(&self) -> PemPair {
        self.etcd_ca.issue(Leaf::client("root", ["system:masters"])).unwrap()
    }

    /// The Secret of a certificate.
    pub async fn secret(&self, world: &MetaEnv, name: &str, pair: &PemPair, authority: &Authority) {
        let data = json!({ "tls.crt": pair.cert_pem, "tls.key": pair.key_pem, "ca.crt": authority.cert_pem() });
        world.apply::<Secret>(json!({ "metadata": { "name": name }, "stringData": data })).await;
    }

    pub async fn secrets(&self, world: &MetaEnv) {
        let (ca, etcd_ca) = (&self.ca, &self.etcd_ca);
        let ca_pair = PemPair { cert_pem: ca.cert_pem().to_owned(), key_pem: ca.key_pem() };
        self.secret(world, "ca", &ca_pair, ca).await;
        self.secret(world, "apiserver-tls", &self.serving(), ca).await;
        let kubelet = ca.issue(Leaf::client("kube-apiserver-kubelet-client", ["system:masters"])).unwrap();
        self.secret(world, "apiserver-kubelet-client", &kubelet, ca).await;
        self.secret(world, "apiserver-etcd-client", &self.etcd_client(), etcd_ca).await;
        let proxy = self.front_proxy_ca.issue(Leaf::client("front-proxy-client", [""; 0])).unwrap();
        self.secret(world, "front-proxy-client", &proxy, &self.front_proxy_ca).await;
        self.secret(world, "etcd-server-tls", &self.etcd_leaf("etcd-server"), etcd_ca).await;
        self.secret(world, "etcd-peer-tls", &self.etcd_leaf("etcd-peer"), etcd_ca).await;
        let keys = json!({ "sa.key": self.key.private_pem, "sa.pub": self.key.public_pem });
        world.apply::<Secret>(json!({ "metadata": { "name": "service-account" }, "stringData": keys })).await;
        for (secret, user) in [
            ("controller-manager-kubeconfig", "system:kube-controller-manager"),
            ("scheduler-kubeconfig", "system:kube-scheduler"),
        ] {
            let pair = ca.issue(Leaf::client(user, [""; 0])).unwrap();
            let url = format!("https://{}:6443", api_name());
            let text = kubeconfig("business", &url, ca.cert_pem(), Identity::from(&pair));
            world
                .apply::<Secret>(json!({ "metadata": { "name": secret }, "stringData": { "kubeconfig": text } }))
                .await;
        }
    }

    /// Creates the whole control plane, with these numbers of etcd members and API servers.
    pub async fn build(&self, world: &MetaEnv, members: usize, servers: usize) {
        self.secrets(world).await;
        world.apply::<Service>(etcd_service()).await;
        world.apply::<Service>(api_service()).await;
        world.apply::<StatefulSet>(etcd(members, ETCD, "new")).await;
        world.apply::<Deployment>(api_servers(servers, OLD)).await;
    }

    /// A client through the Service, which forwards to an API server a moment after it is ready.
    pub async fn client(&self, world: &MetaEnv) -> kube::Client {
        let ip = world
            .until("the Service has an address", async |world| world.meta.service_address(NAMESPACE, "kube-apiserver"));
        let client = self.client_at(&self.ca, ip.await.to_string(), "operator", &["system:masters"]).await;
        world.until("the Service answers", async |_| client.apiserver_version().await.ok()).await;
        client
    }

    pub async fn client_at(&self, authority: &Authority, ip: String, user: &str, groups: &[&str]) -> kube::Client {
        let pair = authority.issue(Leaf::client(user, groups.iter().copied())).unwrap();
        let text = kubeconfig("business", &format!("https://{ip}:6443"), self.ca.cert_pem(), Identity::from(&pair));
        let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        config.tls_server_name = Some(api_name());
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }
}

fn etcd_service() -> Value {
    json!({ "metadata": { "name": "etcd" }, "spec": {
        "clusterIP": "None", "publishNotReadyAddresses": true, "selector": { "app.kubernetes.io/name": "etcd" },
        "ports": [{ "name": "client", "port": 2379 }, { "name": "peer", "port": 2380 }],
    } })
}

fn api_service() -> Value {
    json!({ "metadata": { "name": "kube-apiserver" }, "spec": {
        "type": "NodePort", "selector": { "app.kubernetes.io/name": "kube-apiserver" },
        "ports": [{ "name": "https", "port": 6443, "targetPort": "https" }],
    } })
}

/// A template that mounts Secrets below `/etc/kubernetes`.
fn template(component: &str, version: &str, secrets: &[&str], container: Value) -> Value {
    let mut whole = json!({ "name": component, "image": format!("registry.example/{component}:{version}"), "command": [component] });
    whole.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let mount = |name: &&str| json!({ "name": name, "mountPath": format!("/etc/kubernetes/{name}"), "readOnly": true });
    let mut mounts: Vec<Value> = secrets.iter().map(mount).collect();
    mounts.extend(whole["volumeMounts"].as_array().cloned().unwrap_or_default());
    whole["volumeMounts"] = mounts.into();
    let volumes: Vec<Value> =
        secrets.iter().map(|name| json!({ "name": name, "secret": { "secretName": name } })).collect();
    json!({
        "metadata": { "labels": { "app.kubernetes.io/name": component } },
        "spec": { "containers": [whole], "volumes": volumes, "automountServiceAccountToken": false },
    })
}

/// The StatefulSet of etcd.
pub fn etcd(members: usize, version: &str, state: &str) -> Value {
    let at = |name: &str| format!("{name}.etcd.{NAMESPACE}.svc");
    let all: Vec<String> =
        (0..members).map(|n| format!("etcd-{n}=https://{}:2380", at(&format!("etcd-{n}")))).collect();
    let tls = |secret: &str, file: &str| format!("/etc/kubernetes/{secret}/{file}");
    let container = json!({
        "args": [
            "--name=$(POD_NAME)", "--data-dir=/var/lib/etcd/data", format!("--initial-cluster={}", all.join(",")),
            format!("--initial-cluster-state={state}"), "--initial-cluster-token=pay-01",
            format!("--initial-advertise-peer-urls=https://{}:2380", at("$(POD_NAME)")),
            format!("--advertise-client-urls=https://{}:2379", at("$(POD_NAME)")),
            "--listen-client-urls=https://0.0.0.0:2379", "--listen-peer-urls=https://0.0.0.0:2380",
            "--listen-metrics-urls=http://0.0.0.0:2381", "--client-cert-auth=true", "--peer-client-cert-auth=true",
            format!("--cert-file={}", tls("etcd-server-tls", "tls.crt")), format!("--key-file={}", tls("etcd-server-tls", "tls.key")),
            format!("--trusted-ca-file={}", tls("etcd-server-tls", "ca.crt")),
            format!("--peer-cert-file={}", tls("etcd-peer-tls", "tls.crt")), format!("--peer-key-file={}", tls("etcd-peer-tls", "tls.key")),
            format!("--peer-trusted-ca-file={}", tls("etcd-peer-tls", "ca.crt")),
        ],
        "env": [{ "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
        "readinessProbe": { "httpGet": { "path": "/readyz", "port": 2381 } },
        "livenessProbe": { "httpGet": { "path": "/livez", "port": 2381 }, "periodSeconds": 1 },
        "volumeMounts": [{ "name": "data", "mountPath": "/var/lib/etcd" }],
    });
    json!({ "metadata": { "name": "etcd" }, "spec": {
        "serviceName": "etcd", "replicas": members, "podManagementPolicy": "Parallel",
        "selector": { "matchLabels": { "app.kubernetes.io/name": "etcd" } },
        "template": template("etcd", version, &["etcd-server-tls", "etcd-peer-tls"], container),
        "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "8Gi" } },
        } }],
    } })
}

/// The Deployment of API servers.
pub fn api_servers(replicas: usize, version: &str) -> Value {
    let tls = |secret: &str, file: &str| format!("/etc/kubernetes/{secret}/{file}");
    let container = json!({
        "args": [
            "--secure-port=6443", format!("--etcd-servers=https://etcd.{NAMESPACE}.svc:2379"),
            format!("--etcd-cafile={}", tls("apiserver-etcd-client", "ca.crt")),
            format!("--etcd-certfile={}", tls("apiserver-etcd-client", "tls.crt")),
            format!("--etcd-keyfile={}", tls("apiserver-etcd-client", "tls.key")),
            format!("--tls-cert-file={}", tls("apiserver-tls", "tls.crt")),
            format!("--tls-private-key-file={}", tls("apiserver-tls", "tls.key")),
            format!("--client-ca-file={}", tls("apiserver-tls", "ca.crt")),
            format!("--kubelet-client-certificate={}", tls("apiserver-kubelet-client", "tls.crt")),
            format!("--kubelet-client-key={}", tls("apiserver-kubelet-client", "tls.key")),
            format!("--requestheader-client-ca-file={}", tls("front-proxy-client", "ca.crt")),
            format!("--proxy-client-cert-file={}", tls("front-proxy-client", "tls.crt")),
            format!("--proxy-client-key-file={}", tls("front-proxy-client", "tls.key")),
            format!("--service-account-key-file={}", tls("service-account", "sa.pub")),
            format!("--service-account-signing-key-file={}", tls("service-account", "sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
        ],
        "ports": [{ "name": "https", "containerPort": 6443 }],
        "readinessProbe": { "httpGet": { "path": "/readyz", "port": "https", "scheme": "HTTPS" } },
        "livenessProbe": { "httpGet": { "path": "/livez", "port": "https", "scheme": "HTTPS" }, "periodSeconds": 10 },
    });
    let secrets =
        ["apiserver-etcd-client", "apiserver-tls", "apiserver-kubelet-client", "front-proxy-client", "service-account"];
    json!({ "metadata": { "name": "kube-apiserver" }, "spec": {
        "replicas": replicas, "selector": { "matchLabels": { "app.kubernetes.io/name": "kube-apiserver" } },
        "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
        "template": template("kube-apiserver", version, &secrets, container),
    } })
}

/// The Deployments of the controller-manager (by flags) and the scheduler (by its configuration file).
pub fn managers(version: &str) -> [Value; 2] {
    let path = |secret: &str, file: &str| format!("/etc/kubernetes/{secret}/{file}");
    let manager = json!({
        "args": [
            format!("--kubeconfig={}", path("controller-manager-kubeconfig", "kubeconfig")), "--leader-elect-lease-duration=3s",
            format!("--cluster-signing-cert-file={}", path("ca", "tls.crt")),
            format!("--cluster-signing-key-file={}", path("ca", "tls.key")), "--use-service-account-credentials=true",
        ],
        "readinessProbe": { "httpGet": { "path": "/healthz", "port": 10257, "scheme": "HTTPS" } },
    });
    let scheduler = json!({
        "args": ["--config=/etc/config/config.yaml"],
        "readinessProbe": { "httpGet": { "path": "/readyz", "port": 10259, "scheme": "HTTPS" } },
        "volumeMounts": [{ "name": "config", "mountPath": "/etc/config" }],
    });
    let mut scheduler = template("kube-scheduler", version, &["scheduler-kubeconfig"], scheduler);
    let config = json!({ "name": "config", "configMap": { "name": "kube-scheduler-config" } });
    scheduler["spec"]["volumes"].as_array_mut().unwrap().push(config);
    let deployment = |component: &str, template: Value| {
        json!({ "metadata": { "name": component }, "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app.kubernetes.io/name": component } }, "template": template,
        } })
    };
    let secrets = ["controller-manager-kubeconfig", "ca"];
    [
        deployment("kube-controller-manager", template("kube-controller-manager", version, &secrets, manager)),
        deployment("kube-scheduler", scheduler),
    ]
}

/// The configuration file of the scheduler.
pub fn scheduler_config() -> Value {
    let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
                clientConnection:\n  kubeconfig: /etc/kubernetes/scheduler-kubeconfig/kubeconfig\n\
                leaderElection:\n  leaderElect: true\n  leaseDuration: 3s\n";
    json!({ "metadata": { "name": "kube-scheduler-config" }, "data": { "config.yaml": text } })
}

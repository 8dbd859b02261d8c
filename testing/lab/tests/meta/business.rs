//! A business cluster's etcd and API server, as the Cluster-Operator writes them, but without it: if this fails, the lab is at fault and not an
//! operator.

use std::net::Ipv4Addr;

use anyhow::Result;
use fleetwright_lab::Binaries;
use fleetwright_lab::hosts::images;
use fleetwright_pki::{Authority, Identity, Leaf, LeafUsage, PemPair, ServiceAccountKey, kubeconfig};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "fleet-pay-01";
pub(crate) const NODE_PORT: u16 = 30443;

pub(crate) struct Business {
    minor: String,
    ca: Authority,
    etcd_ca: Authority,
    admin: PemPair,
    node: Ipv4Addr,
}

impl Business {
    pub(crate) fn new(minor: &str, node: Ipv4Addr) -> Result<Self> {
        let ca = Authority::new("pay-01")?;
        let admin = ca.issue(Leaf::client("operator", ["system:masters"]))?;
        Ok(Self { minor: minor.to_owned(), ca, etcd_ca: Authority::new("pay-01-etcd")?, admin, node })
    }

    /// A client of the API server at an address, which verifies its DNS name.
    pub(crate) async fn client(&self, address: &str) -> Result<Client> {
        let text = kubeconfig("pay-01", &format!("https://{address}"), self.ca.cert_pem(), Identity::from(&self.admin));
        let mut config =
            Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&text)?, &KubeConfigOptions::default()).await?;
        config.tls_server_name = Some(format!("kube-apiserver.{NAMESPACE}.svc"));
        Ok(Client::try_from(config)?)
    }

    pub(crate) fn objects(&self) -> Result<Vec<Value>> {
        let mut objects = vec![json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": NAMESPACE,
                "labels": { "fleetwright.io/cluster": "pay-01", "pod-security.kubernetes.io/enforce": "restricted" },
            },
        })];
        objects.extend(self.secrets()?);
        objects.extend(self.etcd()?);
        objects.extend(self.apiserver()?);
        Ok(objects)
    }

    fn secrets(&self) -> Result<Vec<Value>> {
        let accounts = ServiceAccountKey::generate()?;
        let serving = self.ca.issue(Leaf::server(
            "kube-apiserver",
            [format!("kube-apiserver.{NAMESPACE}.svc"), "kubernetes.default.svc".to_owned()],
            [[10, 97, 0, 1].into(), self.node.into()],
        ))?;
        let member = |usages: Vec<LeafUsage>| {
            let names = [format!("etcd.{NAMESPACE}.svc"), format!("etcd-0.etcd.{NAMESPACE}.svc")];
            self.etcd_ca.issue(Leaf { usages, ..Leaf::server("etcd", names, []) })
        };
        let both = vec![LeafUsage::Server, LeafUsage::Client];
        let pair = |name: &str, pair: PemPair, ca: &Authority| {
            secret(name, json!({ "tls.crt": pair.cert_pem, "tls.key": pair.key_pem, "ca.crt": ca.cert_pem() }))
        };
        Ok(vec![
            secret("ca", json!({ "ca.crt": self.ca.cert_pem() })),
            secret("service-account", json!({ "sa.key": accounts.private_pem, "sa.pub": accounts.public_pem })),
            pair("apiserver-tls", serving, &self.ca),
            pair("apiserver-etcd-client", self.etcd_ca.issue(Leaf::client("apiserver", ["pay-01"]))?, &self.etcd_ca),
            pair("etcd-server-tls", member(both.clone())?, &self.etcd_ca),
            pair("etcd-peer-tls", member(both)?, &self.etcd_ca),
        ])
    }

    fn etcd(&self) -> Result<Vec<Value>> {
        let own = format!("$(POD_NAME).etcd.{NAMESPACE}.svc");
        let args = [
            "--name=$(POD_NAME)".to_owned(),
            "--data-dir=/var/lib/etcd/data".to_owned(),
            "--listen-client-urls=https://0.0.0.0:2379".to_owned(),
            format!("--advertise-client-urls=https://{own}:2379"),
            "--listen-peer-urls=https://0.0.0.0:2380".to_owned(),
            format!("--initial-advertise-peer-urls=https://{own}:2380"),
            format!("--initial-cluster=etcd-0=https://etcd-0.etcd.{NAMESPACE}.svc:2380"),
            "--listen-metrics-urls=http://0.0.0.0:2381".to_owned(),
            "--cert-file=/etc/kubernetes/etcd-server-tls/tls.crt".to_owned(),
            "--key-file=/etc/kubernetes/etcd-server-tls/tls.key".to_owned(),
            "--trusted-ca-file=/etc/kubernetes/etcd-server-tls/ca.crt".to_owned(),
            "--client-cert-auth=true".to_owned(),
            "--peer-cert-file=/etc/kubernetes/etcd-peer-tls/tls.crt".to_owned(),
            "--peer-key-file=/etc/kubernetes/etcd-peer-tls/tls.key".to_owned(),
            "--peer-trusted-ca-file=/etc/kubernetes/etcd-peer-tls/ca.crt".to_owned(),
            "--peer-client-cert-auth=true".to_owned(),
        ];
        let probe = json!({ "httpGet": { "path": "/readyz", "port": 2381 }, "periodSeconds": 1 });
        let image = images::name("etcd", Binaries::etcd_version(&self.minor)?);
        let mut template = pod("etcd", &image, &args, &["etcd-server-tls", "etcd-peer-tls"], &probe);
        let mounts = &mut template["spec"]["containers"][0]["volumeMounts"];
        mounts.as_array_mut().into_iter().for_each(|mounts| {
            mounts.push(json!({ "name": "data", "mountPath": "/var/lib/etcd" }));
        });
        Ok(vec![
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": "etcd", "namespace": NAMESPACE },
                "spec": {
                    "clusterIP": "None",
                    "publishNotReadyAddresses": true,
                    "selector": { "fleetwright.io/component": "etcd" },
                    "ports": [{ "name": "client", "port": 2379 }, { "name": "peer", "port": 2380 }],
                },
            }),
            json!({
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": { "name": "etcd", "namespace": NAMESPACE },
                "spec": {
                    "serviceName": "etcd",
                    "replicas": 1,
                    "podManagementPolicy": "Parallel",
                    "selector": { "matchLabels": { "fleetwright.io/component": "etcd" } },
                    "template": template,
                    "volumeClaimTemplates": [{
                        "metadata": { "name": "data" },
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": { "requests": { "storage": "1Gi" } },
                        },
                    }],
                },
            }),
        ])
    }

    fn apiserver(&self) -> Result<Vec<Value>> {
        let args = [
            format!("--etcd-servers=https://etcd-0.etcd.{NAMESPACE}.svc:2379"),
            "--etcd-cafile=/etc/kubernetes/apiserver-etcd-client/ca.crt".to_owned(),
            "--etcd-certfile=/etc/kubernetes/apiserver-etcd-client/tls.crt".to_owned(),
            "--etcd-keyfile=/etc/kubernetes/apiserver-etcd-client/tls.key".to_owned(),
            "--advertise-address=$(POD_IP)".to_owned(),
            "--secure-port=6443".to_owned(),
            "--tls-cert-file=/etc/kubernetes/apiserver-tls/tls.crt".to_owned(),
            "--tls-private-key-file=/etc/kubernetes/apiserver-tls/tls.key".to_owned(),
            "--client-ca-file=/etc/kubernetes/ca/ca.crt".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            "--service-account-key-file=/etc/kubernetes/service-account/sa.pub".to_owned(),
            "--service-account-signing-key-file=/etc/kubernetes/service-account/sa.key".to_owned(),
            "--service-cluster-ip-range=10.97.0.0/16".to_owned(),
        ];
        let probe = json!({ "httpGet": { "path": "/readyz", "port": 6443, "scheme": "HTTPS" }, "periodSeconds": 1 });
        let image = images::name("kube-apiserver", Binaries::version(&self.minor)?);
        let secrets = ["ca", "service-account", "apiserver-tls", "apiserver-etcd-client"];
        Ok(vec![
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": "kube-apiserver", "namespace": NAMESPACE },
                "spec": {
                    "type": "NodePort",
                    "selector": { "fleetwright.io/component": "kube-apiserver" },
                    "ports": [{ "port": 6443, "nodePort": NODE_PORT }],
                },
            }),
            json!({
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": { "name": "kube-apiserver", "namespace": NAMESPACE },
                "spec": {
                    "replicas": 1,
                    "selector": { "matchLabels": { "fleetwright.io/component": "kube-apiserver" } },
                    "template": pod("kube-apiserver", &image, &args, &secrets, &probe),
                },
            }),
        ])
    }
}

fn secret(name: &str, data: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "stringData": data,
    })
}

/// A pod of a control plane: no root, nothing writable, no privilege, files from Secrets.
fn pod(component: &str, image: &str, args: &[String], secrets: &[&str], probe: &Value) -> Value {
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mounts: Vec<_> = secrets
        .iter()
        .map(|name| json!({ "name": name, "mountPath": format!("/etc/kubernetes/{name}"), "readOnly": true }))
        .collect();
    let volumes: Vec<_> = secrets
        .iter()
        .map(|name| json!({ "name": name, "secret": { "secretName": name, "defaultMode": 0o440 } }))
        .collect();
    json!({
        "metadata": { "labels": { "fleetwright.io/component": component } },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": component,
                "image": image,
                "command": [component],
                "args": args,
                "env": [field("POD_NAME", "metadata.name"), field("POD_IP", "status.podIP")],
                "readinessProbe": probe,
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] },
                },
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    })
}

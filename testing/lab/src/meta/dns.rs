//! The DNS of the meta cluster: CoreDNS, as a pod.

use serde_json::{Value, json};

use super::{DNS, DOMAIN};
use crate::hosts::images;

pub(crate) const NAMESPACE: &str = "kube-system";
pub(crate) const NAME: &str = "coredns";
/// A port that needs no privilege; the Service has the usual one.
const PORT: u16 = 1053;

/// Without a cache: a name resolves as soon as its endpoint is ready. Other names do not exist, as there is no upstream server; they have
/// a server block of their own because the plugin `template` comes before `kubernetes`.
const COREFILE: &str = "@DOMAIN@:@PORT@ in-addr.arpa:@PORT@ ip6.arpa:@PORT@ {
  errors
  ready
  kubernetes @DOMAIN@ in-addr.arpa ip6.arpa {
    ttl 0
  }
}
.:@PORT@ {
  template ANY ANY {
    rcode NXDOMAIN
  }
}
";

pub(crate) fn objects() -> Vec<Value> {
    let corefile = COREFILE.replace("@DOMAIN@", DOMAIN).replace("@PORT@", &PORT.to_string());
    let meta = json!({ "name": NAME, "namespace": NAMESPACE, "labels": { "k8s-app": NAME } });
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns" });
    let ports = |target: &str| {
        ["UDP", "TCP"].map(|protocol| {
            json!({ "name": format!("dns-{}", protocol.to_lowercase()), target: PORT, "protocol": protocol })
        })
    };
    let mut served = ports("targetPort");
    served.iter_mut().for_each(|port| port["port"] = 53.into());
    vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": "system:coredns" },
            "rules": [
                { "apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"] },
                { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": "system:coredns" },
            "roleRef": role,
            "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }],
        }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": { "Corefile": corefile } }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "kube-dns", "namespace": NAMESPACE },
            "spec": { "clusterIP": DNS, "selector": { "k8s-app": NAME }, "ports": served },
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "selector": { "matchLabels": { "k8s-app": NAME } },
                "template": {
                    "metadata": { "labels": { "k8s-app": NAME } },
                    "spec": {
                        "serviceAccountName": NAME,
                        "priorityClassName": "system-cluster-critical",
                        "dnsPolicy": "Default",
                        // Scheduled as soon as the node is registered, so that DNS is ready when the node is.
                        "tolerations": [{ "operator": "Exists", "effect": "NoSchedule" }],
                        "securityContext": {
                            "runAsNonRoot": true,
                            "runAsUser": 65532,
                            "seccompProfile": { "type": "RuntimeDefault" },
                        },
                        "containers": [{
                            "name": NAME,
                            "image": images::coredns(),
                            "command": ["coredns"],
                            "args": ["-conf", "/etc/coredns/Corefile"],
                            "ports": ports("containerPort"),
                            "securityContext": {
                                "allowPrivilegeEscalation": false,
                                "readOnlyRootFilesystem": true,
                                "capabilities": { "drop": ["ALL"] },
                            },
                            "readinessProbe": { "httpGet": { "path": "/ready", "port": 8181 }, "periodSeconds": 1 },
                            "volumeMounts": [{ "name": "config", "mountPath": "/etc/coredns", "readOnly": true }],
                        }],
                        "volumes": [{ "name": "config", "configMap": { "name": NAME } }],
                    },
                },
            },
        }),
    ]
}

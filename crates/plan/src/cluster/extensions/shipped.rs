//! Built-in extensions: the ones that a cluster with workers needs.

use std::net::IpAddr;
use std::sync::LazyLock;

use fleetwright_api::{ClusterPackageVersionSpec, ClusterSpec, Extension, ExtensionPlacement};
use serde_json::{Value, json};

const FILES: [&str; 4] = [
    include_str!("shipped/machine-access.yaml"),
    include_str!("shipped/machine-operator.yaml"),
    include_str!("shipped/kube-proxy.yaml"),
    include_str!("shipped/coredns.yaml"),
];

/// The Machine-Operator with its RBAC rules, kube-proxy and CoreDNS. `image` returns the image of `fleetwright`, `kube-proxy` and `coredns`.
///
/// # Errors
/// One of the embedded files cannot be parsed, which a test would have found.
pub fn shipped(image: impl Fn(&str) -> String) -> Result<Vec<Extension>, serde_saphyr::Error> {
    let read = |text: &str| {
        let text = ["fleetwright", "kube-proxy", "coredns"]
            .iter()
            .fold(text.to_owned(), |text, name| text.replace(&format!("@{name}@"), &image(name)));
        serde_saphyr::from_str(&text)
    };
    FILES.into_iter().map(read).collect()
}

/// The extension whose presence means that a cluster has a Machine-Operator.
pub const MACHINE_OPERATOR: &str = "machine-operator";

/// The endpoints through which workers and their pods reach the API servers. The addresses that API servers would write there themselves are those of
/// pods of the meta cluster, which no other network reaches; and the port may differ from the one that they listen on. Therefore they write none
/// (`--endpoint-reconciler-type=none`), and the operator writes this object instead.
const ENDPOINT: &str = r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kubernetes
  namespace: default
  labels: {kubernetes.io/service-name: kubernetes, endpointslice.kubernetes.io/managed-by: fleetwright}
addressType: {{ "IPv6" if ":" in cluster.serverHost else "IPv4" }}
endpoints:
- addresses: [{{ cluster.serverHost | json }}]
  conditions: {ready: true}
ports:
- {name: https, port: {{ cluster.serverPort }}, protocol: TCP}
---
apiVersion: v1
kind: Endpoints
metadata:
  name: kubernetes
  namespace: default
  labels: {endpointslice.kubernetes.io/skip-mirror: "true"}
subsets:
- addresses: [{ip: {{ cluster.serverHost | json }}}]
  ports: [{name: https, port: {{ cluster.serverPort }}, protocol: TCP}]
"#;

/// The CustomResourceDefinitions of machines in this version of the operator.
static KINDS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let all = fleetwright_api::crds().into_iter();
    let machines = all
        .filter(|one| !["Cluster", "ClusterLimits", "ClusterPackageVersion"].contains(&one.spec.names.kind.as_str()));
    machines
        .map(|one| {
            let mut value = json!(one);
            value["apiVersion"] = json!("apiextensions.k8s.io/v1");
            value["kind"] = json!("CustomResourceDefinition");
            value
        })
        .collect()
});

/// Whether the operator writes the endpoints instead of the API servers: if there may be workers, and the endpoint is an address.
pub(in super::super) fn keeps_endpoint(spec: &ClusterSpec, package: &ClusterPackageVersionSpec) -> bool {
    let named = spec.endpoint.host.as_ref().is_some_and(|host| host.parse::<IpAddr>().is_err());
    !package.extensions.is_empty() && !named
}

/// Additional objects for the extensions of a cluster, which need no rendering.
pub(super) fn built_in(
    wanted: &[&Extension],
    spec: &ClusterSpec,
    package: &ClusterPackageVersionSpec,
    host: Option<&str>,
) -> Vec<(Extension, Option<Vec<Value>>)> {
    let made = |name: &str, template: &str| Extension {
        name: name.to_owned(),
        order: 0,
        placement: ExtensionPlacement::Cluster,
        template: template.to_owned(),
        ..Extension::default()
    };
    let mut all = Vec::new();
    // A loopback address leads workers nowhere, and API servers refuse it.
    let address = host.is_some_and(|host| host.parse::<IpAddr>().is_ok_and(|ip| !ip.is_loopback()));
    if !wanted.is_empty() && keeps_endpoint(spec, package) && address {
        all.push((made("kubernetes-endpoint", ENDPOINT), None));
    }
    if wanted.iter().any(|one| one.name == MACHINE_OPERATOR) {
        all.push((made("machine-kinds", ""), Some(KINDS.clone())));
    }
    all.retain(|(one, _)| package.extensions.iter().all(|given| given.name != one.name));
    all
}

//! Endpoints, endpoint slices, ingresses, network policies.

use anyhow::Result;
use serde_json::json;

use super::{invalid, merge};
use crate::{Case, Ctx};

/// The cases about networks.
pub(super) fn cases() -> Vec<Case> {
    cases!["builtins";
        endpoints_are_deprecated_with_a_warning,
        endpoints_are_checked,
        an_endpoint_slice_gets_its_defaults,
        an_endpoint_slice_keeps_its_address_type,
        an_endpoint_slice_is_checked,
        an_ingress_is_checked,
        an_ingress_takes_its_status,
        an_ingress_class_keeps_its_controller,
        a_network_policy_learns_its_types,
        a_network_policy_is_checked,
    ]
}

const NETWORKING: &str = "networking.k8s.io/v1";
const DISCOVERY: &str = "discovery.k8s.io/v1";

async fn endpoints_are_deprecated_with_a_warning(ctx: Ctx) -> Result<()> {
    let subsets = json!([{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 80}]}]);
    let reply = ctx.post(ctx.core("endpoints"), &json!({"metadata": {"name": "a"}, "subsets": subsets})).await?;
    assert_eq!(reply.warnings(), ["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"]);
    assert_eq!(reply.code(201)?["subsets"][0]["ports"], json!([{"port": 80, "protocol": "TCP"}]));
    Ok(())
}

async fn endpoints_are_checked(ctx: Ctx) -> Result<()> {
    let subsets = json!([{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 0}, {"port": 80, "name": "b"}]}, {}]);
    let reply = ctx.post(ctx.core("endpoints"), &json!({"metadata": {"name": "a"}, "subsets": subsets})).await?;
    let mistakes = [
        "subsets[0].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        "subsets[0].ports[0].name: Required value",
        "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        "subsets[1]: Required value: must specify `addresses` or `notReadyAddresses`",
    ];
    invalid(reply, "Endpoints \"a\"", &mistakes)
}

async fn an_endpoint_slice_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let body = json!({
        "metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": ["1.2.3.4"]}], "ports": [{"port": 80}],
    });
    let made = ctx.post(ctx.group(DISCOVERY, "endpointslices"), &body).await?.code(201)?;
    assert_eq!(made["endpoints"], json!([{"addresses": ["1.2.3.4"], "conditions": {}}]));
    assert_eq!(made["ports"], json!([{"name": "", "port": 80, "protocol": "TCP"}]));
    assert_eq!(made["metadata"]["generation"], 1);
    Ok(())
}

async fn an_endpoint_slice_keeps_its_address_type(ctx: Ctx) -> Result<()> {
    let path = ctx.group(DISCOVERY, "endpointslices");
    ctx.post(&path, &json!({"metadata": {"name": "a"}, "addressType": "IPv4"})).await?.code(201)?;
    let reply = merge(&ctx, format!("{path}/a"), &json!({"addressType": "IPv6"})).await?;
    let mistakes = ["addressType: Invalid value: null: field is immutable"];
    invalid(reply, "EndpointSlice.discovery.k8s.io \"a\"", &mistakes)
}

async fn an_endpoint_slice_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.group(DISCOVERY, "endpointslices");
    let object = "EndpointSlice.discovery.k8s.io \"a\"";
    for (kind, mistake) in [
        (json!("X"), "addressType: Unsupported value: \"X\": supported values: \"FQDN\", \"IPv4\", \"IPv6\""),
        (json!(null), "addressType: Required value"),
    ] {
        invalid(ctx.post(&path, &json!({"metadata": {"name": "a"}, "addressType": kind})).await?, object, &[mistake])?;
    }
    let body = json!({
        "metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": []}],
        "ports": [{"name": "a"}, {"name": "a"}],
    });
    let mistakes = ["ports[1].name: Duplicate value: \"a\"", "endpoints[0].addresses: Required value"];
    invalid(ctx.post(&path, &body).await?, object, &mistakes)
}

async fn an_ingress_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.group(NETWORKING, "ingresses");
    let object = "Ingress.networking.k8s.io \"a\"";
    let mistakes = ["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"];
    invalid(ctx.post(&path, &json!({"metadata": {"name": "a"}})).await?, object, &mistakes)?;
    let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
    let paths = json!([
        {"path": "x", "pathType": "Prefix", "backend": backend},
        {"path": "/", "backend": backend},
        {"path": "/", "pathType": "X", "backend": {"service": {"name": "x", "port": {"number": 99999}}}},
    ]);
    let body = json!({"metadata": {"name": "a"}, "spec": {"rules": [{"host": "1.2.3.4", "http": {"paths": paths}}]}});
    let mistakes = [
        "spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address",
        "spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path",
        "spec.rules[0].http.paths[1].pathType: Required value: pathType must be specified",
        "spec.rules[0].http.paths[2].pathType: Unsupported value: \"X\": supported values: \"Exact\", \"ImplementationSpecific\", \
         \"Prefix\"",
        "spec.rules[0].http.paths[2].backend.service.port.number: Invalid value: 99999: must be between 1 and 65535, inclusive",
    ];
    invalid(ctx.post(&path, &body).await?, object, &mistakes)?;
    let body = json!({"metadata": {"name": "a"}, "spec": {"defaultBackend": {"service": {"name": "", "port": {}}}}});
    let mistakes = [
        "spec.defaultBackend.service.name: Required value",
        "spec.defaultBackend: Required value: port name or number is required",
    ];
    invalid(ctx.post(&path, &body).await?, object, &mistakes)
}

async fn an_ingress_takes_its_status(ctx: Ctx) -> Result<()> {
    let path = ctx.group(NETWORKING, "ingresses");
    let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
    ctx.post(&path, &json!({"metadata": {"name": "a"}, "spec": {"defaultBackend": backend}})).await?.code(201)?;
    let patch =
        json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}, "spec": {"ingressClassName": "x"}});
    let made = merge(&ctx, format!("{path}/a/status"), &patch).await?.code(200)?;
    assert_eq!(made["status"]["loadBalancer"]["ingress"][0]["ip"], "1.2.3.4");
    assert_eq!(made["spec"], json!({"defaultBackend": backend}));
    Ok(())
}

async fn an_ingress_class_keeps_its_controller(ctx: Ctx) -> Result<()> {
    let (path, name) = ("/apis/networking.k8s.io/v1/ingressclasses", ctx.unique("class"));
    let spec = json!({"controller": "example.com/a", "parameters": {"kind": "K", "name": "n"}});
    let made = ctx.post(path, &json!({"metadata": {"name": name}, "spec": spec})).await?.code(201)?;
    assert_eq!(made["spec"]["parameters"]["scope"], "Cluster");
    let reply = merge(&ctx, format!("{path}/{name}"), &json!({"spec": {"controller": "example.com/b"}})).await?;
    let object = format!("IngressClass.networking.k8s.io \"{name}\"");
    invalid(reply, &object, &["spec.controller: Invalid value: \"example.com/b\": field is immutable"])
}

async fn a_network_policy_learns_its_types(ctx: Ctx) -> Result<()> {
    let path = ctx.group(NETWORKING, "networkpolicies");
    let body = json!({"metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}});
    let made = ctx.post(&path, &body).await?.code(201)?;
    let wanted = json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80, "protocol": "TCP"}]}], "policyTypes": ["Ingress"]});
    assert_eq!(made["spec"], wanted);
    let body = json!({"metadata": {"name": "b"}, "spec": {"podSelector": {}, "egress": [{}]}});
    assert_eq!(ctx.post(&path, &body).await?.code(201)?["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    Ok(())
}

async fn a_network_policy_is_checked(ctx: Ctx) -> Result<()> {
    let ports = json!([{"port": 0}, {"port": 90, "endPort": 80}, {"port": 1, "protocol": "X"}]);
    let rule = json!({"ports": ports, "from": [{}]});
    let body = json!({"metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [rule]}});
    let mistakes = [
        "spec.ingress[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
        "spec.ingress[0].ports[1].endPort: Invalid value: 80: must be greater than or equal to `port`",
        "spec.ingress[0].ports[2].protocol: Unsupported value: \"X\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
        "spec.ingress[0].from[0]: Required value: must specify a peer",
    ];
    let reply = ctx.post(ctx.group(NETWORKING, "networkpolicies"), &body).await?;
    invalid(reply, "NetworkPolicy.networking.k8s.io \"a\"", &mistakes)
}

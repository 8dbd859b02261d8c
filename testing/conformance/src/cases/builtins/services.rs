//! Services: addresses and ports from the cluster's ranges.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{invalid, merge, with};
use crate::{Case, Ctx};

/// The cases about services.
pub(super) fn cases() -> Vec<Case> {
    cases!["builtins";
        a_service_gets_an_address_and_defaults,
        a_service_takes_the_address_it_asks_for,
        an_address_is_given_out_once,
        an_address_outside_the_range_is_refused,
        what_is_no_address_is_refused,
        a_headless_service_has_no_address,
        the_address_of_a_service_cannot_change,
        a_put_without_an_address_keeps_it,
        an_external_name_needs_no_address,
        a_node_port_comes_from_its_range,
        a_node_port_is_given_out_once,
        a_change_of_type_frees_the_node_port,
        a_load_balancer_takes_its_status,
        a_second_address_family_is_refused,
        the_ports_of_a_service_are_checked,
        a_service_is_checked,
        the_kubernetes_service_is_there,
    ]
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": with(json!({"ports": [{"port": 80}]}), spec)})
}

async fn create(ctx: &Ctx, name: &str, spec: Value) -> Result<Value> {
    ctx.post(ctx.core("services"), &service(name, &spec)).await?.code(201)
}

async fn refused(ctx: &Ctx, spec: Value, mistakes: &[&str]) -> Result<()> {
    invalid(ctx.post(ctx.core("services"), &service("bad", &spec)).await?, "Service \"bad\"", mistakes)
}

/// An address of a case's own.
fn address(ctx: &Ctx, last: u8) -> String {
    let number: u32 =
        ctx.ns.bytes().filter(u8::is_ascii_digit).fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    format!("10.96.{}.{last}", 200 + number % 50)
}

async fn a_service_gets_an_address_and_defaults(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({})).await?;
    let ip = made["spec"]["clusterIP"].as_str().context("no address")?;
    assert!(ip.starts_with("10.96."), "{ip}");
    let wanted = json!({
        "ports": [{"protocol": "TCP", "port": 80, "targetPort": 80}], "clusterIP": ip, "clusterIPs": [ip], "type": "ClusterIP",
        "sessionAffinity": "None", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
    });
    assert_eq!(made["spec"], wanted);
    assert_eq!(made["status"], json!({"loadBalancer": {}}));
    let sticky = create(&ctx, "b", json!({"sessionAffinity": "ClientIP"})).await?;
    assert_eq!(sticky["spec"]["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    Ok(())
}

async fn a_service_takes_the_address_it_asks_for(ctx: Ctx) -> Result<()> {
    let ip = address(&ctx, 7);
    let made = create(&ctx, "a", json!({"clusterIP": ip})).await?;
    assert_eq!(made["spec"]["clusterIPs"], json!([ip]));
    Ok(())
}

async fn an_address_is_given_out_once(ctx: Ctx) -> Result<()> {
    let ip = address(&ctx, 8);
    create(&ctx, "a", json!({"clusterIP": ip})).await?;
    let mistake = format!(
        "spec.clusterIPs: Invalid value: [\"{ip}\"]: failed to allocate IP {ip}: provided IP is already allocated"
    );
    refused(&ctx, json!({"clusterIP": ip}), &[&mistake]).await?;
    ctx.delete(ctx.core("services/a")).await?.code(200)?;
    ctx.post(ctx.core("services?dryRun=All"), &service("b", &json!({"clusterIP": ip}))).await?.code(201)?;
    create(&ctx, "c", json!({"clusterIP": ip})).await?;
    Ok(())
}

async fn an_address_outside_the_range_is_refused(ctx: Ctx) -> Result<()> {
    let mistakes = [
        "spec.clusterIPs: Invalid value: [\"10.1.1.1\"]: failed to allocate IP 10.1.1.1: the provided network does not \
                     match the current range",
    ];
    refused(&ctx, json!({"clusterIP": "10.1.1.1"}), &mistakes).await
}

async fn what_is_no_address_is_refused(ctx: Ctx) -> Result<()> {
    let mistakes =
        ["spec.clusterIPs[0]: Invalid value: \"no.ip\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"];
    refused(&ctx, json!({"clusterIP": "no.ip"}), &mistakes).await?;
    let (one, two) = (address(&ctx, 9), address(&ctx, 10));
    let mistake = format!("spec.clusterIPs: Invalid value: [\"{two}\"]: first value must match `clusterIP`");
    refused(&ctx, json!({"clusterIP": one, "clusterIPs": [two]}), &[&mistake]).await
}

async fn a_headless_service_has_no_address(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({"clusterIP": "None", "selector": {"app": "x"}})).await?;
    assert_eq!((&made["spec"]["clusterIP"], &made["spec"]["clusterIPs"]), (&json!("None"), &json!(["None"])));
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4"]));
    let made = create(&ctx, "b", json!({"clusterIP": "None"})).await?;
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(made["spec"]["ipFamilyPolicy"], "RequireDualStack");
    Ok(())
}

async fn the_address_of_a_service_cannot_change(ctx: Ctx) -> Result<()> {
    let (one, two) = (address(&ctx, 11), address(&ctx, 12));
    create(&ctx, "a", json!({"clusterIP": one})).await?;
    let reply = merge(&ctx, ctx.core("services/a"), &json!({"spec": {"clusterIP": two, "clusterIPs": [two]}})).await?;
    let mistake = format!("spec.clusterIPs[0]: Invalid value: [\"{two}\"]: may not change once set");
    invalid(reply, "Service \"a\"", &[&mistake])
}

async fn a_put_without_an_address_keeps_it(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({})).await?;
    let put = ctx.put(ctx.core("services/a"), &service("a", &json!({"ports": [{"port": 81}]}))).await?.code(200)?;
    assert_eq!(put["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    assert_eq!(put["spec"]["ports"][0]["port"], 81);
    Ok(())
}

async fn an_external_name_needs_no_address(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({"type": "ExternalName", "externalName": "example.com"})).await?;
    assert_eq!(made["spec"]["clusterIP"], Value::Null);
    create(&ctx, "b", json!({})).await?;
    let patch = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    let changed = merge(&ctx, ctx.core("services/b"), &patch).await?.code(200)?;
    assert_eq!(changed["spec"]["clusterIPs"], Value::Null);
    refused(&ctx, json!({"type": "ExternalName"}), &["spec.externalName: Required value"]).await
}

async fn a_node_port_comes_from_its_range(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({"type": "NodePort"})).await?;
    let port = made["spec"]["ports"][0]["nodePort"].as_i64().unwrap_or_default();
    assert!((30000..=32767).contains(&port), "{port}");
    assert_eq!(made["spec"]["externalTrafficPolicy"], "Cluster");
    let mistakes = [
        "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is \
                     30000-32767",
    ];
    refused(&ctx, json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}), &mistakes).await?;
    let mistakes = ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"];
    refused(&ctx, json!({"ports": [{"port": 80, "nodePort": 30124}]}), &mistakes).await
}

async fn a_node_port_is_given_out_once(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({"type": "NodePort"})).await?;
    let port = made["spec"]["ports"][0]["nodePort"].clone();
    let mistake = format!("spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated");
    refused(&ctx, json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}), &[&mistake]).await
}

async fn a_change_of_type_frees_the_node_port(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({"type": "NodePort"})).await?;
    let port = made["spec"]["ports"][0]["nodePort"].clone();
    let plain = merge(&ctx, ctx.core("services/a"), &json!({"spec": {"type": "ClusterIP"}})).await?.code(200)?;
    assert_eq!(plain["spec"]["ports"][0]["nodePort"], Value::Null);
    assert_eq!(plain["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    create(&ctx, "b", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]})).await?;
    Ok(())
}

async fn a_load_balancer_takes_its_status(ctx: Ctx) -> Result<()> {
    let made = create(&ctx, "a", json!({"type": "LoadBalancer"})).await?;
    assert_eq!(made["spec"]["allocateLoadBalancerNodePorts"], true);
    let path = ctx.core("services/a/status");
    let patch = |ip: &str| json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
    let made = merge(&ctx, &path, &patch("1.2.3.4")).await?.code(200)?;
    assert_eq!(made["status"]["loadBalancer"]["ingress"], json!([{"ip": "1.2.3.4", "ipMode": "VIP"}]));
    let mistakes = [
        "status.loadBalancer.ingress[0].ip: Invalid value: \"1.2.3.x\": must be a valid IP address, (e.g. 10.9.8.7 or \
                     2001:db8::ffff)",
    ];
    invalid(merge(&ctx, &path, &patch("1.2.3.x")).await?, "Service \"a\"", &mistakes)
}

async fn a_second_address_family_is_refused(ctx: Ctx) -> Result<()> {
    let mistakes = [
        "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
    ];
    refused(&ctx, json!({"ipFamilyPolicy": "RequireDualStack"}), &mistakes).await?;
    let mistakes = ["spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"];
    refused(&ctx, json!({"ipFamilies": ["IPv6"]}), &mistakes).await?;
    let made = create(&ctx, "a", json!({"ipFamilyPolicy": "PreferDualStack"})).await?;
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4"]));
    Ok(())
}

async fn the_ports_of_a_service_are_checked(ctx: Ctx) -> Result<()> {
    for (ports, mistakes) in [
        (
            json!([{"port": 80}, {"port": 81}]),
            vec!["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"],
        ),
        (
            json!([{"name": "a", "port": 80}, {"name": "a", "port": 82}]),
            vec!["spec.ports[1].name: Duplicate value: \"a\""],
        ),
        (
            json!([{"name": "a", "port": 80}, {"name": "b", "port": 80}]),
            vec![
                "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}",
            ],
        ),
        (
            json!([{"port": 0, "targetPort": 1, "protocol": "ICMP"}]),
            vec![
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ],
        ),
        (json!([]), vec!["spec.ports: Required value"]),
    ] {
        refused(&ctx, json!({"ports": ports}), &mistakes).await?;
    }
    Ok(())
}

async fn a_service_is_checked(ctx: Ctx) -> Result<()> {
    let mistakes = [
        "spec.sessionAffinity: Unsupported value: \"Some\": supported values: \"ClientIP\", \"None\"",
        "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        "spec.internalTrafficPolicy: Unsupported value: \"X\": supported values: \"Cluster\", \"Local\"",
    ];
    let spec = json!({"sessionAffinity": "Some", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "X"});
    refused(&ctx, spec, &mistakes).await?;
    create(&ctx, "a", json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/a"})).await?;
    let reply = merge(&ctx, ctx.core("services/a"), &json!({"spec": {"loadBalancerClass": "example.com/b"}})).await?;
    let mistakes = ["spec.loadBalancerClass: Invalid value: \"example.com/b\": may not change once set"];
    invalid(reply, "Service \"a\"", &mistakes)
}

async fn the_kubernetes_service_is_there(ctx: Ctx) -> Result<()> {
    let service = ctx.get("/api/v1/namespaces/default/services/kubernetes").await?.code(200)?;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(service["spec"]["ports"][0]["name"], "https");
    assert_eq!(service["spec"]["ports"][0]["port"], 443);
    assert_eq!(service["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
    Ok(())
}

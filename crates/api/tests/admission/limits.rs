//! ClusterLimits: what is allowed and what is refused.

use serde_json::{Value, json};

use crate::cases::object;
use crate::server::Server;

fn limits(more: Value) -> Value {
    let mut spec = json!({"clusters": ["*"]});
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    object("ClusterLimits", "tenants", spec)
}

fn apiserver(args: Value) -> Value {
    limits(json!({"components": {"apiserver": {"args": args}}}))
}

pub fn allowed() -> Vec<(&'static str, Value)> {
    let many: Vec<_> = (0..64).map(|number| format!("class-{number}")).collect();
    vec![
        ("a preset alone", limits(json!({"preset": "Hardened"}))),
        ("clusters by name and by prefix", limits(json!({"clusters": ["pay", "shop-*"], "maxReplicas": 1}))),
        (
            "empty lists, which allow none",
            limits(json!({"packageVersions": [], "extensions": {"allow": []}, "s3": {"endpoints": [], "buckets": []}})),
        ),
        (
            "arguments and prefixes of them",
            apiserver(json!({"allow": ["v", "max-*"], "deny": ["token-auth-file", "oidc-*"]})),
        ),
        (
            "files",
            limits(
                json!({"components": {"apiserver": {"config": {"deny": ["authorization.yaml"]}}, "scheduler": {"config": {"allow": []}}}}),
            ),
        ),
        (
            "placement",
            limits(
                json!({"placement": {"nodeSelector": {"pool": "cp"}, "tolerationKeys": ["example.com/cp", "*"], "priorityClasses": ["low"]}}),
            ),
        ),
        ("storage", limits(json!({"storage": {"classes": many, "maxSize": "50Gi"}}))),
        ("both answers to a question", limits(json!({"externalDatastore": true, "extensions": {"values": false}}))),
        ("images by digest alone", limits(json!({"imageDigests": true}))),
        ("a store", limits(json!({"s3": {"endpoints": ["https://s3.example.com", "http://10.0.0.5:9000/"]}}))),
        ("types of endpoints", limits(json!({"endpointTypes": ["ClusterIP", "NodePort", "LoadBalancer", "External"]}))),
    ]
}

pub fn refused() -> Vec<(Value, &'static str, &'static str)> {
    let many: Vec<_> = (0..65).map(|number| format!("c-{number}")).collect();
    vec![
        (limits(json!({})), "spec", "it limits nothing"),
        (limits(json!({"clusters": [], "maxReplicas": 1})), "spec.clusters", "at least 1 item"),
        (limits(json!({"clusters": ["*-a"], "maxReplicas": 1})), "spec.clusters[0]", "followed by *"),
        (limits(json!({"clusters": ["a", "a"], "maxReplicas": 1})), "spec.clusters[1]", "Duplicate"),
        (limits(json!({"clusters": many, "maxReplicas": 1})), "spec.clusters", "must have at most 64 items"),
        (limits(json!({"preset": "Soft"})), "spec.preset", "Hardened"),
        (apiserver(json!({})), "spec.components.apiserver.args", "it limits nothing"),
        (
            apiserver(json!({"deny": ["token-auth-flie"]})),
            "spec.components.apiserver.args.deny",
            "an argument of kube-apiserver",
        ),
        (apiserver(json!({"allow": ["--v"]})), "spec.components.apiserver.args.allow[0]", "must be a name"),
        (
            limits(json!({"components": {"scheduler": {"args": {"deny": ["token-auth-file"]}}}})),
            "spec.components.scheduler.args.deny",
            "an argument of kube-scheduler",
        ),
        (
            limits(json!({"components": {"etcd": {"config": {"allow": []}}}})),
            "spec.components.etcd.config",
            "no configuration files",
        ),
        (
            limits(json!({"components": {"controllerManager": {"config": {"allow": []}}}})),
            "spec.components.controllerManager.config",
            "no configuration files",
        ),
        (limits(json!({"extensions": {}})), "spec.extensions", "it limits nothing"),
        (limits(json!({"endpointTypes": []})), "spec.endpointTypes", "at least 1 item"),
        (limits(json!({"endpointTypes": ["Ingress"]})), "spec.endpointTypes[0]", "ClusterIP"),
        (limits(json!({"placement": {}})), "spec.placement", "it limits nothing"),
        (
            limits(json!({"placement": {"nodeSelector": {"po ol": "a"}}})),
            "spec.placement.nodeSelector",
            "a label's key",
        ),
        (limits(json!({"storage": {}})), "spec.storage", "it limits nothing"),
        (limits(json!({"storage": {"maxSize": "big"}})), "spec.storage.maxSize", "a quantity"),
        (limits(json!({"maxReplicas": 0})), "spec.maxReplicas", "greater than or equal to 1"),
        (limits(json!({"maxReplicas": 10})), "spec.maxReplicas", "less than or equal to 9"),
        (limits(json!({"s3": {}})), "spec.s3", "it limits nothing"),
        (limits(json!({"s3": {"endpoints": ["https://*.example.com/a"]}})), "spec.s3.endpoints[0]", "URL of a store"),
    ]
}

/// Every field changes in both directions.
pub async fn changes(server: &Server) {
    // The examples have other names.
    let limits = object("ClusterLimits", "changing", json!({"clusters": ["*"], "preset": "Hardened"}));
    server.create(&limits, false).await.expect("it is allowed");
    for (there, back) in [
        (json!({"preset": null, "maxReplicas": 1}), json!({"preset": "Hardened", "maxReplicas": null})),
        (json!({"clusters": ["pay"]}), json!({"clusters": ["*"]})),
        (json!({"packageVersions": ["a"]}), json!({"packageVersions": null})),
        (json!({"components": {"apiserver": {"args": {"deny": ["v"]}}}}), json!({"components": null})),
        (json!({"extensions": {"values": false}}), json!({"extensions": null})),
        (json!({"endpointTypes": ["External"]}), json!({"endpointTypes": null})),
        (json!({"placement": {"priorityClasses": []}}), json!({"placement": null})),
        (json!({"storage": {"maxSize": "1Gi"}}), json!({"storage": null})),
        (json!({"storage": {"maxSize": "2Gi"}}), json!({"storage": {"maxSize": "1Gi"}})),
        (json!({"externalDatastore": false}), json!({"externalDatastore": true})),
        (json!({"s3": {"endpoints": []}}), json!({"s3": null})),
        (json!({"imageDigests": true}), json!({"imageDigests": null})),
    ] {
        for spec in [there, back] {
            let patch = json!({"spec": spec});
            if let Err(status) = server.merge(&limits, None, &patch).await {
                panic!("{patch}: {}", status.message);
            }
        }
    }
}

//! Config maps, secrets, volumes, claims and their classes.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{bare, invalid, invalid_at, merge, with};
use crate::{Case, Ctx, eventually};

/// The cases about stored data.
pub(super) fn cases() -> Vec<Case> {
    cases!["builtins";
        an_immutable_config_map_stays_as_it_is,
        an_immutable_secret_stays_as_it_is,
        the_keys_of_a_config_map_are_checked,
        the_strings_of_a_secret_become_its_data,
        the_type_of_a_secret_cannot_change,
        a_secret_must_hold_what_its_type_says,
        a_token_secret_gets_its_token,
        a_volume_gets_its_defaults,
        the_source_of_a_volume_cannot_change,
        a_volume_is_checked,
        a_claim_gets_its_defaults,
        a_claim_cannot_change_but_grow_when_bound,
        a_claim_is_checked,
        a_volume_in_use_is_protected,
        a_storage_class_cannot_change,
        a_storage_class_is_checked,
        a_csi_driver_gets_its_defaults,
    ]
}

const IMMUTABLE: &str = "Forbidden: field is immutable when `immutable` is set";

async fn stays(ctx: &Ctx, resource: &str, kind: &str, other: &str) -> Result<()> {
    let body = json!({"metadata": {"name": "a"}, "data": {"k": other}, "immutable": true});
    ctx.post(ctx.core(resource), &body).await?.code(201)?;
    let path = ctx.core(&format!("{resource}/a"));
    for (patch, field) in [
        (json!({"data": {"more": other}}), "data"),
        (json!({"data": null}), "data"),
        (json!({"immutable": false}), "immutable"),
        (json!({"immutable": null}), "immutable"),
    ] {
        let mistake = format!("{field}: {IMMUTABLE}");
        invalid(merge(ctx, &path, &patch).await?, &format!("{kind} \"a\""), &[&mistake])?;
    }
    merge(ctx, &path, &json!({"metadata": {"labels": {"a": "b"}}})).await?.code(200)?;
    Ok(())
}

async fn an_immutable_config_map_stays_as_it_is(ctx: Ctx) -> Result<()> {
    stays(&ctx, "configmaps", "ConfigMap", "text").await
}

async fn an_immutable_secret_stays_as_it_is(ctx: Ctx) -> Result<()> {
    stays(&ctx, "secrets", "Secret", "dGV4dA==").await
}

async fn the_keys_of_a_config_map_are_checked(ctx: Ctx) -> Result<()> {
    let body = json!({"metadata": {"name": "a"}, "data": {"a b": "x"}});
    let mistakes = [
        "data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' \
                     (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
    ];
    invalid(ctx.post(ctx.core("configmaps"), &body).await?, "ConfigMap \"a\"", &mistakes)?;
    let body = json!({"metadata": {"name": "a"}, "data": {"k": "x"}, "binaryData": {"k": "YQ=="}});
    let mistakes = ["data[k]: Invalid value: \"k\": duplicate of key present in binaryData"];
    invalid(ctx.post(ctx.core("configmaps"), &body).await?, "ConfigMap \"a\"", &mistakes)
}

async fn the_strings_of_a_secret_become_its_data(ctx: Ctx) -> Result<()> {
    let body = json!({"metadata": {"name": "a"}, "data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "new"}});
    let made = ctx.post(ctx.core("secrets"), &body).await?.code(201)?;
    assert_eq!(made["data"], json!({"a": "YQ==", "b": "bmV3"}));
    assert_eq!((&made["stringData"], &made["type"]), (&Value::Null, &json!("Opaque")));
    Ok(())
}

async fn the_type_of_a_secret_cannot_change(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("secrets"), &json!({"metadata": {"name": "a"}})).await?.code(201)?;
    let reply = merge(&ctx, ctx.core("secrets/a"), &json!({"type": "example.com/x"})).await?;
    invalid(reply, "Secret \"a\"", &["type: Invalid value: \"example.com/x\": field is immutable"])
}

async fn a_secret_must_hold_what_its_type_says(ctx: Ctx) -> Result<()> {
    for (kind, mistakes) in [
        ("tls", vec!["data[tls.crt]: Required value", "data[tls.key]: Required value"]),
        ("basic-auth", vec!["data[username]: Required value", "data[password]: Required value"]),
        ("ssh-auth", vec!["data[ssh-privatekey]: Required value"]),
        ("dockerconfigjson", vec!["data[.dockerconfigjson]: Required value"]),
        ("service-account-token", vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value"]),
    ] {
        let body = json!({"metadata": {"name": "a"}, "type": format!("kubernetes.io/{kind}")});
        invalid(ctx.post(ctx.core("secrets"), &body).await?, "Secret \"a\"", &mistakes)?;
    }
    Ok(())
}

async fn a_token_secret_gets_its_token(ctx: Ctx) -> Result<()> {
    let account = json!({"metadata": {"name": "robot"}});
    let account = ctx.post(ctx.core("serviceaccounts"), &account).await?.code(201)?;
    let body = json!({
        "metadata": {"name": "a", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token",
    });
    // A secret that is written before its account is known to the controller is removed again.
    let secret = eventually("the token is filled in", async || {
        let reply = ctx.post(ctx.core("secrets"), &body).await?;
        ensure!(matches!(reply.status, 201 | 409), "{}", reply.text());
        let secret = ctx.get(ctx.core("secrets/a")).await?.ok()?;
        ensure!(secret["data"]["token"].is_string(), "{secret}");
        Ok(secret)
    })
    .await?;
    assert_eq!(secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"], account["metadata"]["uid"]);
    assert!(secret["data"]["ca.crt"].is_string() && secret["data"]["namespace"].is_string());
    Ok(())
}

fn volume(name: &str) -> Value {
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"}});
    json!({"metadata": {"name": name}, "spec": spec})
}

const VOLUMES: &str = "/api/v1/persistentvolumes";

async fn a_volume_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("volume");
    let made = ctx.post(VOLUMES, &volume(&name)).await?.code(201)?;
    let wanted = json!({
        "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/tmp", "type": ""}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
    });
    assert_eq!(made["spec"], wanted);
    assert_eq!(made["status"]["phase"], "Pending");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    Ok(())
}

async fn the_source_of_a_volume_cannot_change(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("volume");
    ctx.post(VOLUMES, &volume(&name)).await?.code(201)?;
    let path = format!("{VOLUMES}/{name}");
    let reply = merge(&ctx, &path, &json!({"spec": {"hostPath": {"path": "/other"}}})).await?;
    let start = "Forbidden: spec.persistentvolumesource is immutable after creation\n";
    invalid_at(reply, "spec.persistentvolumesource", start)?;
    merge(&ctx, &path, &json!({"spec": {"capacity": {"storage": "2Gi"}}})).await?.code(200)?;
    Ok(())
}

async fn a_volume_is_checked(ctx: Ctx) -> Result<()> {
    let mistakes = [
        "spec.accessModes: Required value",
        "spec.capacity: Required value",
        "spec.capacity: Unsupported value: null: supported values: \"storage\"",
        "spec: Required value: must specify a volume type",
    ];
    let body = json!({"metadata": {"name": "bad"}});
    invalid(ctx.post(VOLUMES, &body).await?, "PersistentVolume \"bad\"", &mistakes)?;
    let wrong = json!({"spec": {
        "capacity": {"storage": "0"}, "accessModes": ["X"], "hostPath": {"path": "/../x"}, "volumeMode": "Z",
        "persistentVolumeReclaimPolicy": "Q",
    }});
    let mistakes = [
        "spec.accessModes: Unsupported value: \"X\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \
         \"ReadWriteOncePod\"",
        "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
        "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Q\": supported values: \"Delete\", \"Recycle\", \"Retain\"",
        "spec.hostPath.path: Invalid value: \"/../x\": must not contain '..'",
        "spec.volumeMode: Unsupported value: \"Z\": supported values: \"Block\", \"Filesystem\"",
    ];
    invalid(ctx.post(VOLUMES, &with(volume("bad"), &wrong)).await?, "PersistentVolume \"bad\"", &mistakes)
}

fn claim(name: &str) -> Value {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""});
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn a_claim_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let made = ctx.post(ctx.core("persistentvolumeclaims"), &claim("a")).await?.code(201)?;
    let wanted = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "a", "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": with(claim("a")["spec"].clone(), &json!({"volumeMode": "Filesystem"})),
        "status": {"phase": "Pending"},
    });
    assert_eq!(bare(made), wanted);
    Ok(())
}

async fn a_claim_cannot_change_but_grow_when_bound(ctx: Ctx) -> Result<()> {
    ctx.post(ctx.core("persistentvolumeclaims"), &claim("a")).await?.code(201)?;
    let path = ctx.core("persistentvolumeclaims/a");
    let start = "Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";
    let storage = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    invalid_at(merge(&ctx, &path, &json!({"spec": {"accessModes": ["ReadOnlyMany"]}})).await?, "spec", start)?;
    invalid_at(merge(&ctx, &path, &storage("5Gi")).await?, "spec", start)?;
    merge(&ctx, &path, &json!({"spec": {"volumeName": "x"}})).await?.code(200)?;
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    merge(&ctx, format!("{path}/status"), &bound).await?.code(200)?;
    let mistakes = ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"];
    invalid(merge(&ctx, &path, &storage("5Mi")).await?, "PersistentVolumeClaim \"a\"", &mistakes)
}

async fn a_claim_is_checked(ctx: Ctx) -> Result<()> {
    let path = ctx.core("persistentvolumeclaims");
    let mistakes = [
        "spec.accessModes: Required value: at least 1 access mode is required",
        "spec.resources[storage]: Required value",
    ];
    invalid(ctx.post(&path, &json!({"metadata": {"name": "a"}})).await?, "PersistentVolumeClaim \"a\"", &mistakes)?;
    let wrong = json!({"spec": {
        "accessModes": ["ReadWriteOnce", "ReadWriteOncePod"], "resources": {"requests": {"storage": "-1"}},
    }});
    let mistakes = [
        "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
        "spec.resources[storage]: Invalid value: \"-1\": must be greater than zero",
    ];
    invalid(ctx.post(&path, &with(claim("a"), &wrong)).await?, "PersistentVolumeClaim \"a\"", &mistakes)
}

async fn a_volume_in_use_is_protected(ctx: Ctx) -> Result<()> {
    let path = ctx.core("persistentvolumeclaims");
    ctx.post(&path, &claim("a")).await?.code(201)?;
    let gone = |reply: crate::Reply| reply.refused(404, "NotFound").map(drop);
    ctx.delete(format!("{path}/a")).await?.code(200)?;
    eventually("an unused claim goes", async || gone(ctx.get(format!("{path}/a")).await?)).await?;
    let name = ctx.unique("volume");
    ctx.post(VOLUMES, &volume(&name)).await?.code(201)?;
    let bound = json!({"status": {"phase": "Bound"}});
    merge(&ctx, format!("{VOLUMES}/{name}/status"), &bound).await?.code(200)?;
    let ending = ctx.delete(format!("{VOLUMES}/{name}")).await?.code(200)?;
    assert_eq!(ending["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    ctx.get(format!("{VOLUMES}/{name}")).await?.code(200)?;
    let free = json!({"status": {"phase": "Released"}});
    merge(&ctx, format!("{VOLUMES}/{name}/status"), &free).await?.code(200)?;
    eventually("a free volume goes", async || gone(ctx.get(format!("{VOLUMES}/{name}")).await?)).await
}

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

async fn a_storage_class_cannot_change(ctx: Ctx) -> Result<()> {
    let name = ctx.unique("class");
    let body = json!({"metadata": {"name": name}, "provisioner": "example.com/x", "parameters": {"a": "b"}});
    let made = ctx.post(CLASSES, &body).await?.code(201)?;
    assert_eq!((&made["reclaimPolicy"], &made["volumeBindingMode"]), (&json!("Delete"), &json!("Immediate")));
    let object = format!("StorageClass.storage.k8s.io \"{name}\"");
    for (field, value) in [
        ("parameters", json!({"a": "c"})),
        ("provisioner", json!("example.com/y")),
        ("reclaimPolicy", json!("Retain")),
        ("volumeBindingMode", json!("WaitForFirstConsumer")),
    ] {
        let reply = merge(&ctx, format!("{CLASSES}/{name}"), &json!({field: value})).await?;
        invalid(reply, &object, &[&format!("{field}: Invalid value: null: field is immutable")])?;
    }
    merge(&ctx, format!("{CLASSES}/{name}"), &json!({"allowVolumeExpansion": true})).await?.code(200)?;
    Ok(())
}

async fn a_storage_class_is_checked(ctx: Ctx) -> Result<()> {
    let body =
        json!({"metadata": {"name": "bad"}, "provisioner": "", "reclaimPolicy": "Recycle", "volumeBindingMode": "X"});
    let mistakes = [
        "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"",
        "volumeBindingMode: Unsupported value: \"X\": supported values: \"Immediate\", \"WaitForFirstConsumer\"",
        "provisioner: Required value",
    ];
    invalid(ctx.post(CLASSES, &body).await?, "StorageClass.storage.k8s.io \"bad\"", &mistakes)
}

async fn a_csi_driver_gets_its_defaults(ctx: Ctx) -> Result<()> {
    let (path, name) = ("/apis/storage.k8s.io/v1/csidrivers", ctx.unique("driver"));
    let made = ctx.post(path, &json!({"metadata": {"name": name}, "spec": {}})).await?.code(201)?;
    let wanted = json!({
        "attachRequired": true, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"], "storageCapacity": false,
        "fsGroupPolicy": "ReadWriteOnceWithFSType", "requiresRepublish": false, "seLinuxMount": false,
        "preventPodSchedulingIfMissing": false,
    });
    assert_eq!(made["spec"], wanted);
    let reply = merge(&ctx, format!("{path}/{name}"), &json!({"spec": {"attachRequired": false}})).await?;
    let mistakes = ["spec.attachedRequired: Invalid value: false: field is immutable"];
    invalid(reply, &format!("CSIDriver.storage.k8s.io \"{name}\""), &mistakes)
}

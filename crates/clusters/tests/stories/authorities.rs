//! Authorities are replaced, and nobody who uses the cluster notices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fleetwright_api::names;
use fleetwright_pki::Certificate;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;

use crate::support::World;

async fn held(world: &World, secret: &str, key: &str) -> String {
    let api: Api<Secret> = world.api("pay");
    let data = api.get(secret).await.unwrap().data.unwrap_or_default();
    String::from_utf8(data.get(key).map(|bytes| bytes.0.clone()).unwrap_or_default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_are_replaced_in_phases_and_all_that_they_signed_with_them() {
    let world = World::start().await;
    world.create("pay", |spec| spec.certificates.overlap.0 = Duration::from_secs(1)).await;
    world.ready("pay").await;
    let mut before = Vec::new();
    for authority in ["ca", "etcd-ca", "front-proxy-ca"] {
        before.push((authority, held(&world, authority, "tls.crt").await));
    }
    let token_key = held(&world, "service-account", "sa.key").await;

    world.change("pay", json!({ "spec": { "certificates": { "rotateAuthorities": "2026-11" } } })).await;
    let (ready, seen) = (AtomicBool::new(true), &world);
    let done = world
        .until("all of it is replaced", async || {
            let status = seen.status("pay").await;
            if !fleetwright_api::is_true(&status.conditions, names::READY) {
                ready.store(false, Ordering::Relaxed);
            }
            match (&status.rotation, status.authorities.as_deref()) {
                (None, Some("2026-11")) if status.waiting_for.is_none() => Ok(status),
                _ => Err(format!("{status:#?}")),
            }
        })
        .await;
    assert!(ready.load(Ordering::Relaxed), "it was proven all along");
    assert!(fleetwright_api::is_true(&done.conditions, names::CERTIFICATES_VALID), "{done:#?}");
    for (authority, old) in before {
        let new = held(&world, authority, "tls.crt").await;
        assert_ne!(new, old, "{authority}");
        assert_eq!(held(&world, authority, "ca.crt").await.trim(), new.trim(), "the old one is trusted no more");
        assert!(held(&world, authority, "next.key").await.is_empty());
    }
    let authority = Certificate::from_pem(&held(&world, "ca", "tls.crt").await).unwrap();
    for leaf in ["apiserver-tls", "operator-client", "scheduler-kubeconfig"] {
        assert!(
            Certificate::from_pem(&held(&world, leaf, "tls.crt").await).unwrap().is_signed_by(&authority),
            "{leaf}"
        );
    }
    assert_eq!(held(&world, "service-account", "sa.key").await, token_key, "tokens go on");
}

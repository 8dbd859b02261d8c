//! Authorities are rotated, without an effect on the users of the cluster.

use std::sync::Mutex;
use std::time::Duration;

use fleetwright_api::{Condition, Machine, MachineSpec, RotationPhase, Status, condition, names};
use fleetwright_lab::define;
use fleetwright_pki::{Authority, Certificate};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{FLEET, TestFleet};
use crate::versions::business;

pub const AUTHORITIES: [&str; 4] = ["ca", "etcd-ca", "front-proxy-ca", "kubelet-ca"];

pub async fn held(world: &TestFleet, secret: &str, key: &str) -> String {
    let api: Api<Secret> = world.api("pay");
    let data = api.get(secret).await.unwrap().data.unwrap_or_default();
    String::from_utf8(data.get(key).map(|bytes| bytes.0.clone()).unwrap_or_default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_are_replaced_in_phases_and_all_that_they_signed_with_them() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.certificates.overlap.0 = Duration::from_secs(1)).await;
    world.ready("pay").await;
    let mut before = Vec::new();
    for authority in AUTHORITIES {
        before.push((authority, held(&world, authority, "tls.crt").await));
    }
    let token_key = held(&world, "service-account", "sa.key").await;

    world.change("pay", json!({ "spec": { "certificates": { "rotateAuthorities": "2026-11" } } })).await;
    let (unready, seen) = (Mutex::new(Vec::new()), &world);
    let done = world
        .until("all of it is replaced", async || {
            let status = seen.status("pay").await;
            let ready = condition(&status.conditions, names::READY).cloned();
            // A machine that is short of CPU renews leases late: that says nothing of authorities.
            let late = |ready: &Condition| ready.message.contains("lease");
            unready.lock().unwrap().extend(ready.filter(|ready| ready.status != Status::True && !late(ready)));
            match (&status.rotation, status.authorities.as_deref()) {
                (None, Some("2026-11")) if status.waiting_for.is_none() => Ok(status),
                _ => Err(format!("{status:#?}")),
            }
        })
        .await;
    let unready = unready.into_inner().unwrap();
    assert!(unready.is_empty(), "it was proven all along: {:#?}", unready.first());
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

/// Even if somebody approves a CertificateSigningRequest of a node for the names of the API server: clients that trust the cluster's authority do not
/// accept it as the API server.
#[tokio::test(flavor = "multi_thread")]
async fn a_serving_certificate_of_a_kubelet_is_never_one_of_the_api_server() {
    let world = TestFleet::start().await;
    world.create("pay", |spec| spec.replicas = 1).await;
    world.ready("pay").await;
    let client = business(&world).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["kubernetes.default.svc".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:host-17");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let request = json!({ "metadata": { "name": "serving" }, "spec": {
        "request": ByteString(pem.into_bytes()), "signerName": "kubernetes.io/kubelet-serving",
        "usages": ["digital signature", "server auth"],
    } });
    requests.create(&PostParams::default(), &serde_json::from_value(request).unwrap()).await.unwrap();
    let approved = json!({ "status": { "conditions": [
        { "type": "Approved", "status": "True", "reason": "ByHand", "message": "a mistake" },
    ] } });
    requests.patch_approval("serving", &PatchParams::default(), &Patch::Merge(approved)).await.unwrap();
    let signed = world
        .until("it is signed", async || {
            let status = requests.get("serving").await.unwrap().status.unwrap_or_default();
            status.certificate.clone().ok_or_else(|| format!("{status:?}"))
        })
        .await;
    let signed = Certificate::from_pem(&String::from_utf8(signed.0).unwrap()).unwrap();
    let authority = async |name| Certificate::from_pem(&held(&world, name, "tls.crt").await).unwrap();
    assert!(signed.is_signed_by(&authority("kubelet-ca").await));
    assert!(!signed.is_signed_by(&authority("ca").await));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_phase_ends_before_all_machines_have_what_is_trusted() {
    let world = TestFleet::start().await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.certificates.overlap.0 = Duration::from_secs(1);
        })
        .await;
    world.ready("pay").await;
    let client = business(&world).await;
    let kind = fleetwright_api::crds().into_iter().find(|one| one.spec.names.kind == "Machine").unwrap();
    define(&client, &[kind]).await.unwrap();
    let machines: Api<Machine> = Api::default_namespaced(client);
    for (name, ssh) in [("host-17", true), ("only-watched", false)] {
        let ssh = ssh.then(|| {
            serde_json::from_value(json!({ "keyRef": { "name": "ssh" }, "hostKeys": { "policy": "TrustOnFirstUse" } }))
                .unwrap()
        });
        let spec = MachineSpec { addresses: vec!["192.0.2.1".into()], ssh, ..MachineSpec::default() };
        machines.create(&PostParams::default(), &Machine::new(name, spec)).await.unwrap();
        let joined = json!({ "status": { "nodeRef": { "name": name }, "trusts": "before" } });
        machines.patch_status(name, &PatchParams::default(), &Patch::Merge(joined)).await.unwrap();
    }
    world.change("pay", json!({ "spec": { "certificates": { "rotateAuthorities": "2026-11" } } })).await;
    for phase in [RotationPhase::Trusting, RotationPhase::Signing] {
        let told = world
            .until(&format!("it waits for the machine in {phase:?}"), async || {
                let status = world.status("pay").await;
                let valid = condition(&status.conditions, names::CERTIFICATES_VALID).cloned();
                let message = valid.map(|valid| valid.message).unwrap_or_default();
                let there = status.rotation.as_ref().is_some_and(|rotation| rotation.phase == phase);
                if there && message.contains("host-17") { Ok(message) } else { Err(format!("{status:#?}")) }
            })
            .await;
        assert!(!told.contains("only-watched"), "{told}");
        let trusts = fleetwright_plan::join::bundle_digest(&held(&world, "ca", "ca.crt").await);
        let machines: Api<Machine> = Api::default_namespaced(business(&world).await);
        let follows = json!({ "status": { "trusts": trusts } });
        machines.patch_status("host-17", &PatchParams::default(), &Patch::Merge(follows)).await.unwrap();
    }
    world
        .until("all of it is replaced", async || {
            let status = world.status("pay").await;
            match (&status.rotation, status.authorities.as_deref()) {
                (None, Some("2026-11")) => Ok(()),
                _ => Err(format!("{status:#?}")),
            }
        })
        .await;
}

/// The cluster is as old as its authorities last: they have expired, and no component accepts what they signed.
#[tokio::test(flavor = "multi_thread")]
async fn authorities_that_have_expired_are_replaced_when_a_person_asks_for_it() {
    let mut world = TestFleet::start().await;
    world
        .create("pay", |spec| {
            spec.replicas = 1;
            spec.certificates.overlap.0 = Duration::from_secs(1);
        })
        .await;
    world.ready("pay").await;
    world.operator_stops().await;
    let secrets: Api<Secret> = world.api("pay");
    for name in AUTHORITIES {
        let old = Authority::lasting(name, Duration::ZERO).unwrap();
        let data = json!({ "stringData": {
            "tls.crt": old.cert_pem(), "tls.key": old.key_pem(), "ca.crt": old.cert_pem(),
        } });
        secrets.patch(name, &PatchParams::default(), &Patch::Merge(data)).await.unwrap();
    }
    // Without a record and a copy, the operator takes the authorities that it finds.
    let fleet: Api<Secret> = Api::namespaced(world.client.clone(), FLEET);
    fleet.delete("pay.sealed-keys", &DeleteParams::default()).await.unwrap();
    let unrecorded = Patch::Merge(json!({ "status": { "keys": [] } }));
    world.clusters().patch_status("pay", &PatchParams::default(), &unrecorded).await.unwrap();
    world.operator_starts();

    world.told(names::reasons::AUTHORITY_EXPIRED).await;
    let message = world
        .until("it waits, and says why", async || {
            let status = world.status("pay").await;
            let valid = condition(&status.conditions, names::CERTIFICATES_VALID).cloned();
            let expired = valid.filter(|valid| valid.reason == names::reasons::AUTHORITY_EXPIRED);
            match expired.filter(|_| status.waiting_for.is_some()) {
                Some(expired) => Ok(expired.message),
                None => Err(format!("{status:#?}")),
            }
        })
        .await;
    assert!(AUTHORITIES.iter().all(|name| message.contains(&format!("{name} expired"))), "{message}");

    let value = message.rsplit(' ').next().unwrap();
    world.change("pay", json!({ "spec": { "certificates": { "rotateAuthorities": value } } })).await;
    world
        .until("all of it is replaced", async || {
            let status = world.status("pay").await;
            match (&status.rotation, status.authorities.as_deref()) {
                (None, Some(done)) if done == value => Ok(()),
                _ => Err(format!("{status:#?}")),
            }
        })
        .await;
    let status = world.ready("pay").await;
    assert!(fleetwright_api::is_true(&status.conditions, names::CERTIFICATES_VALID), "{status:#?}");
    for name in AUTHORITIES {
        let new = held(&world, name, "tls.crt").await;
        assert!(Certificate::from_pem(&new).unwrap().not_after > jiff::Timestamp::now().as_second(), "{name}");
        assert_eq!(held(&world, name, "ca.crt").await.trim(), new.trim(), "{name}: the expired one is dropped");
    }
}

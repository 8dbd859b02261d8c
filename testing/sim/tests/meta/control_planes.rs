//! Control planes of business clusters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fleetwright_pki::Authority;
use fleetwright_sim::meta::VersionDefect;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, Secret, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::plane::{ETCD, NEW, OLD, Plane, api_servers, etcd, managers, scheduler_config};
use crate::support::{MetaEnv, NAMESPACE, container, is_ready};

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "k": "v" } })).unwrap()
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

async fn write(client: &Client, name: &str) -> kube::Result<ConfigMap> {
    maps(client).create(&PostParams::default(), &map(name)).await
}

async fn all_ready(world: &MetaEnv, servers: usize) -> Vec<Pod> {
    world
        .until("the control plane is ready", async |world| {
            let deployment = world.api::<Deployment>().get("kube-apiserver").await.unwrap();
            let pods: Vec<Pod> =
                world.pods().await.into_iter().filter(|pod| pod.name_any().starts_with("kube-apiserver")).collect();
            let settled = deployment.status?.observed_generation == deployment.metadata.generation;
            (settled && pods.len() == servers && pods.iter().all(is_ready)).then_some(pods)
        })
        .await
}

async fn version(client: &Client) -> String {
    client.apiserver_version().await.unwrap().git_version
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_comes_up_and_keeps_what_is_written_at_each_of_its_replicas() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 3, 2).await;
    let pods = all_ready(&world, 2).await;
    let client = plane.client(&world).await;
    write(&client, "through-the-service").await.unwrap();
    assert_eq!(version(&client).await, OLD);
    for pod in &pods {
        let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
        let here = plane.client_at(&plane.ca, ip, "operator", &["system:masters"]).await;
        assert_eq!(maps(&here).get("through-the-service").await.unwrap().data.unwrap()["k"], "v");
    }
    let counts = world.meta.counts();
    assert_eq!((counts.api_servers, counts.etcd_members), (2, 3));
    // The server's own authority is trusted, and no other.
    let ip = pods[0].status.as_ref().unwrap().pod_ip.clone().unwrap();
    let stranger = Authority::new("kubernetes").unwrap();
    let denied = plane.client_at(&stranger, ip.clone(), "operator", &["system:masters"]).await;
    assert!(maps(&denied).list(&Default::default()).await.is_err());
    let nobody = plane.client_at(&plane.ca, ip, "amy", &[]).await;
    assert!(matches!(write(&nobody, "x").await, Err(kube::Error::Api(status)) if status.code == 403));
    // The server also answers on the node port.
    let service = world.api::<Service>().get("kube-apiserver").await.unwrap();
    let port = service.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.client.clone());
    let node = nodes.list(&Default::default()).await.unwrap().items.remove(0);
    let address = node.status.unwrap().addresses.unwrap()[0].address.clone();
    world
        .until("the port of a node answers", async |_| {
            tokio::net::TcpStream::connect(format!("{address}:{port}")).await.ok()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update_with_surge_keeps_the_service_answering_all_along() {
    let world = Arc::new(MetaEnv::start().await);
    let plane = Plane::new();
    plane.build(&world, 1, 2).await;
    all_ready(&world, 2).await;
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let client = plane.client(&world).await;
    let worker = tokio::spawn({
        let (stop, done, client) = (stop.clone(), done.clone(), client.clone());
        async move {
            let mut failed = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                let number = done.fetch_add(1, Ordering::SeqCst);
                // A request on a connection that is closing is repeated once, as every client of Kubernetes does.
                let mut wrote = write(&client, &format!("m-{number}")).await.map(drop);
                if wrote.as_ref().is_err_and(|error| error.to_string().contains("SendRequest")) {
                    wrote = match write(&client, &format!("m-{number}")).await {
                        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                        again => again.map(drop),
                    };
                }
                let mut read = maps(&client).get("m-0").await;
                if read.as_ref().is_err_and(|error| error.to_string().contains("SendRequest")) {
                    read = maps(&client).get("m-0").await;
                }
                for error in [wrote.err(), read.err()].into_iter().flatten() {
                    failed.push(format!("{number}: {error}"));
                }
            }
            failed
        }
    });
    world.apply::<Deployment>(api_servers(2, NEW)).await;
    let renewed = |pods: &[Pod]| pods.iter().all(|pod| container(pod)["image"].as_str().unwrap().ends_with(NEW));
    world
        .until("all replicas are new", async |world| {
            let pods: Vec<Pod> =
                world.pods().await.into_iter().filter(|pod| pod.name_any().starts_with("kube-apiserver")).collect();
            (pods.len() == 2 && pods.iter().all(is_ready) && renewed(&pods)).then_some(())
        })
        .await;
    assert_eq!(version(&client).await, NEW);
    stop.store(true, Ordering::SeqCst);
    let failed = worker.await.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    let number = done.load(Ordering::SeqCst);
    assert!(number > 2, "{number}");
    let all = maps(&client).list(&Default::default()).await.unwrap().items;
    assert_eq!(all.iter().filter(|map| map.name_any().starts_with("m-")).count(), number);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_survive_every_api_server_and_every_member_of_etcd_being_killed() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 3, 1).await;
    let pod = all_ready(&world, 1).await.remove(0);
    write(&plane.client(&world).await, "kept").await.unwrap();
    for name in ["etcd-0", "etcd-1", "etcd-2", &pod.name_any()] {
        assert!(world.meta.kill(NAMESPACE, name, None), "{name}");
    }
    world
        .until("it is back", async |world| {
            let pod = world.pod(&pod.name_any()).await?;
            (is_ready(&pod) && container(&pod)["restartCount"].as_i64() >= Some(1)).then_some(())
        })
        .await;
    let client = plane.client(&world).await;
    world.until("the object is there", async |_| maps(&client).get("kept").await.ok()).await;
    // The same for a deleted pod.
    world.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    world.until("it is gone", async |world| world.pod(&pod.name_any()).await.is_none().then_some(())).await;
    all_ready(&world, 1).await;
    let client = plane.client(&world).await;
    world.until("the object is there", async |_| maps(&client).get("kept").await.ok()).await;
}

/// Calls a member of etcd.
async fn ask(plane: &Plane, pod: &Pod, path: &str, body: Value) -> (u16, Value) {
    let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let pair = plane.etcd_client();
    let text =
        fleetwright_pki::kubeconfig("etcd", &format!("https://{ip}:2379"), plane.etcd_ca.cert_pem(), (&pair).into());
    let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    config.tls_server_name = Some(format!("etcd.{NAMESPACE}.svc"));
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let request = http::Request::post(path).body(kube::client::Body::from(body.to_string().into_bytes())).unwrap();
    let answer = client.send(request).await.unwrap();
    let code = answer.status().as_u16();
    let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_a_wiped_volume_comes_back_when_it_is_replaced() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 3, 1).await;
    all_ready(&world, 1).await;
    let client = plane.client(&world).await;
    write(&client, "kept").await.unwrap();
    assert!(world.meta.wipe(NAMESPACE, "data-etcd-2"));
    let why = world
        .until("it cannot come back", async |world| {
            let pod = world.pod("etcd-2").await?;
            container(&pod)["lastState"]["terminated"]["message"]
                .as_str()
                .filter(|why| !why.is_empty())
                .map(str::to_owned)
        })
        .await;
    assert!(why.contains("has already been bootstrapped"), "{why}");
    write(&client, "with-two").await.unwrap();
    let first = world.until_ready("etcd-0").await;
    let (code, list) = ask(&plane, &first, "/v3/cluster/member/list", json!({})).await;
    assert_eq!(code, 200);
    let members = list["members"].as_array().unwrap().clone();
    let lost = members.iter().find(|member| member["name"] == "etcd-2").unwrap().clone();
    let (code, refused) =
        ask(&plane, &first, "/v3/cluster/member/add", json!({ "peerURLs": ["https://x:2380"] })).await;
    assert_eq!((code, &refused["message"]), (503, &json!("etcdserver: unhealthy cluster")));
    let (code, _) = ask(&plane, &first, "/v3/cluster/member/remove", json!({ "ID": lost["ID"] })).await;
    assert_eq!(code, 200);
    let (code, added) = ask(&plane, &first, "/v3/cluster/member/add", json!({ "peerURLs": lost["peerURLs"] })).await;
    assert_eq!((code, added["members"].as_array().unwrap().len()), (200, 3));
    world.apply::<StatefulSet>(etcd(3, ETCD, "existing")).await;
    world.api::<Pod>().delete("etcd-2", &DeleteParams::default()).await.unwrap();
    world
        .until("all members live", async |world| {
            let set = world.api::<StatefulSet>().get("etcd").await.unwrap();
            let status = set.status?;
            let done = status.ready_replicas == Some(3) && status.updated_replicas == Some(3);
            (done && status.observed_generation == set.metadata.generation).then_some(())
        })
        .await;
    let first = world.until_ready("etcd-0").await;
    let (_, status) = ask(&plane, &first, "/v3/maintenance/status", json!({})).await;
    assert_eq!(status["version"], ETCD.trim_start_matches('v'));
    assert!(status["leader"] != "0" && status["errors"].is_null(), "{status}");
    world.until("the objects are there", async |_| maps(&client).get("with-two").await.ok()).await;
    assert_eq!(maps(&client).get("kept").await.unwrap().data.unwrap()["k"], "v");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_answered_and_readyz_says_why() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 3, 1).await;
    let pod = all_ready(&world, 1).await.remove(0);
    let client = plane.client(&world).await;
    write(&client, "kept").await.unwrap();
    for claim in ["data-etcd-1", "data-etcd-2"] {
        assert!(world.meta.wipe(NAMESPACE, claim));
    }
    let unready = |pod: &Pod| !is_ready(pod);
    world.until("it is not ready", async |world| world.pod(&pod.name_any()).await.filter(unready)).await;
    let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let here = plane.client_at(&plane.ca, ip, "operator", &["system:masters"]).await;
    let page = here.request_text(http::Request::get("/readyz?verbose").body(Vec::new()).unwrap()).await.unwrap_err();
    assert!(format!("{page:?}").contains("[-]etcd failed"), "{page:?}");
    let error = maps(&here).get("kept").await.unwrap_err();
    assert!(error.to_string().contains("etcdserver: request timed out"), "{error}");
    let member = world.pod("etcd-0").await.unwrap();
    let (code, status) = ask(&plane, &member, "/v3/maintenance/status", json!({})).await;
    assert_eq!((code, &status["errors"][0]), (200, &json!("etcdserver: no leader")));
    assert_eq!(ask(&plane, &member, "/v3/kv/range", json!({ "key": "AA==" })).await.0, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_key_does_not_match_says_so_and_comes_up_when_it_does() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.secrets(&world).await;
    let (one, two) = (plane.serving(), plane.serving());
    let mixed = fleetwright_pki::PemPair { cert_pem: one.cert_pem, key_pem: two.key_pem };
    plane.secret(&world, "apiserver-tls", &mixed, &plane.ca).await;
    plane_without_secrets(&world).await;
    let why = world
        .until("it does not start", async |world| {
            let pods = world.pods().await;
            let pod = pods.iter().find(|pod| pod.name_any().starts_with("kube-apiserver"))?;
            container(pod)["lastState"]["terminated"]["message"].as_str().map(str::to_owned)
        })
        .await;
    assert_eq!(why, "\"command failed\" err=\"tls: private key does not match public key\"");
    plane.secret(&world, "apiserver-tls", &plane.serving(), &plane.ca).await;
    all_ready(&world, 1).await;
    let missing =
        json!({ "metadata": { "name": "service-account" }, "stringData": { "sa.pub": plane.key.public_pem } });
    world.api::<Secret>().delete("service-account", &DeleteParams::default()).await.unwrap();
    world.apply::<Secret>(missing).await;
    let pods = all_ready(&world, 1).await;
    let old = pods[0].name_any();
    world.api::<Pod>().delete(&old, &DeleteParams::default()).await.unwrap();
    let why = world
        .until("it does not start", async |world| {
            let pods = world.pods().await;
            let new = |pod: &&Pod| pod.name_any().starts_with("kube-apiserver") && pod.name_any() != old;
            container(pods.iter().find(new)?)["lastState"]["terminated"]["message"].as_str().map(str::to_owned)
        })
        .await;
    assert!(why.contains("open /etc/kubernetes/service-account/sa.key: no such file or directory"), "{why}");
}

async fn plane_without_secrets(world: &MetaEnv) {
    world
        .apply::<Service>(json!({ "metadata": { "name": "etcd" }, "spec": {
        "clusterIP": "None", "publishNotReadyAddresses": true, "selector": { "app.kubernetes.io/name": "etcd" },
        "ports": [{ "name": "client", "port": 2379 }],
    } }))
        .await;
    world.apply::<StatefulSet>(etcd(1, ETCD, "new")).await;
    world.apply::<Deployment>(api_servers(1, OLD)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_shown_without_a_restart() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 1, 1).await;
    let pod = all_ready(&world, 1).await.remove(0);
    let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let next = Plane { ca: Authority::new("next").unwrap(), ..Plane::new() };
    plane.secret(&world, "apiserver-tls", &next.serving(), &next.ca).await;
    world
        .until("it shows the new one", async |_| {
            let client = next.client_at(&next.ca, ip.clone(), "operator", &["system:masters"]).await;
            maps(&client).list(&Default::default()).await.ok()
        })
        .await;
    let pod = world.pod(&pod.name_any()).await.unwrap();
    assert_eq!(container(&pod)["restartCount"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_versions_are_bad_in_their_ways() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 1, 1).await;
    all_ready(&world, 1).await;
    world.meta.declare("kube-apiserver", NEW, Some(VersionDefect::WrongAnswers));
    world.apply::<Deployment>(api_servers(1, NEW)).await;
    let liar = world
        .until("it says that it is ready", async |world| {
            let pods = world.pods().await;
            pods.into_iter().find(|pod| is_ready(pod) && container(pod)["image"].as_str().unwrap().ends_with(NEW))
        })
        .await;
    let ip = liar.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let client = plane.client_at(&plane.ca, ip, "operator", &["system:masters"]).await;
    assert_eq!(write(&client, "lost").await.unwrap().name_any(), "lost");
    assert!(maps(&client).get_opt("lost").await.unwrap().is_none());

    world.meta.declare("kube-apiserver", "v1.37.2", Some(VersionDefect::Slow(Duration::from_secs(3600))));
    world.apply::<Deployment>(api_servers(1, "v1.37.2")).await;
    let slow = world
        .until("it says that it is ready", async |world| {
            let pods = world.pods().await;
            pods.into_iter().find(|pod| is_ready(pod) && container(pod)["image"].as_str().unwrap().ends_with("v1.37.2"))
        })
        .await;
    let ip = slow.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let client = plane.client_at(&plane.ca, ip, "operator", &["system:masters"]).await;
    let namespaces: Api<Namespace> = Api::all(client);
    assert!(tokio::time::timeout(Duration::from_millis(300), namespaces.list(&Default::default())).await.is_err());

    world.meta.declare("kube-apiserver", "v1.37.3", Some(VersionDefect::NeverReady));
    world.apply::<Deployment>(api_servers(1, "v1.37.3")).await;
    let never = world
        .until("it runs", async |world| {
            let pods = world.pods().await;
            let new = |pod: &Pod| container(pod)["image"].as_str().is_some_and(|image| image.ends_with("v1.37.3"));
            pods.into_iter().find(|pod| new(pod) && world.meta.client(NAMESPACE, &pod.name_any()).is_some())
        })
        .await;
    let inside = world.meta.client(NAMESPACE, &never.name_any()).unwrap();
    assert!(write(&inside, "works").await.is_ok());
    assert!(!is_ready(&world.pod(&never.name_any()).await.unwrap()));
}

async fn manage(world: &MetaEnv, version: &str) {
    world.apply::<ConfigMap>(scheduler_config()).await;
    for deployment in managers(version) {
        world.apply::<Deployment>(deployment).await;
    }
}

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), "kube-system")
}

/// Waits until a lease is renewed once more.
async fn moves(world: &MetaEnv, client: &Client, lease: &str) -> String {
    let renewed = async |_: &MetaEnv| {
        let spec = leases(client).get_opt(lease).await.ok()??.spec?;
        Some((spec.renew_time?, spec.holder_identity.filter(|holder| !holder.is_empty())?))
    };
    let (before, _) = world.until(&format!("{lease} is held"), renewed).await;
    let moved = async |world: &MetaEnv| renewed(world).await.filter(|(now, _)| *now != before);
    world.until(&format!("{lease} moves"), moved).await.1
}

fn quotas(client: &Client) -> Api<ResourceQuota> {
    Api::namespaced(client.clone(), "default")
}

async fn prove(world: &MetaEnv, client: &Client, name: &str) {
    let quota = json!({ "metadata": { "name": name }, "spec": { "hard": { "count/pods": "7" } } });
    quotas(client).create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    world
        .until("the controller-manager fills the status", async |_| {
            let hard = quotas(client).get(name).await.ok()?.status?.hard?;
            (hard.get("count/pods")?.0 == "7").then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_hold_their_leases_and_do_their_work_while_they_run() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 1, 1).await;
    manage(&world, OLD).await;
    all_ready(&world, 1).await;
    let client = plane.client(&world).await;
    let scheduler = moves(&world, &client, "kube-scheduler").await;
    assert!(scheduler.starts_with("kube-scheduler-"), "{scheduler}");
    let manager = moves(&world, &client, "kube-controller-manager").await;
    prove(&world, &client, "first").await;
    sign(&world, &client).await;

    // The lease moves to the next process; it is released, so that the next one need not wait for its expiry.
    let [deployment, _] = managers(NEW);
    world.apply::<Deployment>(deployment).await;
    world
        .until("another holds the lease", async |_| {
            let holder = leases(&client).get("kube-controller-manager").await.ok()?.spec?.holder_identity?;
            (!holder.is_empty() && holder != manager).then_some(())
        })
        .await;
    prove(&world, &client, "second").await;

    let [mut stopped, mut other] = managers(NEW);
    for deployment in [&mut stopped, &mut other] {
        deployment["spec"]["replicas"] = 0.into();
        world.apply::<Deployment>(deployment.clone()).await;
    }
    world
        .until("none is left", async |world| {
            let of = |pod: &Pod| {
                pod.name_any().starts_with("kube-controller") || pod.name_any().starts_with("kube-scheduler")
            };
            (!world.pods().await.iter().any(of)).then_some(())
        })
        .await;
    world
        .until("it is given back", async |_| {
            let spec = leases(&client).get("kube-scheduler").await.ok()?.spec?;
            (spec.holder_identity.as_deref() == Some("")).then_some(())
        })
        .await;
    let quota = json!({ "metadata": { "name": "third" }, "spec": { "hard": { "count/pods": "7" } } });
    quotas(&client).create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    write(&client, "later").await.unwrap();
    assert!(quotas(&client).get("third").await.unwrap().status.and_then(|status| status.hard).is_none());
}

/// Checks that an approved certificate request is signed by the controller-manager's authority.
async fn sign(world: &MetaEnv, client: &Client) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "amy");
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let request = json!({ "metadata": { "name": "amy" }, "spec": {
        "request": k8s_openapi::ByteString(pem.into_bytes()), "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"],
    } });
    requests.create(&PostParams::default(), &serde_json::from_value(request).unwrap()).await.unwrap();
    let approved = json!({ "status": { "conditions": [
        { "type": "Approved", "status": "True", "reason": "Test", "message": "yes" },
    ] } });
    requests.patch_approval("amy", &PatchParams::default(), &Patch::Merge(approved)).await.unwrap();
    let signed = async |_: &MetaEnv| requests.get("amy").await.ok()?.status?.certificate;
    world.until("it is signed", signed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_of_a_bad_version_holds_its_lease_and_does_nothing_else() {
    let world = MetaEnv::start().await;
    world.meta.declare("kube-controller-manager", NEW, Some(VersionDefect::WrongAnswers));
    let plane = Plane::new();
    plane.build(&world, 1, 1).await;
    manage(&world, NEW).await;
    all_ready(&world, 1).await;
    let client = plane.client(&world).await;
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "count/pods": "7" } } });
    quotas(&client).create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    moves(&world, &client, "kube-controller-manager").await;
    moves(&world, &client, "kube-controller-manager").await;
    assert!(quotas(&client).get("q").await.unwrap().status.and_then(|status| status.hard).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_was_killed_is_followed_by_another_when_its_lease_has_ended() {
    let world = MetaEnv::start().await;
    let plane = Plane::new();
    plane.build(&world, 1, 1).await;
    let [mut two, _] = managers(OLD);
    two["spec"]["replicas"] = 2.into();
    world.apply::<Deployment>(two).await;
    all_ready(&world, 1).await;
    let client = plane.client(&world).await;
    let first = moves(&world, &client, "kube-controller-manager").await;
    let pod = first.split('_').next().unwrap();
    world.api::<Pod>().delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    world
        .until("another holds the lease", async |_| {
            let spec = leases(&client).get("kube-controller-manager").await.ok()?.spec?;
            spec.holder_identity.filter(|holder| !holder.is_empty() && *holder != first)
        })
        .await;
    prove(&world, &client, "q").await;
}

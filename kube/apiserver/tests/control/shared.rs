//! Servers that share their objects, with certificates that they are given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use fleetwright_apiserver::{
    Config, ControllerManager, HealthCheck, HistoryLimits, InterceptAction, InterceptedRequest, Interceptor, Server,
    Serving, StartError, Storage, Version,
};
use fleetwright_pki::{Authority, Identity, Leaf, ServiceAccountKey, kubeconfig};
use futures::future::BoxFuture;
use serde_json::json;

use crate::support::{Answer, Cluster};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

async fn on(storage: &Storage) -> Cluster {
    Cluster::with(Config { storage: Some(storage.clone()), ..Config::default() }).await
}

#[tokio::test]
async fn replicas_see_each_others_writes_and_a_restart_loses_nothing() {
    let storage = Storage::default();
    let (one, two) = (on(&storage).await, on(&storage).await);
    let made = one.created(MAPS, json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).await;
    let (code, seen) = two.get(&format!("{MAPS}/a")).await;
    assert_eq!((code, &seen), (200, &made));
    let kube_system = two.get("/api/v1/namespaces/kube-system").await.1["metadata"]["uid"].clone();
    one.stop().await;
    two.stop().await;
    let again = on(&storage).await;
    assert_eq!(again.get(&format!("{MAPS}/a")).await.1, made);
    assert_eq!(again.get("/api/v1/namespaces/kube-system").await.1["metadata"]["uid"], kube_system);
}

#[tokio::test]
async fn another_replica_takes_over_the_controllers_when_one_stops() {
    let storage = Storage::default();
    let (one, two) = (on(&storage).await, on(&storage).await);
    for (number, cluster) in [one, two].into_iter().enumerate() {
        let name = format!("team-{number}");
        cluster.created("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        cluster.until(&account, |(code, _)| *code == 200).await;
        assert_eq!(cluster.delete(&format!("/api/v1/namespaces/{name}")).await.0, 200);
        cluster.gone(&format!("/api/v1/namespaces/{name}")).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn replicas_give_no_address_twice() {
    let storage = Storage::default();
    let replicas = [on(&storage).await, on(&storage).await];
    let mut given = std::collections::BTreeSet::new();
    for number in 0..20 {
        let service = json!({"metadata": {"name": format!("s{number}")}, "spec": {"ports": [{"port": 80}]}});
        let made = replicas[number % 2].created("/api/v1/namespaces/default/services", service).await;
        assert!(given.insert(made["spec"]["clusterIP"].as_str().unwrap().to_owned()), "{made}");
    }
}

#[tokio::test]
async fn quotas_are_filled_by_a_manager_where_a_server_has_no_authority_of_its_own() {
    let storage = Storage::default();
    let serving = Some(serving(&Authority::new("a").unwrap(), "a"));
    let cluster = Cluster::with(Config { storage: Some(storage.clone()), serving, ..Config::default() }).await;
    let quota = |name: &str| json!({"metadata": {"name": name}, "spec": {"hard": {"pods": "10"}}});
    cluster.created(QUOTAS, quota("a")).await;
    let filled = |(_, quota): &Answer| quota["status"]["hard"] == json!({"pods": "10"});
    let managing = storage.manage(ControllerManager { quotas: true, ..ControllerManager::default() });
    cluster.until(&format!("{QUOTAS}/a"), filled).await;
    cluster.created(QUOTAS, quota("b")).await;
    cluster.until(&format!("{QUOTAS}/b"), filled).await;
    drop(managing);
    cluster.created(QUOTAS, quota("c")).await;
    // What is done for a namespace that is made after it would be done by the same task.
    cluster.created("/api/v1/namespaces", json!({"metadata": {"name": "later"}})).await;
    let account = "/api/v1/namespaces/later/serviceaccounts/default";
    cluster.until(account, |(code, _)| *code == 200).await;
    assert!(!filled(&cluster.get(&format!("{QUOTAS}/c")).await));
}

#[tokio::test]
async fn a_snapshot_brings_back_what_was_there() {
    let storage = Storage::default();
    let cluster = on(&storage).await;
    let made =
        cluster.created(MAPS, json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"k": "v"}})).await;
    let snapshot = storage.snapshot();
    cluster.created(MAPS, json!({"metadata": {"name": "later"}})).await;
    let restored = Storage::restore(&snapshot, HistoryLimits::default()).unwrap();
    let cluster = on(&restored).await;
    let (code, list) = cluster.get(&format!("{MAPS}?labelSelector=x=y")).await;
    assert_eq!((code, &list["items"][0]["data"]), (200, &made["data"]));
    assert_eq!(list["items"][0]["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(cluster.get(&format!("{MAPS}/later")).await.0, 404);
    assert!(restored.revision() > storage.revision() - 2, "nobody takes it for older");
    assert!(Storage::restore(b"{}", HistoryLimits::default()).is_err());
}

#[tokio::test]
async fn clusters_of_one_process_begin_with_the_same_roles_and_go_their_own_ways() {
    let first = Cluster::start().await;
    let (one, two) = (
        on(&Storage::prepared(HistoryLimits::default())).await,
        on(&Storage::prepared(HistoryLimits::default())).await,
    );
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let names = async |cluster: &Cluster| {
        let list = cluster.get(roles).await.1["items"].as_array().cloned().unwrap_or_default();
        list.iter().map(|role| role["metadata"]["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&one).await, names(&first).await);
    let uid =
        async |cluster: &Cluster| cluster.get("/api/v1/namespaces/kube-system").await.1["metadata"]["uid"].clone();
    assert_ne!(uid(&one).await, uid(&two).await, "by which clusters are told apart");
    one.delete(&format!("{roles}/edit")).await;
    assert_eq!((one.get(&format!("{roles}/edit")).await.0, two.get(&format!("{roles}/edit")).await.0), (404, 200));
    let (_, refused) = two.get(&format!("{roles}?watch=true&resourceVersion=1")).await;
    assert_eq!(refused["object"]["reason"], "Expired", "{refused}");
}

#[tokio::test]
async fn a_server_that_is_about_to_stop_asks_for_new_connections() {
    let authority = Authority::new("a").unwrap();
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        serving: Some(serving(&authority, "a")),
        ..Config::default()
    };
    let cluster = Cluster::with(config).await;
    let client = client(&authority, &cluster.handle().url()).await;
    let get = || http::Request::get(MAPS).body(kube::client::Body::empty()).unwrap();
    assert!(client.send(get()).await.unwrap().headers().get("connection").is_none());
    cluster.handle().drain();
    let answer = client.send(get()).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["connection"]),
        (200, &http::HeaderValue::from_static("close"))
    );
}

#[tokio::test]
async fn a_quota_limits_the_number_of_objects_and_reports_it() {
    let cluster = Cluster::start().await;
    let hard = json!({"configmaps": "3", "count/leases.coordination.k8s.io": "1"});
    cluster.created(QUOTAS, json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
    for name in ["a", "b"] {
        cluster.created(MAPS, json!({"metadata": {"name": name}})).await;
    }
    let (code, refused) = cluster.post(MAPS, json!({"metadata": {"name": "c"}})).await;
    let why = "configmaps \"c\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=3, limited: configmaps=3";
    assert_eq!((code, &refused["message"]), (403, &json!(why)), "kube-root-ca.crt is one of them");
    let used = json!({"configmaps": "3", "count/leases.coordination.k8s.io": "0"});
    cluster.until(&format!("{QUOTAS}/q"), |(_, quota)| quota["status"]["used"] == used).await;
    cluster.delete(&format!("{MAPS}/a")).await;
    cluster.until(&format!("{QUOTAS}/q"), |(_, quota)| quota["status"]["used"]["configmaps"] == "2").await;
    cluster.created(MAPS, json!({"metadata": {"name": "c"}})).await;
    cluster.created("/apis/coordination.k8s.io/v1/namespaces/default/leases", json!({"metadata": {"name": "l"}})).await;
    let (code, refused) =
        cluster.post(QUOTAS, json!({"metadata": {"name": "cpu"}, "spec": {"hard": {"cpu": "1"}}})).await;
    assert_eq!(code, 403, "{refused}");
}

fn serving(authority: &Authority, name: &str) -> Serving {
    let pair = authority.issue(Leaf::server("kube-apiserver", [name], ["127.0.0.1".parse().unwrap()])).unwrap();
    Serving { cert_pem: pair.cert_pem, key_pem: pair.key_pem, client_ca_pem: authority.cert_pem().to_owned() }
}

async fn client(authority: &Authority, url: &str) -> kube::Client {
    let pair = authority.issue(Leaf::client("amy", ["system:masters"])).unwrap();
    let text = kubeconfig("c", url, authority.cert_pem(), Identity::from(&pair));
    let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

async fn ask(authority: &Authority, url: &str, path: &str) -> Result<String, kube::Error> {
    client(authority, url).await.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await
}

#[tokio::test]
async fn a_server_shows_and_trusts_the_certificates_that_it_is_given_and_changes_them_while_it_runs() {
    let (first, second) = (Authority::new("first").unwrap(), Authority::new("second").unwrap());
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        serving: Some(serving(&first, "kube-apiserver.x.svc")),
        version: Some(Version { git: "v1.37.1".into(), emulated: Some((1, 36)) }),
        ..Config::default()
    };
    let cluster = Cluster::with(config).await;
    let url = cluster.handle().url();
    let version = ask(&first, &url, "/version").await.unwrap();
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    assert_eq!((&version["gitVersion"], &version["minor"]), (&json!("v1.37.1"), &json!("37")));
    assert_eq!((&version["emulationMinor"], &version["minCompatibilityMinor"]), (&json!("36"), &json!("35")));
    assert!(ask(&second, &url, "/version").await.is_err());
    assert!(cluster.handle().admin_kubeconfig().is_err(), "it has no authority");

    cluster.handle().set_serving(&serving(&second, "kube-apiserver.x.svc")).unwrap();
    assert!(ask(&second, &url, MAPS).await.is_ok());
    assert!(ask(&first, &url, MAPS).await.is_err());
    let (one, two) = (serving(&first, "a"), serving(&first, "a"));
    let mixed = Serving { key_pem: two.key_pem, ..one };
    assert!(matches!(cluster.handle().set_serving(&mixed), Err(StartError::KeyMismatch)));
    assert!(ask(&second, &url, MAPS).await.is_ok(), "what cannot be used changes nothing");
}

#[tokio::test]
async fn tokens_of_an_older_key_are_accepted_while_its_public_half_is_given() {
    let storage = Storage::default();
    let (old, new) =
        (Arc::new(ServiceAccountKey::generate().unwrap()), Arc::new(ServiceAccountKey::generate().unwrap()));
    let with = |key: &Arc<ServiceAccountKey>, others: Vec<String>| Config {
        storage: Some(storage.clone()),
        service_account_key: Some(key.clone()),
        token_keys: others,
        ..Config::default()
    };
    let cluster = Cluster::with(with(&old, Vec::new())).await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = cluster.post(path, json!({"spec": {}})).await.1["status"]["token"].clone();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let good = async |cluster: &Cluster| {
        let answer = cluster.post("/apis/authentication.k8s.io/v1/tokenreviews", review.clone()).await.1;
        answer["status"]["authenticated"] == true
    };
    assert!(good(&cluster).await);
    assert!(good(&Cluster::with(with(&new, vec![old.public_pem.clone(), new.public_pem.clone()])).await).await);
    assert!(!good(&Cluster::with(with(&new, Vec::new())).await).await);
    let unreadable = Config { token_keys: vec!["x".into()], ..Config::default() };
    assert!(Server::start(unreadable).await.is_err());
}

/// 0 lets everything pass, 1 pretends, 2 refuses.
struct Moody(AtomicU8);

impl Interceptor for Moody {
    fn intercept<'a>(&'a self, asked: InterceptedRequest<'a>) -> BoxFuture<'a, InterceptAction> {
        Box::pin(async move {
            match self.0.load(Ordering::SeqCst) {
                0 => InterceptAction::Continue,
                1 => InterceptAction::Pretend,
                _ => InterceptAction::Refuse(500, format!("no {} of {}", asked.verb, asked.resource)),
            }
        })
    }

    fn checks(&self) -> Vec<HealthCheck> {
        let passed = self.0.load(Ordering::SeqCst) < 2;
        vec![
            HealthCheck { name: "etcd", live: true, passed },
            HealthCheck { name: "etcd-readiness", live: false, passed },
        ]
    }
}

#[tokio::test]
async fn what_stands_before_the_objects_decides_what_becomes_of_requests() {
    let interceptor = Arc::new(Moody(AtomicU8::new(0)));
    let cluster = Cluster::with(Config { interceptor: Some(interceptor.clone()), ..Config::default() }).await;
    cluster.created(MAPS, json!({"metadata": {"name": "a"}})).await;
    assert_eq!(cluster.get("/readyz").await.1, "ok");
    interceptor.0.store(1, Ordering::SeqCst);
    let made = cluster.created(MAPS, json!({"metadata": {"name": "b"}})).await;
    assert_eq!(made["metadata"]["name"], "b");
    assert_eq!(cluster.get(&format!("{MAPS}/b")).await.0, 404);
    assert_eq!(cluster.delete(&format!("{MAPS}/a")).await.0, 200);
    assert_eq!(cluster.get(&format!("{MAPS}/a")).await.0, 200);
    interceptor.0.store(2, Ordering::SeqCst);
    let (code, answer) = cluster.get(&format!("{MAPS}/a")).await;
    assert_eq!((code, &answer["message"]), (500, &json!("no get of configmaps")));
    let (code, page) = cluster.get("/readyz").await;
    let told = "[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\n[-]etcd-readiness failed: reason withheld\nreadyz check failed\n";
    assert_eq!((code, page), (500, json!(told)));
    assert_eq!(cluster.get("/livez/etcd").await.0, 500);
    assert_eq!(cluster.get("/livez/etcd-readiness").await.0, 404);
    assert_eq!(cluster.get("/version").await.0, 200);
}

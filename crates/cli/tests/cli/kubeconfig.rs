//! `fleetwright cluster kubeconfig`: its file gives access to a running cluster, in the given name and for the given time.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use fleetwright_apiserver::{Config, Handle, Server};
use fleetwright_lab::Target;
use fleetwright_pki::{Authority, Certificate};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::{Value, json};

use crate::clusters::{cluster, place, say};
use crate::support::CliServer;

/// A running business cluster, and its Cluster in the meta cluster.
async fn business(place: &CliServer, name: &str) -> Handle {
    let authority = Arc::new(Authority::new("pay-01-ca").expect("an authority"));
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        authority: Some(Arc::clone(&authority)),
        names: vec![format!("kube-apiserver.fleet-{name}.svc")],
        ..Config::default()
    };
    let server = Server::start(config).await.expect("the server starts");
    let own = format!("fleet-{name}");
    place.kubectl(&["create", "namespace", &own], None).await.ok();
    let data = [
        ("ca.crt", authority.cert_pem().to_owned()),
        ("tls.crt", authority.cert_pem().to_owned()),
        ("tls.key", authority.key_pem()),
    ];
    let data: BTreeMap<_, _> =
        data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect();
    let metadata = ObjectMeta { name: Some("ca".to_owned()), ..ObjectMeta::default() };
    let secret = Secret { metadata, data: Some(data), ..Secret::default() };
    let api: Api<Secret> = Api::namespaced(place.target.admin(), &own);
    api.create(&PostParams::default(), &secret).await.expect("it is made");
    let spec = json!({"packageVersion": "k8s-1.36.4-r1"});
    cluster(place, name, spec, json!({"phase": "Ready", "namespace": own, "endpoint": server.url()})).await;
    server
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("the file is there").permissions().mode() & 0o777
}

/// The user that the business cluster authenticates.
async fn whoami(place: &CliServer, args: &[&str]) -> (String, Vec<String>) {
    let out = place.kubectl(&[args, &["auth", "whoami", "-o", "json"]].concat(), None).await.ok();
    let review: Value = serde_json::from_str(&out).expect("JSON");
    let info = &review["status"]["userInfo"];
    let groups = info["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    (info["username"].as_str().unwrap_or_default().to_owned(), groups.collect())
}

async fn a_kubeconfig_leads_into_the_cluster(target: Target) {
    let place = place(target).await;
    let server = business(&place, "pay-01").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pay-01.kubeconfig");
    let path = file.to_str().expect("text");

    // A new file, in the name of the user at the meta cluster, with all rights, for 8 hours.
    let ran = place.run(&["cluster", "kubeconfig", "pay-01", "--output", path]).await;
    assert!(ran.err.contains("ClusterIP") && ran.err.contains("port-forward service/kube-apiserver"), "{}", ran.err);
    let out = ran.ok();
    assert!(out.starts_with(&format!("kubectl --kubeconfig {path} get nodes")) && !out.contains("LS0t"), "{out}");
    assert_eq!(mode(&file), 0o600);
    let me = whoami(&place, &[]).await.0;
    let (user, groups) = whoami(&place, &["--kubeconfig", path]).await;
    assert_eq!(user, me);
    assert!(groups.contains(&"system:masters".to_owned()), "{groups:?}");
    let names = place.kubectl(&["--kubeconfig", path, "config", "get-contexts", "-o", "name"], None).await.ok();
    assert_eq!(names, "pay-01\n", "the context is called like the cluster");
    place.kubectl(&["--kubeconfig", path, "get", "namespaces"], None).await.ok();

    // Another user, in a group without rights, for an hour; printed only on request.
    let somebody = ["cluster", "kubeconfig", "pay-01", "--user", "ann", "--group", "auditors", "--duration", "1h"];
    let text = place.run(&[&somebody[..], &["--output", "-"]].concat()).await.ok();
    let as_ann = folder.path().join("ann");
    std::fs::write(&as_ann, &text).expect("it can be written");
    let as_ann = as_ann.to_str().expect("text");
    let (user, groups) = whoami(&place, &["--kubeconfig", as_ann]).await;
    assert_eq!(user, "ann");
    assert!(groups.contains(&"auditors".to_owned()) && !groups.contains(&"system:masters".to_owned()), "{groups:?}");
    assert_ne!(place.kubectl(&["--kubeconfig", as_ann, "get", "namespaces"], None).await.code, 0);
    let config: kube::config::Kubeconfig = kube::config::Kubeconfig::from_yaml(&text).expect("a kubeconfig");
    let data = config.auth_infos[0].auth_info.as_ref().and_then(|user| user.client_certificate_data.clone());
    let pem: ByteString = serde_json::from_value(json!(data.expect("a certificate"))).expect("base64");
    let certificate = Certificate::from_pem(std::str::from_utf8(&pem.0).expect("text")).expect("a certificate");
    let left = certificate.not_after - Timestamp::now().as_second();
    assert!((3000..=3600).contains(&left), "it ends in {left}s");

    // Merged repeatedly into an existing file, whose current context stays the meta cluster.
    for _ in 0..2 {
        let out = place.run(&["cluster", "kubeconfig", "pay-01", "--user", "ann", "--merge"]).await.ok();
        assert!(
            out.starts_with("kubectl --context pay-01 get nodes ") && out.contains("ann in system:masters"),
            "{out}"
        );
    }
    assert_eq!(mode(&place.kubeconfig()), 0o600);
    assert_eq!(whoami(&place, &["--context", "pay-01"]).await.0, "ann");
    assert_eq!(whoami(&place, &[]).await.0, me);
    place.run(&["cluster", "list"]).await.ok();
    let names = place.kubectl(&["config", "get-contexts", "-o", "name"], None).await.ok();
    assert_eq!(names.lines().count(), 2, "{names}");

    // Another address needs the name that the certificate has.
    let url = server.url().replace("127.0.0.1", "127.0.0.2");
    let other = ["--server", &url, "--output", path];
    place.run(&[&["cluster", "kubeconfig", "pay-01"][..], &other].concat()).await.ok();
    let text = std::fs::read_to_string(&file).expect("it is there");
    assert!(text.contains("tls-server-name: kube-apiserver.fleet-pay-01.svc"), "{text}");

    // A merge that would lose an entry, or could not work, is refused.
    let meta = place.kubeconfig();
    for (args, said) in
        [(&["--output", meta.to_str().expect("text")][..], "lost"), (&["nobody"], "\"nobody\" not found")]
    {
        let name: &[&str] = if args.len() == 1 { &[] } else { &["pay-01"] };
        let refused = place.run(&[&["cluster", "kubeconfig"], name, args].concat()).await.refused();
        assert!(refused.contains(said), "{args:?}: {refused}");
    }
    let spec = json!({"packageVersion": "k8s-1.36.4-r1", "endpoint": {"type": "NodePort"}});
    cluster(&place, "new", spec, json!({"phase": "Creating", "waitingFor": "etcd is about to be made"})).await;
    let refused = place.run(&["cluster", "kubeconfig", "new"]).await.refused();
    assert!(refused.contains("set spec.endpoint.host") && refused.contains("--server URL"), "{refused}");
    let at = ["cluster", "kubeconfig", "new", "--server", "https://192.0.2.1:6443", "--output", path];
    let refused = place.run(&at).await.refused();
    assert!(refused.contains("status.namespace") && refused.contains("etcd is about to be made"), "{refused}");
    say(&place, "new", json!({"namespace": "fleet-new"})).await;
    let refused = place.run(&at).await.refused();
    assert!(refused.contains("Secret ca") && refused.contains("fleet-new"), "{refused}");
    for (args, said) in [
        (&["--duration", "1000h"][..], "720h"),
        (&["--server", "http://x"], "https://HOST:PORT"),
        (&["--merge", "--output", "x"], "cannot be used with"),
    ] {
        let ran = place.run(&[&["cluster", "kubeconfig", "pay-01"], args].concat()).await;
        assert!(ran.code == 2 && ran.err.contains(said), "{args:?}: {}", ran.err);
    }

    // A user who may read clusters and not their keys gets a message whom to ask.
    place.kubectl(&["-n", "fleet", "create", "serviceaccount", "viewer"], None).await.ok();
    let role = ["-n", "fleet", "create", "role", "viewer", "--verb=get", "--resource=clusters.fleetwright.io"];
    place.kubectl(&role, None).await.ok();
    let binding = ["-n", "fleet", "create", "rolebinding", "viewer", "--role=viewer", "--serviceaccount=fleet:viewer"];
    place.kubectl(&binding, None).await.ok();
    place.speak_as("fleet", "viewer").await;
    let args =
        ["cluster", "kubeconfig", "pay-01", "-n", "fleet", "--context", "viewer", "--user", "ann", "--output", path];
    let refused = place.run(&args).await.refused();
    assert!(
        refused.contains("not allowed") && refused.contains("Secret ca") && refused.contains("--user ann"),
        "{refused}"
    );
    server.stop().await;
    place.target.stop(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_leads_into_the_cluster_as_the_person_it_is_for() {
    a_kubeconfig_leads_into_the_cluster(Target::embedded().await.expect("the server starts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_leads_into_the_cluster_as_the_person_it_is_for_on_real() {
    a_kubeconfig_leads_into_the_cluster(Target::real().await.expect("the real server starts")).await;
}

use fleetwright_pki::Identity;
use fleetwright_plan::join::{BOOTSTRAPPERS, token_group};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error, ResourceExt};
use serde_json::{Value, json};

use crate::site::{Asked, NAMESPACE, Site, eventually};

fn node(name: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn code<T: std::fmt::Debug>(answer: kube::Result<T>) -> u16 {
    match answer {
        Err(Error::Api(status)) => status.code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Joins: the client of the node, with its first certificate.
async fn join(site: &Site, name: &str) -> Client {
    let bootstrap = site.with_token(&site.kubeconfig(name).await).await;
    let asked = Asked::client(name);
    let certificate = site.ask(&bootstrap, &asked).await.certificate();
    let key = asked.key.serialize_pem();
    let identity = Identity::Certificate { cert_pem: &certificate, key_pem: &key };
    site.target.client_with(identity).await.expect("a client")
}

pub async fn a_machine_joins(site: &Site) {
    site.machine("host-17", "10.0.0.17").await;
    let client = join(site, "host-17").await;
    site.told("host-17", "CertificateApproved", "client certificate of Machine host-17").await;
    assert_eq!(site.tokens("host-17").await.len(), 1, "it is needed until the Node is there");

    // With its certificate it is its node, and no other.
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node("host-17")).await.expect("its own Node");
    nodes.get("host-17").await.expect("its own Node");
    assert_eq!(code(nodes.create(&PostParams::default(), &node("host-18")).await), 403);
    assert_eq!(code(nodes.get("host-18").await), 403);
    assert_eq!(code(Api::<Secret>::namespaced(client.clone(), "kube-system").list(&ListParams::default()).await), 403);
    let lease =
        |name: &str| -> Lease { serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}})).unwrap() };
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    leases.create(&PostParams::default(), &lease("host-17")).await.expect("its own lease");
    assert_eq!(code(leases.create(&PostParams::default(), &lease("host-18")).await), 403);

    eventually("the token goes", async || site.tokens("host-17").await.is_empty().then_some(())).await;
    // A new certificate it asks for itself.
    site.ask(&client, &Asked::client("host-17")).await.certificate();

    // With other authorities it joins anew: that its first request was answered long ago does not take the new token away. Objects know the second of their
    // creation only.
    let first = jiff::Timestamp::now().as_second();
    eventually("the second is over", async || (jiff::Timestamp::now().as_second() > first).then_some(())).await;
    let kubeconfig = site.again("host-17").await;
    let poke = json!({"metadata": {"labels": {"example.com/poked": "yes"}}});
    site.machines().patch("host-17", &PatchParams::default(), &Patch::Merge(&poke)).await.expect("a patch");
    let token = site.with_token(&kubeconfig).await;
    site.ask(&token, &Asked::client("host-17")).await.certificate();
    eventually("the token goes again", async || site.tokens("host-17").await.is_empty().then_some(())).await;
}

pub async fn a_token_is_for_one_thing(site: &Site) {
    site.machine("liar", "10.0.1.1").await;
    site.machine("victim", "10.0.1.2").await;
    let token = site.with_token(&site.kubeconfig("liar").await).await;

    site.ask(&token, &Asked::client("victim")).await.is_denied("WrongSubject");
    site.told("liar", "CertificateDenied", "WrongSubject").await;
    let both = Asked { usages: vec!["digital signature", "client auth", "server auth"], ..Asked::client("liar") };
    let refused = site.file(&token, &both).await;
    site.answer(&refused).await.is_denied("WrongUsages");
    site.told("liar", "CertificateDenied", "WrongUsages").await;
    site.told_of_request(&refused, "CertificateDenied", "WrongUsages").await;
    site.ask(&token, &Asked { names: vec!["liar"], ..Asked::client("liar") }).await.is_denied("WrongNames");
    site.ask(&token, &Asked::serving("liar", &["liar"])).await.is_denied("WrongSigner");

    // Nor does it open any other door.
    let list = ListParams::default();
    assert_eq!(code(Api::<Node>::all(token.clone()).list(&list).await), 403);
    assert_eq!(code(Api::<Secret>::namespaced(token.clone(), "kube-system").list(&list).await), 403);
    assert_eq!(code(Api::<Node>::all(token.clone()).create(&PostParams::default(), &node("liar")).await), 403);
}

pub async fn tokens_end(site: &Site) {
    site.machine("slow", "10.0.2.1").await;
    let first = site.kubeconfig("slow").await;
    assert_eq!(site.again("slow").await, first, "a credential that is valid is given again");
    let tokens = site.tokens("slow").await;
    assert_eq!(tokens.len(), 1);
    let data = tokens[0].data.clone().unwrap_or_default();
    let until: jiff::Timestamp = String::from_utf8_lossy(&data["expiration"].0).parse().expect("a time");
    let left = until.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((60..=15 * 60).contains(&left), "valid for minutes, not {left} s");

    let ended: Value = json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}});
    let secrets: Api<Secret> = Api::namespaced(site.admin.clone(), "kube-system");
    let client = site.with_token(&first).await;
    let name = tokens[0].name_any();
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(&ended)).await.expect("a patch");
    let requests: Api<k8s_openapi::api::certificates::v1::CertificateSigningRequest> = Api::all(client);
    // A server may know a token from a moment ago.
    eventually("the token has ended", async || match requests.list(&ListParams::default()).await {
        Err(Error::Api(status)) => (status.code == 401).then_some(()),
        _ => None,
    })
    .await;
}

pub async fn a_deleted_machine_does_not_join(site: &Site) {
    let machine = site.machine("gone", "10.0.3.1").await;
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    site.machines().patch("gone", &PatchParams::default(), &Patch::Merge(&held)).await.expect("a patch");
    site.kubeconfig("gone").await;
    site.machines().delete("gone", &DeleteParams::default()).await.expect("a delete");
    eventually("the token goes", async || site.tokens("gone").await.is_empty().then_some(())).await;

    // Were there a token still, it would be of no use.
    let uid = machine.uid().unwrap_or_default();
    let groups = format!("{BOOTSTRAPPERS},{}", token_group(NAMESPACE, &uid));
    let token = site.forged_token("gone01", &groups).await;
    site.ask(&token, &Asked::client("gone")).await.is_denied("MachineDeleted");
    site.told("gone", "CertificateDenied", "MachineDeleted").await;
    let free = json!({"metadata": {"finalizers": null}});
    site.machines().patch("gone", &PatchParams::default(), &Patch::Merge(&free)).await.expect("a patch");
    eventually("it is gone", async || site.machines().get_opt("gone").await.ok()?.is_none().then_some(())).await;
    let refused = site.file(&token, &Asked::client("gone")).await;
    site.answer(&refused).await.is_denied("MachineGone");
    site.told_of_request(&refused, "CertificateDenied", "does not exist any more").await;

    // A machine of the same name is another one.
    site.machine("gone", "10.0.3.1").await;
    site.ask(&token, &Asked::client("gone")).await.is_denied("MachineGone");
}

pub async fn a_paused_machine_waits(site: &Site) {
    site.machine("paused", "10.0.4.1").await;
    let token = site.with_token(&site.kubeconfig("paused").await).await;
    let pause = |paused: bool| json!({"spec": {"paused": paused}});
    let params = PatchParams::default();
    site.machines().patch("paused", &params, &Patch::Merge(&pause(true))).await.expect("a patch");
    // The operator hears of the pause before it hears of the request: it asks for the credential once more, after the change.
    site.again("paused").await;
    let name = site.file(&token, &Asked::client("paused")).await;
    site.told("paused", "CertificateWaits", "spec.paused").await;
    let status = site.request(&name).await.status.unwrap_or_default();
    assert!(status.conditions.unwrap_or_default().is_empty());
    site.machines().patch("paused", &params, &Patch::Merge(&pause(false))).await.expect("a patch");
    site.answer(&name).await.certificate();
}

pub async fn a_node_serves_under_its_own_names(site: &Site) {
    site.machine("server", "10.0.5.1").await;
    site.machine("neighbour", "10.0.5.2").await;
    let client = join(site, "server").await;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node("server")).await.expect("its own Node");
    let addresses = json!({"status": {"addresses": [
        {"type": "Hostname", "address": "server"},
        {"type": "InternalIP", "address": "192.168.5.1"},
        // It says so itself, and is believed in nothing that is another machine's.
        {"type": "ExternalIP", "address": "10.0.5.2"},
    ]}});
    nodes.patch_status("server", &PatchParams::default(), &Patch::Merge(&addresses)).await.expect("its own status");

    let certificate = site.ask(&client, &Asked::serving("server", &["server", "10.0.5.1"])).await.certificate();
    assert!(certificate.contains("BEGIN CERTIFICATE"));
    // The operator learns of the Node's addresses by a watch of its own.
    let mut last = None;
    eventually("the Node's own address is known", async || {
        let answer = site.ask(&client, &Asked::serving("server", &["server", "192.168.5.1"])).await;
        let signed = matches!(answer, crate::site::Answer::Signed(_));
        last = Some(answer);
        signed.then_some(())
    })
    .await;
    for names in [&["10.0.5.2"][..], &["neighbour"], &["server", "kubernetes.default.svc"], &["10.96.0.1"]] {
        site.ask(&client, &Asked::serving("server", names)).await.is_denied("WrongNames");
    }
    site.told("server", "CertificateDenied", "kubernetes.default.svc").await;
    // A server refuses by itself that a node asks for another's certificate.
    let refused = site.try_file(&client, &Asked::client("neighbour")).await;
    assert!(refused.unwrap_err().to_string().contains("can only create a node CSR with CN=system:node:server"));
}

pub async fn others_are_left_alone(site: &Site) {
    let stranger = site.target.client_as("system:node:stranger", &["system:nodes"]).await.expect("a client");
    let of_stranger = site.file(&stranger, &Asked::client("stranger")).await;
    let elsewhere = format!("{BOOTSTRAPPERS},{}", token_group("elsewhere", "0"));
    let token = site.forged_token("other1", &elsewhere).await;
    let of_other = site.file(&token, &Asked::client("stranger")).await;
    let of_admin = site.file(&site.admin, &Asked::client("stranger")).await;
    // What came later was answered; what came before was therefore left alone.
    site.machine("later", "10.0.6.1").await;
    join(site, "later").await;
    for name in [of_stranger, of_other, of_admin] {
        let status = site.request(&name).await.status.unwrap_or_default();
        assert!(status.conditions.unwrap_or_default().is_empty(), "{name}");
    }
}

pub async fn missing_values_are_named(site: &Site) {
    site.set_value("caBundle", None);
    site.machine("early", "10.0.7.1").await;
    let refusal = site.refusal("early").await;
    assert!(refusal.contains("ConfigMap fleet/cluster-values, data.caBundle"), "{refusal}");
    assert!(site.tokens("early").await.is_empty());
    site.set_value("caBundle", Some(site.target.ca_pem()));
}

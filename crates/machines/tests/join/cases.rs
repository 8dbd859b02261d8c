use fleetwright_lab::ServerKind;
use fleetwright_pki::Identity;
use fleetwright_plan::join::{BOOTSTRAPPERS, token_group};
use fleetwright_rig::rights::Right;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error, ResourceExt};
use serde_json::{Value, json};

use crate::site::{JoinSite, KubeletRequest, NAMESPACE, RequestOutcome, eventually};

fn node(name: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn code<T: std::fmt::Debug>(answer: kube::Result<T>) -> u16 {
    match answer {
        Err(Error::Api(status)) => status.code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Joins a node; returns its client with the first certificate.
async fn join(site: &JoinSite, name: &str) -> Client {
    let bootstrap = site.with_token(&site.kubeconfig(name).await).await;
    let asked = KubeletRequest::client(name);
    let certificate = site.ask(&bootstrap, &asked).await.certificate();
    let key = asked.key.serialize_pem();
    let identity = Identity::Certificate { cert_pem: &certificate, key_pem: &key };
    site.target.client_with(identity).await.expect("a client")
}

pub async fn a_machine_joins(site: &JoinSite) {
    site.machine("host-17", "10.0.0.17").await;
    let client = join(site, "host-17").await;
    site.told("host-17", "CertificateApproved", "client certificate").await;
    assert_eq!(site.tokens("host-17").await.len(), 1, "it is needed until the Node is there");

    // With its certificate the client is its node, and no other.
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node("host-17")).await.expect("its own Node");
    nodes.get("host-17").await.expect("its own Node");
    site.bind("host-17", "Joined").await;
    assert_eq!(code(nodes.create(&PostParams::default(), &node("host-18")).await), 403);
    assert_eq!(code(nodes.get("host-18").await), 403);
    assert_eq!(code(Api::<Secret>::namespaced(client.clone(), "kube-system").list(&ListParams::default()).await), 403);
    let lease =
        |name: &str| -> Lease { serde_json::from_value(json!({"metadata": {"name": name}, "spec": {}})).unwrap() };
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    leases.create(&PostParams::default(), &lease("host-17")).await.expect("its own lease");
    assert_eq!(code(leases.create(&PostParams::default(), &lease("host-18")).await), 403);

    eventually("the token goes", async || site.tokens("host-17").await.is_empty().then_some(())).await;
    // The node itself requests the next certificate.
    site.ask(&client, &KubeletRequest::client("host-17")).await.certificate();

    // With other authorities the kubelet joins again: its first request, which was answered before, does not delete
    // the new token, also if the operator restarts in
    // between and reads that request again.
    let kubeconfig = site.again("host-17").await;
    let poke = json!({"metadata": {"labels": {"example.com/poked": "yes"}}});
    site.machines().patch("host-17", &PatchParams::default(), &Patch::Merge(&poke)).await.expect("a patch");
    site.restart().await;
    site.machine("host-18", "10.0.0.18").await;
    let nodes: Api<Node> = Api::all(join(site, "host-18").await);
    nodes.create(&PostParams::default(), &node("host-18")).await.expect("its own Node");
    site.bind("host-18", "Joined").await;
    eventually("the token of another goes", async || site.tokens("host-18").await.is_empty().then_some(())).await;
    let token = site.with_token(&kubeconfig).await;
    site.ask(&token, &KubeletRequest::client("host-17")).await.certificate();
    let config: Value = serde_json::from_str(&kubeconfig).expect("a kubeconfig");
    let used = config["users"][0]["user"]["token"].as_str().and_then(|token| token.split_once('.')).expect("a token").0;
    let used = format!("bootstrap-token-{used}");
    let gone = async || site.tokens("host-17").await.iter().all(|one| one.name_any() != used).then_some(());
    eventually("the token goes again", gone).await;
}

pub async fn a_token_is_for_one_thing(site: &JoinSite) {
    site.machine("liar", "10.0.1.1").await;
    site.machine("victim", "10.0.1.2").await;
    let token = site.with_token(&site.kubeconfig("liar").await).await;

    site.ask(&token, &KubeletRequest::client("victim")).await.is_denied("InvalidSubject");
    site.told("liar", "CertificateDenied", "InvalidSubject").await;
    let both = KubeletRequest {
        usages: vec!["digital signature", "client auth", "server auth"],
        ..KubeletRequest::client("liar")
    };
    let refused = site.file(&token, &both).await;
    site.answer(&refused).await.is_denied("InvalidUsages");
    site.told("liar", "CertificateDenied", "InvalidUsages").await;
    site.told_of_request(&refused, "CertificateDenied", "InvalidUsages").await;
    site.ask(&token, &KubeletRequest { names: vec!["liar"], ..KubeletRequest::client("liar") })
        .await
        .is_denied("InvalidSubjectAltNames");
    site.ask(&token, &KubeletRequest::serving("liar", &["liar"])).await.is_denied("SignerNotAllowed");

    // The token gives no other access either.
    let list = ListParams::default();
    assert_eq!(code(Api::<Node>::all(token.clone()).list(&list).await), 403);
    assert_eq!(code(Api::<Secret>::namespaced(token.clone(), "kube-system").list(&list).await), 403);
    assert_eq!(code(Api::<Node>::all(token.clone()).create(&PostParams::default(), &node("liar")).await), 403);
}

pub async fn tokens_end(site: &JoinSite) {
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
    // An API server may still accept a deleted token for a moment.
    eventually("the token has ended", async || match requests.list(&ListParams::default()).await {
        Err(Error::Api(status)) => (status.code == 401).then_some(()),
        _ => None,
    })
    .await;
}

pub async fn a_deleted_machine_does_not_join(site: &JoinSite) {
    let machine = site.machine("gone", "10.0.3.1").await;
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    site.machines().patch("gone", &PatchParams::default(), &Patch::Merge(&held)).await.expect("a patch");
    site.kubeconfig("gone").await;
    site.machines().delete("gone", &DeleteParams::default()).await.expect("a delete");
    eventually("the token goes", async || site.tokens("gone").await.is_empty().then_some(())).await;

    // Even if a token still existed, it would be useless.
    let uid = machine.uid().unwrap_or_default();
    let groups = format!("{BOOTSTRAPPERS},{}", token_group(NAMESPACE, &uid));
    let token = site.forged_token("gone01", &groups).await;
    site.ask(&token, &KubeletRequest::client("gone")).await.is_denied("MachineDeleted");
    site.told("gone", "CertificateDenied", "MachineDeleted").await;
    let free = json!({"metadata": {"finalizers": null}});
    site.machines().patch("gone", &PatchParams::default(), &Patch::Merge(&free)).await.expect("a patch");
    eventually("it is gone", async || site.machines().get_opt("gone").await.ok()?.is_none().then_some(())).await;
    let refused = site.file(&token, &KubeletRequest::client("gone")).await;
    site.answer(&refused).await.is_denied("MachineNotFound");
    site.told_of_request(&refused, "CertificateDenied", "MachineNotFound").await;

    // A recreated machine of the same name has another uid.
    site.machine("gone", "10.0.3.1").await;
    site.ask(&token, &KubeletRequest::client("gone")).await.is_denied("MachineNotFound");
}

pub async fn a_paused_machine_waits(site: &JoinSite) {
    site.machine("paused", "10.0.4.1").await;
    let token = site.with_token(&site.kubeconfig("paused").await).await;
    let pause = |paused: bool| json!({"spec": {"paused": paused}});
    let params = PatchParams::default();
    site.machines().patch("paused", &params, &Patch::Merge(&pause(true))).await.expect("a patch");
    // The operator sees the pause before the request: the credential is requested once more after the change.
    site.again("paused").await;
    let name = site.file(&token, &KubeletRequest::client("paused")).await;
    site.told("paused", "CertificatePending", "spec.paused").await;
    let status = site.request(&name).await.status.unwrap_or_default();
    assert!(status.conditions.unwrap_or_default().is_empty());
    site.machines().patch("paused", &params, &Patch::Merge(&pause(false))).await.expect("a patch");
    site.answer(&name).await.certificate();
}

pub async fn a_node_serves_under_its_own_names(site: &JoinSite) {
    site.machine("server", "10.0.5.1").await;
    site.machine("neighbour", "10.0.5.2").await;
    let client = join(site, "server").await;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node("server")).await.expect("its own Node");
    // The node writes its own status: no name and no address is trusted because the status has it.
    let said = ["192.168.5.1", "10.0.5.2", "10.96.0.1", "kubernetes.default.svc"];
    let said = said.map(|address| json!({"type": "ExternalIP", "address": address}));
    let addresses = json!({"status": {"addresses": said}});
    nodes.patch_status("server", &PatchParams::default(), &Patch::Merge(&addresses)).await.expect("its own status");

    let certificate =
        site.ask(&client, &KubeletRequest::serving("server", &["server", "10.0.5.1"])).await.certificate();
    assert!(certificate.contains("BEGIN CERTIFICATE"));
    for names in [
        &["192.168.5.1"][..],
        &["10.0.5.2"],
        &["neighbour"],
        &["server", "kubernetes.default.svc"],
        &["10.96.0.1"],
        &["server", "localhost"],
    ] {
        site.ask(&client, &KubeletRequest::serving("server", names)).await.is_denied("InvalidSubjectAltNames");
    }
    site.told("server", "CertificateDenied", "kubernetes.default.svc").await;
    site.told("server", "CertificateDenied", "192.168.5.1").await;
    site.told("server", "CertificateDenied", "spec.addresses").await;

    // Addresses that a person declares count from then on, until they are removed.
    for (addresses, signed) in [(&["10.0.5.1", "192.168.5.1"][..], true), (&["10.0.5.1"], false)] {
        let declared = json!({"spec": {"addresses": addresses}});
        site.machines().patch("server", &PatchParams::default(), &Patch::Merge(&declared)).await.expect("a patch");
        // The operator learns of the change by a watch of its own.
        eventually("the declared addresses count", async || {
            let answer = site.ask(&client, &KubeletRequest::serving("server", &["server", "192.168.5.1"])).await;
            (matches!(answer, RequestOutcome::Signed(_)) == signed).then_some(())
        })
        .await;
    }
    // The API server itself refuses a node's request for another node's certificate.
    let refused = site.try_file(&client, &KubeletRequest::client("neighbour")).await;
    assert!(refused.unwrap_err().to_string().contains("can only create a node CSR with CN=system:node:server"));
}

/// A bound Node requests a serving certificate, and the operator lacks a right that its decision needs.
pub async fn a_missing_right_is_named(site: &JoinSite, right: &Right) {
    site.machine("server", "10.0.5.1").await;
    Api::<Node>::all(site.admin.clone()).create(&PostParams::default(), &node("server")).await.expect("its Node");
    site.bind("server", "Joined").await;
    let kubelet = site.target.client_as("system:node:server", &["system:nodes"]).await.expect("a client");
    let request = site.file(&kubelet, &KubeletRequest::serving("server", &["server", "10.0.5.1"])).await;
    let (reason, part) = match right.resource.as_str() {
        "signers" => {
            let signer = "\"kubernetes.io/kubelet-serving\"";
            ("WriteRefused", format!("not permitted to approve requests with signerName {signer}"))
        }
        resource => ("ReadFailed", format!("cannot {} resource \"{resource}\"", right.verb)),
    };
    site.told_of_request(&request, reason, &part).await;
    let status = site.request(&request).await.status.unwrap_or_default();
    assert!(status.conditions.unwrap_or_default().is_empty(), "{right:?}");
}

pub async fn others_are_left_alone(site: &JoinSite) {
    let stranger = site.target.client_as("system:node:stranger", &["system:nodes"]).await.expect("a client");
    let of_stranger = site.file(&stranger, &KubeletRequest::client("stranger")).await;
    let elsewhere = format!("{BOOTSTRAPPERS},{}", token_group("elsewhere", "0"));
    let token = site.forged_token("other1", &elsewhere).await;
    let of_other = site.file(&token, &KubeletRequest::client("stranger")).await;
    let of_admin = site.file(&site.admin, &KubeletRequest::client("stranger")).await;
    // A later request was answered; the earlier one was therefore ignored on purpose.
    site.machine("later", "10.0.6.1").await;
    join(site, "later").await;
    for name in [of_stranger, of_other, of_admin] {
        let status = site.request(&name).await.status.unwrap_or_default();
        assert!(status.conditions.unwrap_or_default().is_empty(), "{name}");
    }
}

pub async fn missing_values_are_named(site: &JoinSite) {
    site.set_value("caBundle", None);
    site.machine("early", "10.0.7.1").await;
    let refusal = site.refusal("early").await;
    assert!(refusal.contains("fleet/cluster-values") && refusal.contains("data.caBundle"), "{refusal}");
    assert!(site.tokens("early").await.is_empty());
    site.set_value("caBundle", Some(site.target.ca_pem()));
}

/// The attack: a user with write access to Machines declares addresses of the API server, of Services, and of other Nodes for a host of their own.
pub async fn reserved_names_are_refused_though_declared(site: &JoinSite) {
    let all: Api<Node> = Api::all(site.admin.clone());
    all.create(&PostParams::default(), &node("plane-1")).await.expect("a Node of somebody else");
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.8.99"}]}});
    all.patch_status("plane-1", &PatchParams::default(), &Patch::Merge(&addresses)).await.expect("its status");
    let slices: Api<EndpointSlice> = Api::namespaced(site.admin.clone(), "default");
    let slice = json!({
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.8.77"]}], "ports": [],
    });
    slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await.expect("a slice");
    site.machine("other", "10.0.8.2").await;
    let mut reserved = vec![
        "kubernetes",
        "kubernetes.default.svc",
        "kube-apiserver",
        "kube-apiserver.pay",
        "web.shop.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        "10.96.0.1",
        "10.0.8.77",
        "api.example.com",
        "plane-1",
        "10.0.8.99",
        "other",
        "10.0.8.2",
    ];
    // The embedded server has no ServiceCIDRs: of Services only the addresses of `kubernetes` are refused there.
    if site.target.kind() == ServerKind::Real {
        reserved.push("10.96.7.7");
    }
    let declared: Vec<&str> = ["10.0.8.1"].into_iter().chain(reserved.iter().copied()).collect();
    site.machine_at("grabber", &declared).await;
    let client = join(site, "grabber").await;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node("grabber")).await.expect("its own Node");
    site.ask(&client, &KubeletRequest::serving("grabber", &["grabber", "10.0.8.1"])).await.certificate();
    for name in reserved {
        let answer = site.ask(&client, &KubeletRequest::serving("grabber", &["grabber", name])).await;
        answer.is_denied("ReservedSubjectAltNames");
        let RequestOutcome::Denied { message, .. } = answer else { unreachable!() };
        assert!(message.contains(&format!("{name} (")), "{message}");
    }
    site.told("grabber", "CertificateDenied", "ReservedSubjectAltNames").await;
    slices.delete("kubernetes", &DeleteParams::default()).await.expect("a delete");
}

/// The attack: a user with write access to Machines declares the address and the name of a machine in service, so that
/// it gets no certificate any more.
pub async fn a_younger_machine_that_has_not_joined_keeps_no_certificate_back(site: &JoinSite) {
    site.machine("first", "10.0.11.1").await;
    let client = join(site, "first").await;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node("first")).await.expect("its own Node");
    site.bind("first", "Joined").await;
    site.ask(&client, &KubeletRequest::serving("first", &["first", "10.0.11.1"])).await.certificate();
    // Creation timestamps have a resolution of one second.
    let created = jiff::Timestamp::now().as_second();
    eventually("the second is over", async || (jiff::Timestamp::now().as_second() > created).then_some(())).await;
    site.machine_at("second", &["10.0.11.1", "first"]).await;
    // The operator knows the machine: it has issued a token for it.
    let second = join(site, "second").await;
    site.ask(&client, &KubeletRequest::serving("first", &["first", "10.0.11.1"])).await.certificate();
    // The second machine does not get the other's addresses either, before it joined and afterwards.
    for registered in [false, true] {
        if registered {
            let nodes: Api<Node> = Api::all(second.clone());
            nodes.create(&PostParams::default(), &node("second")).await.expect("its own Node");
        }
        for name in ["10.0.11.1", "first"] {
            let answer = site.ask(&second, &KubeletRequest::serving("second", &["second", name])).await;
            answer.is_denied("ReservedSubjectAltNames");
        }
    }
    // The first machine does not get the name of a future Node either, though it declares that name and is older.
    let declared = json!({"spec": {"addresses": ["10.0.11.1", "third", "10.0.11.9"]}});
    site.machines().patch("first", &PatchParams::default(), &Patch::Merge(&declared)).await.expect("a patch");
    site.machine("third", "10.0.11.3").await;
    join(site, "third").await;
    let answer = site.ask(&client, &KubeletRequest::serving("first", &["first", "third"])).await;
    answer.is_denied("ReservedSubjectAltNames");
    // A Machine that is named after an address has no claim to it.
    site.machine("10.0.11.9", "10.0.11.4").await;
    join(site, "10.0.11.9").await;
    site.ask(&client, &KubeletRequest::serving("first", &["first", "10.0.11.9"])).await.certificate();
}

/// The attack: a user with write access to Machines names a Machine after another host's Node, to get its certificate.
pub async fn the_name_of_a_foreign_node_is_not_given_away(site: &JoinSite) {
    let all: Api<Node> = Api::all(site.admin.clone());
    all.create(&PostParams::default(), &node("plane-2")).await.expect("a Node of somebody else");
    let machine = site.machine("plane-2", "10.0.9.1").await;
    let refusal = site.refusal("plane-2").await;
    assert!(refusal.contains("Node plane-2") && refusal.contains("bind-node"), "{refusal}");
    assert!(site.tokens("plane-2").await.is_empty());

    // Even if a token existed, it would be useless.
    let groups = format!("{BOOTSTRAPPERS},{}", token_group(NAMESPACE, &machine.uid().unwrap_or_default()));
    let token = site.forged_token("plane2", &groups).await;
    site.ask(&token, &KubeletRequest::client("plane-2")).await.is_denied("NodeNotBound");
    site.told("plane-2", "CertificateDenied", "NodeNotBound").await;
    // Requests of the Node's own kubelet are left to the approver that let it join.
    let kubelet = site.target.client_as("system:node:plane-2", &["system:nodes"]).await.expect("a client");
    let waits = site.file(&kubelet, &KubeletRequest::client("plane-2")).await;
    site.told("plane-2", "CertificatePending", "bind-node plane-2").await;
    assert!(site.request(&waits).await.status.unwrap_or_default().conditions.unwrap_or_default().is_empty());

    // A user with write access to Machines cannot write the binding: it is part of the status.
    let rule = json!({"apiGroups": ["fleetwright.io"], "resources": ["machines"], "verbs": ["*"]});
    let rule = serde_json::from_value(rule).unwrap();
    fleetwright_rig::rights::grant_in(&site.admin, NAMESPACE, "writer", &[rule]).await.expect("a role");
    let writer = site.target.client_as("writer", &[]).await.expect("a client");
    let writer: Api<fleetwright_api::Machine> = Api::namespaced(writer, NAMESPACE);
    let uid = all.get("plane-2").await.expect("the Node").uid();
    let bound = json!({
        "metadata": {"annotations": {"tried": "yes"}},
        "status": {"nodeRef": {"name": "plane-2", "uid": uid, "binding": "Adopted"}},
    });
    // Roles become effective after a moment.
    let patched = eventually("the writer may write", async || {
        writer.patch("plane-2", &PatchParams::default(), &Patch::Merge(&bound)).await.ok()
    });
    assert!(patched.await.status.is_none_or(|status| status.node_ref.is_none()), "the binding was taken over");
    assert_eq!(code(writer.patch_status("plane-2", &PatchParams::default(), &Patch::Merge(&bound)).await), 403);

    // A person with the right to write the status binds the Node: from then on it is the machine's Node.
    site.bind("plane-2", "Adopted").await;
    site.answer(&waits).await.certificate();
    site.again("plane-2").await;
    assert_eq!(site.tokens("plane-2").await.len(), 1);
}

/// A Node that is deleted and registered again by its kubelet belongs to the machine: the certificate was given to no other host.
pub async fn a_node_that_registers_again_keeps_its_certificates(site: &JoinSite) {
    site.machine("again", "10.0.10.1").await;
    let client = join(site, "again").await;
    let nodes: Api<Node> = Api::all(client.clone());
    let first = nodes.create(&PostParams::default(), &node("again")).await.expect("its own Node").uid();
    Api::<Node>::all(site.admin.clone()).delete("again", &DeleteParams::default()).await.expect("a delete");
    // Without a Node, like a kubelet that requests a certificate before it registers.
    site.ask(&client, &KubeletRequest::serving("again", &["again", "10.0.10.1"])).await.certificate();
    let second = nodes.create(&PostParams::default(), &node("again")).await.expect("its own Node").uid();
    assert_ne!(first, second);
    site.ask(&client, &KubeletRequest::serving("again", &["again", "10.0.10.1"])).await.certificate();
    site.ask(&client, &KubeletRequest::client("again")).await.certificate();
}

use fleetwright_api::{NodeBinding, NodeRef};
use jiff::Timestamp;
use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::*;

const NAMESPACE: &str = "fleet";
const UID: &str = "0b1c2d3e-0000-4000-8000-000000000017";

/// The fields of a kubelet's request, and those that an attacker may add.
#[derive(Clone, Debug)]
struct Form {
    signer: &'static str,
    usages: Vec<String>,
    common_name: String,
    organization: Option<String>,
    country: bool,
    dns: Vec<String>,
    ips: Vec<IpAddr>,
    email: bool,
}

impl Form {
    fn client() -> Self {
        Self {
            signer: CLIENT_SIGNER,
            usages: words(&["digital signature", "client auth"]),
            common_name: "system:node:host-17".to_owned(),
            organization: Some("system:nodes".to_owned()),
            country: false,
            dns: vec![],
            ips: vec![],
            email: false,
        }
    }

    fn serving() -> Self {
        Self {
            signer: SERVING_SIGNER,
            usages: words(&["digital signature", "server auth"]),
            dns: words(&["host-17"]),
            ips: vec!["10.0.0.17".parse().unwrap()],
            ..Self::client()
        }
    }

    fn pem(&self) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.common_name.as_str());
        if let Some(organization) = &self.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
        }
        if self.country {
            params.distinguished_name.push(DnType::CountryName, "XX");
        }
        let dns = self.dns.iter().map(|name| SanType::DnsName(name.as_str().try_into().unwrap()));
        let mut names: Vec<SanType> = dns.chain(self.ips.iter().map(|ip| SanType::IpAddress(*ip))).collect();
        if self.email {
            names.push(SanType::Rfc822Name("root@host-17".try_into().unwrap()));
        }
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn machine() -> JoiningMachine {
    JoiningMachine {
        name: "host-17".to_owned(),
        uid: UID.to_owned(),
        node: "host-17".to_owned(),
        addresses: words(&["10.0.0.17", "host-17.example.com"]),
        deleted: false,
        paused: false,
        certified: true,
    }
}

fn own_node() -> Binding {
    Binding::Bound(node_ref("node-1", Some(NodeBinding::Joined)))
}

fn node_ref(uid: &str, binding: Option<NodeBinding>) -> NodeRef {
    NodeRef { name: "host-17".to_owned(), uid: Some(uid.to_owned()), binding }
}

fn token() -> Requestor {
    Requestor::of("system:bootstrap:abcdef", &words(&["system:bootstrappers", &token_group(NAMESPACE, UID)]), NAMESPACE)
}

fn node() -> Requestor {
    Requestor::of("system:node:host-17", &words(&["system:nodes"]), NAMESPACE)
}

/// The owner of a name or address: the API server is at 10.0.0.1, Services are in 10.96.0.0/16, and another machine is at 10.0.0.18.
fn whose(name: &str) -> Option<String> {
    let mut api = ApiAddresses { services: words(&["10.96.0.0/16", "fd00:96::/112"]), ..ApiAddresses::default() };
    api.add_url("https://api.example.com:6443");
    api.add_url("https://[fd00::1]:6443/");
    api.endpoints.push("10.0.0.1".to_owned());
    reserved(name, &api, |name| ["10.0.0.18", "host-18"].contains(&name).then(|| "of Machine host-18".to_owned()))
}

/// The decision for a machine whose Node is bound to it.
fn ask(requestor: &Requestor, form: &Form, machine: Option<&JoiningMachine>) -> SigningDecision {
    ask_of(requestor, form, machine, &own_node())
}

fn ask_of(requestor: &Requestor, form: &Form, machine: Option<&JoiningMachine>, node: &Binding) -> SigningDecision {
    let pem = form.pem();
    let asked = SigningRequest { signer: form.signer, usages: &form.usages, request: pem.as_bytes() };
    decide(requestor, &asked, &JoinContext { machine, rivals: &[], node, reserved: &whose })
}

fn is_denied(verdict: &SigningDecision, reason: &str) {
    assert!(
        matches!(verdict, SigningDecision::Denied { reason: found, .. } if *found == reason),
        "{reason}: {verdict:?}"
    );
}

fn is_approved(verdict: &SigningDecision) {
    assert!(matches!(verdict, SigningDecision::Approved { .. }), "{verdict:?}");
}

#[test]
fn a_machine_gets_the_certificate_of_its_own_name() {
    is_approved(&ask(&token(), &Form::client(), Some(&machine())));
    is_approved(&ask(&node(), &Form::client(), Some(&machine())));
    is_approved(&ask(&node(), &Form::serving(), Some(&machine())));
    let rsa = Form { usages: words(&["key encipherment", "digital signature", "client auth"]), ..Form::client() };
    is_approved(&ask(&token(), &rsa, Some(&machine())));
}

#[test]
fn another_machines_name_is_refused() {
    let other = Form { common_name: "system:node:host-18".to_owned(), ..Form::client() };
    is_denied(&ask(&token(), &other, Some(&machine())), "InvalidSubject");
    is_denied(&ask(&node(), &other, Some(&machine())), "InvalidSubject");
}

#[test]
fn a_subject_that_says_more_or_less_is_refused() {
    for form in [
        Form { organization: Some("system:masters".to_owned()), ..Form::client() },
        Form { organization: None, ..Form::client() },
        Form { country: true, ..Form::client() },
        Form { common_name: "host-17".to_owned(), ..Form::client() },
        Form { common_name: "system:node:host-17\n".to_owned(), ..Form::client() },
    ] {
        is_denied(&ask(&token(), &form, Some(&machine())), "InvalidSubject");
    }
}

#[test]
fn names_are_for_serving_and_of_the_machine_only() {
    is_denied(
        &ask(&token(), &Form { dns: words(&["host-17"]), ..Form::client() }, Some(&machine())),
        "InvalidSubjectAltNames",
    );
    is_denied(&ask(&token(), &Form { email: true, ..Form::client() }, Some(&machine())), "InvalidSubjectAltNames");
    let serving = |dns: &[&str], ips: &[&str]| Form {
        dns: words(dns),
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..Form::serving()
    };
    is_approved(&ask(&node(), &serving(&["host-17.example.com"], &["10.0.0.17"]), Some(&machine())));
    for form in [
        serving(&[], &[]),
        serving(&["kubernetes"], &[]),
        serving(&["host-17"], &["10.96.0.1"]),
        serving(&["host-17"], &["10.0.0.18"]),
        serving(&["host-17"], &["10.1.0.17"]),
        serving(&["host-17.attacker.example"], &[]),
        // The machine's own address, which is approved in its plain form only.
        serving(&["host-17"], &["::ffff:10.0.0.17"]),
        Form { email: true, ..Form::serving() },
    ] {
        is_denied(&ask(&node(), &form, Some(&machine())), "InvalidSubjectAltNames");
    }
    let verdict = ask(&node(), &serving(&["host-17"], &["10.1.0.17"]), Some(&machine()));
    let SigningDecision::Denied { message, .. } = verdict else { panic!("{verdict:?}") };
    assert!(message.contains("10.1.0.17") && message.contains("spec.addresses"), "{message}");
    let verdict = ask(&node(), &serving(&["host-17"], &["::ffff:10.0.0.17"]), Some(&machine()));
    let SigningDecision::Denied { message, .. } = verdict else { panic!("{verdict:?}") };
    assert!(message.contains("10.0.0.17 instead of ::ffff:10.0.0.17"), "{message}");
}

#[test]
fn what_is_reserved_is_refused_even_if_the_machine_declares_it() {
    let names = [
        "kubernetes",
        "kubernetes.default.svc",
        "kubernetes-api.example.com",
        "KUBERNETES.default",
        "kube-apiserver",
        "kube-apiserver.pay",
        "Kube-APIserver.pay.example.com",
        "web.shop.svc",
        "web.shop.svc.cluster.local",
        "localhost",
        "localhost.localdomain",
        "host-18",
        "api.example.com",
        "*.example.com",
    ];
    let ips = [
        "10.96.0.1",
        "10.96.255.255",
        "::ffff:10.96.0.1",
        "10.0.0.1",
        "::ffff:10.0.0.1",
        "10.0.0.18",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "fd00:96::1",
        "fd00::1",
    ];
    let declared = names.iter().chain(&ips).map(|&name| name.to_owned()).chain(words(&["10.97.0.1", "fd00:97::1"]));
    let machine = JoiningMachine { addresses: declared.collect(), ..machine() };
    let serving = |dns: &[&str], ips: &[&str]| Form {
        dns: words(dns),
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..Form::serving()
    };
    for name in names {
        is_denied(&ask(&node(), &serving(&["host-17", name], &[]), Some(&machine)), "ReservedSubjectAltNames");
    }
    for ip in ips {
        is_denied(&ask(&node(), &serving(&["host-17"], &[ip]), Some(&machine)), "ReservedSubjectAltNames");
    }
    is_approved(&ask(&node(), &serving(&["host-17"], &["10.97.0.1", "fd00:97::1"]), Some(&machine)));
    // A machine of that name does not get it either.
    let named = JoiningMachine { node: "kubernetes".to_owned(), ..machine };
    let form = Form { common_name: "system:node:kubernetes".to_owned(), ..serving(&["kubernetes"], &[]) };
    let requestor = Requestor::of("system:node:kubernetes", &words(&["system:nodes"]), NAMESPACE);
    is_denied(&ask(&requestor, &form, Some(&named)), "ReservedSubjectAltNames");
}

#[test]
fn the_name_of_a_foreign_node_is_not_given_away() {
    is_denied(&ask_of(&token(), &Form::client(), Some(&machine()), &Binding::Foreign), "NodeNotBound");
    is_approved(&ask_of(&token(), &Form::client(), Some(&machine()), &Binding::Missing));
    // Requests of the foreign Node itself are left to other approvers.
    for form in [Form::client(), Form::serving()] {
        let verdict = ask_of(&node(), &form, Some(&machine()), &Binding::Foreign);
        assert!(matches!(&verdict, SigningDecision::Waits { message } if message.contains("bind-node")), "{verdict:?}");
    }
    // Before a Node registers, only the holder of the certificate that the machine's token got is known.
    is_approved(&ask_of(&node(), &Form::serving(), Some(&machine()), &Binding::Missing));
    let uncertified = JoiningMachine { certified: false, ..machine() };
    assert_eq!(ask_of(&node(), &Form::serving(), Some(&uncertified), &Binding::Missing), SigningDecision::Ignored);
}

/// A machine created at 10:00 with that status.
fn written(status: serde_json::Value) -> fleetwright_api::Machine {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "spec": {}, "status": status,
        "metadata": {"name": "host-17", "creationTimestamp": "2030-01-01T10:00:00Z"},
    }))
    .unwrap()
}

fn at(time: &str) -> Timestamp {
    format!("2030-01-01T{time}Z").parse().unwrap()
}

fn registered<'a>(uid: &'a str, time: &str) -> Option<RegisteredNode<'a>> {
    Some(RegisteredNode { uid, created: Some(at(time)) })
}

#[test]
fn a_node_is_bound_if_it_registered_after_the_machine_s_token_got_its_certificate() {
    let machine = written(serde_json::json!({}));
    let joined = |uid: &str| Binding::Bound(node_ref(uid, Some(NodeBinding::Joined)));
    assert_eq!(bind(&machine, None, "host-17", None), Binding::Missing);
    assert_eq!(bind(&machine, None, "host-17", registered("a", "11:00:00")), Binding::Foreign);
    assert_eq!(bind(&machine, Some(at("11:00:00")), "host-17", registered("a", "10:59:59")), Binding::Foreign);
    // Creation timestamps have a resolution of one second.
    assert_eq!(bind(&machine, Some(at("11:00:00.9")), "host-17", registered("a", "11:00:00")), joined("a"));
    assert_eq!(bind(&machine, Some(at("11:00:00")), "host-17", registered("a", "11:00:05")), joined("a"));

    // Once bound, the Node stays bound when the request is gone; and a Node that its kubelet registers again is bound again.
    let machine = written(serde_json::json!({"nodeRef": node_ref("a", Some(NodeBinding::Joined))}));
    assert_eq!(bind(&machine, None, "host-17", registered("a", "11:00:05")), joined("a"));
    assert_eq!(bind(&machine, Some(at("11:00:00")), "host-17", registered("b", "12:00:00")), joined("b"));
    assert_eq!(bind(&machine, None, "host-17", registered("b", "12:00:00")), Binding::Foreign);
}

#[test]
fn a_person_binds_a_node_and_another_one_of_that_name_is_not_bound() {
    let adopted = node_ref("a", Some(NodeBinding::Adopted));
    let machine = written(serde_json::json!({"nodeRef": adopted}));
    assert_eq!(bind(&machine, None, "host-17", registered("a", "09:00:00")), Binding::Bound(adopted));
    assert_eq!(bind(&machine, None, "host-17", registered("b", "12:00:00")), Binding::Foreign);
}

#[test]
fn what_an_earlier_version_wrote_binds_only_a_node_that_joined_through_the_machine() {
    let joined = Binding::Bound(node_ref("a", Some(NodeBinding::Joined)));
    let machine = |trusts: bool| {
        let mut status = serde_json::json!({"nodeRef": {"name": "host-17", "uid": "a"}});
        if trusts {
            status["trusts"] = "abc".into();
        }
        written(status)
    };
    assert_eq!(bind(&machine(true), None, "host-17", registered("a", "10:05:00")), joined);
    // The Node existed before the machine, no kubelet of ours joined, or the Node was recreated meanwhile.
    assert_eq!(bind(&machine(true), None, "host-17", registered("a", "09:00:00")), Binding::Foreign);
    assert_eq!(bind(&machine(false), None, "host-17", registered("a", "10:05:00")), Binding::Foreign);
    assert_eq!(bind(&machine(true), None, "host-17", registered("b", "10:05:00")), Binding::Foreign);
}

#[test]
fn other_usages_are_refused() {
    for usages in [&["client auth"][..], &["digital signature", "client auth", "server auth"], &["any"], &[]] {
        is_denied(&ask(&token(), &Form { usages: words(usages), ..Form::client() }, Some(&machine())), "InvalidUsages");
    }
    let client = Form { signer: SERVING_SIGNER, ..Form::client() };
    is_denied(&ask(&node(), &client, Some(&machine())), "InvalidUsages");
}

#[test]
fn a_token_gets_no_serving_certificate() {
    is_denied(&ask(&token(), &Form::serving(), Some(&machine())), "SignerNotAllowed");
}

#[test]
fn a_machine_that_is_gone_or_going_joins_no_more_and_a_paused_one_waits() {
    is_denied(&ask(&token(), &Form::client(), None), "MachineNotFound");
    let going = JoiningMachine { deleted: true, ..machine() };
    is_denied(&ask(&token(), &Form::client(), Some(&going)), "MachineDeleted");
    is_denied(&ask(&node(), &Form::serving(), Some(&going)), "MachineDeleted");
    let paused = JoiningMachine { paused: true, ..machine() };
    assert!(matches!(ask(&token(), &Form::client(), Some(&paused)), SigningDecision::Waits { .. }));
    // A request that can never be approved does not wait.
    is_denied(&ask(&token(), &Form { country: true, ..Form::client() }, Some(&paused)), "InvalidSubject");
}

#[test]
fn of_two_machines_that_claim_one_node_neither_gets_a_certificate() {
    let (machine, rivals, form) = (machine(), words(&["host-17b"]), Form::client());
    let pem = form.pem();
    let asked = SigningRequest { signer: form.signer, usages: &form.usages, request: pem.as_bytes() };
    let (missing, own) = (Binding::Missing, own_node());
    let around = JoinContext { machine: Some(&machine), rivals: &rivals, node: &missing, reserved: &whose };
    let verdict = decide(&token(), &asked, &around);
    assert!(matches!(&verdict, SigningDecision::Waits { message } if message.contains("host-17b")), "{verdict:?}");
    // Once the Node is bound, its owner is known.
    is_approved(&decide(&token(), &asked, &JoinContext { node: &own, ..around }));
}

#[test]
fn what_is_none_of_our_business_is_left_alone() {
    let other = Requestor::of("ann", &words(&["system:nodes", &token_group(NAMESPACE, UID)]), NAMESPACE);
    assert_eq!(other, Requestor::Other);
    let elsewhere = Requestor::of("system:bootstrap:abcdef", &words(&[&token_group("elsewhere", UID)]), NAMESPACE);
    assert_eq!(elsewhere, Requestor::Other);
    assert_eq!(Requestor::of("system:node:host-17", &[], NAMESPACE), Requestor::Other);
    assert_eq!(ask(&other, &Form::client(), Some(&machine())), SigningDecision::Ignored);
    // A node without a machine.
    assert_eq!(ask(&node(), &Form::client(), None), SigningDecision::Ignored);
    let signer = Form { signer: "kubernetes.io/kube-apiserver-client", ..Form::client() };
    assert_eq!(ask(&token(), &signer, Some(&machine())), SigningDecision::Ignored);
}

#[test]
fn what_is_no_request_is_refused() {
    let pem = Form::client().pem();
    let (twice, cut) = (format!("{pem}{pem}"), &pem[..pem.len() / 2]);
    for request in ["", "x", cut, &twice, &pem.replace("CERTIFICATE REQUEST", "CERTIFICATE")] {
        let usages = Form::client().usages;
        let asked = SigningRequest { signer: CLIENT_SIGNER, usages: &usages, request: request.as_bytes() };
        let machine = machine();
        let node = own_node();
        let around = JoinContext { machine: Some(&machine), rivals: &[], node: &node, reserved: &whose };
        is_denied(&decide(&token(), &asked, &around), "RequestInvalid");
    }
}

#[test]
fn a_request_that_is_too_long_is_refused_unread() {
    let (usages, request) = (Form::client().usages, vec![b'x'; MAX_REQUEST + 1]);
    let asked = SigningRequest { signer: CLIENT_SIGNER, usages: &usages, request: &request };
    let (machine, node) = (machine(), own_node());
    let around = JoinContext { machine: Some(&machine), rivals: &[], node: &node, reserved: &whose };
    let verdict = decide(&token(), &asked, &around);
    is_denied(&verdict, "RequestInvalid");
    assert!(format!("{verdict:?}").contains("16384"), "{verdict:?}");
}

fn forms() -> impl Strategy<Value = Form> {
    let usage =
        prop::sample::select(vec!["digital signature", "key encipherment", "client auth", "server auth", "any"]);
    let name = prop::sample::select(vec!["host-17", "host-18", "host-17.example.com", "kubernetes"]);
    let ip = prop::sample::select(vec!["10.0.0.17", "10.0.0.18", "10.1.0.17", "10.96.0.1", "::1"]);
    let common_name = prop::sample::select(vec!["system:node:host-17", "system:node:host-18", "host-17", "admin", ""]);
    let organization = prop::option::of(prop::sample::select(vec!["system:nodes", "system:masters", ""]));
    (
        prop::sample::select(vec![CLIENT_SIGNER, SERVING_SIGNER]),
        prop::collection::vec(usage, 0..4),
        common_name,
        organization,
        any::<bool>(),
        prop::collection::vec(name, 0..3),
        prop::collection::vec(ip, 0..3),
        any::<bool>(),
    )
        .prop_map(|(signer, usages, common_name, organization, country, dns, ips, email)| Form {
            signer,
            usages: words(&usages),
            common_name: common_name.to_owned(),
            organization: organization.map(ToOwned::to_owned),
            country,
            dns: words(&dns),
            ips: ips.into_iter().map(|ip| ip.parse().unwrap()).collect(),
            email,
        })
}

proptest! {
    /// A second statement of the rules: what an approver must never approve.
    #[test]
    fn no_forged_request_is_approved(form in forms(), from_token: bool, deleted: bool, paused: bool) {
        let machine = JoiningMachine { deleted, paused, ..machine() };
        let requestor = if from_token { token() } else { node() };
        if let SigningDecision::Approved { .. } = ask(&requestor, &form, Some(&machine)) {
            prop_assert!(!deleted && !paused);
            prop_assert_eq!(&form.common_name, "system:node:host-17");
            prop_assert_eq!(form.organization.as_deref(), Some("system:nodes"));
            prop_assert!(!form.country && !form.email);
            let has = |usage: &str| form.usages.iter().any(|found| found == usage);
            prop_assert!(has("digital signature") && !has("any"));
            let serving = form.signer == SERVING_SIGNER;
            prop_assert!(has("server auth") == serving && has("client auth") != serving);
            prop_assert!(serving || (form.dns.is_empty() && form.ips.is_empty()));
            prop_assert!(!(serving && from_token));
            prop_assert!(form.dns.iter().all(|name| name.starts_with("host-17")));
            prop_assert!(form.ips.iter().all(|ip| ip.to_string() == "10.0.0.17"));
        }
    }

    #[test]
    fn no_other_user_is_taken_for_a_machine(user in "(system:(bootstrap|node|serviceaccount):)?[a-z0-9:-]{0,12}", groups in prop::collection::vec("(system:(nodes|bootstrappers(:fleetwright(:fleet)?)?):?)?[a-z0-9:-]{0,8}", 0..4)) {
        match Requestor::of(&user, &groups, NAMESPACE) {
            Requestor::Token { uid } => {
                prop_assert!(user.starts_with("system:bootstrap:"));
                prop_assert!(uid.is_empty() || groups.contains(&token_group(NAMESPACE, &uid)));
            }
            Requestor::Node { name } => {
                prop_assert_eq!(user, format!("system:node:{name}"));
                prop_assert!(groups.iter().any(|group| group == "system:nodes"));
            }
            Requestor::Other => {}
        }
    }

    #[test]
    fn no_bytes_make_a_decision_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let usages = Form::client().usages;
        let machine = machine();
        let node = own_node();
        let around = JoinContext { machine: Some(&machine), rivals: &[], node: &node, reserved: &whose };
        let verdict = decide(&token(), &SigningRequest { signer: CLIENT_SIGNER, usages: &usages, request: &bytes }, &around);
        let invalid = matches!(verdict, SigningDecision::Denied { reason: "RequestInvalid", .. });
        prop_assert!(invalid);
    }
}

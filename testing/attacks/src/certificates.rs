//! Getting certificates of others: requests with a machine's token and with a node's certificate.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use fleetwright_pki::{Certificate, Identity};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, PublicKeyData, SanType, SigningKey};
use rustls_pki_types::pem::PemObject;
use serde_json::json;

use crate::site::{JoinSite, KubeletRequest, eventually};
use crate::{Area, Attempt};

pub fn attempts() -> Vec<Attempt> {
    attempts![Area::Certificates, JoinSite;
        other_spellings_of_reserved_names_are_not_signed,
        further_subjects_in_a_request_are_not_signed,
        a_request_that_readers_understand_differently_is_not_signed,
        a_request_under_another_signer_is_not_approved,
        a_request_cannot_name_its_own_requester,
        a_node_does_not_approve_its_own_request,
        the_right_to_approve_is_one_of_each_signer,
        a_request_that_was_replaced_under_its_name_is_judged_again,
        a_certificate_does_not_last_longer_because_it_was_asked_for,
        a_flood_of_requests_of_one_token_does_not_stop_others,
    ]
}

const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

fn requests(client: &Client) -> Api<CertificateSigningRequest> {
    Api::all(client.clone())
}

/// The subject and names of an honest request, as a base for changes.
fn params(node: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    Ok(params)
}

fn request(name: &str, signer: &str, usages: &[&str], pem: &str) -> Result<CertificateSigningRequest> {
    let mut request: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"signerName": signer, "usages": usages, "request": ""},
    }))?;
    request.spec.request = ByteString(pem.as_bytes().to_vec());
    Ok(request)
}

fn pem(params: CertificateParams) -> Result<String> {
    Ok(params.serialize_request(&rcgen::KeyPair::generate()?)?.pem()?)
}

/// The client of a node that has joined, registered and bound.
pub(crate) async fn joined(site: &JoinSite, name: &str, address: &str) -> Result<Client> {
    site.machine(name, address).await;
    let token = site.with_token(&site.kubeconfig(name).await).await;
    let asked = KubeletRequest::client(name);
    let certificate = site.ask(&token, &asked).await.certificate();
    let key = asked.key.serialize_pem();
    let client = site.target.client_with(Identity::Certificate { cert_pem: &certificate, key_pem: &key }).await?;
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    site.bind(name, "Joined").await;
    Ok(client)
}

/// Returns when the operator has handled all earlier requests: a later honest request is signed.
async fn caught_up(site: &JoinSite, name: &str, address: &str) -> Result<Client> {
    joined(site, name, address).await
}

/// Files a dishonest request, and returns the status code: a server may refuse the request by itself.
async fn file(client: &Client, request: &CertificateSigningRequest) -> Result<u16> {
    match requests(client).create(&PostParams::default(), request).await {
        Ok(_) => Ok(201),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 413 | 422) => Ok(status.code),
        Err(error) => Err(error).context("to file a request"),
    }
}

/// Checks the stored requests: at least one exists, and all were denied.
async fn all_denied(site: &JoinSite, stored: &[(String, String)]) -> Result<()> {
    ensure!(!stored.is_empty(), "none of the requests was stored");
    for (what, name) in stored {
        denied(site, what, name).await?;
    }
    Ok(())
}

/// Checks that the operator denies the request.
async fn denied(site: &JoinSite, what: &str, name: &str) -> Result<()> {
    let conditions = eventually(&format!("an answer to {what}"), async || {
        let conditions = requests(&site.admin).get(name).await.ok()?.status?.conditions?;
        (!conditions.is_empty()).then_some(conditions)
    })
    .await;
    ensure!(conditions.iter().any(|one| one.type_ == "Denied"), "{what} was not denied: {conditions:?}");
    not_signed(site, what, name).await
}

/// Checks that the request has neither a certificate nor an approval.
async fn not_signed(site: &JoinSite, what: &str, name: &str) -> Result<()> {
    let status = requests(&site.admin).get(name).await?.status.unwrap_or_default();
    ensure!(status.certificate.is_none_or(|certificate| certificate.0.is_empty()), "{what} was signed");
    let conditions = status.conditions.unwrap_or_default();
    ensure!(conditions.iter().all(|condition| condition.type_ != "Approved"), "{what} was approved: {conditions:?}");
    Ok(())
}

async fn other_spellings_of_reserved_names_are_not_signed(site: &JoinSite) -> Result<()> {
    let client = joined(site, "speller", "10.1.0.1").await?;
    let dns = |name: &str| -> Result<SanType> { Ok(SanType::DnsName(name.try_into()?)) };
    let ip = |text: &str| -> Result<SanType> { Ok(SanType::IpAddress(text.parse::<IpAddr>()?)) };
    let spelled = [
        dns("speller.")?,
        dns("SPELLER")?,
        dns("Kubernetes.Default.Svc")?,
        dns("kubernetes.default.svc.")?,
        dns("*.default.svc")?,
        dns("*")?,
        dns("10.96.0.1")?,
        dns("0x0a600001")?,
        dns("speller\0kubernetes.default.svc")?,
        dns("xn--kubernetes-.default.svc")?,
        ip("::ffff:10.96.0.1")?,
        ip("::ffff:10.1.0.1")?,
        ip("::10.96.0.1")?,
        ip("0.0.0.0")?,
        ip("::")?,
        SanType::URI("spiffe://cluster.local/ns/kube-system/sa/default".try_into()?),
        SanType::Rfc822Name("root@kubernetes.default.svc".try_into()?),
    ];
    let mut stored = Vec::new();
    for (number, san) in spelled.into_iter().enumerate() {
        let mut params = params("speller")?;
        params.subject_alt_names = vec![dns("speller")?, san.clone()];
        let name = format!("speller-{number}");
        let request = request(&name, SERVING, &["digital signature", "server auth"], &pem(params)?)?;
        if file(&client, &request).await? == 201 {
            stored.push((format!("{san:?}"), name));
        }
    }
    let mut many = params("speller")?;
    many.subject_alt_names = (0..1000).map(|n| dns(&format!("n{n}.example.com"))).collect::<Result<_>>()?;
    let large = request("speller-many", SERVING, &["digital signature", "server auth"], &pem(many)?)?;
    if file(&client, &large).await? == 201 {
        stored.push(("1000 names".to_owned(), "speller-many".to_owned()));
    }
    caught_up(site, "after-speller", "10.1.0.2").await?;
    all_denied(site, &stored).await
}

async fn further_subjects_in_a_request_are_not_signed(site: &JoinSite) -> Result<()> {
    site.machine("claimant", "10.1.1.1").await;
    let token = site.with_token(&site.kubeconfig("claimant").await).await;
    let own = "system:node:claimant";
    // rcgen keeps one value of each type; further values are encoded as another type with the same meaning, or together in one value.
    let subjects: [(&str, Vec<(DnType, DnValue)>); 7] = [
        ("masters", vec![(DnType::OrganizationName, "system:masters".into()), (DnType::CommonName, own.into())]),
        (
            "masters by list",
            vec![(DnType::OrganizationName, "system:nodes,system:masters".into()), (DnType::CommonName, own.into())],
        ),
        (
            "a unit beside",
            vec![
                (DnType::OrganizationName, "system:nodes".into()),
                (DnType::OrganizationalUnitName, "system:masters".into()),
                (DnType::CommonName, "system:node:other".into()),
            ],
        ),
        (
            "another's name",
            vec![(DnType::OrganizationName, "system:nodes".into()), (DnType::CommonName, "system:node:victim".into())],
        ),
        (
            "a name with a NUL",
            vec![
                (DnType::OrganizationName, "system:nodes".into()),
                (DnType::CommonName, "system:node:victim\0claimant".into()),
            ],
        ),
        (
            "a name in wide characters",
            vec![
                (DnType::OrganizationName, "system:nodes".into()),
                (DnType::CommonName, DnValue::BmpString("system:node:victim".try_into()?)),
            ],
        ),
        ("an administrator", vec![(DnType::CommonName, "kubernetes-admin".into())]),
    ];
    let mut stored = Vec::new();
    for (number, (what, subject)) in subjects.into_iter().enumerate() {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind, value);
        }
        let name = format!("claimant-{number}");
        let request = request(&name, CLIENT, &["digital signature", "client auth"], &pem(params)?)?;
        if file(&token, &request).await? == 201 {
            stored.push((what.to_owned(), name));
        }
    }
    let mut authority = params("claimant")?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let request = request("claimant-ca", CLIENT, &["digital signature", "client auth"], &pem(authority)?)?;
    let code = file(&token, &request).await?;
    ensure!(code == 201, "the request for an authority was not stored: {code}");
    caught_up(site, "after-claimant", "10.1.1.2").await?;
    all_denied(site, &stored).await?;
    // The subject of this one is its own: the certificate must not be a CA.
    let signed = eventually("the request for an authority to be denied or signed", async || {
        let status = requests(&site.admin).get("claimant-ca").await.ok()?.status?;
        let denied = status.conditions.into_iter().flatten().any(|one| one.type_ == "Denied");
        let signed = status.certificate.filter(|signed| !signed.0.is_empty());
        (denied || signed.is_some()).then_some(signed)
    })
    .await;
    if let Some(certificate) = signed {
        ensure!(!is_authority(&certificate.0).context("the certificate")?, "an authority was signed");
    }
    Ok(())
}

/// One element of DER.
fn der(tag: u8, content: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(content.len())?.to_be_bytes();
    let length = match length {
        [0, short @ ..=0x7f] => vec![short],
        [0, long] => vec![0x81, long],
        [high, low] => vec![0x82, high, low],
    };
    Ok([vec![tag], length, content.to_vec()].concat())
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const ORGANIZATION: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x0a];
const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];

/// A set of one attribute of a subject.
fn subject(id: &[u8], value: &str) -> Result<Vec<u8>> {
    der(SET, &der(SEQUENCE, &[id, &der(UTF8_STRING, value.as_bytes())?].concat())?)
}

/// The extensions that request this DNS name.
fn extensions(name: &str) -> Result<Vec<u8>> {
    let names = der(0x04, &der(SEQUENCE, &der(0x82, name.as_bytes())?)?)?;
    der(SEQUENCE, &der(SEQUENCE, &[&[0x06, 0x03, 0x55, 0x1d, 0x11][..], &names].concat())?)
}

/// A request with a subject and attributes that rcgen does not write, signed with its own key.
fn crafted(subject: &[Vec<u8>], attributes: &[Vec<u8>]) -> Result<String> {
    let key = rcgen::KeyPair::generate()?;
    let fields = [
        vec![2, 1, 0],
        der(SEQUENCE, &subject.concat())?,
        key.subject_public_key_info(),
        der(0xa0, &attributes.concat())?,
    ];
    let info = der(SEQUENCE, &fields.concat())?;
    // ecdsa-with-SHA256.
    let algorithm = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    let signature = der(0x03, &[vec![0], key.sign(&info)?].concat())?;
    let encoded = STANDARD.encode(der(SEQUENCE, &[info, algorithm.to_vec(), signature].concat())?);
    let lines: Vec<_> = encoded.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    Ok(format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n")))
}

/// x509-parser, which validates requests, stops at an attribute of a subject that it cannot parse and takes the first list of extensions.
/// Go, which signs them, continues and skips empty sets.
async fn a_request_that_readers_understand_differently_is_not_signed(site: &JoinSite) -> Result<()> {
    site.machine("twofold", "10.1.10.1").await;
    let token = site.with_token(&site.kubeconfig("twofold").await).await;
    let own = [subject(ORGANIZATION, "system:nodes")?, subject(COMMON_NAME, "system:node:twofold")?];
    let other = subject(COMMON_NAME, "system:node:victim")?;
    let numbers = der(SET, &der(SEQUENCE, &[COMMON_NAME, &[0x1f, 0x81, 0x00, 0x00]].concat())?)?;
    let mut stored = Vec::new();
    for (what, between) in [("an empty set", der(SET, &[])?), ("an unknown tag", numbers)] {
        let pem = crafted(&[own.to_vec(), vec![between, other.clone()]].concat(), &[])?;
        let name = format!("twofold-subject-{}", stored.len());
        let request = request(&name, CLIENT, &["digital signature", "client auth"], &pem)?;
        if file(&token, &request).await? == 201 {
            stored.push((what.to_owned(), name));
        }
    }
    ensure!(stored.iter().any(|(what, _)| what == "an empty set"), "the attack was not made");
    let client = joined(site, "twice", "10.1.10.2").await?;
    let own = [subject(ORGANIZATION, "system:nodes")?, subject(COMMON_NAME, "system:node:twice")?];
    let asks = [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
    let (first, second) = (extensions("twice")?, extensions("kubernetes.default.svc")?);
    let unread = der(SEQUENCE, &[&asks[..], &der(SET, &[])?, &first].concat())?;
    let read = der(SEQUENCE, &[&asks[..], &der(SET, &second)?].concat())?;
    let pem = crafted(&own, &[unread, read])?;
    let request = request("twofold-names", SERVING, &["digital signature", "server auth"], &pem)?;
    let code = file(&client, &request).await?;
    ensure!(code == 201, "the request with two lists of extensions was not stored: {code}");
    stored.push(("two lists of extensions".to_owned(), "twofold-names".to_owned()));
    caught_up(site, "after-twofold", "10.1.10.3").await?;
    all_denied(site, &stored).await
}

/// Whether a certificate may sign others: basicConstraints with cA TRUE, as DER writes it.
fn is_authority(pem: &[u8]) -> Result<bool> {
    let der = rustls_pki_types::CertificateDer::from_pem_slice(pem)?;
    let marks = [0x06, 0x03, 0x55, 0x1d, 0x13, 0x01, 0x01, 0xff, 0x04, 0x05];
    Ok(der.windows(marks.len()).any(|bytes| bytes == marks))
}

async fn a_request_under_another_signer_is_not_approved(site: &JoinSite) -> Result<()> {
    let client = joined(site, "signed", "10.1.2.1").await?;
    let (mut judged, mut left) = (Vec::new(), Vec::new());
    for (number, (signer, usages)) in [
        ("kubernetes.io/kube-apiserver-client", ["digital signature", "client auth"]),
        ("kubernetes.io/legacy-unknown", ["digital signature", "client auth"]),
        ("kubernetes.io/legacy-unknown", ["digital signature", "server auth"]),
        (SERVING, ["digital signature", "client auth"]),
        (CLIENT, ["digital signature", "server auth"]),
        ("example.com/other", ["digital signature", "client auth"]),
        (CLIENT, ["cert sign", "client auth"]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("signed-{number}");
        let request = request(&name, signer, &usages, &pem(params("signed")?)?)?;
        let what = format!("{signer} {usages:?}");
        let code = file(&client, &request).await?;
        // The server itself refuses the signer of old versions.
        let expected = if signer == "kubernetes.io/legacy-unknown" { 422 } else { 201 };
        ensure!(code == expected, "{what}: {code}");
        match signer {
            CLIENT | SERVING => judged.push((what, name)),
            _ if code == 201 => left.push((what, name)),
            _ => {}
        }
    }
    caught_up(site, "after-signed", "10.1.2.2").await?;
    all_denied(site, &judged).await?;
    // The operator does not handle the other signers.
    for (what, name) in left {
        not_signed(site, &what, &name).await?;
    }
    Ok(())
}

async fn a_request_cannot_name_its_own_requester(site: &JoinSite) -> Result<()> {
    let client = joined(site, "forger", "10.1.3.1").await?;
    let mut forged = request("forger-0", CLIENT, &["digital signature", "client auth"], &pem(params("forger")?)?)?;
    forged.spec.username = Some("system:node:victim".to_owned());
    forged.spec.groups = Some(vec!["system:masters".to_owned()]);
    forged.spec.uid = Some("0".to_owned());
    forged.status = serde_json::from_value(json!({
        "certificate": "AAAA", "conditions": [{"type": "Approved", "status": "True", "reason": "Forged"}],
    }))?;
    requests(&client).create(&PostParams::default(), &forged).await?;
    let stored = requests(&site.admin).get("forger-0").await?;
    ensure!(stored.spec.username.as_deref() == Some("system:node:forger"), "{:?}", stored.spec.username);
    let groups = stored.spec.groups.unwrap_or_default();
    ensure!(!groups.iter().any(|group| group == "system:masters"), "{groups:?}");
    let conditions = stored.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.iter().all(|one| one.reason.as_deref() != Some("Forged")), "{conditions:?}");
    Ok(())
}

fn approval() -> serde_json::Value {
    json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Forged", "message": "by itself"}]}})
}

/// Tries to approve and to sign a request: each is refused.
async fn cannot_decide(client: &Client, name: &str) -> Result<()> {
    for (part, body) in
        [("approval", approval()), ("status", json!({"status": {"certificate": "AAAA"}})), ("status", approval())]
    {
        let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/{part}");
        for method in ["PATCH", "PUT"] {
            let request = http::Request::builder().method(method).uri(&path).header(
                "content-type",
                if method == "PUT" { "application/json" } else { "application/merge-patch+json" },
            );
            let answer = client.request::<serde_json::Value>(request.body(body.to_string().into_bytes())?).await;
            let code = match &answer {
                Err(kube::Error::Api(status)) => status.code,
                _ => 0,
            };
            ensure!(code == 403, "{method} {part}: {answer:?}");
        }
    }
    Ok(())
}

async fn a_node_does_not_approve_its_own_request(site: &JoinSite) -> Result<()> {
    let client = joined(site, "selfish", "10.1.4.1").await?;
    // A signer that the operator leaves to others.
    let request =
        request("selfish-0", "example.com/other", &["digital signature", "client auth"], &pem(params("selfish")?)?)?;
    requests(&client).create(&PostParams::default(), &request).await?;
    cannot_decide(&client, "selfish-0").await?;
    site.machine("selfish-token", "10.1.4.2").await;
    let token = site.with_token(&site.kubeconfig("selfish-token").await).await;
    cannot_decide(&token, "selfish-0").await?;
    not_signed(site, "its own request", "selfish-0").await
}

async fn the_right_to_approve_is_one_of_each_signer(site: &JoinSite) -> Result<()> {
    let rules = [
        json!({"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests", "certificatesigningrequests/approval"], "verbs": ["get", "create", "update", "patch"]}),
        json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": ["example.com/mine"], "verbs": ["approve"]}),
    ];
    let rules: Vec<_> = rules.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
    fleetwright_rig::rights::grant_everywhere(&site.admin, "approver", &rules).await?;
    let approver = site.target.client_as("approver", &[]).await?;
    let all = requests(&approver);
    eventually("the grant takes effect", async || all.get_opt("nothing").await.ok().map(drop)).await;
    for (name, signer) in [
        ("approver-mine", "example.com/mine"),
        ("approver-client", "kubernetes.io/kube-apiserver-client"),
        ("approver-kubelet", CLIENT),
    ] {
        let mut subject = params("approver")?;
        if signer != CLIENT {
            subject.distinguished_name = DistinguishedName::new();
            subject.distinguished_name.push(DnType::CommonName, "kubernetes-admin");
        }
        let request = request(name, signer, &["digital signature", "client auth"], &pem(subject)?)?;
        all.create(&PostParams::default(), &request).await?;
        let patched = all.patch_subresource("approval", name, &PatchParams::default(), &Patch::Merge(approval())).await;
        ensure!(patched.is_ok() == (signer == "example.com/mine"), "{signer}: {patched:?}");
        if signer != "example.com/mine" {
            not_signed(site, signer, name).await?;
        }
    }
    Ok(())
}

async fn a_request_that_was_replaced_under_its_name_is_judged_again(site: &JoinSite) -> Result<()> {
    let client = joined(site, "swapper", "10.1.5.1").await?;
    let all = requests(&client);
    for round in 0..5 {
        // An honest request, which the operator will approve, and at once another one under its name.
        let honest = request("swapper-0", CLIENT, &["digital signature", "client auth"], &pem(params("swapper")?)?)?;
        all.create(&PostParams::default(), &honest).await?;
        tokio::time::sleep(Duration::from_millis(3 * round)).await;
        requests(&site.admin).delete("swapper-0", &DeleteParams::default()).await?;
        let mut greedy = params("swapper")?;
        greedy.subject_alt_names = vec![SanType::DnsName("kubernetes.default.svc".try_into()?)];
        let hostile = request("swapper-0", SERVING, &["digital signature", "server auth"], &pem(greedy)?)?;
        all.create(&PostParams::default(), &hostile).await?;
        eventually("the second one is denied", async || {
            let status = requests(&site.admin).get("swapper-0").await.ok()?.status?;
            let conditions = status.conditions?;
            assert!(conditions.iter().all(|one| one.type_ != "Approved"), "{conditions:?}");
            conditions.iter().any(|one| one.type_ == "Denied").then_some(())
        })
        .await;
        not_signed(site, "the second one", "swapper-0").await?;
        requests(&site.admin).delete("swapper-0", &DeleteParams::default()).await?;
    }
    Ok(())
}

async fn a_certificate_does_not_last_longer_because_it_was_asked_for(site: &JoinSite) -> Result<()> {
    let client = joined(site, "eternal", "10.1.6.1").await?;
    let authority = Certificate::from_pem(site.target.ca_pem())?;
    let mut taken = 0;
    for (number, seconds) in [i32::MAX, i32::MAX - 1, 86_400 * 400, 0, -1].into_iter().enumerate() {
        let name = format!("eternal-{number}");
        let mut asked = request(&name, CLIENT, &["digital signature", "client auth"], &pem(params("eternal")?)?)?;
        asked.spec.expiration_seconds = Some(seconds);
        // A server may refuse malformed requests.
        if requests(&client).create(&PostParams::default(), &asked).await.is_err() {
            continue;
        }
        taken += 1;
        let certificate = eventually("an answer", async || {
            let status = requests(&site.admin).get(&name).await.ok()?.status?;
            status.certificate.filter(|certificate| !certificate.0.is_empty())
        })
        .await;
        let read = Certificate::from_pem(&String::from_utf8(certificate.0)?)?;
        let days = (read.not_after - jiff::Timestamp::now().as_second()) / 86_400;
        ensure!(days <= 366 && read.not_after <= authority.not_after, "{seconds}: valid for {days} days");
    }
    ensure!(taken > 0, "nothing was asked for");
    Ok(())
}

async fn a_flood_of_requests_of_one_token_does_not_stop_others(site: &JoinSite) -> Result<()> {
    site.machine("flooder", "10.1.7.1").await;
    let token = site.with_token(&site.kubeconfig("flooder").await).await;
    let all = requests(&token);
    let junk = pem(params("somebody")?)?;
    let mut filed = Vec::new();
    for number in 0..200 {
        let name = format!("flood-{number}");
        let request = request(&name, CLIENT, &["digital signature", "client auth"], &junk)?;
        if all.create(&PostParams::default(), &request).await.is_ok() {
            filed.push(name);
        }
    }
    ensure!(!filed.is_empty(), "nothing was filed");
    let started = std::time::Instant::now();
    joined(site, "unhindered", "10.1.7.2").await?;
    ensure!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    denied(site, "a request for somebody else", &filed[0]).await?;
    for name in &filed {
        not_signed(site, "a request for somebody else", name).await?;
    }
    Ok(())
}

//! Certificates of servers and clients are replaced, and those who use them take the new ones while they run.

use std::collections::BTreeMap;

use fleetwright_pki::Certificate;
use fleetwright_plan::cluster::objects::{API_PORT, ETCD_PORT};
use k8s_openapi::ByteString;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;

/// Who presents which certificate, by the name of the pods: its port, what it is called, its Secret, and that of who is trusted.
const SERVERS: [(&str, u16, &str, &str); 2] = [
    ("kube-apiserver", API_PORT, "kube-apiserver.fleet-pay.svc", "apiserver-tls"),
    ("etcd", ETCD_PORT, "etcd.fleet-pay.svc", "etcd-server-tls"),
];

/// Makes the life of certificates so short that all of them are past two thirds of it, and waits until every server presents its new one.
pub(super) async fn rotate(world: &MetaFixture) -> Result<()> {
    let before = leaves(world).await?;
    ensure!(before.len() >= 10, "{:?}", before.keys());
    let pods = pods(world).await?;
    let short = json!({ "spec": { "certificates": { "leafLifetime": "10m" } } });
    world.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(short)).await?;
    let after = eventually("all certificates to be made anew", async || {
        let now = leaves(world).await?;
        let same: Vec<_> = before.iter().filter(|(name, old)| now.get(*name) == Some(*old)).collect();
        Ok(if same.is_empty() && now.len() == before.len() {
            Ok(now)
        } else {
            Err(format!("still the same: {same:?}"))
        })
    })
    .await?;
    for (name, new) in &after {
        let (old, new) = (Certificate::from_pem(&before[name])?, Certificate::from_pem(new)?);
        ensure!(new.not_after < old.not_after, "{name} was made for {} after {}", new.not_after, old.not_after);
    }
    presented(world, &after).await?;
    let status = world.ready("pay").await?;
    // They took them as they ran.
    let now = self::pods(world).await?;
    ensure!(now == pods && !now.is_empty(), "other pods, or others of their containers: {pods:?} became {now:?}");
    // The operator's own works as well.
    let client = world.business("pay", &status.endpoint.context("it has an endpoint")?).await?;
    client.apiserver_version().await?;
    Ok(())
}

/// The certificates that are no authority's, by their Secrets.
async fn leaves(world: &MetaFixture) -> Result<BTreeMap<String, String>> {
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "fleet-pay");
    let all = secrets.list(&Default::default()).await?.items.into_iter();
    let certificate = |secret: Secret| {
        let (name, data) = (secret.name_any(), secret.data.unwrap_or_default());
        let ByteString(pem) = data.get("tls.crt")?.clone();
        (!name.ends_with("ca")).then(|| Ok((name, String::from_utf8(pem)?)))
    };
    all.filter_map(certificate).collect()
}

/// The pods of the servers, and their restart counts. (Components with leader election restart when they lose the election.)
async fn pods(world: &MetaFixture) -> Result<BTreeMap<String, Vec<i32>>> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    let mut all = pods.list(&Default::default()).await?.items;
    let server = |pod: &Pod| {
        let component = pod.labels().get(names::COMPONENT);
        component.is_some_and(|component| SERVERS.iter().any(|(server, ..)| component == server))
    };
    all.retain(|pod| pod.metadata.deletion_timestamp.is_none() && server(pod));
    let restarts = |pod: Pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        (pod.name_any(), statuses.into_iter().flatten().map(|one| one.restart_count).collect())
    };
    Ok(all.into_iter().map(restarts).collect())
}

/// Waits until each replica of each server presents, at its own address, the certificate that is in its Secret.
async fn presented(world: &MetaFixture, leaves: &BTreeMap<String, String>) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "fleet-pay");
    for (component, port, name, secret) in SERVERS {
        let data = secrets.get(secret).await?.data.unwrap_or_default();
        let (tls, wanted) = (trusting(&data["ca.crt"].0)?, CertificateDer::from_pem_slice(leaves[secret].as_bytes())?);
        let mut servers = pods.list(&Default::default()).await?.items;
        servers.retain(|pod| pod.name_any().starts_with(component) && pod.metadata.deletion_timestamp.is_none());
        ensure!(!servers.is_empty(), "there is no pod of {component}");
        for pod in servers {
            // The kubelet looks at Secrets once in a minute or two, and at once when a pod changed.
            let changed = json!({ "metadata": { "annotations": { "test": "rotated" } } });
            pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(changed)).await?;
            let ip = pod.status.and_then(|status| status.pod_ip).context("it has an address")?;
            eventually(&format!("{component} at {ip} to present its new certificate"), async || {
                let presented = handshake(&tls, &ip, port, name).await?;
                Ok(if presented == wanted { Ok(()) } else { Err("it is another".to_owned()) })
            })
            .await?;
        }
    }
    Ok(())
}

fn trusting(authorities: &[u8]) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        roots.add(authority?)?;
    }
    let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into());
    let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The certificate that a server shows, if it is trusted and has that name.
async fn handshake(tls: &TlsConnector, ip: &str, port: u16, name: &'static str) -> Result<CertificateDer<'static>> {
    let tcp = TcpStream::connect((ip, port)).await?;
    let tls = tls.connect(ServerName::try_from(name)?, tcp).await?;
    let shown = tls.get_ref().1.peer_certificates().and_then(<[_]>::first);
    Ok(shown.context("it shows a certificate")?.clone().into_owned())
}

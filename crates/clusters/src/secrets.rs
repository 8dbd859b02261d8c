//! Authorities, keys and certificates are made here, and nowhere else.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fleetwright_api::ClusterSpec;
use fleetwright_kit::{Pass, Remedy, StepError, WriteError};
use fleetwright_pki::{Leaf, ServiceAccountKey, Usage};
use fleetwright_plan::cluster::certificates::{Authority, SERVICE_ACCOUNT, Use, Wanted};
use fleetwright_plan::cluster::objects::API_PORT;
use fleetwright_plan::cluster::{Names, Turn};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ObjectMeta;
use serde_json::json;

use crate::eyes::Eyes;
use crate::words::said;

/// The certificate of an authority that is to sign later, beside the one that signs.
const NEXT_CERT: &str = "next.crt";
/// Its key.
pub const NEXT_KEY: &str = "next.key";

/// Why a key or certificate was not made.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It was not written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The authority could not be read.
    #[error("Secret {}: {}", .0, said(.1))]
    Read(String, kube::Error),
    /// What was read is no authority.
    #[error("Secret {0}: {1}")]
    Broken(String, String),
    /// A Secret that the cluster refers to is not there, or not whole.
    #[error("Secret {secret} is not there or has no {key}: make it, or name another in {field}")]
    Lacks { secret: String, key: String, field: String },
}

impl StepError for SecretError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Read(..) => "NoAnswer",
            Self::Broken(..) => "BrokenAuthority",
            Self::Lacks { .. } => fleetwright_api::names::reasons::NO_SECRET,
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::Write(error) => error.remedy(),
            Self::Read(..) | Self::Broken(..) => Remedy::Retry,
            Self::Lacks { .. } => Remedy::Person,
        }
    }
}

type Data = BTreeMap<String, String>;

/// Makes secrets of one cluster.
pub struct Maker<'a> {
    pub eyes: &'a Eyes,
    pub pass: &'a Pass,
    pub names: &'a Names,
    pub spec: &'a ClusterSpec,
}

impl Maker<'_> {
    /// Makes an authority that is not there. One that is there stays, whoever made it: what it signed would be worth nothing.
    pub async fn authority(&self, authority: Authority) -> Result<(), SecretError> {
        let made = self.made(authority)?;
        let data = [
            ("ca.crt", made.cert_pem().to_owned()),
            ("tls.crt", made.cert_pem().to_owned()),
            ("tls.key", made.key_pem()),
        ];
        self.create(authority.secret(), data.map(|(key, value)| (key.to_owned(), value)).into()).await
    }

    /// Takes an authority one phase further, unless that is done already. What is there now decides, and nobody else may change it meanwhile.
    pub async fn turn(&self, authority: Authority, turn: Turn) -> Result<(), SecretError> {
        let name = authority.secret();
        let api: Api<Secret> = Api::namespaced(self.pass.client(), &self.names.namespace);
        let secret = api.get(name).await.map_err(|error| SecretError::Read(name.to_owned(), error))?;
        let data = secret.data.unwrap_or_default();
        let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        let (next, signs) = (text(NEXT_CERT).zip(text(NEXT_KEY)), text("tls.crt").unwrap_or_default());
        let mut changes: BTreeMap<&str, Option<String>> = BTreeMap::new();
        match (turn, next) {
            (Turn::Trust, None) => {
                let made = self.made(authority)?;
                changes.insert("ca.crt", Some(bundle(&[&signs, made.cert_pem()])));
                changes.insert(NEXT_CERT, Some(made.cert_pem().to_owned()));
                changes.insert(NEXT_KEY, Some(made.key_pem()));
            }
            (Turn::Sign, Some((certificate, key))) => {
                changes.insert("ca.crt", Some(bundle(&[&certificate, &signs])));
                changes.insert("tls.crt", Some(certificate));
                changes.insert("tls.key", Some(key));
                changes.extend([(NEXT_CERT, None), (NEXT_KEY, None)]);
            }
            (Turn::Drop, None) => {
                changes.insert("ca.crt", Some(signs));
            }
            (Turn::Trust, Some(_)) | (Turn::Sign, None) | (Turn::Drop, Some(_)) => return Ok(()),
        }
        let mut patch = vec![
            json!({ "op": "test", "path": "/metadata/resourceVersion", "value": secret.metadata.resource_version }),
        ];
        for (key, value) in changes {
            let path = format!("/data/{key}");
            patch.push(match value {
                Some(value) => json!({ "op": "add", "path": path, "value": ByteString(value.into_bytes()) }),
                None => json!({ "op": "remove", "path": path }),
            });
        }
        self.pass.writer().json_patch(&self.eyes.secrets, &self.key(name), json!(patch)).await?;
        Ok(())
    }

    fn made(&self, authority: Authority) -> Result<fleetwright_pki::Authority, SecretError> {
        let common_name = format!("{}-{}", self.names.name, authority.secret());
        fleetwright_pki::Authority::lasting(&common_name, self.spec.certificates.authority_lifetime.0)
            .map_err(|error| SecretError::Broken(authority.secret().to_owned(), error.to_string()))
    }

    /// Makes the key of service-account tokens.
    pub async fn service_account(&self) -> Result<(), SecretError> {
        let made = ServiceAccountKey::generate()
            .map_err(|error| SecretError::Broken(SERVICE_ACCOUNT.to_owned(), error.to_string()))?;
        let data = [("sa.key", made.private_pem), ("sa.pub", made.public_pem)];
        self.create(SERVICE_ACCOUNT, data.map(|(key, value)| (key.to_owned(), value)).into()).await
    }

    /// Makes certificates, reading each authority once.
    pub async fn certificates(&self, wanted: impl Iterator<Item = &Wanted>) -> Result<(), SecretError> {
        let mut authorities: BTreeMap<Authority, (fleetwright_pki::Authority, String)> = BTreeMap::new();
        for one in wanted {
            let (authority, trusted) = match authorities.entry(one.authority) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.read(one.authority).await?),
            };
            self.certificate(one, authority, trusted).await?;
        }
        Ok(())
    }

    async fn certificate(
        &self,
        wanted: &Wanted,
        authority: &fleetwright_pki::Authority,
        trusted: &str,
    ) -> Result<(), SecretError> {
        let usages = match wanted.usage {
            Use::Server => vec![Usage::Server],
            Use::Client => vec![Usage::Client],
            Use::Both => vec![Usage::Server, Usage::Client],
        };
        let leaf = Leaf {
            common_name: wanted.common_name.clone(),
            organizations: wanted.organizations.clone(),
            dns_names: wanted.dns_names.clone(),
            ips: wanted.ips.clone(),
            usages,
            lifetime: self.spec.certificates.leaf_lifetime.0,
        };
        let pair =
            authority.issue(leaf).map_err(|error| SecretError::Broken(wanted.secret.to_owned(), error.to_string()))?;
        let mut data: Data = [("tls.crt", pair.cert_pem), ("tls.key", pair.key_pem), ("ca.crt", trusted.to_owned())]
            .map(|(key, value)| (key.to_owned(), value))
            .into();
        if wanted.kubeconfig {
            data.insert("kubeconfig".to_owned(), self.kubeconfig(wanted.secret));
        }
        if self.eyes.secrets.get(&self.key(wanted.secret)).is_none() {
            return self.create(wanted.secret, data).await;
        }
        let body = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": wanted.secret, "namespace": self.names.namespace, "labels": self.names.labels() },
            "stringData": data,
        });
        self.pass.writer().apply(&self.eyes.secrets, &self.key(wanted.secret), &body).await?;
        Ok(())
    }

    /// It names files beside it, so that whoever uses it takes a new certificate without being started anew.
    fn kubeconfig(&self, secret: &str) -> String {
        let file = |key: &str| format!("/etc/kubernetes/{secret}/{key}");
        let name = &self.names.name;
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{ "name": name, "cluster": {
                "server": format!("https://{}:{API_PORT}", self.names.apiserver()),
                "certificate-authority": file("ca.crt"),
            } }],
            "users": [{ "name": name, "user": {
                "client-certificate": file("tls.crt"), "client-key": file("tls.key"),
            } }],
            "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        })
        .to_string()
    }

    fn key(&self, secret: &str) -> fleetwright_kit::Key {
        fleetwright_kit::Key::new(&self.names.namespace, secret)
    }

    async fn create(&self, name: &str, data: Data) -> Result<(), SecretError> {
        let data = data.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect();
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.names.namespace.clone()),
                labels: Some(self.names.labels()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(data),
            ..Secret::default()
        };
        self.pass.writer().create_in(&self.eyes.secrets, &secret).await?;
        Ok(())
    }

    /// The authority that signs, and what is trusted with it.
    async fn read(&self, authority: Authority) -> Result<(fleetwright_pki::Authority, String), SecretError> {
        let name = authority.secret();
        let api: Api<Secret> = Api::namespaced(self.pass.client(), &self.names.namespace);
        let secret = api.get(name).await.map_err(|error| SecretError::Read(name.to_owned(), error))?;
        let data = secret.data.unwrap_or_default();
        let text = |key: &str| {
            let bytes = data.get(key).map(|bytes| bytes.0.clone());
            bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
        };
        let made = fleetwright_pki::Authority::from_pem(&text("tls.crt"), &text("tls.key"))
            .map_err(|error| SecretError::Broken(name.to_owned(), error.to_string()))?;
        Ok((made, text("ca.crt")))
    }
}

/// Certificates one after another, as a file has them.
fn bundle(all: &[&str]) -> String {
    all.iter().map(|one| format!("{}\n", one.trim())).collect()
}

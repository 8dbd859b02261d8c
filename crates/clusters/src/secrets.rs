//! Issues certificates; the authorities that sign them are in [`keys`](crate::keys).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fleetwright_api::{ClusterSpec, KeyStatus};
use fleetwright_kit::{Pass, Remedy, StepError, WriteError};
use fleetwright_pki::{Leaf, LeafUsage, fingerprint};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::certificates::{Authority, CertificateSpec, CertificateUse};
use fleetwright_plan::cluster::copied_secrets::AccessDenied;
use fleetwright_plan::cluster::keys::Key;
use fleetwright_plan::cluster::objects::API_PORT;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use serde_json::json;

use crate::caches::Caches;
use crate::creation;
use crate::messages::api_error_message;

/// Why a key or certificate was not created.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A write failed.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The authority could not be read.
    #[error("Secret {}: {}", .0, api_error_message(.1))]
    Read(String, kube::Error),
    /// The Secret contains no valid authority.
    #[error("Secret {0}: {1}")]
    Broken(String, String),
    /// A Secret in the spec is missing or incomplete.
    #[error("Secret {secret} does not exist or has no key {key}: create it, or set another one in {field}")]
    Lacks { secret: String, key: String, field: String },
    /// A Secret in the spec is not shared with the cluster.
    #[error(
        "Secret {secret} is not shared with Cluster {cluster} for {field} and was not copied: its owner must add {} to its annotation {}, or set another Secret in {field}",
        .denied.lacks, .denied.annotation
    )]
    NotShared { secret: String, cluster: String, field: String, denied: AccessDenied },
    /// The key of snapshots is lost. A new one would not open the existing snapshots.
    #[error(
        "Secret {secret} with the snapshot key of this cluster is missing, and so is its copy: restore it from your backup, or create a new one with 32 random bytes in `key` and give up the existing snapshots"
    )]
    KeyLost { secret: String },
}

impl StepError for SecretError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Read(..) => "NoResponse",
            Self::Broken(..) => fleetwright_api::names::reasons::INVALID_AUTHORITY,
            Self::Lacks { .. } | Self::KeyLost { .. } => fleetwright_api::names::reasons::SECRET_NOT_FOUND,
            Self::NotShared { .. } => fleetwright_api::names::reasons::SECRET_NOT_SHARED,
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::Write(error) => error.remedy(),
            Self::Read(..) | Self::Broken(..) => Remedy::Retry,
            Self::Lacks { .. } | Self::NotShared { .. } | Self::KeyLost { .. } => Remedy::NeedsPerson,
        }
    }
}

impl SecretError {
    /// Whether a Secret of a person is the cause, and not an object of the operator.
    pub fn needs_person(&self) -> bool {
        matches!(self, Self::Lacks { .. } | Self::NotShared { .. } | Self::KeyLost { .. })
    }
}

type Data = BTreeMap<String, String>;

/// Authorities that were read, with their trust bundles.
pub type Authorities = BTreeMap<Authority, (fleetwright_pki::Authority, String)>;

/// Creates Secrets of one cluster.
pub struct CertificateIssuer<'a> {
    pub caches: &'a Caches,
    pub pass: &'a Pass,
    pub names: &'a Names,
    pub spec: &'a ClusterSpec,
    /// The keys in the status of the cluster.
    pub recorded: &'a [KeyStatus],
}

impl CertificateIssuer<'_> {
    pub fn made(&self, authority: Authority) -> Result<fleetwright_pki::Authority, SecretError> {
        let common_name = format!("{}-{}", self.names.name, authority.secret());
        fleetwright_pki::Authority::lasting(&common_name, self.spec.certificates.authority_lifetime.0)
            .map_err(|error| SecretError::Broken(authority.secret().to_owned(), error.to_string()))
    }

    /// Issues a certificate. Each authority is read once and stored in `authorities`.
    pub async fn certificate_of(
        &self,
        wanted: &CertificateSpec,
        authorities: &mut Authorities,
    ) -> Result<(), SecretError> {
        let (authority, trusted) = match authorities.entry(wanted.authority) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(self.read(wanted.authority).await?),
        };
        self.certificate(wanted, authority, trusted).await
    }

    async fn certificate(
        &self,
        wanted: &CertificateSpec,
        authority: &fleetwright_pki::Authority,
        trusted: &str,
    ) -> Result<(), SecretError> {
        let usages = match wanted.usage {
            CertificateUse::Server => vec![LeafUsage::Server],
            CertificateUse::Client => vec![LeafUsage::Client],
            CertificateUse::Both => vec![LeafUsage::Server, LeafUsage::Client],
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
        if self.caches.secrets.get(&self.key(wanted.secret)).is_none() {
            return self.create(wanted.secret, data).await;
        }
        let body = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": wanted.secret, "namespace": self.names.namespace, "labels": self.names.labels() },
            "stringData": data,
        });
        self.pass.writer().apply(&self.caches.secrets, &self.key(wanted.secret), &body).await?;
        Ok(())
    }

    /// The kubeconfig names files beside it, so that clients load a new certificate without a restart.
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

    pub fn key(&self, secret: &str) -> fleetwright_kit::Key {
        fleetwright_kit::Key::new(&self.names.namespace, secret)
    }

    pub async fn create(&self, name: &str, data: Data) -> Result<(), SecretError> {
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
        Ok(creation::create(&self.caches.secrets, self.pass, self.names, &secret).await?)
    }

    /// The signing authority, with its trust bundle. An authority that is not the recorded one signs nothing.
    async fn read(&self, authority: Authority) -> Result<(fleetwright_pki::Authority, String), SecretError> {
        let (_, data) = self.live(Key::Authority(authority)).await?;
        let broken = |why: String| SecretError::Broken(authority.secret().to_owned(), why);
        let text = |key: &str| data.get(key).cloned().unwrap_or_default();
        let found = fingerprint(&text("tls.crt"));
        if self.recorded(Key::Authority(authority)).map(|record| &record.fingerprint) != found.as_ref() {
            return Err(broken("it is not the authority recorded in the Cluster's status".to_owned()));
        }
        let made = fleetwright_pki::Authority::from_pem(&text("tls.crt"), &text("tls.key"))
            .map_err(|error| broken(error.to_string()))?;
        Ok((made, text("ca.crt")))
    }
}

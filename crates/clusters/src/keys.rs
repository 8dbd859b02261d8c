//! Generates the keys of a cluster, maintains a sealed copy of them, and restores them from it.
//!
//! The copy is a Secret in the namespace of the operator's account, where no other operator reads Secrets (beside the Cluster if an administrator runs the
//! operator); the key that seals it is another one, [`SEAL`]. So nothing that is deleted in the namespace of a control
//! plane loses a key, and reading the copy alone reveals none. The copy is always written before the Secret that pods use.

use std::collections::BTreeMap;

use fleetwright_api::{KeyStatus, names};
use fleetwright_kit::{JsonPatch, Key as ObjectKey, Pass, WriteError};
use fleetwright_pki::{SealKey, ServiceAccountKey, fingerprint};
use fleetwright_plan::cluster::certificates::{Authority, SERVICE_ACCOUNT};
use fleetwright_plan::cluster::keys::{Key, KeyDecision, SEAL, SEAL_DATA, SEALED_DATA, key_digest};
use fleetwright_plan::cluster::{Names, RotationAction};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::caches::Caches;
use crate::creation;
use crate::secrets::{CertificateIssuer, SecretError};

/// The certificate of the next authority, beside the signing one.
const NEXT_CERT: &str = "next.crt";
/// The key of the next authority.
pub const NEXT_KEY: &str = "next.key";

type Data = BTreeMap<String, String>;

/// The annotation of a sealed copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The [id](SealKey::id) of the key that sealed it.
    pub by: String,
    /// Digest of each key in the copy, by the name of its Secret.
    pub keys: BTreeMap<String, String>,
}

/// The sealed copy of a cluster's keys, opened.
struct Copy {
    seal: SealKey,
    /// The resourceVersion of the Secret, if there is one.
    version: Option<String>,
    /// The data of each Secret, by its name.
    keys: BTreeMap<String, Data>,
}

impl CertificateIssuer<'_> {
    /// Carries out the decision about keys.
    pub async fn keys(&self, choice: &KeyDecision) -> Result<(), SecretError> {
        if !choice.acts() {
            return Ok(());
        }
        let mut copy = self.copy().await?;
        for key in &choice.generate {
            // Another process may have generated the key a moment ago. If the key is recorded, a person requested its replacement.
            let replaces = self.recorded(*key).is_some();
            if replaces {
                self.absent(key.secret()).await?;
            }
            if replaces || !copy.keys.contains_key(key.secret()) {
                copy.keys.insert(key.secret().to_owned(), self.generate(*key).await?);
            }
        }
        for (key, digest) in &choice.seal {
            let (secret, data) = self.live(*key).await?;
            if data_digest(&data) != *digest {
                return Err(changed(&secret));
            }
            copy.keys.insert(key.secret().to_owned(), data);
        }
        if !choice.generate.is_empty() || !choice.seal.is_empty() {
            self.store(&mut copy).await?;
        }
        for key in choice.generate.iter().chain(&choice.restore) {
            let name = key.secret();
            let Some(data) = copy.keys.get(name) else {
                let why = format!(
                    "the Secret is missing, and its sealed copy, Secret {}/{}, cannot be decrypted: restore one of the two from a backup",
                    self.caches.keys,
                    self.names.sealed_keys()
                );
                return Err(SecretError::Broken(name.to_owned(), why));
            };
            // A requested replacement is in the copy before it is in the Secret.
            let checked = choice.restore.contains(key) && !choice.requested.contains(key);
            if checked && !self.recorded(*key).is_none_or(|record| is_of(*key, data, record)) {
                let why = "the sealed copy holds a different key from the one recorded in the Cluster's status";
                return Err(SecretError::Broken(name.to_owned(), why.to_owned()));
            }
            self.create(name, data.clone()).await?;
        }
        Ok(())
    }

    /// Moves authorities to the next phase, unless they are already in it. The live Secrets decide, and the resourceVersion is the precondition.
    pub async fn rotate(&self, turns: &[(Authority, RotationAction)]) -> Result<(), SecretError> {
        if turns.is_empty() {
            return Ok(());
        }
        let (mut copy, mut patches) = (self.copy().await?, Vec::new());
        for (authority, turn) in turns {
            let key = Key::Authority(*authority);
            let (secret, before) = self.live(key).await?;
            if self.recorded(key).is_none_or(|record| record.digest != data_digest(&before)) {
                return Err(changed(&secret));
            }
            let Some(after) = self.rotated_secret(*authority, *turn, &before)? else { continue };
            patches.push((authority.secret(), patch(&secret, &before, &after)));
            copy.keys.insert(authority.secret().to_owned(), after);
        }
        if patches.is_empty() {
            return Ok(());
        }
        self.store(&mut copy).await?;
        for (name, patch) in patches {
            self.pass.writer().json_patch(&self.caches.secrets, &self.key(name), patch).await?;
        }
        Ok(())
    }

    /// The data of an authority's Secret after that step; `None` if the step is already done.
    fn rotated_secret(
        &self,
        authority: Authority,
        turn: RotationAction,
        before: &Data,
    ) -> Result<Option<Data>, SecretError> {
        let text = |key: &str| before.get(key).cloned();
        let (next, signs) = (text(NEXT_CERT).zip(text(NEXT_KEY)), text("tls.crt").unwrap_or_default());
        let mut after = before.clone();
        let mut set = |key: &str, value: String| drop(after.insert(key.to_owned(), value));
        match (turn, next) {
            (RotationAction::Trust, None) => {
                let made = self.made(authority)?;
                set("ca.crt", bundle(&[&signs, made.cert_pem()]));
                set(NEXT_CERT, made.cert_pem().to_owned());
                set(NEXT_KEY, made.key_pem());
            }
            (RotationAction::Sign, Some((certificate, key))) => {
                set("ca.crt", bundle(&[&certificate, &signs]));
                set("tls.crt", certificate);
                set("tls.key", key);
                after.retain(|key, _| key != NEXT_CERT && key != NEXT_KEY);
            }
            (RotationAction::Drop, None) => set("ca.crt", signs),
            (RotationAction::Trust, Some(_)) | (RotationAction::Sign, None) | (RotationAction::Drop, Some(_)) => {
                return Ok(None);
            }
        }
        Ok(Some(after))
    }

    /// Fails if the Secret exists: without its labels it is not in the cache, and pods use it all the same.
    async fn absent(&self, name: &str) -> Result<(), SecretError> {
        let api: Api<Secret> = Api::namespaced(self.pass.client(), &self.names.namespace);
        let found = api.get_opt(name).await.map_err(|error| SecretError::Read(name.to_owned(), error))?;
        match found {
            Some(_) => Err(creation::not_in_cache::<Secret>(self.pass, self.names, &self.key(name)).await.into()),
            None => Ok(()),
        }
    }

    async fn generate(&self, key: Key) -> Result<Data, SecretError> {
        let data = match key {
            Key::Authority(authority) => {
                let made = self.made(authority)?;
                let certificate = made.cert_pem().to_owned();
                let trusted = match authority {
                    Authority::Kubelet => self.trusted_for_kubelets(&certificate).await?,
                    _ => certificate.clone(),
                };
                vec![("ca.crt", trusted), ("tls.crt", certificate), ("tls.key", made.key_pem())]
            }
            Key::ServiceAccount => {
                let made = ServiceAccountKey::generate()
                    .map_err(|error| SecretError::Broken(SERVICE_ACCOUNT.to_owned(), error.to_string()))?;
                vec![("sa.key", made.private_pem), ("sa.pub", made.public_pem)]
            }
        };
        Ok(data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// The initial trust bundle for kubelets. Kubelets of a cluster that is older than this authority serve with certificates of the cluster's
    /// own authority until they renew them: that authority is trusted beside the new one until the next rotation drops it.
    async fn trusted_for_kubelets(&self, made: &str) -> Result<String, SecretError> {
        let (cluster, kubelet) = (Key::Authority(Authority::Cluster), Key::Authority(Authority::Kubelet));
        if self.recorded(cluster).is_none() || self.recorded(kubelet).is_some() {
            return Ok(made.to_owned());
        }
        let (_, data) = self.live(cluster).await?;
        Ok(bundle(&[made, data.get("tls.crt").map(String::as_str).unwrap_or_default()]))
    }

    /// The Secret of a key, and its data as text.
    pub async fn live(&self, key: Key) -> Result<(Secret, Data), SecretError> {
        let api: Api<Secret> = Api::namespaced(self.pass.client(), &self.names.namespace);
        let name = key.secret();
        let mut secret = api.get(name).await.map_err(|error| SecretError::Read(name.to_owned(), error))?;
        let data = secret.data.take().unwrap_or_default();
        let text = |(key, bytes): (String, ByteString)| Some((key, String::from_utf8(bytes.0).ok()?));
        Ok((secret, data.into_iter().filter_map(text).collect()))
    }

    /// The record of a key in the status.
    pub fn recorded(&self, key: Key) -> Option<&KeyStatus> {
        self.recorded.iter().find(|record| record.name == key.secret())
    }

    /// Reads and opens the copy. A copy that was sealed with a lost key counts as missing.
    async fn copy(&self) -> Result<Copy, SecretError> {
        let api: Api<Secret> = Api::namespaced(self.pass.client(), &self.caches.keys);
        let seal = seal(self.caches, self.pass, self.names).await?;
        let name = self.names.sealed_keys();
        let broken = |why: &str| SecretError::Broken(name.clone(), why.to_owned());
        let found = api.get_opt(&name).await.map_err(|error| SecretError::Read(name.clone(), error))?;
        let Some(secret) = found else { return Ok(Copy { seal, version: None, keys: BTreeMap::new() }) };
        if !self.names.owns(secret.labels()) {
            return Err(broken(
                "the Secret does not belong to this cluster: rename it, because the sealed copy of the cluster's keys has this name",
            ));
        }
        let data = secret.data.as_ref().and_then(|data| data.get(SEALED_DATA));
        let keys = data
            .and_then(|sealed| seal.open(&purpose(self.names), &sealed.0).ok())
            .and_then(|plain| serde_json::from_slice(&plain).ok())
            .unwrap_or_default();
        Ok(Copy { seal, version: secret.resource_version(), keys })
    }

    /// Writes the copy with the resourceVersion that was read as precondition.
    async fn store(&self, copy: &mut Copy) -> Result<(), SecretError> {
        let name = self.names.sealed_keys();
        let broken = |why: String| SecretError::Broken(name.clone(), why);
        let plain = serde_json::to_vec(&copy.keys).map_err(|error| broken(error.to_string()))?;
        let sealed = copy.seal.seal(&purpose(self.names), &plain).map_err(|error| broken(error.to_string()))?;
        let digests = copy.keys.iter().map(|(name, data)| (name.clone(), data_digest(data))).collect();
        let says = json!(Sealed { by: copy.seal.id(), keys: digests }).to_string();
        let key = ObjectKey::new(&self.caches.keys, &name);
        let data: BTreeMap<_, _> = [(SEALED_DATA.to_owned(), ByteString(sealed))].into();
        match &copy.version {
            Some(version) => {
                let annotations: BTreeMap<_, _> = [(names::SEALED, says)].into();
                let patch = JsonPatch::new()
                    .test_version(version)
                    .add(&["metadata", "annotations"], annotations)
                    .add(&["data"], data);
                self.pass.writer().json_patch(&self.caches.secrets, &key, patch).await?;
            }
            None => {
                let secret = Secret {
                    metadata: ObjectMeta {
                        name: Some(name.clone()),
                        namespace: Some(self.caches.keys.to_string()),
                        labels: Some(self.names.labels()),
                        annotations: Some([(names::SEALED.to_owned(), says)].into()),
                        ..ObjectMeta::default()
                    },
                    type_: Some("Opaque".to_owned()),
                    data: Some(data),
                    ..Secret::default()
                };
                if !self.pass.writer().create_in(&self.caches.secrets, &secret).await? {
                    let (what, message) = (format!("Secret {key}"), "another process created it".to_owned());
                    return Err(WriteError::Conflict { what, message }.into());
                }
            }
        }
        Ok(())
    }
}

/// The key that seals copies and [proofs](crate::claim). It is generated at its first use.
pub async fn seal(caches: &Caches, pass: &Pass, names: &Names) -> Result<SealKey, SecretError> {
    let api: Api<Secret> = Api::namespaced(pass.client(), &caches.keys);
    let failed = |error: fleetwright_pki::Error| SecretError::Broken(SEAL.to_owned(), error.to_string());
    for _ in 0..2 {
        let found = api.get_opt(SEAL).await.map_err(|error| SecretError::Read(SEAL.to_owned(), error))?;
        if let Some(secret) = found {
            let bytes = secret.data.as_ref().and_then(|data| data.get(SEAL_DATA));
            return bytes.and_then(|bytes| SealKey::from_bytes(&bytes.0)).ok_or_else(|| {
                let why = format!("its {SEAL_DATA} is not a key of 32 bytes: restore the Secret from a backup, or delete it to seal all copies again");
                SecretError::Broken(SEAL.to_owned(), why)
            });
        }
        let made = SealKey::generate().map_err(failed)?;
        let labels =
            [(names::CLUSTER_NAMESPACE, names.fleet.as_str()), ("app.kubernetes.io/managed-by", "fleetwright")];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(SEAL.to_owned()),
                namespace: Some(caches.keys.to_string()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some([(SEAL_DATA.to_owned(), ByteString(made.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        if pass.writer().create_in(&caches.secrets, &secret).await? {
            return Ok(made);
        }
    }
    Err(SecretError::Broken(SEAL.to_owned(), "the Secret was deleted right after it was created".to_owned()))
}

/// The data of each Secret in the sealed copy of a cluster's keys, by name. Nothing is created; a copy that cannot be opened counts as empty.
pub async fn opened(caches: &Caches, pass: &Pass, names: &Names) -> Result<BTreeMap<String, Data>, SecretError> {
    let api: Api<Secret> = Api::namespaced(pass.client(), &caches.keys);
    let name = names.sealed_keys();
    let seal = api.get_opt(SEAL).await.map_err(|error| SecretError::Read(SEAL.to_owned(), error))?;
    let copy = api.get_opt(&name).await.map_err(|error| SecretError::Read(name.clone(), error))?;
    let value = |secret: Option<Secret>, key: &str| secret?.data?.remove(key);
    let seal = value(seal, SEAL_DATA).and_then(|bytes| SealKey::from_bytes(&bytes.0));
    let plain =
        seal.zip(value(copy, SEALED_DATA)).and_then(|(seal, sealed)| seal.open(&purpose(names), &sealed.0).ok());
    Ok(plain.and_then(|plain| serde_json::from_slice(&plain).ok()).unwrap_or_default())
}

/// The purpose that a copy is sealed with: the copy of another cluster cannot be opened in its place.
fn purpose(names: &Names) -> String {
    format!("keys of Cluster {}/{}", names.fleet, names.name)
}

fn data_digest(data: &Data) -> String {
    key_digest(data.iter().map(|(key, value)| (key.as_str(), value.as_bytes())))
}

/// Whether that key is the recorded one. A copy that is one step of a rotation ahead trusts the recorded authority.
fn is_of(key: Key, data: &Data, record: &KeyStatus) -> bool {
    let trusted = data.get("ca.crt").map(String::as_str).unwrap_or_default();
    let all = trusted.split_inclusive("-----END CERTIFICATE-----").chain(data.get(key.public()).map(String::as_str));
    all.filter_map(fingerprint).any(|one| one == record.fingerprint)
}

/// A JSON patch that leads from what a Secret held to what it is to hold.
fn patch(secret: &Secret, before: &Data, after: &Data) -> JsonPatch {
    let mut patch = JsonPatch::new().test_version(secret.metadata.resource_version.as_deref().unwrap_or_default());
    for (key, value) in after.iter().filter(|(key, value)| before.get(*key) != Some(value)) {
        let value = ByteString(value.clone().into_bytes());
        patch = patch.add(&["data", key], value);
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch = patch.remove(&["data", key]);
    }
    patch
}

/// Error for a Secret that changed since the decision: the next pass decides again.
fn changed(secret: &Secret) -> SecretError {
    let what = format!("Secret {}/{}", secret.namespace().unwrap_or_default(), secret.name_any());
    WriteError::Conflict { what, message: "object was modified".to_owned() }.into()
}

/// Certificates one after another, as a file has them.
fn bundle(all: &[&str]) -> String {
    all.iter().map(|one| format!("{}\n", one.trim())).collect()
}

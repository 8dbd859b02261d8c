//! The keys that a cluster cannot lose: its authorities, and the key of service-account tokens.
//!
//! Guarantees:
//! - a key is generated once. After it is recorded in the status of the Cluster, or once the cluster has run, no other key takes its place unless a
//!   rotation or a person (annotation [`names::REPLACE_KEY`]) requests it;
//! - a sealed copy holds each key before a Secret of the control plane does, and a lost Secret is recreated from the copy with the same content;
//! - a Secret whose content is neither the recorded nor the sealed one is left as it is, and the operator signs and restarts nothing with it. Caveat: pods
//!   that run and mount the Secret read the changed files by themselves.

use std::collections::BTreeMap;

use fleetwright_api::{KeyStatus, names};

use super::Names;
use super::certificates::{Authority, SERVICE_ACCOUNT};
use super::observed::Observed;

/// The Secret, in the namespace of the Cluster-Operator's account, with the key that seals the copies.
pub const SEAL: &str = "fleetwright-seal";
/// Suffix of the names of sealed copies.
pub const SEALED_KEYS: &str = ".sealed-keys";
/// The key of that Secret's data.
pub const SEAL_DATA: &str = "key";
/// The key of a copy's data.
pub const SEALED_DATA: &str = "sealed";
/// The keys of a Secret's data that belong to an authority or a signing key.
const DATA: [&str; 7] = ["ca.crt", "tls.crt", "tls.key", "next.crt", "next.key", "sa.key", "sa.pub"];
/// Length of the fingerprint prefix that a person has to give.
const SHORT: usize = 16;

impl Names {
    /// The Secret, in the same namespace as [`SEAL`], with the sealed copy of its keys: it outlives the namespace of the control plane.
    pub fn sealed_keys(&self) -> String {
        format!("{}{SEALED_KEYS}", self.name)
    }
}

/// A key of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Authority(Authority),
    /// The key that signs service-account tokens.
    ServiceAccount,
}

impl Key {
    /// All keys.
    pub fn all() -> impl Iterator<Item = Self> {
        Authority::ALL.into_iter().map(Self::Authority).chain([Self::ServiceAccount])
    }

    /// The Secret that holds the key.
    pub const fn secret(self) -> &'static str {
        match self {
            Self::Authority(authority) => authority.secret(),
            Self::ServiceAccount => SERVICE_ACCOUNT,
        }
    }

    /// The data key with the public part.
    pub const fn public(self) -> &'static str {
        match self {
            Self::Authority(_) => "tls.crt",
            Self::ServiceAccount => "sa.pub",
        }
    }

    /// The key that a Secret of that name holds.
    pub fn of(secret: &str) -> Option<Self> {
        Self::all().find(|key| key.secret() == secret)
    }

    /// Whether clusters had this key before keys were recorded. A cluster without a record does not have the keys that were introduced later.
    const fn predates_records(self) -> bool {
        match self {
            Self::Authority(Authority::Cluster | Authority::Etcd | Authority::FrontProxy) | Self::ServiceAccount => {
                true
            }
            Self::Authority(Authority::Kubelet) => false,
        }
    }

    const fn lost_reason(self) -> &'static str {
        match self {
            Self::Authority(_) => names::reasons::AUTHORITY_LOST,
            Self::ServiceAccount => names::reasons::SERVICE_ACCOUNT_KEY_LOST,
        }
    }

    const fn changed_reason(self) -> &'static str {
        match self {
            Self::Authority(_) => names::reasons::AUTHORITY_CHANGED,
            Self::ServiceAccount => names::reasons::SERVICE_ACCOUNT_KEY_CHANGED,
        }
    }
}

/// Digest of the data of a Secret that belongs to its key. Other data in the Secret does not count.
pub fn key_digest<'a>(data: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    super::copied_secrets::digest(data.into_iter().filter(|(name, value)| DATA.contains(name) && !value.is_empty()))
}

/// State of a key's Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeySecret {
    /// The Secret does not exist.
    #[default]
    Missing,
    /// The Secret contains no valid key, or parts that do not belong together.
    Broken,
    /// The Secret contains a key.
    Valid {
        /// See [`KeyStatus::fingerprint`].
        fingerprint: String,
        /// See [`key_digest`].
        digest: String,
    },
}

/// Observed keys of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedKeys {
    /// State of each Secret; a key that is not listed is missing.
    pub held: BTreeMap<Key, KeySecret>,
    /// The digest of each key that the sealed copy holds, by the name of its Secret. Empty if there is no copy that can be opened.
    pub sealed: BTreeMap<String, String>,
    /// The namespace of the sealed copy.
    pub sealed_in: String,
    /// The value of [`names::REPLACE_KEY`].
    pub replace: Option<String>,
}

/// Steps for the keys, and their record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyDecision {
    /// Keys to generate: into the sealed copy first, then as Secrets.
    pub generate: Vec<Key>,
    /// Keys whose Secrets are recreated from the sealed copy.
    pub restore: Vec<Key>,
    /// Keys to write into the sealed copy, provided that their Secrets have these digests.
    pub seal: Vec<(Key, String)>,
    /// Record of the keys for the status.
    pub record: Vec<KeyStatus>,
    /// Keys whose replacement a person requested: the sealed copy may hold another key than the recorded one.
    pub requested: Vec<Key>,
    /// Lost or changed keys: a reason, and what to do.
    pub blocked: Option<(&'static str, String)>,
}

impl KeyDecision {
    /// Whether nothing is left to do or to record.
    pub fn settled(&self, recorded: &[KeyStatus]) -> bool {
        !self.acts() && self.blocked.is_none() && self.record == recorded
    }

    /// Whether Secrets are written: those of the control plane, or the sealed copy.
    pub fn acts(&self) -> bool {
        self.creates() || !self.seal.is_empty()
    }

    /// Whether Secrets of the control plane are created.
    pub(super) fn creates(&self) -> bool {
        !self.generate.is_empty() || !self.restore.is_empty()
    }

    /// Whether only the copy is written, with the recorded keys: everything else can be decided meanwhile.
    pub(super) fn only_seals(&self, recorded: &[KeyStatus]) -> bool {
        let known = |(key, digest): &(Key, String)| {
            recorded.iter().any(|record| record.name == key.secret() && record.digest == *digest)
        };
        !self.creates() && self.blocked.is_none() && self.record == recorded && self.seal.iter().all(known)
    }

    /// Whether only the copy and the record change, without any effect on the cluster.
    pub(super) fn silent(&self, recorded: &[KeyStatus]) -> bool {
        !self.creates() && self.blocked.is_none() && !self.only_seals(recorded)
    }
}

/// Decides the steps for the keys of a cluster.
pub(super) fn choose(seen: &Observed, known: &ObservedKeys) -> KeyDecision {
    let created = seen.status.package_version.is_some();
    let mut choice = KeyDecision::default();
    for key in Key::all() {
        let name = key.secret();
        let record = seen.status.keys.iter().find(|record| record.name == name);
        let sealed = known.sealed.get(name);
        let asked = |fingerprint: &str| known.replace.as_deref() == Some(&*request(key, fingerprint));
        let keep = |choice: &mut KeyDecision| choice.record.extend(record.cloned());
        if record.is_some_and(|record| asked(&record.fingerprint)) {
            choice.requested.push(key);
        }
        match known.held.get(&key).unwrap_or(&KeySecret::Missing) {
            KeySecret::Missing => {
                let fingerprint = record.map_or("", |record| &record.fingerprint);
                let ran = record.is_some() || created && key.predates_records();
                match sealed {
                    Some(_) => choice.restore.push(key),
                    None if ran && asked(fingerprint) => choice.generate.push(key),
                    None if ran => block(&mut choice, key.lost_reason(), || {
                        lost_message(&seen.names, &known.sealed_in, key, fingerprint)
                    }),
                    None => choice.generate.push(key),
                }
                keep(&mut choice);
            }
            KeySecret::Broken => {
                block(&mut choice, key.changed_reason(), || changed_message(&seen.names, key, record, None));
                keep(&mut choice);
            }
            KeySecret::Valid { fingerprint, digest } => {
                let ours = record.is_some_and(|record| record.digest == *digest);
                // The copy is written before the Secret: its content was generated by the operator.
                let made = sealed == Some(digest);
                if !ours && !made && (record.is_some() || sealed.is_some()) && !asked(fingerprint) {
                    block(&mut choice, key.changed_reason(), || {
                        changed_message(&seen.names, key, record, Some(fingerprint))
                    });
                    keep(&mut choice);
                    continue;
                }
                if !made {
                    choice.seal.push((key, digest.clone()));
                }
                if ours || made {
                    let (fingerprint, digest) = (fingerprint.clone(), digest.clone());
                    choice.record.push(KeyStatus { name: name.to_owned(), fingerprint, digest });
                } else {
                    keep(&mut choice);
                }
            }
        }
    }
    // A copy that cannot be opened may hold the lost key, and its seal key may be restored: the copy is not overwritten.
    if choice.blocked.is_some() {
        choice.seal.clear();
    }
    // The API server may return the entries of a list map in any order.
    let recorded = &seen.status.keys;
    if choice.record.len() == recorded.len() && choice.record.iter().all(|record| recorded.contains(record)) {
        choice.record.clone_from(recorded);
    }
    choice
}

fn block(choice: &mut KeyDecision, reason: &'static str, message: impl FnOnce() -> String) {
    choice.blocked.get_or_insert_with(|| (reason, message()));
}

/// The value of [`names::REPLACE_KEY`] with which a person requests the replacement of a key.
fn request(key: Key, fingerprint: &str) -> String {
    let short = if fingerprint.is_empty() { "unknown" } else { fingerprint.get(..SHORT).unwrap_or(fingerprint) };
    format!("{}@{short}", key.secret())
}

fn lost_message(names: &Names, sealed_in: &str, key: Key, fingerprint: &str) -> String {
    format!(
        "Secret {}/{} is missing, and its sealed copy (Secret {}/{}) is missing or cannot be decrypted. The control plane keeps running, but nothing is signed or restarted. Recreate one of the two Secrets from a backup, with its labels {}, or the first one from a snapshot with `fleetwright snapshot keys`; if \
         the key is lost, annotate the Cluster with {}={} to generate a new one, which disconnects everything that trusts the old one",
        names.namespace,
        key.secret(),
        sealed_in,
        names.sealed_keys(),
        names.label_arguments(),
        names::REPLACE_KEY,
        request(key, fingerprint)
    )
}

fn changed_message(names: &Names, key: Key, record: Option<&KeyStatus>, found: Option<&str>) -> String {
    let secret = format!("Secret {}/{}", names.namespace, key.secret());
    let recorded = record.map_or("", |record| record.fingerprint.get(..SHORT).unwrap_or(&record.fingerprint));
    let (holds, adopt) = match found {
        Some(found) => (
            format!("was changed: it holds {}", found.get(..SHORT).unwrap_or(found)),
            format!(
                "; to use its present content, annotate the Cluster with {}={}",
                names::REPLACE_KEY,
                request(key, found)
            ),
        ),
        None => ("was changed: it holds no valid key".to_owned(), String::new()),
    };
    format!(
        "{secret} {holds}, but the cluster uses {recorded}. The operator signs and restarts nothing with it; components that mount the Secret read it by themselves. Delete the Secret to restore it from the sealed copy; to replace authorities, use \
         spec.certificates.rotateAuthorities{adopt}"
    )
}

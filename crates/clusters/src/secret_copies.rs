//! Maintains copies of Secrets in the spec of a Cluster, in the namespace of its pods. Only data that a Secret shares with the Cluster is copied.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fleetwright_api::names;
use fleetwright_kit::{Key, Pass};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::copied_secrets::{CopiedSecret, SecretValue, digest};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;

use crate::caches::Caches;
use crate::errors::{ActError, Refusal};
use crate::secrets::SecretError;

type Data = BTreeMap<String, ByteString>;

/// A Secret of the Cluster's namespace, or the error of reading it.
enum SourceSecret {
    Missing,
    Found { annotations: BTreeMap<String, String>, data: Data },
}

/// Why pods would wait for a copy: a source is missing or not shared, and no copy with all values exists yet. Other errors are reported by [`copy`].
pub async fn missing(caches: &Caches, pass: &Pass, names: &Names, copies: &[CopiedSecret]) -> Option<SecretError> {
    let mut sources = BTreeMap::new();
    for copy in copies.iter().filter(|copy| !copy.parts.is_empty() && !is_whole(caches, names, copy)) {
        let gathered = gather(&mut sources, pass, names, copy).await;
        if let Some(error) = gathered.err().filter(SecretError::needs_person) {
            return Some(error);
        }
    }
    None
}

/// Whether a copy with all values that pods need exists.
fn is_whole(caches: &Caches, names: &Names, copy: &CopiedSecret) -> bool {
    let live = caches.secrets.get(&Key::new(&names.namespace, &copy.secret));
    live.is_some_and(|live| {
        let has = |part: &SecretValue| live.keys.iter().any(|key| **key == *part.to);
        live.copy.is_some() && copy.parts.iter().filter(|part| part.needed).all(has)
    })
}

/// Updates the copies. Their sources are read each time: there is no watch on Secrets that do not belong to the operator.
///
/// A source that is missing or not shared is an error, because pods would wait for the values. If the copy already has all values,
/// the pods have them too: then the copy is not changed, and the error is returned for the status. Neither such a source nor a write that the API
/// server refuses stops the other copies.
pub(crate) async fn copy(
    caches: &Caches,
    pass: &Pass,
    names: &Names,
    copies: &[CopiedSecret],
    refusal: &mut Refusal,
) -> Result<Option<SecretError>, ActError> {
    let (mut sources, mut trouble, mut lacks) = (BTreeMap::new(), None, None);
    for copy in copies {
        let key = Key::new(&names.namespace, &copy.secret);
        let is = caches.secrets.get(&key).and_then(|there| there.copy.clone());
        if is.is_none() && copy.parts.is_empty() {
            continue;
        }
        let data = match gather(&mut sources, pass, names, copy).await {
            Ok(data) => data,
            Err(error) if error.needs_person() => {
                let first = if is_whole(caches, names, copy) { &mut trouble } else { &mut lacks };
                first.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let wanted = digest(data.iter().map(|(key, value)| (key.as_str(), value.0.as_slice())));
        if is.as_deref() == Some(&*wanted) {
            continue;
        }
        let body = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": copy.secret, "namespace": names.namespace, "labels": names.labels(),
                "annotations": { names::SOURCE_HASH: wanted },
            },
            "data": data,
        });
        refusal.noted(pass.writer().apply(&caches.secrets, &key, &body).await)?;
    }
    match lacks {
        Some(error) => Err(error.into()),
        None => Ok(trouble),
    }
}

async fn gather(
    sources: &mut BTreeMap<String, SourceSecret>,
    pass: &Pass,
    names: &Names,
    copy: &CopiedSecret,
) -> Result<Data, SecretError> {
    let mut data = Data::new();
    for part in &copy.parts {
        data.extend(value(sources, pass, names, part).await?.map(|value| (part.to.clone(), value)));
    }
    Ok(data)
}

async fn value(
    sources: &mut BTreeMap<String, SourceSecret>,
    pass: &Pass,
    names: &Names,
    part: &SecretValue,
) -> Result<Option<ByteString>, SecretError> {
    let source = match sources.entry(part.from.clone()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => {
            let api: Api<Secret> = Api::namespaced(pass.client(), &names.fleet);
            let read = api.get_opt(&part.from).await.map_err(|error| SecretError::Read(part.from.clone(), error))?;
            unknown.insert(match read {
                None => SourceSecret::Missing,
                Some(secret) => SourceSecret::Found {
                    annotations: secret.metadata.annotations.unwrap_or_default(),
                    data: secret.data.unwrap_or_default(),
                },
            })
        }
    };
    let secret = || format!("{}/{}", names.fleet, part.from);
    let value = match source {
        SourceSecret::Missing => None,
        SourceSecret::Found { annotations, data } => {
            // Each field is checked separately: a Secret that may be used for one purpose may not be used for all.
            part.access.check(names, annotations).map_err(|denied| SecretError::NotShared {
                secret: secret(),
                cluster: names.name.clone(),
                field: part.field.clone(),
                denied,
            })?;
            data.get(&part.key).filter(|value| !value.0.is_empty()).cloned()
        }
    };
    if value.is_none() && part.needed {
        return Err(SecretError::Lacks { secret: secret(), key: part.key.clone(), field: part.field.clone() });
    }
    Ok(value)
}

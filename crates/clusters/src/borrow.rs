//! Keeps copies of Secrets that a Cluster refers to where its pods can have them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fleetwright_api::names;
use fleetwright_kit::{Key, Pass};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::borrowed::{Borrowed, Part, digest};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;

use crate::eyes::Eyes;
use crate::secrets::SecretError;

type Data = BTreeMap<String, ByteString>;

/// Brings copies up to date. What they are made from is read each time: nobody watches Secrets that are not the operator's.
pub async fn copy(eyes: &Eyes, pass: &Pass, names: &Names, copies: &[Borrowed]) -> Result<(), SecretError> {
    let mut sources = BTreeMap::new();
    for copy in copies {
        let key = Key::new(&names.namespace, &copy.secret);
        let is = eyes.secrets.get(&key).and_then(|there| there.copy.clone());
        if is.is_none() && copy.parts.is_empty() {
            continue;
        }
        let mut data = Data::new();
        for part in &copy.parts {
            data.extend(value(&mut sources, pass, names, part).await?.map(|value| (part.to.clone(), value)));
        }
        let wanted = digest(data.iter().map(|(key, value)| (key.as_str(), value.0.as_slice())));
        if is.as_deref() == Some(&*wanted) {
            continue;
        }
        let body = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": copy.secret, "namespace": names.namespace, "labels": names.labels(),
                "annotations": { names::COPY: wanted },
            },
            "data": data,
        });
        pass.writer().apply(&eyes.secrets, &key, &body).await?;
    }
    Ok(())
}

async fn value(
    sources: &mut BTreeMap<String, Data>,
    pass: &Pass,
    names: &Names,
    part: &Part,
) -> Result<Option<ByteString>, SecretError> {
    let source = match sources.entry(part.from.clone()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => {
            let api: Api<Secret> = Api::namespaced(pass.client(), &names.fleet);
            let read = api.get_opt(&part.from).await.map_err(|error| SecretError::Read(part.from.clone(), error))?;
            unknown.insert(read.and_then(|secret| secret.data).unwrap_or_default())
        }
    };
    let value = source.get(&part.key).filter(|value| !value.0.is_empty()).cloned();
    if value.is_none() && part.needed {
        let secret = format!("{}/{}", names.fleet, part.from);
        return Err(SecretError::Lacks { secret, key: part.key.clone(), field: part.field.clone() });
    }
    Ok(value)
}

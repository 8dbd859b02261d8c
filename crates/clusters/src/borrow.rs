//! Keeps copies of Secrets that a Cluster refers to where its pods can have them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fleetwright_api::{ClusterSpec, names};
use fleetwright_kit::{Key, Pass};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::borrowed::{Part, borrowed, digest};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;

use crate::eyes::Eyes;
use crate::secrets::SecretError;

type Data = BTreeMap<String, ByteString>;

/// Brings all copies up to date. What they are made from is read each time: nobody watches Secrets that are not the operator's.
pub async fn copy(eyes: &Eyes, pass: &Pass, names: &Names, spec: &ClusterSpec) -> Result<(), SecretError> {
    let mut sources = BTreeMap::new();
    for copy in borrowed(spec) {
        let key = Key::new(&names.namespace, &copy.secret);
        let there = eyes.secrets.get(&key);
        let mut data = Data::new();
        for part in &copy.parts {
            data.insert(part.to.clone(), value(&mut sources, pass, names, part).await?);
        }
        let is = there.as_ref().and_then(|there| there.copy.as_deref());
        let wanted = digest(data.iter().map(|(key, value)| (key.as_str(), value.0.as_slice())));
        if is.map_or(data.is_empty(), |is| is == wanted) {
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
) -> Result<ByteString, SecretError> {
    let source = match sources.entry(part.from.clone()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => {
            let api: Api<Secret> = Api::namespaced(pass.client(), &names.fleet);
            let read = api.get_opt(&part.from).await.map_err(|error| SecretError::Read(part.from.clone(), error))?;
            unknown.insert(read.and_then(|secret| secret.data).unwrap_or_default())
        }
    };
    let value = source.get(&part.key).filter(|value| !value.0.is_empty()).cloned();
    value.ok_or_else(|| SecretError::Lacks {
        secret: format!("{}/{}", names.fleet, part.from),
        key: part.key.clone(),
        field: part.field.clone(),
    })
}

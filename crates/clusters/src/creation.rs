//! Creates objects of a control plane, and reports those that exist without the labels by which the operator watches them.

use std::fmt::Debug;

use fleetwright_kit::{Cache, Key, Pass, View, WriteError};
use fleetwright_plan::cluster::Names;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::messages::api_error_message;

/// Creates the object, unless it exists. An object without the labels of the cluster is not in the cache: it would count as missing for ever.
///
/// # Errors
/// The write failed, or the object exists without the labels.
pub async fn create<V>(cache: &Cache<V>, pass: &Pass, names: &Names, object: &V::Object) -> Result<(), WriteError>
where
    V: View,
    V::Object: Resource<Scope = NamespaceResourceScope> + Serialize,
{
    let key = Key::of(object);
    if pass.writer().create_in(cache, object).await? || cache.get(&key).is_some() {
        return Ok(());
    }
    Err(not_in_cache::<V::Object>(pass, names, &key).await)
}

/// Why an object that exists is not in the cache.
pub async fn not_in_cache<K>(pass: &Pass, names: &Names, key: &Key) -> WriteError
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let (kind, namespace, name) = (K::kind(&()), &*key.namespace, &*key.name);
    let what = format!("{kind} {namespace}/{name}");
    let only = ListParams::default().fields(&format!("metadata.name={name}")).limit(1);
    let found = match Api::<K>::namespaced(pass.client(), namespace).list(&only).await {
        Ok(found) => found.items.into_iter().next(),
        Err(error) => return WriteError::Unknown { what, message: api_error_message(&error) },
    };
    if found.is_none_or(|object| names.owns(object.labels())) {
        let message = "object exists but is not in the cache yet".to_owned();
        return WriteError::Conflict { what, message };
    }
    let message = format!(
        "the object exists without the labels of this Cluster, so the operator does not see it: run kubectl label {} -n {namespace} {name} {}, or delete it if it is not the one that the cluster uses",
        kind.to_lowercase(),
        names.label_arguments()
    );
    WriteError::Refused { what, code: 409, message }
}

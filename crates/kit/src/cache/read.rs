//! Parses objects from the API server; an unparsable object does not hide the others.

use kube::ResourceExt;
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, de::Error};
use serde_json::value::RawValue;

use crate::Key;

/// An object, or why it cannot be parsed: a newer release may have written an unknown enum value, for example.
#[derive(Clone)]
pub(super) struct ParsedObject<K> {
    pub key: Key,
    pub version: String,
    pub object: Result<K, String>,
}

impl<K> ParsedObject<K> {
    /// The resourceVersion as a number; 0 if it is no number.
    pub fn number(&self) -> u64 {
        self.version.parse().unwrap_or_default()
    }
}

impl<'de, K: DeserializeOwned + ResourceExt> Deserialize<'de> for ParsedObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        match serde_json::from_str::<K>(text.get()) {
            Ok(object) => {
                let version = object.meta().resource_version.clone().unwrap_or_default();
                Ok(Self { key: Key::of(&object), version, object: Ok(object) })
            }
            Err(error) => {
                let ObjectWithMeta { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                let key = Key::new(&metadata.namespace, &metadata.name);
                Ok(Self { key, version: metadata.resource_version, object: Err(error.to_string()) })
            }
        }
    }
}

/// A list of parsed objects.
#[derive(Deserialize)]
#[serde(bound(deserialize = "ParsedObject<K>: Deserialize<'de>"))]
pub(super) struct Page<K> {
    #[serde(default)]
    pub metadata: PageMeta,
    pub items: Option<Vec<ParsedObject<K>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMeta {
    #[serde(default)]
    pub resource_version: String,
    #[serde(default, rename = "continue")]
    pub next: String,
}

/// Type and metadata of an object.
#[derive(Deserialize)]
struct ObjectWithMeta {
    metadata: ObjectKeyMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectKeyMeta {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    resource_version: String,
}

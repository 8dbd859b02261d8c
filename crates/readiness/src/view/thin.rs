use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

use super::managed::ManagedFieldsEntry;

/// Object metadata with only the fields that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub namespace: Option<String>,
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub resource_version: String,
    #[serde(default)]
    pub generation: i64,
    #[serde(default)]
    pub creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub managed_fields: Option<Vec<ManagedFieldsEntry>>,
}

impl Meta {
    /// Creation time.
    pub fn created(&self) -> Timestamp {
        self.creation_timestamp.unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// When anything but the object's status last changed.
    pub fn changed(&self) -> Timestamp {
        let entries = self.managed_fields.iter().flatten();
        let times = entries.filter(|entry| entry.subresource.is_empty()).filter_map(|entry| entry.time);
        times.fold(self.created(), Timestamp::max)
    }

    /// The fields of the metadata that the kit needs.
    pub fn object_meta(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.name.clone()),
            namespace: self.namespace.clone(),
            uid: Some(self.uid.clone()),
            resource_version: Some(self.resource_version.clone()),
            creation_timestamp: self.creation_timestamp.map(Time),
            ..ObjectMeta::default()
        }
    }
}

/// Parses a time that others than the API server write: kubelets, and writers of managedFields. One that cannot be
/// parsed, such as the last second of the year 9999,
/// counts as long ago, so that the rest of the object is decoded. That is the safe side: such a heartbeat is stale,
/// and a failing condition has failed for long enough to
/// close a Node. A holding condition has held for long enough to open it, which a lying kubelet can also report with a valid time.
pub fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(|text| text.parse::<Timestamp>().unwrap_or(Timestamp::UNIX_EPOCH)))
}

/// Defines an object that decodes directly into a view and otherwise behaves as another kind.
macro_rules! thin {
    ($(#[$doc:meta])* $name:ident, $view:ty, $raw:ty, $of:ty, $scope:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            view: $view,
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = <$raw as serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self { metadata: raw.metadata.object_meta(), view: <$view>::read(raw) })
            }
        }

        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = $scope;

            fn kind(dt: &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::kind(dt)
            }

            fn group(dt: &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::group(dt)
            }

            fn version(dt: &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::version(dt)
            }

            fn plural(dt: &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::plural(dt)
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }

        impl fleetwright_kit::View for $view {
            type Object = $name;

            fn of(object: $name) -> Self {
                object.view
            }
        }
    };
}
pub(super) use thin;

//! The inventory of extensions: objects are recorded before they are created, so that every one of them can be deleted later.

use std::collections::BTreeMap;

use fleetwright_api::ExtensionPlacement;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::Names;
use super::super::objects::{Kind, Object};
use super::ObjectRef;

/// The ConfigMap with the inventory, in the namespace of the control plane.
pub const INVENTORY: &str = "extensions";

/// The recorded objects of each extension.
pub(super) type Inventory = BTreeMap<String, InventoryEntry>;

/// The recorded objects of one extension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InventoryEntry {
    pub order: u32,
    pub placement: ExtensionPlacement,
    pub objects: Vec<ObjectRef>,
}

/// Parses the inventory.
pub(super) fn read(map: Option<&Value>) -> Inventory {
    let data = map.and_then(|map| map["data"].as_object()).into_iter().flatten();
    data.filter_map(|(name, text)| Some((name.clone(), serde_json::from_str(text.as_str()?).ok()?))).collect()
}

/// The inventory as a ConfigMap.
pub(super) fn object(names: &Names, inventory: &Inventory) -> Object {
    let data: BTreeMap<_, _> = inventory.iter().map(|(name, held)| (name, json!(held).to_string())).collect();
    let body = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": INVENTORY, "namespace": names.namespace, "labels": names.labels() },
        "data": data,
    });
    Object { kind: Kind::ConfigMap, name: INVENTORY.to_owned(), body }
}

//! What extensions brought, written down before it is brought, so that nothing is forgotten.

use std::collections::BTreeMap;

use fleetwright_api::ExtensionPlacement;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::Names;
use super::super::objects::{Kind, Object};
use super::ObjectRef;

/// The ConfigMap that holds it, in the namespace of the control plane.
pub const INVENTORY: &str = "extensions";

/// What each extension brought, or is about to.
pub(super) type Inventory = BTreeMap<String, InventoryEntry>;

/// What one extension brought.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InventoryEntry {
    pub order: u32,
    pub placement: ExtensionPlacement,
    pub objects: Vec<ObjectRef>,
}

/// What is written down.
pub(super) fn read(map: Option<&Value>) -> Inventory {
    let data = map.and_then(|map| map["data"].as_object()).into_iter().flatten();
    data.filter_map(|(name, text)| Some((name.clone(), serde_json::from_str(text.as_str()?).ok()?))).collect()
}

/// As it is written down.
pub(super) fn object(names: &Names, inventory: &Inventory) -> Object {
    let data: BTreeMap<_, _> = inventory.iter().map(|(name, held)| (name, json!(held).to_string())).collect();
    let body = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": INVENTORY, "namespace": names.namespace, "labels": names.labels() },
        "data": data,
    });
    Object { kind: Kind::ConfigMap, name: INVENTORY.to_owned(), body }
}

//! Images of rendered extensions.

use fleetwright_api::is_digest;
use serde_json::Value;

use super::restrictions::CONTAINERS;
use super::{ExtensionInputs, ObjectRef, render};

/// An image of an extension that is referenced by a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct TaggedImage {
    /// Name of the extension.
    pub extension: String,
    /// The object that references the image.
    pub object: ObjectRef,
    /// The image.
    pub image: String,
}

/// The images by tag of each extension. An extension that cannot be rendered is not applied, so it is left out.
pub(in super::super) fn tagged_images(given: &ExtensionInputs<'_>) -> Vec<TaggedImage> {
    let mut all = Vec::new();
    for one in render(given).into_iter().flatten() {
        for object in &one.objects {
            let tagged = images(object).into_iter().filter(|image| !is_digest(image));
            all.extend(tagged.map(|image| TaggedImage {
                extension: one.name.clone(),
                object: ObjectRef::of(object),
                image: image.to_owned(),
            }));
        }
    }
    all
}

/// The images of all containers and image volumes in the object, at any depth: pods, pod templates of workloads, and those of custom resources.
fn images(object: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    collect(object, &mut found);
    found
}

fn collect<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(items) => {
            for item in items {
                collect(item, found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let items = field.as_array().into_iter().flatten();
                if CONTAINERS.contains(&name.as_str()) {
                    found.extend(items.filter_map(|container| container["image"].as_str()));
                } else if name == "volumes" {
                    found.extend(items.filter_map(|volume| volume["image"]["reference"].as_str()));
                }
                collect(field, found);
            }
        }
        _ => {}
    }
}

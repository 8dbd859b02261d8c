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

/// The first image by tag of each extension. An extension that cannot be rendered is not applied, so it is left out.
pub(in super::super) fn tagged_images(given: &ExtensionInputs<'_>) -> Vec<TaggedImage> {
    let first = |objects: &[Value]| {
        objects.iter().find_map(|object| {
            let image = images(object).into_iter().find(|image| !is_digest(image))?;
            Some((ObjectRef::of(object), image.to_owned()))
        })
    };
    let rendered = render(given).into_iter().flatten();
    rendered
        .filter_map(|one| {
            let (object, image) = first(&one.objects)?;
            Some(TaggedImage { extension: one.name, object, image })
        })
        .collect()
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

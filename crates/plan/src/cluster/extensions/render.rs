//! Renders the template of an extension to objects.

use std::net::IpAddr;

use fleetwright_api::{Extension, ExtensionChoice, ExtensionPlacement, names};
use serde_json::{Map, Value, json};

use super::super::objects::{API_PORT, Kind};
use super::super::{certificates, digest};
use super::shipped::built_in;
use super::values::values;
use super::{EXTENSION, ExtensionError, ExtensionInputs, INVENTORY, ObjectRef, RenderedExtension, restrictions};
use crate::join::bundle_digest;
use crate::package::rendered;

/// Maximum number of objects of an extension in the meta cluster: one pass writes them.
pub const MAX_IN_META: usize = 8;
/// Maximum number of objects of an extension in the business cluster.
const MAX_COUNT: usize = 200;

/// Renders the extensions of a cluster, in their order; or returns why one cannot be rendered.
pub fn render(given: &ExtensionInputs<'_>) -> Vec<Result<RenderedExtension, ExtensionError>> {
    let (package, spec) = (given.package.1, given.spec);
    let choice = |name: &str| spec.extensions.iter().find(|choice| choice.name == name);
    let mut wanted: Vec<&Extension> = package
        .extensions
        .iter()
        .filter(|one| choice(&one.name).and_then(|choice| choice.enabled).unwrap_or(one.enabled))
        .collect();
    wanted.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    let mut taken: Vec<(ExtensionPlacement, ObjectRef, String)> = Vec::new();
    let own = built_in(&wanted, spec, package, address(given).0);
    let own = own.iter().map(|(extension, objects)| (extension, objects.clone()));
    let mut all: Vec<_> = own
        .chain(wanted.iter().map(|extension| (*extension, None)))
        .map(|(extension, objects)| {
            let made = match objects {
                Some(objects) => finish(given, extension, objects)?,
                None => one(given, extension, choice(&extension.name))?,
            };
            for object in &made.objects {
                let this = ObjectRef::of(object);
                if let Some((_, _, other)) = taken.iter().find(|(at, that, _)| *at == made.placement && that.is(&this))
                {
                    let message = match *other == made.name {
                        true => format!("{this} is defined twice"),
                        false => format!("{this} also belongs to extension {other}; an object can have only one owner"),
                    };
                    return Err(wrong(extension, message));
                }
                taken.push((made.placement, this, made.name.clone()));
            }
            Ok(made)
        })
        .collect();
    let strange = spec.extensions.iter().filter(|choice| choice.enabled != Some(false));
    for choice in strange.filter(|choice| package.extensions.iter().all(|one| one.name != choice.name)) {
        let there: Vec<_> = package.extensions.iter().map(|one| one.name.as_str()).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        all.push(Err(ExtensionError {
            extension: choice.name.clone(),
            place: "spec.extensions".to_owned(),
            message: format!("ClusterPackageVersion {} has no such extension; available: {there}", given.package.0),
            chosen: true,
        }));
    }
    all
}

fn wrong(extension: &Extension, message: String) -> ExtensionError {
    ExtensionError { extension: extension.name.clone(), place: "template".to_owned(), message, chosen: false }
}

fn one(
    given: &ExtensionInputs<'_>,
    extension: &Extension,
    choice: Option<&ExtensionChoice>,
) -> Result<RenderedExtension, ExtensionError> {
    let chosen = values(extension, choice)?;
    let defaults_only = choice.is_none_or(|choice| choice.values.is_none());
    if extension.placement != ExtensionPlacement::Meta || defaults_only {
        return with(given, extension, chosen);
    }
    let defaults = values(extension, None).map_err(|why| ExtensionError {
        place: "valuesSchema".to_owned(),
        message: format!("with placement Meta every value needs a valid default: {}", why.message),
        chosen: false,
        ..why
    })?;
    let plain = with(given, extension, defaults)?;
    // If the template renders with the defaults and not with these values, the error is in the Cluster.
    let made = with(given, extension, chosen).map_err(|why| ExtensionError {
        place: "values".to_owned(),
        chosen: true,
        ..why
    })?;
    match restrictions::difference(&plain.objects, &made.objects) {
        None => Ok(made),
        Some(why) => {
            let message = format!(
                "{why}; with placement Meta, values cannot change which objects exist and what runs in their pods"
            );
            Err(ExtensionError { place: "values".to_owned(), chosen: true, ..wrong(extension, message) })
        }
    }
}

/// Renders the extension with these values.
fn with(
    given: &ExtensionInputs<'_>,
    extension: &Extension,
    values: Value,
) -> Result<RenderedExtension, ExtensionError> {
    let wrong = |message| wrong(extension, message);
    let roots = [("cluster", Value::Object(cluster(given))), ("values", values)];
    let text = rendered(&roots, &extension.template).map_err(|message| {
        let hint = match message.contains("cluster.server") && given.server.is_none() {
            true => "; the cluster has no endpoint yet: set spec.endpoint.host if none is assigned automatically",
            false => "",
        };
        wrong(format!("{message}{hint}"))
    })?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| {
        let first = error.to_string().lines().next().unwrap_or_default().to_owned();
        wrong(format!("the rendered template is invalid YAML: {first}; write strings as {{{{ … | json }}}}"))
    })?;
    finish(given, extension, documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// Validates the objects, adds our labels, and sorts them.
fn finish(
    given: &ExtensionInputs<'_>,
    extension: &Extension,
    mut objects: Vec<Value>,
) -> Result<RenderedExtension, ExtensionError> {
    let wrong = |message| wrong(extension, message);
    let most = if extension.placement == ExtensionPlacement::Meta { MAX_IN_META } else { MAX_COUNT };
    if objects.len() > most {
        return Err(wrong(format!("{} objects exceed the limit of {most}; split the extension", objects.len())));
    }
    for (at, object) in objects.iter_mut().enumerate() {
        object_of(given, extension, object).map_err(|why| wrong(format!("document {}: {why}", at + 1)))?;
    }
    // Objects that others depend on come first.
    objects.sort_by_key(|object| {
        object["kind"].as_str().is_none_or(|kind| !["Namespace", "CustomResourceDefinition"].contains(&kind))
    });
    let digest = digest(&json!(objects).to_string(), 8);
    for object in &mut objects {
        let own = super::super::digest(&object.to_string(), 8);
        object["metadata"]["annotations"][names::APPLIED_HASH] = json!(own);
    }
    Ok(RenderedExtension {
        name: extension.name.clone(),
        order: extension.order,
        placement: extension.placement,
        objects,
        digest,
        health: extension.health.clone(),
    })
}

/// Host and port of the API servers for clients.
fn address<'a>(given: &ExtensionInputs<'a>) -> (Option<&'a str>, Option<u16>) {
    let address = given.server.and_then(|server| server.strip_prefix("https://")?.rsplit_once(':'));
    let host = address.map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
    (host, address.and_then(|(_, port)| port.parse().ok()))
}

/// The template variables of a cluster, with the names of `templates::CLUSTER`.
fn cluster(given: &ExtensionInputs<'_>) -> Map<String, Value> {
    let network = &given.spec.network;
    let (host, port) = address(given);
    let known = [
        ("name", json!(given.names.name)),
        ("fleet", json!(given.names.fleet)),
        ("namespace", json!(given.names.namespace)),
        ("labels", json!(given.labels)),
        ("kubernetes", json!(given.package.1.kubernetes)),
        ("packageVersion", json!(given.package.0)),
        ("server", json!(given.server)),
        ("serverHost", json!(host)),
        ("serverPort", json!(port)),
        ("internalServer", json!(format!("https://{}:{API_PORT}", given.names.apiserver()))),
        ("caBundle", json!(given.ca_bundle)),
        ("caDigest", json!(given.ca_bundle.map(bundle_digest))),
        ("pods", json!(network.pods)),
        ("services", json!(network.services)),
        ("dnsDomain", json!(network.dns_domain)),
        ("dnsAddress", json!(certificates::service_address(&network.services, 10).map(|ip: IpAddr| ip.to_string()))),
    ];
    // An unknown value is undefined, instead of empty.
    known.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Validates one object, and adds our labels.
fn object_of(given: &ExtensionInputs<'_>, extension: &Extension, object: &mut Value) -> Result<(), String> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    if !object.is_object() {
        return Err("not an object: apiVersion, kind and metadata are required".to_owned());
    }
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (Some(version), Some(kind)) = (version, kind) else {
        return Err("apiVersion and kind are required".to_owned());
    };
    if kind == "List" || kind.ends_with("List") && object.get("items").is_some() {
        return Err(format!("{kind} is not allowed; write each item as a document of its own, separated by ---"));
    }
    let Some(name) = text(&object["metadata"]["name"]) else {
        return Err(format!("{kind}: metadata.name is required and must be a string"));
    };
    let namespace = &object["metadata"]["namespace"];
    if !namespace.is_null() && text(namespace).is_none() {
        return Err(format!("{kind} {name}: metadata.namespace must be a string"));
    }
    for place in ["labels", "annotations"] {
        let map = &mut object["metadata"][place];
        match map {
            Value::Null => *map = json!({}),
            Value::Object(map) if map.values().all(Value::is_string) => {}
            _ => return Err(format!("{kind} {name}: metadata.{place} must have string values; put numbers in quotes")),
        }
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    mark(given, extension, &mut object["metadata"]["labels"]);
    if extension.placement == ExtensionPlacement::Meta {
        in_meta(given, extension, object, (&version, &kind, &name))?;
    }
    Ok(())
}

fn mark(given: &ExtensionInputs<'_>, extension: &Extension, labels: &mut Value) {
    for (key, value) in given.names.labels() {
        labels[key] = json!(value);
    }
    labels[EXTENSION] = json!(extension.name);
}

/// An object in the meta cluster must be in the namespace of the control plane, of a kind that the operator may write, and no part of the control
/// plane.
fn in_meta(
    given: &ExtensionInputs<'_>,
    extension: &Extension,
    object: &mut Value,
    (version, kind, name): (&str, &str, &str),
) -> Result<(), String> {
    let known = Kind::ALL.into_iter().find(|known| (known.api_version(), known.as_str()) == (version, kind));
    let Some(known) = known else {
        let kinds: Vec<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        return Err(format!(
            "{version} {kind} {name} is not allowed in the meta cluster; with placement Meta an extension may contain only {}",
            kinds.join(", ")
        ));
    };
    let here = &given.names.namespace;
    match object["metadata"]["namespace"].as_str() {
        None => object["metadata"]["namespace"] = json!(here),
        Some(namespace) if namespace == here => {}
        Some(namespace) => {
            return Err(format!(
                "{kind} {name} has metadata.namespace {namespace}; with placement Meta all objects are in the namespace of the control plane, so leave it unset"
            ));
        }
    }
    let ours = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    if name == INVENTORY
        || ours
            .iter()
            .any(|binary| name.strip_prefix(binary).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
    {
        return Err(format!("{kind} {name}: the name is reserved for the control plane; choose another name"));
    }
    if matches!(known, Kind::Deployment | Kind::StatefulSet) {
        // So that the pods are deleted as quickly as the others when the cluster is deleted.
        let labels = object.pointer_mut("/spec/template/metadata/labels").filter(|labels| labels.is_object());
        let Some(labels) = labels else {
            return Err(format!(
                "{kind} {name}: spec.template.metadata.labels is required and must match the selector"
            ));
        };
        mark(given, extension, labels);
    }
    restrictions::confine(known, &extension.name, object).map_err(|why| format!("{kind} {name}: {why}"))
}

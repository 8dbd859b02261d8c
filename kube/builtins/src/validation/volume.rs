//! The volumes of a pod.

use std::collections::BTreeSet;

use fleetwright_schema::FieldError;
use serde_json::Value;

use crate::access::{get, int, invalid_each, list, text};
use crate::names;
use crate::validation::container::field_ref;
use crate::validation::storage;

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const DOWNWARD_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Checks the volumes of a pod spec, and returns those that a container can mount.
pub(super) fn validate(spec: &Value, path: &str) -> (BTreeSet<String>, Vec<FieldError>) {
    let mut errors = Vec::new();
    let mut usable = BTreeSet::new();
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        let at = format!("{path}[{index}]");
        let mut wrong = sources(volume, &at);
        let name = text(volume, "name");
        if name.is_empty() {
            wrong.push(FieldError::required(format!("{at}.name"), ""));
        } else {
            wrong.extend(invalid_each(&format!("{at}.name"), name, names::dns_label(name)));
        }
        if usable.contains(name) {
            wrong.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        if wrong.is_empty() {
            usable.insert(name.to_owned());
        }
        errors.extend(wrong);
    }
    (usable, errors)
}

fn sources(volume: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut found = 0;
    let fields = volume.as_object().into_iter().flatten();
    for (key, source) in fields.filter(|(key, source)| *key != "name" && !source.is_null()) {
        found += 1;
        let at = format!("{path}.{key}");
        if found > 1 {
            errors.push(FieldError::forbidden(at, "may not specify more than 1 volume type"));
            continue;
        }
        errors.extend(source_errors(key, source, &at));
    }
    if found == 0 {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    errors
}

fn source_errors(key: &str, source: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let required = |key: &str| text(source, key).is_empty().then(|| FieldError::required(format!("{path}.{key}"), ""));
    match key {
        "secret" => {
            errors.extend(required("secretName"));
            errors.extend(files(source, path));
        }
        "configMap" => {
            errors.extend(required("name"));
            errors.extend(files(source, path));
        }
        "persistentVolumeClaim" => errors.extend(required("claimName")),
        "hostPath" => errors.extend(host_path(source, path)),
        "nfs" => {
            errors.extend(required("server"));
            errors.extend(required("path"));
            let point = text(source, "path");
            if !point.is_empty() && !point.starts_with('/') {
                errors.push(FieldError::invalid(format!("{path}.path"), point, "must be an absolute path"));
            }
        }
        "csi" => {
            let driver = text(source, "driver");
            if driver.is_empty() {
                errors.push(FieldError::required(format!("{path}.driver"), ""));
            } else {
                let error_text = names::dns_subdomain(&driver.to_lowercase());
                errors.extend(invalid_each(&format!("{path}.driver"), driver, error_text));
            }
        }
        "downwardAPI" => {
            errors.extend(mode(source, "defaultMode", path));
            errors.extend(downward_items(source, path));
        }
        "projected" => {
            errors.extend(mode(source, "defaultMode", path));
            for (index, projection) in list(source, "sources").iter().enumerate() {
                errors.extend(projection_errors(projection, path, index));
            }
        }
        "ephemeral" => match get(source, "volumeClaimTemplate") {
            None => errors.push(FieldError::required(format!("{path}.volumeClaimTemplate"), "")),
            Some(template) => {
                let spec = template.get("spec").unwrap_or(&Value::Null);
                errors.extend(storage::claim_spec(spec, &format!("{path}.volumeClaimTemplate.spec")));
            }
        },
        _ => {}
    }
    errors
}

pub(super) fn host_path(source: &Value, path: &str) -> Vec<FieldError> {
    let point = text(source, "path");
    if point.is_empty() {
        return vec![FieldError::required(format!("{path}.path"), "")];
    }
    let mut errors = Vec::new();
    if point.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(format!("{path}.path"), point, "must not contain '..'"));
    }
    let types = ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let ty = text(source, "type");
    if !types.contains(&ty) {
        errors.push(FieldError::not_supported(format!("{path}.type"), ty, &types));
    }
    errors
}

fn mode(holder: &Value, key: &str, path: &str) -> Option<FieldError> {
    let mode = int(holder, key).filter(|mode| !(0..=0o777).contains(mode))?;
    Some(FieldError::invalid(format!("{path}.{key}"), mode, FILE_MODE))
}

fn files(source: &Value, path: &str) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = mode(source, "defaultMode", path).into_iter().collect();
    for (index, item) in list(source, "items").iter().enumerate() {
        let at = format!("{path}.items[{index}]");
        for key in ["key", "path"] {
            if text(item, key).is_empty() {
                errors.push(FieldError::required(format!("{at}.{key}"), ""));
            }
        }
        errors.extend(relative(text(item, "path"), &format!("{at}.path")));
        errors.extend(mode(item, "mode", &at));
    }
    errors
}

fn relative(target: &str, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if target.starts_with('/') {
        errors.push(FieldError::invalid(path, target, "must be a relative path"));
    }
    if target.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, target, "must not contain '..'"));
    } else if target.starts_with("..") {
        errors.push(FieldError::invalid(path, target, "must not start with '..'"));
    }
    errors
}

fn downward_items(source: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, item) in list(source, "items").iter().enumerate() {
        let at = format!("{path}.items[{index}]");
        if text(item, "path").is_empty() {
            errors.push(FieldError::required(format!("{at}.path"), ""));
        }
        errors.extend(relative(text(item, "path"), &format!("{at}.path")));
        match (get(item, "fieldRef"), get(item, "resourceFieldRef")) {
            (Some(_), Some(_)) => {
                let error_text = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(at.clone(), "resource", error_text));
            }
            (Some(reference), None) => {
                errors.extend(field_ref(reference, &DOWNWARD_FIELDS, &format!("{at}.fieldRef")));
            }
            (None, Some(reference)) => {
                if text(reference, "containerName").is_empty() {
                    errors.push(FieldError::required(format!("{at}.resourceFieldRef.containerName"), ""));
                }
            }
            (None, None) => {
                let error_text = "one of fieldRef and resourceFieldRef is required";
                errors.push(FieldError::required(format!("{at}.fieldRef"), error_text));
            }
        }
        errors.extend(mode(item, "mode", &at));
    }
    errors
}

fn projection_errors(projection: &Value, volume: &str, index: usize) -> Vec<FieldError> {
    let path = format!("{volume}.sources[{index}]");
    let mut errors = Vec::new();
    let known = ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
    let found: Vec<&str> = known.into_iter().filter(|key| get(projection, key).is_some()).collect();
    for (index, key) in found.iter().enumerate() {
        let at = format!("{path}.{key}");
        if index > 0 {
            errors.push(FieldError::forbidden(at, "may not specify more than 1 volume type"));
            continue;
        }
        let source = projection.get(key).unwrap_or(&Value::Null);
        match *key {
            "secret" | "configMap" => {
                if text(source, "name").is_empty() {
                    errors.push(FieldError::required(format!("{at}.name"), ""));
                }
                errors.extend(files(source, &at));
            }
            "downwardAPI" => errors.extend(downward_items(source, &at)),
            "serviceAccountToken" => {
                let seconds = int(source, "expirationSeconds").unwrap_or(3600);
                let field = format!("{at}.expirationSeconds");
                if seconds < 600 {
                    let error_text = "may not specify a duration less than 10 minutes";
                    errors.push(FieldError::invalid(field, seconds, error_text));
                } else if seconds > 1 << 32 {
                    let error_text = "may not specify a duration larger than 2^32 seconds";
                    errors.push(FieldError::invalid(field, seconds, error_text));
                }
                if text(source, "path").is_empty() {
                    errors.push(FieldError::required(format!("{volume}.path"), ""));
                }
            }
            _ => {}
        }
    }
    errors
}

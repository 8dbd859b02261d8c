//! The examples that the page of reference links to.

use std::path::Path;

use fleetwright_api::{Report, crds};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::server::Server;

fn example<T: DeserializeOwned>(name: &str) -> T {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples").join(format!("{name}.yaml"));
    let yaml = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The package versions that the project ships, with their places filled in.
async fn shipped_packages(server: &Server) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packages");
    let mut seen = 0;
    for folder in [folder.clone(), folder.join("methods")] {
        for file in std::fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file").path()) {
            if file.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let mut yaml = std::fs::read_to_string(&file).expect("a text");
            for (place, value) in [
                ("@NAME@", "a-1"),
                ("@VERSION@", "1.2.3"),
                ("@PACKAGE_VERSION@", "1.2.3-1"),
                ("@URL@", "http://packages.example.com/a"),
                ("@SHA256@", crate::packages::SHA),
            ] {
                yaml = yaml.replace(place, value);
            }
            let package: serde_json::Value =
                serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            if let Err(status) = server.create(&package, true).await {
                panic!("{}: {}", file.display(), status.message);
            }
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} were found");
}

/// The examples in the guide, which people copy.
async fn guide(server: &Server) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/clusters.md");
    let guide = std::fs::read_to_string(&file).expect("the guide is there");
    let examples: Vec<_> = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 6, "{} has {} examples", file.display(), examples.len());
    for example in examples {
        let object = serde_saphyr::from_str(example).unwrap_or_else(|error| panic!("{error}\n{example}"));
        match server.create(&object, true).await {
            // Nothing was dropped because the kind has no such field.
            Ok(created) => is_within(&object["spec"], &created["spec"], "spec"),
            Err(status) => panic!("{}\n{example}", status.message),
        }
    }
}

fn is_within(given: &Value, kept: &Value, path: &str) {
    match given {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| is_within(value, &kept[name], &format!("{path}.{name}")));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| is_within(item, &kept[at], &format!("{path}[{at}]")));
        }
        value => assert_eq!(value, kept, "{path}"),
    }
}

pub async fn all(server: &Server) {
    for crd in crds() {
        let name = crd.spec.names.singular.expect("a kind has a singular");
        if let Err(status) = server.create(&example(&name), true).await {
            panic!("{name}: {}", status.message);
        }
    }
    shipped_packages(server).await;
    guide(server).await;
    let map: ConfigMap = example("report");
    let api: Api<ConfigMap> = Api::namespaced(server.client.clone(), "default");
    let map = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &map).await.expect("it is allowed");
    let name = map.metadata.name.expect("it has a name");
    let report = Report::read(&name, &map.metadata.labels.unwrap_or_default(), &map.data.unwrap_or_default());
    assert_eq!(report.expect("it is a report").conditions.len(), 1);
}

//! The examples that the page of reference links to.

use std::path::Path;

use fleetwright_api::{Report, crds};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde::de::DeserializeOwned;

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

pub async fn all(server: &Server) {
    for crd in crds() {
        let name = crd.spec.names.singular.expect("a kind has a singular");
        if let Err(status) = server.create(&example(&name), true).await {
            panic!("{name}: {}", status.message);
        }
    }
    shipped_packages(server).await;
    let map: ConfigMap = example("report");
    let api: Api<ConfigMap> = Api::namespaced(server.client.clone(), "default");
    let map = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &map).await.expect("it is allowed");
    let name = map.metadata.name.expect("it has a name");
    let report = Report::read(&name, &map.metadata.labels.unwrap_or_default(), &map.data.unwrap_or_default());
    assert_eq!(report.expect("it is a report").conditions.len(), 1);
}

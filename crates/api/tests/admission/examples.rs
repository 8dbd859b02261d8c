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

pub async fn all(server: &Server) {
    for crd in crds() {
        let name = crd.spec.names.singular.expect("a kind has a singular");
        if let Err(status) = server.create(&example(&name), true).await {
            panic!("{name}: {}", status.message);
        }
    }
    let map: ConfigMap = example("report");
    let api: Api<ConfigMap> = Api::namespaced(server.client.clone(), "default");
    let map = api.create(&PostParams { dry_run: true, ..PostParams::default() }, &map).await.expect("it is allowed");
    let name = map.metadata.name.expect("it has a name");
    let report = Report::read(&name, &map.metadata.labels.unwrap_or_default(), &map.data.unwrap_or_default());
    assert_eq!(report.expect("it is a report").conditions.len(), 1);
}

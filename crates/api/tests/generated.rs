//! Files made out of the types are as the types are.

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Compares a file of the repository with what it should hold; with `UPDATE=1` in the environment, writes it.
fn is_fresh(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().expect("a file is in a folder")).expect("the folder can be made");
        std::fs::write(&file, expected).expect("the file can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let line = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{path} is stale from line {} on: make it again with `UPDATE=1 cargo test -p fleetwright-api --test generated` and commit it",
        line.unwrap_or_else(|| found.lines().count().min(expected.lines().count())) + 1,
    );
}

#[test]
fn the_definitions_in_deploy_are_fresh() {
    is_fresh("deploy/crds.yaml", &fleetwright_api::crds_yaml());
}

#[test]
fn the_page_of_reference_is_fresh() {
    is_fresh("docs/reference/kinds.md", &fleetwright_api::kinds_markdown());
}

#[test]
fn the_definitions_read_back_as_they_are() {
    let yaml = fleetwright_api::crds_yaml();
    let read: Vec<serde_json::Value> = serde_saphyr::from_multiple(&yaml).expect("it is YAML");
    let read: Vec<_> = read.into_iter().filter(|document| !document.is_null()).map(as_definition).collect();
    assert_eq!(read, fleetwright_api::crds());
}

fn as_definition(value: serde_json::Value) -> CustomResourceDefinition {
    serde_json::from_value(value).expect("it is a definition")
}

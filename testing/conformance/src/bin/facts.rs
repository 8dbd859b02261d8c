//! Writes the facts of the real server's OpenAPI about built-in types into `kube/builtins/src/facts.txt`; with `--check`,
//! only checks whether the file is up to date.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fleetwright_lab::ControlPlane;
use serde_json::Value;

#[tokio::main]
async fn main() -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kube/builtins/src/facts.txt");
    let plane = ControlPlane::builder().start().await?;
    let facts = fleetwright_builtins::facts::generate(documents(&plane.client()).await?.into_iter());
    if !std::env::args().any(|argument| argument == "--check") {
        return std::fs::write(&file, facts).with_context(|| format!("writing {}", file.display()));
    }
    let committed = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    if committed == facts {
        return Ok(());
    }
    for line in facts.lines().filter(|line| !committed.contains(line)) {
        println!("+ {line}");
    }
    for line in committed.lines().filter(|line| !facts.contains(line)) {
        println!("- {line}");
    }
    bail!("kube/builtins/src/facts.txt is not what the real server says: run `make generate` and read the difference")
}

/// Every OpenAPI v3 document of a server.
async fn documents(client: &kube::Client) -> Result<Vec<Value>> {
    let get = async |path: &str| -> Result<Value> {
        let request = http::Request::get(path).body(Vec::new())?;
        client.request(request).await.with_context(|| format!("reading {path}"))
    };
    let index = get("/openapi/v3").await?;
    let mut documents = Vec::new();
    for entry in index["paths"].as_object().context("/openapi/v3 has no paths")?.values() {
        let url = entry["serverRelativeURL"].as_str().context("an OpenAPI document without an address")?;
        documents.push(get(url).await?);
    }
    Ok(documents)
}

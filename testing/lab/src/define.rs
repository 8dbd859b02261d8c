use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::Condition;
use kube::{Api, Client, ResourceExt};

/// Longer than a busy server needs.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates these CustomResourceDefinitions, and returns when the server serves them.
///
/// # Errors
/// The server refuses one, or does not serve it within a minute.
pub async fn define(client: &Client, kinds: &[CustomResourceDefinition]) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("lab").force();
    for kind in kinds {
        let name = kind.name_any();
        definitions
            .patch(&name, &params, &Patch::Apply(kind))
            .await
            .with_context(|| format!("cannot define {name}"))?;
    }
    served(client, kinds).await
}

/// Returns when the server serves these CustomResourceDefinitions, which exist already.
///
/// # Errors
/// One does not exist, or is not served within a minute.
pub async fn served(client: &Client, kinds: &[CustomResourceDefinition]) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let deadline = Instant::now() + WAIT_TIMEOUT;
    for kind in kinds {
        let name = kind.name_any();
        loop {
            let found = definitions.get(&name).await.with_context(|| format!("cannot read the definition {name}"))?;
            if is_crd_established().matches_object(Some(&found)) {
                break;
            }
            let conditions = found.status.and_then(|status| status.conditions);
            ensure!(
                Instant::now() < deadline,
                "timed out after {WAIT_TIMEOUT:?}: {name} is not established: {conditions:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The condition Established is set before every path is served.
        let version = kind.spec.versions.iter().find(|version| version.served).map(|version| version.name.as_str());
        let (group, plural) = (&kind.spec.group, &kind.spec.names.plural);
        let path = format!("/apis/{group}/{}/{plural}?limit=1", version.unwrap_or_default());
        loop {
            let answer = client.send(Request::get(&path).body(Body::empty())?).await?.status();
            if answer.is_success() {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{name}: timed out after {WAIT_TIMEOUT:?}: {path} responded with {answer}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

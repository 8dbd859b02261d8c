//! The minor of etcd: it is upgraded with the other components, and stays when those are rolled back.

use fleetwright_plan::cluster::certificates::OPERATOR_ETCD;
use fleetwright_plan::cluster::objects::ETCD_PORT;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::PropagationPolicy;

use super::*;

/// A package version that no other cluster refers to, so that it can be deleted.
pub(super) const NEWER: &str = "v1.37-newer";

/// Creates [`NEWER`], with the content of v1.37.
pub(super) async fn newer(world: &MetaFixture) -> Result<()> {
    let spec = packages(world).get("v1.37").await?.spec;
    let old = packages(world).get("v1.36").await?.spec;
    let (old, new) = (old.components.etcd.image, spec.components.etcd.image.clone());
    ensure!(old != new, "both minors have {new}: nothing of etcd would change");
    packages(world).create(&PostParams::default(), &ClusterPackageVersion::new(NEWER, spec)).await?;
    Ok(())
}

fn packages(world: &MetaFixture) -> Api<ClusterPackageVersion> {
    Api::namespaced(world.client.clone(), FLEET)
}

fn sets(world: &MetaFixture) -> Api<StatefulSet> {
    Api::namespaced(world.client.clone(), "fleet-pay")
}

/// The version of etcd that comes with v1.37.
fn version() -> Result<&'static str> {
    Ok(Binaries::etcd_version("1.37")?.trim_start_matches('v'))
}

/// Waits until etcd works with its newer minor and API servers write again: a single member does not answer while it restarts.
pub(super) async fn upgraded(world: &MetaFixture, client: Client) -> Result<()> {
    let version = version()?;
    eventually("etcd to be upgraded", async || {
        let status = world.clusters().get("pay").await?.status.unwrap_or_default();
        let runs = status.etcd.as_ref().and_then(|etcd| etcd.version.as_deref()) == Some(version);
        let healthy = fleetwright_api::is_true(&status.conditions, names::DATASTORE_HEALTHY);
        Ok(if runs && healthy { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    eventually("writes to succeed again", async || {
        for _ in 0..20 {
            let metadata = ObjectMeta { generate_name: Some("again-".to_owned()), ..ObjectMeta::default() };
            let map = ConfigMap { metadata, ..ConfigMap::default() };
            if let Err(error) = maps.create(&PostParams::default(), &map).await {
                return Ok(Err(error.to_string()));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Ok(()))
    })
    .await
}

/// After a rollback etcd stays at the newer minor, also when its StatefulSet and the package version that it was made from are deleted. Its container does not restart.
pub(super) async fn stays(world: &MetaFixture) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    let before = pods.get("etcd-0").await?.uid();
    is_newer(world).await?;

    let old = delete_set(world).await?;
    created_again(world, old.as_deref()).await?;
    world.ready("pay").await?;
    is_newer(world).await?;

    let spec = packages(world).get(NEWER).await?.spec;
    packages(world).delete(NEWER, &DeleteParams::default()).await?;
    eventually("MembersUpToDate to name the package version", async || {
        let status = world.clusters().get("pay").await?.status.unwrap_or_default();
        let one = fleetwright_api::condition(&status.conditions, names::MEMBERS_UP_TO_DATE);
        let is_named = |one: &fleetwright_api::Condition| {
            one.reason == names::reasons::PACKAGE_VERSION_NOT_FOUND && one.message.contains(NEWER)
        };
        Ok(if one.is_some_and(is_named) { Ok(()) } else { Err(format!("{one:?}")) })
    })
    .await?;
    let old = delete_set(world).await?;
    // Long enough for a reconcile: no StatefulSet is created with the older etcd.
    tokio::time::sleep(Duration::from_secs(5)).await;
    ensure!(sets(world).get_opt("etcd").await?.is_none(), "a StatefulSet was created without {NEWER}");
    is_serving(world).await?;
    packages(world).create(&PostParams::default(), &ClusterPackageVersion::new(NEWER, spec)).await?;
    created_again(world, old.as_deref()).await?;
    world.ready("pay").await?;
    is_newer(world).await?;
    let now = pods.get("etcd-0").await?.uid();
    ensure!(now == before, "etcd-0 was recreated: {before:?} became {now:?}");
    Ok(())
}

/// Deletes the StatefulSet without its pods; answers its uid.
async fn delete_set(world: &MetaFixture) -> Result<Option<String>> {
    let uid = sets(world).get("etcd").await?.uid();
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    sets(world).delete("etcd", &orphan).await?;
    eventually("the StatefulSet to be gone", async || {
        let found = sets(world).get_opt("etcd").await?.map(|set| set.uid());
        Ok(if found.as_ref() == Some(&uid) { Err("it is being deleted".to_owned()) } else { Ok(()) })
    })
    .await?;
    Ok(uid)
}

/// Waits until there is another StatefulSet than that, with the newer etcd from the first moment.
async fn created_again(world: &MetaFixture, old: Option<&str>) -> Result<()> {
    let set = eventually("the StatefulSet to be created again", async || {
        let found = sets(world).get_opt("etcd").await?.filter(|set| set.uid().as_deref() != old);
        Ok(found.ok_or_else(|| "there is none".to_owned()))
    })
    .await?;
    let containers = set.spec.template.spec.map(|pod| pod.containers).unwrap_or_default();
    let image = containers.into_iter().next().and_then(|container| container.image).unwrap_or_default();
    ensure!(image.ends_with(&format!(":v{}", version()?)), "it was created with {image}");
    Ok(())
}

/// Etcd runs the newer minor, its data is of that, and the status records it.
async fn is_newer(world: &MetaFixture) -> Result<()> {
    is_serving(world).await?;
    let recorded = world.clusters().get("pay").await?.status.and_then(|status| status.etcd);
    let recorded = recorded.map(|etcd| (etcd.version, etcd.package_version));
    let wanted = (Some(version()?.to_owned()), Some(NEWER.to_owned()));
    ensure!(recorded == Some(wanted), "the record is {recorded:?}");
    Ok(())
}

/// Asks etcd itself.
async fn is_serving(world: &MetaFixture) -> Result<()> {
    use base64::Engine as _;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    let ip = pods.get("etcd-0").await?.status.and_then(|status| status.pod_ip).context("etcd-0 has no address")?;
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "fleet-pay");
    let data = secrets.get(OPERATOR_ETCD).await?.data.unwrap_or_default();
    let text = |key: &str| base64::prelude::BASE64_STANDARD.encode(&data[key].0);
    let config: Kubeconfig = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "etcd",
            "cluster": {
                "server": format!("https://{ip}:{ETCD_PORT}"), "tls-server-name": "etcd.fleet-pay.svc",
                "certificate-authority-data": text("ca.crt"),
            },
        }],
        "users": [{ "name": "etcd", "user": { "client-certificate-data": text("tls.crt"), "client-key-data": text("tls.key") } }],
        "contexts": [{ "name": "etcd", "context": { "cluster": "etcd", "user": "etcd" } }],
        "current-context": "etcd",
    }))?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let request = http::Request::post("/v3/maintenance/status").header("content-type", "application/json");
    let status = Client::try_from(config)?.request(request.body(b"{}".to_vec())?).await;
    let status: Value = status.context("cannot read the status of etcd-0")?;
    let wanted = version()?;
    let (major_minor, _) = wanted.rsplit_once('.').context("it has three parts")?;
    let data = status["storageVersion"].as_str().unwrap_or_default();
    ensure!(status["version"] == wanted && data.starts_with(major_minor), "etcd says {status}");
    Ok(())
}

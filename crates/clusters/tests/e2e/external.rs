//! A cluster on an etcd that somebody else runs, in which others keep things too.

use std::collections::BTreeMap;

use fleetwright_api::{Datastore, Status};
use fleetwright_lab::Etcd;
use k8s_openapi::api::apps::v1::StatefulSet;

use super::*;

/// What its keys begin with.
const OWN: &str = "/fleet/shop/";

/// Made, written to, upgraded and deleted there; what others keep in that etcd stays as it is, and so does what the cluster wrote.
pub(super) async fn live_on(world: &MetaFixture) -> Result<()> {
    let etcd = Etcd::start(world.meta.site.network.address()).await?;
    // Keys of a cluster whose name starts with that of this one, and of an API server with the default prefix.
    for key in ["/fleet/shopping/configmaps/default/theirs", "/fleet/shop", "/registry/configmaps/default/theirs"] {
        etcd.put(key, "of somebody else").await?;
    }
    let others = others(&etcd).await?;
    create(world, &etcd).await?;
    let begun = Instant::now();
    let status = world.ready("shop").await?;
    eprintln!("external: proven Ready after {:?}", begun.elapsed());
    let healthy = fleetwright_api::condition(&status.conditions, names::DATASTORE_HEALTHY);
    ensure!(healthy.is_some_and(|one| one.status == Status::Unknown), "{status:#?}");
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), "fleet-shop");
    ensure!(sets.list(&Default::default()).await?.items.is_empty(), "it has no etcd of its own");

    let endpoint = status.endpoint.context("it has an endpoint")?;
    let client = world.business("shop", &endpoint).await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let kept = ConfigMap {
        metadata: ObjectMeta { name: Some("kept".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &kept).await?;
    let key = format!("{OWN}configmaps/default/kept");
    let written = etcd.keys(OWN).await?.get(&key).copied().with_context(|| format!("{key} is not in etcd"))?;

    stages::taken_back(world, "shop", client).await?;

    let begun = Instant::now();
    world.refer("shop", "v1.37").await?;
    world.ready("shop").await?;
    eprintln!("external: upgraded after {:?}", begun.elapsed());
    let client = world.business("shop", &endpoint).await?;
    let version = client.apiserver_version().await?.git_version;
    ensure!(version.starts_with("v1.37."), "it says {version}");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    ensure!(maps.get_opt("kept").await?.is_some(), "what was written is there");

    let begun = Instant::now();
    world.gone("shop").await?;
    eprintln!("external: gone after {:?}", begun.elapsed());
    ensure!(
        self::others(&etcd).await? == others,
        "what others keep was {others:?}, and is {:?}",
        self::others(&etcd).await?
    );
    ensure!(etcd.keys(OWN).await?.get(&key) == Some(&written), "what it wrote stays, for who runs the etcd");
    Ok(())
}

async fn create(world: &MetaFixture, etcd: &Etcd) -> Result<()> {
    let pair = etcd.issue("shop")?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some("shop-etcd".to_owned()),
            annotations: Some([(names::ALLOWED_CLUSTERS.to_owned(), "shop".to_owned())].into()),
            ..ObjectMeta::default()
        },
        string_data: Some(BTreeMap::from([
            ("ca.crt".to_owned(), etcd.ca_pem().to_owned()),
            ("tls.crt".to_owned(), pair.cert_pem),
            ("tls.key".to_owned(), pair.key_pem),
        ])),
        ..Secret::default()
    };
    Api::<Secret>::namespaced(world.client.clone(), FLEET).create(&PostParams::default(), &secret).await?;
    let external = json!({ "external": { "endpoints": [etcd.url()], "secretRef": { "name": "shop-etcd" } } });
    let mut spec = ClusterSpec::of("v1.36");
    spec.replicas = 1;
    spec.datastore = serde_json::from_value::<Datastore>(external)?;
    spec.snapshots = None;
    spec.endpoint.type_ = EndpointType::NodePort;
    spec.endpoint.host = Some(world.meta.address().to_string());
    spec.deletion_protection = false;
    world.clusters().create(&PostParams::default(), &Cluster::new("shop", spec)).await?;
    Ok(())
}

/// What is not the cluster's.
async fn others(etcd: &Etcd) -> Result<BTreeMap<String, i64>> {
    let mut all = etcd.keys("/").await?;
    all.retain(|key, _| !key.starts_with(OWN));
    Ok(all)
}

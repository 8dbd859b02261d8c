//! What a business cluster's administrator lets its API server connect to is nothing of the meta cluster.

use fleetwright_lab::hosts::{apply, images};
use fleetwright_plan::cluster::networks::{MetaNetworks, Network};
use fleetwright_plan::cluster::policies::DEFAULT_DENY;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;

use super::*;

/// Where a pod of the meta cluster is that no business cluster should reach.
const THERE: &str = "canary";

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_webhooks_and_proxies_do_not_reach_the_meta_network_on_hosts() -> Result<()> {
    let networks = |meta: &Meta| -> Result<&'static MetaNetworks> {
        let node = meta.address().to_string();
        let all = [meta.pods(), node, "10.96.0.0/16".to_owned()];
        let networks = all.iter().map(|one| one.parse::<Network>()).collect::<Result<Vec<_>, _>>()?;
        // The operator is a process of this machine.
        let operators = vec![meta.site.network.address().to_string().parse::<Network>()?];
        Ok(Box::leak(Box::new(MetaNetworks { networks, operators, operator_namespace: None })))
    };
    on_meta_with(meta::Options { enforce: true, ..meta::Options::default() }, networks, async |world| {
        let (canary, ()) = tokio::try_join!(canary(world), create(world))?;
        let begun = Instant::now();
        let endpoint = world.ready("pay").await?.endpoint.context("it has an endpoint")?;
        eprintln!("proven Ready, with policies enforced, after {:?}", begun.elapsed());
        let policies: Api<NetworkPolicy> = Api::namespaced(world.client.clone(), "fleet-pay");
        eventually("everything else to be denied", async || match policies.get_opt(DEFAULT_DENY).await? {
            Some(_) => Ok(Ok(())),
            None => Ok(Err("it is not".to_owned())),
        })
        .await?;
        let client = once(world, &endpoint).await?;
        let pod = pod_at(&client, &canary).await?;
        let node = node_at(&client, &world.meta.address().to_string()).await?;
        webhook_at(&client, &canary).await?;

        // What answers there: a web server in the pod, kube-proxy on the node.
        ensure!(!proxied(&client, &pod).await?, "a pod of the meta cluster was reached by pods/proxy");
        ensure!(!proxied(&client, &node).await?, "a node of the meta cluster was reached by nodes/proxy");
        let said = asked(&client).await?;
        ensure!(!reached(&said), "a pod of the meta cluster was reached as a webhook: {said}");
        let server = pod_of(world, "kube-apiserver").await?;
        // The meta cluster's own API server is a process of this machine here, which is outside of it: `install` lists it among the networks of a real one.
        let box_ = world.meta.site.network.address().to_string();
        let node_address = world.meta.address().to_string();
        for (to, port) in [(node_address.as_str(), 10256), (node_address.as_str(), 10250)] {
            ensure!(world.meta.connects(&canary, to, port).await?, "{to}:{port} is not there");
            ensure!(!world.meta.connects(&server, to, port).await?, "{to}:{port} was reached");
        }
        ensure!(!world.meta.connects(&server, &canary, 8080).await?, "a pod of the meta cluster was reached");
        let listener = tokio::net::TcpListener::bind((box_.as_str(), 0)).await?;
        let port = listener.local_addr()?.port();
        ensure!(world.meta.connects(&server, &box_, port).await?, "what is outside the meta cluster is out of reach");
        let etcd = pod_of(world, "etcd").await?;
        ensure!(world.meta.connects(&server, &etcd, 2379).await?, "etcd is out of its API server's reach");
        ensure!(!world.meta.connects(&canary, &etcd, 2379).await?, "etcd lets strangers in");
        let scheduler = pod_of(world, "kube-scheduler").await?;
        ensure!(!world.meta.connects(&scheduler, &etcd, 2379).await?, "etcd lets the scheduler in");
        ensure!(!world.meta.connects(&scheduler, &box_, port).await?, "the scheduler leaves the control plane");

        Ok(())
    })
    .await
}

/// A client that asks once: what is not reached is not reached, and each attempt takes half a minute.
async fn once(world: &World, endpoint: &str) -> Result<Client> {
    let config: Kubeconfig = serde_json::from_value(world.kubeconfig("pay", endpoint).await?)?;
    let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// The cluster. The default network of Services is one of the meta cluster.
async fn create(world: &World) -> Result<()> {
    let mut spec = ClusterSpec::of("v1.36");
    spec.replicas = 1;
    spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
    spec.endpoint.type_ = EndpointType::NodePort;
    spec.endpoint.host = Some(world.meta.address().to_string());
    spec.network.services = "10.97.0.0/16".to_owned();
    spec.deletion_protection = false;
    world.clusters().create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    Ok(())
}

/// A web server in the meta cluster; its address.
async fn canary(world: &World) -> Result<String> {
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": THERE } }),
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": THERE, "namespace": THERE },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "containers": [{ "name": "web", "image": images::WEB }],
            },
        }),
    ];
    // A new namespace has its account a moment later.
    eventually("the web server to be made", async || {
        Ok(apply(&world.client, &objects).await.map_err(|error| format!("{error:#}")))
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), THERE);
    eventually("the web server to run", async || {
        let status = pods.get(THERE).await?.status.unwrap_or_default();
        let running = status.phase.as_deref() == Some("Running");
        Ok(status.pod_ip.clone().filter(|_| running).ok_or_else(|| format!("{status:?}")))
    })
    .await
}

/// The address of a component's pod.
async fn pod_of(world: &World, component: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    let selected = kube::api::ListParams::default().labels(&format!("{}={component}", names::COMPONENT));
    let pod = pods.list(&selected).await?.items.into_iter().find_map(|pod| pod.status?.pod_ip);
    pod.with_context(|| format!("{component} has no address"))
}

/// A pod of the business cluster that says it has that address; where it is proxied to.
async fn pod_at(client: &Client, address: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    eventually("the default account", async || {
        Ok(accounts.get_opt("default").await?.map(drop).ok_or_else(String::new))
    })
    .await?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = json!({
        "metadata": { "name": "evil" },
        "spec": { "automountServiceAccountToken": false, "containers": [{ "name": "none", "image": "none" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let status = json!({ "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] } });
    pods.patch_status("evil", &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok("/api/v1/namespaces/default/pods/http:evil:8080/proxy/".to_owned())
}

/// A Node of the business cluster that says it has that address; where it is proxied to.
async fn node_at(client: &Client, address: &str) -> Result<String> {
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": "evil" } }))?).await?;
    let status = json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": address }],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
    } });
    nodes.patch_status("evil", &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok("/api/v1/nodes/http:evil:10256/proxy/healthz".to_owned())
}

/// A webhook at that address, for objects of one namespace.
async fn webhook_at(client: &Client, address: &str) -> Result<()> {
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "asked", "labels": { "asked": "true" } } }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "evil" },
            "webhooks": [{
                "name": "evil.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail", "timeoutSeconds": 5,
                "clientConfig": { "url": format!("https://{address}:8080/") },
                "namespaceSelector": { "matchLabels": { "asked": "true" } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"] }],
            }],
        }),
    ];
    apply(client, &objects).await
}

/// What a write says that asks the webhook. API servers hear of webhooks a moment later.
async fn asked(client: &Client) -> Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "asked");
    let map = ConfigMap {
        metadata: ObjectMeta { generate_name: Some("asked-".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    eventually("the webhook to be asked", async || match maps.create(&PostParams::default(), &map).await {
        Err(kube::Error::Api(refused)) if refused.message.contains("evil.example.com") => {
            Ok(Ok(refused.message.clone()))
        }
        Ok(_) => Ok(Err("it is not".to_owned())),
        Err(error) => Err(error.into()),
    })
    .await
}

/// Whether a server was found there: one that does not speak TLS.
fn reached(said: &str) -> bool {
    said.contains("HTTPS client") || said.contains("TLS handshake") || said.contains("tls:")
}

/// Whether the API server brings an answer from there.
async fn proxied(client: &Client, path: &str) -> Result<bool> {
    let request = http::Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(refused)) if [500, 502, 503, 504].contains(&refused.code) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

//! What a business cluster's administrator lets its API server connect to is nothing of the meta cluster.

use fleetwright_api::{Extension, ExtensionCheck, ExtensionHealth, ExtensionPlacement, Status};
use fleetwright_lab::hosts::{apply, images};
use fleetwright_plan::cluster::networks::{MetaNetworks, Network};
use fleetwright_plan::cluster::policies::{DEFAULT_DENY, REACHABLE};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::LogParams;

use super::*;
use crate::bucket::Store;
use crate::workers::extensions;

/// Where a pod of the meta cluster is that no business cluster should reach.
const THERE: &str = "canary";
/// Where another one is, which no policy selects either. It listens on the port of etcd and has the labels that etcd of the cluster has.
const ELSEWHERE: &str = "elsewhere";
/// Where clouds give credentials to their machines. The node has it here.
const METADATA: &str = "169.254.169.254";
/// Tells of each connection and of where it comes from.
const SERVE: &str = "mkdir -p /www && hostname >/www/index.html; httpd -f -p 2379 -h /www & \
exec httpd -f -vvv -p 8080 -h /www";
/// An extension beside the control plane: a web server without rights. The probe shows that it listens, since policies do not hold up the node.
const BESIDE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: beside}
spec:
  selector: {matchLabels: {app: beside}}
  template:
    metadata: {labels: {app: beside}}
    spec:
      terminationGracePeriodSeconds: 0
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: web
        image: WEB
        command: ['/bin/busybox', 'httpd', '-f', '-p', '8080', '-h', '/']
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
";

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
        let as_etcd = json!({ names::CLUSTER: "pay", names::COMPONENT: "etcd" });
        let (canary, probe, ()) =
            tokio::try_join!(web(world, THERE, json!({})), web(world, ELSEWHERE, as_etcd), create(world))?;
        // It is there, and says who came: otherwise nothing of what follows shows anything.
        let before = visit(world, &probe, &canary, 0).await?;
        let begun = Instant::now();
        let endpoint = world.ready("pay").await?.endpoint.context("it has an endpoint")?;
        eprintln!("proven Ready, with policies enforced, after {:?}", begun.elapsed());
        let policies: Api<NetworkPolicy> = Api::namespaced(world.client.clone(), "fleet-pay");
        eventually("everything else to be denied", async || match policies.get_opt(DEFAULT_DENY).await? {
            Some(_) => Ok(Ok(())),
            None => Ok(Err("it is not".to_owned())),
        })
        .await?;

        // The meta cluster's own API server is a process of this machine here, which is outside of it: `install` lists it among the networks of a real one.
        let box_ = world.meta.site.network.address().to_string();
        let store = Store::start(&box_).await?;
        let port = store.port;

        // Pods of snapshots get to etcd, to names and no further, unless there is a store.
        let ask = json!({ "metadata": { "annotations": { names::SNAPSHOT: "now" } } });
        world.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(&ask)).await?;
        eventually("a snapshot to be taken", async || {
            let status = world.clusters().get("pay").await?.status.unwrap_or_default();
            Ok(if status.last_snapshot.is_some() { Ok(()) } else { Err(format!("{:#?}", status.conditions)) })
        })
        .await?;
        eprintln!("a snapshot was taken, with policies enforced, after {:?}", begun.elapsed());
        store.receives_a_snapshot(world).await?;
        eprintln!("a store outside of the meta cluster has a snapshot after {:?}", begun.elapsed());
        extensions(world, &["beside"], |one| one.ready == Status::True).await?;

        let client = once(world, &endpoint).await?;
        let pod = pod_at(&client, &canary).await?;
        let service = service_at(&client, &canary).await?;
        let node = node_at(&client, &world.meta.address().to_string()).await?;
        webhook_at(&client, &canary).await?;
        extension_at(&client, &canary).await?;

        // What answers there: a web server in the pod, kube-proxy on the node.
        let said = proxied(&client, &pod).await?;
        ensure!(said.is_err(), "a pod of the meta cluster was reached by pods/proxy: {said:?}");
        let said = proxied(&client, &service).await?;
        ensure!(said.is_err(), "a pod of the meta cluster was reached by services/proxy: {said:?}");
        let said = proxied(&client, &node).await?;
        ensure!(said.is_err(), "a node of the meta cluster was reached by nodes/proxy: {said:?}");
        let said = asked(&client).await?;
        ensure!(!reached(&said), "a pod of the meta cluster was reached as a webhook: {said}");
        let said = aggregated(&client).await?;
        ensure!(!reached(&said), "a pod of the meta cluster was reached as an APIService: {said}");
        let server = pod_of(world, "kube-apiserver").await?;
        let node_address = world.meta.address().to_string();
        world.meta.node().run(&format!("ip address add {METADATA}/32 dev lo")).await?;
        // Of another control plane, a pod with the labels and the port of its etcd stands for all.
        for (to, port) in
            [(node_address.as_str(), 10256), (node_address.as_str(), 10250), (METADATA, 10256), (probe.as_str(), 2379)]
        {
            ensure!(world.meta.connects(&canary, to, port).await?, "{to}:{port} is not there");
            ensure!(!world.meta.connects(&server, to, port).await?, "{to}:{port} was reached");
        }
        ensure!(!world.meta.connects(&server, &canary, 8080).await?, "a pod of the meta cluster was reached");
        ensure!(world.meta.connects(&server, &box_, port).await?, "what is outside the meta cluster is out of reach");
        let etcd = pod_of(world, "etcd").await?;
        ensure!(world.meta.connects(&server, &etcd, 2379).await?, "etcd is out of its API server's reach");
        for stranger in [&canary, &probe] {
            ensure!(!world.meta.connects(stranger, &etcd, 2379).await?, "etcd lets strangers in");
        }
        let scheduler = pod_of(world, "kube-scheduler").await?;
        ensure!(!world.meta.connects(&scheduler, &etcd, 2379).await?, "etcd lets the scheduler in");
        ensure!(!world.meta.connects(&scheduler, &box_, port).await?, "the scheduler leaves the control plane");
        let manager = pod_of(world, "kube-controller-manager").await?;
        ensure!(world.meta.connects(&manager, &server, 6443).await?, "the controller-manager cannot reach its API server");
        for (to, port) in [(&etcd, 2379), (&canary, 8080), (&probe, 2379), (&box_, port)] {
            ensure!(!world.meta.connects(&manager, to, port).await?, "the controller-manager reached {to}:{port}");
        }
        let beside = pod_with(world, "app=beside").await?;
        for (to, port) in [(&server, 6443), (&box_, port)] {
            ensure!(world.meta.connects(&beside, to, port).await?, "the extension cannot reach {to}:{port}");
        }
        for (to, port) in [(&etcd, 2379), (&canary, 8080), (&probe, 2379), (&node_address, 10256)] {
            ensure!(!world.meta.connects(&beside, to, port).await?, "the extension reached {to}:{port}");
        }
        for stranger in [&canary, &scheduler, &manager] {
            ensure!(!world.meta.connects(stranger, &beside, 8080).await?, "the extension lets strangers in");
        }

        // The pod itself saw none of that, and saw who came after it.
        visit(world, &probe, &canary, before).await?;
        let components = [
            (&server, "the API server"),
            (&scheduler, "the scheduler"),
            (&manager, "the controller-manager"),
            (&etcd, "etcd"),
            (&beside, "the extension"),
        ];
        for (from, who) in components {
            ensure!(visits(world, from).await? == 0, "a pod of the meta cluster was reached by {who}");
        }

        // Its owner opens it: the same requests arrive. So it was the policies that held them up.
        let label = json!({ "metadata": { "labels": { REACHABLE: "true" } } });
        let pods: Api<Pod> = Api::namespaced(world.client.clone(), THERE);
        pods.patch(THERE, &PatchParams::default(), &Patch::Merge(&label)).await?;
        let namespaces: Api<Namespace> = Api::all(world.client.clone());
        namespaces.patch(THERE, &PatchParams::default(), &Patch::Merge(&label)).await?;
        let begun = Instant::now();
        eventually("what was opened to be reached", async || {
            let (by_pod, by_service) = (proxied(&client, &pod).await?, proxied(&client, &service).await?);
            let (said, extends) = (asked(&client).await?, aggregated(&client).await?);
            Ok(if by_pod.is_ok() && by_service.is_ok() && reached(&said) && reached(&extends) {
                Ok(())
            } else {
                Err(format!(
                    "by pods/proxy: {by_pod:?}; by services/proxy: {by_service:?}; as a webhook: {said}; as an APIService: {extends}"
                ))
            })
        })
        .await?;
        eprintln!("what was opened is reached after {:?}", begun.elapsed());
        ensure!(visits(world, &server).await? > 0, "the pod does not tell of the API server");
        ensure!(world.meta.connects(&beside, &canary, 8080).await?, "the extension does not reach what was opened");
        let said = proxied(&client, &node).await?;
        ensure!(said.is_err(), "a node of the meta cluster was reached by nodes/proxy: {said:?}");
        let said = world.meta.connects(&server, &probe, 8080).await?;
        ensure!(!said, "a pod was reached that no policy opens");
        Ok(())
    })
    .await
}

/// A client that asks once: what is not reached is not reached, and each attempt takes half a minute.
async fn once(world: &MetaFixture, endpoint: &str) -> Result<Client> {
    let config: Kubeconfig = serde_json::from_value(world.kubeconfig("pay", endpoint).await?)?;
    let mut config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// The cluster, with an extension. Its network of Services is the default one, which is that of the meta cluster as well.
async fn create(world: &MetaFixture) -> Result<()> {
    let packages: Api<ClusterPackageVersion> = Api::namespaced(world.client.clone(), FLEET);
    let mut package = packages.get("v1.36").await?.spec;
    let checks = vec![ExtensionCheck { deployment: Some("beside".to_owned()), ..ExtensionCheck::default() }];
    package.extensions = vec![Extension {
        name: "beside".to_owned(),
        placement: ExtensionPlacement::Meta,
        template: BESIDE.replace("WEB", images::WEB),
        health: ExtensionHealth { checks, ..ExtensionHealth::default() },
        ..Extension::default()
    }];
    packages.create(&PostParams::default(), &ClusterPackageVersion::new("extended", package)).await?;
    let spec = ClusterSpec { replicas: 1, package_version: "extended".to_owned(), ..world.spec(1) };
    world.clusters().create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    Ok(())
}

/// A web server in the meta cluster, in a namespace of its own; its address.
async fn web(world: &MetaFixture, name: &str, labels: Value) -> Result<String> {
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": name, "labels": labels },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "containers": [{ "name": "web", "image": images::WEB, "command": ["/bin/busybox", "sh", "-c", SERVE] }],
            },
        }),
    ];
    // A new namespace has its account a moment later.
    eventually("the web server to be made", async || {
        Ok(apply(&world.client, &objects).await.map_err(|error| format!("{error:#}")))
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), name);
    eventually("the web server to run", async || {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let running = status.phase.as_deref() == Some("Running");
        Ok(status.pod_ip.clone().filter(|_| running).ok_or_else(|| format!("{status:?}")))
    })
    .await
}

/// Lets the probe come to the canary until that tells of more visits of it than before; of how many it tells then.
async fn visit(world: &MetaFixture, probe: &str, canary: &str, before: usize) -> Result<usize> {
    eventually("the web server to tell of a visit", async || {
        let connects = world.meta.connects(probe, canary, 8080).await?;
        let now = visits(world, probe).await?;
        Ok(if connects && now > before {
            Ok(now)
        } else {
            Err(format!("it connects: {connects}; {now} visits after {before}"))
        })
    })
    .await
}

/// How many lines the canary wrote of who has that address.
async fn visits(world: &MetaFixture, from: &str) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), THERE);
    let log = pods.logs(THERE, &LogParams::default()).await?;
    // `10.200.7.3:40312: connected`, or `[::ffff:10.200.7.3]:40312: connected`.
    let of = [format!("{from}:"), format!("{from}]")];
    Ok(log.lines().filter(|line| of.iter().any(|begins| line.contains(begins.as_str()))).count())
}

/// The address of a component's pod.
async fn pod_of(world: &MetaFixture, component: &str) -> Result<String> {
    pod_with(world, &format!("{}={component}", names::COMPONENT)).await
}

/// The address of a pod beside the control plane or of it, by its label.
async fn pod_with(world: &MetaFixture, label: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    let selected = kube::api::ListParams::default().labels(label);
    let pod = pods.list(&selected).await?.items.into_iter().find_map(|pod| pod.status?.pod_ip);
    pod.with_context(|| format!("no pod with the label {label} has an address"))
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

/// A Service of the business cluster whose endpoint is the pod that says it has that address; where it is proxied to. Which of the two kinds of endpoints counts depends on the
/// version of the API server.
async fn service_at(client: &Client, address: &str) -> Result<String> {
    let metadata = json!({ "name": "evil", "namespace": "default" });
    let of_service =
        json!({ "name": "evil", "namespace": "default", "labels": { "kubernetes.io/service-name": "evil" } });
    let (pod, ports) =
        (json!({ "kind": "Pod", "namespace": "default", "name": "evil" }), json!([{ "name": "web", "port": 8080 }]));
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": ports } }),
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
            "subsets": [{ "addresses": [{ "ip": address, "targetRef": pod }], "ports": ports }],
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": of_service,
            "addressType": "IPv4", "ports": ports,
            "endpoints": [{ "addresses": [address], "conditions": { "ready": true }, "targetRef": pod }],
        }),
    ];
    apply(client, &objects).await?;
    Ok("/api/v1/namespaces/default/services/http:evil:web/proxy/".to_owned())
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

/// An APIService at that address, by a Service that is a name for it.
async fn extension_at(client: &Client, address: &str) -> Result<()> {
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "evil", "namespace": "asked" },
            "spec": { "type": "ExternalName", "externalName": address },
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "v1.evil.example.com" },
            "spec": {
                "group": "evil.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
                "insecureSkipTLSVerify": true,
                "service": { "namespace": "asked", "name": "evil", "port": 8080 },
            },
        }),
    ];
    apply(client, &objects).await
}

/// What the API server says of the APIService once it asked there for what it serves.
async fn aggregated(client: &Client) -> Result<String> {
    let services: Api<APIService> = Api::all(client.clone());
    eventually("the APIService to be asked", async || {
        let status = services.get("v1.evil.example.com").await?.status.unwrap_or_default();
        let available = status.conditions.into_iter().flatten().find(|one| one.type_ == "Available");
        let said = available.map(|one| one.message.unwrap_or_default()).unwrap_or_default();
        Ok(if said.contains("failing or missing response") { Ok(said) } else { Err(said) })
    })
    .await
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

/// What the API server brings from there, or why it could not connect. Any other failure shows nothing.
async fn proxied(client: &Client, path: &str) -> Result<Result<String, String>> {
    let request = http::Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        Ok(text) => Ok(Ok(text)),
        Err(kube::Error::Api(refused)) if refused.message.contains("dial tcp") => Ok(Err(refused.message.clone())),
        Err(error) => Err(error.into()),
    }
}

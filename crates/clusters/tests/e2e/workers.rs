//! Workers: hosts that the Machine-Operator beside the control plane brings in, and pods on them that find each other by name.

use fleetwright_api::{
    Extension, ExtensionChoice, ExtensionStatus, Machine, Operation, OperationPhase, OperationPolicy, Status,
};
use fleetwright_lab::hosts::{Host, HostDescription, apply, images};
use fleetwright_lab::meta::Workers;
use fleetwright_lab::specs;
use fleetwright_pki::Certificate;
use fleetwright_plan::cluster::extensions::shipped;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::ClusterRole;
use tokio::sync::Mutex;
use tokio::try_join;

use super::*;

const WORKERS: [&str; 2] = ["worker-1", "worker-2"];
const KUBELET: &str = "1.36.4";
/// Newer than the API server.
const NEWER_KUBELET: &str = "1.37.1";
/// An extension of the site: its objects are deleted when it is disabled.
const NOTES: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: notes}
rules: []
---
apiVersion: v1
kind: ConfigMap
metadata: {name: notes, namespace: kube-system}
";

#[tokio::test(flavor = "multi_thread")]
async fn hosts_become_workers_by_the_shipped_extensions_and_their_pods_find_each_other_by_name_on_hosts() -> Result<()>
{
    let helpers = helpers()?;
    ensure!(helpers.is_dir(), "{} is missing: run make helper", helpers.display());
    on_meta(async |world| {
        let workers = world.meta.workers("1.36", Image::of_specs().await?).await?;
        let boot = |name| world.meta.worker(name, &workers);
        let (first, second, ()) = try_join!(boot(WORKERS[0]), boot(WORKERS[1]), create(world, &workers))?;
        let outcome = run_phases(world, &[&first, &second]).await;
        if outcome.is_err() {
            // Before the hosts are gone.
            world.meta.site.network.keep_logs();
        }
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(said(world).await)),
        }
    })
    .await
}

/// The cluster: small, with all that is shipped.
async fn create(world: &MetaFixture, workers: &Workers) -> Result<()> {
    let [proxy, dns] = [workers.image("kube-proxy")?, workers.image("coredns")?];
    let image = |name: &str| match name {
        "kube-proxy" => proxy.to_owned(),
        "coredns" => dns.to_owned(),
        _ => IMAGE.to_owned(),
    };
    let packages: Api<ClusterPackageVersion> = Api::namespaced(world.client.clone(), FLEET);
    let mut spec = packages.get("v1.36").await?.spec;
    spec.extensions = shipped(image)?;
    let notes = Extension { name: "notes".to_owned(), order: 60, template: NOTES.to_owned(), ..Extension::default() };
    spec.extensions.push(notes);
    packages.create(&PostParams::default(), &ClusterPackageVersion::new("workers", spec)).await?;
    let mut spec = ClusterSpec::of("workers");
    spec.replicas = 1;
    spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
    spec.endpoint.type_ = EndpointType::NodePort;
    spec.endpoint.host = Some(world.meta.address().to_string());
    spec.deletion_protection = false;
    let mut values = world.meta.site.host_values();
    // All pods have routes to each other here: none needs another's address.
    values.insert("podMasquerade".to_owned(), "false".to_owned());
    let choice = |name: &str, values: Value| ExtensionChoice {
        name: name.to_owned(),
        values: Some(values),
        ..ExtensionChoice::default()
    };
    spec.extensions = vec![
        choice("machine-access", json!({ "clusterValues": values })),
        // Hosts have no upstream resolver for other names, and need none.
        choice("coredns", json!({ "forward": world.meta.site.network.address().to_string() })),
    ];
    world.clusters().create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    Ok(())
}

async fn run_phases(world: &MetaFixture, hosts: &[&Host; 2]) -> Result<()> {
    let begun = Instant::now();
    let chapter = |what: &str| eprintln!("[{:>4} s] {what}", begun.elapsed().as_secs());
    world.meta.connect(hosts).await?;
    let endpoint = world.ready("pay").await?.endpoint.context("it has an endpoint")?;
    let client = world.business("pay", &endpoint).await?;
    chapter("the cluster is proven Ready");

    let early = ["kubernetes-endpoint", "machine-kinds", "machine-access", "machine-operator", "kube-proxy"];
    extensions(world, &early, |one| one.ready == Status::True).await?;
    // kube-apiserver serves admission policies.
    extensions(world, &["machine-access"], |one| !one.message.contains("left out")).await?;
    extensions(world, &["coredns"], |one| one.message.contains("Deployment coredns: 0 of 2 ")).await?;
    leads(&client).await?;
    endpoint_is_published(&client, &endpoint).await?;
    chapter("the extensions are in place; the Machine-Operator leads");

    apply(&client, &world.meta.site.fleet(FLEET)?).await?;
    for (number, host) in (0..).zip(hosts) {
        apply(&client, &[machine(world, host, number, KUBELET)?]).await?;
    }
    for name in WORKERS {
        schedulable(&client, name).await?;
        chapter(&format!("{name} is schedulable"));
    }
    extensions(world, &["coredns"], |one| one.ready == Status::True).await?;
    chapter("CoreDNS answers");
    pods_find_each_other(&client).await?;
    chapter("a pod on one host was reached by the name of its Service from the other");
    a_newer_kubelet_is_refused(world, &client, hosts[0]).await?;
    chapter("a kubelet that is newer than the API server was refused");
    let passed = conforms(world, &endpoint).await?;
    chapter(&format!("{passed} of Kubernetes' own conformance specs passed"));
    let client = authorities_are_replaced(world, &endpoint, hosts).await?;
    chapter("all authorities were replaced; no worker was lost, and none trusts the old ones");

    an_extension_is_pruned(world, &client).await?;
    chapter("the objects of a disabled extension were deleted");

    // Nobody starts these elsewhere, so a drain would leave them to people. CoreDNS' disruption budget would keep the last machine.
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for name in ["web", "asker"] {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    let policy = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "OperationPolicy", "metadata": { "name": "releases" },
        "spec": { "operations": ["ReleaseMachines"], "max": 5 },
    });
    let policy: OperationPolicy = serde_json::from_value(policy)?;
    Api::<OperationPolicy>::namespaced(world.client.clone(), FLEET).create(&PostParams::default(), &policy).await?;
    let release = json!({ "spec": { "onDelete": "ReleaseMachines" } });
    world.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(release)).await?;
    world.gone("pay").await?;
    for host in hosts {
        let units = host.run("systemctl list-units --all --no-legend --plain 'kubelet*' 'containerd*'").await?;
        // systemd remembers the name of one that is gone as long as another mentions it.
        let left: Vec<_> = units.lines().filter(|unit| !unit.contains(" not-found inactive ")).collect();
        ensure!(left.is_empty(), "{} still has {left:?}", host.name());
    }
    chapter("the cluster is gone, and its hosts are let go");
    Ok(())
}

/// The Machine of a host, with that kubelet.
fn machine(world: &MetaFixture, host: &Host, number: u8, kubelet: &str) -> Result<Value> {
    // Images are there already, and problems are looked for elsewhere.
    let wanted = |component: &str| !["images", "node-problem-detector"].contains(&component);
    let packages = world.meta.site.worker(kubelet)?;
    let packages: Vec<_> = packages.into_iter().filter(|(component, _)| wanted(component)).collect();
    ensure!(packages.iter().any(|(component, _)| component == "kubelet"), "there is no package of kubelet {kubelet}");
    Ok(HostDescription::host(host, number).machine(FLEET, &packages))
}

/// The first machine refers to a kubelet that is newer than the API server: the Machine says so, and the kubelet that runs is not touched.
async fn a_newer_kubelet_is_refused(world: &MetaFixture, client: &Client, host: &Host) -> Result<()> {
    let machines: Api<Machine> = Api::namespaced(client.clone(), FLEET);
    let process = "systemctl show --property=MainPID --value kubelet.service";
    let before = host.run(process).await?;
    apply(client, &[machine(world, host, 0, NEWER_KUBELET)?]).await?;
    let message = eventually("the newer kubelet to be refused", async || {
        let status = machines.get(&host.name()).await?.status.unwrap_or_default();
        let current = fleetwright_api::condition(&status.conditions, names::UP_TO_DATE).cloned();
        let refused = current.filter(|one| one.status == Status::False && one.reason == "KubeletTooNew");
        Ok(refused.map(|one| one.message).ok_or_else(|| format!("{status:#?}")))
    })
    .await?;
    ensure!(message.contains(NEWER_KUBELET) && message.contains("control plane"), "{message}");
    schedulable(client, &host.name()).await?;
    let after = host.run(process).await?;
    ensure!(before == after, "the kubelet was restarted: its process was {before}, and is {after}");
    apply(client, &[machine(world, host, 0, KUBELET)?]).await?;
    eventually("the machine to be up to date", async || {
        let status = machines.get(&host.name()).await?.status.unwrap_or_default();
        let current = fleetwright_api::is_true(&status.conditions, names::UP_TO_DATE);
        Ok(if current { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await
}

/// Rotates all authorities. Workers join again while old and new ones are trusted: none is lost, and pods keep running. Returns a client that trusts
/// the new ones.
async fn authorities_are_replaced(world: &MetaFixture, endpoint: &str, hosts: &[&Host; 2]) -> Result<Client> {
    let web = async |client: &Client| -> Result<(Option<String>, Option<i32>)> {
        let pod = Api::<Pod>::default_namespaced(client.clone()).get("web").await?;
        let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        Ok((pod.metadata.uid, containers.first().map(|container| container.restart_count)))
    };
    let client = world.business("pay", endpoint).await?;
    let before = web(&client).await?;
    // As short as can be: it waits for machines, not for a time.
    let ask = json!({ "spec": { "certificates": { "rotateAuthorities": "anew", "overlap": "1s" } } });
    world.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(ask)).await?;
    let lost = Mutex::new(Vec::new());
    eventually("all authorities to be replaced", async || {
        // Whom it trusts changes, and so does who trusts it.
        let client = world.business("pay", endpoint).await?;
        if let Ok(nodes) = Api::<Node>::all(client).list(&Default::default()).await {
            lost.lock().await.extend(nodes.items.iter().filter(|node| silent(node)).map(kube::ResourceExt::name_any));
        }
        let status = world.clusters().get("pay").await?.status.unwrap_or_default();
        let done = status.rotation.is_none() && status.authorities.as_deref() == Some("anew");
        Ok(if done { Ok(()) } else { Err(format!("{:?} {:#?}", status.rotation, status.conditions)) })
    })
    .await?;
    let lost = lost.into_inner();
    ensure!(lost.is_empty(), "Nodes that were not heard of in between: {lost:?}");

    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "fleet-pay");
    let data = secrets.get("ca").await?.data.unwrap_or_default();
    let serving = secrets.get("kubelet-ca").await?.data.unwrap_or_default();
    let clients = Certificate::from_pem(&String::from_utf8(data["tls.crt"].0.clone())?)?;
    let servers = Certificate::from_pem(&String::from_utf8(serving["tls.crt"].0.clone())?)?;
    let (client, server) = (("client", &clients, &servers), ("server", &servers, &clients));
    for (host, (of, authority, other)) in hosts.iter().flat_map(|host| [client, server].map(|of| (host, of))) {
        let file = format!("sed -n '/BEGIN CERT/,/END CERT/p' /var/lib/kubelet/pki/kubelet-{of}-current.pem");
        // It is not there for a moment while the kubelet joins with the new authority alone.
        let certificate = eventually(&format!("the {of} certificate of {}", host.name()), async || {
            Ok(host.run(&file).await.map_err(|error| error.to_string()))
        })
        .await?;
        let certificate = Certificate::from_pem(&certificate)?;
        ensure!(certificate.is_signed_by(authority), "{}: its {of} certificate is of the old authority", host.name());
        ensure!(!certificate.is_signed_by(other), "{}: one authority signs clients and kubelets", host.name());
    }
    // What is trusted in the end is one, and machines come to have it too.
    let client = world.business("pay", endpoint).await?;
    let trusted = fleetwright_plan::join::bundle_digest(&String::from_utf8(data["ca.crt"].0.clone())?);
    let machines: Api<Machine> = Api::namespaced(client.clone(), FLEET);
    eventually("machines to trust the new authority alone", async || {
        let all = machines.list(&Default::default()).await?.items;
        let trusts = |machine: &Machine| machine.status.as_ref().and_then(|status| status.trusts.clone());
        let so = all.len() == 2 && all.iter().all(|machine| trusts(machine).as_ref() == Some(&trusted));
        Ok(if so { Ok(()) } else { Err(format!("{trusted}: {:?}", all.iter().map(trusts).collect::<Vec<_>>())) })
    })
    .await?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    eventually("the API server to trust kubelets", async || {
        Ok(pods.logs("web", &Default::default()).await.map(drop).map_err(|error| error.to_string()))
    })
    .await?;
    let after = web(&client).await?;
    ensure!(before == after, "the pod web is another, or its container: {before:?} became {after:?}");
    Ok(client)
}

/// Whether the Node has been Unknown for too long. A kubelet that restarts reports NotReady itself, for a moment.
fn silent(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    !conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status != "Unknown")
}

/// Runs the conformance tests of Kubernetes: the quick ones, or on request (`make conformance`) all listed ones, or those with given words in their
/// names.
async fn conforms(world: &MetaFixture, endpoint: &str) -> Result<usize> {
    let asked = std::env::var("FLEETWRIGHT_CONFORMANCE").ok();
    let mut wanted = specs::listed(asked.is_none());
    if let Some(words) = asked.as_deref().filter(|words| *words != "all") {
        wanted.retain(|name| words.split('|').any(|word| name.contains(word)));
        ensure!(!wanted.is_empty(), "none of the specs that are listed has {words} in its name");
    }
    let folder = world.meta.site.network.folder().join("specs");
    std::fs::create_dir_all(&folder)?;
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, world.kubeconfig("pay", endpoint).await?.to_string())?;
    let (at_once, limit) = if asked.is_none() { (5, LONG) } else { (8, 3 * LONG) };
    let outcomes = specs::run(&kubeconfig, &wanted, at_once, limit, &folder).await?;
    for one in &outcomes {
        let how = one.failure.as_deref().map_or("ok", |_| "FAILED");
        eprintln!("{:>6.1} s {how:<6} {}", one.took.as_secs_f64(), one.name);
    }
    let failed: Vec<_> = outcomes.iter().filter(|one| one.failure.is_some()).collect();
    ensure!(failed.is_empty(), "{} of {} specs failed: {failed:#?}", failed.len(), outcomes.len());
    Ok(outcomes.len())
}

/// Waits until that is so of these extensions.
pub async fn extensions(world: &MetaFixture, names: &[&str], holds: impl Fn(&ExtensionStatus) -> bool) -> Result<()> {
    eventually(&format!("the extensions {}", names.join(", ")), async || {
        let all = world.clusters().get("pay").await?.status.unwrap_or_default().extensions;
        let so = |name: &&str| all.iter().any(|one| one.name == **name && holds(one));
        Ok(if names.iter().all(so) { Ok(()) } else { Err(format!("{all:#?}")) })
    })
    .await
}

/// An extension is disabled: an Operation deletes its objects in the business cluster, and no object of another extension.
async fn an_extension_is_pruned(world: &MetaFixture, client: &Client) -> Result<()> {
    extensions(world, &["notes"], |one| one.ready == Status::True).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let mut choices = world.clusters().get("pay").await?.spec.extensions;
    choices.push(ExtensionChoice { name: "notes".to_owned(), enabled: Some(false), ..ExtensionChoice::default() });
    let disable = json!({ "spec": { "extensions": choices } });
    world.clusters().patch("pay", &PatchParams::default(), &Patch::Merge(disable)).await?;

    let operations: Api<Operation> = Api::namespaced(world.client.clone(), FLEET);
    let roles: Api<ClusterRole> = Api::all(client.clone());
    eventually("the objects of the extension to be deleted", async || {
        let listed = operations.list(&Default::default()).await?.items;
        let prunes: Vec<_> = listed.iter().filter(|one| one.spec.type_ == "ExtensionPrune").collect();
        let phases: Vec<_> = prunes.iter().map(|one| one.status.as_ref().map(|status| status.phase)).collect();
        let left = (roles.get_opt("notes").await?.is_some(), maps.get_opt("notes").await?.is_some());
        let done = left == (false, false) && phases == [Some(OperationPhase::Succeeded)];
        Ok(if done { Ok(()) } else { Err(format!("{left:?} {prunes:#?}")) })
    })
    .await?;
    ensure!(maps.get_opt("coredns").await?.is_some(), "an object of another extension was deleted");
    extensions(world, &["coredns"], |one| one.ready == Status::True).await
}

/// Waits until the pod beside the control plane has the lease in the business cluster.
async fn leads(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), FLEET);
    eventually("the Machine-Operator's lease", async || {
        let all = leases.list(&Default::default()).await?.items;
        let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        let held = all.iter().filter_map(holder).any(|holder| holder.starts_with("machine-operator-"));
        Ok(if held { Ok(()) } else { Err(format!("{all:#?}")) })
    })
    .await
}

/// Workers use the endpoint of clients, and only the operator writes the endpoints of the API servers.
async fn endpoint_is_published(client: &Client, endpoint: &str) -> Result<()> {
    let slices: Api<EndpointSlice> = Api::default_namespaced(client.clone());
    let all = slices.list(&Default::default()).await?.items;
    ensure!(all.len() == 1, "{all:#?}");
    let port = all[0].ports.as_ref().and_then(|ports| ports[0].port).context("a port")?;
    let address = &all[0].endpoints.as_ref().context("endpoints")?[0].addresses[0];
    ensure!(endpoint == format!("https://{address}:{port}"), "{endpoint}: {:#?}", all[0]);
    Ok(())
}

/// Waits until a machine has all its packages and its Node is open.
async fn schedulable(client: &Client, name: &str) -> Result<()> {
    let machines: Api<Machine> = Api::namespaced(client.clone(), FLEET);
    eventually(&format!("{name} to be schedulable"), async || {
        let status = machines.get(name).await?.status.unwrap_or_default();
        let holds = |condition| fleetwright_api::is_true(&status.conditions, condition);
        let there = holds(names::PACKAGES_READY) && holds(names::SCHEDULABLE);
        Ok(if there { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await?;
    let node = Api::<Node>::all(client.clone()).get(name).await?;
    let version = node.status.and_then(|status| status.node_info).map(|info| info.kubelet_version);
    ensure!(version == Some(format!("v{KUBELET}")), "{name} runs {version:?}");
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure!(taints.is_empty(), "{name} still has {taints:?}");
    Ok(())
}

/// A pod on the second host asks, by its name, for the Service of a pod on the first.
async fn pods_find_each_other(client: &Client) -> Result<()> {
    let ask =
        "until timeout 2 wget -q -O /tmp/answer http://web.default.svc.cluster.local/ 2>/dev/null; do sleep 0.2; done
        cat /tmp/answer; nslookup web.default.svc.cluster.local | grep -c 10.96.7.7";
    let pod = |name: &str, image: &str, node: &str, command: Option<&str>| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
            "spec": {
                "nodeSelector": { "kubernetes.io/hostname": node },
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": name,
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": command.map(|command| ["sh", "-c", command]),
                }],
            },
        })
    };
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "clusterIP": "10.96.7.7", "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    let web = pod("web", images::WEB, WORKERS[0], None);
    apply(client, &[service, web, pod("asker", images::BUSYBOX, WORKERS[1], Some(ask))]).await?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    eventually("the pod that asks to have its answer", async || {
        let status = pods.get("asker").await?.status.unwrap_or_default();
        Ok(if status.phase.as_deref() == Some("Succeeded") { Ok(()) } else { Err(format!("{status:#?}")) })
    })
    .await?;
    // Read by the API server, from the kubelet.
    let answer = pods.logs("asker", &Default::default()).await?;
    ensure!(answer == "web\n1\n", "it was told {answer:?}");
    Ok(())
}

/// What is known in the business cluster, for somebody who wants to know why something is not there.
async fn said(world: &MetaFixture) -> String {
    let mut said = String::new();
    let beside: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    for pod in beside.list(&Default::default()).await.map(|list| list.items).unwrap_or_default() {
        if pod.name_any().starts_with("machine-operator") {
            let params = kube::api::LogParams { tail_lines: Some(60), ..Default::default() };
            said += &beside.logs(&pod.name_any(), &params).await.unwrap_or_else(|error| error.to_string());
        }
    }
    let endpoint = world.clusters().get("pay").await.ok().and_then(|one| one.status?.endpoint).unwrap_or_default();
    let Ok(client) = world.business("pay", &endpoint).await else { return said };
    let machines: Api<Machine> = Api::namespaced(client.clone(), FLEET);
    for machine in machines.list(&Default::default()).await.map(|list| list.items).unwrap_or_default() {
        said += &format!("\nmachine {}: {:#?}", machine.name_any(), machine.status);
    }
    let pods: Api<Pod> = Api::all(client);
    for pod in pods.list(&Default::default()).await.map(|list| list.items).unwrap_or_default() {
        let status = pod.status.clone().unwrap_or_default();
        let (node, phase) = (pod.spec.as_ref().and_then(|spec| spec.node_name.clone()), status.phase);
        said += &format!("\npod {} on {node:?}: {phase:?} {:?}", pod.name_any(), status.container_statuses);
        let own: Api<Pod> = Api::namespaced(pods.clone().into_client(), &pod.namespace().unwrap_or_default());
        let params = kube::api::LogParams { tail_lines: Some(15), ..Default::default() };
        said += &format!("\n{}", own.logs(&pod.name_any(), &params).await.unwrap_or_else(|error| error.to_string()));
    }
    said
}

//! The lab's meta cluster runs pods as any Kubernetes does, and leaves nothing behind.

mod business;
#[path = "../shared/common.rs"]
mod common;
mod policies;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fleetwright_lab::hosts::{Image, apply, images};
use fleetwright_lab::meta::{Meta, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolume, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use self::business::{Business, NAMESPACE, NODE_PORT};
use self::common::{killed, lab, said};

/// A generous timeout; an idle machine needs seconds.
const LONG: Duration = Duration::from_secs(180);

async fn eventually<T, F: Future<Output = Result<Option<T>>>>(what: &str, mut look: impl FnMut() -> F) -> Result<T> {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {LONG:?} for {what}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs a test on a meta cluster. If it fails, prints the cluster's status; otherwise checks that nothing is left after the cluster ended.
async fn on_meta(test: impl AsyncFnOnce(&Meta) -> Result<()>) -> Result<()> {
    on_meta_with(Options::default(), test).await
}

async fn on_meta_with(options: Options, test: impl AsyncFnOnce(&Meta) -> Result<()>) -> Result<()> {
    let mut meta = Meta::start(options).await?;
    if let Err(error) = test(&meta).await {
        let seen = meta.seen().await;
        meta.keep_logs();
        return Err(error.context(seen));
    }
    let folders = [meta.site.network.folder().to_owned(), meta.site.plane.folder().to_owned()];
    let links = [meta.site.network.bridge().to_owned(), meta.node().link()];
    let (pods, cgroups) = (meta.pods(), format!("fleetwright-*-{}-*", meta.node().link()));
    drop(meta);
    let mut left = said("ip", &["route", "show", &pods])? + &said("find", &["/sys/fs/cgroup", "-name", &cgroups])?;
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    for folder in folders.iter().map(|folder| folder.to_string_lossy()) {
        left += &said("pgrep", &["-fa", &folder])?;
        left.extend(mounts.lines().filter(|mount| mount.contains(&*folder)));
        left += &said("sh", &["-c", &format!("ls -d {folder} 2>/dev/null")])?;
    }
    let there = said("ip", &["-o", "link"])?;
    left.extend(there.lines().filter(|line| links.iter().any(|link| line.contains(&format!(" {link}")))));
    assert_eq!(left, "", "left behind");
    Ok(())
}

/// Waits until a component's pod is ready, and returns its address.
async fn ready(meta: &Meta, component: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(meta.client(), NAMESPACE);
    let selected = ListParams::default().labels(&format!("fleetwright.io/component={component}"));
    eventually(&format!("{component} to be ready"), || async {
        let Some(status) = pods.list(&selected).await?.items.into_iter().find_map(|pod| pod.status) else {
            return Ok(None);
        };
        let ready = status.conditions.iter().flatten().any(|found| found.type_ == "Ready" && found.status == "True");
        Ok(status.pod_ip.filter(|_| ready))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_runs_as_restricted_pods_and_is_reached_by_pod_and_by_node_port_on_hosts() -> Result<()> {
    on_meta(async |meta| {
        let begun = Instant::now();
        let business = Business::new("1.36", meta.address())?;
        apply(&meta.client(), &business.objects()?).await?;
        ready(meta, "etcd").await?;
        eprintln!("etcd is ready after {:?}", begun.elapsed());
        let address = ready(meta, "kube-apiserver").await?;
        eprintln!("the API server is ready after {:?}", begun.elapsed());

        let places = [format!("{address}:6443"), format!("{}:{NODE_PORT}", meta.address())];
        // kube-proxy sees a ready pod at the same time as this test, and needs a moment to update its rules.
        for place in &places {
            let client = business.client(place).await?;
            let reached = || async { Ok(client.apiserver_version().await.ok()) };
            eventually(&format!("{place} to lead to it"), reached).await?;
        }
        for (place, other) in places.iter().zip(places.iter().rev()) {
            let written = ConfigMap {
                data: Some([("by".to_owned(), place.clone())].into()),
                metadata: kube::core::ObjectMeta { generate_name: Some("by-".to_owned()), ..Default::default() },
                ..Default::default()
            };
            let maps: Api<ConfigMap> = Api::default_namespaced(business.client(place).await?);
            let name = maps.create(&PostParams::default(), &written).await.context(place.clone())?.name_any();
            let maps: Api<ConfigMap> = Api::default_namespaced(business.client(other).await?);
            assert_eq!(maps.get(&name).await.context(other.clone())?.data, written.data);
        }
        assert_eq!(business.client(&places[0]).await?.apiserver_version().await?.git_version, "v1.36.4");

        // A worker of the business cluster joins through the bridge.
        let worker = meta.site.host("worker").await?;
        let asked = format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{}/{NODE_PORT} && echo open'", meta.address());
        assert_eq!(worker.run(&asked).await?, "open\n");

        eprintln!("a worker reaches it after {:?}", begun.elapsed());

        // The objects of the namespace are deleted with it, volumes and their folders included.
        let volumes: Api<PersistentVolume> = Api::all(meta.client());
        assert_eq!(volumes.list(&ListParams::default()).await?.items.len(), 1);
        let namespaces: Api<Namespace> = Api::all(meta.client());
        namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
        eventually("the namespace and its volume to be gone", || async {
            let left = volumes.list(&ListParams::default()).await?.items.len();
            Ok((left == 0 && namespaces.get_opt(NAMESPACE).await?.is_none()).then_some(()))
        })
        .await?;
        eprintln!("its namespace is gone after {:?}", begun.elapsed());
        assert_eq!(meta.node().run("ls /var/lib/volumes").await?, "");
        Ok(())
    })
    .await
}

/// A pod that runs a script with busybox.
fn pod(name: &str, again: &str, labels: Value, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "names", "labels": labels },
        "spec": {
            "restartPolicy": again,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "hostname": name,
            "subdomain": "members",
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "busybox",
                "image": images::BUSYBOX,
                "command": ["sh", "-c", script],
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_services_answer_a_pod_also_after_a_power_cut_and_an_image_can_be_added_on_hosts() -> Result<()> {
    on_meta(async |meta| {
        let service = |name: &str, address: Value| {
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": name, "namespace": "names" },
                "spec": { "clusterIP": address, "selector": { "is": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
            })
        };
        // Without a timeout, a DNS lookup waits half a minute for a server that is gone.
        let ask = "ask() { until timeout 2 wget -q -O - \"$1\" 2>/dev/null; do sleep 0.2; done; }
            ask http://web.names.svc/
            ask http://web-0.members.names.svc:8080/
            ask http://web.names.svc.cluster.local/
            nslookup nowhere.example >/dev/null || echo nowhere";
        let web = "mkdir -p /tmp/www && hostname >/tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www";
        let objects = [
            json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": { "name": "names", "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
            }),
            service("web", Value::Null),
            service("members", "None".into()),
            pod("web-0", "Always", json!({ "is": "web" }), web),
            pod("asking", "Never", json!({}), ask),
        ];
        apply(&meta.client(), &objects).await?;
        let pods: Api<Pod> = Api::namespaced(meta.client(), "names");
        let ended = |name: &'static str| {
            let pods = pods.clone();
            move || {
                let pods = pods.clone();
                async move {
                    let phase = pods.get(name).await?.status.and_then(|status| status.phase);
                    Ok((phase.as_deref() == Some("Succeeded")).then_some(()))
                }
            }
        };
        eventually("answers", ended("asking")).await?;
        let said = "web-0\nweb-0\nweb-0\nnowhere\n";
        assert_eq!(pods.logs("asking", &LogParams::default()).await?, said);

        let folder = tempfile::tempdir()?;
        let program = folder.path().join("hello");
        std::fs::write(&program, "#!/bin/busybox sh\necho hello\n")?;
        let image = Image::of("fleetwright.local/hello:1", [program, "/bin/busybox".into()])?;
        meta.import(&image).await?;
        let mut hello = pod("hello", "Never", json!({}), "");
        hello["spec"]["containers"][0]["image"] = image.name().into();
        hello["spec"]["containers"][0]["command"] = json!(["busybox", "sh", "/usr/local/bin/hello"]);
        apply(&meta.client(), &[hello]).await?;
        eventually("an image that was added to run", ended("hello")).await?;
        assert_eq!(pods.logs("hello", &LogParams::default()).await?, "hello\n");

        let begun = Instant::now();
        meta.node().cut_power().await?;
        meta.node().power_on().await?;
        eprintln!("the node is back after {:?}", begun.elapsed());
        apply(&meta.client(), &[pod("asking-again", "Never", json!({}), ask)]).await?;
        eventually("answers after a power cut", ended("asking-again")).await?;
        eprintln!("pods answer after {:?}", begun.elapsed());
        assert_eq!(pods.logs("asking-again", &LogParams::default()).await?, said);
        Ok(())
    })
    .await
}

#[test]
fn a_meta_cluster_whose_process_is_killed_leaves_nothing_on_hosts() -> Result<()> {
    let (run, line) = lab(&["meta"])?;
    let number = run.id();
    let words: Vec<_> = line.split_whitespace().collect();
    let [kubeconfig, pods, folder] = words[..] else { panic!("it says {line:?}") };
    let plane = kubeconfig.trim_end_matches("/admin.kubeconfig");
    let left = || -> Result<String> {
        let mut left = said("find", &["/sys/fs/cgroup", "-name", &format!("fleetwright-{number}-*")])?;
        left += &said("sh", &["-c", &format!("ip -o link | grep -F fw{number}; ls -d {folder}")])?;
        left += &said("ip", &["route", "show", pods])?;
        for place in [plane, folder] {
            left += &said("pgrep", &["-fa", place])?;
        }
        Ok(left)
    };
    killed(run, 8, Duration::from_secs(60), left)?;
    // Logs of the control plane stay until the next lab starts.
    let _ = std::fs::remove_dir_all(plane);
    Ok(())
}

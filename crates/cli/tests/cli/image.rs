//! The image of the operators: built from `deploy/Dockerfile`, and run by the Deployments that `fleetwright install` creates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fleetwright_api::{Cluster, Machine, condition, names};
use fleetwright_lab::meta::{Meta, Options};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use crate::support::BINARY;

const IMAGE: &str = "fleetwright.local/operators:test";
const BASE: &str = "fleetwright.local/base:test";

/// The folder in which `hack/image.sh` puts the content of the image.
fn context() -> Result<PathBuf> {
    let target = Path::new(BINARY).ancestors().nth(2).context("the program is in no target folder")?;
    let folder = target.join("image");
    ensure!(folder.join("fleetwright").is_file(), "{} is empty: run hack/image.sh dev", folder.display());
    Ok(folder)
}

fn output(mut command: Command) -> Result<String> {
    let ran = command.output().with_context(|| format!("{command:?} does not start"))?;
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    ensure!(ran.status.success(), "{command:?}: {}\n{text}{}", ran.status, String::from_utf8_lossy(&ran.stderr));
    Ok(text)
}

/// Builds the image with buildah on a base with this machine's libraries, as no registry is reachable. Returns its docker archive.
fn build(folder: &Path) -> Result<PathBuf> {
    let context = context()?;
    let buildah = || {
        let mut command = Command::new("buildah");
        let state = |name: &str| folder.join(name).into_os_string();
        command.arg("--root").arg(state("root")).arg("--runroot").arg(state("run")).args(["--storage-driver", "vfs"]);
        command
    };
    let libraries = {
        let mut ldd = Command::new("ldd");
        ldd.arg(context.join("fleetwright"));
        output(ldd)?
    };
    let base = folder.join("base");
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let copy = base.join(library.trim_start_matches('/'));
        fs::create_dir_all(copy.parent().context("a library is in a folder")?)?;
        fs::copy(library, copy)?;
    }
    let from_scratch = folder.join("Dockerfile.base");
    fs::write(&from_scratch, "FROM scratch\nCOPY . /\n")?;
    let mut command = buildah();
    command.args(["build", "--isolation", "chroot", "-t", BASE, "-f"]).arg(from_scratch).arg(&base);
    output(command)?;
    let dockerfile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Dockerfile");
    let mut command = buildah();
    command.args(["build", "--isolation", "chroot", "--build-arg", &format!("BASE={BASE}"), "-t", IMAGE, "-f"]);
    command.arg(dockerfile).arg(context);
    output(command)?;
    let archive = folder.join("image.tar");
    let mut command = buildah();
    command.args(["push", IMAGE, &format!("docker-archive:{}:{IMAGE}", archive.display())]);
    output(command)?;
    Ok(archive)
}

/// Waits until a condition of an object has this reason.
async fn reason<K>(api: &Api<K>, name: &str, conditions: impl Fn(&K) -> Option<String>, wanted: &str) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let found = conditions(&api.get(name).await?);
        if found.as_deref() == Some(wanted) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{name}: {found:?} instead of {wanted} for two minutes");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_run_from_their_image_on_hosts() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = {
        let folder = folder.path().to_owned();
        tokio::task::spawn_blocking(move || build(&folder)).await.expect("no panic").expect("the image is built")
    };
    let mut meta = Meta::start(Options::default()).await.expect("a meta cluster");
    if let Err(error) = operate(&meta, &archive).await {
        let seen = meta.seen().await;
        meta.keep_logs();
        panic!("{error:?}\n{seen}");
    }
}

async fn operate(meta: &Meta, archive: &Path) -> Result<()> {
    meta.import_archive(archive).await?;
    let kubeconfig = meta.kubeconfig_path();
    let install = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(BINARY);
        command.args(["install", "--image", IMAGE, "--wait", "--timeout", "5m"]).env("KUBECONFIG", kubeconfig);
        output(command)
    });
    install.await??;

    let client = meta.client();
    let deployments = Api::<Deployment>::namespaced(client.clone(), "fleetwright-system");
    let deployments = deployments.list(&ListParams::default()).await?.items;
    let available = |one: &Deployment| one.status.as_ref().and_then(|status| status.available_replicas);
    let available: Vec<_> = deployments.iter().map(available).collect();
    ensure!(available == [Some(2); 3], "available replicas: {available:?}");
    let pods = Api::<Pod>::namespaced(client.clone(), "fleetwright-system").list(&ListParams::default()).await?.items;
    for pod in &pods {
        let spec = pod.spec.as_ref().context("a pod has a spec")?;
        ensure!(spec.containers.iter().all(|container| container.image.as_deref() == Some(IMAGE)), "{spec:?}");
    }
    ensure!(pods.len() == 6, "{} pods", pods.len());

    // Each operator works with the rights of its installation.
    let machines: Api<Machine> = Api::namespaced(client.clone(), "fleet");
    let machine = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": "host-1"},
        "spec": {"addresses": ["198.18.255.1"], "ssh": {"keyRef": {"name": "not-there"}, "hostKeys": {"policy": "TrustOnFirstUse"}}},
    });
    machines.create(&PostParams::default(), &serde_json::from_value(machine)?).await?;
    let of = |machine: &Machine, type_: &str| {
        let status = machine.status.as_ref()?;
        condition(&status.conditions, type_).map(|condition| condition.reason.clone())
    };
    reason(&machines, "host-1", |machine| of(machine, names::REACHABLE), "SSHKeyNotFound").await?;
    reason(&machines, "host-1", |machine| of(machine, names::SCHEDULABLE), "NodeNotFound").await?;
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), "fleet");
    let cluster: Value = json!({
        "apiVersion": "fleetwright.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "blue"},
        "spec": {"packageVersion": "not-there"},
    });
    clusters.create(&PostParams::default(), &serde_json::from_value(cluster)?).await?;
    let accepted = |cluster: &Cluster| {
        let status = cluster.status.as_ref()?;
        condition(&status.conditions, names::ACCEPTED).map(|condition| condition.reason.clone())
    };
    reason(&clusters, "blue", accepted, "PackageVersionNotFound").await
}

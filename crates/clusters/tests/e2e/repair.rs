//! What breaks is repaired, and timed.

use k8s_openapi::api::core::v1::Pod;

use super::*;

async fn servers(world: &World) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");
    let mut all = pods.list(&Default::default()).await?.items;
    all.retain(|pod| pod.name_any().starts_with("kube-apiserver") && pod.metadata.deletion_timestamp.is_none());
    Ok(all)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|all| all.first()).map_or(0, |one| one.restart_count)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_comes_back_and_beside_it_a_cluster_lives_on_an_etcd_of_somebody_else_on_hosts() -> Result<()> {
    on_meta(async |world| tokio::try_join!(come_back(world), external::live_on(world)).map(drop)).await
}

/// A killed API server, a deleted pod and a deleted certificate come back.
async fn come_back(world: &World) -> Result<()> {
    let mut spec = ClusterSpec::of("v1.36");
    spec.datastore.etcd = Some(EtcdDatastore { members: 1, ..EtcdDatastore::default() });
    spec.deletion_protection = false;
    world.clusters().create(&PostParams::default(), &Cluster::new("pay", spec)).await?;
    world.ready("pay").await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "fleet-pay");

    // As the kernel would, when memory is short.
    let victim = servers(world).await?.remove(0);
    let begun = Instant::now();
    kill(&victim)?;
    eventually("the container to begin anew", async || {
        let pod = pods.get(&victim.name_any()).await?;
        Ok(if restarts(&pod) > restarts(&victim) { Ok(()) } else { Err(format!("{:?}", pod.status)) })
    })
    .await?;
    proven_again(world, &victim.name_any()).await?;
    eprintln!("killed API server proven again after {:?}", begun.elapsed());

    let victim = servers(world).await?.remove(0);
    let begun = Instant::now();
    pods.delete(&victim.name_any(), &DeleteParams::default()).await?;
    let another = eventually("another pod", async || {
        let all = servers(world).await?;
        let known = all.iter().filter(|pod| pod.uid() != victim.uid()).count();
        let newest = all.into_iter().max_by_key(|pod| pod.metadata.creation_timestamp.clone());
        Ok(newest.filter(|_| known == 2).ok_or_else(|| format!("{known} of 2")))
    })
    .await?;
    proven_again(world, &another.name_any()).await?;
    eprintln!("deleted API server replaced and proven after {:?}", begun.elapsed());

    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "fleet-pay");
    let before = secrets.get("apiserver-tls").await?;
    let begun = Instant::now();
    secrets.delete("apiserver-tls", &DeleteParams::default()).await?;
    eventually("another certificate", async || {
        let now = secrets.get_opt("apiserver-tls").await?;
        Ok(if now.is_some_and(|now| now.uid() != before.uid()) { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .await?;
    eprintln!("deleted certificate made anew after {:?}", begun.elapsed());
    world.ready("pay").await?;
    Ok(())
}

/// Waits until that pod is proven with the container that runs now.
async fn proven_again(world: &World, pod: &str) -> Result<()> {
    eventually(&format!("{pod} to be proven"), async || {
        let status = world.ready("pay").await?;
        let replicas = status.components.iter().flat_map(|component| &component.replicas);
        let found = replicas.into_iter().find(|replica| replica.name == pod);
        Ok(match found {
            Some(replica) if replica.ready && replica.proven.is_some() => Ok(()),
            other => Err(format!("{other:?}")),
        })
    })
    .await
}

/// Kills the API server of that pod, as `kill -9` does, wherever on this machine its container is.
fn kill(pod: &Pod) -> Result<()> {
    let uid = pod.uid().context("it has a uid")?;
    let marks = [uid.clone(), uid.replace('-', "_")];
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let ours = marks.iter().any(|mark| read("cgroup").contains(mark.as_str()));
        if ours && read("comm").trim() == "kube-apiserver" {
            let done = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status()?;
            ensure!(done.success(), "kill -9 {pid}: {done}");
            return Ok(());
        }
    }
    bail!("no process of pod {uid} is here")
}

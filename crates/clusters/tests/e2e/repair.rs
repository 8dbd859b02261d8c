//! What breaks is repaired, and timed.

use k8s_openapi::api::core::v1::Pod;

use super::*;

/// An address of a pod that is reachable only from its node, so that its kubelet can probe it; the address disappears with the node at the latest.
async fn cut_off(world: &MetaFixture, pod: &Pod, whether: bool) -> Result<()> {
    let status = pods(world).get(&pod.name_any()).await?.status;
    let ip = status.and_then(|status| status.pod_ip).context("it has an address")?;
    let verb = if whether { "add" } else { "del" };
    world.meta.node().run(&format!("ip rule {verb} iif eth0 to {ip} prohibit")).await.map(drop)
}

fn pods(world: &MetaFixture) -> Api<Pod> {
    Api::namespaced(world.client.clone(), "fleet-pay")
}

async fn servers(world: &MetaFixture) -> Result<Vec<Pod>> {
    let mut all = pods(world).list(&Default::default()).await?.items;
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

/// A killed API server, a deleted pod, a deleted certificate and an API server that fails for all clients are repaired.
async fn come_back(world: &MetaFixture) -> Result<()> {
    world.clusters().create(&PostParams::default(), &Cluster::new("pay", world.spec(1))).await?;
    world.ready("pay").await?;

    // As the kernel would, when memory is short.
    let victim = servers(world).await?.remove(0);
    let begun = Instant::now();
    kill(&victim)?;
    eventually("the container to begin anew", async || {
        let pod = pods(world).get(&victim.name_any()).await?;
        Ok(if restarts(&pod) > restarts(&victim) { Ok(()) } else { Err(format!("{:?}", pod.status)) })
    })
    .await?;
    proven_again(world, &victim.name_any()).await?;
    eprintln!("killed API server proven again after {:?}", begun.elapsed());

    let victim = servers(world).await?.remove(0);
    let begun = Instant::now();
    pods(world).delete(&victim.name_any(), &DeleteParams::default()).await?;
    proven_again(world, &replacement_of(world, &victim).await?.name_any()).await?;
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
    lose_keys(world, &secrets).await?;
    isolate(world).await
}

/// Deleted keys come back as they were: no pod is replaced or restarted, and who had a kubeconfig still has one.
async fn lose_keys(world: &MetaFixture, secrets: &Api<Secret>) -> Result<()> {
    let endpoint = world.clusters().get("pay").await?.status.and_then(|status| status.endpoint);
    let client = world.business("pay", &endpoint.context("it has an endpoint")?).await?;
    let running = async || -> Result<Vec<String>> {
        let all = pods(world).list(&Default::default()).await?.items;
        // One that was replaced before may still be ending.
        let here = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none() && !pod.name_any().starts_with("snapshot-");
        let all = all.iter().filter(here);
        let mut all: Vec<_> = all.map(|pod| format!("{:?} {}", pod.uid(), restarts(pod))).collect();
        all.sort();
        Ok(all)
    };
    let before = running().await?;
    for name in ["ca", "etcd-ca", "front-proxy-ca", "kubelet-ca", "service-account"] {
        let (old, begun) = (secrets.get(name).await?, Instant::now());
        secrets.delete(name, &DeleteParams::default()).await?;
        let new = eventually("the key to come back", async || {
            let now = secrets.get_opt(name).await?.filter(|now| now.uid() != old.uid());
            Ok(now.ok_or_else(|| "not yet".to_owned()))
        })
        .await?;
        ensure!(new.data == old.data, "Secret {name} holds another key");
        eprintln!("deleted Secret {name} restored after {:?}", begun.elapsed());
    }
    world.ready("pay").await?;
    ensure!(running().await? == before, "a pod was replaced or restarted: {before:?} {:?}", running().await?);
    Api::<Namespace>::all(client).get("default").await.context("who had a kubeconfig lost it")?;
    Ok(())
}

/// An API server that passes the probes of its kubelet and fails for other clients is removed from the endpoint and recreated. The next one waits for
/// the backoff, and none is removed if no other one works.
async fn isolate(world: &MetaFixture) -> Result<()> {
    let victim = servers(world).await?.remove(0);
    let begun = Instant::now();
    cut_off(world, &victim, true).await?;
    // So that it is not found out ten minutes later, at its next proof.
    kill(&victim)?;
    let replaced = eventually("it to be made anew", async || {
        let status = world.clusters().get("pay").await?.status.unwrap_or_default();
        let ours = status.replaced.clone().filter(|replaced| Some(&replaced.uid) == victim.uid().as_ref());
        Ok(ours.ok_or_else(|| format!("{status:#?}")))
    })
    .await?;
    ensure!(replaced.times == 1 && replaced.message.contains("3 times"), "{replaced:?}");
    proven_again(world, &replacement_of(world, &victim).await?.name_any()).await?;
    eprintln!("API server that does not work for others replaced and proven after {:?}", begun.elapsed());

    let both = servers(world).await?;
    let [second, last] = &both[..] else { bail!("{} API servers", both.len()) };
    let begun = Instant::now();
    cut_off(world, second, true).await?;
    kill(second)?;
    serving(world, &[(second, false), (last, true)]).await?;
    eprintln!("API server that does not work for others without clients after {:?}", begun.elapsed());
    let endpoint = world.clusters().get("pay").await?.status.and_then(|status| status.endpoint);
    let endpoint = endpoint.context("it has an endpoint")?;
    // kube-proxy follows.
    eventually("every connection to reach one that works", async || {
        for number in 0..20 {
            let client = world.business("pay", &endpoint).await?;
            if let Err(error) = Api::<Namespace>::all(client).get("default").await {
                return Ok(Err(format!("connection {number}: {error}")));
            }
        }
        Ok(Ok(()))
    })
    .await?;

    cut_off(world, last, true).await?;
    kill(last)?;
    serving(world, &[(second, true), (last, true)]).await?;
    let status = world.clusters().get("pay").await?.status.unwrap_or_default();
    ensure!(status.replaced.as_ref() == Some(&replaced), "the second waits for its time: {:?}", status.replaced);
    for pod in [second, last] {
        cut_off(world, pod, false).await?;
    }
    for pod in [second, last] {
        proven_again(world, &pod.name_any()).await?;
    }
    let now: Vec<_> = servers(world).await?.iter().map(Pod::uid).collect();
    ensure!(now == [second.uid(), last.uid()], "no pod was made anew: {now:?}");
    Ok(())
}

/// Waits until these get clients, or do not.
async fn serving(world: &MetaFixture, wanted: &[(&Pod, bool)]) -> Result<()> {
    eventually("the endpoint to lead to others", async || {
        let all = servers(world).await?;
        let serves = |pod: &Pod| pod.labels().get(names::SERVING).is_none_or(|value| value == "true");
        let now = |pod: &Pod| all.iter().find(|one| one.uid() == pod.uid()).map(serves);
        let told: Vec<_> = wanted.iter().map(|(pod, _)| (pod.name_any(), now(pod))).collect();
        let right = wanted.iter().zip(&told).all(|((_, wanted), (_, now))| *now == Some(*wanted));
        Ok(if right { Ok(()) } else { Err(format!("{told:?}")) })
    })
    .await
}

/// Waits until there are two API servers without that one; says which is the newest.
async fn replacement_of(world: &MetaFixture, gone: &Pod) -> Result<Pod> {
    eventually("another pod", async || {
        let all = servers(world).await?;
        let known = all.iter().filter(|pod| pod.uid() != gone.uid()).count();
        let newest = all.into_iter().max_by_key(|pod| pod.metadata.creation_timestamp.clone());
        Ok(newest.filter(|_| known == 2).ok_or_else(|| format!("{known} of 2")))
    })
    .await
}

/// Waits until that pod is proven with the container that runs now.
async fn proven_again(world: &MetaFixture, pod: &str) -> Result<()> {
    eventually(&format!("{pod} to be proven"), async || {
        let status = world.ready("pay").await?;
        let replicas = status.components.iter().flat_map(|component| &component.replicas);
        let found = replicas.into_iter().find(|replica| replica.name == pod);
        Ok(match found {
            Some(replica) if replica.ready && replica.verified_at.is_some() => Ok(()),
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

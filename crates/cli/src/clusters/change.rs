//! `fleetwright cluster upgrade` and `rollback`: they change the package version reference, unless it was changed concurrently.

use anyhow::{anyhow, bail};
use fleetwright_api::{Cluster, ClusterSpec, GROUP, names};
use fleetwright_kit::JsonPatch;
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::limits::CheckedCluster;
use fleetwright_plan::cluster::upgrade_path::{self, VersionNode};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::packages::PackageVersions;
use super::wait::{RequestedVersion, WaitArgs};
use super::{FIELD_MANAGER, SelectedCluster, called, health};
use crate::cluster::Cluster as Meta;
use crate::explanation;
use crate::terminal_text::{ago, line};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  kubectl get clusterpackageversions -n fleet
  fleetwright cluster upgrade pay-01 k8s-1.37.1-r1 --dry-run
  fleetwright cluster upgrade pay-01 k8s-1.37.1-r1 --wait
  fleetwright cluster upgrade pay-01 k8s-1.37.1-r1 --retry

A control plane is upgraded by one minor at a time, from the versions that spec.upgradeFrom of the package version allows. A new minor emulates the
old one for spec.upgrade.soak of the cluster; during that time, `fleetwright cluster rollback` keeps every write.")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    one: SelectedCluster,

    /// ClusterPackageVersion to upgrade to, in the same namespace.
    #[arg(value_name = "PACKAGE-VERSION", value_parser = super::packages::name)]
    package: String,

    /// Retry an upgrade that failed and was rolled back.
    #[arg(long)]
    retry: bool,

    #[command(flatten)]
    how: ChangeOptions,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster rollback pay-01 --wait
  fleetwright cluster rollback pay-01 k8s-1.36.4-r1 --dry-run

A rollback is possible at any stage of an upgrade. After the upgrade it is possible within the same minor and, while the cluster emulates the previous
minor (status.emulates), to that minor.")]
pub(crate) struct Rollback {
    #[command(flatten)]
    one: SelectedCluster,

    /// ClusterPackageVersion to roll back to, in the same namespace. [default: the previous one of the cluster]
    #[arg(value_name = "PACKAGE-VERSION", value_parser = super::packages::name)]
    package: Option<String>,

    #[command(flatten)]
    how: ChangeOptions,
}

#[derive(clap::Args)]
struct ChangeOptions {
    /// Send the requests as a server-side dry run, without changing anything.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) fn upgrade(args: &Upgrade) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        args.how.refuse_if_idle(&cluster)?;
        let packages = PackageVersions::of(&meta, &cluster).await?;
        let to = packages.get(&args.package)?;
        if cluster.spec.package_version == args.package {
            return args.how.again(&meta, &cluster, args.retry).await;
        }
        if args.retry {
            bail!(
                "cluster {} has spec.packageVersion {}, not {}: --retry repeats a failed change to the same version; leave it out",
                cluster.name_any(),
                cluster.spec.package_version,
                args.package
            );
        }
        if let Some(from) = packages.present(&cluster) {
            upgrade_path::forward(&from, &to).map_err(|no_way| packages.explain(&cluster, &from, &to, no_way))?;
            refuse_if_soaking(&cluster, &from, &to)?;
        }
        args.how.ask(&meta, &cluster, &to, "upgrading").await
    })
}

pub(crate) fn rollback(args: &Rollback) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        args.how.refuse_if_idle(&cluster)?;
        let name = match &args.package {
            Some(name) => name.clone(),
            None => before(&cluster)?,
        };
        let packages = PackageVersions::of(&meta, &cluster).await?;
        let to = packages.get(&name)?;
        if cluster.spec.package_version == name {
            return args.how.again(&meta, &cluster, false).await;
        }
        // A return to the present version is always possible while another one is requested.
        let from = packages.present(&cluster).filter(|from| from.name != name);
        if let Some(from) = from {
            upgrade_path::back(&from, &to, health::emulates(&cluster))
                .map_err(|no_way| packages.explain(&cluster, &from, &to, no_way))?;
        }
        args.how.ask(&meta, &cluster, &to, "rolling back").await
    })
}

/// Refuses the next minor while the cluster emulates the previous one.
fn refuse_if_soaking(cluster: &Cluster, from: &VersionNode<'_>, to: &VersionNode<'_>) -> anyhow::Result<()> {
    let Some(emulated) = health::emulates(cluster).filter(|_| from.minor() != to.minor()) else { return Ok(()) };
    let left = cluster.status.as_ref().map(|status| health::soak_left(status, Timestamp::now())).unwrap_or_default();
    bail!(
        "cluster {} emulates {} until its soak ends{left}; upgrade to {} (Kubernetes {}) after that",
        cluster.name_any(),
        line(emulated),
        to.name,
        to.kubernetes
    )
}

/// The previous package version: the present one while another is requested, else the one before.
fn before(cluster: &Cluster) -> anyhow::Result<String> {
    let status = cluster.status.clone().unwrap_or_default();
    let has = status.package_version.filter(|has| *has != cluster.spec.package_version);
    has.or(status.previous).ok_or_else(|| {
        anyhow!(
            "cluster {} has no package version before {} (status.previous is empty); specify one: fleetwright cluster rollback {} PACKAGE-VERSION",
            cluster.name_any(),
            cluster.spec.package_version,
            called(cluster)
        )
    })
}

impl ChangeOptions {
    /// Refuses requests on which the operator would not act.
    fn refuse_if_idle(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let name = cluster.name_any();
        if cluster.metadata.deletion_timestamp.is_some() && !cluster.spec.deletion_protection {
            bail!("cluster {name} is being deleted");
        }
        if cluster.spec.paused && self.wait.wait {
            bail!(
                "cluster {name} is paused (spec.paused is true), so --wait would time out: leave --wait out, or resume it with kubectl patch cluster {} --type=merge -p '{{\"spec\":{{\"paused\":false}}}}'",
                called(cluster)
            );
        }
        Ok(())
    }

    /// Requests another package version.
    async fn ask(&self, meta: &Meta, cluster: &Cluster, to: &VersionNode<'_>, verb: &str) -> anyhow::Result<()> {
        let from = &cluster.spec.package_version;
        if !self.dry_run {
            let spec = ClusterSpec { package_version: to.name.to_owned(), ..cluster.spec.clone() };
            let names = Names::of(&cluster.namespace().unwrap_or_default(), &cluster.name_any());
            let checked = CheckedCluster { names: &names, labels: cluster.labels(), spec: &spec, present: None };
            let present = cluster.status.as_ref().and_then(|status| status.package_version.as_deref());
            super::limits::refuse(meta, checked, present).await?;
        }
        let changed = set(meta, cluster, "packageVersion", to.name, self.dry_run).await?;
        if self.dry_run {
            let plan = super::plan::of(meta, cluster, Some(to.name)).await?;
            println!("{}", explanation::plan::cluster(&plan, Timestamp::now()));
        }
        println!(
            "{verb} {} from {from} to {} (Kubernetes {}){}",
            cluster.name_any(),
            to.name,
            to.kubernetes,
            self.suffix()
        );
        if cluster.spec.paused {
            eprintln!("note: the cluster is paused (spec.paused is true); nothing changes until it is resumed");
        }
        self.finish(meta, cluster, &changed).await
    }

    /// Handles a version that is requested already, or that failed before.
    async fn again(&self, meta: &Meta, cluster: &Cluster, retry: bool) -> anyhow::Result<()> {
        let (name, package, suffix) = (cluster.name_any(), &cluster.spec.package_version, self.suffix());
        match health::failed(cluster) {
            Some(failed) if !retry => bail!(
                "cluster {name}: {package} failed and was rolled back {} ago: {}\nto retry: fleetwright cluster upgrade {of} {package} --retry; to keep the running version: fleetwright cluster rollback {of}",
                ago(failed.at, Timestamp::now()),
                line(&failed.message),
                of = called(cluster)
            ),
            Some(_) => {
                let stamp = Timestamp::now().to_string();
                let asks = json!({"metadata": {"uid": cluster.uid(), "annotations": {names::RETRY: stamp}}});
                let changed = write(meta, cluster, &Patch::Merge(asks), self.dry_run).await?;
                println!("retrying {package} on {name}{suffix}");
                self.finish(meta, cluster, &changed).await
            }
            None if retry => {
                bail!("cluster {name}: {package} has not failed, there is nothing to retry; leave --retry out")
            }
            None => {
                println!("cluster.{GROUP}/{name} unchanged: spec.packageVersion is already {package}{suffix}");
                self.finish(meta, cluster, cluster).await
            }
        }
    }

    fn suffix(&self) -> &'static str {
        if self.dry_run { " (dry run)" } else { "" }
    }

    async fn finish(&self, meta: &Meta, before: &Cluster, changed: &Cluster) -> anyhow::Result<()> {
        if !self.wait.wait {
            return Ok(());
        }
        let package = changed.spec.package_version.as_str();
        let failed_before = before.status.as_ref().and_then(|status| status.failed.clone());
        let asked = RequestedVersion { package, generation: changed.metadata.generation, failed_before };
        let wanted = format!("Ready with {package}");
        let took = self.wait.until(meta, changed, &wanted, |cluster| asked.look(cluster)).await?;
        println!("cluster.{GROUP}/{} is Ready with {package} after {took}", changed.name_any());
        Ok(())
    }
}

/// Sets a field of the spec, if it is still the same object and still refers to the same package version.
pub(super) async fn set(
    meta: &Meta,
    cluster: &Cluster,
    field: &str,
    value: impl serde::Serialize,
    dry_run: bool,
) -> anyhow::Result<Cluster> {
    let patch = JsonPatch::new()
        .test_uid(cluster.metadata.uid.as_deref().unwrap_or_default())
        .test(&["spec", "packageVersion"], &cluster.spec.package_version)
        .replace(&["spec", field], value);
    write(meta, cluster, &Patch::Json::<()>(serde_json::from_value(patch.into())?), dry_run).await
}

async fn write<P: serde::Serialize + std::fmt::Debug>(
    meta: &Meta,
    cluster: &Cluster,
    patch: &Patch<P>,
    dry_run: bool,
) -> anyhow::Result<Cluster> {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let api: Api<Cluster> = Api::namespaced(meta.client.clone(), &namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run, ..PatchParams::default() };
    let error = match api.patch(&name, &params, patch).await {
        Ok(changed) => return Ok(changed),
        Err(error) => error,
    };
    // A failed JSON patch test is refused like an invalid patch: the present object shows which one it was.
    match api.get_opt(&name).await {
        Ok(None) => bail!("cluster {name} not found: it was deleted in the meantime"),
        Ok(Some(now)) if now.uid() != cluster.uid() => {
            bail!("cluster {name} was deleted and recreated in the meantime; check it and try again")
        }
        Ok(Some(now)) if now.spec.package_version != cluster.spec.package_version => bail!(
            "cluster {name} was modified in the meantime: spec.packageVersion is {} now; check it and try again",
            now.spec.package_version
        ),
        _ => Err(meta.explain(error)),
    }
}

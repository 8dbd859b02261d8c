//! `fleetwright machine retry`, `pause`, `resume`, `adopt` and `force-release`: requests of a person to the Machine-Operator.

use anyhow::bail;
use fleetwright_api::{GROUP, HostOwner, Machine, names};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::select::{self, MachineSelection};
use crate::cluster::{Cluster, ClusterArgs};
use crate::target;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright machine retry host-17
  fleetwright machine pause -l rack=r3
  fleetwright machine resume --all")]
pub(crate) struct Args {
    #[command(flatten)]
    which: MachineSelection,

    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  kubectl delete machine host-17 --wait=false
  fleetwright machine force-release host-17")]
pub(crate) struct ForceRelease {
    /// Name of the machine. It must be deleted already.
    #[arg(value_name = "NAME", value_parser = select::name)]
    name: String,

    /// Namespace of the machine. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright machine adopt host-17                      # show the owner of the host, without changing anything
  fleetwright machine adopt host-17 --from UID           # take the host from the Machine with that UID
  fleetwright machine adopt host-17 --from unclaimed     # claim a host that an earlier version installed and that has no owner mark")]
pub(crate) struct Adopt {
    /// Name of the machine that takes over the host.
    #[arg(value_name = "NAME", value_parser = select::name)]
    name: String,

    /// UID of the Machine that owns the host now, as this command shows it without --from. The host is taken only from this Machine.
    #[arg(long, value_name = "UID")]
    from: Option<String>,

    /// Namespace of the machine. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn adopt(args: &Adopt) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref()).to_owned();
        let machine: Machine = target::one(&cluster, &namespace, &args.name).await?;
        let name = &args.name;
        let owner = machine.status.as_ref().and_then(|status| status.host_owner.as_ref());
        let says = |reason: &str| {
            let said = machine.status.iter().flat_map(|status| &status.conditions);
            said.into_iter().any(|said| said.type_ == names::HOST_OWNED && said.reason == reason)
        };
        // The time makes this request differ from an earlier one that the operator carried out.
        let annotation = |adoption: &str| json!({"metadata": {
            "annotations": {names::ADOPT_HOST: format!("{adoption}/{}", Timestamp::now())},
        }});
        if owner.is_none() && says("HostNotClaimed") {
            if args.from.as_deref() != Some(HostOwner::UNCLAIMED) {
                bail!(
                    "the host of machine {name} has packages that an earlier version of Fleetwright installed, and no owner mark. If no other \
                     Machine, of this or another cluster, uses the host, claim it (packages that {name} does not declare are then removed): \
                     fleetwright machine adopt {name} -n {namespace} --from {}",
                    HostOwner::UNCLAIMED
                );
            }
            write(&cluster, &machine, &annotation(HostOwner::UNCLAIMED)).await?;
            println!("machine.{GROUP}/{name} host claim requested");
            return Ok(());
        }
        let Some(owner) = owner else {
            bail!("nothing to adopt: the host of machine {name} has no known owner; the first step of this Machine claims it")
        };
        let whose = format!(
            "Machine {}/{} (uid {}) of the cluster {}, in epoch {}",
            owner.namespace, owner.name, owner.uid, owner.cluster, owner.epoch
        );
        if machine.metadata.uid.as_ref() == Some(&owner.uid) && !says("StaleFencingToken") {
            println!("machine.{GROUP}/{name} already owns its host");
            return Ok(());
        }
        if args.from.as_ref() != Some(&owner.uid) {
            let asked = match &args.from {
                Some(from) => format!("the host of machine {name} does not belong to a Machine with the uid {from}, but to {whose}"),
                None => format!("the host of machine {name} belongs to {whose}"),
            };
            bail!(
                "{asked}. To adopt it (that Machine can then no longer change the host, and packages that {name} does not declare are removed): \
                 fleetwright machine adopt {name} -n {namespace} --from {}",
                owner.uid
            );
        }
        // The request names this owner in this epoch: it has no effect if another Machine has the host by then.
        write(&cluster, &machine, &annotation(&owner.adoption())).await?;
        println!("machine.{GROUP}/{name} adopting its host from {whose}");
        Ok(())
    })
}

pub(crate) fn retry(args: &Args) -> anyhow::Result<()> {
    let stamp = Timestamp::now().to_string();
    args.each("retry requested", |_| Some(json!({"metadata": {"annotations": {names::RETRY: stamp}}})))
}

pub(crate) fn pause(args: &Args) -> anyhow::Result<()> {
    args.each("paused", |machine| (!machine.spec.paused).then(|| json!({"spec": {"paused": true}})))
}

pub(crate) fn resume(args: &Args) -> anyhow::Result<()> {
    args.each("resumed", |machine| machine.spec.paused.then(|| json!({"spec": {"paused": false}})))
}

impl Args {
    /// Changes each machine that needs it, and prints the result.
    fn each(&self, done: &str, change: impl Fn(&Machine) -> Option<Value>) -> anyhow::Result<()> {
        crate::runtime()?.block_on(async {
            let cluster = self.cluster.connect().await?;
            let machines = self.which.fetch(&cluster).await?;
            if machines.is_empty() {
                bail!("no machines found in namespace {}", self.which.namespace(&cluster));
            }
            for machine in &machines {
                let name = machine.metadata.name.as_deref().unwrap_or_default();
                match change(machine) {
                    Some(patch) => {
                        write(&cluster, machine, &patch).await?;
                        println!("machine.{GROUP}/{name} {done}");
                    }
                    None => println!("machine.{GROUP}/{name} {done} (unchanged)"),
                }
            }
            Ok(())
        })
    }
}

pub(crate) fn force_release(args: &ForceRelease) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let cluster = args.cluster.connect().await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref()).to_owned();
        let machine: Machine = target::one(&cluster, &namespace, &args.name).await?;
        let name = &args.name;
        if machine.metadata.deletion_timestamp.is_none() {
            bail!("machine {name} is not being deleted; if its host no longer exists, delete it first: kubectl delete machine {name} -n {namespace} --wait=false");
        }
        write(&cluster, &machine, &json!({"metadata": {"annotations": {names::FORCE_RELEASE: "true"}}})).await?;
        println!("machine.{GROUP}/{name} force-released; its packages stay on the host");
        Ok(())
    })
}

async fn write(cluster: &Cluster, machine: &Machine, patch: &Value) -> anyhow::Result<()> {
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let api: Api<Machine> = Api::namespaced(cluster.client.clone(), namespace);
    let params = PatchParams { field_manager: Some("fleetwright-machine".into()), ..PatchParams::default() };
    api.patch(name, &params, &Patch::Merge(patch)).await.map_err(|error| cluster.explain(error))?;
    Ok(())
}

//! `fleetwright resolve`: records the outcome of an Unknown operation, which only a person can find out.

use anyhow::bail;
use clap::ValueEnum;
use fleetwright_api::{Operation, OperationPhase, names};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cluster::ClusterArgs;
use crate::target::TargetArgs;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  kubectl get operations -n fleet | grep Unknown
  fleetwright resolve operation/drain-host-17-7f3a9c12 --outcome Failed --reason 'power was lost, host checked by hand'")]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArgs,

    /// Outcome of the operation.
    #[arg(long, value_enum, value_name = "OUTCOME", ignore_case = true)]
    outcome: Outcome,

    /// How you know the outcome, in at most 1024 characters; stored with the operation.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,

    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Outcome {
    Succeeded,
    Failed,
}

fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("must say how the outcome is known, such as 'host checked by hand'".into()),
        long if long.chars().count() > 1024 => Err("at most 1024 characters".into()),
        text => Ok(text.to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.target.name::<Operation>()?;
    crate::runtime()?.block_on(args.resolve())
}

impl Args {
    async fn resolve(&self) -> anyhow::Result<()> {
        let cluster = self.cluster.connect().await?;
        let operation: Operation = self.target.fetch(&cluster).await?;
        let name = operation.metadata.name.as_deref().unwrap_or_default();
        let outcome = format!("{:?}", self.outcome);
        let phase = operation.status.as_ref().map(|status| status.phase).unwrap_or_default();
        match phase {
            OperationPhase::Unknown => {}
            OperationPhase::Succeeded | OperationPhase::Failed => {
                bail!("operation {name} has already ended as {phase:?}; a known outcome cannot be changed")
            }
            _ => bail!("operation {name} is {phase:?}; only an operation that is Unknown can be resolved"),
        }
        let present = operation.metadata.annotations.as_ref().and_then(|all| all.get(names::OUTCOME));
        if let Some(present) = present.filter(|present| **present != outcome) {
            eprintln!("note: replacing the outcome recorded before: {present}");
        }
        // The resourceVersion ensures that the operation is still Unknown at the write.
        let patch = json!({"metadata": {
            "resourceVersion": operation.metadata.resource_version,
            "annotations": {names::OUTCOME: outcome, names::OUTCOME_REASON: self.reason},
        }});
        let api: Api<Operation> = Api::namespaced(cluster.client.clone(), self.target.namespace(&cluster));
        let params = PatchParams { field_manager: Some("fleetwright-resolve".into()), ..PatchParams::default() };
        match api.patch(name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => println!("operation.{}/{name} resolved as {outcome}", fleetwright_api::GROUP),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                bail!("operation {name} was modified in the meantime; check it and try again")
            }
            Err(error) => return Err(cluster.explain(error)),
        }
        Ok(())
    }
}

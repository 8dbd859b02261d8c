//! `fleetwright crds`.

use crate::output::JsonOrYaml;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright crds | kubectl apply --server-side -f -
  fleetwright crds -o json | jq -r '.items[].metadata.name'")]
pub(crate) struct Args {
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "yaml")]
    output: JsonOrYaml,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match args.output {
        JsonOrYaml::Yaml => crate::print(&fleetwright_api::crds_yaml()),
        JsonOrYaml::Json => {
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": fleetwright_api::crds_json()});
            crate::print(&(serde_json::to_string_pretty(&list)? + "\n"))
        }
    }
}

//! `fleetwright version`.

use crate::output::JsonOrYaml;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<JsonOrYaml>,
}

/// Version of the API that the embedded server implements, if this build has one.
#[cfg(feature = "embedded")]
const KUBERNETES: Option<&str> = Some(fleetwright_apiserver::KUBERNETES_VERSION);
#[cfg(not(feature = "embedded"))]
const KUBERNETES: Option<&str> = None;

#[derive(serde::Serialize)]
struct Versions {
    fleetwright: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes: Option<&'static str>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let versions = Versions { fleetwright: env!("CARGO_PKG_VERSION"), kubernetes: KUBERNETES };
    match args.output {
        None => {
            println!("fleetwright {}", versions.fleetwright);
            if let Some(kubernetes) = versions.kubernetes {
                println!("Kubernetes API {kubernetes}");
            }
        }
        Some(JsonOrYaml::Json) => println!("{}", serde_json::to_string_pretty(&versions)?),
        Some(JsonOrYaml::Yaml) => print!("{}", serde_saphyr::to_string(&versions)?),
    }
    Ok(())
}

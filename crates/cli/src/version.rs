//! `fleetwright version`.

use crate::output::JsonOrYaml;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<JsonOrYaml>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (version, kubernetes) = (env!("CARGO_PKG_VERSION"), fleetwright_apiserver::KUBERNETES_VERSION);
    match args.output {
        None => println!("fleetwright {version}\nKubernetes API {kubernetes}"),
        Some(JsonOrYaml::Json) => {
            let value = serde_json::json!({"fleetwright": version, "kubernetes": kubernetes});
            println!("{}", serde_json::to_string_pretty(&value)?);
        }
        Some(JsonOrYaml::Yaml) => println!("fleetwright: {version}\nkubernetes: {kubernetes}"),
    }
    Ok(())
}

//! `fleetwright package`: commands for package versions before they are applied.

#[cfg(feature = "embedded")]
mod lint;
mod new;
pub(crate) mod source;

use clap::Subcommand;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check package versions for errors, before they are applied to a cluster.
    #[cfg(feature = "embedded")]
    Lint(lint::Args),
    /// Print a package version as a template: of a component that ships with Fleetwright, or an example of a method.
    New(new::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        #[cfg(feature = "embedded")]
        Command::Lint(args) => lint::run(args),
        Command::New(args) => new::run(args),
    }
}

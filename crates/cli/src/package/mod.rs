//! `fleetwright package`: package versions before they reach a cluster.

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
    /// Explain what is wrong with package versions, before a cluster sees them.
    Lint(lint::Args),
    /// Print a package version to start from: of a component that comes with Fleetwright, or an example of a method.
    New(new::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Lint(args) => lint::run(args),
        Command::New(args) => new::run(args),
    }
}

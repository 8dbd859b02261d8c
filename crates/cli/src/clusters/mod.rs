//! `fleetwright cluster`: business clusters as a person sees them. What a command talks to is the meta cluster that holds them.

mod health;
mod list;
mod news;
mod status;
mod tree;
pub(crate) mod why;

use clap::Subcommand;
use fleetwright_api::Cluster;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List clusters, those with problems first.
    List(list::Args),
    /// Tell everything about one cluster: what it waits for, its components, certificates, snapshots and news.
    Status(status::Args),
    /// Show clusters with their components and replicas as a tree, what is wrong first.
    Tree(tree::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::List(args) => list::run(args),
        Command::Status(args) => status::run(args),
        Command::Tree(args) => tree::run(args),
    }
}

/// A cluster's name, also with its type in front: `cluster/x`.
fn name(text: &str) -> Result<String, String> {
    crate::target::bare_name::<Cluster>(text)
}

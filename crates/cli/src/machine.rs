//! `fleetwright machine`: commands for hosts.

mod act;
mod bind;
mod import;
mod logs;
mod package_sources;
pub(crate) mod plan;
mod reach;
mod select;
mod status;

use clap::Subcommand;

pub(crate) use self::import::label;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Import machines from a list of hosts: YAML, CSV or an Ansible inventory.
    Import(Box<import::Args>),
    /// Show the exact next steps of machines and what they disrupt, without changing anything.
    Plan(plan::Args),
    /// List machines, those with problems first, or show one in detail.
    Status(status::Args),
    /// Print the output of a step on the host of a machine.
    Logs(logs::Args),
    /// Retry what failed on machines.
    Retry(act::Args),
    /// Pause machines: change nothing until they are resumed. Their status stays up to date.
    Pause(act::Args),
    /// Resume paused machines.
    Resume(act::Args),
    /// Take over the host of a machine from the Machine, of this or another cluster, that owns it.
    Adopt(act::Adopt),
    /// Bind existing Nodes to machines whose Node did not join through them. Requires write access to machines/status and the verb adopt on machines.
    BindNode(bind::Args),
    /// Release a deleted machine whose host is gone and can no longer be cleaned.
    ForceRelease(act::ForceRelease),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Import(args) => import::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Status(args) => status::run(args),
        Command::Logs(args) => logs::run(args),
        Command::Retry(args) => act::retry(args),
        Command::Pause(args) => act::pause(args),
        Command::Resume(args) => act::resume(args),
        Command::Adopt(args) => act::adopt(args),
        Command::BindNode(args) => bind::run(args),
        Command::ForceRelease(args) => act::force_release(args),
    }
}

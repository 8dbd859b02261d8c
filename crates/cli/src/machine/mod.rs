//! `fleetwright machine`: hosts as a person sees them.

mod act;
mod bind;
mod import;
mod logs;
mod plan;
mod reach;
mod select;
mod status;
mod wanted;

use clap::Subcommand;

pub(crate) use self::import::label;
pub(crate) use self::status::{is_problem, summary};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make machines out of a list of hosts: YAML, CSV or an Ansible inventory.
    Import(Box<import::Args>),
    /// Show the exact steps that are ahead of machines, and what they disrupt, without touching anything.
    Plan(plan::Args),
    /// List machines, those with problems first, or tell everything about one.
    Status(status::Args),
    /// Print what a step on a machine's host printed.
    Logs(logs::Args),
    /// Try again what failed on machines.
    Retry(act::Args),
    /// Do nothing to machines until they are resumed; their status is kept up to date.
    Pause(act::Args),
    /// Go on with machines that were paused.
    Resume(act::Args),
    /// Take a machine's host from the Machine, of this or another cluster, that it belongs to.
    Adopt(act::Adopt),
    /// Bind existing Nodes to machines whose Node did not join through them; needs the right to write machines/status.
    BindNode(bind::Args),
    /// Let a deleted machine go whose host is gone and can no longer be cleaned.
    LetGo(act::LetGo),
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
        Command::LetGo(args) => act::let_go(args),
    }
}

//! `fleetwright`: the command line.

// Without the feature `embedded` some helpers are unused.
#![cfg_attr(not(feature = "embedded"), allow(dead_code, unused_imports))]

#[cfg(feature = "embedded")]
mod apiserver;
mod cluster;
mod clusters;
mod crds;
mod door;
mod explanation;
#[cfg(feature = "embedded")]
mod home;
mod install;
#[cfg(feature = "embedded")]
mod lab;
mod machine;
mod networks;
mod operators;
mod output;
mod package;
mod preflight;
mod reference;
mod resolve;
#[cfg(feature = "embedded")]
mod simulated;
mod snapshot;
mod target;
mod terminal_text;
#[cfg(feature = "embedded")]
mod up;
mod version;
mod watch;
mod why;
mod yaml;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use fleetwright_kit::metrics::Metrics;
use fleetwright_kit::telemetry::{self, Logging};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The default namespace of a fleet.
pub(crate) const FLEET_NAMESPACE: &str = "fleet";

/// Run Kubernetes on Kubernetes: fleets of clusters and their machines, declared as a few objects.
#[derive(Parser)]
#[command(name = "fleetwright", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    /// Log filter, such as `info` or `fleetwright_apiserver=debug`.
    #[arg(long, global = true, env = "FLEETWRIGHT_LOG", default_value = "warn", value_name = "FILTER")]
    log: String,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start all of Fleetwright on this machine, in one process.
    #[cfg(feature = "embedded")]
    Up(up::Args),
    /// Start only an embedded Kubernetes API server.
    #[cfg(feature = "embedded")]
    Apiserver(apiserver::Args),
    /// Print the CustomResourceDefinitions of Fleetwright.
    Crds(crds::Args),
    /// Install or update the CustomResourceDefinitions and the operators in a cluster.
    Install(Box<install::Args>),
    /// Remove what `install` created.
    Uninstall(install::uninstall::Args),
    /// Run the operators against a cluster until stopped.
    Operators(Box<operators::Args>),
    /// Import machines, inspect them, and control what the operator does to them.
    Machine(machine::Args),
    /// Check package versions, and print templates for new ones.
    Package(package::Args),
    /// Create, inspect, access, upgrade and delete business clusters.
    Cluster(clusters::Args),
    /// Show why a machine is or is not schedulable, or why a cluster does not work.
    Why(why::Args),
    /// Record the outcome of an Unknown operation.
    Resolve(resolve::Args),
    /// Run a real fleet on this machine: hosts, control plane and operators.
    #[cfg(feature = "embedded")]
    Lab(lab::LabArgs),
    /// Print the version.
    Version(version::Args),
    /// Print a completion script for a shell.
    ///
    /// For bash: `source <(fleetwright completion bash)`.
    Completion {
        /// Shell to print the script for.
        shell: clap_complete::Shell,
    },
    /// Write the man pages.
    Man {
        /// Directory to write the man pages to; created if it does not exist.
        #[arg(long, value_name = "DIR", default_value = "man")]
        out: std::path::PathBuf,
    },
    /// Run a step of a snapshot or restore pod, or print the keys of a Cluster from a snapshot.
    #[command(hide = true)]
    Snapshot(snapshot::Args),
    /// Print the reference of all commands as Markdown.
    #[command(hide = true)]
    Reference,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    // The operators set up their own log formats and traces.
    if !matches!(cli.command, Command::Operators(_)) {
        let logging = Logging { filter: cli.log.clone(), color: std::io::stderr().is_terminal(), ..Logging::default() };
        telemetry::init(&logging, None, &Metrics::new())?;
    }
    match cli.command {
        #[cfg(feature = "embedded")]
        Command::Up(args) => up::run(args),
        #[cfg(feature = "embedded")]
        Command::Apiserver(args) => apiserver::run(args),
        Command::Crds(args) => crds::run(&args),
        Command::Install(args) => install::run(*args),
        Command::Uninstall(args) => install::uninstall::run(args),
        Command::Operators(args) => operators::run(&args, &cli.log),
        Command::Machine(args) => machine::run(&args),
        Command::Package(args) => package::run(&args),
        Command::Cluster(args) => clusters::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Resolve(args) => resolve::run(&args),
        #[cfg(feature = "embedded")]
        Command::Lab(args) => lab::run(args, &cli.log),
        Command::Version(args) => version::run(&args),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fleetwright", &mut script);
            print(&String::from_utf8(script)?)
        }
        Command::Man { out } => reference::man(Cli::command(), &out),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Reference => print(&reference::markdown(Cli::command())),
    }
}

/// Resolves at Ctrl-C or a termination signal. The signal handlers are installed at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Prints a text that may be long. A closed pipe (`| head`) is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

//! The helper on a host: see the library.

use std::io;
use std::process::ExitCode;

use fleetwright_host::system::Real;
use fleetwright_host::{Host, System as _, serve};

const USAGE: &str =
    "usage: fleetwright-host serve [--root DIR]  answer requests, one JSON document a line, until the input ends;
                                             --root: use the files below DIR, for tests
       fleetwright-host version               print the version and the protocol
       fleetwright-host facts                 print the facts of this host";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serving(Real::default()),
        ["serve", "--root", folder] => serving(Real::at(folder)),
        ["version"] => {
            println!("fleetwright-host {} protocol {}", env!("CARGO_PKG_VERSION"), fleetwright_wire::PROTOCOL);
            ExitCode::SUCCESS
        }
        ["facts"] => match Real::default().facts().map(|facts| serde_json::to_string_pretty(&facts)) {
            Ok(Ok(facts)) => {
                println!("{facts}");
                ExitCode::SUCCESS
            }
            Ok(Err(error)) => failed(&error),
            Err(error) => failed(&error),
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn serving(system: Real) -> ExitCode {
    // Leaves the session that started us, whose end must not stop a step. Fails if we lead a session already, which has the same effect.
    let _ = rustix::process::setsid();
    serve(&mut Host::new(system), io::stdin().lock(), io::stdout());
    ExitCode::SUCCESS
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("fleetwright-host: {error}");
    ExitCode::FAILURE
}

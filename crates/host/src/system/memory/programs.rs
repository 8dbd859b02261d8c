//! Programs on a host in memory: package managers, and a shell with a few commands.

use std::io;

use super::machine::Machine;
use super::packages;
use crate::system::{ProgramResult, ProgramRun};

pub(super) fn run(machine: &mut Machine, run: &ProgramRun<'_>) -> io::Result<ProgramResult> {
    let input = String::from_utf8_lossy(run.input);
    let hangs = |text: &String| input.contains(text.as_str()) || run.argv.iter().any(|arg| arg.contains(text.as_str()));
    if machine.faults.hung.iter().any(hangs) {
        machine.advance(run.within);
        return Ok(ProgramResult { timed_out: true, ..ProgramResult::default() });
    }
    if machine.pass(run.within).is_err() {
        return Ok(ProgramResult { timed_out: true, ..ProgramResult::default() });
    }
    if let Some(ran) = packages::run(machine, run) {
        return Ok(ran);
    }
    match run.argv {
        ["/bin/sh", "-eu", ..] => Ok(shell(machine, &input, usize::MAX)),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such program on this host")),
    }
}

/// Leaves the state of an interrupted program.
pub(super) fn run_half(machine: &mut Machine, run: &ProgramRun<'_>) {
    packages::run_half(machine, run);
    if let ["/bin/sh", "-eu", ..] = run.argv {
        let input = String::from_utf8_lossy(run.input);
        shell(machine, &input, input.lines().count() / 2);
    }
}

/// A shell with one command per line: `test -e PATH`, `touch PATH`, `rm -f PATH`, `echo TEXT > PATH`, `echo TEXT`,
/// `true`, `false`, `exit N`. Any other command
/// exits with 0, so that the scripts of every package can be simulated.
fn shell(machine: &mut Machine, script: &str, lines: usize) -> ProgramResult {
    let mut printed = String::new();
    let mut status = 0;
    for line in script.lines().take(lines) {
        let words: Vec<&str> = line.split_whitespace().collect();
        status = match *words {
            ["test", "-e", path] => i32::from(machine.stat(path).is_none()),
            ["false"] => 1,
            ["exit", status] => {
                let status = Some(status.parse().unwrap_or(2));
                return ProgramResult { status, tail: printed.clone(), stdout: printed, timed_out: false };
            }
            ["touch", path] => {
                machine.put(path, b"", 0o644);
                0
            }
            ["rm", "-f", path] => {
                machine.remove(path);
                0
            }
            ["echo", .., ">", path] => {
                let text = line.trim().trim_start_matches("echo ").rsplit_once(" > ").map_or("", |(text, _)| text);
                machine.put(path, format!("{text}\n").as_bytes(), 0o644);
                0
            }
            ["echo", ..] => {
                printed.push_str(line.trim().trim_start_matches("echo "));
                printed.push('\n');
                0
            }
            _ => 0,
        };
        if status != 0 {
            break;
        }
    }
    ProgramResult { status: Some(status), tail: printed.clone(), stdout: printed, timed_out: false }
}

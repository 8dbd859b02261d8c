//! Finds the remains of a run that was killed.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// The output of a program.
pub fn said(program: &str, arguments: &[&str]) -> Result<String> {
    Ok(String::from_utf8(Command::new(program).args(arguments).output()?.stdout)?)
}

/// Starts the lab as a separate process, and reads the line that it prints when it is up.
pub fn lab(arguments: &[&str]) -> Result<(Child, String)> {
    let mut run = Command::new(env!("CARGO_BIN_EXE_fleetwright-lab"))
        .args(arguments)
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut line = String::new();
    BufReader::new(run.stdout.take().context("its output")?).read_line(&mut line)?;
    Ok((run, line))
}

/// Kills the lab, and waits until all of its resources are gone: `left` lists the remains, and `some` is the minimal number of lines before.
pub fn killed(mut run: Child, some: usize, within: Duration, left: impl Fn() -> Result<String>) -> Result<()> {
    ensure!(left()?.lines().count() > some, "there should be something to leave: {}", left()?);
    let group = format!("-{}", run.id());
    ensure!(Command::new("kill").args(["-KILL", "--", &group]).status()?.success(), "cannot kill {group}");
    let deadline = Instant::now() + within;
    while !left()?.is_empty() {
        ensure!(Instant::now() < deadline, "left: {}", left()?);
        std::thread::sleep(Duration::from_millis(100));
    }
    run.wait()?;
    Ok(())
}

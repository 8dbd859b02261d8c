//! Runs the script of kubectl commands on both servers and compares the outputs.
//!
//! `cargo test -p fleetwright-conformance --test kubectl [-- [--real] [--kubeconfig=FILE] [--kubectl=FILE]
//! [--verbose]]`: with `--real` two real servers are compared,
//! which proves that what differs is only what must; with `--kubeconfig` a running server takes the embedded one's place;
//! with `--verbose` all that the real server said is printed.
//! Runs with the kubectl that was built here and, if another is on the PATH, with that too. `KUBECTL_REPORT=FILE` keeps the whole text.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use fleetwright_conformance::kubectl::{Allowance, Command, Output, Plain, Session, Verdict, compare, script};
use fleetwright_conformance::{ServerKind, Target};
use fleetwright_lab::{Binaries, DEFAULT_MINOR};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("kubectl: test");
        return Ok(ExitCode::SUCCESS);
    }
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubectl");
    let commands = script(&std::fs::read_to_string(files.join("script.sh"))?);
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("--kubectl="));
    let (mut text, mut passed, mut failed) = (String::new(), 0, 0);
    for kubectl in kubectls()? {
        if only.is_some_and(|only| Path::new(only) != kubectl) {
            continue;
        }
        say(&mut text, &format!("# {}\n", kubectl.display()));
        let real = Side::start(ServerKind::Real, None, &kubectl, &files);
        let rival = arguments.iter().find_map(|argument| argument.strip_prefix("--kubeconfig="));
        let kind =
            if arguments.iter().any(|argument| argument == "--real") { ServerKind::Real } else { ServerKind::Embedded };
        let ours = Side::start(kind, rival, &kubectl, &files);
        let (real, ours) = tokio::try_join!(real, ours)?;
        let (wanted, got) = tokio::try_join!(real.run(&commands), ours.run(&commands))?;
        if arguments.iter().any(|argument| argument == "--verbose") {
            show(&commands, &wanted);
        }
        let (good, bad) = judge(&commands, &wanted, &got, &mut text);
        (passed, failed) = (passed + good, failed + bad);
        real.stop(bad > 0).await;
        ours.stop(bad > 0).await;
    }
    say(&mut text, &format!("{passed} passed, {failed} failed\n"));
    if let Some(path) = std::env::var_os("KUBECTL_REPORT") {
        std::fs::write(path, text)?;
    }
    Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The kubectl that was built here and, if there is another on the PATH, that too.
fn kubectls() -> Result<Vec<PathBuf>> {
    let built = Binaries::find(DEFAULT_MINOR)?.path("kubectl")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("kubectl")).find(|file| file.is_file());
    let other = found.filter(|file| file.canonicalize().ok() != built.canonicalize().ok());
    Ok([Some(built), other].into_iter().flatten().collect())
}

/// One server and a shell for it.
struct Side {
    target: Option<Target>,
    session: Session,
}

impl Side {
    async fn start(kind: ServerKind, kubeconfig: Option<&str>, kubectl: &Path, files: &Path) -> Result<Self> {
        let (target, kubeconfig) = match kubeconfig {
            Some(file) => (None, std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?),
            None => {
                let target = Target::start(kind).await?;
                let kubeconfig = target.kubeconfig()?;
                (Some(target), kubeconfig)
            }
        };
        Ok(Self { target, session: Session::new(kubectl, &kubeconfig, files)? })
    }

    async fn run(&self, commands: &[Command]) -> Result<Vec<Output>> {
        let mut outputs = Vec::with_capacity(commands.len());
        for command in commands {
            outputs.push(self.session.run(&command.line).await?);
        }
        Ok(outputs)
    }

    async fn stop(self, failed: bool) {
        if let Some(target) = self.target {
            target.stop(failed).await;
        }
    }
}

/// Prints the output of each command.
fn show(commands: &[Command], outputs: &[Output]) {
    for (command, output) in commands.iter().zip(outputs) {
        let Output { code, stdout, stderr, took } = output;
        println!("$ {} # exit {code} after {:.1} s\n{stdout}{stderr}", command.line, took.as_secs_f32());
    }
}

/// Prints each command with what came of it; how many passed and failed.
fn judge(commands: &[Command], wanted: &[Output], got: &[Output], text: &mut String) -> (usize, usize) {
    let plain = Plain::default();
    let (mut passed, mut failed, mut section) = (0, 0, "");
    for ((command, wanted), got) in commands.iter().zip(wanted).zip(got) {
        if command.section != section {
            section = &command.section;
            say(text, &format!("\n## {section}\n"));
        }
        let line = &command.line;
        match compare(&plain, &command.allowance, wanted, got) {
            Verdict::Same => say(text, &format!("ok         {line}\n")),
            Verdict::Excused => {
                let Allowance::Differs(why) = &command.allowance else { continue };
                say(text, &format!("on purpose {line}\n           {why}\n"));
            }
            Verdict::Different(diff) => {
                failed += 1;
                say(text, &format!("DIFFERENT  {line}\n{}", indented(&diff)));
                continue;
            }
        }
        passed += 1;
    }
    say(text, "\n");
    (passed, failed)
}

fn say(text: &mut String, words: &str) {
    print!("{words}");
    text.push_str(words);
}

fn indented(diff: &str) -> String {
    diff.lines().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "           {line}");
        text
    })
}

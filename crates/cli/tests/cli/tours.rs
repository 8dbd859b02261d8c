//! The tours of the README and the guides, run as written: every command, in order, on a fresh `fleetwright up`. Output in the text
//! is compared; ages and times differ between runs and are left out.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fleetwright_lab::{Binaries, Target};

use crate::support::BINARY;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The prefixes of a tour's commands.
const OURS: [&str; 4] = ["kubectl ", "fleetwright why ", "fleetwright machine ", "docs/examples/"];

/// The commands of blocks with this first line, each with the output that the text shows.
pub fn tour(file: &str, block: &str, ours: &[&str]) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(Path::new(ROOT).join(file)).expect("the text is there");
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == block;
        } else if !inside {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push((command.to_owned(), String::new()));
        } else if let Some((_, output)) = steps.last_mut() {
            output.push_str(line);
            output.push('\n');
        }
    }
    steps.retain(|(command, _)| ours.iter().any(|start| command.starts_with(start)));
    steps
}

/// The words of a text by line, without ages and times.
fn normal(text: &str) -> Vec<Vec<&str>> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let changes = |word: &str| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        let is_age = word.strip_suffix(['s', 'm']).is_some_and(digits);
        let is_time = word.starts_with("20") && word.contains('T') && word.ends_with('Z');
        is_age || is_time
    };
    text.lines()
        .map(|line| line.split_whitespace().filter(|word| !changes(word)).collect::<Vec<_>>())
        .filter(|line| !line.is_empty())
        .collect()
}

/// `fleetwright up`, or operators beside a real server, which are killed at the end of the test.
struct Running {
    process: Child,
    home: tempfile::TempDir,
    path: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Running {
    fn up() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(BINARY);
        command
            .args([
                "up",
                "--machines",
                "0",
                "--clusters",
                "0",
                "--listen",
                "127.0.0.1:0",
                "--metrics",
                "127.0.0.1:0",
                "--home",
            ])
            .arg(home.path());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = process.stdout.take().expect("standard output is piped");
        let mut lines = BufReader::new(stdout).lines();
        let first = lines.next().expect("a line").expect("text");
        // Keep reading the output, as a terminal does.
        std::thread::spawn(move || lines.for_each(drop));
        assert!(first.starts_with("Fleetwright is up"), "{first}");

        Self { process, home, path: path() }
    }

    /// The operators, as `install` and a Deployment would start them.
    fn operators(kubeconfig: &str) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let file = home.path().join("kubeconfig");
        std::fs::write(&file, kubeconfig).expect("the folder can be written to");
        let fleetwright = |args: &[&str]| {
            let mut command = Command::new(BINARY);
            command.args(args).arg("--kubeconfig").arg(&file).stdout(Stdio::null());
            command
        };
        assert!(fleetwright(&["install"]).status().expect("the binary starts").success());
        let process = fleetwright(&["operators", "--no-leader-election", "--listen", "127.0.0.1:0"]).spawn();
        let running = Self { process: process.expect("the binary starts"), home, path: path() };
        // A controller creates the service account that a pod needs, some moments after its namespace.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !running.shell("kubectl get serviceaccount default").0 {
            assert!(Instant::now() < deadline, "there is no service account");
            std::thread::sleep(Duration::from_millis(50));
        }
        running
    }

    /// Whether the command succeeded, and its output.
    fn shell(&self, command: &str) -> (bool, String) {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(ROOT).env("PATH", &self.path).env("HOME", self.home.path());
        shell.env("KUBECONFIG", self.home.path().join("kubeconfig")).env_remove("FLEETWRIGHT_LOG");
        let output = shell.output().expect("sh runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }
}

/// A PATH with kubectl and our binary.
pub fn path() -> String {
    let binaries = Binaries::find(fleetwright_lab::DEFAULT_MINOR).expect("Kubernetes is built");
    let kubectl = binaries.path("kubectl").expect("kubectl is built");
    let folders = [kubectl, PathBuf::from(BINARY)].map(|file| file.parent().expect("a folder").display().to_string());
    format!("{}:{}", folders.join(":"), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn the_tour_of_the_readme_shows_what_it_says() {
    let steps = tour("README.md", "```console", &OURS);
    assert!(steps.len() >= 14, "the tour has {} commands", steps.len());
    let up = Running::up();
    for (command, shown) in steps {
        let (_, got) = up.shell(&command);
        assert_eq!(normal(&got), normal(&shown), "$ {command}\n{got}");
    }
}

fn follow_readiness(running: &Running) {
    let steps = tour("docs/guide/readiness.md", "```console", &OURS);
    assert!(steps.len() >= 15, "the tour has {} commands", steps.len());
    for (command, shown) in steps {
        let (well, got) = running.shell(&command);
        assert!(well, "$ {command}\n{got}");
        assert!(shown.is_empty() || normal(&got) == normal(&shown), "$ {command}\n{got}\ninstead of\n{shown}");
    }
}

#[test]
fn the_tour_of_readiness_can_be_followed() {
    follow_readiness(&Running::up());
}

#[test]
fn the_tour_of_readiness_can_be_followed_on_real() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let target = runtime.block_on(Target::real()).expect("the real server starts");
    follow_readiness(&Running::operators(&target.kubeconfig().expect("a kubeconfig")));
    runtime.block_on(target.stop(false));
}

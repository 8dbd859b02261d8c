//! The shared fixture of the command tests: the binary, a server, kubectl.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fleetwright_lab::{Binaries, Target};

pub const BINARY: &str = env!("CARGO_BIN_EXE_fleetwright");

/// A server and a kubeconfig for it.
pub struct CliServer {
    pub target: Target,
    folder: tempfile::TempDir,
}

/// The result of a command.
pub struct CommandResult {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl CommandResult {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// The output of a successful command.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// The error output of a failed command.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_eq!(self.code, 1, "{}{}", self.out, self.err);
        self.err
    }
}

impl CliServer {
    pub fn new(target: Target) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kubeconfig = target.kubeconfig().expect("a kubeconfig");
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).expect("it can be written");
        Self { target, folder }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// `fleetwright` with this cluster as the default one.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args).env("KUBECONFIG", self.kubeconfig()).env_remove("FLEETWRIGHT_LOG");
        command
    }

    pub async fn run(&self, args: &[&str]) -> CommandResult {
        ran(self.command(args), None).await
    }

    /// `kubectl` with this cluster as the default one.
    pub async fn kubectl(&self, args: &[&str], input: Option<&str>) -> CommandResult {
        let binaries = Binaries::find(fleetwright_lab::DEFAULT_MINOR).expect("Kubernetes is built");
        let mut command = Command::new(binaries.path("kubectl").expect("kubectl is built"));
        command.args(args).env("KUBECONFIG", self.kubeconfig()).env("HOME", self.folder.path());
        ran(command, input.map(str::to_owned)).await
    }

    /// Adds a context to the kubeconfig, named like the service account, with its token.
    pub async fn speak_as(&self, namespace: &str, account: &str) {
        let token = self.kubectl(&["-n", namespace, "create", "token", account], None).await.ok();
        self.kubectl(&["config", "set-credentials", account, "--token", token.trim()], None).await.ok();
        let cluster = self.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].name}"], None).await.ok();
        self.kubectl(&["config", "set-context", account, "--user", account, "--cluster", &cluster], None).await.ok();
    }
}

async fn ran(mut command: Command, input: Option<String>) -> CommandResult {
    let work = move || {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let mut stdin = child.stdin.take().expect("standard input is piped");
        let writer = std::thread::spawn(move || {
            // A command that does not read all of its input reports the reason in its output.
            let _ = stdin.write_all(input.unwrap_or_default().as_bytes());
        });
        let output = child.wait_with_output().expect("the command ends");
        writer.join().expect("the input is written");
        CommandResult::of(output)
    };
    tokio::task::spawn_blocking(work).await.expect("the command is waited for")
}

/// Runs the binary without any cluster.
pub fn alone(args: &[&str]) -> CommandResult {
    let mut command = Command::new(BINARY);
    command.args(args).env_remove("FLEETWRIGHT_LOG").env_remove("KUBECONFIG").env("HOME", "/nonexistent");
    CommandResult::of(command.output().expect("the binary runs"))
}

/// Polls until the look returns a value.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

//! Commands that need no cluster: servers, keys, versions, completions.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::BINARY;

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Self(command.spawn().expect("the binary starts"))
    }

    /// The first lines of its output.
    fn lines(&mut self, count: usize) -> Vec<String> {
        let stdout = self.0.stdout.as_mut().expect("standard output is piped");
        BufReader::new(stdout).lines().take(count).map(|line| line.expect("a line of text")).collect()
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().expect("the process can be waited for") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the process did not end within 20 s");
    }
}

fn run(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("the file is there").permissions().mode() & 0o777
}

#[test]
fn the_kubeconfig_appears_when_the_server_answers_and_only_its_owner_reads_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("kubeconfig");
    let mut server = Running::start(&["apiserver", "--memory", "--kubeconfig", path.to_str().expect("a path of text")]);
    let line = server.lines(1).remove(0);
    let address = line.split("https://").nth(1).and_then(|rest| rest.split(',').next()).expect("an address");
    assert_eq!(mode(&path), 0o600);
    assert!(std::net::TcpStream::connect(address).is_ok(), "{address} answers");
    server.signal("-INT");
    assert_eq!(server.exit_code(), Some(0));
    assert!(std::net::TcpStream::connect(address).is_err(), "{address} is free again");
}

/// Roles that aggregate each other once kept the server busy without an end, so that it did not handle the signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_ends_with_sigterm_while_roles_aggregate_each_other_and_requests_hang() {
    use kube::client::Body;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("kubeconfig");
    let mut server = Running::start(&["apiserver", "--memory", "--kubeconfig", path.to_str().expect("a path of text")]);
    let line = server.lines(1).remove(0);
    let address = line.split("https://").nth(1).and_then(|rest| rest.split(',').next()).expect("an address").to_owned();
    let kubeconfig = kube::config::Kubeconfig::read_from(&path).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a config");
    let client = kube::Client::try_from(config).expect("a client");
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let post = async |body: serde_json::Value| {
        let request = http::Request::post(roles).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string().into_bytes())).expect("a request");
        assert_eq!(client.send(request).await.expect("an answer").status(), 201);
    };
    // Each selects all roles, itself included.
    for number in 0..30 {
        let selectors = serde_json::json!([{"matchLabels": {"all": "yes"}}]);
        let meta = serde_json::json!({"name": format!("r{number}"), "labels": {"all": "yes"}});
        post(serde_json::json!({"metadata": meta, "aggregationRule": {"clusterRoleSelectors": selectors}})).await;
    }
    // Watches that are not read, and idle connections.
    let mut held = Vec::new();
    for _ in 0..10 {
        let request = http::Request::get(format!("{roles}?watch=true")).body(Body::empty()).expect("a request");
        held.push(client.send(request).await.expect("a watch"));
    }
    let silent: Vec<_> = (0..10).map(|_| std::net::TcpStream::connect(&address).expect("a connection")).collect();
    // Sources that change all the time, so that aggregation is running when the signal arrives.
    let writer = {
        let client = client.clone();
        tokio::spawn(async move {
            for number in 0.. {
                let rule =
                    serde_json::json!({"apiGroups": [""], "resources": [format!("x{number}")], "verbs": ["get"]});
                let meta = serde_json::json!({"name": format!("source-{number}"), "labels": {"all": "yes"}});
                let body = serde_json::json!({"metadata": meta, "rules": [rule]}).to_string().into_bytes();
                let request = http::Request::post(roles).header("content-type", "application/json");
                let request = request.body(Body::from(body)).expect("a request");
                if client.send(request).await.is_err() {
                    return number;
                }
            }
            0
        })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.signal("-TERM");
    let code = tokio::task::spawn_blocking(move || server.exit_code()).await.expect("it ends");
    assert_eq!(code, Some(0));
    assert!(writer.await.expect("the writer ends") > 0, "nothing was written");
    drop((held, silent));
}

#[test]
fn up_keeps_everything_in_its_home_and_stops_cleanly() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let home = folder.path().join("home");
    let args =
        ["up", "--home", home.to_str().expect("a path of text"), "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let mut first = Running::start(&args);
    assert_eq!(first.lines(5).len(), 5);
    for file in ["ca.key", "sa.key", "kubeconfig"] {
        assert_eq!(mode(&home.join(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&home), 0o700);

    // A second one with the same home finds the first and prints the next commands, too.
    let second = run(&args);
    assert!(second.status.success());
    assert!(text(&second.stdout).contains("already running"), "{}", text(&second.stdout));

    first.signal("-TERM");
    assert_eq!(first.exit_code(), Some(0));
    let authority = fs::read(home.join("ca.crt")).expect("the authority is there");

    let mut again = Running::start(&args);
    again.lines(5);
    assert_eq!(fs::read(home.join("ca.crt")).expect("the authority is there"), authority, "keys are made once");
}

#[test]
fn an_address_in_use_is_named_in_the_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("kubeconfig");
    let output = run(&["apiserver", "--memory", "--listen", &address, "--kubeconfig", path.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(&format!("cannot listen on {address}")), "{}", text(&output.stderr));
    assert!(!path.exists(), "no kubeconfig without a server");
}

#[test]
fn a_service_cidr_that_is_none_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("kubeconfig");
    let output =
        run(&["apiserver", "--memory", "--service-cidr", "nonsense", "--kubeconfig", path.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("service_cidr"), "{}", text(&output.stderr));
}

#[test]
fn completion_and_man_pages_come_from_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completion", shell]);
        assert!(output.status.success(), "{shell}");
        for word in ["apiserver", "uninstall", "force-conflicts", "lease-duration", "rollback", "package-version"] {
            assert!(text(&output.stdout).contains(word), "{shell}: {word}");
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("man");
    assert!(run(&["man", "--out", out.to_str().expect("text")]).status.success());
    assert!(out.join("fleetwright-apiserver.1").exists());
}

#[test]
fn the_version_is_printed_in_each_format() {
    assert!(text(&run(&["version"]).stdout).starts_with("fleetwright "));
    let json: serde_json::Value = serde_json::from_slice(&run(&["version", "-o", "json"]).stdout).expect("JSON");
    assert_eq!(json["kubernetes"], fleetwright_apiserver::KUBERNETES_VERSION);
    assert!(text(&run(&["version", "-o", "yaml"]).stdout).contains("kubernetes: "));
}

#[test]
fn who_reads_only_the_beginning_gets_no_error() {
    let mut child =
        Command::new(BINARY).arg("crds").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut reader = BufReader::new(child.stdout.take().expect("standard output is piped"));
    reader.read_line(&mut String::new()).expect("a line");
    drop(reader);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn every_command_that_talks_to_a_cluster_shows_how_it_is_used() {
    for command in ["up", "crds", "install", "uninstall", "operators", "why", "resolve"] {
        let help = text(&run(&[command, "--help"]).stdout);
        assert!(help.contains("Examples:\n  "), "{command}: {help}");
        assert!(help.contains(&format!("fleetwright {command}")), "{command}: {help}");
    }
    for command in ["create", "list", "status", "tree", "kubeconfig", "upgrade", "rollback", "delete"] {
        let help = text(&run(&["cluster", command, "--help"]).stdout);
        assert!(help.contains(&format!("fleetwright cluster {command}")), "{command}: {help}");
    }
}

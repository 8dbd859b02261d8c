//! The README's tour, run as it stands: every kubectl command on a fresh embedded server, in order, with its output
//! compared. Ages differ from run to run and are left out.

use std::path::Path;
use std::process::Command;

use fleetwright_apiserver::{Config, Server};
use fleetwright_lab::Binaries;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The commands of the console blocks, each with the output that the text shows.
fn tour(text: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if !inside {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push((command.to_owned(), String::new()));
        } else if let Some((_, output)) = steps.last_mut() {
            output.push_str(line);
            output.push('\n');
        }
    }
    steps.retain(|(command, _)| command.starts_with("kubectl "));
    steps
}

/// Words of a text, without ages and with lines kept apart.
fn normal(text: &str) -> Vec<Vec<&str>> {
    let is_age =
        |word: &str| word.strip_suffix('s').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    text.lines()
        .map(|line| line.split_whitespace().filter(|word| !is_age(word)).collect::<Vec<_>>())
        .filter(|line| !line.is_empty())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_of_the_readme_shows_what_it_says() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("the README is there");
    let steps = tour(&text);
    assert!(steps.len() >= 9, "the tour has {} commands", steps.len());

    let listen = Some(([127, 0, 0, 1], 0).into());
    let server = Server::start(Config { listen, ..Config::default() }).await.expect("the server starts");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.admin_kubeconfig().expect("a kubeconfig")).expect("it can be written");
    let binaries = Binaries::find(fleetwright_lab::DEFAULT_MINOR).expect("Kubernetes is built");
    let kubectl = binaries.path("kubectl").expect("kubectl is built");
    let path =
        format!("{}:{}", kubectl.parent().expect("a folder").display(), std::env::var("PATH").unwrap_or_default());

    for (command, shown) in steps {
        let (path, kubeconfig) = (path.clone(), kubeconfig.clone());
        let text = command.clone();
        let output = tokio::task::spawn_blocking(move || {
            let mut shell = Command::new("sh");
            shell.args(["-c", &text]).current_dir(ROOT).env("PATH", path).env("KUBECONFIG", kubeconfig);
            shell.output().expect("sh runs")
        })
        .await
        .expect("the command ends");
        let got = [output.stdout, output.stderr].concat();
        let got = String::from_utf8_lossy(&got).into_owned();
        assert_eq!(normal(&got), normal(&shown), "$ {command}\n{got}");
    }
    server.stop().await;
}

//! The simulated fleet of `fleetwright up`: its scenario happens as documented, and every command that it prints works.

use std::io::{BufRead, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::BINARY;
use crate::tours::{path, tour};

/// Enough machines for all faults, and few enough to be quick.
const MACHINES: &str = "9";

struct Up {
    process: Child,
    home: tempfile::TempDir,
    printed: Vec<String>,
    complaints: Arc<Mutex<String>>,
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Up {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(BINARY);
        command.args(["up", "--machines", MACHINES, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--home"]);
        command.arg(home.path()).env_remove("FLEETWRIGHT_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary starts");
        let stdout = BufReader::new(process.stdout.take().expect("standard output is piped"));
        let mut lines = stdout.lines().map(|line| line.expect("text"));
        let mut printed: Vec<String> = lines.by_ref().take_while(|line| !line.starts_with("Metrics")).collect();
        printed.retain(|line| line.starts_with("  "));
        // Keep reading the output, as a terminal does.
        std::thread::spawn(move || lines.for_each(drop));
        let complaints: Arc<Mutex<String>> = Arc::default();
        let (stderr, heard) = (BufReader::new(process.stderr.take().expect("it is piped")), complaints.clone());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                heard.lock().expect("nobody panicked").push_str(&(line + "\n"));
            }
        });
        Self { process, home, printed, complaints }
    }

    fn command(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("PATH", path()).env("HOME", self.home.path()).env_remove("FLEETWRIGHT_LOG");
        shell.env("KUBECONFIG", self.home.path().join("kubeconfig"));
        shell
    }

    #[track_caller]
    fn run(&self, line: &str) -> String {
        let output = self.command(line).output().expect("sh runs");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "$ {line}\n{said}");
        said
    }

    /// Repeats a command until its output is as expected.
    #[track_caller]
    fn until(&self, line: &str, good: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            let said = self.run(line);
            if good(&said) {
                return said;
            }
            assert!(Instant::now() < deadline, "$ {line}\n{said}{}", self.complaints.lock().expect("nobody panicked"));
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

#[test]
fn up_shows_a_fleet_that_converges_drifts_and_breaks_and_its_lines_work() {
    let up = Up::start();
    let mut quiet = up.command("exec fleetwright machine status sim-001 -w");
    let mut quiet = quiet.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("sh runs");

    // The machine with the bad version rolls back, and shows the reason.
    let problems = "fleetwright machine status --problems";
    let told =
        |said: &str, name: &str, what: &str| said.lines().any(|line| line.starts_with(name) && line.contains(what));
    up.until(problems, |said| told(said, "sim-003", "kubelet RolledBack: ") && told(said, "sim-003", "1.37.2"));
    // The machine with policy Report is reported as drifted, and stays unchanged.
    up.until(problems, |said| told(said, "sim-005", "Drifted: ") && told(said, "sim-005", "net.ipv4.ip_forward is 0"));
    let plan = up.run("fleetwright machine plan sim-005 --observe");
    assert!(
        ["net.ipv4.ip_forward is 0", "should be 1\n", "spec.drift"].iter().all(|part| plan.contains(part)),
        "{plan}"
    );
    // The other one is repaired.
    let drifts = up.until("fleetwright machine status sim-007", |said| said.contains("ago, repaired"));
    assert!(drifts.contains("vm.max_map_count was 65530") && drifts.contains("should be 262144"), "{drifts}");
    // All others become ready and schedulable, and the list of all fits a screen.
    up.until("fleetwright machine status", |said| {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let fine =
            said.lines().map(words).filter(|words| words[1] == "Ready" && words[2] == "3/3" && words[3] == "True");
        fine.count() >= 7
    });
    let wide = up.run("kubectl get machines -n fleet -o wide");
    assert!(wide.lines().all(|line| line.len() <= 170), "{wide}");
    assert!(told(&wide, "sim-003", "RolledBack") && told(&wide, "sim-005", "Drifted"), "{wide}");

    // The journal comes from the host, though it has no SSH.
    let list = up.run("fleetwright machine logs sim-003 --list");
    assert!(list.lines().any(|line| line.contains("Back kubelet") && line.contains("done")), "{list}");
    let log = up.run("fleetwright machine logs sim-003");
    assert!(log.contains("(back kubelet) done"), "{log}");

    // Every printed command; the last one runs until it is stopped.
    let commands =
        |line: &&String| line.trim_start().starts_with("kubectl ") || line.trim_start().starts_with("fleetwright ");
    let lines: Vec<&String> = up.printed.iter().filter(commands).collect();
    let (last, before) = lines.split_last().expect("lines are printed");
    assert!(before.len() >= 10 && last.ends_with(" -w"), "{lines:#?}");
    // The README shows some of them, and the result of an upgrade.
    let mut readme = tour("README.md", "```console fleet", &["kubectl ", "fleetwright "]);
    // Only the cluster green may be rolled back, however busy the machine is.
    let patient = r#"{"spec":{"upgrade":{"stageTimeout":"10m"}}}"#;
    up.run(&format!("kubectl patch clusters.fleetwright.io blue -n fleet --type merge -p '{patient}'"));
    for line in before {
        let said = up.run(line.trim());
        let command = line.split("  #").next().unwrap_or_default().trim();
        let Some(at) = readme.iter().position(|(shown, _)| shown == command) else { continue };
        let (_, shown) = readme.remove(at);
        assert!(!line.contains("sim-000") || said == shown, "$ {command}\n{said}\ninstead of\n{shown}");
    }
    assert!(readme.is_empty(), "the README has lines that are not printed: {readme:?}");
    // The upgrade is visible while it runs, or was finished before the watch started.
    let line = format!("exec timeout 90 {}", last.trim());
    let mut watch = up.command(&line).stdout(Stdio::piped()).spawn().expect("sh runs");
    let lines = BufReader::new(watch.stdout.take().expect("standard output is piped")).lines();
    let upgraded = |line: &String| line.contains(" kubelet ") && line.contains(" 1.37.1 ") && line.contains(" Ready ");
    let done = lines.map_while(Result::ok).find(|line| line.ends_with("Ready 3/3") || upgraded(line));
    up.run(&format!("kill {}", watch.id()));
    watch.wait().expect("it ends");
    assert!(done.is_some(), "the upgrade is not told");

    // The workers of a cluster are its nodes, and their hosts answer commands.
    let nodes = up.until("kubectl --context blue get nodes --no-headers", |said| said.lines().count() == 3);
    assert!(nodes.lines().all(|node| node.split_whitespace().nth(1) == Some("Ready")), "{nodes}");
    let list = up.run("fleetwright machine logs blue-0 --list --context blue");
    assert!(list.lines().any(|line| line.contains("Install kubelet") && line.contains("done")), "{list}");

    // The upgrade of the cluster to a version that does not work was rolled back, and `why` shows the reason.
    let why = up.until("fleetwright why cluster/green", |said| said.contains("UpgradeFailed"));
    assert!(why.contains("k8s-1.37.2"), "{why}");
    up.until("fleetwright cluster list", |said| told(said, "green", "UpgradeFailed"));

    // The watch of an unchanged machine prints nothing.
    up.run(&format!("kill {}", quiet.id()));
    let mut heard = String::new();
    quiet.stderr.take().expect("it is piped").read_to_string(&mut heard).expect("text");
    quiet.wait().expect("it ends");
    assert_eq!(heard, "", "of a quiet machine");

    // There are no warnings about parts that simulated hosts do not need, and Ctrl-C ends everything.
    let heard = up.complaints.lock().expect("nobody panicked").clone();
    assert!(!heard.contains("helpers"), "{heard}");
    up.run(&format!("kill -INT {}", up.process.id()));
    let mut up = up;
    assert!(up.process.wait().expect("it ends").success());
    assert!(!up.home.path().join("hosts.sock").exists());
}

//! What a person types.

use std::path::{Path, PathBuf};
use std::process::Command;

use fleetwright_lab::{Binaries, DEFAULT_MINOR, ServerKind, Target};

struct Kubectl {
    path: PathBuf,
    home: tempfile::TempDir,
}

impl Kubectl {
    fn new(target: &Target) -> Self {
        let path =
            Binaries::find(DEFAULT_MINOR).and_then(|binaries| binaries.path("kubectl")).expect("kubectl is built");
        let home = tempfile::tempdir().expect("a folder");
        std::fs::write(home.path().join("kubeconfig"), target.kubeconfig().expect("a kubeconfig")).expect("a file");
        Self { path, home }
    }

    /// Runs a command in the repository; what it printed, and whether it went well.
    fn run(&self, arguments: &str) -> (String, bool) {
        let output = Command::new(&self.path)
            .env_clear()
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.home.path().join("kubeconfig"))
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .args(arguments.split(' '))
            .output()
            .expect("kubectl runs");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (text, output.status.success())
    }

    fn ok(&self, arguments: &str) -> String {
        let (text, went_well) = self.run(arguments);
        assert!(went_well, "kubectl {arguments}: {text}");
        text
    }
}

/// Runs everything on a fresh server; what was printed, where it does not depend on the hour.
pub async fn script(kind: ServerKind) -> Vec<String> {
    let target = Target::start(kind).await.expect("the server starts");
    let kubectl = Kubectl::new(&target);
    // The embedded server runs on this thread's runtime, which must stay free while kubectl waits for answers.
    let printed = tokio::task::spawn_blocking(move || commands(&kubectl)).await.expect("kubectl does not panic");
    target.stop(false).await;
    printed
}

fn commands(kubectl: &Kubectl) -> Vec<String> {
    let mut printed = vec![
        kubectl.ok("apply --server-side -f deploy/crds.yaml"),
        kubectl.ok("wait --for=condition=Established --timeout=60s crd/machines.fleetwright.io crd/machinepackageversions.fleetwright.io crd/readinessgates.fleetwright.io crd/operations.fleetwright.io crd/operationpolicies.fleetwright.io crd/clusters.fleetwright.io crd/clusterpackageversions.fleetwright.io crd/clusterlimits.fleetwright.io"),
        kubectl.ok("apply --server-side -f deploy/crds.yaml"),
    ];
    for example in [
        "machine",
        "machinepackageversion",
        "readinessgates",
        "operation",
        "operationpolicy",
        "report",
        "clusterpackageversion",
        "cluster",
        "clusterlimits",
    ] {
        printed.push(kubectl.ok(&format!("apply -f docs/examples/{example}.yaml")));
        printed.push(kubectl.ok(&format!("apply -f docs/examples/{example}.yaml")));
    }
    let (refused, went_well) = kubectl.run(r#"patch ma host-17 --type=merge -p {"spec":{"hostname":"host-18"}}"#);
    assert!(!went_well && refused.contains("delete the machine"), "{refused}");
    printed.push(refused);
    let (refused, went_well) = kubectl.run(r#"patch rg workers --type=merge -p {"spec":{"safetyNet":{"max":"500%"}}}"#);
    assert!(!went_well && refused.contains("0% to 100%"), "{refused}");
    printed.push(refused);

    for (patch, part) in [
        (r#"{"spec":{"network":{"pods":"10.245.0.0/16"}}}"#, "networks wanted"),
        (r#"{"spec":{"components":{"apiserver":{"args":{"etcd-servers":"a"}}}}}"#, "etcd-servers: "),
        (
            r#"{"spec":{"components":{"apiserver":{"args":{"max-inflight":"1"}}}}}"#,
            "max-inflight: kube-apiserver has no such argument",
        ),
    ] {
        let (refused, went_well) = kubectl.run(&format!("patch cl pay-01 --type=merge -p {patch}"));
        assert!(!went_well && refused.contains(part), "{refused}");
        printed.push(refused);
    }

    printed.push(kubectl.ok(
        r#"patch ma host-17 --subresource=status --type=merge -p {"status":{"phase":"Ready","conditions":[{"type":"Schedulable","status":"True","reason":"AllGatesHold","lastTransitionTime":"2026-11-15T08:00:00Z","observedGeneration":1}]}}"#,
    ));
    printed.push(kubectl.ok("wait --for=condition=Schedulable --timeout=30s machine/host-17"));
    printed.push(kubectl.ok("get fleet -o name"));
    let machines = kubectl.ok("get machines");
    let columns: Vec<&str> = machines.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(columns, ["NAME", "ROLE", "PHASE", "PACKAGES", "SCHEDULABLE", "NODE", "AGE"]);
    assert!(machines.contains("Ready"), "{machines}");
    for shown in [machines, kubectl.ok("get machines -o wide"), kubectl.ok("get mpv -o wide")] {
        assert!(shown.lines().all(|line| line.len() <= 160), "{shown}");
    }
    kubectl.ok(
        r#"patch cl pay-01 --subresource=status --type=merge -p {"status":{"phase":"RollingBack","endpoint":"https://198.18.0.1:30443","packageVersion":"k8s-1.36.4-r1","waitingFor":"kube-apiserver","conditions":[{"type":"Ready","status":"Unknown","reason":"NotVerified","lastTransitionTime":"2026-11-15T08:00:00Z"}]}}"#,
    );
    let clusters = kubectl.ok("get clusters");
    assert!(clusters.lines().all(|line| line.len() <= 100) && clusters.contains("RollingBack"), "{clusters}");
    for shown in [kubectl.ok("get cl -o wide"), kubectl.ok("get cpv -o wide")] {
        assert!(shown.lines().all(|line| line.len() <= 200), "{shown}");
    }
    printed.push(kubectl.ok("explain cluster.spec.datastore"));
    let explained = kubectl.ok("explain machine.spec.role");
    assert!(explained.contains("ControlPlane: It runs control planes."), "{explained}");
    printed.push(explained);
    printed.push(kubectl.ok("explain readinessgates --recursive"));
    printed.push(kubectl.ok("explain clusterpackageversion --recursive"));
    printed
}

//! The guarantees of the lab, tested on real processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fleetwright_lab::ControlPlane;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Api;
use kube::api::ListParams;

/// The processes with the folder among their arguments.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let commands = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.parse::<u32>().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&command).replace('\0', " "))
    });
    commands.filter(|command| command.contains(folder)).collect()
}

fn wait_until_gone(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline && !processes_of(folder).is_empty() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(processes_of(folder), Vec::<String>::new());
}

#[tokio::test]
async fn a_control_plane_serves_its_administrator_and_leaves_nothing_behind() {
    let plane = ControlPlane::builder().controller_manager(["serviceaccount-controller"]).start().await.unwrap();
    let namespaces = Api::<Namespace>::all(plane.client()).list(&ListParams::default()).await.unwrap();
    let names: Vec<_> = namespaces.items.iter().filter_map(|namespace| namespace.metadata.name.as_deref()).collect();
    assert!(names.contains(&"default") && names.contains(&"kube-system"), "{names:?}");
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.client(), "default");
    accounts.get("default").await.unwrap();

    let folder = plane.folder().to_owned();
    assert!(processes_of(&folder).len() >= 3);
    drop(plane);
    wait_until_gone(&folder);
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_control_plane_of_a_failed_test_leaves_its_logs_and_no_process() {
    let mut plane = ControlPlane::builder().start().await.unwrap();
    let folder = plane.folder().to_owned();
    plane.keep_logs();
    drop(plane);
    wait_until_gone(&folder);
    assert!(std::fs::read_dir(folder.join("logs")).unwrap().count() >= 2);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_user_without_roles_is_forbidden_and_compaction_is_possible() {
    let plane = ControlPlane::builder().start().await.unwrap();
    let ann = plane.client_as("ann", &["staff", "night-shift"]).await.unwrap();
    let refused = Api::<Namespace>::all(ann).list(&ListParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains(r#"User "ann" cannot list resource "namespaces""#), "{refused}");
    assert!(plane.compact().await.unwrap() > 1);
}

#[test]
fn a_panic_leaves_no_process_but_the_logs() {
    let (send, receive) = std::sync::mpsc::channel::<PathBuf>();
    let panicked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let plane = ControlPlane::builder().start().await.unwrap();
            send.send(plane.folder().to_owned()).unwrap();
            panic!("as a failing test does");
        })
    })
    .join();
    assert!(panicked.is_err());
    let folder = receive.recv().unwrap();
    wait_until_gone(&folder);
    assert!(fs::metadata(folder.join("logs/kube-apiserver.log")).unwrap().len() > 0);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn killing_the_tests_process_group_with_sigkill_leaves_no_process() {
    let mut leader =
        Command::new(env!("CARGO_BIN_EXE_fleetwright-lab")).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let kubeconfig = line.trim().strip_prefix("export KUBECONFIG=").unwrap();
    let folder = Path::new(kubeconfig).parent().unwrap();
    assert!(processes_of(folder).len() >= 4, "{:?}", processes_of(folder));

    let killed = Command::new("kill").args(["-KILL", "--", &format!("-{}", leader.id())]).status().unwrap();
    assert!(killed.success());
    leader.wait().unwrap();
    wait_until_gone(folder);
    // The reaper of another lab that starts meanwhile may be faster.
    let _ = fs::remove_dir_all(folder);
}

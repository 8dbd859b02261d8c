//! Delivery of the helper to a host, and what can prevent it.

use std::fs;
use std::path::PathBuf;

use fleetwright_transport::{Hop, ReachError, Transport as _};

use crate::sshd::{Setup, Sshd, helpers, is_root, route, script};
use crate::{HELPER, LONG, ask};

fn delivered(sshd: &Sshd) -> Vec<String> {
    let folder = sshd.home().join("helper");
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The helper and the mark that it was compared.
fn both(digest: &str) -> Vec<String> {
    vec![digest.to_owned(), format!("{digest}.ok")]
}

async fn refused(sshd: &Sshd, helper: &str) -> String {
    match sshd.ssh(helper).connect(route(sshd.hop())).await.err() {
        Some(ReachError::NoHelper(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_host_gets_the_helper_once() {
    let sshd = Setup::new().start();
    let all = helpers(sshd.folder.path(), HELPER);
    let digest = all.iter().next().unwrap().digest().to_owned();
    let ssh = sshd.ssh_of(all);
    drop(ssh.connect(route(sshd.hop())).await.unwrap());
    assert_eq!(delivered(&sshd), both(&digest));
    let when = |name: &str| fs::metadata(sshd.home().join("helper").join(name)).unwrap().modified().unwrap();
    let first = when(&digest);
    drop(ssh.connect(route(sshd.hop())).await.unwrap());
    assert_eq!(when(&digest), first);
}

#[tokio::test]
async fn a_helper_that_was_tampered_with_is_served_again() {
    let sshd = Setup::new().start();
    let all = helpers(sshd.folder.path(), HELPER);
    let digest = all.iter().next().unwrap().digest().to_owned();
    let ssh = sshd.ssh_of(all.clone());
    drop(ssh.connect(route(sshd.hop())).await.unwrap());
    let path = sshd.home().join("helper").join(&digest);

    // A careless overwrite, noticed at the next connection.
    script(&path, "#!/bin/sh\necho no\n");
    let link = ssh.connect(route(sshd.hop())).await.unwrap();
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
    assert_eq!(fs::read_to_string(&path).unwrap(), HELPER);

    // An overwrite that only the content shows, noticed by the next process.
    script(&path, "#!/bin/sh\necho no\n");
    fs::write(path.with_extension("ok"), "").unwrap();
    let link = sshd.ssh_of(all).connect(route(sshd.hop())).await.unwrap();
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
    assert_eq!(fs::read_to_string(&path).unwrap(), HELPER);

    // Truncated, and not executable.
    fs::write(&path, &HELPER[..100]).unwrap();
    assert!(ssh.connect(route(sshd.hop())).await.is_ok());
    assert_eq!(fs::read_to_string(&path).unwrap(), HELPER);
}

#[tokio::test]
async fn operators_of_two_versions_leave_each_other_s_helpers_alone() {
    let sshd = Setup::new().start();
    let digests: Vec<String> = [HELPER.to_owned(), format!("{HELPER}# newer\n")]
        .iter()
        .map(|helper| helpers(sshd.folder.path(), helper).iter().next().unwrap().digest().to_owned())
        .collect();
    let connect = async |helper: &str| drop(sshd.ssh(helper).connect(route(sshd.hop())).await.unwrap());
    let when = |digest: &str| fs::metadata(sshd.home().join("helper").join(digest)).unwrap().modified().unwrap();
    let newer = format!("{HELPER}# newer\n");
    connect(HELPER).await;
    let first = when(&digests[0]);
    connect(&newer).await;
    let second = when(&digests[1]);
    let mut expected: Vec<String> = digests.iter().flat_map(|digest| both(digest)).collect();
    expected.sort();
    assert_eq!(delivered(&sshd), expected);
    // Neither delivers again, however often they alternate.
    connect(HELPER).await;
    connect(&newer).await;
    assert_eq!((when(&digests[0]), when(&digests[1])), (first, second), "a helper was delivered again");
}

#[tokio::test]
async fn a_helper_that_was_not_used_for_a_month_is_deleted_with_the_next_delivery() {
    let sshd = Setup::new().start();
    drop(sshd.ssh(HELPER).connect(route(sshd.hop())).await.unwrap());
    let month = std::time::SystemTime::now() - std::time::Duration::from_secs(31 * 24 * 3600);
    for name in delivered(&sshd) {
        let file = fs::File::options().append(true).open(sshd.home().join("helper").join(name)).unwrap();
        file.set_modified(month).unwrap();
    }
    let newer = format!("{HELPER}# newer\n");
    let all = helpers(sshd.folder.path(), &newer);
    let digest = all.iter().next().unwrap().digest().to_owned();
    drop(sshd.ssh_of(all).connect(route(sshd.hop())).await.unwrap());
    assert_eq!(delivered(&sshd), both(&digest));
}

#[tokio::test]
async fn a_helper_of_another_protocol_is_not_used() {
    let sshd = Setup::new().start();
    let text = refused(&sshd, &HELPER.replace("protocol 2", "protocol 99")).await;
    assert!(text.contains("protocol 99") && text.contains("operator"), "{text}");
    let text = refused(&sshd, &HELPER.replace("protocol 2", "of somebody")).await;
    assert!(text.contains("of somebody"), "{text}");
}

#[tokio::test]
async fn a_helper_that_does_not_run_says_why() {
    let sshd = Setup::new().start();
    let text = refused(&sshd, "#!/no/such/interpreter\n").await;
    assert!(text.contains("/helper"), "{text}");
}

#[tokio::test]
async fn an_unknown_architecture_or_system_is_unsupported() {
    let sshd = Setup::new().start();
    // Only a helper for another architecture is available.
    let folder = sshd.folder.path().join("foreign");
    fs::create_dir(&folder).unwrap();
    script(&folder.join("fleetwright-host-s390x"), HELPER);
    let all = fleetwright_transport::Helpers::find(&folder).unwrap();
    match sshd.ssh_of(all).connect(route(sshd.hop())).await.err() {
        Some(ReachError::Unsupported(text)) => {
            assert!(text.contains("s390x") && text.contains(std::env::consts::ARCH), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!sshd.home().exists());
}

#[tokio::test]
async fn what_profiles_print_is_passed_over() {
    // The login shell first prints text of its user.
    let sshd = Setup::new().configured("ForceCommand echo Welcome; printf 'no end of line'; yes noise | head -c 3M; eval \"$SSH_ORIGINAL_COMMAND\"").start();
    let link = sshd.ssh(HELPER).connect(route(sshd.hop())).await.unwrap();
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
}

#[tokio::test]
async fn gigabytes_before_the_first_word_are_not_listened_to() {
    for noise in ["yes | head -c 4G", "yes | head -c 4G >&2"] {
        let sshd = Setup::new().configured(&format!("ForceCommand {noise}; eval \"$SSH_ORIGINAL_COMMAND\"")).start();
        let text = refused(&sshd, HELPER).await;
        assert!(text.contains("MiB"), "{text}");
    }
}

#[tokio::test]
async fn a_user_without_commands_is_refused() {
    let sshd =
        Setup::new().configured("ForceCommand echo \"This account is currently not available.\" >&2; exit 1").start();
    match sshd.ssh(HELPER).connect(route(sshd.hop())).await.err() {
        Some(ReachError::LoginRefused(text)) => {
            assert!(text.contains("not available") && text.contains("status 1"), "{text}")
        }
        other => panic!("{other:?}"),
    }
}

/// A host, and a hop to it as a user who is not root. If the test runs as root, the user is in a passwd of its own, in a mount namespace.
fn as_somebody() -> (Sshd, Hop) {
    if !is_root() {
        let sshd = Setup::new().start();
        let hop = sshd.hop();
        return (sshd, hop);
    }
    let sshd = Setup::new().after(&with_user()).start();
    // Root would write these files: in this test the simulated root must be able to.
    fs::create_dir_all(sshd.home()).unwrap();
    std::os::unix::fs::chown(sshd.home(), Some(65534), None).unwrap();
    let hop = Hop { user: "steward".into(), ..sshd.hop() };
    (sshd, hop)
}

#[tokio::test]
async fn a_user_who_is_not_root_becomes_it_by_sudo() {
    let (sshd, hop) = as_somebody();
    // It stands for the real sudo, and records its use.
    let used = sshd.home().join("used");
    fs::create_dir_all(sshd.home()).unwrap();
    script(
        &sshd.folder.path().join("bin/sudo"),
        &format!("#!/bin/sh\n[ \"$1\" = -n ] || exit 1\nshift\necho yes >{}\nexec \"$@\"\n", used.display()),
    );
    let link = sshd.ssh(HELPER).connect(route(hop)).await.unwrap();
    assert!(ask(&*link, "plain", LONG).await.1.is_ok());
    assert!(used.exists());
}

#[tokio::test]
async fn a_user_who_may_not_become_root_learns_what_to_allow() {
    let (sshd, hop) = as_somebody();
    let sudo = sshd.folder.path().join("bin/sudo");
    let user = hop.user.clone();
    script(&sudo, "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n");
    match sshd.ssh(HELPER).connect(route(hop.clone())).await.err() {
        Some(ReachError::SudoRefused(text)) => assert!(text.contains(&format!("{user} ALL=(root) NOPASSWD")), "{text}"),
        other => panic!("{other:?}"),
    }
    // The same without sudo. A machine that has sudo would find it in the directory before.
    script(&sudo, "#!/bin/sh\necho 'sh: 1: sudo: not found' >&2\nexit 127\n");
    match sshd.ssh(HELPER).connect(route(hop)).await.err() {
        Some(ReachError::SudoRefused(text)) => assert!(text.contains("not found"), "{text}"),
        other => panic!("{other:?}"),
    }
}

fn with_user() -> String {
    let passwd = tempfile::NamedTempFile::new().unwrap();
    let all = fs::read_to_string("/etc/passwd").unwrap();
    fs::write(passwd.path(), format!("{all}steward:x:65534:65534::/tmp:/bin/sh\n")).unwrap();
    let path: PathBuf = passwd.keep().unwrap().1;
    format!("chmod 644 {0}; mount --bind {0} /etc/passwd; rm -f {0}", path.display())
}

/// In a mount namespace of its own, with a small file system for the helper.
#[tokio::test]
async fn disks_that_take_no_helper_are_distinguished() {
    if !is_root() {
        eprintln!("not shown: only root can mount a small disk");
        return;
    }
    // Larger than the file system, and not compressible.
    let noise: String = (0..400_000).map(|_| char::from(fastrand::u8(b'!'..=b'~'))).collect();
    let large = format!("{HELPER}: '{}'\n", noise.replace('\'', ""));
    for (options, why) in [("size=64k", "disk space"), ("ro", "read-only"), ("noexec", "noexec")] {
        let folder = std::sync::Arc::new(crate::sshd::folder());
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        let mount = format!("mount -t tmpfs -o {options} tmpfs {}", home.display());
        let sshd = Setup::new().after(&mount).start_at(crate::sshd::free_port(), folder);
        let text = refused(&sshd, &large).await;
        assert!(text.contains(why), "{options}: {text}");
    }
}

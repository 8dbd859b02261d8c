//! The real system, with its files in a directory of the test. Needs root, as the helper does.

use std::fs;
use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use fleetwright_host::system::{PathKind, ProgramRun, Real};
use fleetwright_host::{Host, System, serve};
use fleetwright_pki::{Authority, Leaf};
use fleetwright_wire::*;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Only root can write the files of root.
fn root() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    if fs::metadata(folder.path()).unwrap().uid() == 0 {
        return Some(folder);
    }
    eprintln!("passed over: it needs root");
    None
}

fn run(real: &mut Real, script: &str, within: u64) -> fleetwright_host::system::ProgramResult {
    let argv = ["/bin/sh", "-c", script];
    real.run(&ProgramRun { argv: &argv, input: b"", env: &[], within: Duration::from_secs(within) }).unwrap()
}

/// Everything in a directory, with mode, owner and content.
fn tree(root: &Path) -> Vec<String> {
    let mut shown = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = match (stat.is_file(), stat.is_symlink()) {
                (true, _) => fleetwright_host::text::sha256(&fs::read(&path).unwrap()),
                (_, true) => fs::read_link(&path).unwrap().display().to_string(),
                _ => String::new(),
            };
            shown.push(format!("{} {:o} {} {} {content}", path.display(), stat.mode(), stat.uid(), stat.gid()));
            if stat.is_dir() {
                folders.push(path);
            }
        }
    }
    shown.sort();
    shown
}

#[test]
fn a_user_who_owns_a_folder_on_the_way_does_not_lead_root_elsewhere() {
    let Some(root) = root() else { return };
    let mut real = Real::at(root.path());
    real.write("/etc/systemd/system/ssh.service.d/other.conf", b"root's", 0o644, "root", "root").unwrap();
    real.write("/home/mallory/app/app.conf", b"declared", 0o644, "1234", "1234").unwrap();
    let path = |name: &str| root.path().join(name);
    lchown(path("home/mallory"), Some(1234), Some(1234)).unwrap();
    fs::remove_dir_all(path("home/mallory/app")).unwrap();
    symlink("../../etc/systemd/system/ssh.service.d", path("home/mallory/app")).unwrap();
    lchown(path("home/mallory/app"), Some(1234), Some(1234)).unwrap();
    let before = tree(&path("etc"));
    let app = "/home/mallory/app";
    let written = real.write(&format!("{app}/app.conf"), b"declared", 0o644, "1234", "1234");
    let refused = written.unwrap_err().to_string();
    assert!(refused.contains("app is a link") && refused.contains("user 1234"), "{refused}");
    assert!(real.write(&format!("{app}/deeper/app.conf"), b"declared", 0o644, "1234", "1234").is_err());
    assert!(real.link(&format!("{app}/app.conf"), "/home/mallory/mine").is_err());
    assert!(real.set_mode(&format!("{app}/other.conf"), 0o666, "1234", "1234").is_err());
    assert!(real.remove(&format!("{app}/other.conf")).is_err());
    assert_eq!(tree(&path("etc")), before);
    // A link in the place of a file does not show them what root can read either.
    symlink("../../etc/systemd/system/ssh.service.d/other.conf", path("home/mallory/mine")).unwrap();
    lchown(path("home/mallory/mine"), Some(1234), Some(1234)).unwrap();
    for read in ["/home/mallory/mine".to_owned(), format!("{app}/other.conf")] {
        assert!(real.read(&read, 99).is_err() && real.sha256(&read).is_err(), "{read}");
    }
    // Links of root belong to the host itself, such as /lib and /var/run.
    symlink("etc/systemd", path("units")).unwrap();
    real.write("/units/system/a.service", b"one", 0o644, "root", "root").unwrap();
    assert_eq!(real.read("/units/system/a.service", 9).unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(real.read("/etc/systemd/system/a.service", 9).unwrap().as_deref(), Some(&b"one"[..]));
    assert!(real.remove("/units/system/a.service").unwrap());
}

/// A component with one file, at that path.
fn one_file(path: &str) -> Package {
    let mut package = Package { units: Vec::new(), health: Health::default(), ..kubelet("1") };
    package.files.truncate(1);
    package.files[0].path = path.to_owned();
    package
}

#[test]
fn a_user_who_leads_a_folder_of_ours_elsewhere_fails_no_step_of_other_components() {
    let Some(root) = root() else { return };
    let path = |name: &str| root.path().join(name);
    fs::create_dir_all(path("home/mallory/own/y")).unwrap();
    let mut host = Host::new(Real::at(root.path()));
    done(&apply(&mut host, "a", Step::Install(one_file("/home/mallory/x/y/conf"))));
    fs::rename(path("home/mallory/x"), path("home/mallory/z")).unwrap();
    symlink("own", path("home/mallory/x")).unwrap();
    lchown(path("home/mallory/x"), Some(1234), Some(1234)).unwrap();
    let other = Package { component: "other".to_owned(), ..one_file("/etc/other/conf") };
    done(&apply(&mut host, "b", Step::Install(other)));
    done(&apply(&mut host, "c", Step::Remove { component: "other".to_owned() }));
    assert!(path("home/mallory/own/y").is_dir(), "a folder of the user was removed");
}

#[test]
fn a_folder_goes_only_if_it_is_empty_when_it_is_removed() {
    let Some(root) = root() else { return };
    let path = |name: &str| root.path().join(name);
    let mut real = Real::at(root.path());
    real.write("/opt/ours/conf", b"ours", 0o644, "root", "root").unwrap();
    assert!(!real.remove_empty("/opt/ours").unwrap());
    assert_eq!(fs::read(path("opt/ours/conf")).unwrap(), b"ours");
    // A leftover of a crashed write stays beside a file of others, and is removed with the directory otherwise.
    let leftover = path("opt/ours/.fleetwright-0123456789abcdef");
    fs::write(&leftover, b"half").unwrap();
    assert!(!real.remove_empty("/opt/ours").unwrap());
    assert!(leftover.exists());
    fs::remove_file(path("opt/ours/conf")).unwrap();
    assert!(real.remove_empty("/opt/ours").unwrap());
    assert!(!path("opt/ours").exists() && path("opt").is_dir());
    assert!(real.remove_empty("/opt/ours").unwrap(), "nothing is there");
    // A directory of that name belongs to others.
    fs::create_dir_all(path("opt/ours/.fleetwright-0123456789abcdef")).unwrap();
    assert!(!real.remove_empty("/opt/ours").unwrap());
    assert!(leftover.is_dir());
    // A link or a file is not a directory either.
    symlink("ours", path("opt/link")).unwrap();
    assert!(real.remove_empty("/opt/link").unwrap());
    assert!(fs::symlink_metadata(path("opt/link")).is_ok());
}

#[test]
fn a_link_of_a_user_is_put_back_as_theirs() {
    let Some(root) = root() else { return };
    let path = root.path().join("home/mallory/conf");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink("elsewhere", &path).unwrap();
    lchown(&path, Some(1234), Some(1234)).unwrap();
    let mut host = Host::new(Real::at(root.path()));
    done(&apply(&mut host, "a", Step::Install(one_file("/home/mallory/conf"))));
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    done(&apply(&mut host, "b", Step::Remove { component: "kubelet".to_owned() }));
    let back = fs::symlink_metadata(&path).unwrap();
    assert!(back.is_symlink() && (back.uid(), back.gid()) == (1234, 1234), "{back:?}");
}

#[test]
fn a_file_that_its_owner_made_huge_is_not_read() {
    let Some(root) = root() else { return };
    let mut host = Host::new(Real::at(root.path()));
    let package = one_file("/home/mallory/conf");
    done(&apply(&mut host, "a", Step::Install(package.clone())));
    let file = fs::OpenOptions::new().write(true).open(root.path().join("home/mallory/conf")).unwrap();
    file.set_len(1 << 40).unwrap();
    let seen = observe(&mut host, std::slice::from_ref(&package));
    let deviations = &seen.components[0].deviations;
    assert!(deviations.iter().any(|one| one.found.contains("not computed")), "{deviations:?}");
    done(&apply(&mut host, "b", Step::Repair(package.clone())));
    assert_eq!(observe(&mut host, &[package]).components[0].deviations, []);
}

#[test]
fn a_file_is_written_whole_with_its_mode_and_owner() {
    let Some(root) = root() else { return };
    let mut real = Real::at(root.path());
    real.write("/etc/a/b", b"one", 0o4640, "root", "1234").unwrap();
    let stat = real.stat("/etc/a/b").unwrap().unwrap();
    assert_eq!(
        (stat.kind, stat.mode, stat.owner.as_str(), stat.group.as_str()),
        (PathKind::File, 0o4640, "root", "1234")
    );
    let before = stat.changed;
    real.set_mode("/etc/a/b", 0o600, "root", "root").unwrap();
    let stat = real.stat("/etc/a/b").unwrap().unwrap();
    assert_eq!((stat.mode, stat.group.as_str()), (0o600, "root"));
    assert_ne!(stat.changed, before);
    assert_eq!(real.read("/etc/a/b", 3).unwrap().as_deref(), Some(&b"one"[..]));
    assert!(real.read("/etc/a/b", 2).is_err());
    assert_eq!(real.read("/etc/a/b/c", 3).unwrap(), None);
    assert_eq!(real.list("/etc/a").unwrap(), ["b"]);
    // Over a link: the link is replaced, its target stays.
    symlink("b", root.path().join("etc/a/link")).unwrap();
    real.write("/etc/a/link", b"two", 0o644, "root", "root").unwrap();
    assert_eq!(real.read("/etc/a/b", 9).unwrap().as_deref(), Some(&b"one"[..]));
    let error = real.write("/etc/a/c", b"", 0o644, "nobody-of-that-name", "root").unwrap_err();
    assert!(error.to_string().contains("user nobody-of-that-name"), "{error}");
    assert!(real.remove("/etc/a").unwrap());
    assert!(!real.remove("/etc/a").unwrap());
    assert_eq!(fs::read_dir(root.path().join("etc")).unwrap().count(), 0);
}

#[test]
fn steps_work_with_files_and_leave_none_behind() {
    let Some(root) = root() else { return };
    fs::create_dir_all(root.path().join("etc/kubernetes")).unwrap();
    fs::create_dir_all(root.path().join("var/lib")).unwrap();
    fs::create_dir_all(root.path().join("opt")).unwrap();
    fs::write(root.path().join("etc/kubernetes/kubelet.yaml"), "by hand").unwrap();
    fs::set_permissions(root.path().join("etc/kubernetes/kubelet.yaml"), fs::Permissions::from_mode(0o604)).unwrap();
    let before = tree(root.path());
    let mut host = Host::new(Real::at(root.path()));
    let files = |version| Package { units: Vec::new(), health: Health::default(), ..kubelet(version) };
    done(&apply(&mut host, "a", Step::Install(files("1"))));
    assert_eq!(fs::metadata(root.path().join("var/lib/fleetwright")).unwrap().mode() & 0o7777, 0o700);
    done(&apply(&mut host, "b", Step::Install(files("2"))));
    assert_eq!(observe(&mut host, &[files("2")]).components[0].deviations, []);
    fs::write(root.path().join("etc/kubernetes/notes"), "scribbled\n").unwrap();
    assert_eq!(observe(&mut host, &[files("2")]).components[0].deviations.len(), 1);
    done(&apply(&mut host, "c", Step::Repair(files("2"))));
    done(&apply(&mut host, "d", Step::Back { component: "kubelet".to_owned(), to: files("1").digest() }));
    assert_eq!(observe(&mut host, &[files("1")]).components[0].deviations, []);

    let mut tool = archive("1");
    let Method::Tarball(tarball) = &mut tool.method else { panic!("an archive") };
    let bytes = gzip(&tar(&[("tool-1/bin/tool", "#!/bin/sh\n")]));
    tarball.source.sha256 = fleetwright_host::text::sha256(&bytes);
    tarball.source.inline = Some(Bytes(bytes));
    done(&apply(&mut host, "e", Step::Install(tool.clone())));
    let there = root.path().join("opt/fleetwright/tool/current/bin/tool");
    assert_eq!(fs::read_to_string(&there).unwrap(), "#!/bin/sh\n");
    assert_eq!(observe(&mut host, std::slice::from_ref(&tool)).components[0].deviations, []);
    fs::write(&there, "tampered with").unwrap();
    let seen = observe(&mut host, std::slice::from_ref(&tool));
    assert_eq!(seen.components[0].deviations.len(), 1, "{:?}", seen.components[0].deviations);
    done(&apply(&mut host, "f", Step::Repair(tool.clone())));
    assert_eq!(fs::read_to_string(&there).unwrap(), "#!/bin/sh\n");
    assert_eq!(observe(&mut host, &[tool]).components[0].deviations, []);

    done(&apply(&mut host, "g", Step::Remove { component: "tool".to_owned() }));
    done(&apply(&mut host, "h", Step::Remove { component: "kubelet".to_owned() }));
    assert_eq!(ask(&mut host, Request::Clean { claim: claim(1) }), Answer::Cleaned);
    assert_eq!(tree(root.path()), before);
}

#[test]
fn one_step_at_a_time_across_processes() {
    let Some(root) = root() else { return };
    let (mut one, mut two) = (Real::at(root.path()), Real::at(root.path()));
    assert!(one.lock("/lock").unwrap());
    assert!(one.lock("/lock").unwrap());
    assert!(!two.lock("/lock").unwrap());
    one.unlock("/lock").unwrap();
    assert!(two.lock("/lock").unwrap());
    drop(two);
    assert!(one.lock("/lock").unwrap());
    assert!(one.lives(&one.own_process()));
    assert!(!one.lives("1 1 another-boot"));
}

#[test]
fn output_is_bounded_to_its_end() {
    let mut real = Real::default();
    let ran = run(&mut real, "yes begin | head -c 50000000; echo the end; echo of both >&2", 120);
    assert!(ran.ok());
    assert!(ran.tail.len() <= fleetwright_host::LOG, "{}", ran.tail.len());
    assert!(ran.tail.contains("of both"));
    assert!(ran.stdout.ends_with("the end\n"));
    assert!(ran.stdout.len() <= 8 << 20);
}

#[test]
fn whatever_a_program_started_is_killed_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let noted = folder.path().join("pid");
    let mut real = Real::default();
    let begin = Instant::now();
    let script = format!("trap '' TERM; sleep 1000 & echo $! > {}; echo started; sleep 1000", noted.display());
    let ran = run(&mut real, &script, 1);
    assert!(ran.timed_out);
    assert_eq!(ran.status, None);
    assert!(ran.tail.contains("started"));
    assert!(begin.elapsed() < Duration::from_secs(500));
    let child = fs::read_to_string(noted).unwrap();
    let stat = format!("/proc/{}/stat", child.trim());
    let until = Instant::now() + Duration::from_secs(60);
    // The process is gone, or a zombie that its new parent has not reaped yet.
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < until, "it lives on");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn something_left_running_in_the_background_is_not_waited_for() {
    let mut real = Real::default();
    let begin = Instant::now();
    let ran = run(&mut real, "sleep 300 & echo $!", 600);
    assert!(ran.ok());
    assert!(begin.elapsed() < Duration::from_secs(250));
    let _ = Command::new("kill").arg(ran.stdout.trim()).status();
}

fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        // The checked function refuses the paths that some tests need.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        archive.append(&header, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn archives_are_distinguished_by_their_content_and_unpacked_beside() {
    let folder = tempfile::tempdir().unwrap();
    let mut real = Real::at(folder.path());
    let plain = tar(&[("top/bin/a", "one"), ("top/b", "two"), ("left-out", "")]);
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    for (name, bytes) in [("tar", plain.clone()), ("gz", gzip(&plain)), ("zst", zstd)] {
        fs::write(folder.path().join(name), bytes).unwrap();
        let into = format!("/into-{name}");
        real.unpack(&format!("/{name}"), &into, 1).unwrap();
        assert_eq!(real.list(&into).unwrap(), ["b", "bin"]);
        assert_eq!(real.read(&format!("{into}/bin/a"), 9).unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(real.stat(&format!("{into}/bin/a")).unwrap().unwrap().mode, 0o755);
    }
    fs::write(folder.path().join("none"), "this is no archive").unwrap();
    assert!(real.unpack("/none", "/into-none", 0).is_err());
}

#[test]
fn an_archive_cannot_lead_out_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut real = Real::at(folder.path());
    fs::create_dir(folder.path().join("outside")).unwrap();
    fs::write(folder.path().join("dots"), tar(&[("a/../../outside/x", "out")])).unwrap();
    let error = real.unpack("/dots", "/into-dots", 0).unwrap_err();
    assert!(error.to_string().contains("leads out"), "{error}");

    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    archive.append_link(&mut header, "door", folder.path().join("outside")).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o644);
    archive.append_data(&mut header, "door/x", &b"out"[..]).unwrap();
    fs::write(folder.path().join("door"), archive.into_inner().unwrap()).unwrap();
    let error = real.unpack("/door", "/into-door", 0).unwrap_err();
    assert!(error.to_string().contains("not a folder"), "{error}");
    assert_eq!(fs::read_dir(folder.path().join("outside")).unwrap().count(), 0);
}

/// Serves each connection with the next of these answers, and returns the address.
fn web(answers: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(&answer);
        }
    });
    address.to_string()
}

fn ok(body: &[u8], length: usize) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").as_bytes(), body].concat()
}

#[test]
fn what_is_fetched_comes_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut real = Real::at(folder.path());
    let not_found = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec();
    let web = web(vec![ok(b"whole", 5), ok(b"half", 50), ok(&[0; 100], 100), not_found]);
    let within = Duration::from_secs(60);
    let mut fetch = |limit| real.fetch(&format!("http://{web}/x"), "/cache/x", limit, within, &mut |_, _| ());
    fetch(50).unwrap();
    assert_eq!(fs::read(folder.path().join("cache/x")).unwrap(), b"whole");
    assert!(fetch(50).is_err());
    let error = fetch(50).unwrap_err().to_string();
    assert!(error.contains("100 bytes") && error.contains("than 50"), "{error}");
    assert_eq!(fetch(50).unwrap_err().to_string(), "status 404");
    // A port in no range from which others are allocated.
    let refused = "127.0.0.1:1";
    assert!(real.fetch(&format!("http://{refused}/x"), "/cache/x", 50, within, &mut |_, _| ()).is_err());
    assert!(real.connects(refused, within).is_err());
}

/// Serves this answer to clients that trust `authority`, and returns the port.
fn tls(authority: &Authority, answer: Vec<u8>) -> u16 {
    let pair = authority.issue(Leaf::server("packages", ["localhost"], [])).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream.unwrap());
            // Clients that do not trust it end the connection here.
            if stream.read(&mut [0; 4096]).is_ok() {
                let _ = stream.write_all(&answer);
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    port
}

#[test]
fn a_source_over_https_comes_from_a_server_that_the_host_trusts_and_from_no_other() {
    let Some(root) = root() else { return };
    let authority = Authority::new("site").unwrap();
    let trusted = root.path().join("authorities.pem");
    fs::write(&trusted, authority.cert_pem()).unwrap();
    let other = root.path().join("others.pem");
    fs::write(&other, Authority::new("other").unwrap().cert_pem()).unwrap();
    let bytes = gzip(&tar(&[("tool-1/bin/tool", "#!/bin/sh\n")]));
    let port = tls(&authority, ok(&bytes, bytes.len()));
    let install = |id: &str, name: &str, authorities: &Path| {
        let mut tool = archive("1");
        let Method::Tarball(tarball) = &mut tool.method else { panic!("an archive") };
        tarball.source.sha256 = fleetwright_host::text::sha256(&bytes);
        tarball.source.urls = vec![format!("https://{name}:{port}/tool.tar.gz")];
        let apply =
            Apply { id: id.to_owned(), claim: claim(1), step: Step::Install(tool), within: 60, unproven: false };
        let mut child = Command::new(env!("CARGO_BIN_EXE_fleetwright-host"))
            .args(["serve", "--root"])
            .arg(root.path())
            // Stands for the host's own list of authorities.
            .env("SSL_CERT_FILE", authorities)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&line(&Request::Apply(Box::new(apply)))).unwrap();
        let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        match serde_json::from_str(said.lines().last().unwrap()).unwrap() {
            Answer::Ended(record) => record,
            answer => panic!("{answer:?}"),
        }
    };
    let stranger = install("a", "localhost", &other);
    assert_eq!(stranger.outcome, Outcome::Failed);
    assert!(stranger.message.contains(&format!("https://localhost:{port}/tool.tar.gz: ")), "{}", stranger.message);
    assert!(stranger.message.contains("UnknownIssuer"), "{}", stranger.message);
    let misnamed = install("b", "127.0.0.1", &trusted);
    assert_eq!(misnamed.outcome, Outcome::Failed);
    assert!(misnamed.message.contains("not trusted"), "{}", misnamed.message);
    assert!(!root.path().join("opt").exists(), "something came all the same");
    done(&install("c", "localhost", &trusted));
    assert!(root.path().join("opt/fleetwright/tool/current/bin/tool").exists());
}

#[test]
fn checks_ask_the_network() {
    let web = web(vec![ok(b"", 0), Vec::new()]);
    let real = Real::default();
    let within = Duration::from_secs(60);
    assert_eq!(real.http_status(&format!("http://{web}/healthz"), within).unwrap(), 200);
    assert!(real.connects(&web, within).is_ok());
    // By name, too; an unknown name is reported.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(real.connects(&format!("localhost:{port}"), within).is_ok());
    let error = real.http_status("http://no-such-host.invalid/", within).unwrap_err();
    assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
}

#[test]
fn the_host_says_what_it_is() {
    let facts = Real::default().facts().unwrap();
    assert!(facts.cpus > 0 && facts.memory > 0 && facts.free > 0, "{facts:?}");
    assert!(!facts.boot_id.is_empty() && !facts.kernel.is_empty() && !facts.os.is_empty(), "{facts:?}");
    let real = Real::default();
    assert!(real.sysctl("kernel.ostype").unwrap().is_some_and(|os| os == "Linux"));
    assert_eq!(real.sysctl("kernel.no_such_thing").unwrap(), None);
}

/// A writer whose bytes the test can read, until it is cut.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<(Vec<u8>, bool)>>);

impl std::io::Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut wire = self.0.lock().unwrap();
        if wire.1 {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        wire.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Wire {
    fn answers(&self) -> Vec<Answer> {
        let text = String::from_utf8(self.0.lock().unwrap().0.clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn script(apply: &str) -> Package {
    Package {
        component: "slow".to_owned(),
        reference: "slow-1".to_owned(),
        method: Method::Script(Script { check: "false".to_owned(), apply: apply.to_owned(), remove: String::new() }),
        ..Package::default()
    }
}

fn line(request: &Request) -> Vec<u8> {
    let mut line = serde_json::to_vec(request).unwrap();
    line.push(b'\n');
    line
}

#[test]
fn a_cut_connection_ends_no_step() {
    let Some(root) = root() else { return };
    let mark = root.path().join("mark");
    let wire = Wire::default();
    wire.0.lock().unwrap().1 = true;
    // The reader is gone from the start, and the input ends with the request.
    let package = script(&format!("echo began > {0}; sleep 1; echo ended > {0}", mark.display()));
    let input = line(&request("a", 1, Step::Install(package)));
    serve(&mut Host::new(Real::at(root.path())), &input[..], wire);
    assert_eq!(fs::read_to_string(mark).unwrap(), "ended\n");
    let record = recall(&mut Host::new(Real::at(root.path())), "a").unwrap();
    // The check fails on purpose: the step ran to its very end.
    assert!(record.message.contains("check"), "{}", record.message);
    assert_eq!(record.outcome, Outcome::Failed);
}

#[test]
fn while_a_step_runs_something_is_said() {
    let Some(root) = root() else { return };
    let wire = Wire::default();
    let input = line(&request("a", 1, Step::Install(script("sleep 7"))));
    serve(&mut Host::new(Real::at(root.path())), &input[..], wire.clone());
    let answers = wire.answers();
    let said = answers
        .iter()
        .filter(|answer| matches!(answer, Answer::Progress(said) if said.doing == "running apply"))
        .count();
    assert!(said >= 2, "{answers:?}");
    assert!(matches!(answers.last(), Some(Answer::Ended(_))));
}

#[test]
fn what_is_not_understood_is_said_and_the_next_request_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let wire = Wire::default();
    let mut input = b"{\"secret\": \"hush\"}\nnonsense\n".to_vec();
    input.extend(line(&Request::Recall { id: "a".to_owned() }));
    input.extend(b"{\"cut off");
    serve(&mut Host::new(Real::at(folder.path())), &input[..], wire.clone());
    let answers = wire.answers();
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert!(matches!(&answers[0], Answer::Failed(failure) if failure.kind == FailureKind::NotUnderstood));
    assert_eq!(answers[2], Answer::Recalled(None));
    assert!(!format!("{answers:?}").contains("hush"));
}

#[test]
fn a_line_without_end_is_not_listened_to() {
    let folder = tempfile::tempdir().unwrap();
    let wire = Wire::default();
    let endless = BufReader::new(std::io::repeat(b'x'));
    serve(&mut Host::new(Real::at(folder.path())), endless, wire.clone());
    assert!(matches!(&wire.answers()[..], [Answer::Failed(failure)] if failure.message.contains("longer than")));
}

#[test]
fn programs_in_a_script_cannot_eat_the_rest_of_it() {
    let Some(root) = root() else { return };
    let mut host = Host::new(Real::at(root.path()));
    let mut package = script("cat > /dev/null\necho after");
    if let Method::Script(script) = &mut package.method {
        script.check = "test \"$(id -u)\" = 1000000".to_owned();
    }
    let record = apply(&mut host, "a", Step::Install(package));
    assert!(record.tail.contains("after"), "{record:?}");
    // The first command that fails ends the script.
    let record = apply(&mut host, "b", Step::Install(script("echo before\nfalse\necho after")));
    assert!(record.tail.contains("before") && !record.tail.contains("after"), "{record:?}");
}

#[test]
fn the_binary_says_what_it_is_and_answers() {
    let program = env!("CARGO_BIN_EXE_fleetwright-host");
    let version = Command::new(program).arg("version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(version.ends_with(&format!("protocol {PROTOCOL}\n")), "{version}");
    let facts = Command::new(program).arg("facts").output().unwrap();
    let facts: Facts = serde_json::from_slice(&facts.stdout).unwrap();
    assert!(!facts.hostname.is_empty());
    let mut child = Command::new(program).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&line(&Request::Observe(Box::default()))).unwrap();
    let said = child.wait_with_output().unwrap();
    assert!(said.status.success());
    let answer: Answer = serde_json::from_slice(&said.stdout).unwrap();
    assert!(matches!(answer, Answer::Observed(seen) if seen.facts.boot_id == facts.boot_id));
    assert_eq!(Command::new(program).stderr(Stdio::null()).status().unwrap().code(), Some(2));
}

#[test]
fn a_killed_helper_whose_script_goes_on_is_still_running() {
    let Some(root) = root() else { return };
    let mark = root.path().join("mark");
    let package = script(&format!("echo began > {0}; while test -e {0}; do sleep 0.05; done", mark.display()));
    // In a session of its own, as on a host, with its files in the directory of the test.
    let mut child = Command::new(env!("CARGO_BIN_EXE_fleetwright-host"))
        .args(["serve", "--root"])
        .arg(root.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(&line(&request("a", 1, Step::Install(package)))).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let wait = |what: &str, holds: &dyn Fn() -> bool| {
        while !holds() {
            assert!(Instant::now() < until, "{what}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    wait("the script begins", &|| mark.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let outcome = || recall(&mut Host::new(Real::at(root.path())), "a").unwrap().outcome;
    assert_eq!(outcome(), Outcome::Running);
    let answer =
        ask(&mut Host::new(Real::at(root.path())), request("b", 1, Step::Remove { component: "slow".to_owned() }));
    assert!(matches!(&answer, Answer::Failed(failure) if failure.kind == FailureKind::Busy), "{answer:?}");
    fs::remove_file(&mark).unwrap();
    wait("the script ends", &|| outcome() == Outcome::Interrupted);
}

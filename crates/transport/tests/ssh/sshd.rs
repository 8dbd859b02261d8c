//! A real sshd on loopback, with keys, users and directories of its own.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleetwright_transport::{Helpers, Hop, Login, Route, Ssh, TransportLimits, Trust};

/// A running sshd. Dropping it ends the process.
pub struct Sshd {
    pub port: u16,
    pub folder: Arc<tempfile::TempDir>,
    child: Child,
}

/// The options of an sshd.
pub struct Setup {
    host_keys: Vec<&'static str>,
    extra: String,
    /// Commands to run before it, in the same mount namespace of its own.
    first: Option<String>,
}

impl Setup {
    pub fn new() -> Self {
        Self { host_keys: vec!["ed25519"], extra: String::new(), first: None }
    }

    /// Sets the types of its host keys.
    pub fn host_keys(mut self, types: &[&'static str]) -> Self {
        self.host_keys = types.to_vec();
        self
    }

    /// Adds lines to its configuration.
    pub fn configured(mut self, lines: &str) -> Self {
        self.extra.push_str(lines);
        self.extra.push('\n');
        self
    }

    /// Runs it in a mount namespace of its own, after these commands. Needs root.
    pub fn after(mut self, commands: &str) -> Self {
        self.first = Some(commands.to_owned());
        self
    }

    pub fn start(self) -> Sshd {
        let folder = Arc::new(folder());
        // Another process may take a port between the search for a free one and sshd's listening on it.
        (0..5).find_map(|_| self.try_start(free_port(), folder.clone())).expect("a port stays free for sshd")
    }

    /// Starts it on that port, with the files in that directory: a reinstalled host, if the directory is another.
    pub fn start_at(self, port: u16, folder: Arc<tempfile::TempDir>) -> Sshd {
        self.try_start(port, folder).expect("the port is free")
    }

    /// None if the port is not free.
    fn try_start(&self, port: u16, folder: Arc<tempfile::TempDir>) -> Option<Sshd> {
        let at = folder.path();
        if is_root() {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let mut config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin yes\nAuthorizedKeysFile {0}/authorized_keys\nMaxStartups 100\nMaxSessions 20\nSetEnv PATH={0}/bin:/usr/bin:/bin\n",
            at.display()
        );
        for kind in &self.host_keys {
            let key = at.join(format!("host_{kind}"));
            if !key.exists() {
                keygen(&["-q", "-t", kind, "-N", "", "-f", key.to_str().unwrap()]);
            }
            config.push_str(&format!("HostKey {}\n", key.display()));
        }
        config.push_str(&self.extra);
        // Does what the real program does for authorized users, for tests that do not run as root.
        fs::create_dir_all(at.join("bin")).unwrap();
        script(&at.join("bin/sudo"), "#!/bin/sh\n[ \"$1\" = -n ] || exit 1\nshift\nexec \"$@\"\n");
        fs::write(at.join("config"), config).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(at.join("log")).unwrap();
        let said_before = log.metadata().unwrap().len() as usize;
        let mut command = match &self.first {
            None => {
                let mut command = Command::new("/usr/sbin/sshd");
                command.arg("-D").arg("-e").arg("-f").arg(at.join("config"));
                command
            }
            Some(first) => {
                let mut command = Command::new("unshare");
                let all = format!("set -e; {first}; exec /usr/sbin/sshd -D -e -f {}/config", at.display());
                command.arg("-m").arg("sh").arg("-c").arg(all);
                command
            }
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("openssh-server is installed");
        let mut sshd = Sshd { port, folder, child };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let ended = sshd.child.try_wait().unwrap();
            let log = sshd.log();
            let said = &log[said_before..];
            if said.contains(&format!("Server listening on 127.0.0.1 port {port}.")) {
                return Some(sshd);
            }
            if said.contains("Address already in use") {
                return None;
            }
            assert!(ended.is_none() && Instant::now() < deadline, "sshd does not start: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Sshd {
    /// The hop for a client: a new key that the server accepts, and the pinned host key.
    pub fn hop(&self) -> Hop {
        self.hop_with(&self.new_key("ed25519"))
    }

    pub fn hop_with(&self, login: &Login) -> Hop {
        Hop {
            address: "127.0.0.1".into(),
            port: self.port,
            user: user(),
            login: login.clone(),
            trust: Trust::Keys(vec![self.host_key("ed25519")]),
        }
    }

    /// A new key of that type that the server accepts.
    pub fn new_key(&self, kind: &str) -> Login {
        let (login, public) = key(self.folder.path(), kind);
        let mut file =
            fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("authorized_keys")).unwrap();
        writeln!(file, "{public}").unwrap();
        login
    }

    /// The host key as a pinned line.
    pub fn host_key(&self, kind: &str) -> String {
        let line = fs::read_to_string(self.folder.path().join(format!("host_{kind}.pub"))).unwrap();
        line.split(' ').take(2).collect::<Vec<_>>().join(" ").trim().to_owned()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A transport whose helper is this script, with its home in this host's directory.
    pub fn ssh(&self, helper: &str) -> Ssh {
        self.ssh_of(helpers(self.folder.path(), helper))
    }

    pub fn ssh_of(&self, helpers: Helpers) -> Ssh {
        Ssh::with_home(helpers, self.home().to_str().unwrap())
    }

    /// The home directory of the helper on this host.
    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The processes that serve connections.
    pub fn children(&self) -> Vec<u32> {
        children(self.child.id())
    }

    /// Ends all connections like a pulled cable: without any message.
    pub fn cut(&self) {
        for child in self.children() {
            // With privilege separation each connection has two processes.
            for process in children(child) {
                if command(process).starts_with("sshd") {
                    kill(process);
                }
            }
            kill(child);
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.cut();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that every user can read.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// The script as the helper of this machine's architecture.
pub fn helpers(folder: &Path, content: &str) -> Helpers {
    let at = tempfile::tempdir_in(folder).unwrap();
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    script(&at.path().join(format!("fleetwright-host-{arch}")), content);
    // The file stays until the whole directory is removed: it is read again at delivery.
    Helpers::find(&at.keep()).unwrap()
}

/// A private key, and its public line.
pub fn key(folder: &Path, kind: &str) -> (Login, String) {
    loop {
        let at = tempfile::tempdir_in(folder).unwrap();
        let path = at.path().join("key");
        keygen(&["-q", "-t", kind, "-N", "", "-f", path.to_str().unwrap()]);
        let public = fs::read_to_string(at.path().join("key.pub")).unwrap();
        let key = fs::read_to_string(path).unwrap();
        // One of 512 ECDSA keys is refused; a test beside the code that reads keys shows how.
        if kind != "ecdsa" || russh::keys::decode_secret_key(&key, None).is_ok() {
            return (Login { key: key.into(), certificate: None }, public.trim().to_owned());
        }
    }
}

pub fn keygen(arguments: &[&str]) {
    let done =
        Command::new("ssh-keygen").args(arguments).stdin(Stdio::null()).output().expect("openssh-client is installed");
    assert!(done.status.success(), "ssh-keygen {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

pub fn route(host: Hop) -> Arc<Route> {
    Arc::new(Route { machine: "m1".into(), host, jumps: vec![], limits: limits() })
}

/// Long enough for a busy machine, short enough to wait for.
pub fn limits() -> TransportLimits {
    TransportLimits {
        connect: Duration::from_secs(20),
        login: Duration::from_secs(40),
        deliver: Duration::from_secs(60),
        silence: Duration::from_secs(30),
    }
}

pub fn user() -> String {
    let out = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

pub fn is_root() -> bool {
    user() == "root"
}

/// Replaces the file at once: one that is being executed cannot be written to.
pub fn script(path: &Path, content: &str) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, path).unwrap();
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn children(parent: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may contain anything: the parent pid is the second field after it.
        let of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if of == Some(parent) {
            children.push(id);
        }
    }
    children
}

fn command(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default()
}

fn kill(process: u32) {
    let _ = Command::new("kill").arg("-9").arg(process.to_string()).stderr(Stdio::null()).status();
}

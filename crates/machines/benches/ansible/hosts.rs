//! Light hosts: each an sshd with processes, a host name, and file systems of its own, laid over those of this machine in memory.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// The SSH port; each host has an address of its own.
pub const PORT: u16 = 2222;

/// The directories that differ between hosts. The programs are those of this machine.
const OWN: [&str; 4] = ["etc", "var", "opt", "root"];

/// Ends a host when standard input ends, which the kernel ensures even when we are killed. `unshare` kills the first process of the host with
/// it, and the kernel all others.
const SUPERVISOR: &str = r#"exec 3<&0; "$@" </dev/null 3<&- & child=$!; read -r _ <&3; kill -9 $child; wait $child"#;

/// The keys of all hosts.
pub struct Keys {
    pub folder: PathBuf,
}

impl Keys {
    pub fn new(folder: &Path) -> Result<Self> {
        for name in ["host", "user"] {
            let status = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(folder.join(name))
                .stdin(Stdio::null())
                .status()
                .context("ssh-keygen")?;
            if !status.success() {
                bail!("ssh-keygen failed");
            }
        }
        fs::copy(folder.join("user.pub"), folder.join("authorized_keys"))?;
        Ok(Self { folder: folder.to_owned() })
    }

    pub fn user(&self) -> PathBuf {
        self.folder.join("user")
    }

    /// The host key as a pinned line.
    pub fn host_line(&self) -> Result<String> {
        let line = fs::read_to_string(self.folder.join("host.pub"))?;
        Ok(line.split(' ').take(2).collect::<Vec<_>>().join(" "))
    }
}

/// Running hosts. Dropping it ends all their processes.
pub struct Hosts {
    running: Vec<Child>,
    addresses: Vec<Ipv4Addr>,
    _folder: tempfile::TempDir,
}

impl Hosts {
    /// Starts `count` hosts, and waits until all of them listen.
    pub fn start(count: usize, keys: &Keys) -> Result<Self> {
        fs::create_dir_all("/run/sshd")?;
        let folder = tempfile::tempdir()?;
        let mut hosts = Self { running: Vec::new(), addresses: Vec::new(), _folder: folder };
        for number in 0..count {
            let address = Ipv4Addr::new(127, 18, u8::try_from(number / 250)?, u8::try_from(number % 250)? + 1);
            let at = hosts._folder.path().join(number.to_string());
            fs::create_dir(&at)?;
            let child = host(number, address, &at, keys)?;
            hosts.running.push(child);
            hosts.addresses.push(address);
        }
        let deadline = Instant::now() + Duration::from_secs(120);
        for address in &hosts.addresses {
            let at = SocketAddr::from((*address, PORT));
            while TcpStream::connect_timeout(&at, Duration::from_secs(5)).is_err() {
                if Instant::now() > deadline {
                    bail!("the host {address} does not listen; root, and mount, PID and UTS namespaces are needed");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(hosts)
    }

    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in &mut self.running {
            drop(child.stdin.take());
        }
        for child in &mut self.running {
            let _ = child.wait();
        }
        // The next hosts have the same addresses.
        let deadline = Instant::now() + Duration::from_secs(60);
        for address in &self.addresses {
            let at = SocketAddr::from((*address, PORT));
            while TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn host(number: usize, address: Ipv4Addr, at: &Path, keys: &Keys) -> Result<Child> {
    let own = at.display();
    let mut script = format!("set -e; hostname bench-{number}; mount -t tmpfs tmpfs {own}; ");
    for folder in OWN {
        script += &format!(
            "mkdir -p {own}/{folder}/up {own}/{folder}/work; \
             mount -t overlay overlay -o lowerdir=/{folder},upperdir={own}/{folder}/up,workdir={own}/{folder}/work /{folder}; "
        );
    }
    let config = format!(
        "ListenAddress {address}:{PORT}\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized_keys\nPidFile none\nUsePAM no\nUseDNS no\n\
         StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 1000\nPrintMotd no\nSubsystem sftp internal-sftp\n",
        keys.folder.display()
    );
    let file = keys.folder.join(format!("sshd-{number}"));
    fs::write(&file, config)?;
    script += &format!("exec /usr/sbin/sshd -D -e -f {}", file.display());
    Command::new("sh")
        .args(["-c", SUPERVISOR, "supervisor", "unshare"])
        .args(["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("sh")
}

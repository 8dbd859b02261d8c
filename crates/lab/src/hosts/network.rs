//! A bridge with addresses for hosts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail};

use super::command::{aside, call};
use super::{reaper, requirements};

/// Networks of this process so far: part of their names.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Links of this process so far.
static LINKS: AtomicU32 = AtomicU32::new(0);

/// A bridge on this machine in a subnet of 198.18.0.0/15, the range that is set aside for benchmarks, with its own SSH key that opens all
/// hosts on it. Hosts reach this machine and each other, nobody else. Cheap to clone; ends with its last clone and host.
#[derive(Clone, Debug)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bridge: String,
    /// The first three bytes of its addresses.
    subnet: [u8; 3],
    folder: PathBuf,
    keeper: Mutex<Child>,
    taken: Mutex<BTreeSet<u8>>,
    key: String,
    public_key: String,
}

impl Network {
    /// Makes one, in a subnet that nobody uses, and removes what killed runs left behind.
    ///
    /// # Errors
    /// When this machine cannot run hosts: says what it lacks.
    pub async fn start() -> Result<Self> {
        aside(Self::made).await
    }

    fn made() -> Result<Self> {
        requirements::require()?;
        reaper::reap();
        let bridge = format!("fw{}n{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(format!("fleetwright-hosts-{}-{bridge}", process::id()));
        fs::create_dir_all(&folder)?;
        let keeper = Command::new("sh")
            .args(["-c", include_str!("keeper.sh"), "keeper", &bridge])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the keeper of the network")?;
        let mut inner = Inner {
            bridge,
            subnet: [0; 3],
            folder,
            keeper: Mutex::new(keeper),
            taken: Mutex::default(),
            key: String::new(),
            public_key: String::new(),
        };
        inner.subnet = inner.link()?;
        let key = inner.folder.join("key");
        keygen(&key, "fleetwright-lab")?;
        inner.key = fs::read_to_string(&key)?;
        inner.public_key = fs::read_to_string(key.with_extension("pub"))?.trim().to_owned();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// This machine's address on it.
    pub fn address(&self) -> Ipv4Addr {
        self.inner.at(1)
    }

    /// The name of the bridge.
    pub fn bridge(&self) -> &str {
        &self.inner.bridge
    }

    /// The private key that opens all hosts on it, in OpenSSH's form.
    pub fn ssh_key(&self) -> &str {
        &self.inner.key
    }

    /// A file with [`Network::ssh_key`], for `ssh -i`.
    pub fn ssh_key_path(&self) -> PathBuf {
        self.inner.folder.join("key")
    }

    /// The public half of it.
    pub fn ssh_public_key(&self) -> &str {
        &self.inner.public_key
    }

    /// The folder with what the hosts said on their consoles.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// Leaves the folder behind and says where it is, for a test that failed without a panic.
    pub fn keep_logs(&self) {
        if fs::write(self.inner.folder.join("keep"), "").is_ok() {
            eprintln!("lab: the hosts' logs are in {}", self.inner.folder.display());
        }
    }

    /// Whether [`Network::keep_logs`] was called.
    pub(crate) fn keeps_logs(&self) -> bool {
        self.inner.folder.join("keep").exists()
    }

    /// An address that no host of it has; given back with [`Network::give_back`].
    pub(crate) fn take_address(&self) -> Result<Ipv4Addr> {
        let mut taken = self.inner.taken.lock().unwrap_or_else(|broken| broken.into_inner());
        let free = (2..=254).find(|number| !taken.contains(number)).context("the network has no address left")?;
        taken.insert(free);
        Ok(self.inner.at(free))
    }

    pub(crate) fn give_back(&self, address: Ipv4Addr) {
        self.inner.taken.lock().unwrap_or_else(|broken| broken.into_inner()).remove(&address.octets()[3]);
    }

    /// A name for a link that no other of this machine has.
    pub(crate) fn link_name(&self) -> String {
        format!("fw{}v{}", process::id(), LINKS.fetch_add(1, Ordering::Relaxed))
    }
}

impl Inner {
    fn at(&self, number: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, number)
    }

    /// Makes the bridge in a subnet that is free. Labs that start at the same time do so one after the other.
    fn link(&self) -> Result<[u8; 3]> {
        let lock = File::create(env::temp_dir().join(".fleetwright-hosts.lock"))?;
        lock.lock()?;
        let used = call("ip", ["-o", "-4", "address", "show"])?;
        let candidates = (18..=19).flat_map(|b| (1..=250).map(move |c| [198, b, c]));
        // Begins at another place in each process: an address that a machine was just reached at is not another's at once.
        let begin = (process::id() as usize * 7) % 500;
        let subnet =
            candidates.cycle().skip(begin).take(500).find(|[a, b, c]| !used.contains(&format!("inet {a}.{b}.{c}.")));
        let Some(subnet) = subnet else { bail!("all subnets of 198.18.0.0/15 are in use on this machine") };
        let [a, b, c] = subnet;
        call("ip", ["link", "add", "name", &self.bridge, "type", "bridge"])?;
        call("ip", ["address", "add", &format!("{a}.{b}.{c}.1/24"), "dev", &self.bridge])?;
        call("ip", ["link", "set", &self.bridge, "up"])?;
        Ok(subnet)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if thread::panicking() || env::var_os("FLEETWRIGHT_KEEP").is_some() {
            let _ = fs::write(self.folder.join("keep"), "");
            eprintln!("lab: the hosts' logs are in {}", self.folder.display());
        }
        let keeper = self.keeper.get_mut().unwrap_or_else(|broken| broken.into_inner());
        drop(keeper.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(15);
        while Instant::now() < deadline {
            if !matches!(keeper.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
}

/// Makes an ed25519 key pair at that path.
pub(crate) fn keygen(path: &Path, comment: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    let path = path.to_string_lossy();
    call("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", &path]).map(drop)
}

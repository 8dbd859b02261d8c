//! Ansible, tuned: pipelining, persistent connections, no facts, no host key questions, hosts that do not wait for each other.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::Run;
use crate::hosts::{Keys, PORT};

pub struct Ansible<'a> {
    pub folder: &'a Path,
    pub forks: usize,
}

impl Ansible<'_> {
    /// Writes its settings and the inventory. Connections to earlier hosts are closed.
    pub fn prepare(&self, addresses: &[Ipv4Addr], keys: &Keys) -> Result<()> {
        let control = self.folder.join("cp");
        let _ = fs::remove_dir_all(&control);
        fs::create_dir(&control)?;
        let mut inventory = String::from("[all]\n");
        for (number, address) in addresses.iter().enumerate() {
            inventory += &format!("bench-{number} ansible_host={address}\n");
        }
        inventory += &format!(
            "[all:vars]\nansible_port={PORT}\nansible_user=root\nansible_ssh_private_key_file={}\nansible_python_interpreter=/usr/bin/python3\n",
            keys.user().display()
        );
        fs::write(self.folder.join("inventory"), inventory)?;
        fs::write(
            self.folder.join("ansible.cfg"),
            format!(
                "[defaults]\nforks = {}\ngathering = explicit\nhost_key_checking = False\nretry_files_enabled = False\n\
                 [ssh_connection]\npipelining = True\ncontrol_path_dir = {}\ncontrol_path = %(directory)s/%%h\n\
                 ssh_args = -o ControlMaster=auto -o ControlPersist=900s -o PreferredAuthentications=publickey -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o Compression=no\n",
                self.forks,
                control.display()
            ),
        )?;
        Ok(())
    }

    /// Runs the playbook once. CPU and memory of the persistent connections are counted, too.
    pub fn run(&self, changed: bool) -> Result<Run> {
        let control = self.folder.join("cp").display().to_string();
        let stayed = persistent(&control).1;
        let before = children_cpu()?;
        let log = fs::File::create(self.folder.join("ansible.log"))?;
        let started = Instant::now();
        let mut child = Command::new("ansible-playbook")
            .args(["-i", "inventory", "playbook.yml"])
            .current_dir(self.folder)
            .env("ANSIBLE_CONFIG", self.folder.join("ansible.cfg"))
            .env("ANSIBLE_NOCOLOR", "1")
            .env("HOME", self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("ansible-playbook")?;
        let (peak, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let pid = child.id();
        let status = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    peak.fetch_max(family_memory(pid) + persistent(&control).0, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
            let status = child.wait();
            done.store(true, Ordering::Relaxed);
            status
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let said = fs::read_to_string(self.folder.join("ansible.log"))?;
        if !status.success() {
            bail!(
                "ansible-playbook failed: {}",
                said.chars().rev().take(2000).collect::<String>().chars().rev().collect::<String>()
            );
        }
        let recap: Vec<&str> = said.lines().filter(|line| line.contains("unreachable=")).collect();
        if recap.iter().any(|line| line.contains("changed=0 ") == changed) {
            bail!("not what was expected of a run where changes are {changed}: {}", recap.join("\n"));
        }
        let cpu = (children_cpu()? - before) + (persistent(&control).1 - stayed).max(0.0);
        Ok(Run { seconds, cpu, peak: peak.into_inner() })
    }

    /// Closes the persistent connections.
    pub fn forget(&self) {
        let control = self.folder.join("cp").display().to_string();
        for pid in persistent_pids(&control) {
            let _ = Command::new("kill").arg(pid.to_string()).stderr(Stdio::null()).status();
        }
    }
}

/// The CPU seconds of all children that were waited for, and of their children.
fn children_cpu() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("no stat")?.1.split_whitespace().collect();
    let ticks: u64 = fields[13].parse::<u64>()? + fields[14].parse::<u64>()?;
    Ok(ticks as f64 / 100.0)
}

/// The persistent connections: memory, and CPU seconds so far.
fn persistent(control: &str) -> (u64, f64) {
    let pids = persistent_pids(control);
    let cpu = pids
        .iter()
        .filter_map(|pid| fleetwright_lab::measure::process::cpu(*pid).ok())
        .map(|cpu| cpu.as_secs_f64())
        .sum();
    (pids.iter().map(|pid| proportional(*pid)).sum(), cpu)
}

fn persistent_pids(control: &str) -> Vec<u32> {
    every()
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"ssh: ") && String::from_utf8_lossy(&line).contains(control)
        })
        .collect()
}

fn family_memory(of: u32) -> u64 {
    let mut family = vec![of];
    let parents: Vec<(u32, u32)> = every()
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut at = 0;
    while let Some(head) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(_, parent)| *parent == head).map(|(pid, _)| *pid));
        at += 1;
    }
    family.into_iter().map(proportional).sum()
}

/// Proportional memory: shared memory is counted once.
fn proportional(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024
}

fn every() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

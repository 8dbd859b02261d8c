//! Reads the resource use of other processes from /proc.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The unit of CPU times in /proc on every supported Linux.
const TICKS_PER_SECOND: u64 = 100;

/// The direct and indirect child processes of this process whose command has this name.
pub fn descendants(name: &str) -> Result<Vec<u32>> {
    let mut family = HashSet::from([std::process::id()]);
    let mut all: Vec<(u32, u32, String)> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            let stat = Stat::read(pid).ok()?;
            Some((pid, stat.parent, stat.name))
        })
        .collect();
    // Pids wrap around, so a child may have a smaller one than its parent: repeat until no process is added.
    loop {
        let before = family.len();
        family.extend(
            all.iter().filter(|(_, parent, _)| family.contains(parent)).map(|(pid, ..)| *pid).collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    all.retain(|(pid, _, command)| family.contains(pid) && command == name);
    Ok(all.into_iter().map(|(pid, ..)| pid).collect())
}

/// Resident memory, in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} does not run"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS is not a number")?;
    Ok(kib * 1024)
}

/// The CPU time so far, in user and kernel mode.
pub fn cpu(pid: u32) -> Result<Duration> {
    let ticks = Stat::read(pid)?.ticks;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

struct Stat {
    name: String,
    parent: u32,
    ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Result<Self> {
        let text =
            fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} does not run"))?;
        Self::parse(&text).with_context(|| format!("/proc/{pid}/stat: {text}"))
    }

    /// The command is in parentheses and may contain some itself; the rest is numbers.
    fn parse(text: &str) -> Option<Self> {
        let (head, tail) = text.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self { name, parent: number(1)?.try_into().ok()?, ticks: number(11)? + number(12)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let stat = Stat::parse("7 (a (b) c) S 3 7 7 0 -1 4194304 1 2 3 4 50 60 0 0 20 0 1 0 9").unwrap();
        assert_eq!((stat.name.as_str(), stat.parent, stat.ticks), ("a (b) c", 3, 110));
    }

    #[test]
    fn a_process_has_memory() {
        assert!(resident(std::process::id()).unwrap() > 0);
    }
}

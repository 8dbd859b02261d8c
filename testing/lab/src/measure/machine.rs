//! The machine of a measurement.

use std::fs;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use crate::{Binaries, DEFAULT_MINOR};

/// The machine, the versions and the command, as they go into the output.
pub fn describe(command: &str) -> Result<Value> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after_colon = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let memory: u64 =
        after_colon(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or_default();
    Ok(json!({
        "processor": after_colon(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism()?.get(),
        "memoryMiB": memory / 1024,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "loadAtStart": read("/proc/loadavg").split_whitespace().next().and_then(|load| load.parse::<f64>().ok()),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "command": command,
        "fleetwright": env!("CARGO_PKG_VERSION"),
        "kubernetes": version("kube-apiserver"),
        "etcd": version("etcd"),
    }))
}

/// The description on one line, for people.
pub fn line(machine: &Value) -> String {
    let text = |field: &str| match &machine[field] {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".into(),
        other => other.to_string(),
    };
    format!(
        "{} × {}, {} MiB, Linux {}, load {} at the start; Fleetwright {} ({}), kube-apiserver {}, etcd {}",
        text("cores"),
        text("processor"),
        text("memoryMiB"),
        text("kernel"),
        text("loadAtStart"),
        text("fleetwright"),
        text("build"),
        text("kubernetes"),
        text("etcd"),
    )
}

/// The CPU time of the machine so far, by use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Time {
    all: u64,
    stolen: u64,
}

impl Time {
    /// Reads the kernel's counters.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal; the time of guests is part of the first two.
        let spent: Vec<u64> = line.split_whitespace().take(8).filter_map(|part| part.parse().ok()).collect();
        Ok(Self { all: spent.iter().sum(), stolen: spent.get(7).copied().unwrap_or_default() })
    }

    /// The share of steal since then, in percent: time in which this machine wanted to work and other virtual machines ran.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn stolen_since(before: Self) -> Result<f64> {
        let now = Self::now()?;
        Ok(100.0 * (now.stolen - before.stolen) as f64 / (now.all - before.all).max(1) as f64)
    }
}

/// The version that a binary of the real control plane prints; none if the binary does not exist.
fn version(binary: &str) -> Option<String> {
    let path = Binaries::find(DEFAULT_MINOR).ok()?.path(binary).ok()?;
    let output = Command::new(path).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next()?.split_whitespace().last().map(str::to_owned)
}

//! Facts about the host, from its kernel and files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fleetwright_wire::Facts;
use fleetwright_wire::text::truncate_bytes;

pub(super) fn facts(ours: &Path, clock: i64) -> io::Result<Facts> {
    let line = |path: &str| fs::read_to_string(path).map(|text| truncate_bytes(text.trim(), 253)).unwrap_or_default();
    Ok(Facts {
        hostname: line("/proc/sys/kernel/hostname"),
        os: os(),
        kernel: line("/proc/sys/kernel/osrelease"),
        arch: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .to_owned(),
        cpus: cpus(&line("/sys/devices/system/cpu/online")),
        memory: memory(),
        boot_id: boot_id(),
        machine_id: line("/etc/machine-id"),
        serials: serials(|name| line(&format!("/sys/class/dmi/id/{name}"))),
        clock,
        free: free(ours)?,
    })
}

/// Placeholders of firmware without a serial number, in lower case.
const PLACEHOLDERS: [&str; 10] = [
    "to be filled by o.e.m.",
    "default string",
    "system serial number",
    "base board serial number",
    "not specified",
    "not applicable",
    "not available",
    "none",
    "unknown",
    "n/a",
];

/// The serial numbers in the firmware.
fn serials(line: impl Fn(&str) -> String) -> Vec<String> {
    let mut serials: Vec<String> = ["product_serial", "board_serial", "chassis_serial"].map(line).to_vec();
    serials.retain(|serial| {
        !PLACEHOLDERS.contains(&&*serial.to_lowercase())
            && serial.chars().any(|one| one.is_alphanumeric() && one != '0')
    });
    let mut seen = std::collections::BTreeSet::new();
    serials.retain(|serial| seen.insert(serial.clone()));
    serials
}

/// `ID-VERSION_ID` of os-release.
fn os() -> String {
    let text = fs::read_to_string("/etc/os-release")
        .or_else(|_| fs::read_to_string("/usr/lib/os-release"))
        .unwrap_or_default();
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        truncate_bytes(value.unwrap_or_default().trim_matches(['"', '\'']), 64)
    };
    match (field("ID"), field("VERSION_ID")) {
        (id, version) if version.is_empty() => id,
        (id, version) => format!("{id}-{version}"),
    }
}

/// Counts a list such as `0-3,8`.
fn cpus(online: &str) -> u32 {
    online
        .split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
                (Ok(first), Ok(last)) if last >= first => last - first + 1,
                _ => 0,
            },
            None => u32::from(part.trim().parse::<u32>().is_ok()),
        })
        .sum()
}

fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    total.unwrap_or(0) * 1024
}

/// Free bytes at the nearest directory that exists.
fn free(path: &Path) -> io::Result<u64> {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let found = rustix::fs::statvfs(there)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

pub(super) fn uptime() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0.0);
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// The fields of `/proc/PID/stat` of a live process after its name, which may contain anything.
fn living(number: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    let fields: Vec<String> = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect();
    // A zombie is not alive.
    if matches!(fields.first()?.as_str(), "Z" | "X") { None } else { Some(fields) }
}

/// `NUMBER START BOOT` of a live process. A pid is reused; the start time distinguishes the processes.
pub(super) fn process(number: u32) -> Option<String> {
    let start = living(number)?.get(19)?.clone();
    Some(format!("{number} {start} {}", boot_id()))
}

pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Whether a process is alive in the session that this process leads, or led.
pub(super) fn session_lives(leader: u32) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let leader = leader.to_string();
    numbers.filter_map(living).any(|fields| fields.get(3) == Some(&leader))
}

/// Dots separate directories, unless there are slashes: then dots are part of a name, as in `net/ipv4/conf/eth0.100/forwarding`.
pub(super) fn sysctl_path(name: &str) -> PathBuf {
    let name = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    Path::new("/proc/sys").join(name)
}

/// Whether a module is loaded or built in. Loaded modules and built-in ones with parameters are directories; other built-in ones are in a list.
pub(super) fn module(name: &str) -> io::Result<bool> {
    let name = name.replace('-', "_");
    if name.is_empty() || name.contains(['/', '.']) {
        return Ok(false);
    }
    if Path::new("/sys/module").join(&name).exists() {
        return Ok(true);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let built_in = fs::read_to_string(format!("/lib/modules/{}/modules.builtin", release.trim())).unwrap_or_default();
    let names = built_in.lines().filter_map(|line| line.rsplit('/').next()?.strip_suffix(".ko"));
    Ok(names.into_iter().any(|known| known.replace('-', "_") == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(cpus("0-3,8"), 5);
        assert_eq!(cpus("0"), 1);
        assert_eq!(cpus(""), 0);
    }

    #[test]
    fn serial_numbers_are_those_of_the_machine_and_not_placeholders() {
        let told = |product: &'static str, board: &'static str, chassis: &'static str| {
            serials(move |name| match name {
                "product_serial" => product.to_owned(),
                "board_serial" => board.to_owned(),
                "chassis_serial" => chassis.to_owned(),
                other => panic!("{other} is not read"),
            })
        };
        assert_eq!(told("SN-17", ".SN-17.CN12.", "SN-17"), ["SN-17", ".SN-17.CN12."]);
        assert_eq!(told("SN-17", "SN-17", ""), ["SN-17"]);
        assert_eq!(told("To Be Filled By O.E.M.", "Default string", "0000000000"), [""; 0]);
        assert_eq!(told("", "", ""), [""; 0]);
        assert_eq!(told("Not Specified", "VMware-56 4d", "None"), ["VMware-56 4d"]);
    }

    #[test]
    fn dots_lead_down_unless_there_are_slashes() {
        assert_eq!(sysctl_path("vm.swappiness"), Path::new("/proc/sys/vm/swappiness"));
        assert_eq!(
            sysctl_path("net/ipv4/conf/eth0.100/rp_filter"),
            Path::new("/proc/sys/net/ipv4/conf/eth0.100/rp_filter")
        );
    }

    #[test]
    fn this_process_lives_and_another_with_its_number_does_not() {
        let own = process(std::process::id()).unwrap();
        assert_eq!(own.split(' ').count(), 3);
        assert_eq!(process(u32::MAX), None);
    }
}

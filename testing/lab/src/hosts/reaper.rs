//! Removes the remains of runs without cleanup, such as after SIGKILL to a supervisor and its owner.
//!
//! All names of a run contain its pid; the resources of a live process are left alone.

use std::path::Path;
use std::{env, fs};

use super::command::call;

/// Removes the remains; resources that cannot be removed stay for the next call.
pub(crate) fn reap() {
    links();
    cgroups();
    folders();
}

/// Bridges `fwPIDn…` and links `fwPIDv…`.
fn links() {
    for line in call("ip", ["-o", "link", "show"]).unwrap_or_default().lines() {
        let Some(name) = line.split(": ").nth(1).and_then(|name| name.split('@').next()) else { continue };
        if name.strip_prefix("fw").and_then(|rest| owner(rest, &['n', 'v'])).is_some_and(gone) {
            let _ = call("ip", ["link", "delete", name]);
        }
    }
}

/// Cgroups `fleetwright-PID-…`, at the top of a hierarchy or below the cgroup of this process.
fn cgroups() {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let hierarchy = match controllers.strip_prefix("name=").unwrap_or(controllers) {
            "" if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() => "",
            "" => "unified",
            other => other,
        };
        let top = Path::new("/sys/fs/cgroup").join(hierarchy);
        for parent in [top.join(path.trim_start_matches('/')), top] {
            for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.strip_prefix("fleetwright-").and_then(|rest| owner(rest, &['-'])).is_some_and(gone) {
                    let script = r#"find "$1" -depth -type d -exec sh -c 'xargs -r kill -KILL <"$1/cgroup.procs"; sleep 0.05; rmdir "$1"' sh {} \;"#;
                    let _ = call("sh", ["-c", script, "sh", &entry.path().to_string_lossy()]);
                }
            }
        }
    }
}

/// Folders `fleetwright-hosts-PID-…`, and those of control planes and package servers, unless marked to be kept.
fn folders() {
    for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let prefixes = ["fleetwright-hosts-", "fleetwright-lab-", "fleetwright-packages-"];
        let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
        let left = rest.and_then(|rest| owner(rest, &['-'])).is_some_and(gone);
        if left && !entry.path().join("keep").exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The number at the start of a name, if one of these characters follows.
fn owner(name: &str, after: &[char]) -> Option<u32> {
    let (number, _) = name.split_once(|c: char| !c.is_ascii_digit())?;
    let next = name[number.len()..].chars().next()?;
    after.contains(&next).then(|| number.parse().ok()).flatten()
}

fn gone(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_process_number_belong_to_a_run() {
        assert_eq!(owner("4711n0", &['n', 'v']), Some(4711));
        assert_eq!(owner("4711v12", &['n', 'v']), Some(4711));
        assert_eq!(owner("4711", &['n', 'v']), None);
        assert_eq!(owner("4711x0", &['n', 'v']), None);
        assert_eq!(owner("mark", &['n', 'v']), None);
        assert_eq!(owner("12-host-1", &['-']), Some(12));
    }

    #[test]
    fn a_run_whose_process_lives_is_left_alone() {
        assert!(!gone(std::process::id()));
    }
}

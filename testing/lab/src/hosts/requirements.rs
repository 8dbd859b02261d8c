//! Checks whether this machine can run hosts.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

/// The required programs, and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 10] = [
    ("debootstrap", "debootstrap"),
    ("systemd-nspawn", "systemd-container"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("flock", "util-linux"),
    ("ip", "iproute2"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("apt-ftparchive", "apt-utils"),
];

/// The missing requirements for hosts; empty if this machine can run them.
pub fn missing_requirements() -> Vec<String> {
    let mut lacks: Vec<String> = PROGRAMS
        .iter()
        .filter(|(program, _)| !installed(program))
        .map(|(program, package)| format!("the program {program} (Debian package {package})"))
        .collect();
    if lacks.is_empty() {
        // Tests the mounts instead of inferring them from user ids and capabilities.
        let script = "mount -t tmpfs tmpfs /mnt && mkdir /mnt/l /mnt/u /mnt/w /mnt/o && \
                      mount -t overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w overlay /mnt/o && ip link add type veth";
        let tried =
            Command::new("unshare").args(["-m", "-n", "--propagation", "private", "sh", "-ec", script]).output();
        match tried {
            Ok(output) if output.status.success() => {}
            Ok(output) => lacks.push(format!(
                "root's right to namespaces, mounts and links ({})",
                String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")
            )),
            Err(error) => lacks.push(format!("unshare: {error}")),
        }
    }
    lacks
}

/// Fails with the list of missing requirements.
pub fn require() -> Result<()> {
    let lacks = missing_requirements();
    if !lacks.is_empty() {
        bail!("this machine cannot run hosts; missing: {}", lacks.join(", "));
    }
    Ok(())
}

pub(crate) fn installed(program: &str) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| Path::new(&folder).join(program).is_file())
}

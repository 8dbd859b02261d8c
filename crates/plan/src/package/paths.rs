//! The paths on a host that a package may use.

use fleetwright_wire::{HOME, OPT};

/// Why a path is not allowed; none if it is.
pub(super) fn path_error(path: &str) -> Option<String> {
    let within = |folder: &str| path == folder || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    if !path.starts_with('/')
        || path.ends_with('/')
        || path.contains("//")
        || path.split('/').any(|part| part == ".." || part == ".")
    {
        return Some(format!("{path:?} is not an absolute path of a file: start with /, without . and .."));
    }
    if let Some(folder) = ["/proc", "/sys"].into_iter().find(|folder| within(folder)) {
        return Some(format!(
            "{path} is not on a disk: {folder} is provided by the kernel; use the method sysctl or kernel, or a script"
        ));
    }
    if within("/dev") {
        return Some(format!(
            "{path} is not on a disk: /dev is recreated at each boot; use a udev rule in /etc/udev/rules.d"
        ));
    }
    if let Some(folder) = [HOME, OPT].into_iter().find(|folder| within(folder)) {
        return Some(format!("{path} is reserved: Fleetwright keeps its own files in {folder}; use another directory"));
    }
    None
}

/// Why a path is doubtful; none if it is not.
pub(super) fn path_warning(path: &str) -> Option<String> {
    let below = |folder: &str| path.starts_with(folder);
    if below("/run/") || below("/var/run/") {
        return Some(format!(
            "{path} is lost at each boot and is drift until it is repaired; use a path in /etc or /usr/local"
        ));
    }
    if below("/tmp/") || below("/var/tmp/") {
        return Some(format!("{path} may be removed by the host at any time; use a path in /etc or /usr/local"));
    }
    if below("/home/") || below("/root/") {
        return Some(format!("{path} is in the home directory of a user; use a path in /etc or /usr/local"));
    }
    None
}

/// Whether a directory is shared between components, and therefore never removed with one.
pub(super) fn shared_folders(path: &str) -> bool {
    const SHARED: [&str; 30] = [
        "/etc",
        "/usr",
        "/usr/bin",
        "/usr/sbin",
        "/usr/lib",
        "/usr/local",
        "/usr/local/bin",
        "/usr/local/sbin",
        "/usr/share",
        "/var",
        "/var/lib",
        "/var/log",
        "/var/cache",
        "/var/spool",
        "/opt",
        "/srv",
        "/home",
        "/root",
        "/boot",
        "/bin",
        "/sbin",
        "/lib",
        "/lib64",
        "/mnt",
        "/media",
        "/run",
        "/tmp",
        "/etc/systemd",
        "/etc/systemd/system",
        "/lib/systemd",
    ];
    let path = path.trim_end_matches('/');
    path.is_empty() || SHARED.contains(&path)
}

//! Kernels, modules and GRUB on a host in memory.

use super::ran;
use crate::system::ProgramResult;
use crate::system::memory::Machine;

const MENU: &str = "/boot/grub/grub.cfg";
const SETTINGS: &str = "/etc/default/grub.d";

pub(super) fn run(machine: &mut Machine, program: &str, arguments: &[&str]) -> Option<ProgramResult> {
    Some(match (program, arguments) {
        ("modprobe", ["--", name]) => {
            machine.modules.insert((*name).to_owned());
            ran(0, "")
        }
        ("modprobe", ["--remove", .., name]) => {
            machine.modules.remove(*name);
            ran(0, "")
        }
        ("update-initramfs", [.., release]) => {
            machine.put(&format!("/boot/initrd.img-{release}"), b"", 0o644);
            ran(0, "")
        }
        ("update-grub", []) => {
            update(machine);
            ran(0, "done\n")
        }
        _ => return None,
    })
}

/// Nothing to interrupt: the menu is written to a temporary file and renamed.
pub(super) fn run_half(_machine: &mut Machine, _program: &str) {}

/// Installs a kernel package: creates its files, turns the links to it, and updates GRUB.
pub(super) fn bring(machine: &mut Machine, release: &str) {
    machine.put(&format!("/boot/vmlinuz-{release}"), b"", 0o644);
    machine.put(&format!("/boot/initrd.img-{release}"), b"", 0o644);
    turn_links(machine, release);
    if machine.stat(MENU).is_some() {
        update(machine);
    }
}

pub(super) fn take(machine: &mut Machine, release: &str) {
    machine.remove(&format!("/boot/vmlinuz-{release}"));
    machine.remove(&format!("/boot/initrd.img-{release}"));
    let left: Vec<String> = machine.list("/boot");
    let leads_to_it = matches!(machine.stat("/vmlinuz").map(|stat| stat.kind), Some(crate::system::PathKind::Link(target)) if target.ends_with(release));
    if let Some(other) =
        left.iter().filter_map(|file| file.strip_prefix("vmlinuz-")).next_back().filter(|_| leads_to_it)
    {
        turn_links(machine, other);
    }
    if machine.stat(MENU).is_some() {
        update(machine);
    }
}

/// Turns the links, where there are any, as Debian's packages do.
fn turn_links(machine: &mut Machine, release: &str) {
    for file in ["vmlinuz", "initrd.img"] {
        if machine.stat(&format!("/{file}")).is_some() {
            let _ = machine.link(&format!("/{file}"), &format!("boot/{file}-{release}"));
        }
    }
}

fn text(machine: &Machine, path: &str) -> String {
    String::from_utf8_lossy(&machine.read(path, 1 << 20).ok().flatten().unwrap_or_default()).into_owned()
}

/// Does what `update-grub` does: the last default of the settings, all their parameters, an entry for each kernel.
fn update(machine: &mut Machine) {
    let (mut default, mut line) = ("0".to_owned(), "root=/dev/vda1 ro".to_owned());
    for file in machine.list(SETTINGS) {
        for setting in text(machine, &format!("{SETTINGS}/{file}")).lines() {
            let quoted = setting.rsplit('\'').nth(1).unwrap_or_default();
            if setting.starts_with("GRUB_DEFAULT=") {
                default = quoted.to_owned();
            } else if setting.starts_with("GRUB_CMDLINE_LINUX=") {
                line = format!("{line} {quoted}");
            }
        }
    }
    let mut menu =
        format!("set default=\"{default}\"\nsubmenu 'Advanced' $menuentry_id_option 'gnulinux-advanced-x' {{\n");
    for file in machine.list("/boot") {
        if let Some(release) = file.strip_prefix("vmlinuz-") {
            menu.push_str(&format!(
                "\tmenuentry '{release}' $menuentry_id_option 'gnulinux-{release}-advanced-x' {{\n\t\tlinux\t/boot/vmlinuz-{release} {line}\n\t}}\n"
            ));
        }
    }
    menu.push_str("}\n");
    machine.put(MENU, menu.as_bytes(), 0o600);
}

/// The release and the command line that the host boots with: by GRUB if it is installed, otherwise by the links.
pub(in crate::system::memory) fn boot(machine: &Machine) -> (Option<String>, Option<String>) {
    let menu = text(machine, MENU);
    if menu.is_empty() {
        let target = match machine.stat("/vmlinuz").map(|stat| stat.kind) {
            Some(crate::system::PathKind::Link(target)) => target,
            _ => String::new(),
        };
        let release = target.rsplit_once("vmlinuz-").map(|(_, release)| release.to_owned());
        let line = text(machine, "/boot/fleetwright-cmdline");
        return (release, Some(format!("root=/dev/vda1 ro {}", line.trim()).trim_end().to_owned()));
    }
    let default = menu.lines().find_map(|line| line.strip_prefix("set default=\"")).unwrap_or_default();
    let default = default.trim_end_matches('"').rsplit('>').next().unwrap_or_default().to_owned();
    let release =
        default.strip_prefix("gnulinux-").and_then(|rest| rest.strip_suffix("-advanced-x")).map(str::to_owned);
    let entry = |line: &str| {
        let (image, rest) = line.trim().strip_prefix("linux\t/boot/vmlinuz-")?.split_once(' ')?;
        (release.as_deref().is_none_or(|release| release == image)).then(|| rest.to_owned())
    };
    let line = menu.lines().find_map(entry);
    (release, line)
}

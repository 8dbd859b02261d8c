//! The boot default and parameters by GRUB: one file in `/etc/default/grub.d` for each component, read by `update-grub`.

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{self as wire, Deviation};

use super::{MAX_SIZE, MethodContext, MethodError, PATH, ended, put, read};
use crate::System;

/// The file that `update-grub` writes and GRUB reads.
const MENU: &str = "/boot/grub/grub.cfg";
const UPDATE: &str = "/usr/sbin/update-grub";

pub(super) fn path(component: &str) -> String {
    format!("/etc/default/grub.d/60-fleetwright-{component}.cfg")
}

/// Fails unless this host has a GRUB that we can configure.
pub(super) fn must_be_there(system: &dyn System) -> Result<(), MethodError> {
    if system.stat(UPDATE).map_err(MethodError::io(UPDATE))?.is_some() {
        return Ok(());
    }
    Err(MethodError(format!(
        "{UPDATE} not found on this host: install GRUB (Debian's grub2-common), or declare `boot: Links` if its boot loader uses /vmlinuz and /initrd.img"
    )))
}

/// The deviations of the host's menu.
pub(super) fn deviations(
    system: &dyn System,
    component: &str,
    kernel: &wire::Kernel,
) -> Result<Vec<Deviation>, MethodError> {
    let mut deviations = Vec::new();
    let menu = menu(system)?;
    let entry = kernel.release.as_ref().and_then(|release| entry(&menu, release));
    if let Some(release) = &kernel.release {
        let found = default(&menu).unwrap_or_default();
        if entry.is_none() || entry.as_deref() != Some(found) {
            deviations.push(Deviation {
                what: "boot default".to_owned(),
                found: match (entry.is_some(), found) {
                    (false, _) => format!("{MENU} has no entry for it"),
                    (true, "") => "none".to_owned(),
                    (true, found) => truncate_bytes(found, 200),
                },
                wanted: release.clone(),
                disrupts: false,
            });
        }
    }
    let path = path(component);
    let wanted = settings(component, entry.as_deref(), kernel);
    if read(system, &path)? != wanted {
        deviations.push(Deviation {
            what: format!("file {path}"),
            found: "absent or other content".to_owned(),
            wanted: if wanted.is_some() { "the declared boot default and parameters" } else { "absent" }.to_owned(),
            disrupts: false,
        });
    }
    let missing = missing(&menu, kernel);
    if !missing.is_empty() {
        deviations.push(Deviation {
            what: "boot parameters".to_owned(),
            found: format!("{MENU} without {}", missing.join(" ")),
            wanted: kernel.parameters.join(" "),
            disrupts: false,
        });
    }
    Ok(deviations)
}

/// Sets the boot default and the parameters.
pub(super) fn set(work: &mut MethodContext<'_>, kernel: &wire::Kernel) -> Result<(), MethodError> {
    let component = work.package.component.clone();
    if kernel.release.is_none() && kernel.parameters.is_empty() {
        return unset(work);
    }
    let mut menu = self::menu(work.system)?;
    if let Some(release) = &kernel.release
        && entry(&menu, release).is_none()
    {
        // The kernel is installed, and its package did not update the menu.
        update(work)?;
        menu = self::menu(work.system)?;
        if entry(&menu, release).is_none() {
            return Err(MethodError(format!(
                "update-grub created no entry for kernel {release} in {MENU}: check its output, GRUB_DISABLE_SUBMENU and the files in /etc/grub.d"
            )));
        }
    }
    let entry = kernel.release.as_ref().and_then(|release| entry(&menu, release));
    put(work.system, &path(&component), settings(&component, entry.as_deref(), kernel).as_deref())?;
    if deviations(work.system, &component, kernel)?.is_empty() {
        return Ok(());
    }
    update(work)?;
    match deviations(work.system, &component, kernel)?.first() {
        None => Ok(()),
        Some(left) => Err(MethodError(format!(
            "update-grub succeeded, but {} is {}, wanted {}: another file in /etc/default/grub.d overrides ours",
            left.what, left.found, left.wanted
        ))),
    }
}

/// Removes the component's settings from GRUB.
pub(super) fn unset(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let path = path(&work.package.component);
    let Some(settings) = read(work.system, &path)? else { return Ok(()) };
    // The menu is updated before the file is removed: after an interruption the next call still finds the file, and repeats the update.
    put(work.system, &path, Some("# Being taken away by Fleetwright.\n"))?;
    let told = if must_be_there(work.system).is_ok() { update(work) } else { Ok(()) };
    if let Err(error) = told {
        put(work.system, &path, Some(&settings))?;
        return Err(error);
    }
    put(work.system, &path, None).map(|_| ())
}

fn update(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    work.say("update-grub");
    let ran = work.run(&["update-grub"], &[], PATH)?;
    if ran.ok() { Ok(()) } else { Err(MethodError(format!("update-grub {}: see the output", ended(&ran)))) }
}

fn menu(system: &dyn System) -> Result<String, MethodError> {
    let bytes = system.read(MENU, MAX_SIZE).map_err(MethodError::io(MENU))?;
    Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
}

/// The file for `update-grub`, which reads it as a shell script; none if there are no settings.
fn settings(component: &str, entry: Option<&str>, kernel: &wire::Kernel) -> Option<String> {
    if kernel.release.is_none() && kernel.parameters.is_empty() {
        return None;
    }
    let mut text = format!("# Written by Fleetwright for {component}.\n");
    if !kernel.parameters.is_empty() {
        text.push_str(&format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX \"'{}'\n", kernel.parameters.join(" ")));
    }
    if let Some(entry) = entry {
        text.push_str(&format!("GRUB_DEFAULT='{entry}'\n"));
    }
    Some(text)
}

/// The entry of a kernel in the menu, in GRUB's form: `SUBMENU>ENTRY`, by their ids.
fn entry(menu: &str, release: &str) -> Option<String> {
    let mut submenu: Option<String> = None;
    for line in menu.lines() {
        if line.starts_with("submenu ") {
            submenu = id(line);
        } else if line.starts_with('}') {
            submenu = None;
        } else if line.trim_start().starts_with("menuentry ") {
            let Some(id) = id(line) else { continue };
            if id.starts_with(&format!("gnulinux-{release}-advanced-")) {
                return Some(match submenu {
                    Some(submenu) => format!("{submenu}>{id}"),
                    None => id,
                });
            }
        }
    }
    None
}

/// The quoted id after `$menuentry_id_option`.
fn id(line: &str) -> Option<String> {
    let rest = line.split_once("$menuentry_id_option '")?.1;
    Some(rest.split_once('\'')?.0.to_owned())
}

/// The default of the menu, which applies unless another entry was chosen for the next boot only.
fn default(menu: &str) -> Option<&str> {
    let set = |line: &'_ str| -> Option<(usize, usize)> {
        let start = line.find("set default=\"")? + "set default=\"".len();
        Some((start, start + line[start..].find('"')?))
    };
    menu.lines()
        .filter_map(|line| set(line).map(|(start, end)| &line[start..end]))
        .find(|value| *value != "${next_entry}")
}

/// Parameters that some entry of the declared kernel lacks; of all kernels if none is declared. Recovery entries never have them.
fn missing<'a>(menu: &str, kernel: &'a wire::Kernel) -> Vec<&'a str> {
    let image = kernel.release.as_ref().map(|release| format!("vmlinuz-{release} "));
    let lines: Vec<&str> = menu
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("linux") && line.contains("vmlinuz-"))
        .filter(|line| image.as_ref().is_none_or(|image| line.contains(image)) && !super::has(line, "single"))
        .collect();
    let lacks = |parameter: &&String| lines.is_empty() || !lines.iter().all(|line| super::has(line, parameter));
    kernel.parameters.iter().filter(lacks).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: &str = include_str!("grub.cfg.txt");

    #[test]
    fn an_entry_is_found_in_the_submenu_that_debian_makes() {
        assert_eq!(
            entry(WRITTEN, "6.1.0-54-cloud-amd64").as_deref(),
            Some("gnulinux-advanced-0b1c>gnulinux-6.1.0-54-cloud-amd64-advanced-0b1c")
        );
        assert_eq!(entry(WRITTEN, "6.1.0-5"), None);
        assert_eq!(default(WRITTEN), Some("0"));
    }

    #[test]
    fn parameters_count_when_every_entry_of_the_kernel_has_them() {
        let kernel = |release: Option<&str>, parameters: &[&str]| wire::Kernel {
            release: release.map(str::to_owned),
            parameters: parameters.iter().map(|text| (*text).to_owned()).collect(),
            ..wire::Kernel::default()
        };
        assert!(missing(WRITTEN, &kernel(Some("6.1.0-54-cloud-amd64"), &["quiet", "panic=10"])).is_empty());
        assert_eq!(missing(WRITTEN, &kernel(None, &["panic=10"])), ["panic=10"]);
        assert_eq!(missing(WRITTEN, &kernel(Some("6.1.0-54-cloud-amd64"), &["panic=1"])), ["panic=1"]);
    }
}

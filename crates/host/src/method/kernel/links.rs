//! The boot default by the links `/vmlinuz` and `/initrd.img`, for boot loaders that follow them, with the parameters in a file beside the kernels.

use fleetwright_wire::text::truncate_bytes;
use fleetwright_wire::{self as wire, Deviation};

use super::{MethodContext, MethodError, PATH, ended, image, put, read, record, remember};
use crate::System;
use crate::system::PathKind;

const KERNEL: &str = "/vmlinuz";
const INITRD: &str = "/initrd.img";
/// The parameters of all components, in one line, which the boot loader adds to the command line.
pub(super) const LINE: &str = "/boot/fleetwright-cmdline";
/// The parameters of each component, from which the line is built.
const PARTS: &str = "/boot/fleetwright-cmdline.d";

pub(super) fn path(component: &str) -> String {
    format!("{PARTS}/{component}")
}

fn initrd(release: &str) -> String {
    format!("/boot/initrd.img-{release}")
}

pub(super) fn deviations(
    system: &dyn System,
    component: &str,
    kernel: &wire::Kernel,
) -> Result<Vec<Deviation>, MethodError> {
    let mut deviations = Vec::new();
    if let Some(release) = &kernel.release {
        for (link, wanted) in wanted(system, release)? {
            let found = target(system, link)?;
            if found != wanted {
                deviations.push(Deviation {
                    what: format!("link {link}"),
                    found: found.unwrap_or_else(|| "absent".to_owned()),
                    wanted: wanted.unwrap_or_else(|| format!("absent: the kernel {release} has none")),
                    disrupts: false,
                });
            }
        }
    }
    let part = part(kernel);
    let line = read(system, LINE)?.unwrap_or_default();
    let has_all = kernel.parameters.iter().all(|parameter| super::has(&line, parameter));
    if read(system, &path(component))? != part || !has_all {
        deviations.push(Deviation {
            what: format!("file {LINE}"),
            found: if line.trim().is_empty() { "nothing".to_owned() } else { truncate_bytes(line.trim(), 200) },
            wanted: part.map_or("nothing of it".to_owned(), |part| part.trim().to_owned()),
            disrupts: false,
        });
    }
    Ok(deviations)
}

/// Records the targets of the links. To be called before packages are installed: their own scripts change the links.
pub(super) fn note(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let mut record = record(work)?;
    if record.links.is_empty() {
        for link in [KERNEL, INITRD] {
            record.links.insert(link.to_owned(), target(work.system, link)?);
        }
        remember(work, &record)?;
    }
    Ok(())
}

pub(super) fn set(work: &mut MethodContext<'_>, kernel: &wire::Kernel) -> Result<(), MethodError> {
    if let Some(release) = &kernel.release {
        make_initrd(work, release)?;
        for (link, wanted) in wanted(work.system, release)? {
            if target(work.system, link)? == wanted {
                continue;
            }
            match wanted {
                Some(wanted) => work.system.link(link, &wanted),
                None => work.system.remove(link).map(|_| ()),
            }
            .map_err(MethodError::io(link))?;
        }
    } else {
        restore_links(work)?;
    }
    put(work.system, &path(&work.package.component), part(kernel).as_deref())?;
    gather(work)
}

/// Removes the component's settings from the links and the line.
pub(super) fn unset(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    restore_links(work)?;
    let part = path(&work.package.component);
    let there = read(work.system, &part)?.is_some();
    put(work.system, &part, None)?;
    if there || read(work.system, LINE)?.is_some() {
        gather(work)?;
    }
    Ok(())
}

fn restore_links(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    for (link, before) in record(work)?.links {
        let before = match before {
            // A link to a removed kernel boots nothing.
            Some(before) if exists(work.system, &before)? => Some(before),
            _ => another(work, &link)?,
        };
        if target(work.system, &link)? == before {
            continue;
        }
        match before {
            Some(before) => work.system.link(&link, &before),
            None => work.system.remove(&link).map(|_| ()),
        }
        .map_err(MethodError::io(&link))?;
    }
    Ok(())
}

/// A target for a link whose earlier target is gone: another installed kernel, unless it is ours.
fn another(work: &MethodContext<'_>, link: &str) -> Result<Option<String>, MethodError> {
    let release = super::declared(work.package)?.release.clone().unwrap_or_default();
    let ours = |target: &String| *target == relative(&image(&release)) || *target == relative(&initrd(&release));
    let found = target(work.system, link)?;
    match found.filter(|found| !ours(found)) {
        Some(found) if exists(work.system, &found)? => Ok(Some(found)),
        _ => Ok(None),
    }
}

fn exists(system: &dyn System, target: &str) -> Result<bool, MethodError> {
    let path = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    Ok(system.stat(&path).map_err(MethodError::io(&path))?.is_some())
}

/// Creates the initial file system of a kernel that has one: it boots only with it, and that of another kernel has the wrong modules.
fn make_initrd(work: &mut MethodContext<'_>, release: &str) -> Result<(), MethodError> {
    let (path, tool) = (initrd(release), "/usr/sbin/update-initramfs");
    let there = |system: &dyn System, path: &str| Ok(system.stat(path).map_err(MethodError::io(path))?.is_some());
    if there(work.system, &path)? || !there(work.system, tool)? {
        return Ok(());
    }
    work.say(format!("making {path}"));
    let ran = work.run(&["update-initramfs", "-c", "-k", release], &[], PATH)?;
    if ran.ok() { Ok(()) } else { Err(MethodError(format!("cannot create {path}: update-initramfs {}", ended(&ran)))) }
}

/// The wanted targets of the links; none if a link must not exist.
fn wanted(system: &dyn System, release: &str) -> Result<[(&'static str, Option<String>); 2], MethodError> {
    let initrd = initrd(release);
    let has_initrd = system.stat(&initrd).map_err(MethodError::io(&initrd))?.is_some();
    Ok([(KERNEL, Some(relative(&image(release)))), (INITRD, has_initrd.then(|| relative(&initrd)))])
}

/// A target relative to the root, as in Debian: it stays valid where the file system is mounted elsewhere.
fn relative(path: &str) -> String {
    path.trim_start_matches('/').to_owned()
}

fn target(system: &dyn System, link: &str) -> Result<Option<String>, MethodError> {
    match system.stat(link).map_err(MethodError::io(link))?.map(|stat| stat.kind) {
        None => Ok(None),
        Some(PathKind::Link(target)) => Ok(Some(relative(&target))),
        Some(_) => Err(MethodError(format!(
            "{link} is not a link: the boot loader of this host does not use links, declare another `boot`"
        ))),
    }
}

fn part(kernel: &wire::Kernel) -> Option<String> {
    (!kernel.parameters.is_empty()).then(|| format!("{}\n", kernel.parameters.join(" ")))
}

/// Builds the line from the parts of all components.
fn gather(work: &mut MethodContext<'_>) -> Result<(), MethodError> {
    let mut words = Vec::new();
    for name in work.system.list(PARTS).map_err(MethodError::io(PARTS))? {
        if let Some(text) = read(work.system, &format!("{PARTS}/{name}"))? {
            words.push(text.trim().to_owned());
        }
    }
    let line = (!words.is_empty()).then(|| format!("{}\n", words.join(" ")));
    put(work.system, LINE, line.as_deref()).map(|_| ())
}

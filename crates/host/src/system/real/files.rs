//! Files of the host. When a function returns, its change is on disk: file, name and directory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown, lchown, symlink,
};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, openat, readlinkat};
use sha2::Digest as _;

use super::accounts::Accounts;
use crate::fetch::MAX_SOURCE;
use crate::system::{PathKind, Stat, archive};
use crate::text;

/// Whether the error means that a path does not exist; that includes a file in the place of a parent directory.
fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Opens a file for reading; none if it does not exist. Follows no link of another user, who would get the content of
/// files of root, see [`walked`]. Does not wait for
/// the other end of a pipe.
fn open(path: &Path) -> io::Result<Option<File>> {
    let found = walked(path).and_then(|found| {
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
    });
    let file = match found {
        Ok(file) => file,
        Err(error) if absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    Ok(Some(file))
}

pub(super) fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut content = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {limit} bytes")));
    }
    Ok(Some(content))
}

pub(super) fn sha256(path: &Path) -> io::Result<Option<String>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let mut digest = sha2::Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut in_all = 0_u64;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(text::hex(&digest.finalize()))),
            read => {
                // The owner of a growing file could keep us reading for hours.
                in_all += read as u64;
                if in_all > MAX_SOURCE {
                    return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {MAX_SOURCE} bytes")));
                }
                digest.update(&buffer[..read]);
            }
        }
    }
}

pub(super) fn stat(path: &Path, accounts: &mut Accounts) -> io::Result<Option<Stat>> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let kind = if found.is_file() {
        PathKind::File
    } else if found.is_dir() {
        PathKind::Folder
    } else if found.is_symlink() {
        PathKind::Link(fs::read_link(path)?.to_string_lossy().into_owned())
    } else {
        PathKind::Other
    };
    Ok(Some(Stat {
        kind,
        mode: found.mode() & 0o7777,
        owner: accounts.user(found.uid()),
        group: accounts.group(found.gid()),
        size: found.size(),
        changed: found.ctime().wrapping_mul(1_000_000_000).wrapping_add(found.ctime_nsec()),
    }))
}

/// The temporary path for writing a file: always the same beside each path, so that leftovers of a crash are found again.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let digest = text::sha256(name.as_encoded_bytes());
    let mut beside = OsString::from(".fleetwright-");
    beside.push(&digest[..16]);
    path.with_file_name(beside)
}

fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// More links than this on the way to a file are a loop.
const MAX_LINKS: usize = 40;

/// A path whose parent directory is held open: renaming directories above it does not redirect it.
struct OpenPath {
    _folder: OwnedFd,
    path: PathBuf,
}

/// Opens the parent directory of a path, see [`walked`].
fn held(path: &Path) -> io::Result<OpenPath> {
    let path = std::path::absolute(path)?;
    let folder = walked(above(&path))?;
    let path =
        PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(path.file_name().unwrap_or_default());
    Ok(OpenPath { _folder: folder, path })
}

/// Opens a path (`O_PATH`), component by component, through no link of another user: the owner of a directory on the
/// way could lead root to a file of others.
fn walked(path: &Path) -> io::Result<OwnedFd> {
    let path = std::path::absolute(path)?;
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    let root = || openat(rustix::fs::CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let (mut folder, mut links) = (root()?, 0);
    let mut rest = VecDeque::from(parts(&path));
    while let Some(part) = rest.pop_front() {
        let next = openat(&folder, part.as_os_str(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&next)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            folder = next;
            continue;
        }
        if ![0, rustix::process::geteuid().as_raw()].contains(&found.st_uid) {
            let why = format!(
                "{} is a link owned by user {}, who could redirect what root writes: make root its owner, or use the real path of the file",
                part.to_string_lossy(),
                found.st_uid
            );
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::other("too many levels of symbolic links"));
        }
        let target = readlinkat(&next, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            folder = root()?;
        }
        parts(target).into_iter().rev().for_each(|part| rest.push_front(part));
    }
    Ok(folder)
}

fn make_above(path: &Path) -> io::Result<()> {
    let folder = above(path);
    if folder.is_dir() {
        return Ok(());
    }
    make_above(folder)?;
    let OpenPath { path: folder, _folder } = &held(folder)?;
    match DirBuilder::new().mode(0o755).create(folder) {
        Ok(()) => {
            let flags = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits() as i32;
            let made = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
            // Regardless of the caller's umask.
            made.set_permissions(Permissions::from_mode(0o755))?;
            sync(above(folder))
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if !absent(&error) => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn write(path: &Path, content: &[u8], mode: u32, (user, group): (u32, u32)) -> io::Result<()> {
    make_above(path)?;
    let OpenPath { path, _folder } = &held(path)?;
    let beside = beside(path);
    gone(&beside)?;
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(content)?;
        fchown(&file, Some(user), Some(group))?;
        // After the owner: changing the owner clears some mode bits.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        sync(above(path))
    })();
    if written.is_err() {
        // A partial file must not use space on a full disk.
        let _ = gone(&beside);
    }
    written
}

pub(super) fn set_mode(path: &Path, mode: u32, (user, group): (u32, u32)) -> io::Result<()> {
    let OpenPath { path, _folder } = &held(path)?;
    if fs::symlink_metadata(path)?.is_symlink() {
        return lchown(path, Some(user), Some(group));
    }
    // The open file is checked and changed, whatever is renamed in between.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    fchown(&file, Some(user), Some(group))?;
    file.set_permissions(Permissions::from_mode(mode))
}

pub(super) fn link(path: &Path, target: &str) -> io::Result<()> {
    make_above(path)?;
    let OpenPath { path, _folder } = &held(path)?;
    let beside = beside(path);
    gone(&beside)?;
    symlink(target, &beside)?;
    if let Err(error) = fs::rename(&beside, path) {
        let _ = gone(&beside);
        return Err(error);
    }
    sync(above(path))
}

pub(super) fn remove(path: &Path) -> io::Result<bool> {
    let held = match held(path) {
        Ok(held) => held,
        Err(error) if absent(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    let path = &held.path;
    // A crash may have left the temporary file.
    gone(&beside(path))?;
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if absent(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    if found.is_dir() {
        // A volume may be mounted in there: its content is not ours to delete.
        if let Some(mounted) = mounted_in(&path.canonicalize()?, &fs::read("/proc/self/mountinfo")?) {
            return Err(io::Error::new(
                ErrorKind::ResourceBusy,
                format!("something is mounted at {}: unmount it first", mounted.display()),
            ));
        }
        fs::remove_dir_all(path)?;
    } else {
        fs::remove_file(path)?;
    }
    sync(above(path))?;
    Ok(true)
}

/// The kernel decides whether the directory is empty, at the moment of its removal.
pub(super) fn remove_empty(path: &Path) -> io::Result<bool> {
    let held = match held(path) {
        Ok(held) => held,
        Err(error) if absent(&error) => return Ok(true),
        Err(error) => return Err(error),
    };
    let path = &held.path;
    let removed = match fs::remove_dir(path) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            // If that fails, the directory stays.
            let _ = remove_leftovers(path);
            fs::remove_dir(path)
        }
        removed => removed,
    };
    match removed {
        Ok(()) => sync(above(path)).map(|()| true),
        Err(error) if absent(&error) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes temporary files of crashed writes, if the directory has no other entry.
fn remove_leftovers(folder: &Path) -> io::Result<()> {
    // Held open: its owner could replace it by a link.
    let flags = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
    let folder = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    if !list(&folder)?.is_empty() {
        return Ok(());
    }
    for entry in fs::read_dir(&folder)? {
        let name = entry?.file_name();
        if is_leftover(&name.to_string_lossy()) {
            // A directory of that name is not ours, and stays.
            let _ = gone(&folder.join(name));
        }
    }
    Ok(())
}

/// A mount point at or below that directory, from the kernel's list of mounts.
fn mounted_in(path: &Path, mounts: &[u8]) -> Option<PathBuf> {
    let mounts = String::from_utf8_lossy(mounts).into_owned();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped).map(PathBuf::from);
    points.into_iter().find(|point| point.starts_with(path))
}

/// The kernel escapes blanks and similar characters as octal numbers.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

pub(super) fn list(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| !is_leftover(name));
    names.sort();
    Ok(names)
}

/// Whether the name is that of a temporary file which a crash left: see [`beside`].
fn is_leftover(name: &str) -> bool {
    name.strip_prefix(".fleetwright-").is_some_and(|rest| rest.len() == 16)
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    make_above(to)?;
    fs::rename(from, to)?;
    sync(above(to))?;
    if above(from) == above(to) { Ok(()) } else { sync(above(from)) }
}

pub(super) fn lockable(path: &Path) -> io::Result<File> {
    make_above(path)?;
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

pub(super) fn unpack(from: &Path, into: &Path, strip: u32) -> io::Result<()> {
    let file = open(from)?.ok_or(ErrorKind::NotFound)?;
    make_above(into)?;
    DirBuilder::new().mode(0o755).create(into)?;
    fs::set_permissions(into, Permissions::from_mode(0o755))?;
    archive::each(file, strip, |entry, path| {
        let at = into.join(path);
        make_inside(into, above(&at))?;
        let mode = entry.header().mode()? & 0o7777;
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            make_inside(into, &at)?;
            return fs::set_permissions(&at, Permissions::from_mode(mode));
        }
        // A later entry of the same name replaces the one before, and is never written through a link.
        gone(&at)?;
        if kind.is_symlink() {
            let target = entry.link_name()?.ok_or_else(|| archive::refused(&path, "is a link without a target"))?;
            return symlink(target, &at);
        }
        if kind.is_hard_link() {
            let target = entry.link_name()?.ok_or_else(|| archive::refused(&path, "is a link without a target"))?;
            let inside = archive::inside(&target, strip)?;
            let source = into.join(inside);
            make_inside(into, above(&source))?;
            return fs::hard_link(source, &at);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&at)?;
        io::copy(entry, &mut file)?;
        fchown(&file, Some(0), Some(0))
            .or_else(|error| if error.kind() == ErrorKind::PermissionDenied { Ok(()) } else { Err(error) })?;
        file.set_permissions(Permissions::from_mode(mode))
    })?;
    // One sync for all files: one sync per file would take minutes for large archives.
    rustix::fs::syncfs(File::open(into)?)?;
    sync(above(into))
}

/// Creates the directories down to that one, and refuses to follow a link: an archive could lead out of its directory with one.
fn make_inside(into: &Path, folder: &Path) -> io::Result<()> {
    let inside =
        folder.strip_prefix(into).map_err(|_| archive::refused(&folder.display(), "leads out of the folder"))?;
    let mut at = into.to_owned();
    for part in inside {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(archive::refused(&inside.display(), "goes through a path that is not a folder")),
            Err(error) if absent(&error) => {
                DirBuilder::new().mode(0o755).create(&at)?;
                fs::set_permissions(&at, Permissions::from_mode(0o755))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_in_a_folder_is_seen() {
        let mounts = b"36 35 98:0 / /var/lib/kubelet/pods/1/volume\\040one rw,noatime - ext3 /dev/root rw\n37 35 0:5 / /var/lib/other rw - tmpfs t rw\n";
        let in_kubelet = mounted_in(Path::new("/var/lib/kubelet"), mounts);
        assert_eq!(in_kubelet.as_deref(), Some(Path::new("/var/lib/kubelet/pods/1/volume one")));
        assert_eq!(mounted_in(Path::new("/var/lib/oth"), mounts), None);
        assert_eq!(mounted_in(Path::new("/var/lib/other"), mounts).as_deref(), Some(Path::new("/var/lib/other")));
    }
}

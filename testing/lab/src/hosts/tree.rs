//! The files of a host at one moment, for comparisons.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use aws_lc_rs::digest::{Context, SHA256};

/// The properties of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The type and permission bits.
    pub mode: u32,
    /// The uid of the owner.
    pub user: u32,
    /// The gid of the owner.
    pub group: u32,
    /// The digest of a file, the target of a link, or the type of another entry.
    pub content: String,
}

/// All files, folders and links, by path. File systems of the kernel (`/proc`, `/sys`, `/dev`) and files that the next boot removes (`/run`,
/// `/tmp`) are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Reads the tree below a folder.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.walk(root, "")?;
        Ok(tree)
    }

    /// The entry at a path.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// All paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The tree without these paths and everything below them.
    #[must_use]
    pub fn without(mut self, paths: &[&str]) -> Self {
        let below =
            |path: &str, top: &str| path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
        self.entries.retain(|path, _| !paths.iter().any(|top| below(path, top)));
        self
    }

    /// The differences of a later tree, a line for each path.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (path, was) in &self.entries {
            match later.entries.get(path) {
                None => changes.push(format!("{path} is gone")),
                Some(is) if is != was => changes.push(format!("{path} was {was:?} and is {is:?}")),
                Some(_) => {}
            }
        }
        let new = later.entries.keys().filter(|path| !self.entries.contains_key(*path));
        changes.extend(new.map(|path| format!("{path} is new")));
        changes.sort();
        changes
    }

    fn walk(&mut self, root: &Path, below: &str) -> Result<()> {
        let folder = root.join(below.trim_start_matches('/'));
        let listed = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !below.is_empty() => return Ok(()),
            listed => listed.with_context(|| format!("cannot list {}", folder.display()))?,
        };
        for entry in listed {
            let path = format!("{below}/{}", entry?.file_name().to_string_lossy());
            if ["/proc", "/sys", "/dev", "/run", "/tmp"].contains(&path.as_str()) {
                continue;
            }
            let place = root.join(path.trim_start_matches('/'));
            // The host continues to run: a file that vanishes during the scan is skipped.
            let Ok(found) = fs::symlink_metadata(&place) else { continue };
            let content = if found.is_dir() {
                self.walk(root, &path)?;
                "folder".to_owned()
            } else if found.is_symlink() {
                format!("link to {}", fs::read_link(&place)?.display())
            } else if found.is_file() {
                match digest(&place) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    read => read.with_context(|| format!("cannot read {}", place.display()))?,
                }
            } else if found.file_type().is_socket() || found.file_type().is_fifo() {
                "socket".to_owned()
            } else {
                "device".to_owned()
            };
            self.entries.insert(path, Entry { mode: found.mode(), user: found.uid(), group: found.gid(), content });
        }
        Ok(())
    }
}

/// SHA-256 of a file, in lower-case hex.
pub(crate) fn digest(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut sum = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(hex(sum.finish().as_ref()));
        }
        sum.update(&buffer[..read]);
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_new_gone_or_changed_is_reported_and_the_rest_is_not() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        for folder in ["etc", "proc", "var"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        write("etc/stays", "1");
        write("etc/goes", "1");
        write("etc/changes", "1");
        write("etc/opens", "1");
        write("proc/uptime", "1");
        write("var/log", "1");
        let before = Tree::read(root.path()).unwrap();
        fs::remove_file(root.path().join("etc/goes")).unwrap();
        write("etc/changes", "2");
        write("etc/comes", "1");
        write("proc/uptime", "2");
        write("var/log", "2");
        fs::set_permissions(root.path().join("etc/opens"), fs::Permissions::from_mode(0o666)).unwrap();
        let after = Tree::read(root.path()).unwrap().without(&["/var/log"]);
        let changes = before.clone().without(&["/var/log"]).changes(&after);
        let about: Vec<_> = changes.iter().map(|change| change.split_whitespace().next().unwrap()).collect();
        assert_eq!(about, ["/etc/changes", "/etc/comes", "/etc/goes", "/etc/opens"], "{changes:#?}");
        assert!(before.changes(&before.clone()).is_empty());
    }
}

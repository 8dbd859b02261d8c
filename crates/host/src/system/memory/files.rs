//! Files, directories and links.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::ops::Bound;
use std::sync::Arc;

use super::Content;
use super::content::name;
use super::machine::Machine;
use crate::system::{PathKind, Stat};

/// An entry of the file system.
#[derive(Clone, Debug)]
pub(super) struct Node {
    thing: NodeContent,
    mode: u32,
    owner: Arc<str>,
    group: Arc<str>,
    pub(super) changed: i64,
}

#[derive(Clone, Debug)]
enum NodeContent {
    File(Content),
    Folder,
    /// A directory into which a claimed archive was unpacked: every path in it exists.
    Pretended,
    Link(Arc<str>),
}

pub(super) type Files = BTreeMap<Arc<str>, Node>;

/// The directories of a bare host.
const BARE: &[&str] = &[
    "/boot",
    "/etc",
    "/etc/systemd",
    "/etc/systemd/system",
    "/opt",
    "/root",
    "/run",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/local",
    "/usr/local/bin",
    "/usr/sbin",
    "/var",
    "/var/lib",
    "/var/lib/dpkg",
    "/var/lib/dpkg/updates",
];

pub(super) fn bare() -> Files {
    let folder = Node { thing: NodeContent::Folder, mode: 0o755, owner: name("root"), group: name("root"), changed: 0 };
    BARE.iter().map(|path| (name(path), folder.clone())).collect()
}

impl Machine {
    /// The content of a file, also through links to it.
    pub(super) fn content(&self, path: &str) -> Option<&Content> {
        match &self.files.get(path)?.thing {
            NodeContent::File(content) => Some(content),
            NodeContent::Link(target) if target.starts_with('/') => match &self.files.get(target)?.thing {
                NodeContent::File(content) => Some(content),
                _ => None,
            },
            _ => None,
        }
    }

    /// Reads a file, as [`crate::System::read`] does.
    pub fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(content) = self.content(path) else { return Ok(None) };
        if content.size() > limit {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("{} bytes, more than {limit}", content.size()),
            ));
        }
        Ok(Some(content.bytes().to_vec()))
    }

    /// The metadata of a path, as [`crate::System::stat`] returns it.
    pub fn stat(&self, path: &str) -> Option<Stat> {
        let Some(node) = self.files.get(path) else {
            return self.pretended(path).then(|| Stat {
                kind: PathKind::File,
                mode: 0o755,
                owner: "root".to_owned(),
                group: "root".to_owned(),
                size: 0,
                changed: 0,
            });
        };
        let (kind, size) = match &node.thing {
            NodeContent::File(content) => (PathKind::File, content.size()),
            NodeContent::Folder | NodeContent::Pretended => (PathKind::Folder, 0),
            NodeContent::Link(target) => (PathKind::Link(target.to_string()), target.len() as u64),
        };
        let (owner, group) = (node.owner.to_string(), node.group.to_string());
        Some(Stat { kind, mode: node.mode, owner, group, size, changed: node.changed })
    }

    fn pretended(&self, path: &str) -> bool {
        let mut above = path;
        while let Some((folder, _)) = above.rsplit_once('/') {
            if let Some(node) = self.files.get(folder) {
                return matches!(node.thing, NodeContent::Pretended);
            }
            above = folder;
        }
        false
    }

    pub(super) fn sha256(&self, path: &str) -> io::Result<Option<String>> {
        Ok(self.content(path).map(|content| content.sha256().to_owned()))
    }

    /// Writes a file regardless of faults, and creates its parent directories.
    pub fn put(&mut self, path: &str, content: &[u8], mode: u32) {
        // Fails only if a directory is at the file's path.
        let _ = self.write(path, Content::of(path, content), mode, "root", "root");
    }

    pub(super) fn write(
        &mut self,
        path: &str,
        content: Content,
        mode: u32,
        owner: &str,
        group: &str,
    ) -> io::Result<()> {
        if self.is_folder(path) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        self.make_above(path)?;
        self.place(path, NodeContent::File(content), mode, owner, group);
        Ok(())
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        if self.is_folder(path) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        self.make_above(path)?;
        self.place(path, NodeContent::Link(name(target)), 0o777, "root", "root");
        Ok(())
    }

    /// Sets mode and owner, as [`crate::System::set_mode`] does.
    pub fn set_mode(&mut self, path: &str, mode: u32, owner: &str, group: &str) -> io::Result<()> {
        let changed = self.tick();
        let node = self.files.get_mut(path).ok_or(io::ErrorKind::NotFound)?;
        *node = Node { mode, owner: name(owner), group: name(group), changed, thing: node.thing.clone() };
        Ok(())
    }

    /// Removes a file, a link or a directory with its content; false if the path does not exist.
    pub fn remove(&mut self, path: &str) -> bool {
        for inside in self.under(path) {
            self.files.remove(&inside);
        }
        self.files.remove(path).is_some()
    }

    /// Removes a directory if it is empty; false if it has an entry.
    pub(super) fn remove_empty(&mut self, path: &str) -> bool {
        let empty = self.under(path).is_empty();
        if empty && self.is_folder(path) {
            self.files.remove(path);
        }
        empty
    }

    /// Removes a part of a directory, as an interrupted removal does.
    pub(super) fn remove_half(&mut self, path: &str) {
        let inside = self.under(path);
        let half = inside.len() / 2;
        for path in inside.into_iter().rev().take(half) {
            self.files.remove(&path);
        }
    }

    /// The names in a directory.
    pub fn list(&self, path: &str) -> Vec<String> {
        let above = format!("{path}/");
        self.under(path)
            .iter()
            .filter_map(|inside| inside.strip_prefix(&above))
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let Some(node) = self.files.get(from).cloned() else { return Err(io::ErrorKind::NotFound.into()) };
        let folder = matches!(node.thing, NodeContent::Folder | NodeContent::Pretended);
        if folder && self.files.contains_key(to) && !self.under(to).is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        if !folder && self.is_folder(to) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        self.make_above(to)?;
        for inside in self.under(from) {
            if let Some(node) = self.files.remove(&inside) {
                self.files.insert(name(&format!("{to}{}", &inside[from.len()..])), node);
            }
        }
        self.files.remove(from);
        self.files.insert(name(to), node);
        Ok(())
    }

    pub(super) fn unpack(&mut self, archive: &str, into: &str, strip: u32) -> io::Result<()> {
        let content = self.content(archive).cloned().ok_or(io::ErrorKind::NotFound)?;
        self.make_above(&format!("{into}/x"))?;
        if matches!(content, Content::Claimed { .. }) {
            self.place(into, NodeContent::Pretended, 0o755, "root", "root");
            return Ok(());
        }
        crate::system::archive::each(content.bytes(), strip, |entry, path| {
            let at = format!("{into}/{path}");
            let mode = entry.header().mode()? & 0o7777;
            if entry.header().entry_type().is_dir() {
                self.make_above(&format!("{at}/x"))?;
                self.place(&at, NodeContent::Folder, mode, "root", "root");
            } else if let Some(target) = entry.link_name()? {
                self.link(&at, &target.to_string_lossy())?;
            } else {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                self.write(&at, Content::of(&at, &bytes), mode, "root", "root")?;
            }
            Ok(())
        })
    }

    /// Every file, directory and link with its whole state, to compare a host with its earlier state.
    pub fn tree(&self) -> BTreeMap<String, String> {
        let shown = |node: &Node| {
            let thing = match &node.thing {
                NodeContent::File(content) => format!("file {}", content.sha256()),
                NodeContent::Folder | NodeContent::Pretended => "folder".to_owned(),
                NodeContent::Link(target) => format!("link {target}"),
            };
            format!("{thing} {:04o} {} {}", node.mode, node.owner, node.group)
        };
        self.files.iter().map(|(path, node)| (path.to_string(), shown(node))).collect()
    }

    fn place(&mut self, path: &str, thing: NodeContent, mode: u32, owner: &str, group: &str) {
        let node = Node { thing, mode, owner: name(owner), group: name(group), changed: self.tick() };
        self.files.insert(name(path), node);
    }

    fn is_folder(&self, path: &str) -> bool {
        self.files.get(path).is_some_and(|node| matches!(node.thing, NodeContent::Folder | NodeContent::Pretended))
    }

    fn make_above(&mut self, path: &str) -> io::Result<()> {
        let mut ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0).collect();
        ends.retain(|end| !self.is_folder(&path[..*end]));
        for end in ends {
            if self.files.contains_key(&path[..end]) {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            self.place(&path[..end], NodeContent::Folder, 0o755, "root", "root");
        }
        Ok(())
    }

    pub(super) fn under(&self, path: &str) -> Vec<Arc<str>> {
        let above = format!("{path}/");
        let from = (Bound::Included(above.as_str()), Bound::Unbounded);
        self.files
            .range::<str, _>(from)
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(&above))
            .cloned()
            .collect()
    }
}

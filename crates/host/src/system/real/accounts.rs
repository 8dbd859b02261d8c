//! Users and groups of the host, from its own files.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Names and numbers, read when first needed and again when a name is missing: a package may have just created it.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, u32>,
    read: bool,
}

impl Accounts {
    /// The numbers of a user and a group, which may be given as numbers.
    pub(super) fn numbers(&mut self, owner: &str, group: &str) -> io::Result<(u32, u32)> {
        self.read_once();
        let known = |accounts: &Self| {
            let user = accounts.users.get(owner).copied().or_else(|| owner.parse().ok());
            let group = accounts.groups.get(group).copied().or_else(|| group.parse().ok());
            (user, group)
        };
        if let (Some(user), Some(group)) = known(self) {
            return Ok((user, group));
        }
        self.read();
        match known(self) {
            (Some(user), Some(group)) => Ok((user, group)),
            (None, _) => Err(io::Error::new(io::ErrorKind::NotFound, format!("user {owner} not found on the host"))),
            (_, None) => Err(io::Error::new(io::ErrorKind::NotFound, format!("group {group} not found on the host"))),
        }
    }

    /// The name of a user, or its number.
    pub(super) fn user(&mut self, number: u32) -> String {
        self.read_once();
        named(&self.users, number)
    }

    /// The name of a group, or its number.
    pub(super) fn group(&mut self, number: u32) -> String {
        self.read_once();
        named(&self.groups, number)
    }

    fn read_once(&mut self) {
        if !self.read {
            self.read();
        }
    }

    fn read(&mut self) {
        self.users = table("/etc/passwd");
        self.groups = table("/etc/group");
        self.read = true;
    }
}

fn named(table: &BTreeMap<String, u32>, number: u32) -> String {
    let name = table.iter().find(|(_, known)| **known == number).map(|(name, _)| name.clone());
    name.unwrap_or_else(|| number.to_string())
}

/// Parses `NAME:x:NUMBER:…`; the first line of a name counts.
fn table(path: &str) -> BTreeMap<String, u32> {
    let text = fs::read(path).unwrap_or_default();
    let mut table = BTreeMap::from([("root".to_owned(), 0)]);
    for line in String::from_utf8_lossy(&text).lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(number)) = (fields.next(), fields.nth(1).and_then(|number| number.parse().ok())) {
            table.entry(name.to_owned()).or_insert(number);
        }
    }
    table
}

//! A host from an imported list, before it becomes a Machine.

use std::collections::BTreeMap;

use fleetwright_api::{
    Hardware, HostKeyPolicy, HostKeys, Jump, Machine, MachineSpec, PackageRef, Role, SecretRef, Ssh,
};

/// The hosts of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Imported {
    pub(super) hosts: Vec<Candidate>,
    /// Notes about entries that were not understood or were dropped.
    pub(super) notes: ImportNotes,
}

/// The notes of an import. Each is printed once, with its count and its first place.
#[derive(Clone, Debug, Default)]
pub(super) struct ImportNotes(Vec<(String, String, usize)>);

impl ImportNotes {
    pub(super) fn say(&mut self, place: impl Into<String>, message: impl Into<String>) {
        let message = message.into();
        match self.0.iter_mut().find(|(_, said, _)| *said == message) {
            Some((_, _, times)) => *times += 1,
            None => self.0.push((place.into(), message, 1)),
        }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(place, message, times)| match times {
            1 => format!("{place}: {message}"),
            2 => format!("{place} and 1 other place: {message}"),
            _ => format!("{place} and {} other places: {message}", times - 1),
        })
    }
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Candidate {
    /// The place in the list, for messages.
    pub(super) place: String,
    pub(super) name: String,
    pub(super) hostname: Option<String>,
    pub(super) addresses: Vec<String>,
    pub(super) port: Option<u16>,
    pub(super) user: Option<String>,
    pub(super) role: Role,
    pub(super) hardware: Hardware,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) node_labels: BTreeMap<String, String>,
    pub(super) provider_id: Option<String>,
    /// Host keys, as in a known_hosts file without the host.
    pub(super) host_keys: Vec<String>,
    /// The private key file, on the machine that the list was written for.
    pub(super) key_file: Option<String>,
    /// The Secret with the private key.
    pub(super) key_secret: Option<String>,
    pub(super) jumps: Vec<Hop>,
}

/// A jump host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) host_keys: Vec<String>,
}

impl Hop {
    /// Parses `[user@]host[:port]`, the notation of `ssh -J`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (user, rest) = text.rsplit_once('@').unwrap_or(("root", text));
        let (address, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, 22),
            Some((address, port)) => (address, port.strip_prefix(':')?.parse().ok()?),
            None => match rest.rsplit_once(':') {
                Some((address, port)) if !address.contains(':') => (address, port.parse().ok()?),
                _ => (rest, 22),
            },
        };
        let plain = |text: &str| !text.is_empty() && !text.contains([' ', '/', '%', '{', '"', '\'']);
        (plain(user) && plain(address)).then(|| Self {
            address: address.to_owned(),
            port,
            user: user.to_owned(),
            host_keys: vec![],
        })
    }
}

/// The options for turning candidates into Machines.
#[derive(Clone, Debug, Default)]
pub(super) struct ImportOptions {
    /// The Secret with the private key for hosts whose list names none.
    pub(super) key_secret: String,
    pub(super) trust_on_first_use: bool,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) packages: Vec<PackageRef>,
    pub(super) namespace: Option<String>,
}

impl Candidate {
    /// The Machine, or the reason why it cannot be created.
    pub(super) fn machine(&self, choices: &ImportOptions) -> Result<Machine, String> {
        if let Some(hop) = self.jumps.iter().find(|hop| hop.host_keys.is_empty()) {
            return Err(format!(
                "unknown host key of {}, the jump host of {}: pass a --known-hosts file that contains it (ssh-keyscan {} >>FILE, then verify it)",
                hop.address, self.name, hop.address
            ));
        }
        if self.host_keys.is_empty() && !choices.trust_on_first_use {
            return Err(format!(
                "unknown host key of {}: pass a --known-hosts file that contains it, pin the key that the host presents with --check --pin, or let the operator do so with --trust-on-first-use",
                self.name
            ));
        }
        let host_keys = match self.host_keys.as_slice() {
            [] => HostKeys { policy: HostKeyPolicy::TrustOnFirstUse, keys: vec![] },
            keys => HostKeys { policy: HostKeyPolicy::Pinned, keys: keys.to_vec() },
        };
        let jumps = self.jumps.iter().map(|hop| Jump {
            address: hop.address.clone(),
            port: hop.port,
            user: hop.user.clone(),
            key_ref: None,
            host_keys: hop.host_keys.clone(),
        });
        let ssh = Ssh {
            port: self.port.unwrap_or(22),
            user: self.user.clone().unwrap_or_else(|| "root".to_owned()),
            key_ref: SecretRef { name: self.key_secret.clone().unwrap_or_else(|| choices.key_secret.clone()) },
            host_keys,
            jumps: jumps.collect(),
        };
        let mut machine = Machine::new(
            &self.name,
            MachineSpec {
                role: self.role,
                hostname: self.hostname.clone(),
                addresses: self.addresses.clone(),
                hardware: self.hardware.clone(),
                ssh: Some(ssh),
                packages: choices.packages.clone(),
                node_labels: self.node_labels.clone(),
                provider_id: self.provider_id.clone(),
                ..MachineSpec::default()
            },
        );
        let labels: BTreeMap<_, _> =
            self.labels.iter().chain(&choices.labels).map(|(k, v)| (k.clone(), v.clone())).collect();
        machine.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
        machine.metadata.namespace.clone_from(&choices.namespace);
        Ok(machine)
    }
}

/// Whether a text may be the key of a label.
pub(super) fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let dns = |text: &str| {
        text.len() <= 253
            && text
                .split('.')
                .all(|part| is_word(part, false) && part.chars().all(|c| !c.is_ascii_uppercase() && c != '_'))
    };
    is_word(name, true) && prefix.is_none_or(dns)
}

/// Whether a text may be the value of a label.
pub(super) fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_word(value, true)
}

fn is_word(text: &str, dots: bool) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || (dots && c == '.');
    text.len() <= 63 && edge(text.chars().next()) && edge(text.chars().next_back()) && text.chars().all(inner)
}

/// A valid object name that is close to the text.
pub(super) fn object_name(text: &str) -> String {
    let lower = text.to_lowercase();
    let mapped: String = lower.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let parts = mapped.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(".").chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_on_the_way_are_read_as_ssh_has_them() {
        let hop = |text: &str| Hop::parse(text).map(|hop| format!("{}@{}:{}", hop.user, hop.address, hop.port));
        assert_eq!(hop("gate").as_deref(), Some("root@gate:22"));
        assert_eq!(hop("joe@gate.example:2222").as_deref(), Some("joe@gate.example:2222"));
        assert_eq!(hop("joe@[2001:db8::1]:2222").as_deref(), Some("joe@2001:db8::1:2222"));
        assert_eq!(hop("2001:db8::1").as_deref(), Some("root@2001:db8::1:22"));
        for bad in ["", "joe@", "a b", "gate:x", "{{ gate }}"] {
            assert_eq!(hop(bad), None, "{bad}");
        }
    }

    #[test]
    fn labels_are_judged_as_the_server_does() {
        for good in ["rack", "a/b", "x.example.com/Rack_1.b", "A"] {
            assert!(is_label_key(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a b", "/a", "A.B/c", "a/b/c", &"a".repeat(64)] {
            assert!(!is_label_key(bad), "{bad}");
        }
        assert!(is_label_value("") && is_label_value("1.2_3-x") && !is_label_value("a/b") && !is_label_value("-"));
    }

    #[test]
    fn names_become_names_of_objects() {
        assert_eq!(object_name("Web_01.Example.COM"), "web-01.example.com");
        assert_eq!(object_name("-a..b-"), "a.b");
        assert_eq!(object_name(&"a".repeat(80)).len(), 63);
    }
}

//! Host keys from `known_hosts` files.

use std::collections::BTreeMap;

use super::candidate::{Candidate, Hop};

/// The keys of hosts, by name, address or `[address]:port`.
#[derive(Debug, Default)]
pub(super) struct KnownHosts {
    keys: BTreeMap<String, Vec<String>>,
    /// The number of entries with hashed names: they cannot be listed, since the name is needed to match them.
    pub(super) hashed: usize,
}

impl KnownHosts {
    /// Parses a file. Entries that revoke keys or name authorities are not host keys.
    pub(super) fn parse(text: &str) -> Self {
        let mut known = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '@'])) {
            let mut words = line.split_whitespace();
            let (Some(names), Some(kind), Some(key)) = (words.next(), words.next(), words.next()) else { continue };
            if names.starts_with("|1|") {
                known.hashed += 1;
                continue;
            }
            for name in names.split(',').filter(|name| !name.contains(['*', '?', '!'])) {
                let keys = known.keys.entry(name.to_lowercase()).or_default();
                let key = format!("{kind} {key}");
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        known
    }

    fn of(&self, address: &str, port: u16) -> Vec<String> {
        let address = address.to_lowercase();
        let with_port = format!("[{address}]:{port}");
        let plain = (port == 22).then(|| self.keys.get(&address)).flatten();
        plain.or_else(|| self.keys.get(&with_port)).cloned().unwrap_or_default()
    }

    /// Adds the known keys to a host and its jump hosts.
    pub(super) fn fill(&self, host: &mut Candidate) {
        if host.host_keys.is_empty() {
            let port = host.port.unwrap_or(22);
            let names = host.addresses.iter().chain(&host.hostname).chain([&host.name]);
            host.host_keys = names.map(|name| self.of(name, port)).find(|keys| !keys.is_empty()).unwrap_or_default();
        }
        for Hop { address, port, host_keys, .. } in &mut host.jumps {
            if host_keys.is_empty() {
                *host_keys = self.of(address, *port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_address_name_and_port() {
        let known = KnownHosts::parse(
            "# c\n10.0.0.1,web1 ssh-ed25519 AAAA joe@x\n[10.0.0.2]:2222 ssh-rsa BBBB\n|1|abc= ssh-rsa CCCC\n@cert-authority * ssh-rsa DDDD\ngate ssh-ed25519 EEEE\n",
        );
        assert_eq!(known.hashed, 1);
        let mut web = Candidate { name: "web1".into(), addresses: vec!["192.0.2.1".into()], ..Candidate::default() };
        web.jumps = vec![Hop::parse("gate").unwrap()];
        known.fill(&mut web);
        assert_eq!(web.host_keys, ["ssh-ed25519 AAAA"]);
        assert_eq!(web.jumps[0].host_keys, ["ssh-ed25519 EEEE"]);
        let mut other = Candidate { addresses: vec!["10.0.0.2".into()], port: Some(2222), ..Candidate::default() };
        known.fill(&mut other);
        assert_eq!(other.host_keys, ["ssh-rsa BBBB"]);
        other = Candidate { addresses: vec!["10.0.0.2".into()], ..Candidate::default() };
        known.fill(&mut other);
        assert!(other.host_keys.is_empty(), "another port is another server");
    }
}

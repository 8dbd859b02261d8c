//! Networks in CIDR notation, and those of the meta cluster that control planes must not reach.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A network, such as `10.96.0.0/12`. Host bits are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Why a text is no valid network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a network: write an address and a prefix length of at least 1, such as 10.96.0.0/12 or fd00:10::/108"
)]
pub struct InvalidNetwork(String);

impl Network {
    /// The network of that prefix length that contains the address.
    ///
    /// # Errors
    /// The prefix is longer than an address, or 0: a network of everything leaves nothing to connect to.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, InvalidNetwork> {
        if prefix == 0 || prefix > width(address) {
            return Err(InvalidNetwork(format!("{address}/{prefix}")));
        }
        Ok(Self { address: masked(address, prefix), prefix })
    }

    /// The network of one address.
    pub fn host(address: IpAddr) -> Self {
        Self { address, prefix: width(address) }
    }

    /// Whether its addresses are IPv6.
    pub fn is_v6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// Whether it contains all addresses of the other.
    pub fn contains(&self, other: &Self) -> bool {
        self.is_v6() == other.is_v6()
            && self.prefix <= other.prefix
            && masked(other.address, self.prefix) == self.address
    }

    /// Whether both have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// The network with a prefix that is one bit shorter; `None` for a network of all addresses.
    fn parent(&self) -> Option<Self> {
        Self::new(self.address, self.prefix.checked_sub(1)?).ok()
    }

    /// The smallest network that contains all of these; `None` if they are of both families, or have no bit in common.
    pub fn covering(all: &[Self]) -> Option<Self> {
        let mut found = *all.first()?;
        while !all.iter().all(|one| found.contains(one)) {
            found = found.parent()?;
        }
        Some(found)
    }

    /// The fewest networks with exactly these addresses, sorted.
    pub fn merged(all: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort();
        let mut merged: Vec<Self> = Vec::new();
        for mut next in all {
            if merged.last().is_some_and(|last| last.contains(&next)) {
                continue;
            }
            // Two halves are merged into their parent.
            while let Some((last, parent)) = merged.last().copied().zip(next.parent()) {
                if last.prefix != next.prefix || last.parent() != Some(parent) {
                    break;
                }
                merged.pop();
                next = parent;
            }
            merged.push(next);
        }
        merged
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv6() { 128 } else { 32 }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let wrong = || InvalidNetwork(text.to_owned());
        match text.split_once('/') {
            Some((address, prefix)) => {
                let (address, prefix) = (address.parse().map_err(|_| wrong())?, prefix.parse().map_err(|_| wrong())?);
                Self::new(address, prefix).map_err(|_| wrong())
            }
            None => text.parse().map(Self::host).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The networks around the operators, from their flags. No field of a Cluster changes them: the author of a Cluster may be the one to keep out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MetaNetworks {
    /// Networks of the meta cluster: pods, Services and nodes. Empty if unknown.
    pub networks: Vec<Network>,
    /// Networks from which operators outside pods connect.
    pub operators: Vec<Network>,
    /// Namespace of the operators' pods, if they run in pods.
    pub operator_namespace: Option<String>,
}

/// Networks of a meta cluster that are unknown.
pub static UNKNOWN_NETWORKS: MetaNetworks =
    MetaNetworks { networks: Vec::new(), operators: Vec::new(), operator_namespace: None };

impl MetaNetworks {
    /// The first network of the meta cluster that the given one overlaps.
    pub fn overlapped(&self, network: &str) -> Option<Network> {
        let network: Network = network.parse().ok()?;
        self.networks.iter().copied().find(|one| one.overlaps(&network))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_read_without_host_bits_and_what_is_none_is_refused() {
        assert_eq!(network("10.96.7.1/12").to_string(), "10.96.0.0/12");
        assert_eq!(network("10.0.0.9").to_string(), "10.0.0.9/32");
        assert_eq!(network("fd00:1::7/64").to_string(), "fd00:1::/64");
        for bad in ["", "10.0.0.0/0", "10.0.0.0/33", "::/0", "10.0.0/8", "a/8", "10.0.0.0/8/8", "10.0.0.0/-1"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_overlap_if_one_is_in_the_other() {
        for (a, b, overlap) in [
            ("10.96.0.0/12", "10.97.0.0/16", true),
            ("10.97.0.0/16", "10.96.0.0/12", true),
            ("10.96.0.0/16", "10.97.0.0/16", false),
            ("10.96.0.0/12", "fd00::/8", false),
            ("fd00::/8", "fd00:10:96::/108", true),
        ] {
            assert_eq!(network(a).overlaps(&network(b)), overlap, "{a} {b}");
        }
    }

    #[test]
    fn merging_keeps_exactly_the_addresses() {
        let merged = |all: &[&str]| -> Vec<String> {
            Network::merged(all.iter().map(|one| network(one))).iter().map(Network::to_string).collect()
        };
        assert_eq!(merged(&["10.0.3.0/24", "10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.2.9"]), ["10.0.0.0/22"]);
        assert_eq!(merged(&["10.0.1.0/24", "10.0.2.0/24"]), ["10.0.1.0/24", "10.0.2.0/24"]);
        assert_eq!(
            merged(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::/64"]),
            ["10.0.0.1/32", "10.0.0.2/31", "fd00::/64"]
        );
        assert_eq!(merged(&["0.0.0.0/1", "128.0.0.0/1"]), ["0.0.0.0/1", "128.0.0.0/1"], "everything is no network");
    }

    #[test]
    fn a_covering_network_has_all_of_them() {
        let all = ["10.244.0.0/24", "10.244.9.0/24"].map(network);
        assert_eq!(Network::covering(&all), Some(network("10.244.0.0/20")));
        assert_eq!(Network::covering(&["10.0.0.0/8", "fd00::/8"].map(network)), None);
        assert_eq!(Network::covering(&[]), None);
    }
}

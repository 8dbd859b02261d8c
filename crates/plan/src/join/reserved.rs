//! Names and addresses for which no kubelet may serve.

use std::net::IpAddr;

use super::same;

/// Addresses of the API server and of Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiAddresses {
    /// The networks of Services, as CIDRs.
    pub services: Vec<String>,
    /// Addresses and names of the API server: the Service `kubernetes`, its endpoints, and the host of `server` in
    /// `cluster-values`.
    pub endpoints: Vec<String>,
}

impl ApiAddresses {
    /// Adds the host of a URL such as `https://10.0.0.1:6443`.
    pub fn add_url(&mut self, url: &str) {
        let rest = url.trim().split_once("://").map_or(url.trim(), |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host = match authority.strip_prefix('[') {
            Some(v6) => v6.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        };
        if !host.is_empty() {
            self.endpoints.push(host.to_owned());
        }
    }
}

/// The owner of a name or address, if no kubelet may serve for it. `other` returns the other Node or Machine that has it.
pub fn reserved(name: &str, api: &ApiAddresses, other: impl Fn(&str) -> Option<String>) -> Option<String> {
    let whose = match name.parse::<IpAddr>() {
        Ok(ip) => reserved_ip(ip, api),
        Err(_) => reserved_name(name),
    };
    let endpoint = || {
        let found = api.endpoints.iter().any(|endpoint| same(endpoint, name));
        found.then(|| "address of the API server".to_owned())
    };
    whose.or_else(endpoint).or_else(|| other(name))
}

fn reserved_ip(ip: IpAddr, api: &ApiAddresses) -> Option<String> {
    let ip = ip.to_canonical();
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return Some("loopback, unspecified or multicast address".to_owned());
    }
    let network = api.services.iter().find(|network| contains(network, ip))?;
    Some(format!("in the Service network {network}"))
}

/// The owner of the names of the API server inside a cluster, of Services, and of localhost. A wildcard includes names of others.
fn reserved_name(name: &str) -> Option<String> {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let label = |wanted: &str| name.split('.').any(|label| label == wanted);
    if name.contains('*') {
        return Some("wildcard".to_owned());
    }
    // The API servers of hosted clusters have the name `kube-apiserver` in their own namespace.
    if name.starts_with("kubernetes") || name.split('.').next() == Some("kube-apiserver") || label("svc") {
        return Some("name of the API server or of a Service".to_owned());
    }
    (name == "localhost" || name.starts_with("localhost.") || name.ends_with(".localhost"))
        .then(|| "name for localhost".to_owned())
}

/// Whether a network such as `10.96.0.0/16` contains that address.
fn contains(network: &str, ip: IpAddr) -> bool {
    let Some((base, bits)) = network.split_once('/') else { return false };
    let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    match (base, ip) {
        (IpAddr::V4(base), IpAddr::V4(ip)) if bits <= 32 => {
            let shift = |address| u64::from(u32::from(address)) >> (32 - bits);
            shift(base) == shift(ip)
        }
        (IpAddr::V6(base), IpAddr::V6(ip)) if bits <= 128 => {
            let shift = |address| u128::from(address).checked_shr(128 - bits).unwrap_or(0);
            shift(base) == shift(ip)
        }
        _ => false,
    }
}

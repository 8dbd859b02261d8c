//! The route to a machine's host: for the operator, and for the commands of a person.

use std::sync::Arc;

use fleetwright_api::{HostKeyPolicy, Machine, Ssh};
use fleetwright_transport::{Hop, Login, Route, TransportLimits, Trust};

use crate::hosts::HostLocation;
use crate::view::SecretView;

/// The key of a Secret with the private key, as Kubernetes names it.
const PRIVATE_KEY: &str = "ssh-privatekey";
/// The key with the certificate.
const CERTIFICATE: &str = "ssh-certificate";

/// The Secrets that are needed to reach a machine's host.
pub fn secrets(machine: &Machine) -> Vec<String> {
    let Some(ssh) = &machine.spec.ssh else { return Vec::new() };
    let jumps = ssh.jumps.iter().filter_map(|jump| jump.key_ref.as_ref());
    std::iter::once(&ssh.key_ref).chain(jumps).map(|secret| secret.name.clone()).collect()
}

/// The login in a Secret of that name.
///
/// # Errors
/// When the Secret does not exist, or has no key.
pub fn login(name: &str, secret: Option<&SecretView>) -> Result<Login, String> {
    let found = secret.ok_or_else(|| {
        format!("Secret {name} not found: create one of type kubernetes.io/ssh-auth with the private key")
    })?;
    let key = found.text(PRIVATE_KEY).ok_or_else(|| {
        format!("Secret {name} has no key {PRIVATE_KEY}: set it to the private key in OpenSSH format")
    })?;
    Ok(Login { key, certificate: found.text(CERTIFICATE) })
}

/// The address of a machine's host.
fn address(machine: &Machine) -> &str {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    machine.spec.addresses.first().map(String::as_str).or(machine.spec.hostname.as_deref()).unwrap_or(name)
}

/// The declared route to a machine's host. After it has changed, nothing is known of the host.
pub(crate) fn declared(machine: &Machine) -> Option<(String, Ssh)> {
    Some((address(machine).to_owned(), machine.spec.ssh.clone()?))
}

/// The route in a form for comparison: two machines with the same route have the same host. None for a machine without SSH.
pub(crate) fn way(machine: &Machine) -> Option<String> {
    let ssh = machine.spec.ssh.as_ref()?;
    let hop = |address: &str, port: u16| {
        // An IPv6 address has many forms.
        let plain = address.parse::<std::net::IpAddr>().map_or_else(|_| address.to_lowercase(), |ip| ip.to_string());
        format!("{plain} {port}")
    };
    let mut way: Vec<String> = ssh.jumps.iter().map(|jump| hop(&jump.address, jump.port)).collect();
    way.push(hop(address(machine), ssh.port));
    Some(way.join(", "))
}

/// The route to a machine's host.
///
/// # Errors
/// When a Secret is missing, or a key in it; the message names it.
pub fn route(machine: &Machine, secret: impl Fn(&str) -> Option<Arc<SecretView>>) -> Result<Route, String> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let Some(ssh) = &machine.spec.ssh else { return Err("spec.ssh is not set".to_owned()) };
    let login = |name: &str, field: &str| {
        login(name, secret(name).as_deref()).map_err(|why| format!("spec.ssh.{field}: {why}"))
    };
    let pinned = machine.status.as_ref().map(|status| status.host_keys.clone()).unwrap_or_default();
    let trust = match ssh.host_keys.policy {
        HostKeyPolicy::Pinned => Trust::Keys(ssh.host_keys.keys.clone()),
        HostKeyPolicy::TrustOnFirstUse if pinned.is_empty() => Trust::FirstUse,
        HostKeyPolicy::TrustOnFirstUse => Trust::Keys(pinned),
    };
    let address = address(machine).to_owned();
    let own = login(&ssh.key_ref.name, "keyRef")?;
    let mut jumps = Vec::with_capacity(ssh.jumps.len());
    for (at, jump) in ssh.jumps.iter().enumerate() {
        let login = match &jump.key_ref {
            Some(secret_ref) => login(&secret_ref.name, &format!("jumps[{at}].keyRef"))?,
            None => own.clone(),
        };
        jumps.push(Hop {
            address: jump.address.clone(),
            port: jump.port,
            user: jump.user.clone(),
            login,
            trust: Trust::Keys(jump.host_keys.clone()),
        });
    }
    let host = Hop { address, port: ssh.port, user: ssh.user.clone(), login: own, trust };
    Ok(Route { machine: name.to_owned(), host, jumps, limits: TransportLimits::default() })
}

/// The location of a machine, for the limits.
pub(crate) fn place(machine: &Machine) -> HostLocation {
    let hardware = &machine.spec.hardware;
    let word = |text: &Option<String>| text.as_deref().map(Arc::from);
    HostLocation { zone: word(&hardware.zone), rack: word(&hardware.rack) }
}

#[cfg(test)]
mod tests {
    use fleetwright_kit::View;
    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::Secret;
    use serde_json::json;

    use super::*;

    fn secret(data: &[(&str, &str)]) -> Arc<SecretView> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), bytes(value))).collect();
        Arc::new(SecretView::of(Secret { data: Some(data), ..Secret::default() }))
    }

    fn machine() -> Machine {
        let jump =
            |name: &str| json!({ "address": "10.0.0.1", "keyRef": { "name": name }, "hostKeys": ["ssh-ed25519 AAAA"] });
        serde_json::from_value(json!({
            "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "ssh": { "keyRef": { "name": "own" }, "jumps": [jump("way")] } },
        }))
        .unwrap()
    }

    #[test]
    fn of_a_secret_the_ssh_key_and_its_certificate_are_read_and_nothing_else() {
        let machine = machine();
        let found = |name: &str| match name {
            "own" => Some(secret(&[(PRIVATE_KEY, "k"), (CERTIFICATE, "c"), ("token", "hidden")])),
            "way" => Some(secret(&[(PRIVATE_KEY, "of the way"), ("tls.key", "hidden")])),
            _ => None,
        };
        let route = route(&machine, found).unwrap();
        assert_eq!(route.host.login, Login { key: "k".into(), certificate: Some("c".into()) });
        assert_eq!(route.jumps[0].login, Login { key: "of the way".into(), certificate: None });
        assert!(!format!("{route:?}").contains("of the way"), "keys are not printed");
    }

    #[test]
    fn a_secret_without_an_ssh_key_is_refused_and_none_of_it_is_shown() {
        let machine = machine();
        for (bad, field) in [("own", "spec.ssh.keyRef"), ("way", "spec.ssh.jumps[0].keyRef")] {
            let found = |name: &str| match name == bad {
                true => Some(secret(&[("token", "hidden"), ("password", "hidden")])),
                false => Some(secret(&[(PRIVATE_KEY, "k")])),
            };
            let why = route(&machine, found).unwrap_err();
            assert!(why.contains(field) && why.contains(bad) && why.contains(PRIVATE_KEY), "{why}");
            assert!(!why.contains("hidden") && !why.contains("token"), "{why}");
            let why = route(&machine, |name| Some(secret(&[(PRIVATE_KEY, "k")])).filter(|_| name != bad)).unwrap_err();
            assert!(
                why.contains(field) && why.contains(&format!("Secret {bad}")) && !why.contains(PRIVATE_KEY),
                "{why}"
            );
        }
    }
}

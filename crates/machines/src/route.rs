//! How a machine's host is reached.

use std::sync::Arc;

use fleetwright_api::{HostKeyPolicy, Machine, SecretRef};
use fleetwright_transport::{Hop, Limits, Login, Route, Trust};

use crate::hosts::Place;
use crate::view::SecretView;

/// The key of a Secret that holds the private key, as Kubernetes calls it.
const PRIVATE_KEY: &str = "ssh-privatekey";
/// The key that holds the certificate.
const CERTIFICATE: &str = "ssh-certificate";

/// Makes the route to a machine's host.
///
/// # Errors
/// Says which Secret is missing, or what in it.
pub fn route(machine: &Machine, secret: impl Fn(&str) -> Option<Arc<SecretView>>) -> Result<Route, String> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let Some(ssh) = &machine.spec.ssh else { return Err("spec.ssh: is missing".to_owned()) };
    let login = |secret_ref: &SecretRef, field: &str| {
        let at = &secret_ref.name;
        let found = secret(at).ok_or_else(|| {
            format!("spec.ssh.{field}: there is no Secret {at}: make one of type kubernetes.io/ssh-auth with the private key")
        })?;
        let key = found.text(PRIVATE_KEY).ok_or_else(|| {
            format!("spec.ssh.{field}: Secret {at} has no {PRIVATE_KEY}: put the private key there, in OpenSSH's form")
        })?;
        Ok::<_, String>(Login { key, certificate: found.text(CERTIFICATE) })
    };
    let pinned = machine.status.as_ref().map(|status| status.host_keys.clone()).unwrap_or_default();
    let trust = match ssh.host_keys.policy {
        HostKeyPolicy::Pinned => Trust::Keys(ssh.host_keys.keys.clone()),
        HostKeyPolicy::TrustOnFirstUse if pinned.is_empty() => Trust::FirstUse,
        HostKeyPolicy::TrustOnFirstUse => Trust::Keys(pinned),
    };
    let address = machine.spec.addresses.first().map(String::as_str);
    let address = address.or(machine.spec.hostname.as_deref()).unwrap_or(name).to_owned();
    let own = login(&ssh.key_ref, "keyRef")?;
    let mut jumps = Vec::with_capacity(ssh.jumps.len());
    for (at, jump) in ssh.jumps.iter().enumerate() {
        let login = match &jump.key_ref {
            Some(secret_ref) => login(secret_ref, &format!("jumps[{at}].keyRef"))?,
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
    Ok(Route { machine: name.to_owned(), host, jumps, limits: Limits::default() })
}

/// Where a machine stands, for the limits.
pub fn place(machine: &Machine) -> Place {
    let hardware = &machine.spec.hardware;
    let word = |text: &Option<String>| text.as_deref().map(Arc::from);
    Place { zone: word(&hardware.zone), rack: word(&hardware.rack) }
}

//! The parts of a pod's spec that containers use.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use fleetwright_kit::Key;
use k8s_openapi::api::core::v1::{Container, Probe as Declared};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::super::process::{Args, Probe};

/// The flags of a container, with `$(NAME)` replaced by its environment.
pub(super) fn args(container: &Container, pod: &Key, ip: Ipv4Addr, host: Ipv4Addr, node: Option<&str>) -> Args {
    let mut known: HashMap<&str, String> = HashMap::new();
    for variable in container.env.iter().flatten() {
        let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = match field.map(|field| field.field_path.as_str()) {
            Some("metadata.name") => pod.name.to_string(),
            Some("metadata.namespace") => pod.namespace.to_string(),
            Some("status.podIP") => ip.to_string(),
            Some("status.hostIP") => host.to_string(),
            Some("spec.nodeName") => node.unwrap_or_default().to_owned(),
            Some(_) => continue,
            None => expand(variable.value.as_deref().unwrap_or_default(), &known),
        };
        known.insert(&variable.name, value);
    }
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    Args::of(words.map(|word| expand(word, &known)))
}

/// Replaces `$(NAME)` in a word; unknown names stay as they are, `$$` is a dollar.
fn expand(word: &str, known: &HashMap<&str, String>) -> String {
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            match known.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// The request of a declared probe.
pub(super) fn probe(container: &Container, declared: &Declared) -> Probe {
    let port = |port: &IntOrString| match port {
        IntOrString::Int(number) => u16::try_from(*number).unwrap_or_default(),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let found = ports.find(|port| port.name.as_ref() == Some(name));
            found.and_then(|port| u16::try_from(port.container_port).ok()).unwrap_or_default()
        }
    };
    if let Some(get) = &declared.http_get {
        let https = get.scheme.as_deref() == Some("HTTPS");
        let path = get.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
        Probe::Http { https, port: port(&get.port), path }
    } else if let Some(tcp) = &declared.tcp_socket {
        Probe::Tcp(port(&tcp.port))
    } else {
        Probe::Other
    }
}

/// The time for which a probe may fail.
pub(super) fn patience(declared: &Declared) -> Duration {
    let number =
        |given: Option<i32>, default: u64| given.and_then(|given| u64::try_from(given).ok()).unwrap_or(default);
    let every = number(declared.period_seconds, 10).max(1);
    Duration::from_secs(every * number(declared.failure_threshold, 3).max(1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flags_know_the_pod() {
        let container: Container = serde_json::from_value(json!({
            "name": "etcd", "command": ["etcd"],
            "env": [
                { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                { "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
                { "name": "HOST", "value": "$(POD_NAME).etcd" },
            ],
            "args": ["--name=$(POD_NAME)", "--peer=https://$(HOST).x.svc:2380", "--at=$(POD_IP)", "--price=$$(POD_IP) $5 $(NONE)"],
        }))
        .unwrap();
        let args =
            args(&container, &Key::new("x", "etcd-0"), Ipv4Addr::new(127, 64, 0, 9), Ipv4Addr::LOCALHOST, Some("n"));
        assert_eq!(args.get("name"), Some("etcd-0"));
        assert_eq!(args.get("peer"), Some("https://etcd-0.etcd.x.svc:2380"));
        assert_eq!(args.get("at"), Some("127.64.0.9"));
        assert_eq!(args.get("price"), Some("$(POD_IP) $5 $(NONE)"));
    }
}

//! The configuration of a kubelet, read from the files of its host as a real kubelet reads them.

use std::collections::BTreeMap;

use fleetwright_host::system::PathKind;
use fleetwright_wire::OPT;
use serde_json::Value;

use crate::host::SimHost;

const UNIT: &str = "kubelet.service";

/// The configuration of a running kubelet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kubelet {
    pub(super) node: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Value>,
    pub(super) provider_id: Option<String>,
    pub(super) version: String,
    pub(super) boot_id: String,
    pub(super) kernel: String,
    /// The start time, by the host's clock.
    since: Option<i64>,
    /// The bootstrap credential.
    pub(super) bootstrap: Option<String>,
    /// The kubelet's own credential, which it writes after it got its certificate.
    pub(super) kubeconfig: Option<String>,
    pub(super) cert_dir: String,
}

impl Kubelet {
    /// The kubelet of a host; none if no kubelet runs.
    pub(super) fn of(host: &SimHost) -> Option<Self> {
        let machine = host.machine();
        if !machine.on() {
            return None;
        }
        let unit = machine.unit(UNIT);
        if unit.active != "active" {
            return None;
        }
        let read = |path: &str| {
            let bytes = machine.read(path, 1 << 20).ok().flatten()?;
            String::from_utf8(bytes).ok()
        };
        let text = read(&format!("/etc/systemd/system/{UNIT}"))
            .or_else(|| read(&format!("/lib/systemd/system/{UNIT}")))
            .unwrap_or_default();
        let flags = flags(&text);
        let flag = |name: &str| flags.iter().rev().find(|(flag, _)| flag == name).map(|(_, value)| value.clone());
        let config: Value = flag("config")
            .and_then(|path| read(&path))
            .and_then(|text| serde_saphyr::from_str(&text).ok())
            .unwrap_or_default();
        let facts = machine.facts();
        let labels = flags.iter().filter(|(flag, _)| flag == "node-labels").flat_map(|(_, labels)| {
            labels.split(',').filter_map(|label| label.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()))
        });
        let current = match machine.stat(&format!("{OPT}/kubelet/current")).map(|stat| stat.kind) {
            Some(PathKind::Link(target)) => target.rsplit('/').next().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        let version = current.rsplit_once('-').map_or("0.0.0", |(version, _)| version);
        Some(Self {
            node: flag("hostname-override").unwrap_or(facts.hostname),
            labels: labels.collect(),
            taints: config["registerWithTaints"].as_array().cloned().unwrap_or_default(),
            provider_id: config["providerID"].as_str().map(str::to_owned),
            version: format!("v{}", version.trim_start_matches('v')),
            boot_id: facts.boot_id,
            kernel: facts.kernel,
            since: unit.active_since,
            bootstrap: flag("bootstrap-kubeconfig"),
            kubeconfig: flag("kubeconfig"),
            cert_dir: flag("cert-dir").unwrap_or_else(|| "/var/lib/kubelet/pki".to_owned()),
        })
    }
}

fn flags(unit: &str) -> Vec<(String, String)> {
    let unit = unit.replace("\\\n", " ");
    let start = unit.lines().filter_map(|line| line.trim().strip_prefix("ExecStart=")).next_back().unwrap_or_default();
    start
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("--"))
        .filter_map(|flag| flag.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_over_broken_lines_and_the_last_start_counts() {
        let unit = "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  --config=/etc/k.yaml \\\n  --node-labels=a=b,c=d \\\n  -v 2\n";
        let expected = [("config", "/etc/k.yaml"), ("node-labels", "a=b,c=d")];
        assert_eq!(flags(unit), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}

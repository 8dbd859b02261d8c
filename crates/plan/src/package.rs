//! Package versions: their validation, and their rendering for one machine.

mod check;
mod paths;
mod quoting;
mod render;
mod set;
mod shell;
pub mod shipped;
mod template;
#[cfg(test)]
mod tests;
mod units;

use std::collections::BTreeMap;

use fleetwright_api::{Disruption, Facts, Machine, OnFailure};
use fleetwright_wire as wire;
use sha2::{Digest as _, Sha256};

pub use check::check;
pub use quoting::unquoted_values;
pub use render::render;
pub use set::{PackageMember, SetFinding, check_set};
pub(crate) use template::rendered;

/// A finding about a package version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The field, such as `spec.files[1].template`.
    pub field: String,
    /// The line of the text in that field, counted from 1, if the finding is about one.
    pub line: Option<usize>,
    /// Whether the package version is invalid.
    pub error: bool,
    /// What is wrong, what is allowed and what to do.
    pub message: String,
}

/// The variables of templates, besides `machine` and `facts`: only these.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The machine: its name, Node's name, role, addresses, labels, hardware, taints, provider ID.
    pub machine: &'a Machine,
    /// The facts of its host; none before the host was reached.
    pub facts: Option<&'a Facts>,
    /// The cluster's values, by name.
    pub cluster: &'a BTreeMap<String, String>,
}

/// Why a Secret's content is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretUnavailable {
    /// The Secret, or the key in it, does not exist.
    Missing,
    /// The Secret does not name the Machine in its annotation [`names::ALLOWED_MACHINES`](fleetwright_api::names::ALLOWED_MACHINES).
    NotShared,
}

/// The source of referenced contents.
pub trait Lookup {
    /// The key of a Secret, if it is shared with that Machine.
    ///
    /// # Errors
    /// The key does not exist, or the Secret is not shared with the Machine.
    fn secret(&self, machine: &str, name: &str, key: &str) -> Result<Vec<u8>, SecretUnavailable>;
    /// The key of a ConfigMap; none if the ConfigMap or the key does not exist.
    fn config_map(&self, name: &str, key: &str) -> Option<Vec<u8>>;
}

/// A package version rendered for one machine: the same bytes for the same inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The package for the host.
    pub package: wire::Package,
    /// Digest of the package.
    pub digest: String,
    /// Components that must be installed before.
    pub depends_on: Vec<String>,
    /// Components that must not be installed.
    pub conflicts_with: Vec<String>,
    /// The disruption of a change.
    pub disruption: Disruption,
    /// What to do if it does not work after a change.
    pub on_failure: OnFailure,
    /// Conditions of the Node that must be True for it to be healthy.
    pub node_conditions: Vec<String>,
    /// Declared timeouts.
    pub times: StepTimeouts,
    /// Whether one of its files has a bootstrap credential, to be filled in right before the installation.
    pub needs_credential: bool,
    /// Digest of the authorities that it joins with ([`bundle_digest`](crate::join::bundle_digest)), if it has them in
    /// a file, so that other authorities make another package.
    pub trusts: Option<String>,
}

/// Declared timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTimeouts {
    /// Timeout of one step on the host.
    pub apply: std::time::Duration,
    /// Timeout until all pods have terminated.
    pub drain: std::time::Duration,
    /// Timeout until the host is back after a reboot.
    pub reboot: std::time::Duration,
    /// Timeout until its health checks pass after a change.
    pub healthy_within: std::time::Duration,
    /// Interval of the health checks until then.
    pub healthy_every: std::time::Duration,
    /// How often in a row the health checks must pass.
    pub healthy_times: u32,
}

/// Why a package version cannot be rendered for a machine. No host is changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MachinePackageVersion {package}, {field}: {message}")]
pub struct RenderError {
    /// Name of the package version.
    pub package: String,
    pub field: String,
    /// The kind of the error.
    pub kind: RenderErrorKind,
    /// What is wrong and what to do.
    pub message: String,
}

/// Where an error of rendering can be fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenderErrorKind {
    /// On the host: the package uses facts, and the host was not yet reached. Observe it without this package first.
    WaitsForFacts,
    /// In the Secret, ConfigMap, label or cluster value that it refers to.
    Missing,
    /// In the Secret that it refers to, which is not shared with the machine.
    NotShared,
    /// In the package version: another one is needed.
    Invalid,
}

/// The most inputs that are distinguished; the others count as one.
const MAX_INPUTS: usize = 96;

impl Rendered {
    /// All rendered inputs, by name, each with the start of its digest, to compare two packages of one version.
    /// Files from Secrets have no digest: short secrets could be guessed from it.
    pub fn inputs(&self) -> BTreeMap<String, String> {
        let package = &self.package;
        let mut parts: Vec<(String, String)> = Vec::new();
        for file in &package.files {
            let shape = format!("{:04o} {}:{}", file.mode, file.owner, file.group);
            let digest = match file.secret {
                true => format!("secret {shape}"),
                false => short(&[shape.as_bytes(), file.content.bytes()]),
            };
            parts.push((format!("file {}", file.path), digest));
        }
        for unit in &package.units {
            parts.push((format!("unit {}", unit.name), short(&[&json(unit)])));
        }
        match &package.method {
            wire::Method::Script(script) => {
                let all = [("check", &script.check), ("apply", &script.apply), ("remove", &script.remove)];
                parts.extend(all.map(|(name, text)| (format!("script {name}"), short(&[text.as_bytes()]))));
            }
            method => parts.push(("method".to_owned(), short(&[&json(method)]))),
        }
        let settings = (&package.reference, &package.version, &package.health, &package.remove, package.keep);
        parts.push(("settings".to_owned(), short(&[&json(&settings)])));
        if parts.len() > MAX_INPUTS {
            let rest = parts.split_off(MAX_INPUTS);
            parts.push(("others".to_owned(), short(&[&json(&rest)])));
        }
        parts.into_iter().collect()
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// The start of a digest: enough to distinguish two contents, and short enough for a status.
fn short(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

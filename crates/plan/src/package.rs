//! Package versions: what is wrong with one, and what it means for one machine.

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

/// Something about a package version that a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where, such as `spec.files[1].template`.
    pub field: String,
    /// The line of the text in that field, counted from 1, if it is about one.
    pub line: Option<usize>,
    /// Whether it cannot work.
    pub error: bool,
    /// What is wrong, what is allowed and what to do.
    pub message: String,
}

/// What templates see, besides `machine` and `facts`: nothing but this.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The machine: its name, Node's name, role, addresses, labels, hardware, taints, provider ID.
    pub machine: &'a Machine,
    /// What its host says of itself; none before it was reached.
    pub facts: Option<&'a Facts>,
    /// The cluster's values, by name.
    pub cluster: &'a BTreeMap<String, String>,
}

/// Why a Secret's content is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretUnavailable {
    /// The Secret, or the key in it, does not exist.
    Missing,
    /// The Secret does not name the Machine in its annotation [`names::ALLOWED_MACHINES`](fleetwright_api::names::ALLOWED_MACHINES).
    NotShared,
}

/// Where referred contents come from.
pub trait Lookup {
    /// The key of a Secret, if it is shared with that Machine.
    ///
    /// # Errors
    /// It does not exist, or it is not shared with the Machine.
    fn secret(&self, machine: &str, name: &str, key: &str) -> Result<Vec<u8>, SecretUnavailable>;
    /// The key of a ConfigMap; none if one of both does not exist.
    fn config_map(&self, name: &str, key: &str) -> Option<Vec<u8>>;
}

/// A package version made for one machine: the same bytes for the same inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// What goes to the host.
    pub package: wire::Package,
    /// Its digest.
    pub digest: String,
    /// Components that must be in place before.
    pub depends_on: Vec<String>,
    /// Components that may not be there.
    pub conflicts_with: Vec<String>,
    /// What changing it does to what runs.
    pub disruption: Disruption,
    /// What happens when it does not work after a change.
    pub on_failure: OnFailure,
    /// Conditions of the Node that must be True for it to be healthy.
    pub node_conditions: Vec<String>,
    /// Times, as declared.
    pub times: StepTimeouts,
    /// One of its files holds a bootstrap credential, to be filled in right before it is installed.
    pub needs_credential: bool,
    /// The authorities that it joins with ([`join::trusts`](crate::join::bundle_digest)), if it does and has them in a file, so that it is another one with others.
    pub trusts: Option<String>,
}

/// Times, as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTimeouts {
    /// One step on the host.
    pub apply: std::time::Duration,
    /// Until all pods have left.
    pub drain: std::time::Duration,
    /// Until the host is back after a boot.
    pub reboot: std::time::Duration,
    /// Until its checks hold after a change.
    pub healthy_within: std::time::Duration,
    /// How often they are asked until then.
    pub healthy_every: std::time::Duration,
    /// How often in a row they must hold.
    pub healthy_times: u32,
}

/// Why a package version cannot be made for a machine. No host is touched then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MachinePackageVersion {package}, {field}: {message}")]
pub struct RenderError {
    /// The package version.
    pub package: String,
    /// Where in it.
    pub field: String,
    /// Who can help.
    pub kind: RenderErrorKind,
    /// What is wrong and what to do.
    pub message: String,
}

/// Who can help when a package version cannot be made for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenderErrorKind {
    /// The host: the package uses facts, and the host was not yet reached. Look at it without this package first.
    WaitsForFacts,
    /// Whoever brings the Secret, ConfigMap, label or cluster value that it refers to.
    Missing,
    /// The owner of the Secret that it refers to, which is not shared with the machine.
    NotShared,
    /// Nobody: it needs another package version.
    Invalid,
}

/// The most inputs that are told apart; the others count as one.
const MOST_INPUTS: usize = 96;

impl Rendered {
    /// Everything that was rendered, by name, each with the beginning of its digest: what differs between two packages of one version.
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
        if parts.len() > MOST_INPUTS {
            let rest = parts.split_off(MOST_INPUTS);
            parts.push(("others".to_owned(), short(&[&json(&rest)])));
        }
        parts.into_iter().collect()
    }
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// The beginning of a digest: enough to tell two contents apart, and short enough for a status.
fn short(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

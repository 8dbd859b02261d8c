//! The observation of a host, by the host itself. It is not trusted: it is shown to people, compared with the declared state, and bounded.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Mark, StepRecord};

/// Most elements of a list from a host: further ones are skipped.
pub const MAX_PARTS: usize = 1000;

/// Decodes the first elements of a list. An empty element has a few bytes in a line and hundreds in memory: a list
/// that is cut only after it was decoded
/// could fill the memory of an operator that has received only a few megabytes.
fn first_parts<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Parts<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Parts<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut parts = Vec::new();
            while parts.len() < MAX_PARTS {
                match list.next_element()? {
                    Some(part) => parts.push(part),
                    None => return Ok(parts),
                }
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(parts)
        }
    }

    deserializer.deserialize_seq(Parts(PhantomData))
}

/// Every managed fact of a host, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Facts about the host itself.
    pub facts: Facts,
    /// The owner mark; none if the host has no owner.
    #[serde(default)]
    pub owner: Option<Mark>,
    /// Components are installed and the host never had an owner: an earlier version, which wrote no owner mark, installed them.
    #[serde(default)]
    pub never_owned: bool,
    /// The requested components, in the order of the request, and after them those that we installed and that were not requested.
    #[serde(deserialize_with = "first_parts")]
    pub components: Vec<ComponentSeen>,
    /// The requested records, as far as they exist, and that of a running step.
    #[serde(deserialize_with = "first_parts")]
    pub records: Vec<StepRecord>,
}

/// Facts about a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Host name.
    pub hostname: String,
    /// Operating system, such as `debian-12`.
    pub os: String,
    /// Running kernel, as in `uname -r`.
    pub kernel: String,
    /// Architecture, as Kubernetes calls it: `amd64`, `arm64`.
    pub arch: String,
    /// Number of processors.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Boot id, which changes with every boot.
    pub boot_id: String,
    /// Machine id, which stays the same until the host is reinstalled.
    pub machine_id: String,
    /// The serial numbers of the machine and its board from its firmware; none if it has none, or only placeholders.
    #[serde(default, deserialize_with = "first_parts")]
    pub serials: Vec<String>,
    /// Seconds since 1970, by the host's clock.
    pub clock: i64,
    /// Free bytes in our directory.
    pub free: u64,
}

/// The observation of one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentSeen {
    /// Name of the component.
    pub component: String,
    /// The version that we installed last, and finished; none if we never did.
    #[serde(default)]
    pub installed: Option<Installed>,
    /// Earlier versions that are kept, newest first.
    #[serde(default, deserialize_with = "first_parts")]
    pub previous: Vec<Installed>,
    /// The installed version, by whomever it was installed.
    #[serde(default)]
    pub version: Option<String>,
    /// Deviations from the requested package; empty if none was requested.
    #[serde(default, deserialize_with = "first_parts")]
    pub deviations: Vec<Deviation>,
    /// Units that the package wants running and that do not run.
    #[serde(default, deserialize_with = "first_parts")]
    pub down: Vec<String>,
    /// The component is effective only after a reboot.
    #[serde(default)]
    pub needs_reboot: bool,
    /// Results of the health checks, if they were requested.
    #[serde(default, deserialize_with = "first_parts")]
    pub health: Vec<CheckSeen>,
}

/// An installed package.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installed {
    /// The name of its MachinePackageVersion.
    pub reference: String,
    /// Its version.
    pub version: String,
    /// Its digest.
    pub digest: String,
}

/// One deviation of a host from what is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deviation {
    /// The item, such as `file /etc/hosts mode` or `sysctl vm.swappiness`.
    pub what: String,
    /// The present state. Never the content of a file: its digest and size.
    pub found: String,
    /// The declared state.
    pub wanted: String,
    /// Its repair restarts a service or reboots the host.
    #[serde(default)]
    pub disrupts: bool,
}

/// The result of one health check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckSeen {
    /// The check, for people: `unit kubelet.service`.
    pub check: String,
    /// Whether the check passed.
    pub holds: bool,
    /// What was observed.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_list_of_a_host_takes_more_memory_than_its_first_parts() {
        // Structs are decoded from lists as well: five bytes for each component.
        let many = |part: &str| format!("[{}]", vec![part; 100 * MAX_PARTS].join(","));
        let seen: ComponentSeen = serde_json::from_str(&format!(
            r#"{{ "component": "a", "down": {}, "previous": {} }}"#,
            many(r#""""#),
            many(r#"["","",""]"#)
        ))
        .unwrap();
        assert_eq!((seen.down.len(), seen.previous.len()), (MAX_PARTS, MAX_PARTS));
        let facts = serde_json::to_string(&Facts::default()).unwrap();
        let line = format!(r#"{{ "facts": {facts}, "components": {}, "records": [] }}"#, many(r#"[""]"#));
        let seen: Observation = serde_json::from_str(&line).unwrap();
        assert_eq!(seen.components.len(), MAX_PARTS);
        assert!(seen.components.capacity() < 2 * MAX_PARTS, "nothing is reserved for the others");
        assert!(serde_json::from_str::<Observation>(&line.replace("[\"\"]", "[1]")).is_err());
    }
}

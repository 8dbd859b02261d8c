//! What a host says of itself. It is not trusted: it is shown to people, compared with what is wanted, and bounded.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Mark, StepRecord};

/// No list that a host tells has more parts: the others are passed over.
pub const MOST_PARTS: usize = 1000;

/// The first parts of a list. An empty part is a few bytes of a line and hundreds in memory: a list that is cut after it was read could fill the memory of
/// an operator that has only been sent a few megabytes.
fn first_parts<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Parts<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Parts<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut parts = Vec::new();
            while parts.len() < MOST_PARTS {
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
    /// What it is.
    pub facts: Facts,
    /// Who it belongs to; none if nobody claimed it.
    #[serde(default)]
    pub owner: Option<Mark>,
    /// Components are installed and the host never had an owner: an earlier version, which wrote no owner mark, installed them.
    #[serde(default)]
    pub never_owned: bool,
    /// The components that were asked about, in the order of the request, and after them those that we installed and that were not asked about.
    #[serde(deserialize_with = "first_parts")]
    pub components: Vec<ComponentSeen>,
    /// The records that were asked for, as far as they exist, and that of a step that runs now.
    #[serde(deserialize_with = "first_parts")]
    pub records: Vec<StepRecord>,
}

/// What a host is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Its own name.
    pub hostname: String,
    /// Operating system, such as `debian-12`.
    pub os: String,
    /// Running kernel, as `uname -r` says.
    pub kernel: String,
    /// Architecture, as Kubernetes calls it: `amd64`, `arm64`.
    pub arch: String,
    /// Processors.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Changes with every boot.
    pub boot_id: String,
    /// Stays the same until the host is installed anew.
    pub machine_id: String,
    /// The serial numbers of the machine and its board, as its firmware tells them; none if it does not, or only placeholders.
    #[serde(default, deserialize_with = "first_parts")]
    pub serials: Vec<String>,
    /// Seconds since 1970, by its clock.
    pub clock: i64,
    /// Free bytes where our files are.
    pub free: u64,
}

/// What is seen of one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentSeen {
    /// Which.
    pub component: String,
    /// What we installed last, and finished; none if we never did.
    #[serde(default)]
    pub installed: Option<Installed>,
    /// What was installed before and is kept, newest first.
    #[serde(default, deserialize_with = "first_parts")]
    pub previous: Vec<Installed>,
    /// The version that is there, whoever brought it.
    #[serde(default)]
    pub version: Option<String>,
    /// How it differs from the package that was asked about; empty if it was not asked about.
    #[serde(default, deserialize_with = "first_parts")]
    pub deviations: Vec<Deviation>,
    /// Units that the package wants running and that do not run.
    #[serde(default, deserialize_with = "first_parts")]
    pub down: Vec<String>,
    /// It is in place only after a boot.
    #[serde(default)]
    pub needs_reboot: bool,
    /// What its checks say, if they were asked for.
    #[serde(default, deserialize_with = "first_parts")]
    pub health: Vec<CheckSeen>,
}

/// A package that was installed.
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

/// One way in which a host differs from what is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deviation {
    /// What, such as `file /etc/hosts mode` or `sysctl vm.swappiness`.
    pub what: String,
    /// How it is. Never the content of a file: its digest and size.
    pub found: String,
    /// How it should be.
    pub wanted: String,
    /// Putting it right restarts or boots something.
    #[serde(default)]
    pub disrupts: bool,
}

/// What one check says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckSeen {
    /// Which, for people: `unit kubelet.service`.
    pub check: String,
    /// Whether it holds.
    pub holds: bool,
    /// What was seen.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_list_of_a_host_takes_more_memory_than_its_first_parts() {
        // Structs are read from lists as well: five bytes for each component.
        let many = |part: &str| format!("[{}]", vec![part; 100 * MOST_PARTS].join(","));
        let seen: ComponentSeen = serde_json::from_str(&format!(
            r#"{{ "component": "a", "down": {}, "previous": {} }}"#,
            many(r#""""#),
            many(r#"["","",""]"#)
        ))
        .unwrap();
        assert_eq!((seen.down.len(), seen.previous.len()), (MOST_PARTS, MOST_PARTS));
        let facts = serde_json::to_string(&Facts::default()).unwrap();
        let line = format!(r#"{{ "facts": {facts}, "components": {}, "records": [] }}"#, many(r#"[""]"#));
        let seen: Observation = serde_json::from_str(&line).unwrap();
        assert_eq!(seen.components.len(), MOST_PARTS);
        assert!(seen.components.capacity() < 2 * MOST_PARTS, "nothing is reserved for the others");
        assert!(serde_json::from_str::<Observation>(&line.replace("[\"\"]", "[1]")).is_err());
    }
}

//! How objects are printed.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

/// How to print objects that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Wide,
    Json,
    Yaml,
}

/// How to print what has no columns to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
    Yaml,
}

/// How to print an answer, which is no object of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextOrJson {
    Text,
    Json,
}

/// How to print what is only for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum JsonOrYaml {
    Json,
    Yaml,
}

impl Format {
    /// Whether the output is for programs.
    pub(crate) fn is_machine_readable(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }

    /// The objects, as a List or as documents.
    pub(crate) fn objects<K: Serialize>(self, objects: &[K]) -> anyhow::Result<String> {
        let values: Vec<_> = objects.iter().map(|object| json!(object)).collect();
        self.values(&values)
    }

    fn values(self, values: &[Value]) -> anyhow::Result<String> {
        match self {
            Self::Yaml => crate::yaml::documents(values),
            _ => {
                let list = json!({"apiVersion": "v1", "kind": "List", "items": values});
                Ok(serde_json::to_string_pretty(&list)? + "\n")
            }
        }
    }
}

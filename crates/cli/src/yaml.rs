//! Objects as YAML.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// The objects as documents of one file, each key in the order of the alphabet: the same objects are the same text.
pub(crate) fn documents<T: Serialize>(objects: &[T]) -> anyhow::Result<String> {
    let mut out = String::new();
    for object in objects {
        let value: Value = serde_json::to_value(object).context("an object is no JSON")?;
        out.push_str("---\n");
        out.push_str(&serde_saphyr::to_string(&value).context("an object is no YAML")?);
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }
    Ok(out)
}

//! Objects as YAML.

use anyhow::Context;
use serde_json::Value;

/// The objects as documents of one file, each key in the order of the alphabet: the same objects are the same text.
pub(crate) fn documents(objects: &[Value]) -> anyhow::Result<String> {
    let mut out = String::new();
    for object in objects {
        out.push_str("---\n");
        out.push_str(&serde_saphyr::to_string(object).context("an object is no YAML")?);
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }
    Ok(out)
}

//! Objects as YAML.

use anyhow::Context;
use serde_json::Value;

/// The objects as documents of one file, with sorted keys: the same objects give the same text.
pub(crate) fn documents(objects: &[Value]) -> anyhow::Result<String> {
    let mut out = String::new();
    for object in objects {
        out.push_str("---\n");
        out.push_str(&serde_saphyr::to_string(object).context("cannot write an object as YAML")?);
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }
    Ok(out)
}

/// The same without line folding: folded keys and certificates would change.
pub(crate) fn unfolded(objects: &[Value]) -> anyhow::Result<String> {
    let mut out = String::new();
    for object in objects {
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        let text = serde_saphyr::to_string_with_options(object, options).context("cannot write an object as YAML")?;
        out.push_str("---\n");
        out.push_str(text.trim_end());
        out.push('\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_of_many_characters_is_read_back_as_it_was() {
        let key = "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1JR0hBZ0VBTUJNR0J5cUdTTTQ5==".repeat(60);
        let secret = json!({ "kind": "Secret", "data": { "tls.crt": "", "tls.key": key } });
        let text = unfolded(&[secret.clone(), secret.clone()]).unwrap();
        assert!(text.lines().any(|line| line.contains(&key)), "it is on one line");
        let documents: Vec<&str> = text.split("---\n").filter(|part| !part.is_empty()).collect();
        assert_eq!(documents.len(), 2);
        for document in documents {
            assert_eq!(serde_saphyr::from_str::<Value>(document).unwrap(), secret);
        }
    }
}

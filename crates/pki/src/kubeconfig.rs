use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use crate::PemPair;

/// The credential of the user of a kubeconfig.
#[derive(Clone)]
pub enum Identity<'a> {
    /// A client certificate.
    Certificate {
        /// The certificate.
        cert_pem: &'a str,
        /// Its private key.
        key_pem: &'a str,
    },
    /// A bearer token.
    Token(&'a str),
    /// No credential.
    Anonymous,
}

impl<'a> From<&'a PemPair> for Identity<'a> {
    fn from(pair: &'a PemPair) -> Self {
        Self::Certificate { cert_pem: &pair.cert_pem, key_pem: &pair.key_pem }
    }
}

impl fmt::Debug for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate { .. } => "Certificate(..)",
            Self::Token(_) => "Token(..)",
            Self::Anonymous => "Anonymous",
        })
    }
}

/// A kubeconfig with one cluster, one user and one context, all embedded. It is JSON, which every YAML parser accepts.
pub fn kubeconfig(cluster: &str, server: &str, ca_pem: &str, identity: Identity<'_>) -> String {
    let user = match identity {
        Identity::Certificate { cert_pem, key_pem } => json!({
            "client-certificate-data": BASE64_STANDARD.encode(cert_pem),
            "client-key-data": BASE64_STANDARD.encode(key_pem),
        }),
        Identity::Token(token) => json!({ "token": token }),
        Identity::Anonymous => json!({}),
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": cluster, "cluster": {
            "server": server,
            "certificate-authority-data": BASE64_STANDARD.encode(ca_pem),
        }}],
        "users": [{ "name": cluster, "user": user }],
        "contexts": [{ "name": cluster, "context": { "cluster": cluster, "user": cluster } }],
        "current-context": cluster,
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfigs_current_context_leads_to_its_server_and_user() {
        let text = kubeconfig("fleet", "https://127.0.0.1:6443", "PEM", Identity::Token("secret"));
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["current-context"], config["contexts"][0]["name"]);
        assert_eq!(config["contexts"][0]["context"]["cluster"], config["clusters"][0]["name"]);
        assert_eq!(config["contexts"][0]["context"]["user"], config["users"][0]["name"]);
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
        assert_eq!(config["users"][0]["user"]["token"], "secret");
    }

    #[test]
    fn debug_output_holds_no_token() {
        assert!(!format!("{:?}", Identity::Token("secret")).contains("secret"));
    }
}

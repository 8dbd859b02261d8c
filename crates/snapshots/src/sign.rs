//! Signs requests for S3-compatible stores: AWS Signature Version 4.

use aws_lc_rs::hmac;
use jiff::Timestamp;
use jiff::fmt::strtime;
use sha2::{Digest as _, Sha256};

use crate::take::hex;

/// Credentials.
#[derive(Clone)]
pub(crate) struct AccessKeys {
    pub(crate) id: String,
    pub(crate) secret: String,
}

impl std::fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.id)
    }
}

/// The signed parts of a request.
pub(crate) struct Unsigned<'a> {
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    /// Encoded path, with the leading slash.
    pub(crate) path: &'a str,
    /// Encoded names and values, sorted by name.
    pub(crate) query: &'a str,
    /// Additional headers, in lower case.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    /// Digest of the body.
    pub(crate) sha256: &'a str,
}

/// The headers of the signed request.
pub(crate) fn sign(
    request: &Unsigned<'_>,
    keys: &AccessKeys,
    region: &str,
    now: Timestamp,
) -> [(&'static str, String); 3] {
    let time = strtime::format("%Y%m%dT%H%M%SZ", now).unwrap_or_default();
    let day = &time[..time.len().min(8)];
    let own = [("host", request.host), ("x-amz-content-sha256", request.sha256), ("x-amz-date", &time)];
    let mut headers: Vec<(&str, &str)> = own.into_iter().chain(request.headers.iter().copied()).collect();
    headers.sort_unstable();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let Unsigned { method, path, query, sha256, .. } = request;
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{sha256}");
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(Sha256::digest(canonical).as_slice()));
    let mut key = format!("AWS4{}", keys.secret).into_bytes();
    for part in [day, region, "s3", "aws4_request"] {
        key = code(&key, part);
    }
    let signature = hex(&code(&key, &text));
    let authorization =
        format!("AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}", keys.id);
    [("x-amz-content-sha256", (*sha256).to_owned()), ("x-amz-date", time), ("authorization", authorization)]
}

fn code(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// Percent-encodes a part of a path or query; a slash only in a query.
pub(crate) fn encoded(text: &str, slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if !slash => out.push('/'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// The examples of the documentation of Signature Version 4 for S3, of 24 May 2013.
    #[test]
    fn requests_are_signed_as_the_documentation_shows() {
        let keys = AccessKeys {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        };
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let host = "examplebucket.s3.amazonaws.com";
        let get = Unsigned {
            method: "GET",
            host,
            path: "/test.txt",
            query: "",
            headers: &[("range", "bytes=0-9")],
            sha256: EMPTY,
        };
        let signed = sign(&get, &keys, "us-east-1", now);
        assert!(
            signed[2].1.ends_with("Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
            "{signed:?}"
        );
        let list = Unsigned { path: "/", query: "max-keys=2&prefix=J", headers: &[], ..get };
        let signed = sign(&list, &keys, "us-east-1", now);
        assert!(
            signed[2].1.ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{signed:?}"
        );
        assert!(!format!("{keys:?}").contains("wJalr"));
    }

    #[test]
    fn paths_keep_their_slashes_and_queries_do_not() {
        assert_eq!(encoded("fleet/pay 01/ä", false), "fleet/pay%2001/%C3%A4");
        assert_eq!(encoded("fleet/pay", true), "fleet%2Fpay");
    }
}

//! Certificate authorities, leaf certificates, service-account keys and kubeconfigs; and sealed (encrypted) copies of keys.
//!
//! Everything is ECDSA P-256 and PEM: small, fast to generate, and supported by kube-apiserver, etcd, kubectl and rustls alike.

mod authority;
mod certificate;
mod der;
mod files;
mod kubeconfig;
mod request;
mod seal;

pub use authority::{Authority, Leaf, LeafUsage, PemPair, ServiceAccountKey};
pub use certificate::Certificate;
pub use files::write_private;
pub use kubeconfig::{Identity, kubeconfig};
pub use request::Request;
pub use seal::{SealKey, fingerprint};

/// An error of generating or reading certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key or certificate could not be generated, read or signed.
    #[error("{0}")]
    Certificate(#[from] rcgen::Error),
    /// The key of a certificate authority does not belong to its certificate.
    #[error("the private key does not belong to the certificate of the authority {0:?}")]
    KeyMismatch(String),
    /// A malformed certificate.
    #[error("not a well-formed certificate: {0}")]
    Malformed(String),
    /// A name that is not valid in a certificate.
    #[error("{0:?} cannot be a DNS name in a certificate")]
    DnsName(String),
    /// Encryption or decryption failed.
    #[error("{0}")]
    Seal(&'static str),
}

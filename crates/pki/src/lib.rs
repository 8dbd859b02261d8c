//! Certificate authorities, leaf certificates, service-account keys and kubeconfigs; and sealed (encrypted) copies of keys.
//!
//! Everything is ECDSA P-256 and PEM: small, quick to make, and read by kube-apiserver, etcd, kubectl and rustls alike.

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

/// What can go wrong while making or reading certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key or certificate could not be generated, read or signed.
    #[error("{0}")]
    Certificate(#[from] rcgen::Error),
    /// A certificate authority's key is not the one that its certificate was made for.
    #[error("the private key does not belong to the certificate of the authority {0:?}")]
    KeyMismatch(String),
    /// A certificate that is not well-formed.
    #[error("not a well-formed certificate: {0}")]
    Malformed(String),
    /// A name that a certificate cannot carry.
    #[error("{0:?} cannot be a DNS name in a certificate")]
    DnsName(String),
    /// Something could not be encrypted or decrypted.
    #[error("{0}")]
    Seal(&'static str),
}

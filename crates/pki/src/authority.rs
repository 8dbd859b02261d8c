use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SubjectPublicKeyInfo,
};

use crate::{Error, Request, der};

/// Hosts whose clocks lag a little must not refuse a new certificate.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A certificate authority: its certificate, and the key that signs leaf certificates.
pub struct Authority {
    cert_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A usage of a leaf certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafUsage {
    /// Presented by a TLS server.
    Server,
    /// Presented by a TLS client.
    Client,
}

/// The content of a leaf certificate. Kubernetes reads the common name as the user and the organizations as its groups.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The subject's common name.
    pub common_name: String,
    /// The subject's organizations, in order.
    pub organizations: Vec<String>,
    /// DNS names of a server.
    pub dns_names: Vec<String>,
    /// Addresses of a server.
    pub ips: Vec<IpAddr>,
    /// Usages of the certificate.
    pub usages: Vec<LeafUsage>,
    /// Lifetime from now on.
    pub lifetime: Duration,
}

impl Leaf {
    /// A year's client certificate for `user` in `groups`.
    pub fn client(user: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            common_name: user.into(),
            organizations: groups.into_iter().map(Into::into).collect(),
            dns_names: Vec::new(),
            ips: Vec::new(),
            usages: vec![LeafUsage::Client],
            lifetime: YEAR,
        }
    }

    /// A year's server certificate for `names` and `ips`.
    pub fn server(
        common_name: impl Into<String>,
        names: impl IntoIterator<Item = impl Into<String>>,
        ips: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        Self {
            common_name: common_name.into(),
            organizations: Vec::new(),
            dns_names: names.into_iter().map(Into::into).collect(),
            ips: ips.into_iter().collect(),
            usages: vec![LeafUsage::Server],
            lifetime: YEAR,
        }
    }
}

/// A certificate and its private key, both as PEM.
#[derive(Clone)]
pub struct PemPair {
    /// The certificate.
    pub cert_pem: String,
    /// The private key (PKCS #8).
    pub key_pem: String,
}

impl fmt::Debug for PemPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// The key pair that signs and verifies service-account tokens (ECDSA P-256, so ES256).
#[derive(Clone)]
pub struct ServiceAccountKey {
    /// The private key (PKCS #8).
    pub private_pem: String,
    /// The public key (SubjectPublicKeyInfo).
    pub public_pem: String,
}

impl ServiceAccountKey {
    /// Generates a key pair.
    pub fn generate() -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        Ok(Self { private_pem: key.serialize_pem(), public_pem: key.public_key_pem() })
    }

    /// Reads a private key and derives its public key.
    pub fn from_pem(private_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(private_pem)?;
        Ok(Self { private_pem: private_pem.to_owned(), public_pem: key.public_key_pem() })
    }
}

impl fmt::Debug for ServiceAccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountKey").field("public_pem", &self.public_pem).finish_non_exhaustive()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

impl Authority {
    /// A new self-signed authority, valid for ten years.
    pub fn new(common_name: &str) -> Result<Self, Error> {
        Self::lasting(common_name, 10 * YEAR)
    }

    /// As [`Authority::new`], with that lifetime.
    ///
    /// # Errors
    /// When the key cannot be generated.
    pub fn lasting(common_name: &str, lifetime: Duration) -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let mut params = validity(CertificateParams::default(), lifetime);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
        let cert = params.self_signed(&key)?;
        Ok(Self { cert_pem: cert.pem(), issuer: Issuer::new(params, key) })
    }

    /// Reads an authority's certificate and private key.
    ///
    /// # Errors
    /// When either is malformed, or the key is not the certificate's.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key_pem)?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(cert_pem.as_bytes())
            .map_err(|error| Error::Malformed(error.to_string()))?;
        let cert = pem.parse_x509().map_err(|error| Error::Malformed(error.to_string()))?;
        if cert.public_key().raw != key.subject_public_key_info() {
            return Err(Error::KeyMismatch(cert.subject().to_string()));
        }
        let issuer = Issuer::from_ca_cert_pem(cert_pem, key)?;
        Ok(Self { cert_pem: cert_pem.to_owned(), issuer })
    }

    /// The authority's certificate, for trust bundles.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The authority's private key.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs the subject and names of a request, for its key.
    ///
    /// # Errors
    /// When the kind of the key is not supported, or a name is invalid.
    pub fn sign(&self, request: &Request, usages: &[LeafUsage], lifetime: Duration) -> Result<String, Error> {
        let key = SubjectPublicKeyInfo::from_der(&request.key_der)?;
        let mut params = leaf(usages, lifetime);
        names(&mut params, &request.dns_names, &request.ips)?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let signed = der::with_subject(cert.der(), &request.subject_der, self.issuer.key())?;
        Ok(der::to_pem("CERTIFICATE", &signed))
    }

    /// Generates a key and signs a certificate for it.
    pub fn issue(&self, leaf: Leaf) -> Result<PemPair, Error> {
        let key = KeyPair::generate()?;
        let mut params = self::leaf(&leaf.usages, leaf.lifetime);
        names(&mut params, &leaf.dns_names, &leaf.ips)?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let subject = der::name(&leaf.organizations, &leaf.common_name);
        let signed = der::with_subject(cert.der(), &subject, self.issuer.key())?;
        Ok(PemPair { cert_pem: der::to_pem("CERTIFICATE", &signed), key_pem: key.serialize_pem() })
    }
}

fn leaf(usages: &[LeafUsage], lifetime: Duration) -> CertificateParams {
    let mut params = validity(CertificateParams::default(), lifetime);
    params.distinguished_name = DistinguishedName::new();
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let purpose = |usage: &LeafUsage| match usage {
        LeafUsage::Server => ExtendedKeyUsagePurpose::ServerAuth,
        LeafUsage::Client => ExtendedKeyUsagePurpose::ClientAuth,
    };
    params.extended_key_usages = usages.iter().map(purpose).collect();
    params
}

fn names(params: &mut CertificateParams, dns_names: &[String], ips: &[IpAddr]) -> Result<(), Error> {
    for name in dns_names {
        let name = name.as_str().try_into().map_err(|_| Error::DnsName(name.clone()))?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params.subject_alt_names.extend(ips.iter().map(|ip| SanType::IpAddress(*ip)));
    Ok(())
}

fn validity(mut params: CertificateParams, lifetime: Duration) -> CertificateParams {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + lifetime).into();
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed<T>(pem: &str, read: impl FnOnce(&x509_parser::certificate::X509Certificate<'_>) -> T) -> T {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        read(&pem.parse_x509().unwrap())
    }

    #[test]
    fn a_leaf_carries_its_user_and_all_its_groups_in_order() {
        let authority = Authority::new("test").unwrap();
        let pair = authority.issue(Leaf::client("ann", ["a", "b", "c", "a-group-whose-name-is-quite-long"])).unwrap();
        parsed(&pair.cert_pem, |cert| {
            let groups: Vec<_> = cert.subject().iter_organization().map(|o| o.as_str().unwrap().to_owned()).collect();
            assert_eq!(groups, ["a", "b", "c", "a-group-whose-name-is-quite-long"]);
            let users: Vec<_> = cert.subject().iter_common_name().map(|o| o.as_str().unwrap().to_owned()).collect();
            assert_eq!(users, ["ann"]);
        });
    }

    #[test]
    fn a_leaf_verifies_against_its_authority_and_no_other() {
        let (ours, other) = (Authority::new("ours").unwrap(), Authority::new("ours").unwrap());
        let pair = ours.issue(Leaf::client("ann", (0..40).map(|n| format!("group-{n}")))).unwrap();
        parsed(&pair.cert_pem, |leaf| {
            assert!(parsed(ours.cert_pem(), |ca| leaf.verify_signature(Some(ca.public_key())).is_ok()));
            assert!(parsed(other.cert_pem(), |ca| leaf.verify_signature(Some(ca.public_key())).is_err()));
        });
    }

    #[test]
    fn an_authority_read_back_signs_leaves_of_the_same_chain() {
        let made = Authority::new("fleet").unwrap();
        let read = Authority::from_pem(made.cert_pem(), &made.key_pem()).unwrap();
        let pair = read.issue(Leaf::server("api", ["localhost"], ["127.0.0.1".parse().unwrap()])).unwrap();
        parsed(&pair.cert_pem, |leaf| {
            assert_eq!(leaf.issuer().to_string(), "CN=fleet");
            assert!(parsed(made.cert_pem(), |ca| leaf.verify_signature(Some(ca.public_key())).is_ok()));
        });
    }

    #[test]
    fn an_authority_with_anothers_key_is_refused() {
        let (one, two) = (Authority::new("one").unwrap(), Authority::new("two").unwrap());
        let error = Authority::from_pem(one.cert_pem(), &two.key_pem()).unwrap_err();
        assert!(matches!(error, Error::KeyMismatch(_)), "{error}");
    }

    #[test]
    fn a_certificate_is_already_valid_for_a_clock_four_minutes_behind() {
        let pair = Authority::new("test").unwrap().issue(Leaf::client("ann", ["a"])).unwrap();
        let then = SystemTime::now() - Duration::from_secs(240);
        let then = then.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!(parsed(&pair.cert_pem, |cert| cert.validity().not_before.timestamp() <= then as i64));
    }

    #[test]
    fn a_request_is_signed_as_it_asks() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["host-17".to_owned(), "10.0.0.17".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:host-17");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let request = Request::from_pem(pem.as_bytes()).unwrap();
        assert_eq!(request.common_names, ["system:node:host-17"]);
        assert_eq!(request.organizations, ["system:nodes"]);
        assert_eq!(request.dns_names, ["host-17"]);
        assert_eq!(request.ips, ["10.0.0.17".parse::<IpAddr>().unwrap()]);
        let authority = Authority::new("test").unwrap();
        let signed = authority.sign(&request, &[LeafUsage::Server], Duration::from_secs(3600)).unwrap();
        parsed(&signed, |cert| {
            assert_eq!(cert.subject().to_string(), "O=system:nodes, CN=system:node:host-17");
            assert_eq!(cert.public_key().raw, key.subject_public_key_info());
            assert!(parsed(authority.cert_pem(), |ca| cert.verify_signature(Some(ca.public_key())).is_ok()));
            assert_eq!(cert.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 2);
        });
    }

    #[test]
    fn a_request_that_was_changed_after_it_was_signed_is_refused() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "system:node:host-17");
        let der = params.serialize_request(&key).unwrap().der().to_vec();
        let text = b"system:node:host-17";
        let at = der.windows(text.len()).position(|window| window == text).unwrap();
        let mut forged = der.clone();
        forged[at + text.len() - 1] = b'8';
        assert!(Request::from_pem(der::to_pem("CERTIFICATE REQUEST", &der).as_bytes()).is_ok());
        let error = Request::from_pem(der::to_pem("CERTIFICATE REQUEST", &forged).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("signed"), "{error}");
    }

    #[test]
    fn debug_output_holds_no_private_key() {
        let authority = Authority::new("test").unwrap();
        let pair = authority.issue(Leaf::client("ann", ["a"])).unwrap();
        let key = ServiceAccountKey::generate().unwrap();
        let shown = format!("{authority:?} {pair:?} {key:?}");
        assert!(!shown.contains("PRIVATE"), "{shown}");
    }

    #[test]
    fn an_impossible_dns_name_is_an_error() {
        let leaf = Leaf::server("api", ["grüße"], []);
        assert!(matches!(Authority::new("test").unwrap().issue(leaf), Err(Error::DnsName(_))));
    }
}

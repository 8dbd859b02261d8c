use std::net::IpAddr;

use rcgen::{KeyPair, PublicKeyData};
use x509_parser::extensions::{GeneralName, ParsedExtension};

use crate::Error;

/// The fields of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Start of its validity, in seconds since 1970.
    pub not_before: i64,
    /// End of its validity, in seconds since 1970.
    pub not_after: i64,
    /// The user, or the name of an authority.
    pub common_name: String,
    /// The groups, in order.
    pub organizations: Vec<String>,
    /// The DNS names of a server.
    pub dns_names: Vec<String>,
    /// The addresses of a server.
    pub ips: Vec<IpAddr>,
    /// Its subject key identifier, if it has one.
    pub key_id: Option<Vec<u8>>,
    /// Its authority key identifier, if it has one.
    pub issuer_key_id: Option<Vec<u8>>,
    public_key_der: Vec<u8>,
}

impl Certificate {
    /// Reads the first certificate of a PEM text.
    ///
    /// # Errors
    /// When the certificate is malformed, or the first PEM block is not a certificate.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let malformed = |error: String| Error::Malformed(error);
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|error| malformed(error.to_string()))?;
        if pem.label != "CERTIFICATE" {
            return Err(malformed(format!("the first PEM block has the type {:?} instead of CERTIFICATE", pem.label)));
        }
        let cert = pem.parse_x509().map_err(|error| malformed(error.to_string()))?;
        let text = |name: &x509_parser::x509::AttributeTypeAndValue<'_>| name.as_str().unwrap_or_default().to_owned();
        let mut read = Self {
            not_before: cert.validity().not_before.timestamp(),
            not_after: cert.validity().not_after.timestamp(),
            common_name: cert.subject().iter_common_name().map(text).next().unwrap_or_default(),
            organizations: cert.subject().iter_organization().map(text).collect(),
            dns_names: Vec::new(),
            ips: Vec::new(),
            key_id: None,
            issuer_key_id: None,
            public_key_der: cert.public_key().raw.to_vec(),
        };
        for extension in cert.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) => read.names(&names.general_names),
                ParsedExtension::SubjectKeyIdentifier(id) => read.key_id = Some(id.0.to_vec()),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    read.issuer_key_id = id.key_identifier.as_ref().map(|id| id.0.to_vec());
                }
                _ => {}
            }
        }
        Ok(read)
    }

    fn names(&mut self, names: &[GeneralName<'_>]) {
        for name in names {
            match name {
                GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => {
                    let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                    self.ips.extend(four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)));
                }
                _ => {}
            }
        }
    }

    /// Whether the certificate has the public key of that private key.
    pub fn is_of_key(&self, key_pem: &str) -> bool {
        KeyPair::from_pem(key_pem).is_ok_and(|key| key.subject_public_key_info() == self.public_key_der)
    }

    /// Whether that authority's key has signed it, by the key identifiers of both.
    pub fn is_signed_by(&self, authority: &Self) -> bool {
        self.issuer_key_id.is_some() && self.issuer_key_id == authority.key_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Leaf};

    #[test]
    fn a_certificate_says_what_it_was_made_with() {
        let (authority, other) = (Authority::new("one").unwrap(), Authority::new("two").unwrap());
        let ips: [IpAddr; 2] = ["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let pair = authority.issue(Leaf::server("api", ["kubernetes", "kubernetes.default"], ips)).unwrap();
        let read = Certificate::from_pem(&pair.cert_pem).unwrap();
        assert_eq!(
            (read.common_name.as_str(), &read.dns_names[..]),
            ("api", &["kubernetes".to_owned(), "kubernetes.default".to_owned()][..])
        );
        assert_eq!(read.ips, ips);
        assert!(read.not_after > read.not_before);
        assert!(read.is_of_key(&pair.key_pem) && !read.is_of_key(&other.key_pem()) && !read.is_of_key("nothing"));
        let of = |authority: &Authority| Certificate::from_pem(authority.cert_pem()).unwrap();
        assert!(read.is_signed_by(&of(&authority)) && !read.is_signed_by(&of(&other)));
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        assert!(Certificate::from_pem("nothing").is_err());
    }
}

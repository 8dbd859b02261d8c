//! Authentication by client certificate.

use aws_lc_rs::digest;
use fleetwright_rbac::User;
use jiff::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The OID of the user's uid in a certificate's subject.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// A client certificate whose chain the TLS layer has verified, read once per connection.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    user: Result<Option<User>, String>,
    not_before: i64,
    not_after: i64,
}

impl ClientCertificate {
    /// Reads the leaf certificate.
    pub fn parse(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let validity = certificate.validity();
        Ok(Self {
            user: subject(&certificate, der),
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
        })
    }

    /// The user of the certificate; none when the subject has no common name. A connection may outlive its certificate, so every
    /// request checks the validity again.
    pub fn user(&self, now: Timestamp) -> Result<Option<User>, String> {
        if now.as_second() < self.not_before || now.as_second() > self.not_after {
            return Err("x509: certificate has expired or is not yet valid".to_owned());
        }
        self.user.clone()
    }
}

fn subject(certificate: &X509Certificate<'_>, der: &[u8]) -> Result<Option<User>, String> {
    let subject = certificate.subject();
    // Of several common names the last one counts.
    let name = subject.iter_common_name().last().and_then(|name| name.as_str().ok()).unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    let mut user = User::new(name, groups);
    let fingerprint = digest::digest(&digest::SHA256, der);
    let hex = fingerprint.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let credential = vec![format!("X509SHA256={hex}")];
    user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), credential);

    let attributes = subject.iter_attributes().filter(|attribute| attribute.attr_type().to_id_string() == UID);
    let mut uids = attributes.map(|attribute| attribute.as_str().ok());
    match (uids.next(), uids.next()) {
        (None, _) => {}
        (Some(Some(uid)), None) if !uid.is_empty() => user.uid = uid.to_owned(),
        (Some(Some(_)), None) => return Err("UID cannot be an empty string".to_owned()),
        (Some(None), None) => return Err("unable to parse UID into a string".to_owned()),
        (Some(_), Some(_)) => return Err("expected 1 UID, but found multiple".to_owned()),
    }
    Ok(Some(user))
}

#[cfg(test)]
mod tests {
    use fleetwright_pki::{Authority, Leaf};
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    use super::*;

    fn certificate(user: &str, groups: &[&str]) -> ClientCertificate {
        let authority = Authority::new("ca").unwrap();
        let pair = authority.issue(Leaf::client(user, groups.iter().copied())).unwrap();
        let der = CertificateDer::from_pem_slice(pair.cert_pem.as_bytes()).unwrap();
        ClientCertificate::parse(&der).unwrap()
    }

    #[test]
    fn the_common_name_is_the_user_and_the_organizations_are_the_groups() {
        let user = certificate("amy", &["dev", "ops"]).user(Timestamp::now()).unwrap().unwrap();
        assert_eq!(user.name, "amy");
        assert_eq!(user.groups, ["dev", "ops"]);
        let credential = &user.extra["authentication.kubernetes.io/credential-id"][0];
        assert_eq!(credential.len(), "X509SHA256=".len() + 64);
    }

    #[test]
    fn an_expired_certificate_is_no_user() {
        let certificate = certificate("amy", &[]);
        assert!(certificate.user(Timestamp::from_second(i64::from(i32::MAX) * 100).unwrap()).is_err());
        assert!(certificate.user(Timestamp::UNIX_EPOCH).is_err());
    }
}

use std::net::IpAddr;

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::prelude::FromDer;

use crate::{Error, der};

/// The fields of a certificate signing request whose own signature is verified: the sender has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The subject's common names; a valid request has one.
    pub common_names: Vec<String>,
    /// The subject's organizations, in order.
    pub organizations: Vec<String>,
    /// Whether the subject has further attributes.
    pub more_subject: bool,
    /// Requested DNS names.
    pub dns_names: Vec<String>,
    /// Requested IP addresses.
    pub ips: Vec<IpAddr>,
    /// Requested names of other kinds: e-mail, URI and so on, as text for people.
    pub other_names: Vec<String>,
    pub(crate) subject_der: Vec<u8>,
    pub(crate) key_der: Vec<u8>,
}

impl Request {
    /// Parses a request.
    ///
    /// # Errors
    /// When it is malformed, not signed with its own key, or if other parsers could read it as a request for something else.
    pub fn from_pem(pem: &[u8]) -> Result<Self, Error> {
        let malformed = |error: String| Error::Malformed(error);
        let (rest, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|error| malformed(error.to_string()))?;
        if pem.label != "CERTIFICATE REQUEST" || !rest.trim_ascii().is_empty() {
            return Err(malformed("must be one PEM block of the type CERTIFICATE REQUEST".to_owned()));
        }
        let (rest, parsed) =
            X509CertificationRequest::from_der(&pem.contents).map_err(|error| malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(malformed("unexpected data after the request".to_owned()));
        }
        parsed.verify_signature().map_err(|_| malformed("not signed with its own key".to_owned()))?;
        let info = &parsed.certification_request_info;
        let mut request = Self {
            common_names: Vec::new(),
            organizations: Vec::new(),
            more_subject: false,
            dns_names: Vec::new(),
            ips: Vec::new(),
            other_names: Vec::new(),
            subject_der: info.subject.as_raw().to_vec(),
            key_der: info.subject_pki.raw.to_vec(),
        };
        for attribute in info.subject.iter_attributes() {
            let text = || attribute.as_str().map(ToOwned::to_owned);
            let unreadable = |_| malformed("the subject is not text".to_owned());
            if *attribute.attr_type() == OID_X509_COMMON_NAME {
                request.common_names.push(text().map_err(unreadable)?);
            } else if *attribute.attr_type() == OID_X509_ORGANIZATION_NAME {
                request.organizations.push(text().map_err(unreadable)?);
            } else {
                request.more_subject = true;
            }
        }
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                names.general_names.iter().for_each(|name| request.name(name));
            }
        }
        let counts = der::counts(&pem.contents);
        let subject = info.subject.iter_attributes().count();
        let names = request.dns_names.len() + request.ips.len() + request.other_names.len();
        if counts != Some(der::RequestSize { subject, names }) {
            return Err(malformed("ambiguous encoding".to_owned()));
        }
        Ok(request)
    }

    fn name(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
                (Ok(four), _) => self.ips.push(four.into()),
                (_, Ok(sixteen)) => self.ips.push(sixteen.into()),
                _ => self.other_names.push(format!("{name}")),
            },
            other => self.other_names.push(format!("{other}")),
        }
    }

    /// Whether it requests names besides its subject.
    pub fn has_names(&self) -> bool {
        !(self.dns_names.is_empty() && self.ips.is_empty() && self.other_names.is_empty())
    }
}

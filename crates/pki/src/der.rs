//! The parts of DER that rcgen does not support: subjects with more than one organization.
//!
//! rcgen keeps one value per attribute type, and Kubernetes puts each group of a user into an organization of its own. So a
//! leaf certificate is created with an empty subject, the subject is inserted, and the result is signed again.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{KeyPair, SigningKey};

use crate::Error;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
/// The attributes of a certificate request.
const ATTRIBUTES: u8 = 0xa0;
/// The attribute with the requested extensions: 1.2.840.113549.1.9.14.
const EXTENSION_REQUEST: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// The extension `subjectAltName`: 2.5.29.17.
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// Index of the subject in a TBSCertificate: after version, serial, algorithm, issuer and validity.
const SUBJECT: usize = 5;

/// A distinguished name: the organizations, then the common name.
pub(crate) fn name(organizations: &[String], common_name: &str) -> Vec<u8> {
    let attribute = |id: [u8; 3], value: &str| {
        let pair = [element(OBJECT_ID, &id), element(UTF8_STRING, value.as_bytes())].concat();
        element(SET, &element(SEQUENCE, &pair))
    };
    let mut parts: Vec<u8> = organizations.iter().flat_map(|o| attribute(ORGANIZATION, o)).collect();
    parts.extend(attribute(COMMON_NAME, common_name));
    element(SEQUENCE, &parts)
}

/// The certificate with another subject, signed by `key`.
pub(crate) fn with_subject(certificate: &[u8], subject: &[u8], key: &KeyPair) -> Result<Vec<u8>, Error> {
    let malformed = || Error::Malformed("unexpected end of data".to_owned());
    let whole = elements(certificate).ok_or_else(malformed)?;
    let parts = elements(content(whole.first().ok_or_else(malformed)?)).ok_or_else(malformed)?;
    let [tbs, algorithm, _signature] = parts.as_slice() else { return Err(malformed()) };
    let mut fields = elements(content(tbs)).ok_or_else(malformed)?;
    *fields.get_mut(SUBJECT).ok_or_else(malformed)? = subject;
    let tbs = element(SEQUENCE, &fields.concat());
    let mut bits = vec![0];
    bits.extend(key.sign(&tbs)?);
    Ok(element(SEQUENCE, &[tbs, algorithm.to_vec(), element(BIT_STRING, &bits)].concat()))
}

/// PEM, with lines of 64 characters.
pub(crate) fn to_pem(label: &str, der: &[u8]) -> String {
    let encoded = BASE64_STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = tail;
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

/// The size of a certificate request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestSize {
    /// Number of attributes of its subject.
    pub subject: usize,
    /// Number of names in its extension `subjectAltName`.
    pub names: usize,
}

/// Counts the elements of a certificate request; `None` if parsers read its form differently. x509-parser stops at an attribute of a subject that it
/// cannot read, skips the rest, and uses the first of several lists of extensions; other parsers continue, or use
/// another list. So every element must have its
/// shortest form, no set may be empty, no element may follow the expected ones, and there may be at most one list of extensions.
pub(crate) fn counts(request: &[u8]) -> Option<RequestSize> {
    let whole = only(elements(request)?)?;
    let [info, _algorithm, _signature] = children(whole, SEQUENCE)?[..] else { return None };
    let [_version, subject, _key, attributes] = children(info, SEQUENCE)?[..] else { return None };
    let mut counts = RequestSize::default();
    for set in children(subject, SEQUENCE)? {
        let pairs = children(set, SET).filter(|pairs| !pairs.is_empty())?;
        for pair in &pairs {
            let [_id, _value] = children(pair, SEQUENCE)?[..] else { return None };
        }
        counts.subject += pairs.len();
    }
    let mut lists = 0;
    for attribute in children(attributes, ATTRIBUTES)? {
        let [id, values] = children(attribute, SEQUENCE)?[..] else { return None };
        let value = only(children(values, SET)?)?;
        if content(id) != EXTENSION_REQUEST {
            continue;
        }
        lists += 1;
        for extension in children(value, SEQUENCE)? {
            let [id, .., value] = children(extension, SEQUENCE)?[..] else { return None };
            if content(id) == ALTERNATIVE_NAMES {
                counts.names += children(only(elements(content(value))?)?, SEQUENCE)?.len();
            }
        }
    }
    (lists <= 1).then_some(counts)
}

fn only<T>(mut all: Vec<T>) -> Option<T> {
    all.pop().filter(|_| all.is_empty())
}

/// The elements inside an element with that tag, if all have their shortest form.
fn children(whole: &[u8], tag: u8) -> Option<Vec<&[u8]>> {
    let shortest = |one: &&[u8]| {
        // The tags of requests have one byte.
        one.first().is_some_and(|tag| tag & 0x1f != 0x1f && element(*tag, content(one)) == **one)
    };
    let all = elements(content(whole))?;
    (whole.first() == Some(&tag) && shortest(&whole) && all.iter().all(shortest)).then_some(all)
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        short @ 0..=127 => out.push(short as u8),
        long => {
            let bytes = long.to_be_bytes();
            let skip = bytes.iter().take_while(|byte| **byte == 0).count();
            out.push(0x80 | (bytes.len() - skip) as u8);
            out.extend_from_slice(&bytes[skip..]);
        }
    }
    out.extend_from_slice(content);
    out
}

/// Splits a run of elements; `None` if the last one is incomplete.
fn elements(mut rest: &[u8]) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (header, length) = header(rest)?;
        let (one, tail) = rest.split_at_checked(header.checked_add(length)?)?;
        found.push(one);
        rest = tail;
    }
    Some(found)
}

fn content(element: &[u8]) -> &[u8] {
    header(element).and_then(|(header, _)| element.get(header..)).unwrap_or_default()
}

/// The length of an element's header, and of its content.
fn header(element: &[u8]) -> Option<(usize, usize)> {
    let first = *element.get(1)?;
    if first < 0x80 {
        return Some((2, first.into()));
    }
    let count = usize::from(first & 0x7f);
    let bytes = element.get(2..2 + count).filter(|bytes| bytes.len() <= size_of::<u32>())?;
    Some((2 + count, bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, PublicKeyData};

    use super::*;
    use crate::{Authority, Certificate, Request};

    /// Reads a request with that subject and those attributes.
    fn request(subject: &[Vec<u8>], attributes: &[Vec<u8>]) -> Result<Request, Error> {
        Request::from_pem(request_pem(subject, attributes)?.as_bytes())
    }

    /// A request with that subject and those attributes, signed with its own key.
    fn request_pem(subject: &[Vec<u8>], attributes: &[Vec<u8>]) -> Result<String, Error> {
        let key = KeyPair::generate()?;
        let honest = CertificateParams::default().serialize_request(&key)?;
        let algorithm = elements(content(honest.der())).unwrap()[1].to_vec();
        let subject = element(SEQUENCE, &subject.concat());
        let fields = [vec![2, 1, 0], subject, key.subject_public_key_info(), element(ATTRIBUTES, &attributes.concat())];
        let info = element(SEQUENCE, &fields.concat());
        let bits = [vec![0], key.sign(&info)?].concat();
        let whole = element(SEQUENCE, &[info, algorithm, element(BIT_STRING, &bits)].concat());
        Ok(to_pem("CERTIFICATE REQUEST", &whole))
    }

    fn pair(id: [u8; 3], value: &str) -> Vec<u8> {
        element(SEQUENCE, &[element(OBJECT_ID, &id), element(UTF8_STRING, value.as_bytes())].concat())
    }

    fn extensions(dns: &str) -> Vec<u8> {
        let names = element(SEQUENCE, &element(0x82, dns.as_bytes()));
        element(SEQUENCE, &element(SEQUENCE, &[element(OBJECT_ID, &ALTERNATIVE_NAMES), element(0x04, &names)].concat()))
    }

    fn asks(values: &[Vec<u8>]) -> Vec<u8> {
        element(SEQUENCE, &[vec![element(OBJECT_ID, &EXTENSION_REQUEST)], values.to_vec()].concat().concat())
    }

    #[test]
    fn a_subject_that_goes_on_behind_what_cannot_be_read_is_refused() {
        let (nodes, own) = (pair(ORGANIZATION, "system:nodes"), pair(COMMON_NAME, "system:node:host-17"));
        let set = |one: &[u8]| element(SET, one);
        let honest = [set(&nodes), set(&own)];
        let read = request(&honest, &[]).unwrap();
        assert!(read.common_names == ["system:node:host-17"] && !read.has_names());
        // Go uses the last common name, and accepts any before it.
        let other = pair(COMMON_NAME, "system:node:control-plane-1");
        let number = element(SEQUENCE, &[element(OBJECT_ID, &COMMON_NAME), vec![0x1f, 0x81]].concat());
        for rest in [
            vec![set(&[]), set(&other)],
            vec![set(&number), set(&other)],
            vec![element(0x30, &[]), set(&other)],
            vec![vec![SET, 0x81, other.len() as u8], other.clone()],
        ] {
            assert!(request(&[honest.to_vec(), rest].concat(), &[]).is_err());
        }
        assert!(request(&[set(&nodes), set(&[own.clone(), number, other.clone()].concat())], &[]).is_err());
        let both = request(&[set(&nodes), set(&[own, other].concat())], &[]).unwrap();
        assert_eq!(both.common_names, ["system:node:host-17", "system:node:control-plane-1"]);
    }

    #[test]
    fn extensions_that_not_every_reader_takes_are_refused() {
        let subject = [element(SET, &pair(COMMON_NAME, "system:node:host-17"))];
        let (own, api) = (extensions("host-17"), extensions("kubernetes.default.svc"));
        let plain = |list: &[u8]| asks(&[element(SET, list)]);
        assert_eq!(request(&subject, &[plain(&own)]).unwrap().dns_names, ["host-17"]);
        // Go skips an attribute with an empty set, and uses the extensions of the next one.
        let empty = asks(&[element(SET, &[]), own.clone()]);
        let long = asks(&[vec![SET, 0x81, own.len() as u8], own.clone()]);
        let odd = asks(&[element(0xb1, &own)]);
        for first in [&empty, &long, &odd, &plain(&own)] {
            assert!(request(&subject, &[first.clone(), plain(&api)]).is_err());
        }
        assert!(request(&subject, &[empty]).is_err() && request(&subject, &[long]).is_err());
        assert!(request(&subject, &[plain(&[own, api].concat())]).is_err());
    }

    #[test]
    fn elements_of_every_length_form_are_read_as_they_were_written() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let body = vec![7; length];
            let written = [element(SEQUENCE, &body), element(SET, &[1])].concat();
            let read = elements(&written).unwrap();
            assert_eq!(read.len(), 2, "{length}");
            assert_eq!(content(read[0]), body);
        }
    }

    #[test]
    fn a_cut_off_element_is_not_read() {
        let mut written = element(SEQUENCE, &[1, 2, 3]);
        written.pop();
        assert!(elements(&written).is_none());
        assert!(elements(&[SEQUENCE, 0x84, 0xff, 0xff]).is_none());
    }

    /// A block of PEM with other ends of lines, with text before it, without its last line break, and with empty lines after it.
    fn equal_forms(pem: &str) -> [String; 4] {
        [
            pem.replace('\n', "\r\n"),
            format!("subject=host-17\n\n  - text\n{pem}"),
            pem.trim_end().to_owned(),
            format!("{pem}\n \r\n"),
        ]
    }

    /// A block of PEM with another label, with less base64, with more than base64, and each of its beginnings.
    fn broken_forms(pem: &str, label: &str) -> Vec<String> {
        let lines: Vec<&str> = pem.lines().collect();
        let [first, body @ .., short, last] = lines.as_slice() else { panic!("{pem}") };
        let end = pem.find("-----END ").unwrap() + "-----END ".len();
        let mut broken: Vec<String> = (0..end).map(|length| pem[..length].to_owned()).collect();
        let body = body.join("\n");
        broken.extend([
            pem.replace(label, "PUBLIC KEY"),
            format!("{first}\n{body}\n{last}\n"),
            format!("{first}\n{body}\n{}\n{last}\n", &short[..short.len() - 1]),
            format!("{first}\n{body}\n{short}*\n{last}\n"),
            format!("{first}\nProc-Type: 4,ENCRYPTED\n\n{body}\n{short}\n{last}\n"),
            format!("{first}\n{last}\n"),
        ]);
        broken
    }

    #[test]
    fn a_request_in_another_form_of_pem_is_the_same_or_refused() {
        let pem = request_pem(&[element(SET, &pair(COMMON_NAME, "system:node:host-17"))], &[]).unwrap();
        let plain = Request::from_pem(pem.as_bytes()).unwrap();
        assert_eq!(plain.common_names, ["system:node:host-17"]);
        for form in equal_forms(&pem) {
            assert_eq!(Request::from_pem(form.as_bytes()).unwrap(), plain, "{form}");
        }
        let mut broken = broken_forms(&pem, "CERTIFICATE REQUEST");
        broken.extend([format!("{pem}{pem}"), format!("{pem}text\n"), pem.replace("CERTIFICATE", "NEW CERTIFICATE")]);
        for form in broken {
            assert!(Request::from_pem(form.as_bytes()).is_err(), "{form}");
        }
        let (before, after) = pem.split_once("-----END ").unwrap();
        let not_text = [before.as_bytes(), b"\xff\n-----END ", after.as_bytes()].concat();
        assert!(Request::from_pem(&not_text).is_err());
    }

    #[test]
    fn a_certificate_in_another_form_of_pem_is_the_same_or_an_error() {
        let (one, two) = (Authority::new("one").unwrap(), Authority::new("two").unwrap());
        let (pem, key) = (one.cert_pem(), one.key_pem());
        let plain = Certificate::from_pem(pem).unwrap();
        assert!(plain.common_name == "one" && plain.is_of_key(&key));
        let both = format!("{pem}{}", two.cert_pem());
        for form in equal_forms(pem).into_iter().chain(equal_forms(&both)) {
            assert!(Certificate::from_pem(&form).unwrap().is_of_key(&key), "the first certificate counts: {form}");
        }
        let mut broken = broken_forms(pem, "CERTIFICATE");
        broken.extend([key.clone(), format!("{key}{pem}")]);
        for form in broken {
            assert!(Certificate::from_pem(&form).is_err(), "{form}");
        }
        for form in equal_forms(&key) {
            assert!(plain.is_of_key(&form), "another form of the key");
        }
        let end = key.find("-----END ").unwrap() + "-----END ".len();
        assert!((0..end).all(|length| !plain.is_of_key(&key[..length])));
    }
}

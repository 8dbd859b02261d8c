//! The little DER that rcgen leaves to us: subjects with more than one organization.
//!
//! rcgen keeps one value per attribute type, and Kubernetes puts each group of a user into an organization of its own. So a
//! leaf is made with an empty subject, the subject is put in its place, and the result is signed again.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{KeyPair, SigningKey};

use crate::Error;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// Where the subject stands in a TBSCertificate: after version, serial, algorithm, issuer and validity.
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
    let malformed = || Error::Malformed("it ends early".to_owned());
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

/// Splits a run of elements; `None` when the last one is cut off.
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
    use super::*;

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
}

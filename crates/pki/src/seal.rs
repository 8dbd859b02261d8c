use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::digest::{SHA256, digest};

use crate::Error;

/// A key that encrypts other keys (AES-256-GCM), so that a copy of them can be stored where others may read it.
pub struct SealKey([u8; 32]);

impl SealKey {
    /// Generates a random key.
    ///
    /// # Errors
    /// When no random bytes are available.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::Seal("no random bytes available"))?;
        Ok(Self(bytes))
    }

    /// A key from 32 bytes; none for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// An id that distinguishes keys and reveals nothing about them.
    pub fn id(&self) -> String {
        hex(&digest(&SHA256, &[b"fleetwright seal key ".as_slice(), &self.0].concat()).as_ref()[..8])
    }

    /// Encrypts `plain`. Decryption needs the same `purpose`, so that data sealed for one cluster is not accepted for another.
    ///
    /// # Errors
    /// When the cryptographic library fails.
    pub fn seal(&self, purpose: &str, plain: &[u8]) -> Result<Vec<u8>, Error> {
        let mut text = plain.to_vec();
        let nonce = self.cipher()?.seal_in_place_append_tag(Aad::from(purpose.as_bytes()), &mut text);
        let nonce = nonce.map_err(|_| Error::Seal("cannot encrypt"))?;
        Ok([nonce.as_ref().as_slice(), &text].concat())
    }

    /// Decrypts the result of [`SealKey::seal`].
    ///
    /// # Errors
    /// When it was sealed with another key, for another purpose, or changed since.
    pub fn open(&self, purpose: &str, sealed: &[u8]) -> Result<Vec<u8>, Error> {
        const OTHER: Error =
            Error::Seal("cannot decrypt: sealed with another key or for another purpose, or modified since");
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN).ok_or(OTHER)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| OTHER)?;
        let mut text = text.to_vec();
        let plain = self.cipher()?.open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut text);
        Ok(plain.map_err(|_| OTHER)?.to_vec())
    }

    fn cipher(&self) -> Result<RandomizedNonceKey, Error> {
        RandomizedNonceKey::new(&AES_256_GCM, &self.0).map_err(|_| Error::Seal("invalid key"))
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealKey").field(&self.id()).finish()
    }
}

/// The SHA-256 fingerprint of the first certificate or public key in a PEM text, in the format of `openssl x509
/// -fingerprint -sha256`, in lower case and
/// without colons; none if there is none.
pub fn fingerprint(pem: &str) -> Option<String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    Some(hex(digest(&SHA256, &pem.contents).as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, ServiceAccountKey};

    #[test]
    fn what_is_sealed_is_opened_by_the_same_key_and_purpose_only() {
        let (key, other) = (SealKey::generate().unwrap(), SealKey::generate().unwrap());
        let sealed = key.seal("fleet/pay", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(key.open("fleet/pay", &sealed).unwrap(), b"secret");
        let again = SealKey::from_bytes(key.as_bytes()).unwrap();
        assert_eq!((again.open("fleet/pay", &sealed).unwrap(), again.id()), (b"secret".to_vec(), key.id()));
        assert!(key.open("fleet/shop", &sealed).is_err());
        assert!(other.open("fleet/pay", &sealed).is_err() && other.id() != key.id());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(key.open("fleet/pay", &changed).is_err(), "byte {at}");
        }
        assert!(key.open("fleet/pay", b"short").is_err() && SealKey::from_bytes(b"short").is_none());
        assert_ne!(sealed, key.seal("fleet/pay", b"secret").unwrap(), "no nonce is used twice");
    }

    #[test]
    fn a_fingerprint_is_of_the_certificate_and_not_of_its_text() {
        let authority = Authority::new("test").unwrap();
        let of = fingerprint(authority.cert_pem()).unwrap();
        assert_eq!(of.len(), 64);
        assert_eq!(fingerprint(&format!("\n{}\n\n", authority.cert_pem().trim())), Some(of.clone()));
        assert_ne!(fingerprint(Authority::new("test").unwrap().cert_pem()), Some(of));
        assert!(fingerprint(&ServiceAccountKey::generate().unwrap().public_pem).is_some());
        assert_eq!(fingerprint("nothing"), None);
    }
}

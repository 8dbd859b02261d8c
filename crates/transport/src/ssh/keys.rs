//! Keys: ours, parsed once, and those of hosts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use russh::keys::ssh_key::private::KeypairData;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::ssh_key::{Signature, certificate::CertType};
use russh::keys::{Algorithm, Certificate, EcdsaCurve, HashAlg, PrivateKey, PublicKey, signature::Signer as _};
use russh::keys::{agent::AgentIdentity, decode_secret_key, ssh_encoding, ssh_encoding::Encode as _, ssh_key};

use crate::{Login, ReachError, Trust};

/// Most parsed logins in the cache: a fleet has a handful.
const MAX_LOGINS: usize = 256;

/// A parsed login.
pub(crate) struct Identity {
    pub(crate) key: Arc<PrivateKey>,
    pub(crate) certificate: Option<Certificate>,
    /// For messages: type and fingerprint of the public key.
    pub(crate) name: String,
}

/// Parsed logins, so that a key is parsed once and not for each connection.
#[derive(Default)]
pub(crate) struct Identities(Mutex<HashMap<Login, Arc<Identity>>>);

impl Identities {
    pub(crate) fn of(&self, login: &Login) -> Result<Arc<Identity>, ReachError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = known.get(login) {
            return Ok(identity.clone());
        }
        let identity = Arc::new(parse(login)?);
        if known.len() >= MAX_LOGINS {
            known.clear();
        }
        known.insert(login.clone(), identity.clone());
        Ok(identity)
    }
}

fn parse(login: &Login) -> Result<Identity, ReachError> {
    let bad = |message: String| ReachError::InvalidLogin(message);
    // The error of a key never quotes it.
    let key = decode_secret_key(&login.key, None).map_err(|error| match error {
        russh::keys::Error::KeyIsEncrypted => {
            bad("the private key has a passphrase: use a key without one".into())
        }
        // `ssh-key` accepts no scalar below 32 bytes, and ssh-keygen omits leading zeros: so one of 512 such keys fails here.
        russh::keys::Error::SshKey(ssh_key::Error::Encoding(ssh_encoding::Error::Length)) => bad(
            "cannot parse the private key: invalid length. If ssh-keygen can read it, it is an ECDSA key with leading zeros removed: convert it \
             with ssh-keygen -p -m PKCS8 -f FILE, or create another key"
                .into(),
        ),
        other => bad(format!("cannot parse the private key: {other}; expected an OpenSSH or PEM private key")),
    })?;
    if key.is_encrypted() {
        return Err(bad("the private key has a passphrase: use a key without one".into()));
    }
    if matches!(key.algorithm(), Algorithm::Dsa) {
        return Err(bad("the private key is a DSA key, which is insecure: use ed25519, ecdsa or rsa".into()));
    }
    let certificate = match &login.certificate {
        None => None,
        Some(text) => {
            let certificate = Certificate::from_openssh(text.trim()).map_err(|error| {
                bad(format!("cannot parse the certificate: {error}; expected the content of a file NAME-cert.pub"))
            })?;
            if certificate.cert_type() != CertType::User {
                return Err(bad("the certificate is a host certificate: use a user certificate".into()));
            }
            if certificate.public_key() != key.public_key().key_data() {
                return Err(bad("the certificate does not match the private key".into()));
            }
            Some(certificate)
        }
    };
    let name = format!("{} {}", key.algorithm().as_str(), key.public_key().fingerprint(HashAlg::Sha256));
    Ok(Identity { key: Arc::new(key), certificate, name })
}

/// Signs with an RSA key for its certificate. russh itself uses `ssh-rsa-cert-v01`, which stands for SHA-1 and is refused nowadays.
pub(crate) struct RsaSigner<'a>(pub(crate) &'a PrivateKey);

/// Why signing failed.
#[derive(Debug)]
pub(crate) struct SigningError(pub(crate) String);

impl From<russh::SendError> for SigningError {
    fn from(error: russh::SendError) -> Self {
        Self(error.to_string())
    }
}

impl russh::Signer for RsaSigner<'_> {
    type Error = SigningError;

    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        hash: Option<HashAlg>,
        mut to_sign: Vec<u8>,
    ) -> Result<Vec<u8>, SigningError> {
        let KeypairData::Rsa(pair) = self.0.key_data() else {
            return Err(SigningError("not an RSA key".into()));
        };
        let signature: Signature = (pair, hash).try_sign(&to_sign).map_err(|error| SigningError(error.to_string()))?;
        let encode = || {
            let mut bytes = Vec::new();
            signature.encode(&mut bytes)?;
            bytes.encode(&mut to_sign)
        };
        let mut encode = encode;
        encode().map_err(|error: russh::keys::ssh_encoding::Error| SigningError(error.to_string()))?;
        Ok(to_sign)
    }
}

/// The trusted host keys; none to accept any.
pub(crate) fn trusted(trust: &Trust, address: &str) -> Result<Option<Vec<KeyData>>, ReachError> {
    let Trust::Keys(keys) = trust else {
        return Ok(None);
    };
    let mut trusted = Vec::with_capacity(keys.len());
    for text in keys {
        let key = PublicKey::from_openssh(text.trim()).map_err(|error| {
            ReachError::InvalidLogin(format!(
                "cannot parse a trusted host key of {address}: {error}; expected a line of a known_hosts file without the host (ssh-ed25519 AAAA…)"
            ))
        })?;
        trusted.push(key.key_data().clone());
    }
    Ok(Some(trusted))
}

/// The requested host key algorithms: those of the trusted keys first, so that a host with several keys uses the pinned one;
/// then the others, so that a host without any of them is reported as changed. SHA-1 is not among them.
pub(crate) fn algorithms(trusted: Option<&[KeyData]>) -> Vec<Algorithm> {
    let mut all = vec![
        Algorithm::Ed25519,
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
        Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
    ];
    let pinned = |algorithm: &Algorithm| {
        trusted.is_some_and(|keys| {
            keys.iter().any(|key| match algorithm {
                Algorithm::Rsa { .. } => matches!(key, KeyData::Rsa(_)),
                other => key.algorithm() == *other,
            })
        })
    };
    // A stable sort: the order among equals stays.
    all.sort_by_key(|algorithm| !pinned(algorithm));
    all
}

/// A host key as in a `known_hosts` file, without the host.
pub(crate) fn line(key: &PublicKey) -> String {
    let plain = PublicKey::new(key.key_data().clone(), "");
    plain.to_openssh().map(|line| line.trim().to_owned()).unwrap_or_else(|_| key.algorithm().as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    #[test]
    fn a_pinned_type_is_asked_for_first() {
        let pinned = trusted(&Trust::Keys(vec![ED25519.into()]), "host").unwrap().unwrap();
        assert_eq!(algorithms(Some(&pinned))[0], Algorithm::Ed25519);
        assert_eq!(algorithms(Some(&pinned)).len(), algorithms(None).len());
        assert_eq!(line(&PublicKey::new(pinned[0].clone(), "somebody@somewhere")), ED25519);
    }

    #[test]
    fn an_unreadable_pin_trusts_no_host() {
        let error = trusted(&Trust::Keys(vec!["ssh-ed25519 rubbish".into()]), "host").unwrap_err();
        assert!(matches!(&error, ReachError::InvalidLogin(text) if text.contains("known_hosts")), "{error}");
        assert!(trusted(&Trust::FirstUse, "host").unwrap().is_none());
        assert!(trusted(&Trust::Keys(vec![]), "host").unwrap().unwrap().is_empty());
    }

    #[test]
    fn a_login_that_cannot_be_used_says_why_and_shows_nothing() {
        let login = Login {
            key: "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n".into(),
            certificate: None,
        };
        let error = parse(&login).err().unwrap().to_string();
        assert!(error.contains("private key"), "{error}");
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }

    /// A key of `ssh-keygen -t ecdsa` with a scalar of 31 bytes, and the same key after `ssh-keygen -p -m PKCS8`. No host trusts it.
    const SHORT: &str = "-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAaAAAABNlY2RzYS
1zaGEyLW5pc3RwMjU2AAAACG5pc3RwMjU2AAAAQQSiBXm61rI2aUyAjuwHllGQpVjBWdm6
CT3UTPzEu29h87xNm35u/5i1Y5FsCogjFe2pcYccEtpQVVNE0cBwjS8jAAAAoEgz92xIM/
dsAAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBKIFebrWsjZpTICO
7AeWUZClWMFZ2boJPdRM/MS7b2HzvE2bfm7/mLVjkWwKiCMV7alxhxwS2lBVU0TRwHCNLy
MAAAAfQricm/IiiqtD0gBiWf53F1K/eVEq1nM3Lv1KCXuqbQAAAAVzaG9ydAECAwQ=
-----END OPENSSH PRIVATE KEY-----
";
    const SHORT_AS_PKCS8: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgAEK4nJvyIoqrQ9IA
Yln+dxdSv3lRKtZzNy79Sgl7qm2hRANCAASiBXm61rI2aUyAjuwHllGQpVjBWdm6
CT3UTPzEu29h87xNm35u/5i1Y5FsCogjFe2pcYccEtpQVVNE0cBwjS8j
-----END PRIVATE KEY-----
";

    #[test]
    fn an_ecdsa_key_with_a_short_number_is_refused_with_a_way_out_that_works() {
        let login = |key: &str| Login { key: key.into(), certificate: None };
        let error = parse(&login(SHORT)).err().unwrap().to_string();
        assert!(error.contains("PKCS8"), "{error}");
        assert!(parse(&login(SHORT_AS_PKCS8)).is_ok());
    }
}

//! Encrypts snapshots: AES-256-GCM in the STREAM construction.
//!
//! A sealed file is the magic, the length of the header, the header as JSON, and chunks of [`CHUNK`] bytes with a tag of 16 bytes each; the last chunk may
//! be shorter, and is the only one that may be empty. Each file has a key of its own, derived from the key in the Secret and a random salt, so that a
//! nonce is never used twice with one key. A nonce is 7 random bytes of the file, the number of the chunk, and whether it is the last: chunks cannot be
//! reordered, left out or taken from another file, and the end cannot be cut off. The header, with the name of the snapshot and of its Cluster, is
//! authenticated with each chunk: a snapshot does not pass for another one.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac, rand};
use fleetwright_pki::SealKey;
use serde::{Deserialize, Serialize};

use crate::store::SnapshotInfo;
use crate::take::hex;

const MAGIC: &[u8; 8] = b"FWSNAP01";
/// Plain bytes of a chunk.
const CHUNK: usize = 1 << 20;
const TAG: usize = 16;
/// A longer header is not from this program.
const MAX_HEADER: u32 = 64 << 10;
const KEY_BYTES: usize = 32;
/// File names of the keys in the Secret; the first one encrypts.
const NAMES: [&str; 3] = ["key", "previous", "other"];

/// The keys of a Secret, mounted as a directory: `key` encrypts; `previous` and `other` decrypt as well.
#[derive(Clone, Debug)]
pub struct EncryptionKeys(pub PathBuf);

/// The Cluster of a snapshot, and its metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    key_id: String,
    salt: String,
    nonce: String,
    /// `NAMESPACE/NAME` of the Cluster.
    cluster: String,
    described: SnapshotInfo,
}

struct Key {
    id: String,
    bytes: [u8; KEY_BYTES],
}

impl Key {
    fn new(bytes: [u8; KEY_BYTES]) -> Self {
        let id = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &bytes), b"fleetwright snapshot key id");
        Self { id: hex(&id.as_ref()[..8]), bytes }
    }

    /// The key of one file.
    fn of_file(&self, salt: &[u8]) -> Result<LessSafeKey> {
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&self.bytes);
        let derived = derived.expand(&[b"fleetwright snapshot v1"], &AES_256_GCM).map_err(|_| anyhow!("no key"))?;
        Ok(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

impl EncryptionKeys {
    fn read(&self, name: &str) -> Result<Option<Key>> {
        let bytes = match fs::read(self.0.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("cannot read {name} of the Secret with the snapshot key"))?,
        };
        let length = bytes.len();
        let bytes = bytes.try_into().map_err(|_| {
            anyhow!(
                "{name} of the Secret with the snapshot key has {length} bytes: it must be {KEY_BYTES} random bytes"
            )
        })?;
        Ok(Some(Key::new(bytes)))
    }

    fn current(&self) -> Result<Key> {
        self.read("key")?.context("the Secret with the snapshot key has no key")
    }

    /// All existing keys, in the form that the Cluster-Operator uses: it seals the keys of a cluster with `key`.
    pub(crate) fn openers(&self) -> Result<Vec<SealKey>> {
        let mut all = Vec::new();
        for name in NAMES {
            all.extend(self.read(name)?.and_then(|key| SealKey::from_bytes(&key.bytes)));
        }
        Ok(all)
    }

    fn of_id(&self, id: &str) -> Result<Key> {
        let mut ids = Vec::new();
        for name in NAMES {
            match self.read(name)? {
                Some(key) if key.id == id => return Ok(key),
                Some(key) => ids.push(key.id),
                None => {}
            }
        }
        bail!("encrypted with key {id}, but the available Secrets have only {}: restore that key", ids.join(", "))
    }
}

fn nonce(prefix: &[u8], number: u32, last: bool) -> Result<Nonce> {
    let mut bytes = [0; NONCE_LEN];
    ensure!(prefix.len() == 7, "invalid header");
    bytes[..7].copy_from_slice(prefix);
    bytes[7..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = u8::from(last);
    Ok(Nonce::assume_unique_for_key(bytes))
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digit = |at: usize| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..text.len()).step_by(2).map(|at| digit(at).context("invalid header")).collect()
}

/// Reads until the end, but at most that number of bytes.
fn fill(from: &mut impl Read, most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(most);
    from.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a file is encrypted.
pub(crate) fn is_sealed(path: &Path) -> Result<bool> {
    Ok(fill(&mut File::open(path)?, MAGIC.len())? == MAGIC)
}

/// Encrypts a file into another one; returns the id of the key.
pub(crate) fn seal(
    keys: &EncryptionKeys,
    cluster: &str,
    described: &SnapshotInfo,
    from: &Path,
    to: &Path,
) -> Result<String> {
    let key = keys.current()?;
    let (mut salt, mut prefix) = ([0; 32], [0; 7]);
    for random in [&mut salt[..], &mut prefix[..]] {
        rand::fill(random).map_err(|_| anyhow!("no random bytes available"))?;
    }
    let header = Header {
        key_id: key.id.clone(),
        salt: hex(&salt),
        nonce: hex(&prefix),
        cluster: cluster.to_owned(),
        described: described.clone(),
    };
    let (header, cipher) = (serde_json::to_vec(&header)?, key.of_file(&salt)?);
    let mut from = BufReader::new(File::open(from)?);
    let mut out = BufWriter::new(File::create(to)?);
    out.write_all(MAGIC)?;
    out.write_all(&u32::try_from(header.len())?.to_be_bytes())?;
    out.write_all(&header)?;
    let (mut chunk, mut number) = (fill(&mut from, CHUNK)?, 0_u32);
    loop {
        let next = fill(&mut from, CHUNK)?;
        let last = next.is_empty();
        let nonce = nonce(&prefix, number, last)?;
        cipher
            .seal_in_place_append_tag(nonce, Aad::from(&header), &mut chunk)
            .map_err(|_| anyhow!("cannot encrypt chunk {number}"))?;
        out.write_all(&chunk)?;
        if last {
            break;
        }
        (chunk, number) = (next, number.checked_add(1).context("the snapshot is too large")?);
    }
    out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    Ok(key.id)
}

/// Decrypts a file into another one, which is created only if the whole content is authentic, and of that Cluster and name.
pub(crate) fn open(
    keys: &EncryptionKeys,
    cluster: &str,
    name: &str,
    from: &Path,
    to: &Path,
) -> Result<(SnapshotInfo, String)> {
    let mut from = BufReader::new(File::open(from)?);
    let broken = || anyhow!("invalid header");
    ensure!(fill(&mut from, MAGIC.len())? == MAGIC, broken());
    let length: [u8; 4] = fill(&mut from, 4)?.try_into().map_err(|_| broken())?;
    let length = u32::from_be_bytes(length);
    ensure!(length <= MAX_HEADER, broken());
    let text = fill(&mut from, length as usize)?;
    let header: Header = serde_json::from_slice(&text).map_err(|_| broken())?;
    let cipher = keys.of_id(&header.key_id)?.of_file(&unhex(&header.salt)?)?;
    let prefix = unhex(&header.nonce)?;
    let part = to.with_extension("part");
    let mut out = BufWriter::new(File::create(&part)?);
    let (mut chunk, mut number) = (fill(&mut from, CHUNK + TAG)?, 0_u32);
    loop {
        let next = fill(&mut from, CHUNK + TAG)?;
        let last = next.is_empty();
        let nonce = nonce(&prefix, number, last)?;
        let plain = cipher.open_in_place(nonce, Aad::from(&text), &mut chunk).map_err(|_| {
            let _ = fs::remove_file(&part);
            anyhow!("chunk {number} is corrupt: the file was modified, truncated or combined from other files")
        })?;
        out.write_all(plain)?;
        if last {
            break;
        }
        (chunk, number) = (next, number.checked_add(1).with_context(broken)?);
    }
    out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    // The file is authentic, but may be another snapshot: a client that may write to the store can rename files.
    let of = |what: &str, is: &str, wanted: &str| {
        if is == wanted {
            return Ok(());
        }
        let _ = fs::remove_file(&part);
        Err(anyhow!("it has the {what} {is} instead of {wanted}: files were swapped"))
    };
    of("Cluster", &header.cluster, cluster)?;
    of("name", &header.described.name, name)?;
    fs::rename(&part, to)?;
    Ok((header.described, header.key_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::described;

    struct Desk(tempfile::TempDir);

    impl Desk {
        fn new() -> Self {
            let desk = Self(tempfile::tempdir().unwrap());
            fs::create_dir(desk.path("keys")).unwrap();
            desk.key("key", 1);
            desk
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn key(&self, name: &str, byte: u8) {
            fs::write(self.path("keys").join(name), [byte; KEY_BYTES]).unwrap();
        }

        fn keys(&self) -> EncryptionKeys {
            EncryptionKeys(self.path("keys"))
        }

        fn seal(&self, name: &str, plain: &[u8]) -> Vec<u8> {
            fs::write(self.path("plain"), plain).unwrap();
            let described = described(name, plain);
            seal(&self.keys(), "fleet/pay", &described, &self.path("plain"), &self.path("sealed")).unwrap();
            fs::read(self.path("sealed")).unwrap()
        }

        fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
            fs::write(self.path("sealed"), sealed).unwrap();
            let _ = fs::remove_file(self.path("back"));
            let opened = open(&self.keys(), "fleet/pay", name, &self.path("sealed"), &self.path("back"));
            let there = (self.path("back").exists(), self.path("back.part").exists());
            match opened {
                Ok(_) => Ok(fs::read(self.path("back")).unwrap()),
                Err(error) => {
                    assert_eq!(there, (false, false), "nothing is left of what was refused");
                    Err(format!("{error:#}"))
                }
            }
        }
    }

    fn plain(size: usize) -> Vec<u8> {
        (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    /// Offset of the first chunk.
    fn body(sealed: &[u8]) -> usize {
        12 + u32::from_be_bytes(sealed[8..12].try_into().unwrap()) as usize
    }

    #[test]
    fn what_was_sealed_is_opened_whatever_its_size_and_shows_nothing_of_it() {
        let desk = Desk::new();
        for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK] {
            let sealed = desk.seal("a", &plain(size));
            assert_eq!(desk.open("a", &sealed).unwrap(), plain(size), "{size}");
            let chunks = size.div_ceil(CHUNK).max(1);
            assert_eq!(sealed.len(), body(&sealed) + size + chunks * TAG);
        }
        let secret = b"a password that nobody may read ".repeat(100);
        let sealed = desk.seal("a", &secret);
        assert!(!sealed.windows(16).any(|bytes| bytes == &secret[..16]));
        assert_ne!(sealed, desk.seal("a", &secret), "each file has a key and a nonce of its own");
    }

    #[test]
    fn a_file_that_was_changed_anywhere_is_refused() {
        let desk = Desk::new();
        let sealed = desk.seal("a", &plain(CHUNK + 100));
        let end = body(&sealed);
        // Each byte of magic, length and header, and some of each chunk and tag.
        let spots =
            (0..end).chain([end, end + 5, end + CHUNK, end + CHUNK + TAG - 1, end + CHUNK + TAG, sealed.len() - 1]);
        for at in spots {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(desk.open("a", &changed).is_err(), "the change of byte {at} was not noticed");
        }
    }

    #[test]
    fn a_file_that_was_cut_off_extended_reordered_or_put_together_is_refused() {
        let desk = Desk::new();
        let (one, two) = (desk.seal("a", &plain(3 * CHUNK)), desk.seal("a", &plain(3 * CHUNK)));
        let (at, whole) = (body(&one), CHUNK + TAG);
        assert_eq!(at, body(&two));
        let chunk = |of: &[u8], number: usize| of[at + number * whole..at + (number + 1) * whole].to_vec();
        let made = |chunks: &[Vec<u8>]| [one[..at].to_vec(), chunks.concat()].concat();
        let all = [chunk(&one, 0), chunk(&one, 1), chunk(&one, 2)];
        assert_eq!(made(&all), one);
        let tries: [(&str, Vec<u8>); 9] = [
            ("no chunk", made(&[])),
            ("the last is missing", made(&all[..2])),
            ("the first is missing", made(&all[1..])),
            ("half a chunk is missing", one[..one.len() - CHUNK / 2].to_vec()),
            ("the header alone is cut", one[..at - 3].to_vec()),
            ("two are exchanged", made(&[all[1].clone(), all[0].clone(), all[2].clone()])),
            ("one comes twice", made(&[all[0].clone(), all[0].clone(), all[2].clone()])),
            ("one more at the end", made(&[all[0].clone(), all[1].clone(), all[2].clone(), all[2].clone()])),
            ("one of another file", made(&[all[0].clone(), chunk(&two, 1), all[2].clone()])),
        ];
        for (what, file) in tries {
            assert!(desk.open("a", &file).is_err(), "{what}");
        }
    }

    #[test]
    fn a_snapshot_does_not_pass_for_another_one() {
        let desk = Desk::new();
        let sealed = desk.seal("20260101-000000", b"old");
        let refused = desk.open("20260102-000000", &sealed).unwrap_err();
        assert!(refused.contains("20260101-000000") && refused.contains("20260102-000000"), "{refused}");
        fs::write(desk.path("sealed"), &sealed).unwrap();
        let other = open(&desk.keys(), "fleet/shop", "20260101-000000", &desk.path("sealed"), &desk.path("back"));
        let refused = other.unwrap_err().to_string();
        assert!(refused.contains("fleet/pay") && refused.contains("fleet/shop"), "{refused}");
    }

    #[test]
    fn a_replaced_key_opens_what_it_sealed_while_it_is_kept_and_another_one_does_not() {
        let desk = Desk::new();
        let sealed = desk.seal("a", b"text");
        desk.key("key", 2);
        let refused = desk.open("a", &sealed).unwrap_err();
        let (old, new) = (Key::new([1; KEY_BYTES]).id, Key::new([2; KEY_BYTES]).id);
        assert!(refused.contains(&old) && refused.contains(&new), "{refused}");
        desk.key("previous", 1);
        assert_eq!(desk.open("a", &sealed).unwrap(), b"text");
        fs::write(desk.path("keys").join("key"), b"short").unwrap();
        assert!(desk.open("a", &sealed).unwrap_err().contains("5 bytes"));
    }
}

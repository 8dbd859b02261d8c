//! Reads the protobuf bodies that typed clients send (`kubectl create deployment`, `kubectl drain`), as the JSON that the
//! same client would otherwise have sent. Answers are never protobuf.
//!
//! One generic reader and a table of facts about the messages, which is generated from the Go types
//! ([`generate`]), stand in for the code that protobuf compilers write.

pub mod generate;
mod message;
mod table;
mod wire;

use serde_json::{Map, Value};

use crate::KINDS;
use message::Decoder;
use wire::{Reader, Slice, Wire};

/// The prefix of every body.
const MAGIC: &[u8] = b"k8s\0";

/// The name of the real server's scheme, which its error message contains.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// The options of a delete, which clients send in whatever group and version they are talking to.
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// Reads a protobuf body.
///
/// # Errors
/// The error and its place, in the words of the real server where it has some.
pub fn decode(bytes: &[u8]) -> Result<Value, String> {
    let envelope = Envelope::read(bytes)?;
    let name = message_name(&envelope.api_version, &envelope.kind)?;
    let mut object = Map::new();
    Decoder::new(table::table()?).message(name, envelope.raw, 0, &mut object)?;
    object.insert("apiVersion".into(), Value::String(envelope.api_version));
    object.insert("kind".into(), Value::String(envelope.kind));
    Ok(Value::Object(object))
}

/// The message around the object: what it is, and its bytes.
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: Slice<'a>,
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("empty data".into());
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| {
            format!("provided data does not appear to be a protobuf message, expected prefix {}", go_bytes(MAGIC))
        })?;
        if rest.is_empty() {
            return Err("empty body".into());
        }
        let (mut type_meta, mut raw) = (Slice { bytes: &[], at: 0 }, Slice { bytes: &[], at: bytes.len() });
        each_bytes(Slice { bytes: rest, at: MAGIC.len() }, |number, value| match number {
            1 => type_meta = value,
            2 => raw = value,
            _ => {}
        })?;
        let (mut api_version, mut kind) = (String::new(), String::new());
        each_bytes(type_meta, |number, value| {
            let text = String::from_utf8_lossy(value.bytes).into_owned();
            match number {
                1 => api_version = text,
                2 => kind = text,
                _ => {}
            }
        })?;
        let shown = || format!("runtime.TypeMeta{{APIVersion:{api_version:?}, Kind:{kind:?}}}");
        if kind.is_empty() {
            return Err(format!("Object 'Kind' is missing in '{}'", shown()));
        }
        if api_version.is_empty() {
            return Err(format!("Object 'apiVersion' is missing in '{}'", shown()));
        }
        Ok(Envelope { api_version, kind, raw })
    }
}

fn each_bytes<'a>(raw: Slice<'a>, mut see: impl FnMut(u32, Slice<'a>)) -> Result<(), String> {
    let mut reader = Reader::new(raw);
    while let Some((number, wire)) = reader.field()? {
        if let Wire::Bytes(value) = wire {
            see(number, value);
        }
    }
    Ok(())
}

/// Bytes as Go prints a slice of them.
fn go_bytes(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("[{}]", numbers.join(" "))
}

/// The message of a kind: a built-in kind, the kind of one of its subresources, or the options of a delete.
fn message_name(api_version: &str, kind: &str) -> Result<&'static str, String> {
    if kind == "DeleteOptions" {
        return Ok(DELETE_OPTIONS);
    }
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let own = KINDS.iter().map(|row| (row.group, row.version, row.kind, row.type_name));
    let parts = KINDS.iter().flat_map(|row| row.subresources);
    let parts = parts.map(|sub| (sub.group, sub.version, sub.kind, sub.type_name)).filter(|sub| !sub.1.is_empty());
    own.chain(parts)
        .find(|row| (row.0, row.1, row.2) == (group, version, kind))
        .map(|row| row.3)
        .ok_or_else(|| format!("no kind {kind:?} is registered for version {api_version:?} in scheme {SCHEME:?}"))
}

#[cfg(test)]
mod tests;

//! Downloads the sources of packages: once, complete, and verified.

use std::time::Duration;

use fleetwright_wire::Source;
use fleetwright_wire::text::truncate_bytes;

use crate::method::{MethodContext, MethodError};
use crate::text::sha256;

/// Largest source in bytes. A server that sends without end must not fill the disk.
pub const MAX_SOURCE: u64 = 4 << 30;

/// Path of a downloaded source on the host.
pub fn kept(cache: &str, source: &Source) -> String {
    format!("{cache}/{}", source.sha256)
}

/// Makes sure that a source is on the host and returns its path. A file with the right digest is not downloaded again; a partial file, or
/// one with another digest, is never used and never left.
///
/// # Errors
/// When no mirror has the source; the message says what each mirror had instead.
pub fn source(work: &mut MethodContext<'_>, source: &Source) -> Result<String, MethodError> {
    if source.sha256.len() != 64 || !source.sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(MethodError(format!(
            "invalid sha256 `{}` of the source: must be 64 lower-case hex digits",
            truncate_bytes(&source.sha256, 80)
        )));
    }
    let path = kept(work.cache, source);
    let there = work.system.sha256(&path).map_err(MethodError::io(&path))?;
    if there.as_deref() == Some(&source.sha256) {
        return Ok(path);
    }
    if let Some(inline) = &source.inline {
        let found = sha256(&inline.0);
        if found != source.sha256 {
            return Err(MethodError(format!(
                "sha256 mismatch of the inline source: found {found}, expected {}",
                source.sha256
            )));
        }
        work.system.write(&path, &inline.0, 0o600, "root", "root").map_err(MethodError::io(&path))?;
        return Ok(path);
    }
    if work.offline {
        return Err(MethodError(format!("the source with sha256 {} is no longer kept on the host", source.sha256)));
    }
    if source.urls.is_empty() {
        return Err(MethodError(format!("the source with sha256 {} has no URL", source.sha256)));
    }
    let part = format!("{path}.part");
    let mut errors = Vec::new();
    for url in &source.urls {
        match fetch(work, url, &part, &source.sha256) {
            Ok(()) => {
                work.system.rename(&part, &path).map_err(MethodError::io(&path))?;
                return Ok(path);
            }
            Err(error) => {
                let _ = work.system.remove(&part);
                errors.push(error);
            }
        }
    }
    Err(MethodError(errors.join("; ")))
}

fn fetch(work: &mut MethodContext<'_>, url: &str, part: &str, wanted: &str) -> Result<(), String> {
    let shown = without_password(url);
    let within = work.left().map_err(|error| format!("{shown}: {error}"))?;
    work.say(format!("fetching {shown}"));
    let on_progress = &mut *work.on_progress;
    let mut told = 0;
    let mut progress = |done: u64, all: Option<u64>| {
        // Progress for every tenth of the file, or every 16 MB if its length is unknown.
        let step = all.map_or(16 << 20, |all| (all / 10).max(1 << 20));
        if done >= told + step {
            told = done;
            on_progress(match all {
                Some(all) => format!("fetching {shown}: {} %", done * 100 / all.max(1)),
                None => format!("fetching {shown}: {} MB", done >> 20),
            });
        }
    };
    work.system
        .fetch(url, part, MAX_SOURCE, within.max(Duration::from_secs(1)), &mut progress)
        .map_err(|error| format!("{shown}: {error}"))?;
    let found = work.system.sha256(part).map_err(|error| format!("{part}: {error}"))?.unwrap_or_default();
    if found != wanted {
        return Err(format!("{shown}: sha256 mismatch: found {found}, expected {wanted}"));
    }
    Ok(())
}

/// A URL for messages: credentials before an `@` are removed.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..end].rsplit_once('@').map_or(&rest[..end], |(_, host)| host);
    truncate_bytes(&format!("{scheme}{}{host}{}", if scheme.is_empty() { "" } else { "://" }, &rest[end..]), 300)
}

//! Archives: tar, plain or compressed, recognized by their content.

use std::io::{self, BufReader, Cursor, Read};
use std::path::{Component, Path};

/// Most bytes that an archive may unpack to. A small archive that expands without end must not fill the disk.
const MAX_SIZE: u64 = 16 << 30;

/// Calls the function for each entry with its path after `strip` leading components were removed. Entries with an empty path are skipped.
///
/// # Errors
/// When the file is no archive, or an entry would lead out of the directory that it is unpacked into.
pub(super) fn each<R: Read>(
    archive: R,
    strip: u32,
    mut act: impl FnMut(&mut tar::Entry<'_, Box<dyn Read + '_>>, &str) -> io::Result<()>,
) -> io::Result<()> {
    let mut archive = tar::Archive::new(opened(archive)?);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if !(kind.is_dir() || kind.is_file() || kind.is_symlink() || kind.is_hard_link()) {
            if kind.is_character_special() || kind.is_block_special() || kind.is_fifo() {
                return Err(refused(&entry.path()?.display(), "is a device or pipe"));
            }
            continue;
        }
        let path = entry.path()?.into_owned();
        let inside = inside(&path, strip)?;
        if !inside.is_empty() {
            act(&mut entry, &inside)?;
        }
    }
    Ok(())
}

/// The path inside the directory that an archive is unpacked into; empty if nothing is left of it.
pub(super) fn inside(path: &Path, strip: u32) -> io::Result<String> {
    let mut kept = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir | Component::RootDir => {}
            Component::Normal(name) => match name.to_str() {
                Some(name) => kept.push(name),
                None => return Err(refused(&path.display(), "has a name that is not UTF-8")),
            },
            Component::ParentDir | Component::Prefix(_) => {
                return Err(refused(&path.display(), "leads out of the folder"));
            }
        }
    }
    Ok(kept.get(strip as usize..).unwrap_or_default().join("/"))
}

pub(super) fn refused(path: &dyn std::fmt::Display, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its entry {path} {why}"))
}

fn opened<'a, R: Read + 'a>(mut archive: R) -> io::Result<Box<dyn Read + 'a>> {
    let mut magic = [0; 4];
    let mut have = 0;
    while have < magic.len() {
        match archive.read(&mut magic[have..])? {
            0 => break,
            read => have += read,
        }
    }
    let whole = Cursor::new(magic[..have].to_vec()).chain(archive);
    Ok(match magic {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(whole)).take(MAX_SIZE)),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(BufReader::new(whole)).map_err(io::Error::other)?;
            Box::new(decoder.take(MAX_SIZE))
        }
        _ => Box::new(whole.take(MAX_SIZE)),
    })
}

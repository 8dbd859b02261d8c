//! Makes the restored data of a snapshot the data of a member.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// The file with the id of the restore that the data is from.
const MARK: &str = "restored";

/// Makes the directory `restored-ID` of a member's volume its data. The old data is moved to `before-ID`. The function is idempotent.
///
/// # Errors
/// The directory does not exist.
pub fn place(volume: &Path, id: &str) -> Result<()> {
    let (data, new, old) =
        (volume.join("data"), volume.join(format!("restored-{id}")), volume.join(format!("before-{id}")));
    if fs::read_to_string(volume.join(MARK)).is_ok_and(|mark| mark == id) {
        return clear(&new);
    }
    ensure!(new.join("member").exists(), "no restored data in {}", new.display());
    if data.exists() && !old.exists() {
        fs::rename(&data, &old).with_context(|| format!("cannot move {} away", data.display()))?;
    }
    // Left by an attempt that ended between the next two lines.
    clear(&data)?;
    fs::rename(&new, &data).with_context(|| format!("cannot move {} into place", new.display()))?;
    fs::write(volume.join(MARK), id)?;
    Ok(fs::File::open(volume)?.sync_all()?)
}

/// Removes the old data of a member after a restore, and the directories of restores that another one replaced.
///
/// # Errors
/// A directory cannot be removed.
pub fn clean(volume: &Path) -> Result<()> {
    let cannot = || format!("cannot read {}", volume.display());
    for entry in fs::read_dir(volume).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let name = entry.file_name();
        if ["before-", "restored-"].iter().any(|kind| name.to_string_lossy().starts_with(kind)) {
            clear(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a directory, if it exists. A corrupted volume may have a file of that name.
///
/// # Errors
/// The directory cannot be removed.
pub fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            fs::remove_file(folder).with_context(|| format!("cannot remove {}", folder.display()))
        }
        removed => removed.with_context(|| format!("cannot remove {}", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_set_aside_until_it_is_cleaned_and_once_is_enough() {
        let volume = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = volume.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let read = |path: &str| fs::read_to_string(volume.path().join(path)).ok();
        assert!(place(volume.path(), "1").is_err());
        file("data/member/db", "old");
        file("restored-1/member/db", "new");
        place(volume.path(), "1").unwrap();
        let seen = || (read("data/member/db"), read("before-1/member/db"));
        assert_eq!(seen(), (Some("new".to_owned()), Some("old".to_owned())));
        // A pod that runs again has restored it again, but etcd may have written since.
        file("data/member/db", "written");
        file("restored-1/member/db", "new");
        place(volume.path(), "1").unwrap();
        assert_eq!(seen(), (Some("written".to_owned()), Some("old".to_owned())));
        assert_eq!(read("restored-1/member/db"), None);
        clean(volume.path()).unwrap();
        clean(volume.path()).unwrap();
        assert_eq!(seen(), (Some("written".to_owned()), None));
        // An empty volume is restored as well.
        file("restored-2/member/db", "newer");
        fs::remove_dir_all(volume.path().join("data")).unwrap();
        place(volume.path(), "2").unwrap();
        assert_eq!(read("data/member/db").as_deref(), Some("newer"));
        // So is a volume with a file in the place of its data directory.
        file("restored-3/member/db", "newest");
        fs::remove_dir_all(volume.path().join("data")).unwrap();
        file("data", "spoilt");
        place(volume.path(), "3").unwrap();
        assert_eq!(read("before-3").as_deref(), Some("spoilt"));
        file("restored-4/member/db", "of one that was left for another");
        clean(volume.path()).unwrap();
        let names = fs::read_dir(volume.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(
            (read("data/member/db").as_deref(), names),
            (Some("newest"), vec!["data".to_owned(), MARK.to_owned()])
        );
    }
}

//! docs/architecture.md names the crates that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn the_architecture_names_each_crate_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("docs/architecture.md");
    let (_, crates) = page.split_once("\n## Crates\n").expect("the section of crates");
    let (crates, _) = crates.split_once("\n## ").expect("the section after that of crates");
    let row = |line: &str| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name.to_owned());
    let named: BTreeSet<_> = crates.lines().filter_map(row).collect();
    let is_crate = |entry: &fs::DirEntry| entry.path().join("Cargo.toml").exists();
    let folders = fs::read_dir(root.join("crates")).expect("the folder of crates").filter_map(Result::ok);
    let existing: BTreeSet<_> =
        folders.filter(is_crate).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(named, existing);
}

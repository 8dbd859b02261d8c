//! docs/architecture.md names the crates that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn the_architecture_names_each_crate_in_the_table_of_its_folder_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml");
    let members =
        workspace.lines().find_map(|line| line.strip_prefix("members = ")).expect("the workspace has members");
    let folders: Vec<_> = members.split('"').filter_map(|member| member.strip_suffix("/*")).collect();
    assert_eq!(folders, ["crates", "kube", "testing"], "docs/architecture.md and hack/words.sh name these folders");
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("docs/architecture.md");
    let (_, crates) = page.split_once("\n## Crates\n").expect("the section of crates");
    let (crates, _) = crates.split_once("\n## ").expect("the section after that of crates");
    let row = |line: &str| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name.to_owned());
    for folder in folders {
        let (_, table) = crates.split_once(&format!("\n### `{folder}/`\n")).expect("the section of the folder");
        let table = table.split("\n### ").next().unwrap_or_default();
        let named: BTreeSet<_> = table.lines().filter_map(row).collect();
        let is_crate = |entry: &fs::DirEntry| entry.path().join("Cargo.toml").exists();
        let entries = fs::read_dir(root.join(folder)).expect("the folder").filter_map(Result::ok);
        let existing: BTreeSet<_> =
            entries.filter(is_crate).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        assert_eq!(named, existing, "the crates in {folder}/");
    }
}

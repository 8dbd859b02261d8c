//! Writes the protobuf encoding of Kubernetes' Go types into `kube/builtins/src/protobuf/table.txt`; with `--check`, only
//! checks whether the file is up to date, and decodes every example body of the Go modules.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fleetwright_builtins::protobuf;
use serde_json::Value;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("kube/builtins/src/protobuf/table.txt");
    let read = |package: &str| go_files(&root, package).map_err(|error| format!("{error:#}"));
    let table = protobuf::generate::generate(read).map_err(|error| anyhow!(error))?;
    if !std::env::args().any(|argument| argument == "--check") {
        return std::fs::write(&file, table).with_context(|| format!("writing {}", file.display()));
    }
    let committed = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    ensure!(committed == table, "{} is stale: run `make generate` and read the difference", file.display());
    let read = check_examples(&module_dir(&root, "k8s.io/api")?.join("testdata/HEAD"))?
        + check_examples(&module_dir(&root, "k8s.io/apiextensions-apiserver")?.join("pkg/apis/testdata/HEAD"))?;
    ensure!(read > 30, "the Go modules have only {read} examples");
    Ok(())
}

/// A module has a body of every kind with every field set, as protobuf and as JSON: both must read the same.
fn check_examples(dir: &Path) -> Result<usize> {
    let mut read = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "pb") {
            continue;
        }
        let expected: Value = serde_json::from_slice(&std::fs::read(path.with_extension("json"))?)?;
        let text = |field: &str| expected[field].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
        if fleetwright_builtins::find_kind(group, version, text("kind")).is_some() {
            let found = protobuf::decode(&std::fs::read(&path)?).map_err(|e| anyhow!("{}: {e}", path.display()))?;
            ensure!(found == expected, "{}: read\n{found:#}\ninstead of\n{expected:#}", path.display());
            read += 1;
        }
    }
    Ok(read)
}

/// The hand-written files of a Go package.
fn go_files(root: &Path, package: &str) -> Result<Vec<String>> {
    let module = package.split('/').take(2).collect::<Vec<_>>().join("/");
    let inside = package.strip_prefix(&module).unwrap_or_default().trim_start_matches('/');
    let dir = module_dir(root, &module)?.join(inside);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".go") && !name.ends_with("_test.go") && !name.starts_with("zz_") && !name.contains(".pb.") {
            files.push(std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?);
        }
    }
    Ok(files)
}

/// Where Go keeps a module, in the version that the real server is built from.
fn module_dir(root: &Path, module: &str) -> Result<PathBuf> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(root.join("k8s/1.37"))
        .output()
        .context("starting go, which finds the modules")?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let dir = told["Dir"].as_str().unwrap_or_default().to_owned();
    if !output.status.success() || dir.is_empty() {
        bail!("go knows no directory of {module}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(dir.into())
}

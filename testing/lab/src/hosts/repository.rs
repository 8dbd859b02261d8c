//! A local apt repository: Debian packages with all their dependencies for a bare host, fetched once from Debian's mirror.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::command::{aside, call};
use super::server::{PackageServer, Published};
use super::template::{digest as key, mirror, once};
use super::{Template, requirements};
use crate::binaries::cache;

/// A package of a [`Repository`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deb {
    /// The name of the package.
    pub name: String,
    /// The version of the package.
    pub version: String,
    /// The package file.
    pub file: PathBuf,
}

/// Debian packages that hosts can install without any other source.
#[derive(Clone, Debug)]
pub struct Repository {
    folder: PathBuf,
    debs: Vec<Deb>,
}

impl Repository {
    /// Fetches these packages and the dependencies that the template lacks, and caches them.
    ///
    /// # Errors
    /// When a package cannot be fetched.
    pub async fn with(template: &Template, packages: &[&str]) -> Result<Self> {
        let template = template.clone();
        let packages: Vec<_> = packages.iter().map(|&package| package.to_owned()).collect();
        aside(move || {
            let names: Vec<_> = packages.iter().map(String::as_str).collect();
            Self::made(&template, &names)
        })
        .await
    }

    /// The packages of Debian whose names match an expression, in the order of their versions: to find the available kernels.
    pub async fn search(template: &Template, expression: &str) -> Result<Vec<String>> {
        let (template, expression) = (template.clone(), expression.to_owned());
        aside(move || {
            let mut apt = Apt::prepare(&template)?;
            let found = apt.run("apt-cache", &["search", "--names-only", &expression])?;
            let names = found.lines().filter_map(|line| line.split_whitespace().next()).collect::<Vec<_>>().join("\n");
            let sorted = call("sh", ["-c", r#"printf '%s\n' "$1" | sort -V"#, "sh", &names])?;
            Ok(sorted.lines().map(str::to_owned).collect())
        })
        .await
    }

    /// The folder with the packages and their index.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All packages.
    pub fn debs(&self) -> &[Deb] {
        &self.debs
    }

    /// The package of this name.
    pub fn deb(&self, name: &str) -> Result<&Deb> {
        self.debs
            .iter()
            .find(|deb| deb.name == name)
            .with_context(|| format!("package {name} not found in the repository"))
    }

    /// Serves the repository; returns a line for a host's `/etc/apt/sources.list.d`.
    pub fn serve(&self, server: &PackageServer) -> Result<String> {
        let place = server.folder().join("apt");
        let _ = fs::remove_file(&place);
        symlink(&self.folder, &place)?;
        Ok(format!("deb [trusted=yes] {} ./\n", server.url("apt")))
    }

    /// Serves one package's file.
    pub fn publish(&self, server: &PackageServer, name: &str) -> Result<(Deb, Published)> {
        let deb = self.deb(name)?;
        let file = deb.file.file_name().context("a package is a file")?.to_string_lossy();
        Ok((deb.clone(), server.publish(&format!("debs/{file}"), &deb.file)?))
    }

    fn made(template: &Template, packages: &[&str]) -> Result<Self> {
        requirements::require()?;
        let base = template.folder().to_string_lossy();
        let parts: Vec<_> = [&*base].into_iter().chain(packages.iter().copied()).collect();
        let folder = cache()?.join("hosts").join(format!("apt-{}", key(&parts)));
        once(&folder, |unfinished| {
            eprintln!("lab: downloading the Debian packages {} and their dependencies (once)", packages.join(", "));
            let mut apt = Apt::prepare(template)?;
            let install = ["install", "-y", "--no-install-recommends", "--download-only"];
            apt.run("apt-get", &[install.as_slice(), packages].concat())?;
            fs::create_dir_all(unfinished)?;
            for entry in fs::read_dir(apt.work.path().join("cache/archives"))? {
                let file = entry?.path();
                // apt escapes file names: `1%3a2.3` is version 1:2.3.
                if file.extension().is_some_and(|extension| extension == "deb") {
                    let name = file.file_name().context("a file has a name")?.to_string_lossy().replace("%3a", "_");
                    fs::copy(&file, unfinished.join(name))?;
                }
            }
            let index = r#"cd "$1" && apt-ftparchive packages . >Packages && apt-ftparchive release . >Release.tmp && mv Release.tmp Release"#;
            call("sh", ["-euc", index, "sh", &unfinished.to_string_lossy()]).map(drop)
        })?;
        let index = fs::read_to_string(folder.join("Packages"))?;
        let debs = index.split("\n\n").filter_map(|paragraph| listed(paragraph, &folder)).collect();
        Ok(Self { folder, debs })
    }
}

fn listed(paragraph: &str, folder: &Path) -> Option<Deb> {
    let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Some(Deb {
        name: field("Package")?.to_owned(),
        version: field("Version")?.to_owned(),
        file: folder.join(field("Filename")?.trim_start_matches("./")),
    })
}

/// apt as a bare host runs it, with its own folders: independent of this machine's packages and lists.
struct Apt {
    work: tempfile::TempDir,
    options: Vec<String>,
}

impl Apt {
    fn prepare(template: &Template) -> Result<Self> {
        let work = tempfile::Builder::new().prefix("fleetwright-apt-").tempdir()?;
        let path = |name: &str| work.path().join(name).display().to_string();
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(work.path().join(folder))?;
        }
        let mirror = mirror();
        // Security updates are beside the main archive on all full mirrors.
        let security = format!("{}-security", mirror.trim_end_matches('/'));
        let sources = format!("deb {mirror} bookworm main\ndeb {security} bookworm-security main\n");
        fs::write(work.path().join("sources.list"), sources)?;
        fs::copy(template.folder().join("var/lib/dpkg/status"), work.path().join("status"))?;
        let keys = template.folder().join("etc/apt/trusted.gpg.d");
        let options = [
            format!("Dir::State={}", path("state")),
            format!("Dir::State::status={}", path("status")),
            format!("Dir::Cache={}", path("cache")),
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            "Dir::Etc::preferencesparts=-".to_owned(),
            format!("Dir::Etc::trustedparts={}", keys.display()),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        let mut apt = Self { work, options: options.to_vec() };
        apt.run("apt-get", &["update", "-qq"])?;
        Ok(apt)
    }

    fn run(&mut self, program: &str, arguments: &[&str]) -> Result<String> {
        let options = self.options.iter().flat_map(|option| ["-o", option.as_str()]);
        call(program, options.chain(arguments.iter().copied()))
    }
}

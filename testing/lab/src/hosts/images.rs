//! Container images without a registry and without a daemon: docker archives built from files of this machine, for
//! `ctr -n k8s.io images import`.
//!
//! Binaries of Kubernetes are large, so an archive is written as a stream: the importer reads it from a pipe, and no file is kept.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use aws_lc_rs::digest::{Context, SHA256, digest};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use super::command::{aside, call};
use super::modules;
use super::tree::hex;
use crate::Binaries;

/// The sandbox image, by the name in the configuration of Debian's containerd.
pub const PAUSE: &str = "registry.k8s.io/pause:3.6";
/// A web server on port 8080 that answers with its pod's name.
pub const WEB: &str = "fleetwright.io/lab/web:1";
/// A shell with all of busybox, for workloads of tests.
pub const BUSYBOX: &str = "fleetwright.local/busybox:1";
/// The names of the images in the specs of [`modules::SPECS`].
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
/// The older image that specs roll from or to; only the difference of the images matters.
const OLDER_AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.55";
const SPECS_BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const SPECS_DNS: &str = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0";
const SPECS_PAUSE: &str = "registry.k8s.io/pause:3.10.2";

/// Part of the cache key: change it with every change of the build below.
pub(crate) const RECIPE: &str = "images of files of this machine, 3";

/// The prefix of the names of images that are built here.
const REGISTRY: &str = "fleetwright.local";
/// The folder of the executables in an image.
const FOLDER: &str = "usr/local/bin";
/// The unprivileged user of control planes.
const PASSWD: &[u8] = b"root:x:0:0:root:/:/bin/sh\nnonroot:x:65532:65532:nonroot:/:/bin/sh\n";
const GROUP: &[u8] = b"root:x:0:\nnonroot:x:65532:\n";

/// The name of a component's image, such as `fleetwright.local/kube-apiserver:v1.36.4`.
pub fn name(component: &str, version: &str) -> String {
    format!("{REGISTRY}/{component}:{version}")
}

/// The name of CoreDNS' image.
pub fn coredns() -> String {
    name("coredns", &format!("v{}", modules::COREDNS))
}

/// An image of one layer: files of this machine, and its entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    name: String,
    /// Further names.
    also: Vec<String>,
    /// The path in the image, and the file of this machine.
    files: Vec<(String, PathBuf)>,
    /// The path in the image, and the link's target.
    links: Vec<(String, String)>,
    entrypoint: Vec<String>,
    /// The command after that, unless a pod sets its own.
    command: Vec<String>,
}

impl Image {
    /// An image of executables, under their own names; the first one is its entry point.
    ///
    /// # Errors
    /// When an executable has no file name.
    pub fn of(name: impl Into<String>, executables: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let mut files = Vec::new();
        for file in executables {
            let own = file.file_name().with_context(|| format!("{} is not an executable", file.display()))?;
            files.push((format!("{FOLDER}/{}", own.to_string_lossy()), file.clone()));
        }
        let entrypoint = files.first().map(|(path, _)| format!("/{path}")).into_iter().collect();
        Ok(Self { name: name.into(), also: Vec::new(), files, links: Vec::new(), entrypoint, command: Vec::new() })
    }

    /// An image of one executable of this machine, with its shared libraries.
    ///
    /// # Errors
    /// When the libraries cannot be determined.
    pub fn program(name: impl Into<String>, executable: impl Into<PathBuf>) -> Result<Self> {
        let executable = executable.into();
        Self::of(name, [executable.clone()])?.libraries(&executable)
    }

    /// Adds another executable of this machine, with its shared libraries.
    fn tool(mut self, program: &str) -> Result<Self> {
        let folders = ["/usr/sbin", "/usr/bin"].map(|folder| Path::new(folder).join(program));
        let found = folders.into_iter().find(|path| path.is_file());
        let found = found.with_context(|| format!("{program} not found; run hack/deps.sh hosts to install it"))?;
        self.files.push((format!("{FOLDER}/{program}"), found.clone()));
        self.libraries(&found)
    }

    /// Adds the shared libraries of an executable.
    fn libraries(mut self, executable: &Path) -> Result<Self> {
        let linked = call("ldd", [executable.as_os_str()])?;
        // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, or only the path for the dynamic loader.
        for path in linked.split_whitespace().filter(|word| word.starts_with('/')) {
            let place = path.trim_start_matches('/').to_owned();
            if self.files.iter().all(|(known, _)| *known != place) {
                self.files.push((place, path.into()));
            }
        }
        Ok(self)
    }

    /// The program fleetwright, with the helpers for hosts at the place where it searches for them.
    ///
    /// # Errors
    /// When one of the files cannot be read.
    pub fn fleetwright(name: impl Into<String>, program: impl Into<PathBuf>, helpers: &Path) -> Result<Self> {
        let mut image = Self::program(name, program)?;
        for helper in fs::read_dir(helpers).with_context(|| format!("cannot read {}", helpers.display()))? {
            let helper = helper?.path();
            let own = helper.file_name().map(|own| own.to_string_lossy().into_owned()).unwrap_or_default();
            if own.starts_with("fleetwright-host-") {
                image.files.push((format!("usr/local/share/fleetwright/{own}"), helper));
            }
        }
        Ok(image)
    }

    /// kube-proxy of a minor such as `1.36`, with `nft`.
    ///
    /// # Errors
    /// When kube-proxy was not built, or this machine has no `nft`.
    pub fn kube_proxy(minor: &str) -> Result<Self> {
        let binary = Binaries::find(minor)?.path("kube-proxy")?;
        let mut image = Self::of(name("kube-proxy", Binaries::version(minor)?), [binary])?.tool("nft")?;
        // Without the names of protocols nft prints numbers instead, and a restarted kube-proxy takes all Services for others, and drops them.
        image.files.push(("etc/protocols".to_owned(), "/etc/protocols".into()));
        Ok(image)
    }

    /// etcd (with etcdutl, where it was built), kube-apiserver, kube-controller-manager and kube-scheduler of a minor such as `1.36`.
    ///
    /// # Errors
    /// When one was not built; the error names the command to run.
    pub fn control_plane(minor: &str) -> Result<Vec<Self>> {
        let binaries = Binaries::find(minor)?;
        let etcd = ["etcd", "etcdutl"].into_iter().filter_map(|binary| binaries.path(binary).ok());
        let mut images = vec![Self::of(name("etcd", Binaries::etcd_version(minor)?), etcd)?];
        for component in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            images.push(Self::of(name(component, Binaries::version(minor)?), [binaries.path(component)?])?);
        }
        Ok(images)
    }

    /// The image of CoreDNS. The first call builds it from its Go module.
    ///
    /// # Errors
    /// When it cannot be built.
    pub async fn coredns() -> Result<Self> {
        Self::of(coredns(), [aside(modules::coredns).await?])
    }

    /// The images of Kubernetes' own specs that can be built here: agnhost, busybox, dig and pause. Specs with other images cannot run.
    ///
    /// # Errors
    /// When agnhost cannot be built, or this machine lacks one of the programs beside it.
    pub async fn of_specs() -> Result<Vec<Self>> {
        let (agnhost, pair) = (aside(modules::agnhost).await?, aside(modules::agnhost_pair).await?);
        aside(move || {
            let server = |name: &str, entrypoint: &[&str], command: &[&str]| -> Result<Self> {
                let mut image = Self::busybox(name, entrypoint, command)?;
                image.files.push(("agnhost".to_owned(), agnhost.clone()));
                image.links.push(("agnhost-2".to_owned(), "agnhost".to_owned()));
                Ok(image)
            };
            let mut whole = server(AGNHOST, &["/agnhost"], &["pause"])?
                .shell()?
                .tool("curl")?
                .tool("dig")?
                .tool("getent")?
                .tool("nc")?;
            whole.files.extend(["localhost.crt", "localhost.key"].map(|name| (name.to_owned(), pair.join(name))));
            whole.also.push(OLDER_AGNHOST.to_owned());
            Ok(vec![
                whole,
                // Like the others it exits on SIGTERM.
                server(SPECS_PAUSE, &["/agnhost", "pause"], &[])?,
                Self::busybox(SPECS_BUSYBOX, &[], &["sh"])?,
                Self::busybox(SPECS_DNS, &[], &["sh"])?.shell()?.tool("dig")?.tool("getent")?,
            ])
        })
        .await
    }

    /// Uses another shell than busybox' own, which prefers its built-in programs to all others.
    fn shell(mut self) -> Result<Self> {
        self.links.retain(|(path, _)| path != "bin/sh");
        let dash = Path::new("/bin/dash");
        self.files.push(("bin/sh".to_owned(), dash.into()));
        self.libraries(dash)
    }

    /// The images [`PAUSE`], [`WEB`] and [`BUSYBOX`].
    ///
    /// # Errors
    /// When this machine has no busybox.
    pub fn small() -> Result<Vec<Self>> {
        let serve = "mkdir -p /www && hostname >/www/index.html && exec httpd -f -p 8080 -h /www";
        Ok(vec![
            Self::busybox(PAUSE, &["/bin/busybox", "sleep", "2147483647"], &[])?,
            Self::busybox(WEB, &["/bin/busybox", "sh", "-c", serve], &[])?,
            Self::busybox(BUSYBOX, &[], &["sh"])?,
        ])
    }

    fn busybox(name: &str, entrypoint: &[&str], command: &[&str]) -> Result<Self> {
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).is_file());
        let busybox = busybox.context("busybox not found; install the Debian package busybox-static")?;
        let applets = call(busybox, ["--list"])?;
        let applets = applets.lines().filter(|applet| *applet != "busybox");
        Ok(Self {
            name: name.to_owned(),
            also: Vec::new(),
            files: vec![("bin/busybox".to_owned(), busybox.into())],
            links: applets.map(|applet| (format!("bin/{applet}"), "busybox".to_owned())).collect(),
            entrypoint: entrypoint.iter().map(|&word| word.to_owned()).collect(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
        })
    }

    /// The name of the image.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A key over the sizes and modification times of its files. A hash of their content would take longer than booting a host.
    pub(crate) fn key(&self) -> Result<String> {
        let mut key = format!("{self:?}");
        for (_, file) in &self.files {
            let found = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
            key += &format!(" {} {:?}", found.len(), found.modified()?);
        }
        Ok(key)
    }

    /// Writes the image as a docker archive: the same bytes for the same files.
    ///
    /// # Errors
    /// When a file cannot be read, or the archive cannot be written.
    pub fn write(&self, to: impl Write) -> Result<()> {
        write(std::slice::from_ref(self), to)
    }

    fn layer(&self, to: &mut impl Write) -> Result<()> {
        let mut layer = Builder::new(to);
        for (folder, mode) in [("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("usr", 0o755), ("usr/local", 0o755)] {
            layer.append_data(&mut header(mode, EntryType::Directory, 0), format!("{folder}/"), io::empty())?;
        }
        layer.append_data(&mut header(0o755, EntryType::Directory, 0), format!("{FOLDER}/"), io::empty())?;
        put(&mut layer, "etc/passwd", PASSWD)?;
        put(&mut layer, "etc/group", GROUP)?;
        for (path, file) in &self.files {
            let open = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
            let size = open.metadata()?.len();
            layer.append_data(&mut header(0o755, EntryType::Regular, size), path, open)?;
        }
        for (path, target) in &self.links {
            layer.append_link(&mut header(0o777, EntryType::Symlink, 0), path, target)?;
        }
        Ok(layer.finish()?)
    }
}

/// Writes images as one docker archive.
///
/// # Errors
/// When a file cannot be read, or the archive cannot be written.
pub fn write(images: &[Image], to: impl Write) -> Result<()> {
    let mut archive = Builder::new(to);
    let mut manifest = Vec::new();
    for (number, image) in images.iter().enumerate() {
        // The archive's index names the layer by its digest, and tar needs sizes first: so the layer is built twice and stored nowhere.
        let mut sum = Sum { context: Context::new(&SHA256), length: 0 };
        image.layer(&mut sum)?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {
                "Entrypoint": image.entrypoint,
                "Cmd": image.command,
                "Env": [format!("PATH=/{FOLDER}:/bin")],
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(sum.context.finish().as_ref()))] },
        })
        .to_string();
        let name = format!("{}.json", hex(digest(&SHA256, config.as_bytes()).as_ref()));
        let layer = format!("{number}/layer.tar");
        put(&mut archive, &name, config.as_bytes())?;
        let mut begins = header(0o644, EntryType::Regular, sum.length);
        begins.set_path(&layer)?;
        begins.set_cksum();
        archive.get_mut().write_all(begins.as_bytes())?;
        // The layer is a whole number of tar blocks: no padding is needed.
        image.layer(archive.get_mut())?;
        let names: Vec<_> = std::iter::once(&image.name).chain(&image.also).collect();
        manifest.push(json!({ "Config": name, "RepoTags": names, "Layers": [layer] }));
    }
    put(&mut archive, "manifest.json", Value::from(manifest).to_string().as_bytes())?;
    Ok(archive.into_inner()?.flush()?)
}

/// Counts and hashes the written bytes.
struct Sum {
    context: Context,
    length: u64,
}

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.context.update(bytes);
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header(mode: u32, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mtime(0);
    header
}

fn put(to: &mut Builder<impl Write>, path: &str, bytes: &[u8]) -> Result<()> {
    let mut header = header(0o644, EntryType::Regular, bytes.len() as u64);
    Ok(to.append_data(&mut header, path, bytes)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use super::*;

    fn unpacked(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().to_string_lossy().into_owned(), content);
        }
        files
    }

    #[test]
    fn an_image_names_its_layer_by_digest_and_has_its_executables_where_they_are_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        // The sizes are no multiples of a block.
        for (name, text) in [("etcd", "one"), ("etcdutl", "two, and somewhat longer")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let executables = ["etcd", "etcdutl"].map(|name| folder.path().join(name));
        let mut image = Image::of(name("etcd", "v3.6.8"), executables).unwrap();
        image.also.push(name("etcd", "v3.6.7"));
        assert_eq!(image.name(), "fleetwright.local/etcd:v3.6.8");
        let (mut archive, mut again) = (Vec::new(), Vec::new());
        image.write(&mut archive).unwrap();
        image.write(&mut again).unwrap();
        assert_eq!(archive, again);
        // A tar consists of whole blocks.
        assert_eq!(archive.len() % 512, 0);

        let files = unpacked(&archive);
        let manifest: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["fleetwright.local/etcd:v3.6.8", "fleetwright.local/etcd:v3.6.7"]));
        let config: Value = serde_json::from_slice(&files[manifest[0]["Config"].as_str().unwrap()]).unwrap();
        let layer = &files[manifest[0]["Layers"][0].as_str().unwrap()];
        let found = format!("sha256:{}", hex(digest(&SHA256, layer).as_ref()));
        assert_eq!(config["rootfs"]["diff_ids"], json!([found]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/local/bin/etcd"]));
        let inside = unpacked(layer);
        assert_eq!(inside["usr/local/bin/etcdutl"], b"two, and somewhat longer");
        assert!(String::from_utf8_lossy(&inside["etc/passwd"]).contains("nonroot:x:65532:"));
    }

    #[test]
    fn an_image_of_a_file_that_changed_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kube-scheduler");
        fs::write(&file, "one").unwrap();
        let image = Image::of(name("kube-scheduler", "v1.36.4"), [file.clone()]).unwrap();
        let before = image.key().unwrap();
        assert_eq!(before, image.key().unwrap());
        fs::write(&file, "another").unwrap();
        assert_ne!(before, image.key().unwrap());
    }
}

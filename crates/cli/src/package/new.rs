//! `fleetwright package new`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fleetwright_plan::package::shipped::{Placeholder, SHIPPED, ShippedPackage};
use sha2::{Digest as _, Sha256};

#[derive(clap::Args)]
// `--version` is the version of the component.
#[command(
    disable_version_flag = true,
    after_help = "Examples:
  fleetwright package new --list
  fleetwright package new kubelet --version 1.37.1 --url http://packages.fleet/kubelet-1.37.1.tar.zst --from-file kubelet-1.37.1.tar.zst
  fleetwright package new containerd --version 1.6.20~ds1-1+deb12u3 | kubectl apply -n fleet -f -
  fleetwright package new script >mine.yaml && fleetwright package lint mine.yaml"
)]
pub(crate) struct Args {
    /// Component or method, as listed by --list.
    #[arg(value_name = "NAME", required_unless_present = "list", value_parser = names())]
    name: Option<String>,

    /// List the available components and methods.
    #[arg(long)]
    list: bool,

    /// Version of the component; for a kernel, the output of `uname -r`. [default: a version that is known to work]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,

    /// Version of the package that contains a kernel.
    #[arg(long, value_name = "VERSION")]
    package_version: Option<String>,

    /// URL from which hosts fetch the archive or package. Without it, Debian packages come from the repositories of the hosts.
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// SHA-256 digest of the file at --url.
    #[arg(long, value_name = "HEX", conflicts_with = "from_file", value_parser = digest)]
    sha256: Option<String>,

    /// Local copy of the archive or package, to compute its digest from.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
}

fn names() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(SHIPPED.iter().map(|shipped| shipped.name))
}

fn digest(text: &str) -> Result<String, String> {
    let text = text.to_lowercase();
    if text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit()) {
        Ok(text)
    } else {
        Err("must be 64 hexadecimal digits, as sha256sum prints them".into())
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Some(name) = args.name.as_deref().filter(|_| !args.list) else {
        return crate::print(&list());
    };
    let Some(shipped) = ShippedPackage::named(name) else { bail!("{name} not found; see --list") };
    if !shipped.takes_source() && (args.url.is_some() || args.sha256.is_some() || args.from_file.is_some()) {
        bail!("{name} downloads nothing: leave --url, --sha256 and --from-file out");
    }
    if !shipped.takes_package_version() && args.package_version.is_some() {
        bail!("{name} has one version only: leave --package-version out");
    }
    let sha256 = match &args.from_file {
        Some(path) => Some(digest_of(path)?),
        None => args.sha256.clone(),
    };
    if sha256.is_some() && args.url.is_none() && !shipped.needs_source() {
        bail!("--sha256 and --from-file need --url, from which hosts download the file");
    }
    let (url, version) = (args.url.clone(), args.version.clone());
    let fill = Placeholder { version, package_version: args.package_version.clone(), url, sha256 };
    let wants = shipped.needs_source() || args.url.is_some();
    if wants && (args.url.is_none() || fill.sha256.is_none()) {
        eprintln!(
            "note: the printed URL and digest of {name} are placeholders; pass --url and --sha256 (or --from-file)"
        );
    }
    crate::print(&shipped.fill(&fill))
}

fn list() -> String {
    let width = SHIPPED.iter().map(|shipped| shipped.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (title, example) in [("Components of a node:", false), ("Examples of methods:", true)] {
        out.push_str(title);
        out.push('\n');
        for shipped in SHIPPED.iter().filter(|shipped| shipped.example == example) {
            out.push_str(&format!("  {:width$}  {}\n", shipped.name, shipped.about()));
        }
    }
    out
}

/// The digest of a file, read in blocks.
fn digest_of(path: &Path) -> anyhow::Result<String> {
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let (mut digest, mut part) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut part).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            break;
        }
        digest.update(&part[..read]);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

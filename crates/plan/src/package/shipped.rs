//! The package versions that come with Fleetwright, and an example for each method: YAML in `packages/`, with placeholders.

/// The template of a package version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShippedPackage {
    /// Its name: the component, or the method that it is an example of.
    pub name: &'static str,
    pub component: &'static str,
    /// Whether it is only an example of a method, and no component of a node.
    pub example: bool,
    /// The default version.
    pub version: &'static str,
    /// The YAML.
    pub text: &'static str,
}

/// The values for the placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placeholder {
    /// The component's version; for kernels, the output of `uname -r`.
    pub version: Option<String>,
    /// The version of the kernel's package.
    pub package_version: Option<String>,
    /// URL of the archive or package.
    pub url: Option<String>,
    /// Digest of the archive or package.
    pub sha256: Option<String>,
}

macro_rules! shipped {
    ($name:literal, $version:literal) => {
        ShippedPackage {
            name: $name,
            component: $name,
            example: false,
            version: $version,
            text: include_str!(concat!("../../../../packages/", $name, ".yaml")),
        }
    };
    ($name:literal, $version:literal, of $component:literal) => {
        ShippedPackage {
            name: $name,
            component: $component,
            example: true,
            version: $version,
            text: include_str!(concat!("../../../../packages/methods/", $name, ".yaml")),
        }
    };
}

/// All templates: the components of a node, then an example for each method that none of these uses.
pub const SHIPPED: &[ShippedPackage] = &[
    shipped!("containerd", "1.6.20~ds1-1+deb12u3"),
    shipped!("runc", "1.1.5+ds1-1+deb12u1"),
    shipped!("cni-plugins", "1.1.1+ds1-3+b5"),
    shipped!("kubelet", "1.37.1"),
    shipped!("node-problem-detector", "0.8.21"),
    shipped!("sysctl-network", "1"),
    shipped!("sysctl-kernel", "1"),
    shipped!("kernel-modules", "1"),
    shipped!("kernel", "6.1.0-54-cloud-amd64"),
    shipped!("deb", "4.3-2+deb12u3", of "chrony"),
    shipped!("rpm", "4.6.1-1.el9", of "chrony"),
    shipped!("tarball", "1.9.1", of "node-exporter"),
    shipped!("config", "1", of "journal-limits"),
    shipped!("sysctl", "1", of "sysctl-memory"),
    shipped!("script", "1", of "swap-off"),
    shipped!("reboot", "1", of "reboot"),
];

/// Stands for a digest that is still to be filled in; no file has it.
pub const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

impl ShippedPackage {
    /// The template of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SHIPPED.iter().find(|shipped| shipped.name == name)
    }

    /// A description in one line.
    pub fn about(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
    }

    /// Whether a URL must be given.
    pub fn needs_source(&self) -> bool {
        self.text.lines().any(|line| line.contains("@URL@") && !line.ends_with("#@url"))
    }

    /// Whether a URL can be given.
    pub fn takes_source(&self) -> bool {
        self.text.contains("@URL@")
    }

    /// Whether it has a package with a version of its own.
    pub fn takes_package_version(&self) -> bool {
        self.text.contains("@PACKAGE_VERSION@")
    }

    /// The name of the object: the component and the version, as far as object names allow.
    pub fn object_name(&self, version: &str) -> String {
        let version: String = version
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
            .collect();
        let name = format!("{}-{version}", self.component);
        let name: Vec<_> = name.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty()).collect();
        name.join(".").chars().take(253).collect()
    }

    /// The YAML with the placeholders filled in. Missing values have a value that says so, or are left out.
    pub fn fill(&self, fill: &Placeholder) -> String {
        let version = fill.version.as_deref().unwrap_or(self.version);
        let url = fill
            .url
            .clone()
            .unwrap_or_else(|| format!("http://packages.example.com/{}-{version}.tar.gz", self.component));
        let (name, digest) = (self.object_name(version), fill.sha256.as_deref().unwrap_or(NO_DIGEST));
        let mut out = String::with_capacity(self.text.len() + 256);
        for line in self.text.lines() {
            let line = match line.strip_suffix(" #@url") {
                Some(_) if fill.url.is_none() => continue,
                Some(line) => line,
                None => line,
            };
            let line = line
                .replace("@NAME@", &name)
                .replace("@VERSION@", version)
                .replace("@PACKAGE_VERSION@", fill.package_version.as_deref().unwrap_or("6.1.190-1"))
                .replace("@URL@", &url)
                .replace("@SHA256@", digest);
            out.push_str(&line);
            out.push('\n');
        }
        out
    }
}

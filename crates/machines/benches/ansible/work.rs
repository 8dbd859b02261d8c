//! The four components, which are the same for both sides.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fleetwright_wire::{Bytes, Content, File, Method, Package, Script, Source, Tarball};
use serde_json::{Value, json};

/// A file that is the same on every host.
fn settings() -> String {
    (0..60).map(|n| format!("setting.{n} = {}\n", n * 7)).collect()
}

/// A file that names its host.
fn identity(name: &str) -> String {
    format!("name = {name}\nzone = a\nrole = worker\n")
}

const PREPARED: &str = "/var/lib/bench-prepared";
const PREPARE: &str = "echo prepared > /var/lib/bench-prepared";

/// The components that both sides install.
pub struct Work {
    archive: Vec<u8>,
    sha256: String,
}

impl Work {
    /// Creates the archive, and the files of the playbook, in a directory.
    pub fn new(folder: &Path) -> Result<Self> {
        let tool = folder.join("tool-1.0/bin");
        fs::create_dir_all(&tool)?;
        fs::write(tool.join("tool"), "#!/bin/sh\necho tool 1.0\n")?;
        fs::set_permissions(tool.join("tool"), fs::Permissions::from_mode(0o755))?;
        fs::write(
            folder.join("tool-1.0/data"),
            (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<u8>>(),
        )?;
        let archive = folder.join("tool.tar.gz");
        let packed = Command::new("tar").arg("-C").arg(folder).arg("-czf").arg(&archive).arg("tool-1.0").status()?;
        if !packed.success() {
            bail!("tar failed");
        }
        let summed = Command::new("sha256sum").arg(&archive).output()?;
        let sha256 = String::from_utf8(summed.stdout)?.split(' ').next().context("no digest")?.to_owned();
        fs::write(folder.join("settings.conf"), settings())?;
        fs::write(folder.join("identity.conf.j2"), identity("{{ inventory_hostname }}"))?;
        // `creates` skips Ansible's comparison of the installed files with the archive. Our side compares them.
        fs::write(
            folder.join("playbook.yml"),
            serde_json::to_string_pretty(&json!([{
                "hosts": "all",
                "gather_facts": false,
                "strategy": "free",
                "tasks": [
                    {"name": "settings", "ansible.builtin.copy": {"src": "settings.conf", "dest": "/etc/bench-settings.conf", "mode": "0644"}},
                    {"name": "identity", "ansible.builtin.template": {"src": "identity.conf.j2", "dest": "/etc/bench-identity.conf", "mode": "0644"}},
                    {"name": "prepared", "ansible.builtin.shell": {"cmd": PREPARE, "creates": PREPARED}},
                    {"name": "tool", "ansible.builtin.unarchive": {"src": "tool.tar.gz", "dest": "/opt", "creates": "/opt/tool-1.0/bin/tool"}},
                    {"name": "the link to it", "ansible.builtin.file": {"src": "/opt/tool-1.0/bin/tool", "dest": "/opt/bench-tool", "state": "link"}},
                ],
            }]))?,
        )?;
        Ok(Self { archive: fs::read(&archive)?, sha256 })
    }

    /// The packages for a host of that name.
    pub fn packages(&self, name: &str) -> Vec<Package> {
        let file = |path: &str, text: String| File {
            path: path.into(),
            mode: 0o644,
            owner: "root".into(),
            group: "root".into(),
            content: Content::Text(text),
            ..File::default()
        };
        let package = |component: &str, method: Method| Package {
            component: component.into(),
            version: "1.0".into(),
            reference: format!("{component}-1.0"),
            method,
            ..Package::default()
        };
        vec![
            Package {
                files: vec![file("/etc/bench-settings.conf", settings())],
                ..package("settings", Method::Config)
            },
            Package {
                files: vec![file("/etc/bench-identity.conf", identity(name))],
                ..package("identity", Method::Config)
            },
            package(
                "prepared",
                Method::Script(Script {
                    check: format!("test -e {PREPARED}"),
                    apply: PREPARE.into(),
                    remove: format!("rm -f {PREPARED}"),
                }),
            ),
            package(
                "tool",
                Method::Tarball(Tarball {
                    source: Source {
                        urls: vec![],
                        inline: Some(Bytes(self.archive.clone())),
                        sha256: self.sha256.clone(),
                    },
                    strip: 1,
                    links: BTreeMap::from([("/opt/bench-tool".to_owned(), "bin/tool".to_owned())]),
                }),
            ),
        ]
    }

    /// The same as API objects: the archive's ConfigMap, and the package versions.
    pub fn manifests(&self) -> (Value, Vec<Value>) {
        let archive = serde_json::to_value(Bytes(self.archive.clone())).unwrap_or_default();
        let package = |component: &str, mut spec: Value| {
            spec["component"] = component.into();
            spec["version"] = "1.0".into();
            spec["disruption"] = "None".into();
            json!({"metadata": {"name": format!("{component}-1.0")}, "spec": spec})
        };
        let packages = vec![
            package(
                "settings",
                json!({"config": {}, "files": [{"path": "/etc/bench-settings.conf", "content": settings()}]}),
            ),
            package(
                "identity",
                json!({"config": {}, "files": [{"path": "/etc/bench-identity.conf", "template": identity("{{ machine.name }}")}]}),
            ),
            package(
                "prepared",
                json!({"script": {"check": format!("test -e {PREPARED}"), "apply": PREPARE, "remove": format!("rm -f {PREPARED}")}}),
            ),
            package(
                "tool",
                json!({"tarball": {
                    "source": {"configMap": {"name": "archive", "key": "tool"}, "sha256": self.sha256},
                    "strip": 1,
                    "links": {"/opt/bench-tool": "bin/tool"},
                }}),
            ),
        ];
        (json!({"metadata": {"name": "archive"}, "binaryData": {"tool": archive}}), packages)
    }

    /// Encodes it for another process.
    pub fn to_json(&self) -> Value {
        json!({"archive": serde_json::to_value(Bytes(self.archive.clone())).unwrap_or_default(), "sha256": self.sha256})
    }

    /// Decodes it in another process.
    pub fn from_json(value: &Value) -> Result<Self> {
        let archive: Bytes = serde_json::from_value(value["archive"].clone())?;
        Ok(Self { archive: archive.0, sha256: value["sha256"].as_str().context("no digest")?.to_owned() })
    }
}

/// Checks that a host has all components, by whichever side they were installed.
pub fn check(address: &std::net::Ipv4Addr, keys: &crate::hosts::Keys, name: &str) -> Result<()> {
    let look = "cat /etc/bench-identity.conf; sha256sum </etc/bench-settings.conf; cat /var/lib/bench-prepared; /opt/bench-tool";
    let out = Command::new("ssh")
        .args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-i"])
        .arg(keys.user())
        .args(["-p", &crate::hosts::PORT.to_string(), &format!("root@{address}"), look])
        .output()?;
    let said = String::from_utf8_lossy(&out.stdout);
    if !(said.starts_with(&identity(name)) && said.contains("prepared\n") && said.ends_with("tool 1.0\n")) {
        bail!("{address} does not have what it should: {said}{}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(())
}

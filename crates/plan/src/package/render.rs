//! Renders a package version for one machine.

use std::collections::BTreeMap;

use fleetwright_api as api;
use fleetwright_api::{MachinePackageVersion, MachinePackageVersionSpec};
use fleetwright_wire as wire;
use sha2::{Digest as _, Sha256};

use super::template::{TemplateError, TemplateScope};
use crate::join;

use super::{Lookup, RenderError, RenderErrorKind, Rendered, SecretUnavailable, StepTimeouts, Values};

/// Renders a package version for one machine. The same inputs give the same bytes.
///
/// # Errors
/// When a template uses an unknown name, or a referenced object does not exist.
pub fn render(
    package: &MachinePackageVersion,
    values: &Values<'_>,
    lookup: &dyn Lookup,
) -> Result<Rendered, RenderError> {
    let reference = package.metadata.name.as_deref().unwrap_or_default();
    let spec = &package.spec;
    let trusted = values.cluster.get("caBundle").map(|bundle| bundle.trim()).unwrap_or_default();
    let machine = values.machine.metadata.name.as_deref().unwrap_or_default();
    Rendering { reference, machine, scope: TemplateScope::new(values), trusted, lookup }.package(spec)
}

struct Rendering<'a> {
    reference: &'a str,
    machine: &'a str,
    scope: TemplateScope,
    /// The authorities of the API server.
    trusted: &'a str,
    lookup: &'a dyn Lookup,
}

type Result<T, E = RenderError> = std::result::Result<T, E>;

impl Rendering<'_> {
    fn package(&self, spec: &MachinePackageVersionSpec) -> Result<Rendered> {
        let files = spec.files.iter().enumerate().map(|(at, file)| self.file(at, file)).collect::<Result<Vec<_>>>()?;
        let units = spec.units.iter().enumerate().map(|(at, unit)| self.unit(at, unit)).collect::<Result<Vec<_>>>()?;
        let (checks, node_conditions) = self.checks(&spec.health)?;
        let package = wire::Package {
            component: spec.component.clone(),
            version: spec.version.clone(),
            reference: self.reference.to_owned(),
            method: self.method(spec)?,
            files,
            units,
            health: wire::Health { checks },
            remove: wire::Remove { before: spec.remove.before.clone(), paths: spec.remove.paths.clone() },
            keep: spec.keep,
        };
        let needs_credential = spec.files.iter().any(|file| file.bootstrap_kubeconfig);
        // A package without the authorities in a file does not change with them.
        let text = |file: &wire::File| String::from_utf8_lossy(file.content.bytes()).contains(self.trusted);
        let holds = !self.trusted.is_empty() && package.files.iter().any(text);
        Ok(Rendered {
            digest: package.digest(),
            depends_on: spec.depends_on.clone(),
            conflicts_with: spec.conflicts_with.clone(),
            disruption: spec.disruption,
            on_failure: spec.on_failure,
            node_conditions,
            times: StepTimeouts {
                apply: spec.timeouts.apply.0,
                drain: spec.timeouts.drain.0,
                reboot: spec.timeouts.reboot.0,
                healthy_within: spec.health.within.0,
                healthy_every: spec.health.every.0,
                healthy_times: spec.health.times,
            },
            trusts: (needs_credential && holds).then(|| join::bundle_digest(self.trusted)),
            needs_credential,
            package,
        })
    }

    fn method(&self, spec: &MachinePackageVersionSpec) -> Result<wire::Method> {
        let mut methods = Vec::new();
        if let Some(deb) = &spec.deb {
            methods.push(wire::Method::Deb(self.deb("spec.deb", deb)?));
        }
        if let Some(rpm) = &spec.rpm {
            methods.push(wire::Method::Rpm(self.rpm("spec.rpm", rpm)?));
        }
        if let Some(tarball) = &spec.tarball {
            methods.push(wire::Method::Tarball(wire::Tarball {
                source: self.source("spec.tarball.source", &tarball.source)?,
                strip: tarball.strip,
                links: tarball.links.clone(),
            }));
        }
        if spec.config.is_some() {
            methods.push(wire::Method::Config);
        }
        if let Some(settings) = &spec.sysctl {
            methods.push(wire::Method::Sysctl(settings.clone()));
        }
        if let Some(kernel) = &spec.kernel {
            methods.push(wire::Method::Kernel(wire::Kernel {
                deb: kernel.deb.as_ref().map(|deb| self.deb("spec.kernel.deb", deb)).transpose()?,
                rpm: kernel.rpm.as_ref().map(|rpm| self.rpm("spec.kernel.rpm", rpm)).transpose()?,
                release: kernel.release.clone(),
                modules: kernel.modules.clone(),
                parameters: kernel.parameters.clone(),
                boot: match kernel.boot {
                    api::Boot::Grub => wire::Boot::Grub,
                    api::Boot::Links => wire::Boot::Links,
                },
            }));
        }
        if let Some(script) = &spec.script {
            methods.push(wire::Method::Script(wire::Script {
                check: self.template("spec.script.check", &script.check)?,
                apply: self.template("spec.script.apply", &script.apply)?,
                remove: self.template("spec.script.remove", &script.remove)?,
            }));
        }
        if spec.reboot.is_some() {
            methods.push(wire::Method::Reboot);
        }
        let many = methods.len();
        match methods.pop() {
            Some(method) if many == 1 => Ok(method),
            _ => Err(self.wrong(
                "spec",
                format!(
                    "{many} methods: set exactly one of deb, rpm, tarball, config, sysctl, kernel, script and reboot"
                ),
            )),
        }
    }

    fn deb(&self, field: &str, packages: &api::OsPackages) -> Result<wire::Deb> {
        let sources = self.sources(field, packages)?;
        Ok(wire::Deb { packages: packages.packages.clone(), sources, hold: packages.hold })
    }

    fn rpm(&self, field: &str, packages: &api::OsPackages) -> Result<wire::Rpm> {
        let sources = self.sources(field, packages)?;
        Ok(wire::Rpm { packages: packages.packages.clone(), sources, hold: packages.hold })
    }

    fn sources(&self, field: &str, packages: &api::OsPackages) -> Result<Vec<wire::Source>> {
        let sources = packages.sources.iter().enumerate();
        sources.map(|(at, source)| self.source(&format!("{field}.sources[{at}]"), source)).collect()
    }

    fn source(&self, field: &str, source: &api::PackageSource) -> Result<wire::Source> {
        let inline = match (&source.config_map, &source.secret) {
            (Some(key), None) => Some(self.config_map(&format!("{field}.configMap"), key)?),
            (None, Some(key)) => Some(self.secret(&format!("{field}.secret"), key)?),
            (None, None) => None,
            (Some(_), Some(_)) => return Err(self.wrong(field, ONE_SOURCE)),
        };
        if inline.is_some() != source.urls.is_empty() {
            return Err(self.wrong(field, ONE_SOURCE));
        }
        if let Some(bytes) = &inline {
            let found: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            if found != source.sha256 {
                let message = format!(
                    "digest mismatch: found {found}, but sha256 is {}; restore the content, or create another package version",
                    source.sha256
                );
                return Err(self.error(RenderErrorKind::Missing, field, message));
            }
        }
        let inline = inline.map(wire::Bytes);
        Ok(wire::Source { urls: source.urls.clone(), inline, sha256: source.sha256.clone() })
    }

    fn file(&self, at: usize, file: &api::PackageFile) -> Result<wire::File> {
        let field = format!("spec.files[{at}]");
        let mode = u32::from_str_radix(&file.mode, 8).ok().filter(|mode| *mode <= 0o7777);
        let mode = mode.ok_or_else(|| {
            self.wrong(
                &format!("{field}.mode"),
                format!("{:?} is not a valid mode: write permission bits in octal, such as 0644", file.mode),
            )
        })?;
        let given = [
            file.content.is_some(),
            file.template.is_some(),
            file.secret.is_some(),
            file.config_map.is_some(),
            file.bootstrap_kubeconfig,
        ];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return Err(self.wrong(
                &field,
                format!(
                    "{} needs exactly one of content, template, secret, configMap and bootstrapKubeconfig",
                    file.path
                ),
            ));
        }
        let content = if let Some(content) = &file.content {
            wire::Content::Text(content.clone())
        } else if let Some(template) = &file.template {
            let text = self.template_of(&format!("{field}.template"), Some(&file.path), template)?;
            wire::Content::Text(text)
        } else if let Some(key) = &file.secret {
            content(self.secret(&format!("{field}.secret"), key)?)
        } else if let Some(key) = &file.config_map {
            content(self.config_map(&format!("{field}.configMap"), key)?)
        } else {
            // Filled in right before the installation: a credential that is created now could expire before.
            wire::Content::default()
        };
        Ok(wire::File {
            path: file.path.clone(),
            mode,
            owner: file.owner.clone(),
            group: file.group.clone(),
            content,
            secret: file.secret.is_some() || file.bootstrap_kubeconfig,
            once: file.bootstrap_kubeconfig,
        })
    }

    fn unit(&self, at: usize, unit: &api::PackageUnit) -> Result<wire::Unit> {
        let field = format!("spec.units[{at}]");
        let content = unit.content.as_ref().map(|text| self.template(&format!("{field}.content"), text)).transpose()?;
        let drop_ins = unit.drop_ins.iter().map(|(name, text)| {
            let text = self.template(&format!("{field}.dropIns[{name}]"), text)?;
            Ok((name.clone(), text))
        });
        Ok(wire::Unit {
            name: unit.name.clone(),
            enabled: unit.enabled,
            running: unit.running,
            content,
            drop_ins: drop_ins.collect::<Result<BTreeMap<_, _>>>()?,
            restart_on: unit.restart_on.clone(),
        })
    }

    fn checks(&self, health: &api::PackageHealth) -> Result<(Vec<wire::Check>, Vec<String>)> {
        let (mut checks, mut conditions) = (Vec::new(), Vec::new());
        for (at, check) in health.checks.iter().enumerate() {
            let given = [&check.unit, &check.tcp, &check.http, &check.command, &check.node_condition];
            if given.into_iter().flatten().count() != 1 {
                let field = format!("spec.health.checks[{at}]");
                return Err(self.wrong(&field, "needs exactly one of unit, tcp, http, command and nodeCondition"));
            }
            checks.extend(check.unit.clone().map(wire::Check::Unit));
            checks.extend(check.tcp.clone().map(wire::Check::Tcp));
            checks.extend(check.http.clone().map(wire::Check::Http));
            checks.extend(check.command.clone().map(wire::Check::Command));
            conditions.extend(check.node_condition.clone());
        }
        Ok((checks, conditions))
    }

    fn template(&self, field: &str, source: &str) -> Result<String> {
        self.template_of(field, None, source)
    }

    /// `path` is that of the file, for messages.
    fn template_of(&self, field: &str, path: Option<&str>, source: &str) -> Result<String> {
        let about = path.map_or_else(String::new, |path| format!("{path}, "));
        self.scope.render(source).map_err(|trouble| match trouble {
            TemplateError::Facts => self.error(
                RenderErrorKind::WaitsForFacts,
                field,
                format!("{about}waits for facts: the template uses facts of the host, which was not reached yet"),
            ),
            TemplateError::Missing(message) => self.error(RenderErrorKind::Missing, field, format!("{about}{message}")),
            TemplateError::Invalid(message) => self.wrong(field, format!("{about}{message}")),
        })
    }

    fn secret(&self, field: &str, key: &api::KeyRef) -> Result<Vec<u8>> {
        self.lookup.secret(self.machine, &key.name, &key.key).map_err(|why| match why {
            SecretUnavailable::Missing => self.missing("Secret", field, key),
            SecretUnavailable::NotShared => {
                let message = format!(
                    "Secret {} is not shared with Machine {1}: its owner has to add {1} to its annotation {2}",
                    key.name,
                    self.machine,
                    api::names::ALLOWED_MACHINES
                );
                self.error(RenderErrorKind::NotShared, field, message)
            }
        })
    }

    fn config_map(&self, field: &str, key: &api::KeyRef) -> Result<Vec<u8>> {
        self.lookup.config_map(&key.name, &key.key).ok_or_else(|| self.missing("ConfigMap", field, key))
    }

    fn missing(&self, kind: &str, field: &str, key: &api::KeyRef) -> RenderError {
        let message = format!("{kind} {} with the key {:?} not found in the namespace: create it", key.name, key.key);
        self.error(RenderErrorKind::Missing, field, message)
    }

    fn wrong(&self, field: &str, message: impl Into<String>) -> RenderError {
        self.error(RenderErrorKind::Invalid, field, message.into())
    }

    fn error(&self, kind: RenderErrorKind, field: &str, message: String) -> RenderError {
        RenderError { package: self.reference.to_owned(), field: field.to_owned(), kind, message }
    }
}

const ONE_SOURCE: &str = "needs exactly one of urls, configMap and secret";

/// Content as text if it is valid text.
fn content(bytes: Vec<u8>) -> wire::Content {
    match String::from_utf8(bytes) {
        Ok(text) => wire::Content::Text(text),
        Err(error) => wire::Content::Bytes(wire::Bytes(error.into_bytes())),
    }
}

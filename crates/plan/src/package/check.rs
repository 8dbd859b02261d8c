//! Checks of a package version that its schema cannot express.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_api::{Disruption, MachinePackageVersionSpec, OnFailure, OsPackages, PackageSource};

use super::shipped::NO_DIGEST;
use super::{Finding, paths, shell, template, units};

/// The findings about a package version that its schema cannot express: errors and warnings, in the order of
/// the fields.
pub fn check(spec: &MachinePackageVersionSpec) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    findings.method(spec);
    findings.files(spec);
    findings.units(spec);
    findings.relations(spec);
    findings.health(spec);
    findings.removal(spec);
    findings.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn error(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { field: field.into(), line: None, error: true, message: message.into() });
    }

    fn warning(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { field: field.into(), line: None, error: false, message: message.into() });
    }

    fn template(&mut self, field: &str, source: &str) {
        for (line, message) in template::findings(source) {
            self.0.push(Finding { field: field.to_owned(), line, error: true, message });
        }
    }

    fn digest(&mut self, field: &str, source: &PackageSource) {
        if source.sha256 == NO_DIGEST {
            self.warning(
                format!("{field}.sha256"),
                "placeholder instead of a digest; replace it with what sha256sum prints for the file",
            );
        }
    }

    fn method(&mut self, spec: &MachinePackageVersionSpec) {
        for (field, packages) in [("spec.deb", &spec.deb), ("spec.rpm", &spec.rpm)] {
            if let Some(packages) = packages {
                self.os_packages(field, packages);
            }
        }
        if let Some(archive) = &spec.tarball {
            self.digest("spec.tarball.source", &archive.source);
            for (link, target) in &archive.links {
                let field = format!("spec.tarball.links[{link}]");
                if let Some(why) = paths::path_error(link) {
                    self.error(&field, why);
                }
                if target.starts_with('/') || target.split('/').any(|part| part == "..") || target.is_empty() {
                    self.error(&field, format!("{target:?} is not a path in the archive: write it without a leading / and without .., such as bin/kubelet"));
                }
            }
            if archive.links.is_empty() && spec.units.is_empty() {
                self.warning(
                    "spec.tarball.links",
                    "no link and no unit uses the unpacked files; add links, such as /usr/local/bin/NAME: bin/NAME",
                );
            }
        }
        if let Some(settings) = &spec.sysctl {
            for (name, value) in settings {
                if value.contains('\n') {
                    self.error(format!("spec.sysctl[{name}]"), "must be one line");
                }
            }
            if settings.is_empty() {
                self.warning("spec.sysctl", "no settings: the package does nothing");
            }
        }
        self.kernel(spec);
        self.script(spec);
        let boots = spec.kernel.is_some() || spec.reboot.is_some();
        if boots && spec.disruption != Disruption::Reboot {
            self.error(
                "spec.disruption",
                format!("{:?} is not enough for a method that reboots the host; set it to Reboot", spec.disruption),
            );
        }
        if spec.config.is_some() && spec.files.is_empty() && spec.units.is_empty() {
            self.warning("spec.config", "the method config needs files or units: the package does nothing");
        }
    }

    fn os_packages(&mut self, field: &str, packages: &OsPackages) {
        if packages.packages.is_empty() {
            self.error(
                format!("{field}.packages"),
                "no packages; add each with its exact version, such as runc: 1.1.5+ds1-1+deb12u1",
            );
        }
        for (name, version) in &packages.packages {
            if version.is_empty() || version.contains(['*', ' ', '=', '<', '>']) || version == "latest" {
                self.error(format!("{field}.packages[{name}]"), format!("{version:?} is not an exact version, so hosts could get different ones; write it as the repository has it"));
            }
        }
        let (given, wanted) = (packages.sources.len(), packages.packages.len());
        if given > 0 && given < wanted {
            self.warning(format!("{field}.sources"), format!("only {given} of {wanted} packages have a source; the others would come from the host's repositories: add all sources, or none"));
        }
        let mut digests = BTreeSet::new();
        for (at, source) in packages.sources.iter().enumerate() {
            self.digest(&format!("{field}.sources[{at}]"), source);
            if !digests.insert(&source.sha256) {
                self.warning(
                    format!("{field}.sources[{at}].sha256"),
                    "another source has the same digest; correct one of them",
                );
            }
        }
    }

    fn kernel(&mut self, spec: &MachinePackageVersionSpec) {
        let Some(kernel) = &spec.kernel else { return };
        for (field, packages) in [("spec.kernel.deb", &kernel.deb), ("spec.kernel.rpm", &kernel.rpm)] {
            if let Some(packages) = packages {
                self.os_packages(field, packages);
            }
        }
        let brings = kernel.deb.is_some() || kernel.rpm.is_some();
        if brings && kernel.release.is_none() {
            self.error(
                "spec.kernel.release",
                "required with packages: set it to what uname -r prints when that kernel runs",
            );
        }
        if !brings && kernel.release.is_some() {
            self.warning(
                "spec.kernel.release",
                "no package installs that kernel, so hosts without it never match: set deb or rpm",
            );
        }
        if !brings && kernel.release.is_none() && kernel.modules.is_empty() && kernel.parameters.is_empty() {
            self.error("spec.kernel", "the package does nothing; set deb or rpm with release, modules, or parameters");
        }
        for (at, parameter) in kernel.parameters.iter().enumerate() {
            if parameter.is_empty() || parameter.contains(char::is_whitespace) {
                self.error(
                    format!("spec.kernel.parameters[{at}]"),
                    format!(
                        "{parameter:?} is not one parameter; write one per entry, such as transparent_hugepage=never"
                    ),
                );
            }
        }
    }

    /// Values that a shell could read as commands.
    fn shell(&mut self, field: &str, text: &str) {
        for (line, message) in shell::findings(text) {
            self.0.push(Finding { field: field.to_owned(), line: Some(line), error: true, message });
        }
    }

    /// Values in the commands of a unit that a shell reads: systemd removes the quotes before the shell sees them.
    fn commands(&mut self, field: &str, text: &str) {
        for (line, setting) in units::joined(text) {
            if setting.starts_with("Exec") && shell::runs_shell(&setting) && setting.contains("{{") {
                let message = "a value in a command of sh could run as a command, because systemd removes quotes before the shell runs: move the script into a file of spec.files, with {{ … | sh }}".to_owned();
                self.0.push(Finding { field: field.to_owned(), line: Some(line), error: true, message });
            }
        }
    }

    fn script(&mut self, spec: &MachinePackageVersionSpec) {
        let Some(script) = &spec.script else { return };
        for (name, text) in [("check", &script.check), ("apply", &script.apply), ("remove", &script.remove)] {
            self.template(&format!("spec.script.{name}"), text);
            self.shell(&format!("spec.script.{name}"), text);
        }
        match script.check.trim() {
            "" => self.error("spec.script.check", "required: without a check the script would run again and again; add a command that succeeds when nothing needs to be done, such as test -e /etc/x"),
            "true" | ":" | "exit 0" => self.warning("spec.script.check", "always succeeds, so the script never runs"),
            "false" | "exit 1" => self.warning("spec.script.check", "never succeeds, so the host never matches and the script runs again and again"),
            _ => {}
        }
        if script.apply.trim().is_empty() {
            self.error("spec.script.apply", "required: add the commands after which check succeeds");
        }
        if script.remove.trim().is_empty() {
            self.warning("spec.script.remove", "the changes of the script stay on the host after its removal; add the commands that undo them, or : if there is nothing to undo");
        }
    }

    fn files(&mut self, spec: &MachinePackageVersionSpec) {
        let mut paths: BTreeMap<&str, String> = BTreeMap::new();
        if let Some(archive) = &spec.tarball {
            paths.extend(archive.links.keys().map(|link| (link.as_str(), format!("spec.tarball.links[{link}]"))));
        }
        for (at, file) in spec.files.iter().enumerate() {
            let field = format!("spec.files[{at}]");
            let path = format!("{field}.path");
            if let Some(why) = paths::path_error(&file.path) {
                self.error(&path, why);
            } else if let Some(why) = paths::path_warning(&file.path) {
                self.warning(&path, why);
            }
            if let Some(other) = paths.insert(&file.path, path.clone()) {
                self.error(&path, format!("duplicate path {}: also in {other}", file.path));
            }
            if let Some(unit) = file.path.strip_prefix("/etc/systemd/system/").filter(|rest| !rest.contains('/')) {
                if spec.units.iter().any(|other| other.name == unit && other.content.is_some()) {
                    self.error(&path, format!("the unit {unit} also has content; remove one of them"));
                } else {
                    self.warning(
                        &path,
                        format!(
                            "systemd is not reloaded for this file; make it the content of a unit {unit} in spec.units"
                        ),
                    );
                }
            }
            let mode = u32::from_str_radix(&file.mode, 8).unwrap_or(0);
            let secret = file.secret.is_some() || file.bootstrap_kubeconfig;
            if secret && mode & 0o077 & !0o040 != 0 {
                self.warning(
                    format!("{field}.mode"),
                    format!("{} lets every user of the host read a secret; set 0600", file.mode),
                );
            } else if mode & 0o002 != 0 {
                self.warning(
                    format!("{field}.mode"),
                    format!("{} lets every user of the host change the file; set 0644", file.mode),
                );
            }
            if let Some(template) = &file.template {
                self.template(&format!("{field}.template"), template);
                if shell::is_script(&file.path, mode, template) {
                    self.shell(&format!("{field}.template"), template);
                }
            }
            if file.content.as_ref().is_some_and(|text| {
                text.contains("{{") && ["machine.", "facts.", "cluster."].iter().any(|name| text.contains(name))
            }) {
                self.warning(
                    format!("{field}.content"),
                    "content is written literally, with its braces; use template instead",
                );
            }
        }
        for (path, field) in &paths {
            let mut parents = path.match_indices('/').skip(1).map(|(at, _)| &path[..at]);
            if let Some(parent) = parents.find(|parent| paths.contains_key(parent)) {
                self.error(field.clone(), format!("{path} is below {parent}, which is a file of this package"));
            }
        }
    }

    fn units(&mut self, spec: &MachinePackageVersionSpec) {
        let mut names = BTreeSet::new();
        for (at, unit) in spec.units.iter().enumerate() {
            let field = format!("spec.units[{at}]");
            if !names.insert(&unit.name) {
                self.error(format!("{field}.name"), format!("duplicate unit {}; merge both entries", unit.name));
            }
            if let Some(content) = &unit.content {
                self.template(&format!("{field}.content"), content);
                self.commands(&format!("{field}.content"), content);
            }
            for (name, text) in &unit.drop_ins {
                self.template(&format!("{field}.dropIns[{name}]"), text);
                self.commands(&format!("{field}.dropIns[{name}]"), text);
            }
            for (at, path) in unit.restart_on.iter().enumerate() {
                match spec.files.iter().find(|file| file.path == *path) {
                    None => self.error(
                        format!("{field}.restartOn[{at}]"),
                        format!("{path} is not a file of this package: use paths of spec.files"),
                    ),
                    Some(file) if file.bootstrap_kubeconfig => self.warning(
                        format!("{field}.restartOn[{at}]"),
                        format!("{path} is written only once, so it never causes a restart"),
                    ),
                    Some(_) => {}
                }
            }
            for finding in units::findings(unit, spec) {
                let (line, error, message) = (finding.line, finding.error, finding.message);
                self.0.push(Finding { field: format!("{field}.{}", finding.field), line, error, message });
            }
        }
    }

    fn relations(&mut self, spec: &MachinePackageVersionSpec) {
        for (at, other) in spec.depends_on.iter().enumerate() {
            if *other == spec.component {
                self.error(format!("spec.dependsOn[{at}]"), "a component cannot depend on itself");
            }
            if spec.conflicts_with.contains(other) {
                self.error(
                    format!("spec.dependsOn[{at}]"),
                    format!("{other} is also in conflictsWith; remove one of them"),
                );
            }
        }
        if let Some(at) = spec.conflicts_with.iter().position(|other| *other == spec.component) {
            self.error(
                format!("spec.conflictsWith[{at}]"),
                "a component cannot conflict with itself: a machine has one version of it",
            );
        }
        if spec.keep == 0 && spec.on_failure == OnFailure::RollBack && spec.reboot.is_none() {
            self.warning(
                "spec.keep",
                "no old version is kept, so a failed change cannot be rolled back; set it to 1, or onFailure to Hold",
            );
        }
    }

    fn health(&mut self, spec: &MachinePackageVersionSpec) {
        let health = &spec.health;
        for (at, check) in health.checks.iter().enumerate() {
            let field = format!("spec.health.checks[{at}]");
            if let Some(unit) = check.unit.as_ref().filter(|unit| spec.units.iter().all(|other| other.name != **unit)) {
                self.warning(format!("{field}.unit"), format!("{unit} is not a unit of this package; add it to spec.units with running: true, so that it is kept running"));
            }
            if let Some(address) = &check.tcp
                && !address
                    .rsplit_once(':')
                    .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
            {
                self.error(format!("{field}.tcp"), format!("{address:?} is not HOST:PORT, such as 127.0.0.1:10250"));
            }
            if let Some(url) =
                check.http.as_ref().filter(|url| !url.starts_with("http://") && !url.starts_with("https://"))
            {
                self.error(format!("{field}.http"), format!("{url:?} is not an http or https URL"));
            }
            if check.command.as_ref().is_some_and(|command| command.trim().is_empty()) {
                self.error(format!("{field}.command"), "empty command");
            }
        }
        if health.every.0.is_zero() {
            self.error("spec.health.every", "must be greater than zero, such as 2s");
        } else if health.every.0.saturating_mul(health.times.saturating_sub(1)) >= health.within.0
            && !health.checks.is_empty()
        {
            self.error(
                "spec.health.within",
                format!(
                    "{} checks, one every {}, do not fit into {}; allow more time",
                    health.times, health.every, health.within
                ),
            );
        }
        for (name, span) in [("apply", spec.timeouts.apply), ("reboot", spec.timeouts.reboot)] {
            if span.0.is_zero() {
                self.error(format!("spec.timeouts.{name}"), "must be greater than zero; leave it out for the default");
            }
        }
        let runs = spec.units.iter().any(|unit| unit.running == Some(true));
        if health.checks.is_empty() && (runs || matches!(spec.disruption, Disruption::Restart | Disruption::Drain)) {
            self.warning(
                "spec.health.checks",
                "no health check, so a broken version is never rolled back; add one, such as unit: NAME.service",
            );
        }
    }

    fn removal(&mut self, spec: &MachinePackageVersionSpec) {
        for (at, path) in spec.remove.paths.iter().enumerate() {
            let field = format!("spec.remove.paths[{at}]");
            if let Some(why) = paths::path_error(path) {
                self.error(field, why);
            } else if paths::shared_folders(path) {
                self.error(
                    field,
                    format!(
                        "{path} is shared with other components; use a path below it, such as {}/{}",
                        path.trim_end_matches('/'),
                        spec.component
                    ),
                );
            }
        }
    }
}

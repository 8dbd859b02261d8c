//! What is wrong with a package version, or doubtful, that the schema does not say.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright_api::{Disruption, MachinePackageVersionSpec, OnFailure, OsPackages, PackageSource};

use super::shipped::NO_DIGEST;
use super::{Finding, places, shell, template, units};

/// Everything that is wrong with a package version, or doubtful, that the schema does not say. Errors and warnings, in the order of
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
            self.warning(format!("{field}.sha256"), "it stands for a digest that is still to be filled in: no file has it; write what sha256sum prints for the file");
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
                if let Some(why) = places::forbidden(link) {
                    self.error(&field, why);
                }
                if target.starts_with('/') || target.split('/').any(|part| part == "..") || target.is_empty() {
                    self.error(&field, format!("{target:?} is no path in the archive: write it without a leading / and without .., such as bin/kubelet"));
                }
            }
            if archive.links.is_empty() && spec.units.is_empty() {
                self.warning("spec.tarball.links", "what is unpacked is linked from nowhere, and no unit runs it; name what should be found, such as /usr/local/bin/NAME: bin/NAME");
            }
        }
        if let Some(settings) = &spec.sysctl {
            for (name, value) in settings {
                if value.contains('\n') {
                    self.error(format!("spec.sysctl[{name}]"), "a setting is one line");
                }
            }
            if settings.is_empty() {
                self.warning("spec.sysctl", "it names no settings; it does nothing");
            }
        }
        self.kernel(spec);
        self.script(spec);
        let boots = spec.kernel.is_some() || spec.reboot.is_some();
        if boots && spec.disruption != Disruption::Reboot {
            self.error(
                "spec.disruption",
                format!("{:?} does not go with a method that boots the host; set it to Reboot", spec.disruption),
            );
        }
        if spec.config.is_some() && spec.files.is_empty() && spec.units.is_empty() {
            self.warning(
                "spec.config",
                "the method config is files and units alone, and there are none; it does nothing",
            );
        }
    }

    fn os_packages(&mut self, field: &str, packages: &OsPackages) {
        if packages.packages.is_empty() {
            self.error(
                format!("{field}.packages"),
                "no package is named; give each with its exact version, such as runc: 1.1.5+ds1-1+deb12u1",
            );
        }
        for (name, version) in &packages.packages {
            if version.is_empty() || version.contains(['*', ' ', '=', '<', '>']) || version == "latest" {
                self.error(format!("{field}.packages[{name}]"), format!("{version:?} is no exact version: hosts must carry the same one today and next year; write it as the repository has it"));
            }
        }
        let (given, wanted) = (packages.sources.len(), packages.packages.len());
        if given > 0 && given < wanted {
            self.warning(format!("{field}.sources"), format!("{wanted} packages come from {given} files; the others would have to come from the host's repositories: give all files, or none"));
        }
        let mut digests = BTreeSet::new();
        for (at, source) in packages.sources.iter().enumerate() {
            self.digest(&format!("{field}.sources[{at}]"), source);
            if !digests.insert(&source.sha256) {
                self.warning(
                    format!("{field}.sources[{at}].sha256"),
                    "another file has the same digest; one of both was copied",
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
                "packages bring a kernel, and nothing says how to tell that it runs; give what uname -r prints then",
            );
        }
        if !brings && kernel.release.is_some() {
            self.warning(
                "spec.kernel.release",
                "nothing brings that kernel; hosts that do not have it are never as declared: give deb or rpm",
            );
        }
        if !brings && kernel.release.is_none() && kernel.modules.is_empty() && kernel.parameters.is_empty() {
            self.error("spec.kernel", "it does nothing; give deb or rpm with release, modules, or parameters");
        }
        for (at, parameter) in kernel.parameters.iter().enumerate() {
            if parameter.is_empty() || parameter.contains(char::is_whitespace) {
                self.error(
                    format!("spec.kernel.parameters[{at}]"),
                    format!(
                        "{parameter:?} is not one parameter; write one an entry, such as transparent_hugepage=never"
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

    /// Values in the commands of a unit that a shell reads: systemd takes the quotes away before the shell sees them.
    fn commands(&mut self, field: &str, text: &str) {
        for (at, line) in text.lines().enumerate() {
            let command = line.trim_start().starts_with("Exec") && line.contains("sh -") && line.contains("{{");
            if command {
                let message = "a value in a command of sh can be read as commands, since systemd takes quotes away before the shell sees them: put the script into a file of spec.files, with {{ … | sh }}".to_owned();
                self.0.push(Finding { field: field.to_owned(), line: Some(at + 1), error: true, message });
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
            "" => self.error("spec.script.check", "without a check the script would run for ever; say how to tell that nothing needs to be done, such as test -e /etc/x"),
            "true" | ":" | "exit 0" => self.warning("spec.script.check", "it always holds, so the script never runs"),
            "false" | "exit 1" => self.warning("spec.script.check", "it never holds, so the host is never as declared and the script runs again and again"),
            _ => {}
        }
        if script.apply.trim().is_empty() {
            self.error("spec.script.apply", "it does nothing; say what brings the host to where check holds");
        }
        if script.remove.trim().is_empty() {
            self.warning("spec.script.remove", "nothing undoes it: a machine that leaves keeps what it did; say how, or write : if there is nothing to undo");
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
            if let Some(why) = places::forbidden(&file.path) {
                self.error(&path, why);
            } else if let Some(why) = places::doubtful(&file.path) {
                self.warning(&path, why);
            }
            if let Some(other) = paths.insert(&file.path, path.clone()) {
                self.error(&path, format!("{} is written twice: {other} has it, too", file.path));
            }
            if let Some(unit) = file.path.strip_prefix("/etc/systemd/system/").filter(|rest| !rest.contains('/')) {
                if spec.units.iter().any(|other| other.name == unit && other.content.is_some()) {
                    self.error(&path, format!("the unit {unit} has a content, too; keep one of both"));
                } else {
                    self.warning(
                        &path,
                        format!(
                            "systemd does not look at it by itself; make it the content of a unit {unit} in spec.units"
                        ),
                    );
                }
            }
            let mode = u32::from_str_radix(&file.mode, 8).unwrap_or(0);
            let secret = file.secret.is_some() || file.bootstrap_kubeconfig;
            if secret && mode & 0o077 & !0o040 != 0 {
                self.warning(
                    format!("{field}.mode"),
                    format!("{} lets everybody on the host read a secret; set 0600", file.mode),
                );
            } else if mode & 0o002 != 0 {
                self.warning(
                    format!("{field}.mode"),
                    format!("{} lets everybody on the host change it; set 0644", file.mode),
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
                self.warning(format!("{field}.content"), "it is written as it is, with its braces; make it a template");
            }
        }
        for (path, field) in &paths {
            let mut parents = path.match_indices('/').skip(1).map(|(at, _)| &path[..at]);
            if let Some(parent) = parents.find(|parent| paths.contains_key(parent)) {
                self.error(field.clone(), format!("{path} would lie in {parent}, which is a file here"));
            }
        }
    }

    fn units(&mut self, spec: &MachinePackageVersionSpec) {
        let mut names = BTreeSet::new();
        for (at, unit) in spec.units.iter().enumerate() {
            let field = format!("spec.units[{at}]");
            if !names.insert(&unit.name) {
                self.error(format!("{field}.name"), format!("{} is listed twice; put both into one", unit.name));
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
                        format!("{path} is no file of this package: restartOn names paths of spec.files"),
                    ),
                    Some(file) if file.bootstrap_kubeconfig => self.warning(
                        format!("{field}.restartOn[{at}]"),
                        format!("{path} is written once and not looked at again; nothing is restarted for it"),
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
                self.error(format!("spec.dependsOn[{at}]"), "a component does not depend on itself");
            }
            if spec.conflicts_with.contains(other) {
                self.error(
                    format!("spec.dependsOn[{at}]"),
                    format!("{other} must be there and may not be there (conflictsWith); keep one of both"),
                );
            }
        }
        if let Some(at) = spec.conflicts_with.iter().position(|other| *other == spec.component) {
            self.error(
                format!("spec.conflictsWith[{at}]"),
                "a component does not conflict with itself: there is one version of it on a machine",
            );
        }
        if spec.keep == 0 && spec.on_failure == OnFailure::RollBack && spec.reboot.is_none() {
            self.warning(
                "spec.keep",
                "nothing is kept to go back to when a change fails; set it to 1, or onFailure to Hold",
            );
        }
    }

    fn health(&mut self, spec: &MachinePackageVersionSpec) {
        let health = &spec.health;
        for (at, check) in health.checks.iter().enumerate() {
            let field = format!("spec.health.checks[{at}]");
            if let Some(unit) = check.unit.as_ref().filter(|unit| spec.units.iter().all(|other| other.name != **unit)) {
                self.warning(format!("{field}.unit"), format!("{unit} is no unit of this package; add it to spec.units with running: true, so that it is kept running"));
            }
            if let Some(address) = &check.tcp
                && !address
                    .rsplit_once(':')
                    .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
            {
                self.error(format!("{field}.tcp"), format!("{address:?} is no HOST:PORT, such as 127.0.0.1:10250"));
            }
            if let Some(url) =
                check.http.as_ref().filter(|url| !url.starts_with("http://") && !url.starts_with("https://"))
            {
                self.error(format!("{field}.http"), format!("{url:?} is no URL of http or https"));
            }
            if check.command.as_ref().is_some_and(|command| command.trim().is_empty()) {
                self.error(format!("{field}.command"), "there is no command");
            }
        }
        if health.every.0.is_zero() {
            self.error("spec.health.every", "it cannot be asked without a pause; set it to 2s");
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
                self.error(
                    format!("spec.timeouts.{name}"),
                    "nothing can be done in no time; leave it out for the usual one",
                );
            }
        }
        let runs = spec.units.iter().any(|unit| unit.running == Some(true));
        if health.checks.is_empty() && (runs || matches!(spec.disruption, Disruption::Restart | Disruption::Drain)) {
            self.warning("spec.health.checks", "nothing tells whether it works, so a version that does not is never rolled back; add a check, such as unit: NAME.service");
        }
    }

    fn removal(&mut self, spec: &MachinePackageVersionSpec) {
        for (at, path) in spec.remove.paths.iter().enumerate() {
            let field = format!("spec.remove.paths[{at}]");
            if let Some(why) = places::forbidden(path) {
                self.error(field, why);
            } else if places::shared(path) {
                self.error(
                    field,
                    format!(
                        "{path} is not this component's alone; name what it made there, such as {}/{}",
                        path.trim_end_matches('/'),
                        spec.component
                    ),
                );
            }
        }
    }
}

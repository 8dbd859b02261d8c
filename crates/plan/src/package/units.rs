//! Unit files, as far as they can be checked without systemd.

use fleetwright_api::{MachinePackageVersionSpec, PackageUnit};
use fleetwright_wire::text::first_chars;

use super::template::TemplateScope;

/// A finding about a unit: the field below it, the line of the text in that field, whether it is an error, and why.
pub(super) struct UnitFinding {
    pub(super) field: &'static str,
    pub(super) line: Option<usize>,
    pub(super) error: bool,
    pub(super) message: String,
}

/// A setting of a unit file.
struct Setting<'a> {
    section: &'a str,
    key: &'a str,
    value: &'a str,
    line: usize,
}

/// The errors and warnings about a unit.
pub(super) fn findings(unit: &PackageUnit, spec: &MachinePackageVersionSpec) -> Vec<UnitFinding> {
    let mut found = Vec::new();
    let mut say = |field, line, error, message: String| found.push(UnitFinding { field, line, error, message });
    match (unit.enabled, unit.running) {
        (Some(false), Some(true)) => say("enabled", None, false, "the unit is running but not enabled: after a boot it is drift until it is repaired; set enabled to true, or leave one of them out".into()),
        (Some(true), Some(false)) => say("running", None, false, "the unit is enabled but not running: after a boot it is drift until it is repaired; set enabled to false, or leave one of them out".into()),
        _ => {}
    }
    if unit.running.is_none() && !unit.restart_on.is_empty() {
        say("restartOn", None, false, "restartOn needs a running unit; set running to true".into());
    }
    let Some(content) = &unit.content else {
        let brings = spec.deb.is_some() || spec.rpm.is_some() || spec.config.is_some() || spec.script.is_some();
        if !brings {
            say(
                "content",
                None,
                false,
                "no source of the unit file; set content, or add a package that contains it".into(),
            );
        }
        return found;
    };
    // Interpolations are replaced by those of a specimen machine; line numbers change if there are blocks.
    let (text, exact) = match TemplateScope::specimen().render(content) {
        Ok(text) => (text, !content.contains("{%")),
        // The findings about the template say so already.
        Err(_) => return found,
    };
    let at = |line: usize| exact.then_some(line);
    let settings = match settings(&text) {
        Ok(settings) => settings,
        Err((line, said)) => {
            say(
                "content",
                at(line),
                true,
                format!("{said:?} is neither a section, a setting nor a comment; systemd ignores the line"),
            );
            return found;
        }
    };
    let all = |section: &str, key: &str| {
        settings.iter().filter(|setting| setting.section == section && setting.key == key).collect::<Vec<_>>()
    };
    let last = |section: &str, key: &str| all(section, key).last().map(|setting| setting.value);
    let dropped = unit.drop_ins.values().any(|text| text.contains("[Install]"));
    let installs = settings.iter().any(|setting| setting.section == "Install") || dropped;
    if unit.enabled == Some(true) && !installs {
        say(
            "content",
            None,
            true,
            "an enabled unit needs an [Install] section; add one with WantedBy=multi-user.target, or leave enabled out"
                .into(),
        );
    }
    if unit.name.ends_with(".service") {
        let starts = all("Service", "ExecStart");
        let oneshot = last("Service", "Type") == Some("oneshot");
        if starts.is_empty() && !oneshot && unit.drop_ins.is_empty() {
            say("content", None, true, "a service needs ExecStart in its section [Service]".into());
        }
        if starts.len() > 1 && !oneshot && starts.iter().all(|start| !start.value.is_empty()) {
            say("content", at(starts[1].line), true, "only Type=oneshot may have several ExecStart".into());
        }
        if oneshot && unit.running == Some(true) && last("Service", "RemainAfterExit") != Some("yes") {
            say(
                "running",
                None,
                true,
                "a unit of Type=oneshot does not keep running: add RemainAfterExit=yes, or leave running out".into(),
            );
        }
        for start in starts {
            let command = start.value.trim_start_matches(['@', '-', ':', '+', '!']);
            let program = command.split_whitespace().next().unwrap_or_default();
            if !program.is_empty() && !program.starts_with('/') {
                say(
                    "content",
                    at(start.line),
                    true,
                    format!("{program} is not an absolute path; use one such as /usr/local/bin/{program}"),
                );
            }
            let ours = |path: &str| {
                spec.tarball.as_ref().is_some_and(|archive| archive.links.contains_key(path))
                    || spec.files.iter().any(|file| file.path == path)
            };
            if spec.tarball.is_some() && program.starts_with("/usr/local/") && !ours(program) {
                say("content", at(start.line), false, format!("{program} is not in this package; add a link to it"));
            }
        }
    }
    for file in &spec.files {
        let used = unit.running == Some(true) && mentions(&text, &file.path);
        if used && !file.bootstrap_kubeconfig && !unit.restart_on.contains(&file.path) {
            let message = format!(
                "the unit uses {}, but is not restarted when it changes; add it, unless the program reloads it",
                file.path
            );
            say("restartOn", None, false, message);
        }
    }
    found
}

/// The settings of a unit file that is a template, as systemd joins their lines: the number of the first line of each, and the setting with single
/// spaces.
pub(super) fn joined(template: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, whole) in template.lines().enumerate() {
        let plain = without_blocks(whole);
        let line = plain.trim();
        // A line with only a block leaves no line in the file, and systemd ignores comments between the lines of a setting.
        let block = line.is_empty() && !whole.trim().is_empty();
        if block || line.starts_with(['#', ';']) {
            continue;
        }
        let value = line.strip_suffix('\\');
        let words = value.unwrap_or(line).split_whitespace().collect::<Vec<_>>().join(" ");
        match found.last_mut().filter(|_| goes_on) {
            Some((_, setting)) => *setting = format!("{setting} {words}"),
            None => found.push((at + 1, words)),
        }
        goes_on = value.is_some();
    }
    found
}

/// A line of a template without its blocks and comments.
fn without_blocks(line: &str) -> String {
    let (mut kept, mut rest) = (String::new(), line);
    while let Some((open, end)) =
        [("{%", "%}"), ("{#", "#}")].into_iter().filter_map(|(begin, end)| Some((rest.find(begin)?, end))).min()
        && let Some(close) = rest[open..].find(end)
    {
        kept.push_str(&rest[..open]);
        rest = &rest[open + close + end.len()..];
    }
    kept + rest
}

/// Whether a text contains a whole path.
fn mentions(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let next = text[at + path.len()..].chars().next();
        next.is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_')))
    })
}

/// The settings of a unit file, or the first invalid line with its number.
fn settings(text: &str) -> Result<Vec<Setting<'_>>, (usize, String)> {
    let mut found: Vec<Setting<'_>> = Vec::new();
    let (mut section, mut goes_on) = ("", false);
    for (at, whole) in text.lines().enumerate() {
        let line = whole.trim();
        let continued = std::mem::replace(&mut goes_on, line.ends_with('\\'));
        if line.is_empty() || line.starts_with(['#', ';']) {
            goes_on = continued && !line.is_empty();
            continue;
        }
        if continued {
            // Only the first line of a value is checked.
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
            continue;
        }
        match line.split_once('=') {
            Some((key, value)) if !section.is_empty() => {
                let value = value.trim().trim_end_matches('\\').trim_end();
                found.push(Setting { section, key: key.trim(), value, line: at + 1 });
            }
            _ => return Err((at + 1, first_chars(whole, 80).to_owned())),
        }
    }
    Ok(found)
}

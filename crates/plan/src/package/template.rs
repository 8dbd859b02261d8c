//! Templates: strict, small, and the same text for the same values.
//!
//! Templates have `machine`, `facts` and `cluster`, a few filters, and nothing that changes by itself: no time, no randomness, no files.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use fleetwright_api::{Facts, Hardware, Machine, MachineSpec, Taint, TaintEffect, templates};
use fleetwright_wire::text::truncate_line;
use minijinja::value::{Enumerator, Object, Value as Any, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, filters, tests};
use serde::Serialize;

use super::Values;

/// Most instructions of one template: nested loops end with an error instead of never.
const FUEL: u64 = 1_000_000;

/// The filters that templates may use.
const FILTERS: [&str; 19] = [
    "default", "dictsort", "first", "indent", "int", "items", "join", "json", "last", "length", "list", "lower",
    "replace", "sh", "sort", "split", "trim", "unique", "upper",
];

static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut engine = Environment::empty();
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_auto_escape_callback(|_| AutoEscape::None);
    engine.set_keep_trailing_newline(true);
    // A line with only a block leaves no empty line, as people expect of configuration files.
    engine.set_trim_blocks(true);
    engine.set_lstrip_blocks(true);
    engine.set_debug(true);
    engine.set_fuel(Some(FUEL));
    engine.add_filter("default", filters::default);
    engine.add_filter("dictsort", filters::dictsort);
    engine.add_filter("first", filters::first);
    engine.add_filter("indent", filters::indent);
    engine.add_filter("int", filters::int);
    engine.add_filter("items", filters::items);
    engine.add_filter("join", filters::join);
    engine.add_filter("json", json);
    engine.add_filter("last", filters::last);
    engine.add_filter("length", filters::length);
    engine.add_filter("list", filters::list);
    engine.add_filter("lower", filters::lower);
    engine.add_filter("replace", filters::replace);
    engine.add_filter("sh", sh);
    engine.add_filter("sort", filters::sort);
    engine.add_filter("split", filters::split);
    engine.add_filter("trim", filters::trim);
    engine.add_filter("unique", filters::unique);
    engine.add_filter("upper", filters::upper);
    engine.add_test("defined", tests::is_defined);
    engine.add_test("undefined", tests::is_undefined);
    engine.add_test("in", tests::is_in);
    engine.add_test("startingwith", tests::is_startingwith);
    engine.add_test("endingwith", tests::is_endingwith);
    engine
});

/// A value as JSON, on one line.
fn json(value: Any) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    serde_json::to_string(&value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("cannot be written as JSON: {error}")))
}

/// A value as one word of a shell, whatever it contains: in single quotes, each of its own as `'\''`.
fn sh(value: Any) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if !matches!(value.kind(), ValueKind::String | ValueKind::Number | ValueKind::Bool) {
        let message = format!("the filter sh needs one word, not a {}: quote each of its items", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let text = value.to_string();
    if text.contains('\0') {
        return Err(Error::new(ErrorKind::InvalidOperation, "a shell word cannot contain a NUL byte"));
    }
    Ok(format!("'{}'", text.replace('\'', "'\\''")))
}

/// Why a template was not rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TemplateError {
    /// The template uses facts of a host that was not reached.
    Facts,
    /// The template uses a name that may be defined elsewhere: a label, a cluster value.
    Missing(String),
    /// The template can never be rendered.
    Invalid(String),
}

/// The variables of the templates of one package.
pub(super) struct TemplateScope {
    root: Any,
    notes: Arc<RenderNotes>,
}

/// Observations while a template was rendered.
#[derive(Debug, Default)]
struct RenderNotes {
    /// Whether facts were used that are not available.
    facts: AtomicBool,
    /// The used names that do not exist, and the existing names beside them.
    missed: Mutex<Vec<Missed>>,
}

#[derive(Clone, Debug)]
struct Missed {
    key: String,
    path: String,
    beside: Vec<String>,
}

/// Names and their values. Records names that do not exist: the engine's own errors do not say which name they mean.
struct NameTable {
    path: String,
    values: BTreeMap<Arc<str>, Any>,
    /// How unknown names are handled.
    others: UnknownNameHint,
    notes: Arc<RenderNotes>,
}

/// The handling of unknown names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnknownNameHint {
    /// Unknown names do not exist.
    None,
    /// Unknown names may exist later.
    Later,
    /// Every name exists, with a value: the real names are unknown for a specimen.
    Any,
}

impl fmt::Debug for NameTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.values).finish()
    }
}

impl Object for NameTable {
    fn get_value(self: &Arc<Self>, key: &Any) -> Option<Any> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Any> {
        if self.others == UnknownNameHint::Later {
            self.notes.facts.store(true, Ordering::Relaxed);
        }
        let found = self.values.get(key).cloned();
        if found.is_none() && self.others == UnknownNameHint::Any {
            return Some(Any::from("1"));
        }
        if found.is_none() {
            let missed = Missed {
                key: key.to_owned(),
                path: child(&self.path, key),
                beside: self.values.keys().map(|name| child(&self.path, name)).collect(),
            };
            let mut all = self.notes.missed.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|other| other.path != missed.path);
            all.push(missed);
        }
        found
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.others == UnknownNameHint::Later {
            self.notes.facts.store(true, Ordering::Relaxed);
        }
        Enumerator::Values(self.values.keys().map(|name| Any::from(&**name)).collect())
    }
}

/// The path of a name below another, as a template writes it.
fn child(path: &str, key: &str) -> String {
    let plain =
        key.chars().enumerate().all(|(at, c)| c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit()));
    match (path, plain) {
        ("", _) => key.to_owned(),
        (_, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[\"{key}\"]"),
    }
}

impl TemplateScope {
    /// The variables for a machine's templates.
    pub(super) fn new(values: &Values<'_>) -> Self {
        Self::with(values, UnknownNameHint::None)
    }

    /// The variables for validating templates without a machine: every label and every cluster value exists.
    pub(super) fn specimen() -> Self {
        let line = || Some("1".to_owned());
        let hardware = Hardware { serial: line(), model: line(), rack: line(), zone: line(), ..Hardware::default() };
        let taint = Taint { key: "1".into(), value: "1".into(), effect: TaintEffect::NoSchedule };
        let spec = MachineSpec {
            addresses: vec!["192.0.2.1".into()],
            hardware,
            provider_id: line(),
            taints: vec![taint],
            ..MachineSpec::default()
        };
        let facts = Facts { os: line(), kernel: line(), arch: line(), cpus: Some(1), memory: line(), boot_id: None };
        let machine = Machine::new("machine", spec);
        Self::with(&Values { machine: &machine, facts: Some(&facts), cluster: &BTreeMap::new() }, UnknownNameHint::Any)
    }

    fn with(values: &Values<'_>, others: UnknownNameHint) -> Self {
        let notes = Arc::new(RenderNotes::default());
        let made = |path: &str, values: Vec<(&str, Any)>, others: UnknownNameHint| {
            let values = values.into_iter().filter(|(_, value)| !value.is_undefined());
            let values = values.map(|(name, value)| (Arc::from(name), value)).collect();
            Any::from_object(NameTable { path: path.to_owned(), values, others, notes: notes.clone() })
        };
        let names = |path: &str, values: Vec<(&str, Any)>| made(path, values, UnknownNameHint::None);
        let map = |path: &str, map: &BTreeMap<String, String>| {
            made(path, map.iter().map(|(key, value)| (key.as_str(), Any::from(value.as_str()))).collect(), others)
        };
        let text = |text: Option<&str>| text.map_or(Any::UNDEFINED, Any::from);

        let (meta, spec) = (&values.machine.metadata, &values.machine.spec);
        let name = meta.name.as_deref().unwrap_or_default();
        let hardware = &spec.hardware;
        let machine = names(
            "machine",
            vec![
                ("name", Any::from(name)),
                ("nodeName", Any::from(spec.hostname.as_deref().unwrap_or(name))),
                ("role", plain(&spec.role)),
                ("address", text(spec.addresses.first().map(String::as_str))),
                ("addresses", plain(&spec.addresses)),
                ("labels", map("machine.labels", meta.labels.as_ref().unwrap_or(&BTreeMap::new()))),
                (
                    "hardware",
                    names(
                        "machine.hardware",
                        vec![
                            ("serial", text(hardware.serial.as_deref())),
                            ("model", text(hardware.model.as_deref())),
                            ("rack", text(hardware.rack.as_deref())),
                            ("zone", text(hardware.zone.as_deref())),
                            ("labels", map("machine.hardware.labels", &hardware.labels)),
                        ],
                    ),
                ),
                ("taints", plain(&spec.taints)),
                ("nodeLabels", map("machine.nodeLabels", &spec.node_labels)),
                ("providerID", text(spec.provider_id.as_deref())),
            ],
        );
        let facts = match values.facts {
            Some(facts) => names(
                "facts",
                vec![
                    ("os", text(facts.os.as_deref())),
                    ("kernel", text(facts.kernel.as_deref())),
                    ("arch", text(facts.arch.as_deref())),
                    ("cpus", facts.cpus.map_or(Any::UNDEFINED, Any::from)),
                    ("memory", text(facts.memory.as_deref())),
                ],
            ),
            None => made("facts", vec![], UnknownNameHint::Later),
        };
        let cluster = map("cluster", values.cluster);
        let root = names("", vec![("machine", machine), ("facts", facts), ("cluster", cluster)]);
        Self { root, notes }
    }

    /// Renders the template with these values.
    pub(super) fn render(&self, source: &str) -> Result<String, TemplateError> {
        if is_plain(source) {
            return Ok(source.to_owned());
        }
        self.notes.facts.store(false, Ordering::Relaxed);
        self.notes.missed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let template =
            ENGINE.template_from_named_str("template", source).map_err(|error| TemplateError::Invalid(says(&error)))?;
        let done = template.render(&self.root);
        // Even after a successful rendering: with facts, `facts.arch | default("amd64")` may become another text.
        if self.notes.facts.load(Ordering::Relaxed) {
            return Err(TemplateError::Facts);
        }
        done.map_err(|error| self.explain(&error, source))
    }

    fn explain(&self, error: &Error, source: &str) -> TemplateError {
        match self.missed(error, source) {
            Ok((line, missed)) => TemplateError::of(&missed.path, &missed.beside, &line),
            Err(message) => TemplateError::Invalid(message),
        }
    }

    /// The unknown name and its line (`line 3: `), or another error.
    fn missed(&self, error: &Error, source: &str) -> Result<(String, Missed), String> {
        if error.kind() != ErrorKind::UndefinedError {
            return Err(says(error));
        }
        let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
        // The last unknown name in this line: the others had a default, or are names of the engine itself.
        let used = error.line().and_then(|line| source.lines().nth(line.saturating_sub(1))).unwrap_or(source);
        let missed = std::mem::take(&mut *self.notes.missed.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(missed) = missed.into_iter().rfind(|missed| contains_word(used, &missed.key)) else {
            let what = error.range().and_then(|range| source.get(range)).unwrap_or("a name");
            return Err(format!("{line}{} is not defined", shown(what)));
        };
        Ok((line, missed))
    }

    /// Variables of templates that are not about a machine: these names, with these values.
    fn plain(roots: &[(&str, serde_json::Value)]) -> Self {
        let notes = Arc::new(RenderNotes::default());
        let values = roots.iter().map(|(name, value)| (Arc::from(*name), noted(name, value, &notes))).collect();
        let root = NameTable { path: String::new(), values, others: UnknownNameHint::None, notes: notes.clone() };
        Self { root: Any::from_object(root), notes }
    }
}

/// A value that records unknown fields.
fn noted(path: &str, value: &serde_json::Value, notes: &Arc<RenderNotes>) -> Any {
    match value {
        serde_json::Value::Object(fields) => {
            let values = fields.iter().map(|(key, value)| (Arc::from(&**key), noted(&child(path, key), value, notes)));
            let values = values.collect();
            Any::from_object(NameTable {
                path: path.to_owned(),
                values,
                others: UnknownNameHint::None,
                notes: notes.clone(),
            })
        }
        serde_json::Value::Array(list) => {
            list.iter().enumerate().map(|(at, value)| noted(&format!("{path}[{at}]"), value, notes)).collect()
        }
        other => Any::from_serialize(other),
    }
}

/// The text for these names and values, and no others. The same inputs give the same bytes.
///
/// # Errors
/// The line that cannot be rendered, why, and the existing names.
pub(crate) fn rendered(roots: &[(&str, serde_json::Value)], source: &str) -> Result<String, String> {
    if is_plain(source) {
        return Ok(source.to_owned());
    }
    let scope = TemplateScope::plain(roots);
    let template = ENGINE.template_from_named_str("template", source).map_err(|error| says(&error))?;
    template.render(&scope.root).map_err(|error| match scope.missed(&error, source) {
        Ok((line, missed)) => {
            let there = match &missed.beside[..] {
                [] => "available: none".to_owned(),
                some => format!("available: {}", list(some)),
            };
            let name = shown(&missed.path);
            format!("{line}{name} is not defined ({there}); use one of these, or write `{name} | default(\"…\")`")
        }
        Err(message) => message,
    })
}

impl TemplateError {
    /// An unknown name, the existing names beside it, and its line (`line 3: `).
    fn of(path: &str, beside: &[String], at: &str) -> Self {
        let there = match beside {
            [] => "available: none".to_owned(),
            some => format!("available: {}", list(some)),
        };
        let name = shown(path);
        if let Some(label) = below(path, "machine.labels") {
            let message = format!(
                "{at}{name} is not defined: the machine has no such label ({there}); set {label} in its metadata.labels, or write `{name} | default(\"…\")`"
            );
            return Self::Missing(message);
        }
        if let Some(label) = below(path, "machine.nodeLabels") {
            return Self::Missing(format!(
                "{at}{name} is not defined ({there}); set {label} in the machine's spec.nodeLabels, or write `{name} | default(\"…\")`"
            ));
        }
        if let Some(value) = below(path, "cluster") {
            return Self::Missing(format!(
                "{at}{name} is not defined: the cluster has no such value ({there}); set {value} in the ConfigMap {}, or write `{name} | default(\"…\")`",
                fleetwright_api::names::CLUSTER_VALUES
            ));
        }
        let field = match path {
            "machine.address" => Some("addresses".to_owned()),
            "machine.providerID" => Some("providerID".to_owned()),
            _ => below(path, "machine.hardware").map(|field| format!("hardware.{field}")),
        };
        if let Some(field) = field.filter(|_| path.starts_with("machine.hardware.labels") || is_known(path)) {
            return Self::Missing(format!(
                "{at}{name} is not defined: the field is not set; set spec.{field} of the Machine, or write `{name} | default(\"…\")`"
            ));
        }
        if is_known(path) {
            return Self::Missing(format!(
                "{at}{name} is not defined: the host did not report it; write `{name} | default(\"…\")`"
            ));
        }
        Self::Invalid(unknown(path, at))
    }
}

/// The message for a name that never exists.
fn unknown(path: &str, at: &str) -> String {
    let known: Vec<_> = match path.split_once('.') {
        Some(("machine", rest)) if rest.starts_with("hardware") => {
            HARDWARE.map(|name| format!("machine.hardware.{name}")).to_vec()
        }
        Some(("machine", _)) => templates::MACHINE.map(|name| format!("machine.{name}")).to_vec(),
        Some(("facts", _)) => templates::FACTS.map(|name| format!("facts.{name}")).to_vec(),
        _ => templates::ROOTS.map(str::to_owned).to_vec(),
    };
    format!("{at}{} is not defined: templates can use {}", shown(path), list(&known))
}

/// The fields of `machine.hardware`.
const HARDWARE: [&str; 5] = ["serial", "model", "rack", "zone", "labels"];

/// Whether a name can exist, as far as it is known without a machine and a cluster.
fn is_known(path: &str) -> bool {
    let mut parts = path.split('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("machine"), Some("hardware"), Some(name)) => HARDWARE.contains(&name),
        (Some("machine"), Some(name), _) => {
            let name = name.split('[').next().unwrap_or_default();
            templates::MACHINE.contains(&name)
        }
        (Some("facts"), Some(name), _) => templates::FACTS.contains(&name),
        (Some(root), _, _) => templates::ROOTS.contains(&root),
        (None, _, _) => false,
    }
}

/// Whether a text contains that whole word.
fn contains_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c == '_' || c.is_alphanumeric());
    text.match_indices(word)
        .any(|(at, _)| !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next()))
}

/// The key below that path, without quotes.
fn below(path: &str, parent: &str) -> Option<String> {
    let rest = path.strip_prefix(parent)?;
    let key = rest.strip_prefix('.').or_else(|| rest.strip_prefix("[\"")?.strip_suffix("\"]"))?;
    Some(key.to_owned())
}

/// Whether a text has no template syntax.
fn is_plain(source: &str) -> bool {
    !["{{", "{%", "{#"].iter().any(|mark| source.contains(mark))
}

fn plain(value: &impl Serialize) -> Any {
    Any::from_serialize(value)
}

/// The error of the engine, with its line, and the allowed names where that helps.
fn says(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
    format!("{line}{}", says_without_line(error))
}

fn says_without_line(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let detail = shown(&detail);
    match error.kind() {
        ErrorKind::SyntaxError => format!("invalid template: {detail}"),
        ErrorKind::UnknownFilter => format!("{detail}; available filters: {}", FILTERS.join(", ")),
        ErrorKind::UnknownFunction | ErrorKind::UnknownMethod => {
            format!("{detail}; templates have no functions, only the filters {}", FILTERS.join(", "))
        }
        ErrorKind::OutOfFuel => "the template takes too long; reduce nested loops".to_owned(),
        _ => detail,
    }
}

/// A text, bounded and on one line.
fn shown(text: &str) -> String {
    truncate_line(text, 200)
}

/// The first of many names, for messages.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text = names.iter().take(SHOWN).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

/// The findings about a template that need no machine, each with its line.
pub(super) fn findings(source: &str) -> Vec<(Option<usize>, String)> {
    let template = match ENGINE.template_from_named_str("template", source) {
        Ok(template) => template,
        Err(error) => return vec![(error.line(), says_without_line(&error))],
    };
    let mut names: Vec<_> = template.undeclared_variables(true).into_iter().filter(|name| !is_known(name)).collect();
    names.sort();
    let mut found: Vec<_> = names
        .iter()
        .map(|name| (source.lines().position(|line| line.contains(name.as_str())).map(|at| at + 1), unknown(name, "")))
        .collect();
    // Unknown filters and functions are only reported when they are called, with any value.
    if let Err(error) = template.render(&TemplateScope::specimen().root) {
        use ErrorKind::{OutOfFuel, UnknownFilter, UnknownFunction, UnknownMethod, UnknownTest};
        let function = matches!(error.kind(), UnknownFunction) && !names.is_empty();
        if matches!(error.kind(), OutOfFuel | UnknownFilter | UnknownFunction | UnknownMethod | UnknownTest) {
            // A function is also an unknown name: only the better message is kept.
            found.retain(|(line, _)| !function || *line != error.line());
            found.push((error.line(), says_without_line(&error)));
        }
    }
    found
}

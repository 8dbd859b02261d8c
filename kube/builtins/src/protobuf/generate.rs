//! Makes `table.txt` out of the Go types: their struct tags say which field number has which JSON name, and the Go type
//! says what is on the wire and what JSON leaves out.
//!
//! The reader of Go is by lines, for source formatted by `gofmt`: one field, one line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

use crate::KINDS;

/// The types that have their own form on the wire or in JSON.
const SPECIAL: &[(&str, &str)] = &[
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", "json"),
    ("io.k8s.apimachinery.pkg.api.resource.Quantity", "quantity"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1", "json"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime", "microtime"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", "time"),
    ("io.k8s.apimachinery.pkg.runtime.RawExtension", "json"),
    ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", "intorstring"),
];

const HEADER: &str = "\
# Which protobuf field is which JSON field, for Kubernetes' built-in kinds and all they hold.
# Generated from the Go types by `make generate`: do not edit. table.rs explains the format.
";

/// Writes the table for the built-in kinds and all they hold. `read` gives the hand-written Go files of a package, such
/// as `k8s.io/api/core/v1`.
///
/// # Errors
/// When a package cannot be read, or holds a type whose form on the wire is not known here.
pub fn generate(read: impl FnMut(&str) -> Result<Vec<String>, String>) -> Result<String, String> {
    let mut generator = Generator { read, packages: BTreeMap::new(), queue: BTreeSet::new() };
    generator.queue.insert(super::DELETE_OPTIONS.to_owned());
    for kind in KINDS {
        generator.queue.insert(kind.type_name.to_owned());
        generator.queue.extend(kind.subresources.iter().map(|sub| sub.type_name.to_owned()));
    }
    let mut messages: BTreeMap<String, String> = BTreeMap::new();
    while let Some(name) = generator.queue.pop_first() {
        if messages.contains_key(&name) {
            continue;
        }
        let message = generator.message(&name)?;
        messages.insert(name, message);
    }
    let mut table = HEADER.to_owned();
    table.extend(messages.into_values());
    Ok(table)
}

/// The packages that a Go file imports, by the name it uses for them.
type Imports = Rc<BTreeMap<String, String>>;

/// A Go type: its imports and what it is.
#[derive(Clone)]
struct Def {
    imports: Imports,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Struct(Vec<GoField>),
    Named(String),
}

#[derive(Clone, Debug, PartialEq)]
struct GoField {
    number: u32,
    /// `None`: embedded, and inlined in JSON.
    json: Option<String>,
    /// `?`, `!` or nothing, as the table has it.
    omit: &'static str,
    tagged: bool,
    ty: String,
}

struct Generator<R> {
    read: R,
    packages: BTreeMap<String, BTreeMap<String, Def>>,
    queue: BTreeSet<String>,
}

impl<R: FnMut(&str) -> Result<Vec<String>, String>> Generator<R> {
    /// The lines of one message.
    fn message(&mut self, name: &str) -> Result<String, String> {
        let (package, _) = split(name)?;
        let def = self.def(name)?;
        let Body::Struct(mut fields) = def.body else { return Err(format!("{name} is no struct")) };
        fields.sort_by_key(|field| field.number);
        let oneof = if fields.iter().all(|field| !field.tagged) && !fields.is_empty() { " oneof" } else { "" };
        let mut lines = format!("{name}{oneof}\n");
        for field in fields {
            let (pointer, ty) = field.ty.strip_prefix('*').map_or((false, field.ty.as_str()), |ty| (true, ty));
            let written = self.written(&package, &def.imports, ty)?;
            let presence = if pointer { "*" } else { field.omit };
            let json = field.json.as_deref().unwrap_or(".");
            writeln!(lines, " {} {json} {presence}{written}", field.number).map_err(|e| e.to_string())?;
        }
        Ok(lines)
    }

    /// A Go type as the table writes it. A message is put on the queue.
    fn written(&mut self, package: &str, imports: &Imports, ty: &str) -> Result<String, String> {
        let ty = ty.strip_prefix('*').unwrap_or(ty);
        match ty {
            "[]byte" => return Ok("bytes".into()),
            "string" | "bool" | "int32" | "int64" | "float64" => return Ok(ty.into()),
            "int" => return Ok("int64".into()),
            _ => {}
        }
        if let Some(of) = ty.strip_prefix("[]") {
            return Ok(format!("[]{}", self.written(package, imports, of)?));
        }
        if let Some((_, of)) = ty.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
            return Ok(format!("{{}}{}", self.written(package, imports, of)?));
        }
        let name = match ty.split_once('.') {
            Some((alias, ty)) => {
                let path = imports.get(alias).ok_or_else(|| format!("{package} does not import {alias}"))?;
                full_name(path, ty)
            }
            None => full_name(package, ty),
        };
        if let Some((_, special)) = SPECIAL.iter().find(|(special, _)| *special == name) {
            return Ok((*special).to_owned());
        }
        let def = self.def(&name)?;
        match def.body {
            Body::Struct(_) => {
                self.queue.insert(name.clone());
                Ok(name)
            }
            // A named list of strings is the value of a map, and there it is a message of its own.
            Body::Named(of) if of == "[]string" => Ok("strings".into()),
            Body::Named(of) => {
                let (package, _) = split(&name)?;
                self.written(&package, &def.imports, &of)
            }
        }
    }

    fn def(&mut self, name: &str) -> Result<Def, String> {
        let (package, ty) = split(name)?;
        if !self.packages.contains_key(&package) {
            let mut types = BTreeMap::new();
            for file in (self.read)(&package)? {
                parse(&file, &mut types);
            }
            self.packages.insert(package.clone(), types);
        }
        let found = self.packages.get(&package).and_then(|types| types.get(&ty));
        found.cloned().ok_or_else(|| format!("{package} has no type {ty}"))
    }
}

/// `k8s.io/api/core/v1` and `Pod` are `io.k8s.api.core.v1.Pod`.
fn full_name(package: &str, ty: &str) -> String {
    let rest = package.strip_prefix("k8s.io/").unwrap_or(package);
    format!("io.k8s.{}.{ty}", rest.replace('/', "."))
}

/// The opposite of [`full_name`].
fn split(name: &str) -> Result<(String, String), String> {
    let parts = name.strip_prefix("io.k8s.").and_then(|rest| rest.rsplit_once('.'));
    let (package, ty) = parts.ok_or_else(|| format!("{name} is not a type of Kubernetes"))?;
    Ok((format!("k8s.io/{}", package.replace('.', "/")), ty.to_owned()))
}

/// Adds the types of a Go file.
fn parse(file: &str, types: &mut BTreeMap<String, Def>) {
    let imports: Imports =
        Rc::new(file.lines().take_while(|line| !line.starts_with("type ")).filter_map(import).collect());
    let mut open: Option<(String, Vec<GoField>)> = None;
    for line in file.lines() {
        if let Some((name, fields)) = &mut open {
            if line.starts_with('}') {
                types
                    .insert(name.clone(), Def { imports: imports.clone(), body: Body::Struct(std::mem::take(fields)) });
                open = None;
            } else {
                fields.extend(field(line));
            }
            continue;
        }
        let Some((name, of)) = line.strip_prefix("type ").and_then(|rest| rest.split_once(' ')) else { continue };
        match of.trim_start_matches("= ").trim() {
            "struct {" => open = Some((name.to_owned(), Vec::new())),
            "struct{}" => {
                types.insert(name.to_owned(), Def { imports: imports.clone(), body: Body::Struct(Vec::new()) });
            }
            of => {
                let of = of.split(" //").next().unwrap_or(of).trim().to_owned();
                types.insert(name.to_owned(), Def { imports: imports.clone(), body: Body::Named(of) });
            }
        }
    }
}

/// `metav1 "k8s.io/…/v1"`, with or without the alias.
fn import(line: &str) -> Option<(String, String)> {
    let line = line.trim().trim_start_matches("import ").trim();
    let (alias, rest) = line.split_once('"')?;
    let path = rest.strip_suffix('"')?;
    let alias = if alias.is_empty() { path.rsplit('/').next()? } else { alias.trim() };
    Some((alias.to_owned(), path.to_owned()))
}

/// One line of a struct, when it is a field that protobuf has.
fn field(line: &str) -> Option<GoField> {
    let (declared, tags) = line.trim().split_once('`')?;
    if declared.starts_with("//") {
        return None;
    }
    let number = tag(tags, "protobuf")?.split(',').nth(1)?.parse().ok()?;
    let mut words = declared.split_whitespace();
    let (name, ty) = match (words.next()?, words.next()) {
        (name, Some(ty)) => (Some(name), ty),
        (ty, None) => (None, ty),
    };
    let json = tag(tags, "json");
    let mut options = json.unwrap_or_default().split(',');
    let named = options.next().filter(|json| !json.is_empty()).or(name).map(str::to_owned);
    let options: Vec<&str> = options.collect();
    let omit = match (options.contains(&"omitzero"), options.contains(&"omitempty")) {
        (true, _) => "!",
        (false, true) => "?",
        (false, false) => "",
    };
    Some(GoField { number, json: named, omit, tagged: json.is_some(), ty: ty.to_owned() })
}

/// The value of one of a field's tags.
fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tags.split_once(&format!("{name}:\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_says_its_number_its_json_name_and_when_it_is_left_out() {
        let read =
            field("\tHostNetwork bool `json:\"hostNetwork,omitempty\" protobuf:\"varint,11,opt,name=hostNetwork\"`");
        let field = read.unwrap();
        assert_eq!(
            (field.number, field.json.as_deref(), field.omit, &*field.ty),
            (11, Some("hostNetwork"), "?", "bool")
        );
    }

    #[test]
    fn an_embedded_struct_without_a_name_is_inlined() {
        let inlined = field("\tVolumeSource `json:\"\" protobuf:\"bytes,2,opt,name=volumeSource\"`").unwrap();
        assert_eq!((inlined.json, &*inlined.ty), (None, "VolumeSource"));
        let named =
            field("\tmetav1.ObjectMeta `json:\"metadata,omitempty\" protobuf:\"bytes,1,opt,name=metadata\"`").unwrap();
        assert_eq!(named.json.as_deref(), Some("metadata"));
    }

    #[test]
    fn what_protobuf_does_not_have_is_no_field() {
        assert_eq!(field("\tmetav1.TypeMeta `json:\",inline\"`"), None);
        assert_eq!(field("\t// Old int `json:\"old\" protobuf:\"varint,1,opt,name=old\"`"), None);
    }

    #[test]
    fn a_type_that_the_table_cannot_hold_is_an_error() {
        let broken = |_: &str| Ok(vec!["package v1\ntype DeleteOptions chan int\n".to_owned()]);
        assert!(generate(broken).is_err());
    }
}

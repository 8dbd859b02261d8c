//! `fleetwright package lint`.
//!
//! An embedded API server in this process, with the same definitions, gives the server's errors; the planner checks what a server cannot know.
//! Each finding has the line in the file.

use std::io::Read as _;
use std::rc::Rc;

use anyhow::{Context, bail};
use fleetwright_api::{ControlPlaneComponent, GROUP, MachinePackageVersion, VERSION, is_digest};
use fleetwright_apiserver::{Config, Server};
use fleetwright_plan::package::{PackageMember, check, check_set, unquoted_values};
use kube::{Client, CustomResourceExt as _};
use serde::Serialize;
use serde_json::Value;

use super::source::{self, SourceTree};
use crate::output::TextOrJson;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright package lint kubelet.yaml
  fleetwright package lint packages/*.yaml --together
  fleetwright package new tarball | fleetwright package lint -")]
pub(crate) struct Args {
    /// Files with package versions, one or more documents each; `-` reads standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,

    /// Check also that all of them fit together on one machine.
    #[arg(long)]
    together: bool,

    /// Treat warnings as errors.
    #[arg(long)]
    strict: bool,

    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: TextOrJson,
}

/// A finding with its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    file: String,
    line: usize,
    column: usize,
    severity: Severity,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Error,
    Warning,
    /// No error; the document was not checked.
    Note,
}

/// An object in a file.
struct Document {
    file: String,
    /// The whole text of the file.
    text: Rc<str>,
    tree: SourceTree,
}

impl Document {
    fn name(&self) -> Option<String> {
        self.tree.find("metadata.name").0.text().map(str::to_owned).filter(|_| self.tree.find("metadata.name").1)
    }

    /// Whether the value is a block scalar, whose lines map to lines of the file.
    fn is_block(&self, tree: &SourceTree) -> bool {
        let above = tree.line.checked_sub(2).and_then(|at| self.text.lines().nth(at)).unwrap_or_default();
        let above = above.split(" #").next().unwrap_or_default().trim_end().trim_end_matches(['-', '+']);
        tree.text().is_some() && above.ends_with('|')
    }

    fn finding(&self, severity: Severity, field: &str, line: Option<usize>, message: String) -> Finding {
        let (tree, exact) = self.tree.find(field);
        let (line, column, message) = match line {
            Some(line) if exact && self.is_block(tree) => (tree.line + line - 1, 1, message),
            Some(line) if line > 1 => (tree.line, tree.column, format!("line {line}: {message}")),
            _ => (tree.line, tree.column, message),
        };
        Finding { file: self.file.clone(), line, column, severity, name: self.name(), field: field.to_owned(), message }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    let mut documents = Vec::new();
    for file in &args.files {
        let text = read(file)?;
        let shared: Rc<str> = text.as_str().into();
        let file = if file == "-" { "standard input".to_owned() } else { file.clone() };
        match source::documents(&text) {
            Ok(trees) if trees.is_empty() => findings.push(plain(&file, 1, 1, Severity::Error, "the file is empty")),
            Ok(trees) => documents.extend(trees.into_iter().flat_map(items).map(|tree| Document {
                file: file.clone(),
                text: shared.clone(),
                tree,
            })),
            Err((line, column, said)) => {
                findings.push(plain(&file, line, column, Severity::Error, &format!("invalid YAML: {said}")))
            }
        }
    }
    let (ours, others): (Vec<_>, Vec<_>) =
        documents.into_iter().partition(|document| is(document, "MachinePackageVersion"));
    let (planes, others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|document| is(document, "ClusterPackageVersion"));
    planes.iter().for_each(|plane| {
        images(plane, &mut findings);
        extensions(plane, &mut findings);
    });
    for other in &others {
        let kind = other.tree.find("kind").0.text().unwrap_or("no kind").to_owned();
        findings.push(other.finding(
            Severity::Note,
            "kind",
            None,
            format!(
                "{kind} is not checked: only MachinePackageVersions and ClusterPackageVersions of {GROUP}/{VERSION} are"
            ),
        ));
    }
    crate::runtime()?.block_on(judge(&ours, &mut findings))?;
    if args.together {
        together(&ours, &mut findings);
    }
    findings.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    match args.output {
        TextOrJson::Json => crate::print(&(serde_json::to_string_pretty(&findings)? + "\n"))?,
        TextOrJson::Text => crate::print(&shown(&findings))?,
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let looked = ours.len() + planes.len();
    let told =
        format!("{}, {} in {}", many(errors, "error"), many(warnings, "warning"), many(looked, "package version"));
    if errors > 0 || (args.strict && warnings > 0) {
        bail!("{told}");
    }
    if looked == 0 {
        bail!("no package versions found");
    }
    if args.output == TextOrJson::Text {
        println!("{told}");
    }
    Ok(())
}

fn many(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn read(file: &str) -> anyhow::Result<String> {
    if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))
}

/// The items of a List, or the object itself.
fn items(tree: SourceTree) -> Vec<SourceTree> {
    match tree.get("kind").and_then(SourceTree::text) {
        Some("List" | "MachinePackageVersionList") => {
            tree.get("items").map(|items| items.items().to_vec()).unwrap_or_default()
        }
        _ => vec![tree],
    }
}

fn is(document: &Document, kind: &str) -> bool {
    let is = |field: &str, wanted: &str| document.tree.get(field).and_then(SourceTree::text) == Some(wanted);
    is("kind", kind) && is("apiVersion", &format!("{GROUP}/{VERSION}"))
}

/// Finds images without a digest: a registry can serve another image by the same tag later.
fn images(document: &Document, findings: &mut Vec<Finding>) {
    for component in ControlPlaneComponent::ALL {
        let field = format!("spec.components.{}.image", component.field());
        let (tree, there) = document.tree.find(&field);
        let Some(image) = tree.text().filter(|image| there && !is_digest(image)) else { continue };
        let message = format!("{}, and set version", by_tag(image));
        findings.push(document.finding(Severity::Warning, &field, None, message));
    }
    let extensions = document.tree.find("spec.extensions");
    let extensions = if extensions.1 { extensions.0.items() } else { &[] };
    for (at, extension) in extensions.iter().enumerate() {
        let template = extension.get("template").and_then(SourceTree::text).unwrap_or_default();
        for (line, image) in template_images(template) {
            let field = format!("spec.extensions[{at}].template");
            findings.push(document.finding(Severity::Warning, &field, Some(line), by_tag(image)));
        }
        let schema = extension.get("valuesSchema").and_then(SourceTree::text).unwrap_or_default();
        let mut defaults = Vec::new();
        for tree in source::documents(schema).unwrap_or_default() {
            default_images(&tree.value(), &mut defaults);
        }
        // Sorted, to be independent of the order of the schema.
        defaults.sort();
        for image in defaults {
            let field = format!("spec.extensions[{at}].valuesSchema");
            findings.push(document.finding(Severity::Warning, &field, None, by_tag(&image)));
        }
    }
}

fn by_tag(image: &str) -> String {
    format!("{image} is referenced by a tag, which can point to another image later: use its digest, NAME@sha256:…")
}

/// The literal images in a template, with their lines. Images from values are found in the defaults of the schema.
fn template_images(template: &str) -> Vec<(usize, &str)> {
    let named = template.lines().enumerate().filter_map(|(at, line)| Some((at + 1, template_image(line)?)));
    named.filter(|(_, image)| !is_digest(image)).collect()
}

fn template_image(line: &str) -> Option<&str> {
    let start = line.find("image:")?;
    let bare = line[..start].trim_matches([' ', '\t', '-', '{', '"', '\'']).is_empty();
    let value = line[start + "image:".len()..].split([',', '}', '#']).next()?.trim().trim_matches(['"', '\'']);
    (bare && !value.is_empty() && !line.contains("{{")).then_some(value)
}

/// The default images in a schema of values.
fn default_images(schema: &Value, found: &mut Vec<String>) {
    for (key, value) in schema.as_object().into_iter().flatten() {
        let named = key == "image" || key.ends_with("Image");
        let default = if value.is_string() { Some(value) } else { value.get("default") };
        match default.and_then(Value::as_str).filter(|_| named) {
            Some(image) if !image.is_empty() && !is_digest(image) => found.push(image.to_owned()),
            _ => default_images(value, found),
        }
    }
}

/// Finds values of Clusters that templates of extensions do not quote.
fn extensions(document: &Document, findings: &mut Vec<Finding>) {
    let value = document.tree.value();
    let extensions = value["spec"]["extensions"].as_array().into_iter().flatten();
    for (at, extension) in extensions.enumerate() {
        let Some(template) = extension["template"].as_str() else { continue };
        let field = format!("spec.extensions[{at}].template");
        for (line, message) in unquoted_values(template, extension["valuesSchema"].as_str()) {
            findings.push(document.finding(Severity::Warning, &field, Some(line), message));
        }
    }
}

fn plain(file: &str, line: usize, column: usize, severity: Severity, message: &str) -> Finding {
    Finding {
        file: file.to_owned(),
        line,
        column,
        severity,
        name: None,
        field: String::new(),
        message: message.to_owned(),
    }
}

/// Adds the findings of the server and the planner for each document.
async fn judge(documents: &[Document], findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    if documents.is_empty() {
        return Ok(());
    }
    let server = Server::start(Config::default()).await?;
    let client = server.client();
    let ended = async {
        crate::install::kinds_and_namespace(&client).await?;
        for document in documents {
            let value = document.tree.value();
            let mut refused = refused(&client, &value).await?;
            let package = serde_json::from_value::<MachinePackageVersion>(value).ok();
            let checked = package.map(|package| check(&package.spec)).unwrap_or_default();
            // If both report the same field, the one with the line is kept, else the server's.
            refused
                .retain(|(field, _)| !checked.iter().any(|one| one.error && one.line.is_some() && one.field == *field));
            let said =
                |field: &str| refused.iter().any(|(other, _)| !other.is_empty() && field.starts_with(other.as_str()));
            for finding in checked.into_iter().filter(|one| !one.error || !said(&one.field)) {
                let severity = if finding.error { Severity::Error } else { Severity::Warning };
                findings.push(document.finding(severity, &finding.field, finding.line, finding.message));
            }
            let causes = refused.into_iter();
            findings.extend(causes.map(|(field, message)| document.finding(Severity::Error, &field, None, message)));
        }
        anyhow::Ok(())
    };
    let ended = ended.await;
    server.stop().await;
    ended
}

/// The errors of the server, by field.
async fn refused(client: &Client, object: &Value) -> anyhow::Result<Vec<(String, String)>> {
    let plural = MachinePackageVersion::crd().spec.names.plural;
    let namespace = crate::FLEET_NAMESPACE;
    let mut object = object.clone();
    // In a namespace of the embedded server, whatever the file declares.
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("namespace");
    }
    let uri = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}?dryRun=All&fieldValidation=Strict");
    let request =
        http::Request::post(uri).header("content-type", "application/json").body(serde_json::to_vec(&object)?)?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(vec![]),
        Err(kube::Error::Api(status)) => Ok(causes(&status)),
        Err(error) => Err(error.into()),
    }
}

fn causes(status: &kube::core::Status) -> Vec<(String, String)> {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    if !causes.is_empty() {
        return causes.iter().map(|cause| (cause.field.clone(), short(&cause.message))).collect();
    }
    // `strict decoding error: unknown field "spec.foo", unknown field "spec.bar"`
    let unknown: Vec<_> = status
        .message
        .split("unknown field \"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(field, _)| (field.to_owned(), format!("unknown field {field}")))
        .collect();
    if unknown.is_empty() { vec![(String::new(), status.message.clone())] } else { unknown }
}

/// The message without a long value, which the file shows anyway.
fn short(message: &str) -> String {
    let Some(rest) = message.strip_prefix("Invalid value: \"") else { return message.to_owned() };
    let mut escaped = false;
    let end = rest.char_indices().find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    match end.and_then(|(at, _)| rest[at + 1..].strip_prefix(": ").map(|said| (at, said))) {
        Some((at, said))
            if at > 60 || matches!(&rest[..at], "object" | "string" | "array") || rest[..at].contains("\\n") =>
        {
            said.to_owned()
        }
        _ => message.to_owned(),
    }
}

/// Checks whether all packages fit on one machine.
fn together(documents: &[Document], findings: &mut Vec<Finding>) {
    let specs: Vec<_> = documents
        .iter()
        .filter_map(|document| {
            Some((document, serde_json::from_value::<MachinePackageVersion>(document.tree.value()).ok()?.spec))
        })
        .collect();
    for (at, (document, spec)) in specs.iter().enumerate() {
        if specs[..at].iter().any(|(_, other)| other.component == spec.component) {
            let message = format!("{} appears twice: a machine has one version of each component", spec.component);
            findings.push(document.finding(Severity::Error, "spec.component", None, message));
        }
    }
    let members: Vec<_> = specs.iter().map(|(_, spec)| PackageMember::from(spec)).collect();
    for finding in check_set(&members) {
        if let Some((document, _)) = specs.iter().find(|(_, spec)| spec.component == finding.component) {
            findings.push(document.finding(Severity::Error, "spec.component", None, finding.message));
        }
    }
}

/// The findings in the format of compilers, so that editors find the place.
fn shown(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let field = if finding.field.is_empty() { String::new() } else { format!("{}: ", finding.field) };
        out.push_str(&format!(
            "{}:{}:{}: {severity}: {field}{}\n",
            finding.file, finding.line, finding.column, finding.message
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_stand_in_the_file_are_not_repeated() {
        assert_eq!(short(r#"Invalid value: "a \"b\"\nc": must be x"#), "must be x");
        assert_eq!(short(r#"Invalid value: "object": must be x: y"#), "must be x: y");
        assert_eq!(short(r#"Invalid value: "7": must be x"#), r#"Invalid value: "7": must be x"#);
        assert_eq!(short("Required value"), "Required value");
    }

    #[test]
    fn images_of_extensions_are_asked_for_by_digest() {
        let digest = format!("registry.example/good@sha256:{}", "a".repeat(64));
        let text = format!(
            "apiVersion: fleetwright.io/v1alpha1\nkind: ClusterPackageVersion\nmetadata: {{name: a}}\nspec:\n  extensions:\n  - name: dns\n    template: |\n      kind: Deployment\n      spec:\n        containers:\n        - name: a\n          image: registry.example/dns:1\n        - image: \"{digest}\"\n        - image: {{{{ values.image }}}}\n    valuesSchema: |\n      type: object\n      properties:\n        image: {{type: string, default: \"registry.example/agent:2\"}}\n        deep: {{type: object, properties: {{sideImage: {{type: string, default: \"registry.example/side:3\"}}}}}}\n        pinned: {{type: object, properties: {{image: {{type: string, default: \"{digest}\"}}}}}}\n"
        );
        let mut findings = Vec::new();
        for tree in source::documents(&text).unwrap() {
            let document = Document { file: "a.yaml".to_owned(), text: text.as_str().into(), tree };
            images(&document, &mut findings);
        }
        let said: Vec<(usize, &str, &str)> = findings
            .iter()
            .map(|one| (one.line, one.field.as_str(), one.message.split(' ').next().unwrap_or_default()))
            .collect();
        let (template, schema) = ("spec.extensions[0].template", "spec.extensions[0].valuesSchema");
        let images: Vec<_> = said.iter().map(|(_, field, image)| (*field, *image)).collect();
        assert_eq!(
            images,
            [
                (template, "registry.example/dns:1"),
                (schema, "registry.example/agent:2"),
                (schema, "registry.example/side:3")
            ]
        );
        assert_eq!(said[0].0, 12, "the line of the image");
        assert!(findings.iter().all(|one| one.severity == Severity::Warning));
    }
}

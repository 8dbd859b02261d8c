//! `fleetwright machine import`.

mod ansible;
mod candidate;
mod check;
mod keys;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use fleetwright_api::{DrainOptions, GROUP, Machine, PackageRef, VERSION};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use self::candidate::{Candidate, ImportOptions, Imported, is_label_key, is_label_value, object_name};
use self::keys::KnownHosts;
use super::reach::ReachArgs;
use crate::cluster::{Cluster, ClusterArgs, is_not_found};
use crate::output::Output;
use crate::package::source;

/// The field manager of imports: importing a changed list again changes only the differences.
const FIELD_MANAGER: &str = "fleetwright-import";

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright machine import hosts.ini --known-hosts ~/.ssh/known_hosts --dry-run -o yaml
  fleetwright machine import hosts.csv --check --pin --key-file ~/.ssh/fleet
  fleetwright machine import inventory.yaml --trust-on-first-use --package kubelet=kubelet-1.37.1 --label pool=online

Groups of an inventory become labels group.fleetwright.io/NAME, its variables become labels of the same name. Entries that are dropped or not
understood are printed.")]
pub(crate) struct Args {
    /// File with the list of hosts; `-` reads standard input.
    #[arg(value_name = "FILE")]
    file: String,

    /// Format of the list. [default: detected from the file name and content]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<InputFormat>,

    /// Secret with the private SSH key, for hosts for which the list names no other.
    #[arg(long, value_name = "NAME", default_value = "fleet-ssh")]
    key_secret: String,

    /// File with host keys, as ssh-keyscan and ssh write it; can be repeated.
    #[arg(long, value_name = "FILE")]
    known_hosts: Vec<PathBuf>,

    /// For hosts whose key is not known, trust the key that they present to the operator first.
    #[arg(long)]
    trust_on_first_use: bool,

    /// Connect to each host first, and print the result. A host that cannot be reached is not imported.
    #[arg(long)]
    check: bool,

    /// With --check: pin hosts whose key is not known to the key that they present now.
    #[arg(long, requires = "check")]
    pin: bool,

    /// With --check: file with the private SSH key. [default: the one that the list names, else the key in the Secret]
    #[arg(long, value_name = "FILE", requires = "check")]
    key_file: Option<PathBuf>,

    /// Package version for all machines; can be repeated.
    #[arg(long, value_name = "COMPONENT=NAME", value_parser = package)]
    package: Vec<PackageRef>,

    /// Label for all machines; can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,

    /// Check and print the machines without changing anything. With -o json or yaml and without --check, needs no cluster.
    #[arg(long)]
    dry_run: bool,

    /// Output format; json and yaml print the objects instead of a line for each.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,

    /// Namespace to create the machines in. [default: that of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,

    #[command(flatten)]
    reach: ReachArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InputFormat {
    /// YAML list, or Machine objects.
    Yaml,
    /// Table with a header row.
    Csv,
    /// Ansible inventory in INI format.
    AnsibleIni,
    /// Ansible inventory in YAML format.
    AnsibleYaml,
}

fn package(text: &str) -> Result<PackageRef, String> {
    match text.split_once('=').filter(|(component, name)| !component.is_empty() && !name.is_empty()) {
        Some((component, name)) => Ok(PackageRef { component: component.to_owned(), ref_: name.to_owned() }),
        None => Err("write COMPONENT=NAME, such as kubelet=kubelet-1.37.1".into()),
    }
}

/// Parses a label `key=value`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').filter(|(key, value)| is_label_key(key) && is_label_value(value)) {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err("write KEY=VALUE, such as pool=online".into()),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (file, text) = read(&args.file)?;
    let (mut imported, objects) = parse(args.format, &file, &text)?;
    if imported.hosts.is_empty() && objects.is_empty() {
        for note in imported.notes.lines() {
            eprintln!("note: {note}");
        }
        bail!("no hosts found in {file}");
    }
    let known = known_hosts(&args.known_hosts)?;
    if known.hashed > 0 && imported.hosts.iter().any(|host| host.host_keys.is_empty()) {
        eprintln!(
            "note: known_hosts entries ignored because their names are hashed: {}; create them again with ssh-keyscan",
            known.hashed
        );
    }
    imported.hosts.iter_mut().for_each(|host| known.fill(host));
    name_secrets(&mut imported, &args.key_secret);
    unique(&imported.hosts)?;
    for note in imported.notes.lines() {
        eprintln!("note: {note}");
    }
    // A dry run with JSON or YAML output needs no cluster.
    let offline = args.dry_run && args.output != Output::Text && !args.check;
    crate::runtime()?.block_on(async {
        if offline {
            let (machines, failed) = machines(args, args.namespace.clone(), &imported.hosts, &objects);
            return finish(args, None, machines, failed).await;
        }
        let cluster = args.cluster.connect().await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref()).to_owned();
        let mut failed = Vec::new();
        if args.check {
            let options = check::Options {
                pin: args.pin,
                key_file: args.key_file.as_deref(),
                reach: &args.reach,
                key_secret: &args.key_secret,
            };
            failed = check::all(&cluster, &namespace, &mut imported.hosts, &options).await?;
        }
        let (machines, refused) = machines(args, Some(namespace), &imported.hosts, &objects);
        failed.extend(refused);
        finish(args, Some(cluster), machines, failed).await
    })
}

fn read(file: &str) -> anyhow::Result<(String, String)> {
    if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(("standard input".to_owned(), text));
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    Ok((file.to_owned(), text))
}

/// Parses the hosts of a list, and Machine objects.
fn parse(form: Option<InputFormat>, file: &str, text: &str) -> anyhow::Result<(Imported, Vec<Value>)> {
    let yaml = || {
        source::documents(text).map_err(|(line, column, said)| anyhow!("{file}:{line}:{column}: invalid YAML: {said}"))
    };
    let form = match form {
        Some(form) => form,
        None => guess(file, text),
    };
    match form {
        InputFormat::Csv => Ok((table::csv(file, text).map_err(anyhow::Error::msg)?, vec![])),
        InputFormat::AnsibleIni => Ok((ansible::ini(file, text), vec![])),
        InputFormat::AnsibleYaml => {
            let mut all = Imported::default();
            for document in yaml()? {
                let one = ansible::yaml(file, &document);
                all.hosts.extend(one.hosts);
                all.notes = one.notes;
            }
            Ok((all, vec![]))
        }
        InputFormat::Yaml => {
            let (mut all, mut objects) = (Imported::default(), Vec::new());
            for document in yaml()? {
                let kind = document.get("kind").and_then(source::SourceTree::text);
                match kind {
                    Some("Machine") => objects.push(document.value()),
                    Some("List" | "MachineList") => objects.extend(
                        document.get("items").iter().flat_map(|items| items.items()).map(source::SourceTree::value),
                    ),
                    Some(other) => {
                        all.notes.say(format!("{file}:{}", document.line), format!("{other} is not a Machine: skipped"))
                    }
                    None if document.items().is_empty() => {
                        bail!(
                            "{file}:{}: neither a list of hosts, nor Machines, nor an inventory; pass the format with --format",
                            document.line
                        )
                    }
                    None => {
                        let one = table::list(file, &document);
                        all.hosts.extend(one.hosts);
                        for note in one.notes.lines() {
                            let (place, said) = note.split_once(": ").unwrap_or((file, &note));
                            all.notes.say(place, said);
                        }
                    }
                }
            }
            Ok((all, objects))
        }
    }
}

/// Guesses the format of a list, by its name and content.
fn guess(file: &str, text: &str) -> InputFormat {
    let lower = file.to_lowercase();
    if lower.ends_with(".csv") || lower.ends_with(".tsv") {
        return InputFormat::Csv;
    }
    if lower.ends_with(".ini") || lower.ends_with(".cfg") {
        return InputFormat::AnsibleIni;
    }
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
    let section = first.starts_with('[') && first.ends_with(']') && !first.contains([',', '"', '{']);
    if let (false, Ok(documents)) = (section, source::documents(text)) {
        if documents.iter().any(ansible::is_inventory) {
            return InputFormat::AnsibleYaml;
        }
        if documents.iter().any(|document| !document.items().is_empty() || document.get("kind").is_some()) {
            return InputFormat::Yaml;
        }
    }
    let table = [',', ';', '\t']
        .iter()
        .any(|c| first.to_lowercase().split(*c).map(str::trim).any(|word| word == "name") && first.contains(*c));
    if table { InputFormat::Csv } else { InputFormat::AnsibleIni }
}

fn known_hosts(files: &[PathBuf]) -> anyhow::Result<KnownHosts> {
    let mut all = String::new();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        all.push_str(&text);
        all.push('\n');
    }
    Ok(KnownHosts::parse(&all))
}

/// Maps private key files of the list to Secrets: one file is the Secret of --key-secret, several are Secrets of their names.
fn name_secrets(imported: &mut Imported, key_secret: &str) {
    let files: BTreeSet<String> = imported.hosts.iter().filter_map(|host| host.key_file.clone()).collect();
    let name = |file: &str| match files.len() {
        1 => key_secret.to_owned(),
        _ => format!("{key_secret}-{}", object_name(file.rsplit('/').next().unwrap_or(file))),
    };
    for file in &files {
        imported.notes.say(
            file.clone(),
            format!(
                "a private key goes into a Secret: kubectl create secret generic {} --from-file=ssh-privatekey={file}",
                name(file)
            ),
        );
    }
    for host in &mut imported.hosts {
        if let Some(file) = &host.key_file {
            host.key_secret.get_or_insert_with(|| name(file));
        }
    }
}

fn unique(hosts: &[Candidate]) -> anyhow::Result<()> {
    let mut seen = BTreeMap::new();
    for host in hosts {
        if let Some(other) = seen.insert(&host.name, &host.place) {
            bail!("{other} and {} have the same name {}: names of machines must be unique", host.place, host.name);
        }
    }
    Ok(())
}

/// The Machines, and the reasons for those that cannot be created.
fn machines(
    args: &Args,
    namespace: Option<String>,
    hosts: &[Candidate],
    objects: &[Value],
) -> (Vec<Value>, Vec<String>) {
    let choices = ImportOptions {
        key_secret: args.key_secret.clone(),
        trust_on_first_use: args.trust_on_first_use,
        labels: args.label.iter().cloned().collect(),
        packages: args.package.clone(),
        namespace: namespace.clone(),
    };
    let (mut made, mut failed) = (Vec::new(), Vec::new());
    for host in hosts {
        match host.machine(&choices) {
            Ok(machine) => made.push(object(&machine)),
            Err(why) => failed.push(why),
        }
    }
    for object in objects {
        let mut object = object.clone();
        let labels: BTreeMap<_, _> = choices.labels.iter().collect();
        if let Some(meta) = object["metadata"].as_object_mut() {
            if let Some(namespace) = &namespace {
                meta.entry("namespace").or_insert_with(|| json!(namespace));
            }
            let own = meta.entry("labels").or_insert_with(|| json!({}));
            for (key, value) in labels {
                own[key] = json!(value);
            }
        }
        if !choices.packages.is_empty() {
            let own = object["spec"]["packages"].as_array().cloned().unwrap_or_default();
            let other = choices
                .packages
                .iter()
                .filter(|package| own.iter().all(|own| own["component"] != package.component.as_str()));
            let more: Vec<_> = other.map(|package| json!(package)).collect();
            object["spec"]["packages"] = json!([own, more].concat());
        }
        made.push(object);
    }
    (made, failed)
}

/// The object to apply: without server-side fields and empty values.
fn object(machine: &Machine) -> Value {
    let mut value = json!(machine);
    value["apiVersion"] = json!(format!("{GROUP}/{VERSION}"));
    value["kind"] = json!("Machine");
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    if let Some(spec) = value["spec"].as_object_mut() {
        for (field, default) in [
            ("hardware", json!({})),
            ("drain", json!(DrainOptions::default())),
            ("drift", json!("Repair")),
            ("onDelete", json!("Uninstall")),
            ("paused", json!(false)),
        ] {
            if spec.get(field) == Some(&default) {
                spec.remove(field);
            }
        }
    }
    value
}

/// Applies or prints the Machines, and prints the result of each.
async fn finish(
    args: &Args,
    cluster: Option<Cluster>,
    machines: Vec<Value>,
    failed: Vec<String>,
) -> anyhow::Result<()> {
    match args.output {
        Output::Yaml => crate::print(&crate::yaml::documents(&machines)?)?,
        Output::Json => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": machines});
            crate::print(&(serde_json::to_string_pretty(&list)? + "\n"))?;
        }
        Output::Text => {}
    }
    let mut errors = failed;
    if let Some(cluster) = cluster.filter(|_| args.output == Output::Text || !args.dry_run) {
        for machine in &machines {
            let name = machine["metadata"]["name"].as_str().unwrap_or_default();
            match apply(&cluster, machine, args.dry_run).await {
                Ok(_) if args.output != Output::Text => {}
                Ok(change) => {
                    println!("machine.{GROUP}/{name} {change}{}", if args.dry_run { " (dry run)" } else { "" })
                }
                Err(error) => errors.push(format!("machine {name}: {error:#}")),
            }
        }
    }
    for error in &errors {
        eprintln!("error: {error}");
    }
    match errors.len() {
        0 => Ok(()),
        1 => bail!("1 host was not imported"),
        many => bail!("{many} hosts were not imported"),
    }
}

async fn apply(cluster: &Cluster, machine: &Value, dry_run: bool) -> anyhow::Result<&'static str> {
    let name = machine["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = machine["metadata"]["namespace"].as_str().unwrap_or_default();
    let api: Api<Machine> = Api::namespaced(cluster.client.clone(), namespace);
    let before = api.get_opt(name).await.map_err(|error| cluster.explain(error))?;
    let mut params = PatchParams::apply(FIELD_MANAGER);
    params.dry_run = dry_run;
    let after = match api.patch(name, &params, &Patch::Apply(machine)).await {
        Ok(after) => after,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            bail!(
                "fields of the list are owned by another field manager: {}; remove them from the list, or change them there",
                status.message
            )
        }
        Err(error) if is_not_found(&error) => {
            bail!("namespace {namespace} not found, or the kind Machine is not installed; see `fleetwright install`")
        }
        Err(error) => return Err(cluster.explain(error)),
    };
    Ok(match before {
        None => "created",
        Some(before) if before.spec == after.spec && before.metadata.labels == after.metadata.labels => "unchanged",
        Some(_) => "configured",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_distinguished_by_name_and_content() {
        for (file, text, wanted) in [
            ("a.csv", "", InputFormat::Csv),
            ("hosts", "[web]\nweb1\n", InputFormat::AnsibleIni),
            ("hosts", "web1 ansible_host=10.0.0.1\n", InputFormat::AnsibleIni),
            ("-", "# c\nname,address\na,b\n", InputFormat::Csv),
            ("x.yaml", "all:\n  hosts:\n    a: {}\n", InputFormat::AnsibleYaml),
            ("x.yml", "web:\n  hosts:\n    a:\ndb:\n", InputFormat::AnsibleYaml),
            ("x.yaml", "- name: a\n", InputFormat::Yaml),
            ("x.yaml", "kind: Machine\nmetadata: {name: a}\n", InputFormat::Yaml),
        ] {
            assert_eq!(guess(file, text), wanted, "{file}: {text}");
        }
    }

    #[test]
    fn a_machine_is_written_without_what_says_nothing() {
        let host = Candidate { name: "a".into(), addresses: vec!["10.0.0.1".into()], ..Candidate::default() };
        let choices =
            ImportOptions { key_secret: "fleet-ssh".into(), trust_on_first_use: true, ..ImportOptions::default() };
        assert_eq!(
            object(&host.machine(&choices).unwrap()),
            json!({
                "apiVersion": "fleetwright.io/v1alpha1", "kind": "Machine", "metadata": {"name": "a"},
                "spec": {
                    "role": "Worker",
                    "addresses": ["10.0.0.1"],
                    "ssh": {"port": 22, "user": "root", "keyRef": {"name": "fleet-ssh"}, "hostKeys": {"policy": "TrustOnFirstUse"}},
                },
            })
        );
        let refused = host.machine(&ImportOptions::default()).unwrap_err();
        assert!(refused.contains("--known-hosts") && refused.contains("--trust-on-first-use"), "{refused}");
    }
}

//! `fleetwright cluster create`.

use std::collections::BTreeMap;
use std::io::Read as _;

use anyhow::{Context, anyhow, bail};
use fleetwright_api::{Cluster, ClusterSpec, EndpointType, GROUP, VERSION};
use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::limits::CheckedCluster;
use kube::api::PostParams;
use kube::{Resource, ResourceExt as _};
use serde_json::{Map, Value, json};

use super::packages::{self, PackageVersions};
use super::wait::{RequestedVersion, WaitArgs};
use super::{FIELD_MANAGER, called};
use crate::cluster::{Cluster as Meta, ClusterArgs, is_not_found};
use crate::machine::label;
use crate::output::Output;
use crate::package::source;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster create dev-01 --package-version k8s-1.36.4-r1 --wait
  fleetwright cluster create dev-01 --package-version k8s-1.36.4-r1 --replicas 1 --members 1 --endpoint NodePort:192.0.2.10
  fleetwright cluster create pay-01 --package-version k8s-1.36.4-r1 --endpoint LoadBalancer:pay-01.example.com -l tier=prod
  fleetwright cluster create pay-02 -f pay-01.yaml --dry-run -o yaml

The defaults are safe: two replicas, three etcd members, snapshots, deletion protection. With -f, command-line flags take precedence over the file.
All fields: docs/reference/kinds.md.")]
pub(crate) struct Args {
    /// Name of the cluster. [default: the name in the file]
    #[arg(value_name = "NAME", value_parser = super::name, required_unless_present = "file")]
    name: Option<String>,

    /// ClusterPackageVersion of the cluster, in the same namespace.
    #[arg(long, value_name = "NAME", value_parser = packages::name, required_unless_present = "file")]
    package_version: Option<String>,

    /// Number of replicas of kube-apiserver, kube-controller-manager and kube-scheduler, each. [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9))]
    replicas: Option<u32>,

    /// Number of etcd members: 1, 3, 5 or 7. [default: 3]
    #[arg(long, value_name = "N", value_parser = members)]
    members: Option<u32>,

    /// Endpoint for clients: ClusterIP, NodePort, LoadBalancer or External, with the host and port that they use. [default: ClusterIP]
    #[arg(long, value_name = "TYPE[:HOST[:PORT]]", value_parser = endpoint)]
    endpoint: Option<Value>,

    /// CIDR of pods, such as 10.244.0.0/16. Immutable.
    #[arg(long, value_name = "CIDR")]
    pods: Option<String>,

    /// CIDR of Services, such as 10.96.0.0/16. Immutable.
    #[arg(long, value_name = "CIDR")]
    services: Option<String>,

    /// Label of the cluster; can be repeated.
    #[arg(short = 'l', long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,

    /// File with a Cluster to start from; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<String>,

    /// Check the cluster without creating it. With -o json or yaml, needs no meta cluster.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,

    /// Output format; json and yaml print the object instead of a line.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,

    #[command(flatten)]
    wait: WaitArgs,

    /// Namespace to create the Cluster object in. [default: that of the file, else of the context, else fleet]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = crate::install::namespace)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

fn members(text: &str) -> Result<u32, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        "5" => Ok(5),
        "7" => Ok(7),
        _ => {
            Err("must be 1, 3, 5 or 7: an even number of members tolerates no more failures than one member less"
                .into())
        }
    }
}

/// An endpoint in one word: `LoadBalancer`, `External:api.example.com`, `NodePort::30443`, `External:[2001:db8::1]:443`.
fn endpoint(text: &str) -> Result<Value, String> {
    const TYPES: [EndpointType; 4] =
        [EndpointType::ClusterIP, EndpointType::NodePort, EndpointType::LoadBalancer, EndpointType::External];
    let (type_, rest) = text.split_once(':').unwrap_or((text, ""));
    let type_ = TYPES.into_iter().find(|known| format!("{known:?}").eq_ignore_ascii_case(type_)).ok_or(
        "unknown type: use ClusterIP, NodePort, LoadBalancer or External, such as LoadBalancer:pay-01.example.com",
    )?;
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, port) =
                rest.split_once(']').ok_or("an IPv6 address must end in ], such as External:[2001:db8::1]:443")?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => rest.split_once(':').unwrap_or((rest, "")),
    };
    let mut endpoint = json!({ "type": type_ });
    if !host.is_empty() {
        endpoint["host"] = json!(host);
    }
    if !port.is_empty() {
        let port = port.parse::<u16>().ok().filter(|port| *port > 0);
        endpoint["port"] = json!(port.ok_or("the port must be a number from 1 to 65535; write IPv6 addresses in [ ]")?);
        if matches!(type_, EndpointType::ClusterIP | EndpointType::LoadBalancer) {
            return Err(format!("{type_:?} always uses port 6443: leave the port out, or use NodePort or External"));
        }
    }
    if type_ == EndpointType::External && host.is_empty() {
        return Err("External needs a host: write External:HOST, or External:HOST:PORT if the port is not 6443".into());
    }
    Ok(endpoint)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let base = args.file.as_deref().map(read).transpose()?;
    let mut object = args.object(base)?;
    crate::runtime()?.block_on(async {
        if args.dry_run && args.output != Output::Text {
            return args.print(&object);
        }
        let meta = args.cluster.connect().await?;
        if object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = json!(meta.namespace_or(None));
        }
        let package = object["spec"]["packageVersion"].as_str().unwrap_or_default();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        if args.wait.wait && object["spec"]["paused"] == json!(true) {
            bail!(
                "the cluster is paused (spec.paused is true), so --wait would time out: leave out --wait or spec.paused"
            );
        }
        PackageVersions::in_namespace(&meta, namespace).await?.get(package)?;
        // The API server refuses an invalid spec with a reason.
        if let Ok(spec) = serde_json::from_value::<ClusterSpec>(object["spec"].clone()) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let names = Names::of(namespace, name);
            let labels: BTreeMap<String, String> =
                serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default();
            let checked = CheckedCluster { names: &names, labels: &labels, spec: &spec, present: None };
            super::limits::refuse(&meta, checked, None).await?;
        }
        let made = create(&meta, &object, args.dry_run).await?;
        match args.output {
            Output::Text => {
                let suffix = if args.dry_run { " (dry run)" } else { "" };
                println!("cluster.{GROUP}/{} created{suffix}", made.name_any());
            }
            _ => args.print(&json!(made))?,
        }
        if !args.wait.wait {
            return Ok(());
        }
        let package = made.spec.package_version.as_str();
        let asked = RequestedVersion { package, generation: made.metadata.generation, failed_before: None };
        let took = args.wait.until(&meta, &made, "Ready", |cluster| asked.look(cluster)).await?;
        eprintln!(
            "cluster.{GROUP}/{} is Ready after {took}; get its kubeconfig: fleetwright cluster kubeconfig {}",
            made.name_any(),
            called(&made)
        );
        Ok(())
    })
}

fn read(file: &str) -> anyhow::Result<Value> {
    let (file, text) = match file {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            ("standard input", text)
        }
        file => (file, std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?),
    };
    let documents = source::documents(&text)
        .map_err(|(line, column, said)| anyhow!("{file}:{line}:{column}: invalid YAML: {said}"))?;
    let [document] = documents.as_slice() else {
        bail!("{file} contains {} documents; expected one Cluster", documents.len());
    };
    let word = |field: &str| document.get(field).and_then(source::SourceTree::text).unwrap_or_default();
    if word("kind") != "Cluster" || word("apiVersion") != format!("{GROUP}/{VERSION}") {
        bail!(
            "{file}:{}: expected {GROUP}/{VERSION} Cluster, found {} {}",
            document.line,
            if word("apiVersion").is_empty() { "no apiVersion," } else { word("apiVersion") },
            if word("kind").is_empty() { "no kind" } else { word("kind") }
        );
    }
    Ok(document.value())
}

impl Args {
    /// The object with the requested fields only: the server fills in its defaults.
    fn object(&self, base: Option<Value>) -> anyhow::Result<Value> {
        let base = base.unwrap_or_default();
        // The remaining metadata belongs to another cluster that a server wrote.
        let kept = ["name", "namespace", "labels", "annotations"]
            .into_iter()
            .filter_map(|field| Some((field.to_owned(), base["metadata"].get(field)?.clone())));
        let mut metadata: Map<String, Value> = kept.collect();
        let said = [("name", &self.name), ("namespace", &self.namespace)];
        metadata.extend(said.iter().filter_map(|(field, value)| Some(((*field).to_owned(), json!(value.as_ref()?)))));
        if metadata.get("name").is_none_or(Value::is_null) {
            bail!("the file has no metadata.name: pass a name, fleetwright cluster create NAME -f FILE");
        }
        let mut object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Cluster", "metadata": metadata,
            "spec": base.get("spec").cloned().unwrap_or_else(|| json!({})),
        });
        for (key, value) in &self.label {
            object["metadata"]["labels"][key] = json!(value);
        }
        let mut set = |path: &[&str], value: Option<Value>| -> anyhow::Result<()> {
            let Some(value) = value else { return Ok(()) };
            let mut at = &mut object["spec"];
            for (depth, field) in path.iter().enumerate() {
                if !at.is_object() && !at.is_null() {
                    bail!("spec.{} of the file is not an object", path[..depth].join("."));
                }
                at = &mut at[*field];
            }
            *at = value;
            Ok(())
        };
        set(&["packageVersion"], self.package_version.as_ref().map(|name| json!(name)))?;
        set(&["replicas"], self.replicas.map(|count| json!(count)))?;
        set(&["datastore", "etcd", "members"], self.members.map(|count| json!(count)))?;
        set(&["endpoint"], self.endpoint.clone())?;
        set(&["network", "pods"], self.pods.as_ref().map(|network| json!(network)))?;
        set(&["network", "services"], self.services.as_ref().map(|network| json!(network)))?;
        if object["spec"]["packageVersion"].as_str().is_none_or(str::is_empty) {
            bail!("the file has no spec.packageVersion: set it there, or pass --package-version");
        }
        Ok(object)
    }

    fn print(&self, object: &Value) -> anyhow::Result<()> {
        match self.output {
            Output::Json => crate::print(&(serde_json::to_string_pretty(object)? + "\n")),
            _ => crate::print(&crate::yaml::documents(std::slice::from_ref(object))?),
        }
    }
}

/// Creates the Cluster unless it exists. Unknown fields are refused: a typing error would otherwise silently become a default.
async fn create(meta: &Meta, object: &Value, dry_run: bool) -> anyhow::Result<Cluster> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let params = PostParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
    let url = Cluster::url_path(&(), Some(namespace));
    let mut request = kube::core::Request::new(url).create(&params, serde_json::to_vec(object)?)?;
    *request.uri_mut() = format!("{}&fieldValidation=Strict", request.uri()).parse()?;
    match meta.client.request::<Cluster>(request).await {
        Ok(made) => Ok(made),
        Err(kube::Error::Api(status)) if status.code == 409 => bail!(
            "cluster {name} already exists in namespace {namespace}: see fleetwright cluster status {name} -n {namespace}; change its version with fleetwright cluster upgrade, other fields with kubectl"
        ),
        Err(error) if is_not_found(&error) => {
            bail!(
                "namespace {namespace} not found: create it (kubectl create namespace {namespace}), or pass another one with -n"
            )
        }
        Err(error) => Err(meta.explain(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_written_in_one_word() {
        for (text, value) in [
            ("ClusterIP", json!({"type": "ClusterIP"})),
            ("loadbalancer:pay.example.com", json!({"type": "LoadBalancer", "host": "pay.example.com"})),
            ("NodePort::30443", json!({"type": "NodePort", "port": 30443})),
            ("NodePort:192.0.2.1:30443", json!({"type": "NodePort", "host": "192.0.2.1", "port": 30443})),
            ("External:[2001:db8::1]:443", json!({"type": "External", "host": "2001:db8::1", "port": 443})),
            ("External:[2001:db8::1]", json!({"type": "External", "host": "2001:db8::1"})),
        ] {
            assert_eq!(endpoint(text), Ok(value), "{text}");
        }
        for (text, said) in [
            ("Ingress", "ClusterIP, NodePort, LoadBalancer or External"),
            ("External", "External:HOST"),
            ("LoadBalancer:a:443", "6443"),
            ("NodePort:a:0", "65535"),
            ("External:2001:db8::1", "IPv6"),
            ("External:[2001:db8::1", "]"),
        ] {
            let refused = endpoint(text).expect_err(text);
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}

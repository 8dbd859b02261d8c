//! `fleetwright cluster kubeconfig`: short-lived credentials for a cluster, in the name of their user.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use fleetwright_api::{Cluster, ClusterPhase, EndpointType, Span};
use fleetwright_pki::{Authority, Leaf};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};

use super::kubefile::{ClusterAccess, KubeconfigFile, Lock};
use super::{SelectedCluster, called, health};
use crate::cluster::{Cluster as Meta, is_not_found};
use crate::terminal_text::line;

/// The Secret with the cluster's authority, in the namespace of its control plane.
const AUTHORITY: &str = "ca";
/// The group with all rights: a person who can read the authority's key could issue such a certificate anyway.
const EVERYTHING: &str = "system:masters";

#[derive(clap::Args)]
#[command(after_help = "Examples:
  fleetwright cluster kubeconfig pay-01
  fleetwright cluster kubeconfig pay-01 --merge && kubectl --context pay-01 get nodes
  fleetwright cluster kubeconfig pay-01 --user ann --group auditors --duration 1h --output ann.kubeconfig
  kubectl -n fleet-pay-01 port-forward service/kube-apiserver 6443 &
  fleetwright cluster kubeconfig pay-01 --server https://127.0.0.1:6443 --merge

The kubeconfig contains a client certificate that this command signs with the cluster's authority (Secret `ca`), which you must be allowed to read.
A certificate cannot be revoked before it expires, so keep --duration short. Keys are printed only with --output -; files are readable only by their
owner.")]
pub(crate) struct Args {
    #[command(flatten)]
    one: SelectedCluster,

    /// User name in the certificate. [default: your user name at the meta cluster, else $USER]
    #[arg(long, value_name = "NAME", value_parser = subject)]
    user: Option<String>,

    /// Group in the certificate; can be repeated. [default: system:masters, which has all rights]
    #[arg(long, value_name = "NAME", value_parser = subject)]
    group: Vec<String>,

    /// Validity of the certificate, from 1m to 720h.
    #[arg(long = "duration", value_name = "DURATION", default_value = "8h", value_parser = lifetime)]
    lifetime: Span,

    /// File to write; `-` writes to standard output. [default: NAME.kubeconfig]
    #[arg(short, long, value_name = "FILE", conflicts_with = "merge")]
    output: Option<PathBuf>,

    /// Merge into $KUBECONFIG or ~/.kube/config, and keep its other entries.
    #[arg(long)]
    merge: bool,

    /// URL of the API server, if it is not the cluster's endpoint.
    #[arg(long, value_name = "URL", value_parser = server)]
    server: Option<String>,

    /// Name of the context. [default: the name of the cluster]
    #[arg(long, value_name = "NAME", value_parser = subject)]
    context_name: Option<String>,
}

fn subject(text: &str) -> Result<String, String> {
    let fits = !text.trim().is_empty() && text.len() <= 128 && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err("1 to 128 characters, without control characters".into()) }
}

fn lifetime(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    match span {
        span if span < Span::minutes(1) => Err("must be at least 1m, such as 1h".into()),
        span if span > Span::minutes(720 * 60) => {
            Err("must be at most 720h (30 days): certificates cannot be revoked".into())
        }
        span => Ok(span),
    }
}

/// Parses the URL of an API server.
fn server(text: &str) -> Result<String, String> {
    let wrong = || "write https://HOST:PORT, such as https://127.0.0.1:6443".to_owned();
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    let fits = uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty());
    if fits { Ok(text.to_owned()) } else { Err(wrong()) }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    crate::runtime()?.block_on(async {
        let (meta, cluster) = args.one.fetch().await?;
        let server = args.server(&cluster)?;
        let own = own_namespace(&cluster)?;
        let user = match &args.user {
            Some(user) => user.clone(),
            None => person(&meta).await?,
        };
        let groups = if args.group.is_empty() { vec![EVERYTHING.to_owned()] } else { args.group.clone() };
        let (authority, ca_pem) = authority(&meta, &cluster, own, &user).await?;
        let leaf = Leaf { lifetime: args.lifetime.0, ..Leaf::client(user.as_str(), groups.iter().map(String::as_str)) };
        let until = Timestamp::now() + args.lifetime.0;
        let pair = authority.issue(leaf)?;
        let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
        let server_name = format!("kube-apiserver.{own}.svc");
        let access = ClusterAccess {
            context: args.context_name.as_deref().unwrap_or(&name),
            of: (&namespace, &name),
            server: &server,
            server_name: (!answers_as(&cluster, &server)).then_some(server_name.as_str()),
            ca_pem: &ca_pem,
            user: &user,
            pair: &pair,
            until,
        };
        let way = args.write(&access)?;
        args.notes(&cluster);
        if let Some(way) = way {
            println!(
                "{way} get nodes    # as {} in {}, at {}, until {}",
                line(&user),
                line(&groups.join(", ")),
                line(&server),
                until.strftime("%Y-%m-%dT%H:%M:%SZ")
            );
        }
        Ok(())
    })
}

impl Args {
    /// The URL of the cluster's API server.
    fn server(&self, cluster: &Cluster) -> anyhow::Result<String> {
        let status = cluster.status.clone().unwrap_or_default();
        if let Some(server) = self.server.clone().or(status.endpoint) {
            return Ok(server);
        }
        let (endpoint, name) = (&cluster.spec.endpoint, cluster.name_any());
        let what = match endpoint.type_ {
            EndpointType::NodePort if endpoint.host.is_none() => {
                "its endpoint is a NodePort without a host: set spec.endpoint.host to the address of a node of the meta cluster".to_owned()
            }
            EndpointType::LoadBalancer => format!(
                "its load balancer has no address yet: see kubectl get service kube-apiserver -n {}",
                status.namespace.as_deref().unwrap_or("NAMESPACE")
            ),
            _ => match status.waiting_for {
                Some(waiting) => format!("it is waiting for: {}", line(&waiting)),
                None => format!("it is {}", health::phase(cluster)),
            },
        };
        bail!("cluster {name} has no endpoint yet (status.endpoint): {what}; or pass its address with --server URL")
    }

    /// Writes the kubeconfig to its destination; returns instructions, unless it was printed.
    fn write(&self, access: &ClusterAccess<'_>) -> anyhow::Result<Option<String>> {
        if self.merge {
            let path = kubeconfig_path(access.context)?;
            let _lock = Lock::of(&path)?;
            let mut file = KubeconfigFile::read(&path)?.unwrap_or_else(KubeconfigFile::new);
            file.put(access).map_err(|why| anyhow!("{}: {why}", path.display()))?;
            file.write(&path)?;
            return Ok(Some(format!("kubectl --context {}", access.context)));
        }
        let mut file = KubeconfigFile::new();
        file.put(access).map_err(anyhow::Error::msg)?;
        let path = match &self.output {
            Some(path) if path.as_os_str() == "-" => {
                crate::print(&file.text()?)?;
                return Ok(None);
            }
            Some(path) => path.clone(),
            None => PathBuf::from(format!("{}.kubeconfig", access.of.1)),
        };
        let others = KubeconfigFile::read(&path)?.map(|present| present.others(access.of)).unwrap_or_default();
        if !others.is_empty() {
            bail!(
                "{} contains other contexts ({}), which would be lost: use another file, or add to it with KUBECONFIG={} and --merge",
                path.display(),
                others.join(", "),
                path.display()
            );
        }
        file.write(&path)?;
        Ok(Some(format!("kubectl --kubeconfig {}", path.display())))
    }

    fn notes(&self, cluster: &Cluster) {
        let status = cluster.status.clone().unwrap_or_default();
        let inside = cluster.spec.endpoint.type_ == EndpointType::ClusterIP && cluster.spec.endpoint.host.is_none();
        if inside && self.server.is_none() {
            eprintln!(
                "note: the endpoint is a ClusterIP, which is reachable only inside the meta cluster; from elsewhere: kubectl -n {} port-forward service/kube-apiserver 6443, and --server https://127.0.0.1:6443",
                status.namespace.as_deref().unwrap_or_default()
            );
        }
        if !matches!(status.phase, Some(ClusterPhase::Ready | ClusterPhase::Soaking)) {
            eprintln!("note: the cluster is {} and may not answer: {}", health::phase(cluster), health::what(cluster));
        }
    }
}

/// Whether the server's certificate is declared to contain the host of that URL.
fn answers_as(cluster: &Cluster, server: &str) -> bool {
    let host_of = |url: &str| {
        let uri: Option<http::Uri> = url.parse().ok();
        uri.and_then(|uri| uri.host().map(|host| host.trim_matches(['[', ']']).to_owned()))
    };
    let Some(host) = host_of(server) else { return false };
    let endpoint = cluster.status.as_ref().and_then(|status| status.endpoint.as_deref()).and_then(host_of);
    let declared = [&cluster.spec.endpoint.host, &endpoint].into_iter().flatten().chain(&cluster.spec.endpoint.names);
    declared.map(String::as_str).chain(["localhost", "127.0.0.1", "kubernetes"]).any(|known| known == host)
}

fn own_namespace(cluster: &Cluster) -> anyhow::Result<&str> {
    let own = cluster.status.as_ref().and_then(|status| status.namespace.as_deref());
    own.ok_or_else(|| {
        anyhow!(
            "cluster {} has no control plane yet (status.namespace is empty): {}; see fleetwright why cluster {}",
            cluster.name_any(),
            health::what(cluster),
            called(cluster)
        )
    })
}

/// The user of this process, by the environment or the system's list of users.
fn local() -> Option<String> {
    let told = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    told.filter(|name| !name.is_empty()).or_else(|| {
        let own = std::fs::metadata("/proc/self").ok()?.uid().to_string();
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        lines.find(|fields| fields.get(2) == Some(&own.as_str()))?.first().map(|name| (*name).to_owned())
    })
}

/// The user as the meta cluster authenticates them. Service accounts and built-in users do not count as a person.
async fn person(meta: &Meta) -> anyhow::Result<String> {
    let api: Api<SelfSubjectReview> = Api::all(meta.client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let known = review.ok().and_then(|review| review.status?.user_info?.username);
    let person = known.filter(|name| !name.starts_with("system:")).or_else(local);
    person.ok_or_else(|| anyhow!("cannot determine your user name; pass it with --user"))
}

/// The signing authority, and the trust bundle.
async fn authority(meta: &Meta, cluster: &Cluster, own: &str, user: &str) -> anyhow::Result<(Authority, String)> {
    let api: Api<Secret> = Api::namespaced(meta.client.clone(), own);
    let place = format!("Secret {AUTHORITY} in namespace {own}");
    let secret = match api.get(AUTHORITY).await {
        Ok(secret) => secret,
        Err(error) if is_not_found(&error) => {
            bail!(
                "cluster {} has no certificate authority yet ({place} not found): {}",
                cluster.name_any(),
                health::what(cluster)
            )
        }
        Err(kube::Error::Api(status)) if status.code == 403 => bail!(
            "not allowed to read {place}, which signs kubeconfigs: ask an administrator to run fleetwright cluster kubeconfig {} --user {user}",
            called(cluster)
        ),
        Err(error) => return Err(meta.explain(error)),
    };
    let text = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        std::str::from_utf8(&bytes.0).ok().filter(|text| !text.is_empty())
    };
    let (Some(cert), Some(key)) = (text("tls.crt"), text("tls.key")) else {
        bail!(
            "{place} has no tls.crt or tls.key: the cluster operator recreates it, see fleetwright why cluster {}",
            called(cluster)
        );
    };
    let authority =
        Authority::from_pem(cert, key).with_context(|| format!("{place} is not a valid certificate authority"))?;
    Ok((authority, text("ca.crt").unwrap_or(cert).to_owned()))
}

/// The file that kubectl would change: the one with this context, else the first.
fn kubeconfig_path(context: &str) -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let paths: Vec<_> = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    let has = |path: &&PathBuf| KubeconfigFile::read(path).ok().flatten().is_some_and(|file| file.has_context(context));
    if let Some(path) = paths.iter().find(has).or(paths.first()) {
        return Ok(path.clone());
    }
    match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        Some(home) => Ok(Path::new(&home).join(".kube/config")),
        None => bail!("neither KUBECONFIG nor HOME is set: pass a file with --output"),
    }
}

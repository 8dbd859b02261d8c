use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fleetwright_pki::{Authority, Identity, Leaf, LeafUsage, PemPair, ServiceAccountKey, kubeconfig, write_private};
use http::{Request, StatusCode};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::Process;
use crate::{Binaries, DEFAULT_MINOR};

/// The number of start attempts, since another process may take a port between the search for a free one and its use.
const ATTEMPTS: usize = 5;
const READY: Duration = Duration::from_secs(240);
const CLUSTER: &str = "fleetwright-lab";
/// The issuer of service-account tokens, with the usual value.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The configuration of a [`ControlPlane`].
#[derive(Clone, Debug)]
pub struct Builder {
    minor: String,
    controllers: Option<Vec<String>>,
    scheduler: bool,
    features: Vec<String>,
    apiserver_args: Vec<String>,
    address: IpAddr,
    production_arguments: bool,
}

impl Builder {
    /// Uses another Kubernetes minor than the default, such as `1.36`.
    pub fn minor(mut self, minor: impl Into<String>) -> Self {
        self.minor = minor.into();
        self
    }

    /// Runs kube-controller-manager with these controllers; `*` stands for the usual ones.
    pub fn controller_manager(mut self, controllers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.controllers = Some(controllers.into_iter().map(Into::into).collect());
        self
    }

    /// Serves on another address of this machine than loopback, such as the address of a bridge with hosts.
    pub fn address(mut self, address: impl Into<IpAddr>) -> Self {
        self.address = address.into();
        self
    }

    /// Runs kube-scheduler.
    pub fn scheduler(mut self, wanted: bool) -> Self {
        self.scheduler = wanted;
        self
    }

    /// Sets a feature gate in every component.
    pub fn feature(mut self, name: &str, on: bool) -> Self {
        self.features.push(format!("{name}={on}"));
        self
    }

    /// Adds an argument of kube-apiserver; it comes last and so takes precedence.
    pub fn apiserver_arg(mut self, argument: impl Into<String>) -> Self {
        self.apiserver_args.push(argument.into());
        self
    }

    /// Uses the arguments of a production control plane, for comparisons of time: etcd syncs to the disk and requires TLS with client certificates;
    /// the other components elect leaders and serve a port, and each controller has its own account. [`ControlPlane::compact`] does not work then.
    pub fn production_arguments(mut self, wanted: bool) -> Self {
        self.production_arguments = wanted;
        self
    }

    /// Starts all components and waits until they serve: readyz, the bootstrap roles, the `default` namespace, and its service
    /// account if the controller that creates it was requested.
    ///
    /// # Errors
    /// When a binary is missing, or a process does not become ready: the error ends with the last lines of its log.
    pub async fn start(self) -> Result<ControlPlane> {
        let binaries = Binaries::find(&self.minor)?;
        let mut attempt = 1;
        loop {
            let mut plane = ControlPlane::prepare(binaries.clone())?;
            match plane.launch(&self).await {
                Ok(()) => return Ok(plane),
                Err(error) if attempt < ATTEMPTS && plane.lost_a_port() => {
                    tracing::debug!(%error, attempt, "a port was taken, once more");
                    attempt += 1;
                }
                Err(error) => {
                    plane.keep = true;
                    return Err(error);
                }
            }
        }
    }
}

/// A running control plane. Dropping it ends its processes and removes its folder; the folder stays, and its path is
/// printed, when the thread is panicking or `FLEETWRIGHT_KEEP` is set.
pub struct ControlPlane {
    /// In the order of their start.
    processes: Vec<Process>,
    binaries: Binaries,
    authority: Authority,
    admin: PemPair,
    url: String,
    etcd: String,
    client: Option<Client>,
    folder: Option<TempDir>,
    keep: bool,
}

impl ControlPlane {
    /// A new configuration; by default etcd and kube-apiserver of the default minor.
    pub fn builder() -> Builder {
        Builder {
            minor: DEFAULT_MINOR.to_owned(),
            controllers: None,
            scheduler: false,
            features: Vec::new(),
            apiserver_args: Vec::new(),
            address: Ipv4Addr::LOCALHOST.into(),
            production_arguments: false,
        }
    }

    /// The URL of the API server, as `https://ADDRESS:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The CA certificate of the API server.
    pub fn ca_pem(&self) -> &str {
        self.authority.cert_pem()
    }

    /// An administrator's kubeconfig (group `system:masters`).
    pub fn kubeconfig(&self) -> String {
        kubeconfig(CLUSTER, &self.url, self.ca_pem(), Identity::from(&self.admin))
    }

    /// A file with [`ControlPlane::kubeconfig`], for kubectl.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder().join("admin.kubeconfig")
    }

    /// A kubeconfig with a client certificate of `user` in `groups`.
    pub fn kubeconfig_as(&self, user: &str, groups: &[&str]) -> Result<String> {
        let pair = self.authority.issue(Leaf::client(user, groups.iter().copied()))?;
        Ok(kubeconfig(CLUSTER, &self.url, self.ca_pem(), Identity::from(&pair)))
    }

    /// Issues a certificate of the authority that all of the control plane trusts, such as one for a kubelet.
    pub fn issue(&self, leaf: Leaf) -> Result<PemPair> {
        Ok(self.authority.issue(leaf)?)
    }

    /// A kubeconfig with other credentials, or none.
    pub fn kubeconfig_with(&self, identity: Identity<'_>) -> String {
        kubeconfig(CLUSTER, &self.url, self.ca_pem(), identity)
    }

    /// An administrator's client (group `system:masters`).
    pub fn client(&self) -> Client {
        self.client.clone().expect("a control plane is handed out only after its client was made")
    }

    /// A client with a certificate of `user` in `groups`.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> Result<Client> {
        client(&self.kubeconfig_as(user, groups)?).await
    }

    /// The endpoint of etcd, as `http://127.0.0.1:PORT`.
    pub fn etcd_endpoint(&self) -> &str {
        &self.etcd
    }

    /// Compacts etcd's history up to now, as the API server does every five minutes. Returns the revision.
    ///
    /// Caveat: API servers keep their own snapshots. They read the key by which they announce compactions to each other every
    /// 15 seconds, so it takes that long until a paged list that was started before expires.
    pub async fn compact(&self) -> Result<i64> {
        let status = self.etcd_call("maintenance/status", &json!({})).await?;
        let revision = status["header"]["revision"].as_str().and_then(|text| text.parse::<i64>().ok());
        let revision = revision.with_context(|| format!("no revision in the status of etcd: {status}"))?;
        let told = json!({
            "key": BASE64_STANDARD.encode("compact_rev_key"),
            "value": BASE64_STANDARD.encode(revision.to_string()),
        });
        self.etcd_call("kv/put", &told).await?;
        let done =
            self.etcd_call("kv/compaction", &json!({ "revision": revision.to_string(), "physical": true })).await;
        match done {
            // Another compaction came in between with a newer revision.
            Err(error) if error.to_string().contains("required revision has been compacted") => Ok(revision),
            done => done.map(|_| revision),
        }
    }

    async fn etcd_call(&self, what: &str, body: &Value) -> Result<Value> {
        let mut config = Config::new(self.etcd.parse()?);
        config.default_retry = false;
        call_etcd(&Client::try_from(config)?, what, body).await
    }

    /// The executables in use, kubectl included.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The folder with each component's log.
    pub fn logs(&self) -> PathBuf {
        self.folder().join("logs")
    }

    /// Keeps the folder with the logs and prints its path, for a test that failed without a panic.
    pub fn keep_logs(&mut self) {
        self.keep = true;
    }

    /// The folder with all files of the control plane.
    pub fn folder(&self) -> &Path {
        self.folder.as_ref().expect("the folder is taken only by drop").path()
    }

    fn prepare(binaries: Binaries) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix(&format!("fleetwright-lab-{}-", process::id())).tempdir()?;
        fs::create_dir(folder.path().join("logs"))?;
        let authority = Authority::new("fleetwright-lab")?;
        let admin = authority.issue(Leaf::client("kubernetes-admin", ["system:masters"]))?;
        Ok(Self {
            processes: Vec::new(),
            binaries,
            authority,
            admin,
            url: String::new(),
            etcd: String::new(),
            client: None,
            folder: Some(folder),
            keep: false,
        })
    }

    async fn launch(&mut self, wanted: &Builder) -> Result<()> {
        let deadline = Instant::now() + READY;
        self.start_etcd(wanted)?;
        self.start_apiserver(wanted)?;
        let client = client(&self.kubeconfig()).await?;
        self.client = Some(client.clone());
        self.wait_for(&client, "/readyz", deadline).await?;
        self.wait_for(&client, "/api/v1/namespaces/kube-system", deadline).await?;
        self.wait_for(&client, "/api/v1/namespaces/default/services/kubernetes", deadline).await?;
        if let Some(controllers) = &wanted.controllers {
            self.start_controller_manager(controllers, wanted)?;
        }
        if wanted.scheduler {
            self.start_scheduler(wanted)?;
        }
        let makes_accounts = |name: &String| name == "*" || name.starts_with("serviceaccount");
        if wanted.controllers.iter().flatten().any(makes_accounts) {
            self.wait_for(&client, "/api/v1/namespaces/default/serviceaccounts/default", deadline).await?;
        }
        Ok(())
    }

    fn start_etcd(&mut self, wanted: &Builder) -> Result<()> {
        let (scheme, local) = (if wanted.production_arguments { "https" } else { "http" }, Ipv4Addr::LOCALHOST.into());
        self.etcd = format!("{scheme}://127.0.0.1:{}", free_port(local)?);
        let mut arguments = vec![
            "--name=lab".to_owned(),
            format!("--data-dir={}", self.folder().join("etcd").display()),
            format!("--listen-client-urls={}", self.etcd),
            format!("--advertise-client-urls={}", self.etcd),
            // A single member has no peers: any port will do.
            "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
        ];
        if wanted.production_arguments {
            // Its gateway is a client of its own server, with the server's certificate.
            let usages = vec![LeafUsage::Server, LeafUsage::Client];
            let own = self.authority.issue(Leaf { usages, ..Leaf::server("etcd", ["localhost"], [local]) })?;
            arguments.extend([
                "--client-cert-auth".to_owned(),
                format!("--trusted-ca-file={}", self.keep_file("ca.crt", self.authority.cert_pem())?),
                format!("--cert-file={}", self.keep_file("etcd.crt", &own.cert_pem)?),
                format!("--key-file={}", self.keep_file("etcd.key", &own.key_pem)?),
            ]);
        } else {
            // Durability after a machine failure is of no use to a test.
            arguments.push("--unsafe-no-fsync".to_owned());
        }
        self.start("etcd", arguments)
    }

    fn start_apiserver(&mut self, wanted: &Builder) -> Result<()> {
        let address = wanted.address;
        let port = free_port(address)?;
        self.url = format!("https://{address}:{port}");
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let serving = self.authority.issue(Leaf::server(
            "kube-apiserver",
            names,
            [[127, 0, 0, 1].into(), [10, 96, 0, 1].into(), address],
        ))?;
        // The client certificate that it presents to kubelets, for example for logs.
        let kubelets = self.authority.issue(Leaf::client("kube-apiserver-kubelet-client", ["system:masters"]))?;
        let accounts = ServiceAccountKey::generate()?;
        let arguments = [
            format!("--etcd-servers={}", self.etcd),
            format!("--bind-address={address}"),
            format!("--advertise-address={address}"),
            // v1.37 refuses to advertise a loopback address. On any other, pods find the server as usual: at `kubernetes.default.svc`.
            format!("--endpoint-reconciler-type={}", if address.is_loopback() { "none" } else { "lease" }),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", self.keep_file("apiserver.crt", &serving.cert_pem)?),
            format!("--tls-private-key-file={}", self.keep_file("apiserver.key", &serving.key_pem)?),
            format!("--client-ca-file={}", self.keep_file("ca.crt", self.authority.cert_pem())?),
            format!("--cert-dir={}", self.folder().display()),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--enable-bootstrap-token-auth=true".to_owned(),
            format!("--service-account-issuer={ISSUER}"),
            format!("--service-account-key-file={}", self.keep_file("accounts.pub", &accounts.public_pem)?),
            format!("--service-account-signing-key-file={}", self.keep_file("accounts.key", &accounts.private_pem)?),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--enable-bootstrap-token-auth=true".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--kubelet-certificate-authority={}", self.folder().join("ca.crt").display()),
            format!("--kubelet-client-certificate={}", self.keep_file("kubelets.crt", &kubelets.cert_pem)?),
            format!("--kubelet-client-key={}", self.keep_file("kubelets.key", &kubelets.key_pem)?),
            "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
        ];
        let mut etcd = Vec::new();
        if wanted.production_arguments {
            let own = self.authority.issue(Leaf::client("kube-apiserver-etcd-client", [""; 0]))?;
            etcd.extend([
                format!("--etcd-cafile={}", self.folder().join("ca.crt").display()),
                format!("--etcd-certfile={}", self.keep_file("apiserver-etcd.crt", &own.cert_pem)?),
                format!("--etcd-keyfile={}", self.keep_file("apiserver-etcd.key", &own.key_pem)?),
            ]);
        }
        let arguments = arguments.into_iter().chain(etcd).chain(gates(&wanted.features));
        let arguments = arguments.chain(wanted.apiserver_args.clone());
        write_private(self.kubeconfig_path(), self.kubeconfig())?;
        self.start("kube-apiserver", arguments)
    }

    fn start_controller_manager(&mut self, controllers: &[String], wanted: &Builder) -> Result<()> {
        let config = self.kubeconfig_as("system:kube-controller-manager", &["system:masters"])?;
        let config = self.keep_file("controller-manager.kubeconfig", &config)?;
        let authority_key = self.keep_file("ca.key", &self.authority.key_pem())?;
        let authority = self.folder().join("ca.crt");
        let arguments = [
            format!("--kubeconfig={config}"),
            format!("--controllers={}", controllers.join(",")),
            format!("--root-ca-file={}", authority.display()),
            format!("--cluster-signing-cert-file={}", authority.display()),
            format!("--cluster-signing-key-file={authority_key}"),
            format!("--service-account-private-key-file={}", self.folder().join("accounts.key").display()),
        ];
        let mut other_arguments = leader_election_arguments(wanted, &config)?;
        match wanted.production_arguments {
            true => other_arguments.extend(
                ["--use-service-account-credentials=true", "--kube-api-qps=100", "--kube-api-burst=200"]
                    .map(str::to_owned),
            ),
            // Tests make bursts of calls: the default limit of 20 requests a second would only slow them down.
            false => other_arguments.extend(["--kube-api-qps=500", "--kube-api-burst=1000"].map(str::to_owned)),
        }
        self.start(
            "kube-controller-manager",
            arguments.into_iter().chain(other_arguments).chain(gates(&wanted.features)),
        )
    }

    fn start_scheduler(&mut self, wanted: &Builder) -> Result<()> {
        let config = self.kubeconfig_as("system:kube-scheduler", &[])?;
        let config = self.keep_file("scheduler.kubeconfig", &config)?;
        let arguments =
            [format!("--kubeconfig={config}")].into_iter().chain(leader_election_arguments(wanted, &config)?);
        self.start("kube-scheduler", arguments.chain(gates(&wanted.features)))
    }

    fn start(&mut self, binary: &str, arguments: impl IntoIterator<Item = String>) -> Result<()> {
        let process = Process::start(binary, &self.binaries.path(binary)?, arguments, &self.logs())?;
        self.processes.push(process);
        Ok(())
    }

    fn keep_file(&self, name: &str, content: &str) -> Result<String> {
        let path = self.folder().join(name);
        write_private(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path.display().to_string())
    }

    async fn wait_for(&mut self, client: &Client, path: &str, deadline: Instant) -> Result<()> {
        loop {
            let request = Request::get(path).body(kube::client::Body::empty())?;
            let last = match client.send(request).await {
                Ok(response) if response.status() == StatusCode::OK => return Ok(()),
                Ok(response) => anyhow!("{path} responded with {}", response.status()),
                Err(error) => anyhow!(error),
            };
            for process in &mut self.processes {
                if let Some(status) = process.ended()? {
                    bail!("{} exited with {status}; its last output:\n{}", process.name(), process.tail());
                }
            }
            if Instant::now() > deadline {
                let tails: Vec<_> = self.processes.iter().map(|p| format!("{}:\n{}", p.name(), p.tail())).collect();
                return Err(
                    last.context(format!("timed out after {READY:?}: not ready; last output:\n{}", tails.join("\n")))
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn lost_a_port(&self) -> bool {
        self.processes.iter().any(Process::lost_its_port)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // etcd stops last: an API server without etcd would wait for it instead of ending.
        let (etcd, others) = match self.processes.split_first_mut() {
            Some((etcd, others)) => (Some(etcd), others),
            None => (None, [].as_mut_slice()),
        };
        others.iter_mut().for_each(Process::terminate);
        others.iter_mut().rev().for_each(Process::end);
        if let Some(etcd) = etcd {
            etcd.end();
        }
        let keep = self.keep || thread::panicking() || std::env::var_os("FLEETWRIGHT_KEEP").is_some();
        if let Some(folder) = self.folder.take_if(|_| keep) {
            let _ = fs::write(folder.path().join("keep"), "");
            eprintln!("lab: the logs are in {}", folder.keep().join("logs").display());
        }
    }
}

/// Arguments for leader election and a serving port, or for neither, since the component has no second replica and no clients.
fn leader_election_arguments(wanted: &Builder, kubeconfig: &str) -> Result<Vec<String>> {
    if !wanted.production_arguments {
        let lonely = ["--leader-elect=false", "--secure-port=0", "--kube-api-content-type=application/json"];
        return Ok(lonely.map(str::to_owned).to_vec());
    }
    Ok(vec![
        "--leader-elect=true".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", free_port(Ipv4Addr::LOCALHOST.into())?),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
    ])
}

fn gates(features: &[String]) -> Option<String> {
    (!features.is_empty()).then(|| format!("--feature-gates={}", features.join(",")))
}

pub(crate) fn free_port(address: IpAddr) -> Result<u16> {
    Ok(TcpListener::bind((address, 0))?.local_addr()?.port())
}

/// A client without retries.
pub(crate) async fn client(kubeconfig: &str) -> Result<Client> {
    let mut config =
        Config::from_custom_kubeconfig(Kubeconfig::from_yaml(kubeconfig)?, &KubeConfigOptions::default()).await?;
    // Tests need the first answer of the server, also when it is 429; and a benchmark would count a repeated request as
    // one slow one.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Sends a request to the JSON gateway of etcd, such as `kv/put`.
pub(crate) async fn call_etcd(client: &Client, what: &str, body: &Value) -> Result<Value> {
    let request = Request::post(format!("/v3/{what}")).header("content-type", "application/json");
    Ok(client.request(request.body(body.to_string().into())?).await?)
}

//! A server with the CRDs, an operator that lets machines join, and simulated kubelets.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fleetwright_api::{Machine, MachineSpec, crds};
use fleetwright_kit::events::reference;
use fleetwright_kit::{
    Budget, Cache, Change, Controller, FullObject, Key, Next, Operator, Options, Outcome, Pass, Settings, Source,
};
use fleetwright_lab::{ServerKind, Target, define};
use fleetwright_machines::join::{self, Credentials, JoinError};
use fleetwright_pki::Identity;
use fleetwright_plan::join::BOOTSTRAPPERS;
use fleetwright_rig::rights::{CLUSTER, Right, grant_everywhere, grant_in, without};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, ObjectReference, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

pub const NAMESPACE: &str = "fleet";
const OPERATOR: &str = "join-operator";
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Machines, and the operator that lets them join.
pub struct JoinSite {
    pub target: Target,
    pub admin: Client,
    given: IssuedCredentials,
    values: Arc<Mutex<BTreeMap<String, String>>>,
    running: tokio::sync::Mutex<Running>,
}

/// A running operator.
struct Running {
    stop: watch::Sender<bool>,
    operator: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(target: &Target, values: &Arc<Mutex<BTreeMap<String, String>>>, given: &IssuedCredentials) -> Self {
        let client = target.client_as(OPERATOR, &[]).await.expect("a client");
        let mut settings = Settings::new(OPERATOR, client);
        settings.strict_budgets = true;
        let mut operator = Operator::new(settings);
        let credentials = Credentials::new();
        join::add(&mut operator, NAMESPACE, &credentials);
        let machines: Cache<FullObject<Machine>> =
            operator.cache(Source::new(Api::namespaced(operator.client(), NAMESPACE)));
        let giver = CredentialRequester {
            machines: machines.clone(),
            credentials,
            values: values.clone(),
            given: given.clone(),
        };
        // Writing the binding of a Node into the status is no reason for another credential.
        let _ =
            operator.controller(giver, Options::default()).on(&machines, |change: &Change<'_, FullObject<Machine>>| {
                let asked = |machine: &Arc<FullObject<Machine>>| {
                    let meta = &machine.0.metadata;
                    (meta.generation, meta.labels.clone(), meta.annotations.clone(), meta.deletion_timestamp.clone())
                };
                if change.old.map(asked) == change.new.map(asked) { Vec::new() } else { vec![change.key.clone()] }
            });
        let (stop, mut stopped) = watch::channel(false);
        let operator = tokio::spawn(async move {
            let stop = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            operator.run(stop).await.expect("the operator runs");
        });
        Self { stop, operator }
    }

    async fn stop(&mut self) {
        let _ = self.stop.send(true);
        (&mut self.operator).await.expect("the operator does not panic");
    }
}

/// The credentials issued to each machine, newest last: a kubeconfig, or an error.
type IssuedCredentials = Arc<Mutex<HashMap<String, Vec<Result<String, String>>>>>;

impl JoinSite {
    /// Starts a site, and stops it after the body.
    pub async fn run(kind: ServerKind, body: impl AsyncFnOnce(&Self)) {
        Self::run_without(kind, None, body).await;
    }

    /// The same with an operator that lacks one of its rights in the whole cluster.
    pub async fn run_without(kind: ServerKind, missing: Option<&Right>, body: impl AsyncFnOnce(&Self)) {
        let target = Target::start(kind).await.expect("the server starts");
        let admin = target.admin();
        prepare(&admin, missing).await;
        let values = [("server", target.url()), ("caBundle", target.ca_pem().to_owned())];
        let values = Arc::new(Mutex::new(values.map(|(key, value)| (key.to_owned(), value)).into()));
        let given = IssuedCredentials::default();
        let running = tokio::sync::Mutex::new(Running::start(&target, &values, &given).await);
        let site = Self { target, admin, given, values, running };
        body(&site).await;
        site.running.into_inner().stop().await;
        site.target.stop(false).await;
    }

    /// Stops the operator, and starts another one without its memory.
    pub async fn restart(&self) {
        let mut running = self.running.lock().await;
        running.stop().await;
        *running = Running::start(&self.target, &self.values, &self.given).await;
    }

    /// Creates a machine with its address.
    pub async fn machine(&self, name: &str, address: &str) -> Machine {
        self.machine_at(name, &[address]).await
    }

    /// Creates a machine with its addresses.
    pub async fn machine_at(&self, name: &str, addresses: &[&str]) -> Machine {
        let addresses = addresses.iter().map(|&one| one.to_owned()).collect();
        let spec = MachineSpec { addresses, ..MachineSpec::default() };
        let machine = Machine::new(name, spec);
        self.machines().create(&PostParams::default(), &machine).await.expect("a machine")
    }

    /// Binds a machine to the Node of its name, as the controller of machines or a person does.
    pub async fn bind(&self, machine: &str, binding: &str) {
        let node: Node = Api::all(self.admin.clone()).get(machine).await.expect("a Node");
        let bound = json!({"status": {"nodeRef": {"name": machine, "uid": node.uid(), "binding": binding}}});
        let patch = kube::api::Patch::Merge(&bound);
        self.machines().patch_status(machine, &kube::api::PatchParams::default(), &patch).await.expect("a patch");
    }

    pub fn machines(&self) -> Api<Machine> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// The last credential of a machine, once there is one.
    pub async fn kubeconfig(&self, machine: &str) -> String {
        eventually(&format!("a credential for {machine}"), async || self.last(machine)?.ok()).await
    }

    /// Why a machine got no credential, once it is known.
    pub async fn refusal(&self, machine: &str) -> String {
        eventually(&format!("a refusal for {machine}"), async || self.last(machine)?.err()).await
    }

    fn last(&self, machine: &str) -> Option<Result<String, String>> {
        self.given.lock().unwrap().get(machine)?.last().cloned()
    }

    /// Makes the operator request the machine's credential once more.
    pub async fn again(&self, machine: &str) -> String {
        let count = || self.given.lock().unwrap().get(machine).map_or(0, Vec::len);
        let before = count();
        let patch = json!({"metadata": {"annotations": {"again": before.to_string()}}});
        let patch = kube::api::Patch::Merge(&patch);
        self.machines().patch(machine, &kube::api::PatchParams::default(), &patch).await.expect("a patch");
        eventually("another pass", async || (count() > before).then_some(())).await;
        self.kubeconfig(machine).await
    }

    /// Removes a cluster value, or sets it again.
    pub fn set_value(&self, key: &str, value: Option<&str>) {
        let mut values = self.values.lock().unwrap();
        match value {
            Some(value) => values.insert(key.to_owned(), value.to_owned()),
            None => values.remove(key),
        };
    }

    /// A client with the token of a kubeconfig.
    pub async fn with_token(&self, kubeconfig: &str) -> Client {
        let config: Value = serde_json::from_str(kubeconfig).expect("a kubeconfig");
        assert_eq!(config["clusters"][0]["cluster"]["server"], self.target.url());
        let token = config["users"][0]["user"]["token"].as_str().expect("a token").to_owned();
        self.target.client_with(Identity::Token(&token)).await.expect("a client")
    }

    /// The existing tokens of a machine.
    pub async fn tokens(&self, machine: &str) -> Vec<Secret> {
        let api: Api<Secret> = Api::namespaced(self.admin.clone(), "kube-system");
        let params = ListParams::default().labels(&format!("fleetwright.io/machine={machine}"));
        api.list(&params).await.expect("a list").items
    }

    /// Requests a certificate and waits for the decision.
    pub async fn ask(&self, client: &Client, asked: &KubeletRequest) -> RequestOutcome {
        let name = self.file(client, asked).await;
        self.answer(&name).await
    }

    /// Requests a certificate. The authenticator of kube-apiserver reads tokens from a cache of Secrets: it may not know a new one for a moment.
    pub async fn file(&self, client: &Client, asked: &KubeletRequest) -> String {
        eventually("a client that is known", async || match self.try_file(client, asked).await {
            Err(kube::Error::Api(status)) if status.code == 401 => None,
            answer => Some(answer.expect("requests may be made")),
        })
        .await
    }

    /// Requests a certificate, which the server may refuse.
    pub async fn try_file(&self, client: &Client, asked: &KubeletRequest) -> kube::Result<String> {
        let api: Api<CertificateSigningRequest> = Api::all(client.clone());
        Ok(api.create(&PostParams::default(), &asked.request()).await?.name_any())
    }

    pub async fn request(&self, name: &str) -> CertificateSigningRequest {
        Api::all(self.admin.clone()).get(name).await.expect("the request")
    }

    pub async fn answer(&self, name: &str) -> RequestOutcome {
        eventually(&format!("an answer to {name}"), async || {
            let status = self.request(name).await.status?;
            let condition = status.conditions?.into_iter().next()?;
            if condition.type_ == "Denied" {
                let reason = condition.reason.unwrap_or_default();
                return Some(RequestOutcome::Denied { reason, message: condition.message.unwrap_or_default() });
            }
            assert_eq!(condition.type_, "Approved", "{condition:?}");
            let certificate = status.certificate.filter(|certificate| !certificate.0.is_empty())?;
            Some(RequestOutcome::Signed(String::from_utf8(certificate.0).expect("PEM")))
        })
        .await
    }

    /// Waits for an Event about a machine with that reason and text.
    pub async fn told(&self, machine: &str, reason: &str, part: &str) {
        self.event(NAMESPACE, "Machine", machine, reason, part).await;
    }

    /// Waits for an Event about a request with that reason and text.
    pub async fn told_of_request(&self, name: &str, reason: &str, part: &str) {
        self.event("default", "CertificateSigningRequest", name, reason, part).await;
    }

    async fn event(&self, namespace: &str, kind: &str, name: &str, reason: &str, part: &str) {
        let api: Api<Event> = Api::namespaced(self.admin.clone(), namespace);
        eventually(&format!("event {reason} about {kind} {name} with {part:?}"), async || {
            let events = api.list(&ListParams::default()).await.expect("events").items;
            let about = |event: &Event| {
                let object = &event.involved_object;
                object.kind.as_deref() == Some(kind) && object.name.as_deref() == Some(name)
            };
            let says = |event: &Event| {
                event.reason.as_deref() == Some(reason) && event.message.as_deref().unwrap_or_default().contains(part)
            };
            events.iter().any(|event| about(event) && says(event)).then_some(())
        })
        .await;
    }

    /// A token that an administrator created by hand for a machine, without the operator.
    pub async fn forged_token(&self, id: &str, groups: &str) -> Client {
        let api: Api<Secret> = Api::namespaced(self.admin.clone(), "kube-system");
        let secret = "0123456789abcdef";
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("bootstrap-token-{id}")},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
                "auth-extra-groups": groups,
            },
        });
        let _ = api.delete(&format!("bootstrap-token-{id}"), &DeleteParams::default()).await;
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.expect("a token");
        self.target.client_with(Identity::Token(&format!("{id}.{secret}"))).await.expect("a client")
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub enum RequestOutcome {
    Signed(String),
    Denied { reason: String, message: String },
}

impl RequestOutcome {
    pub fn certificate(self) -> String {
        match self {
            Self::Signed(certificate) => certificate,
            Self::Denied { reason, message } => panic!("denied: {reason}: {message}"),
        }
    }

    pub fn is_denied(&self, wanted: &str) {
        assert!(matches!(self, Self::Denied { reason, .. } if reason == wanted), "{wanted}: {self:?}");
    }
}

/// The fields of a kubelet's request.
pub struct KubeletRequest {
    pub signer: &'static str,
    pub usages: Vec<&'static str>,
    pub node: String,
    pub names: Vec<&'static str>,
    pub key: rcgen::KeyPair,
}

impl KubeletRequest {
    pub fn client(node: &str) -> Self {
        Self {
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            usages: vec!["digital signature", "client auth"],
            node: node.to_owned(),
            names: Vec::new(),
            key: rcgen::KeyPair::generate().expect("a key"),
        }
    }

    pub fn serving(node: &str, names: &[&'static str]) -> Self {
        Self {
            signer: "kubernetes.io/kubelet-serving",
            usages: vec!["digital signature", "server auth"],
            names: names.to_vec(),
            ..Self::client(node)
        }
    }

    fn request(&self) -> CertificateSigningRequest {
        let names: Vec<String> = self.names.iter().map(|&name| name.to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{}", self.node));
        let pem = params.serialize_request(&self.key).expect("a request").pem().expect("PEM");
        let mut request: CertificateSigningRequest = serde_json::from_value(json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "csr-"},
            "spec": {"signerName": self.signer, "usages": self.usages, "request": ""},
        }))
        .expect("a request");
        request.spec.request = k8s_openapi::ByteString(pem.into_bytes());
        request
    }
}

/// Requests credentials, as the controller of machines does.
struct CredentialRequester {
    machines: Cache<FullObject<Machine>>,
    credentials: Credentials,
    values: Arc<Mutex<BTreeMap<String, String>>>,
    given: IssuedCredentials,
}

impl Controller for CredentialRequester {
    const NAME: &'static str = "giver";
    const BUDGET: Budget = Budget { reads: 1, writes: 3 };

    type Found = Arc<FullObject<Machine>>;
    type Valid = Arc<FullObject<Machine>>;
    type Decision = ();
    type Done = ();
    type DereferenceError = Infallible;
    type ValidateError = Infallible;
    type ActError = JoinError;
    type ReportError = Infallible;

    fn about(&self, key: &Key, _: Option<&Self::Found>) -> ObjectReference {
        reference::<Machine>(key, None)
    }

    async fn dereference(&self, pass: &Pass) -> Result<Option<Self::Found>, Infallible> {
        let machine = self.machines.get(pass.key());
        Ok(machine.filter(|machine| machine.0.metadata.deletion_timestamp.is_none()))
    }

    fn validate(&self, found: &Self::Found) -> Result<Self::Valid, Infallible> {
        Ok(found.clone())
    }

    fn decide(&self, _: &Self::Valid, _: Timestamp) {}

    async fn act(&self, pass: &Pass, machine: &Self::Valid, (): &()) -> Result<(), JoinError> {
        let values = self.values.lock().unwrap().clone();
        let uid = machine.0.uid().unwrap_or_default();
        let name = machine.0.name_any();
        let bound = machine.0.status.as_ref().and_then(|status| status.bound_uid());
        let answer = self.credentials.credential(pass, &uid, "join", (&name, bound), &values).await;
        let shown = answer.as_ref().map(Clone::clone).map_err(ToString::to_string);
        self.given.lock().unwrap().entry(machine.0.name_any()).or_default().push(shown);
        answer.map(drop)
    }

    async fn report(&self, _: &Pass, _: &Self::Found, _: Outcome<'_, Self>) -> Result<Next, Infallible> {
        Ok(Next::AwaitChange)
    }
}

/// Creates the CRDs, the namespace, the operator's rights except one, and the rights that an installation gives to joining machines.
async fn prepare(admin: &Client, missing: Option<&Right>) {
    define(admin, &crds()).await.expect("the kinds are served");
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
    let values = json!({"metadata": {"name": "cluster-values"}, "data": {"server": "https://api.example.com:6443"}});
    let values: ConfigMap = serde_json::from_value(values).unwrap();
    Api::namespaced(admin.clone(), NAMESPACE).create(&PostParams::default(), &values).await.expect("values");
    let rules = join::rules();
    for (namespace, rules) in [(NAMESPACE, &rules.namespaced), ("kube-system", &rules.tokens)] {
        grant_in(admin, namespace, OPERATOR, rules).await.expect("a role");
    }
    grant_everywhere(admin, OPERATOR, &without(CLUSTER, &rules.cluster, missing)).await.expect("a role");
    let binding = json!({
        "metadata": {"name": "machines-join"},
        "subjects": [{"kind": "Group", "name": BOOTSTRAPPERS, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "system:node-bootstrapper", "apiGroup": "rbac.authorization.k8s.io"},
    });
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    Api::all(admin.clone()).create(&PostParams::default(), &binding).await.expect("a binding");
}

/// Polls until there is an answer.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(started.elapsed() < WAIT_TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

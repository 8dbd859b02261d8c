//! An installation with an account that has its rights, or lacks some of them.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fleetwright_api::{ClusterPackageVersion, ClusterPackageVersionSpec, Extension, ExtensionPlacement};
use fleetwright_clusters::{Account, Options, Rules, control_plane_role, rules};
use fleetwright_kit::{Operator, Settings};
use fleetwright_rig::Call;
use fleetwright_rig::rights::{CLUSTER, Right, grant_everywhere, grant_in, rights, without};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const FLEET: &str = "fleet";
pub const SYSTEM: &str = "fleetwright-system";
pub const ACCOUNT: &str = "fleetwright-clusters";
/// Where rights hold.
const BESIDE_CLUSTERS: &str = "fleet";
pub const KEYS: &str = "keys";
pub const CONTROL_PLANE: &str = "control-plane";
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// Something of each kind that an extension may have beside a control plane.
fn beside() -> Extension {
    let pods = "selector: {matchLabels: {app: beside}}";
    let template = "template: {metadata: {labels: {app: beside}}, spec: {containers: [{name: beside, image: registry.example/beside:v1}]}}";
    let of = |version: &str, kind: &str, rest: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: beside}}\n{rest}\n")
    };
    let workload = format!("spec: {{replicas: 1, {pods}, {template}}}");
    let set = format!("spec: {{replicas: 1, serviceName: beside, {pods}, {template}}}");
    let all = [
        of("v1", "ConfigMap", "data: {text: some}"),
        of("v1", "Service", "spec: {selector: {app: beside}, ports: [{port: 80}]}"),
        of("networking.k8s.io/v1", "NetworkPolicy", "spec: {podSelector: {matchLabels: {app: beside}}}"),
        of("policy/v1", "PodDisruptionBudget", &format!("spec: {{maxUnavailable: 1, {pods}}}")),
        of("apps/v1", "Deployment", &workload),
        of("apps/v1", "StatefulSet", &set),
    ];
    Extension {
        name: "beside".to_owned(),
        placement: ExtensionPlacement::Meta,
        template: all.join("---\n"),
        ..Extension::default()
    }
}

pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<Result<(), String>>) -> Result<()> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        match holds().await? {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() > deadline => bail!("{what}: {why}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// An installation of its own: a namespace of Clusters, one of the operator, and its account.
#[derive(Clone, Copy)]
pub struct Installation {
    pub fleet: &'static str,
    pub account: Account,
}

impl Installation {
    pub const FIRST: Self = Self { fleet: FLEET, account: Account { namespace: SYSTEM, name: ACCOUNT } };

    pub fn numbered(number: usize) -> Self {
        let fleet = Box::leak(format!("{FLEET}{number}").into_boxed_str());
        let namespace = Box::leak(format!("{SYSTEM}-{number}").into_boxed_str());
        Self { fleet, account: Account { namespace, name: ACCOUNT } }
    }

    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.account.namespace, self.account.name)
    }

    /// Where a call is made.
    pub fn of(&self, call: &Call) -> &'static str {
        let namespace = if call.resource == "namespaces" { &call.name } else { &call.namespace };
        if namespace == self.fleet {
            BESIDE_CLUSTERS
        } else if namespace == self.account.namespace {
            KEYS
        } else if namespace.starts_with(&format!("{}-", self.fleet)) {
            CONTROL_PLANE
        } else {
            CLUSTER
        }
    }

    pub fn rights(&self) -> Vec<Right> {
        let given = rules(self.account.namespace);
        [
            rights(BESIDE_CLUSTERS, &given.namespaced),
            rights(KEYS, &given.keys),
            rights(CONTROL_PLANE, &given.control_plane),
            rights(CLUSTER, &given.cluster),
        ]
        .concat()
    }

    /// The rights of the installation, but for these.
    fn given(&self, missing: &[Right]) -> Rules {
        let all = rules(self.account.namespace);
        let but = |place: &str, rules: Vec<PolicyRule>| {
            missing.iter().fold(rules, |rules, right| without(place, &rules, Some(right)))
        };
        Rules {
            namespaced: but(BESIDE_CLUSTERS, all.namespaced),
            keys: but(KEYS, all.keys),
            control_plane: but(CONTROL_PLANE, all.control_plane),
            cluster: but(CLUSTER, all.cluster),
        }
    }

    /// The namespaces, package versions, and an account with the rights of the installation, but for these.
    pub async fn prepare(&self, admin: &Client, missing: &[Right]) -> Result<()> {
        for namespace in [self.fleet, self.account.namespace] {
            create::<Namespace>(Api::all(admin.clone()), json!({ "metadata": { "name": namespace } })).await?;
        }
        let (given, user) = (self.given(missing), self.user());
        grant_in(admin, self.fleet, &user, &given.namespaced).await?;
        grant_in(admin, self.account.namespace, &user, &given.keys).await?;
        grant_everywhere(admin, &user, &given.cluster).await?;
        let name = control_plane_role(self.account.namespace);
        let role = json!({ "metadata": { "name": name }, "rules": given.control_plane });
        create::<ClusterRole>(Api::all(admin.clone()), role).await?;
        let packages: Api<ClusterPackageVersion> = Api::namespaced(admin.clone(), self.fleet);
        // With another etcd, so that its members are replaced.
        for (name, kubernetes, etcd) in [("v1.36", "1.36.4", "3.6.16"), ("v1.37", "1.37.1", "3.6.17")] {
            let mut spec = ClusterPackageVersionSpec::of_images("registry.example", kubernetes, etcd);
            // The next one does not have it any more.
            if name == "v1.36" {
                spec.extensions = vec![beside()];
            }
            packages.create(&PostParams::default(), &ClusterPackageVersion::new(name, spec)).await?;
        }
        Ok(())
    }

    /// Changes the rights of the account to those of the installation, but for these.
    pub async fn change_rights(&self, admin: &Client, missing: &[Right]) -> Result<()> {
        let (given, user, params) = (self.given(missing), self.user(), PatchParams::default());
        let patch = |rules: &Vec<PolicyRule>| Patch::Merge(json!({ "rules": rules }));
        for (namespace, rules) in [(self.fleet, &given.namespaced), (self.account.namespace, &given.keys)] {
            Api::<Role>::namespaced(admin.clone(), namespace).patch(&user, &params, &patch(rules)).await?;
        }
        let role = control_plane_role(self.account.namespace);
        for (name, rules) in [(&user, &given.cluster), (&role, &given.control_plane)] {
            Api::<ClusterRole>::all(admin.clone()).patch(name, &params, &patch(rules)).await?;
        }
        Ok(())
    }

    pub fn operator(&self, client: Client) -> Operator {
        let mut operator = Operator::new(Settings { strict_budgets: true, ..Settings::new("fleetwright", client) });
        fleetwright_clusters::add(
            &mut operator,
            self.fleet,
            Options { account: Some(self.account), ..Options::default() },
        );
        operator
    }
}

pub async fn create<K>(api: Api<K>, object: Value) -> Result<K>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let what = object.to_string();
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await.context(what)
}

/// Whether that call is refused when that right is missing.
pub fn is_want(right: &Right, call: &Call, place: &Installation) -> bool {
    match right.verb.as_str() {
        // The API server checks this right when the RoleBinding is created.
        "bind" => call.verb == "create" && call.resource.starts_with("rolebindings"),
        // To apply what does not exist is to create it.
        "create" if call.verb == "apply" => {
            let patch = Right { verb: "patch".to_owned(), ..right.clone() };
            patch.allows(call, place.of(call))
        }
        _ => right.allows(call, place.of(call)),
    }
}

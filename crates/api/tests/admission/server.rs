use fleetwright_api::{GROUP, VERSION, crds};
use fleetwright_lab::{ServerKind, Target, served};
use http::Request;
use http::header::{CONTENT_TYPE, WARNING};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, Status};
use kube::{Api, Client, Error, ResourceExt};
use serde_json::Value;

/// A server that knows the kinds.
pub struct Server {
    pub client: Client,
}

/// What a server answered: the object, or why not.
pub type Answer = Result<Value, Box<Status>>;

impl Server {
    /// Starts one with the definitions installed, and stops it after the body, whatever becomes of it.
    pub async fn run(kind: ServerKind, body: impl AsyncFnOnce(&Self)) {
        let target = Target::start(kind).await.expect("the server starts");
        let server = Self { client: target.admin() };
        server.install().await;
        body(&server).await;
        target.stop(false).await;
    }

    async fn install(&self) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for crd in crds() {
            self.define(&crd.name_any(), &crd).await;
        }
        served(&self.client, &crds()).await.expect("the kinds are served");
        for crd in api.list(&ListParams::default()).await.expect("they are there") {
            let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
            let holds = |type_: &str| conditions.iter().any(|one| one.type_ == type_ && one.status == "True");
            assert!(!holds("NonStructuralSchema"), "{:?}: {conditions:#?}", crd.metadata.name);
        }
    }

    /// A definition that the server only puts up with would greet every person who installs it with warnings.
    async fn define(&self, name: &str, crd: &CustomResourceDefinition) {
        let body = serde_json::to_vec(crd).expect("a definition is JSON");
        let request = Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
            .header(CONTENT_TYPE, "application/json")
            .body(body.into())
            .expect("a request");
        let answer = self.client.send(request).await.expect("an answer");
        let warnings: Vec<_> = answer.headers().get_all(WARNING).iter().cloned().collect();
        let status = answer.status();
        let body = answer.into_body().collect_bytes().await.expect("a body");
        assert_eq!(status, 201, "{name}: {}", String::from_utf8_lossy(&body));
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
    }

    pub async fn get(&self, path: &str) -> kube::Result<Value> {
        self.client.request(Request::get(path).body(Vec::new()).expect("a path")).await
    }

    /// The API of the kind of that object.
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        let plural = match kind {
            "Cluster" => "clusters",
            "ClusterLimits" => "clusterlimits",
            "ClusterPackageVersion" => "clusterpackageversions",
            "Machine" => "machines",
            "MachinePackageVersion" => "machinepackageversions",
            "ReadinessGates" => "readinessgates",
            "Operation" => "operations",
            "OperationPolicy" => "operationpolicies",
            other => panic!("no such kind: {other}"),
        };
        let kind = GroupVersionKind::gvk(GROUP, VERSION, kind);
        Api::namespaced_with(self.client.clone(), "default", &ApiResource::from_gvk_with_plural(&kind, plural))
    }

    /// Creates an object, or only asks whether it could be.
    pub async fn create(&self, object: &Value, dry_run: bool) -> Answer {
        let api = self.api(object["kind"].as_str().expect("a kind"));
        let params = PostParams { dry_run, ..PostParams::default() };
        answer(api.create(&params, &serde_json::from_value(object.clone()).expect("an object")).await)
    }

    /// Changes an object, or its status.
    pub async fn merge(&self, object: &Value, subresource: Option<&str>, patch: &Value) -> Answer {
        let api = self.api(object["kind"].as_str().expect("a kind"));
        let name = object["metadata"]["name"].as_str().expect("a name");
        let params = PatchParams::default();
        answer(match subresource {
            Some(subresource) => api.patch_subresource(subresource, name, &params, &Patch::Merge(patch)).await,
            None => api.patch(name, &params, &Patch::Merge(patch)).await,
        })
    }
}

fn answer(result: kube::Result<DynamicObject>) -> Answer {
    match result {
        Ok(object) => Ok(serde_json::to_value(object).expect("an object is JSON")),
        Err(Error::Api(status)) => Err(status),
        Err(other) => panic!("no answer: {other}"),
    }
}

/// Requires that it was refused at that field for that reason.
pub fn refused(what: &str, answer: Answer, field: &str, part: &str) {
    if let Err(wrong) = is_refused(answer, field, part) {
        panic!("{what}: {wrong}");
    }
}

/// Whether it was refused at that field for that reason; what happened instead, if not.
pub fn is_refused(answer: Answer, field: &str, part: &str) -> Result<(), String> {
    let status = answer.err().ok_or("was allowed")?;
    let causes = status.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
    let found = causes.iter().any(|cause| cause.field == field && cause.message.contains(part));
    if status.code == 422 && found {
        return Ok(());
    }
    Err(format!("expected {part:?} at {field}, got {} {causes:?}", status.message))
}

//! A server of its own for each test, and plain requests to it.

use std::time::{Duration, Instant};

use fleetwright_apiserver::{Config, Handle, Server, User};
use http::{Method, Request, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

/// An answer: the code and the JSON.
pub type Answer = (u16, Value);

/// A running server and a client of it.
pub struct Cluster {
    handle: Handle,
    client: kube::Client,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::with(Config::default()).await
    }

    pub async fn with(config: Config) -> Self {
        let handle = Server::start(config).await.expect("the server starts");
        let client = handle.client();
        Self { handle, client }
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub async fn stop(self) {
        self.handle.stop().await;
    }

    /// Sends a request as the administrator.
    pub async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.send_as_admin(method, path, "application/json", body).await
    }

    /// Sends a request as the administrator, with a body of this type.
    pub async fn send_as_admin(&self, method: &str, path: &str, ty: &str, body: Option<Value>) -> Answer {
        self.send_typed(&self.client, method, path, ty, body).await
    }

    /// Sends a request as somebody else.
    pub async fn send_as(&self, user: &str, groups: &[&str], method: &str, path: &str, body: Option<Value>) -> Answer {
        let groups = groups.iter().copied().chain(["system:authenticated"]);
        let client = self.handle.client_as(User::new(user, groups));
        self.send_typed(&client, method, path, "application/json", body).await
    }

    async fn send_typed(
        &self,
        client: &kube::Client,
        method: &str,
        path: &str,
        ty: &str,
        body: Option<Value>,
    ) -> Answer {
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).expect("a method"))
            .uri(path)
            .header(header::CONTENT_TYPE, ty)
            .body(kube::client::Body::from(bytes))
            .expect("a request");
        let response = client.send(request).await.expect("an answer");
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
    }

    /// Sends a request as a user of no group, with a body of this type.
    pub async fn typed_as(&self, user: &str, method: &str, path: &str, ty: &str, body: &Value) -> Answer {
        let client = self.handle.client_as(User::new(user, ["system:authenticated"]));
        self.send_typed(&client, method, path, ty, Some(body.clone())).await
    }

    /// The number of panics of controllers.
    pub async fn panics(&self) -> u64 {
        self.metric("apiserver_controller_panics_total").await
    }

    /// The sum of a metric over its labels.
    pub async fn metric(&self, name: &str) -> u64 {
        let page = self.get("/metrics").await.1;
        let rows = page.as_str().unwrap_or_default().lines().filter(|row| row.starts_with(name));
        rows.filter_map(|row| row.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send("PUT", path, Some(body)).await
    }

    pub async fn merge(&self, path: &str, body: Value) -> Answer {
        self.send_as_admin("PATCH", path, "application/merge-patch+json", Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, None).await
    }

    /// Creates something that must work; returns what was stored.
    pub async fn created(&self, path: &str, body: Value) -> Value {
        let (code, answer) = self.post(path, body).await;
        assert_eq!(code, 201, "{path}: {answer}");
        answer
    }

    /// Waits until an object is gone.
    pub async fn gone(&self, path: &str) {
        self.until(path, |(code, _)| *code == 404).await;
    }

    /// Waits until an answer is as wanted, and returns it.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let answer = self.get(path).await;
            if wanted(&answer) {
                return answer.1;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{path} stays {answer:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Gives the controllers time to do what they should not do.
    pub async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/web:1"}]},
    })
}

/// A reference to an object as its owner.
pub fn owned_by(object: &Value, block: bool) -> Value {
    json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "blockOwnerDeletion": block,
    })
}

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";

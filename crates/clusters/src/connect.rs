//! Clients of servers in pods of a cluster, with the operator's own certificates.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use fleetwright_kit::Clock;
use fleetwright_kit::client::{Fence, fenced};

use fleetwright_plan::cluster::Names;
use fleetwright_plan::cluster::certificates::OPERATOR_ETCD;
use fleetwright_plan::cluster::objects::ETCD_PORT;
use futures::StreamExt as _;
use http_body_util::{BodyStream, LengthLimitError, Limited, StreamBody};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{DeleteParams, ListParams};
use kube::client::{Body, ClientBuilder, DynBody};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Api, Client, Resource};
use prometheus_client::metrics::counter::Counter;
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tower::BoxError;
use tower::util::{MapRequestLayer, MapResponseLayer};

use crate::messages::api_error_message;
use crate::thin::ThinObject;

/// Maximum size of an answer; the largest requested answers are metrics. A watch counts as one answer: the only watch, in a proof, follows one quota
/// and is short.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Maximum number of objects, lists and values in an answer. An empty object is two bytes of the answer and up to two thousand in memory, and a
/// tenant can serve any kind with a server of their own. 50 Nodes by their metadata have about 6,000 objects, and 16 MiB of metrics about 150,000
/// labels in braces.
const MAX_OBJECTS: usize = 200_000;
const MAX_VALUES: usize = 1_000_000;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read the operator's certificate: {}", api_error_message(.0))]
    Certificates(kube::Error),
    #[error("cannot connect: {0}")]
    Client(String),
}

/// Client of the meta cluster, which has the operator's own certificates, and the count of calls with them.
#[derive(Clone)]
pub struct MetaAccess {
    pub client: Client,
    pub calls: Counter,
    pub fence: Fence,
    pub clock: Clock,
}

impl MetaAccess {
    /// Whether this process is certain to hold the lease. A task checks it after a wait, before it changes anything.
    pub fn leads(&self) -> bool {
        self.fence.holds(&self.clock)
    }
}

/// A server, its expected certificate name, and the client certificate for it.
pub struct ServerIdentity<'a> {
    pub secret: &'a str,
    pub ip: &'a str,
    pub port: u16,
    pub server_name: String,
}

/// A client of that pod.
pub async fn connect(meta: &MetaAccess, names: &Names, door: &ServerIdentity<'_>) -> Result<Client, ConnectError> {
    build(meta, names, door, &read(meta, names, door.secret).await?).await
}

async fn read(meta: &MetaAccess, names: &Names, secret: &str) -> Result<Secret, ConnectError> {
    let secrets: Api<Secret> = Api::namespaced(meta.client.clone(), &names.namespace);
    secrets.get(secret).await.map_err(ConnectError::Certificates)
}

async fn build(
    meta: &MetaAccess,
    names: &Names,
    door: &ServerIdentity<'_>,
    secret: &Secret,
) -> Result<Client, ConnectError> {
    let failed = |error: &dyn std::fmt::Display| ConnectError::Client(error.to_string());
    let data = secret.data.clone().unwrap_or_default();
    let encoded = |key: &str| {
        use base64::Engine as _;
        data.get(key).map(|bytes| base64::prelude::BASE64_STANDARD.encode(&bytes.0))
    };
    let host = if door.ip.contains(':') { format!("[{}]", door.ip) } else { door.ip.to_owned() };
    let name = &names.name;
    let config = json!({
        "clusters": [{ "name": name, "cluster": {
            "server": format!("https://{host}:{}", door.port),
            "certificate-authority-data": encoded("ca.crt"),
            "tls-server-name": door.server_name,
        } }],
        "users": [{ "name": name, "user": {
            "client-certificate-data": encoded("tls.crt"), "client-key-data": encoded("tls.key"),
        } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        "current-context": name,
    });
    let config: Kubeconfig = serde_json::from_value(config).map_err(|error| failed(&error))?;
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(config, &options).await.map_err(|error| failed(&error))?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(20));
    // A change of etcd is sent once. And a learner answers 503 to all requests but its status: fifteen retries take longer than any caller waits, so
    // the learner would seem not to answer.
    config.default_retry = door.port != ETCD_PORT;
    client(meta, config)
}

/// The answer is too large. Tenants decide how much data is in their cluster, and the operator serves all clusters.
#[derive(Debug, thiserror::Error)]
#[error("the response of the business cluster is larger than {} MiB", MAX_ANSWER / (1024 * 1024))]
struct TooLarge;

/// The answer has too many values. Tenants decide what data is in their cluster, too.
#[derive(Debug, thiserror::Error)]
#[error("the response of the business cluster has more than {} objects or {} values", MAX_OBJECTS, MAX_VALUES)]
struct TooMany;

/// Counter of the bytes and values of an answer. Braces within strings count as well.
#[derive(Default)]
struct SizeLimit {
    objects: usize,
    values: usize,
}

impl SizeLimit {
    fn add(&mut self, bytes: &[u8]) -> Result<(), TooMany> {
        for byte in bytes {
            match byte {
                b'{' | b'[' => self.objects += 1,
                b',' => self.values += 1,
                _ => {}
            }
        }
        if self.objects > MAX_OBJECTS || self.values > MAX_VALUES { Err(TooMany) } else { Ok(()) }
    }
}

/// Ends an answer with an error where it becomes too large, on the wire or in memory.
fn limited(answer: http::Response<Box<DynBody>>) -> http::Response<Box<DynBody>> {
    let plainly = |error: BoxError| match error.is::<LengthLimitError>() {
        true => BoxError::from(TooLarge),
        false => error,
    };
    answer.map(|body| {
        let mut count = SizeLimit::default();
        let body = BodyStream::new(Limited::new(body, MAX_ANSWER)).map(move |frame| {
            let frame = frame.map_err(plainly)?;
            frame.data_ref().map_or(Ok(()), |bytes| count.add(bytes))?;
            Ok::<_, BoxError>(frame)
        });
        Box::new(StreamBody::new(body)) as Box<DynBody>
    })
}

/// A client that counts its calls, limits the size of answers, and sends no write once the lease could have expired.
///
/// kube repeats requests that are answered 429, 503 or 504, up to 15 times. Therefore the fence is around each attempt: a write is sent once, and
/// only reads are repeated.
fn client(meta: &MetaAccess, config: kube::Config) -> Result<Client, ConnectError> {
    let calls = meta.calls.clone();
    let counted = MapRequestLayer::new(move |request: http::Request<Body>| {
        calls.inc();
        request
    });
    let builder = ClientBuilder::try_from(config).map_err(|error| ConnectError::Client(error.to_string()))?;
    let builder = builder.with_layer(&counted).with_layer(&MapResponseLayer::new(limited));
    Ok(fenced(builder.build(), meta.fence.clone(), meta.clock.clone()))
}

/// Number of objects in a page.
pub const PAGE: u32 = 50;

/// A page of the requested size. A tenant's server may send more objects: that is an error, before they are in memory.
#[derive(Deserialize)]
#[serde(bound = "K: Deserialize<'de>")]
pub struct Page<K> {
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(deserialize_with = "few")]
    pub items: Vec<K>,
}

fn few<'de, D: Deserializer<'de>, K: Deserialize<'de>>(deserializer: D) -> Result<Vec<K>, D::Error> {
    struct LimitedList<K>(PhantomData<K>);

    impl<'de, K: Deserialize<'de>> Visitor<'de> for LimitedList<K> {
        type Value = Vec<K>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {PAGE} objects")
        }

        fn visit_unit<E>(self) -> Result<Vec<K>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<K>, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() == PAGE as usize {
                    return Err(A::Error::invalid_length(all.len() + 1, &self));
                }
                all.push(item);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_any(LimitedList(PhantomData))
}

/// Lists a page of the objects of kind `K`, in all namespaces, after the page with that token. The objects are decoded as `T`, which has only the
/// used fields: one object with a field that does not parse would hide all others.
pub async fn page<K, T>(client: &Client, after: Option<&str>) -> kube::Result<Page<T>>
where
    K: Resource<DynamicType = ()>,
    T: DeserializeOwned,
{
    let request = Request::new(K::url_path(&(), None)).list(&after_token(after)).map_err(kube::Error::BuildRequest)?;
    client.request(request).await
}

/// Lists a page of objects by their metadata, in one namespace or in all.
pub async fn page_of_metadata<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: Option<&str>,
    after: Option<&str>,
) -> kube::Result<Page<ThinObject>> {
    let request = Request::new(K::url_path(&(), namespace)).list_metadata(&after_token(after));
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

fn after_token(after: Option<&str>) -> ListParams {
    ListParams { continue_token: after.map(str::to_owned), ..ListParams::default().limit(PAGE) }
}

/// Deletes an object. The answer, which may be the deleted object, is not decoded.
pub async fn delete<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: &str,
    name: &str,
    params: &DeleteParams,
) -> kube::Result<()> {
    let request = Request::new(K::url_path(&(), Some(namespace))).delete(name, params);
    client.request_text(request.map_err(kube::Error::BuildRequest)?).await.map(drop)
}

/// Certificates with which members of etcd are reached.
pub struct EtcdAccess<'a> {
    meta: &'a MetaAccess,
    names: &'a Names,
    secret: Secret,
}

impl<'a> EtcdAccess<'a> {
    /// Reads the certificate once for all members.
    pub async fn of(meta: &'a MetaAccess, names: &'a Names) -> Result<Self, String> {
        let secret = read(meta, names, OPERATOR_ETCD).await.map_err(|error| error.to_string())?;
        Ok(Self { meta, names, secret })
    }

    /// A client of the member at that address.
    pub async fn at(&self, ip: &str) -> Result<EtcdClient, String> {
        let door = ServerIdentity { secret: OPERATOR_ETCD, ip, port: ETCD_PORT, server_name: self.names.etcd() };
        build(self.meta, self.names, &door, &self.secret).await.map(EtcdClient).map_err(|error| error.to_string())
    }
}

/// A client of the JSON gateway of an etcd member.
pub struct EtcdClient(Client);

impl EtcdClient {
    /// Sends a request, such as `cluster/member/list`.
    pub async fn ask(&self, what: &str, body: Value) -> Result<Value, String> {
        let request = http::Request::post(format!("/v3/{what}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| error.to_string())?;
        self.0.request(request).await.map_err(|error| format!("{what}: {}", api_error_message(&error)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use fleetwright_kit::client::CallError;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Patch, PatchParams, PostParams};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::thin::ThinNode;

    /// A server that answers 503 and closes the fence at its first request.
    async fn busy(fence: Fence) -> (kube::Config, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let into = log.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (into, fence) = (into.clone(), fence.clone());
                tokio::spawn(async move {
                    let mut text = Vec::new();
                    while !text.windows(4).any(|end| end == b"\r\n\r\n") {
                        if stream.read_buf(&mut text).await.unwrap_or_default() == 0 {
                            return;
                        }
                    }
                    let text = String::from_utf8_lossy(&text).into_owned();
                    into.lock().unwrap().push(text.split(' ').next().unwrap_or_default().to_owned());
                    fence.close();
                    let answer =
                        "HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    let _gone = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        (kube::Config::new(format!("http://{address}").parse().unwrap()), log)
    }

    fn meta(fence: &Fence) -> MetaAccess {
        let none =
            tower::service_fn(|_: http::Request<Body>| async { Err::<http::Response<Body>, _>(CallError::Fenced) });
        let (client, clock) = (Client::new(none, ""), Clock::system());
        MetaAccess { client, calls: Counter::default(), fence: fence.clone(), clock }
    }

    #[tokio::test]
    async fn a_change_that_is_answered_503_is_not_repeated_after_the_fence_closed() {
        let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        for method in ["POST", "PATCH", "DELETE"] {
            let fence = Fence::open();
            let (config, log) = busy(fence.clone()).await;
            assert!(config.default_retry, "otherwise nothing would be repeated anyway");
            let maps: Api<ConfigMap> = Api::default_namespaced(client(&meta(&fence), config).unwrap());
            let send = async || match method {
                "POST" => maps.create(&PostParams::default(), &map).await.map(drop),
                "PATCH" => maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({}))).await.map(drop),
                _ => maps.delete("a", &DeleteParams::default()).await.map(drop),
            };
            send().await.unwrap_err();
            assert_eq!(*log.lock().unwrap(), [method]);
            let fenced = send().await.unwrap_err();
            assert_eq!(CallError::of(&fenced), Some(CallError::Fenced));
            assert_eq!(*log.lock().unwrap(), [method], "nothing more arrives behind the fence");
        }
    }

    #[tokio::test]
    async fn what_only_reads_is_repeated_behind_the_fence() {
        let fence = Fence::open();
        let (config, log) = busy(fence.clone()).await;
        let maps: Api<ConfigMap> = Api::default_namespaced(client(&meta(&fence), config).unwrap());
        let mut get = std::pin::pin!(maps.get("a"));
        while log.lock().unwrap().len() < 2 {
            let early = tokio::time::timeout(Duration::from_millis(5), &mut get).await;
            assert!(early.is_err(), "kube gave up after {:?}", log.lock().unwrap());
        }
    }

    /// A server that answers once, with that number of bytes.
    async fn talkative(length: usize) -> kube::Config {
        answering(vec![b'a'; length]).await
    }

    /// A server that answers once, with that body.
    async fn answering(body: Vec<u8>) -> kube::Config {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            while !text.windows(4).any(|end| end == b"\r\n\r\n") {
                if stream.read_buf(&mut text).await.unwrap_or_default() == 0 {
                    return;
                }
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let answer = [head.into_bytes(), body].concat();
            let _gone = stream.write_all(&answer).await;
        });
        kube::Config::new(format!("http://{address}").parse().unwrap())
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_an_error_that_says_so() {
        let meta = meta(&Fence::open());
        for (length, fits) in [(MAX_ANSWER, true), (MAX_ANSWER + 1, false)] {
            let client = client(&meta, talkative(length).await).unwrap();
            let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
            match client.request_text(request).await {
                Ok(text) => assert!(fits && text.len() == length, "{} of {length} bytes", text.len()),
                Err(error) => {
                    let told = api_error_message(&error);
                    assert!(!fits && told.contains("16 MiB"), "{told}");
                }
            }
        }
    }

    #[tokio::test]
    async fn an_answer_that_would_be_much_larger_in_memory_is_an_error_that_says_so() {
        let meta = meta(&Fence::open());
        let of = |what: &str, many: usize| vec![what; many].join(",");
        for (items, fits) in [
            (of(r#"{"metadata":{"name":"a"}}"#, 50), true),
            // Three bytes each: more than five million Nodes are in 16 MiB.
            (of("{}", MAX_OBJECTS), false),
            (of("{}", 51), false),
            (format!(r#"{{"status":{{"images":[{}]}}}}"#, of("{}", MAX_OBJECTS)), false),
            (format!(r#"{{"metadata":{{"finalizers":[{}]}}}}"#, of(r#""""#, MAX_VALUES + 2)), false),
        ] {
            let body = format!(r#"{{"apiVersion":"v1","kind":"NodeList","metadata":{{}},"items":[{items}]}}"#);
            assert!(body.len() < MAX_ANSWER);
            let client = client(&meta, answering(body.into_bytes()).await).unwrap();
            match page::<k8s_openapi::api::core::v1::Node, ThinNode>(&client, None).await {
                Ok(page) => assert!(fits && page.items.len() == 50, "{} Nodes", page.items.len()),
                Err(error) => {
                    let told = api_error_message(&error);
                    let why = ["200000 objects", "50 objects"];
                    assert!(!fits && why.iter().any(|why| told.contains(why)), "{told}");
                }
            }
        }
    }
}

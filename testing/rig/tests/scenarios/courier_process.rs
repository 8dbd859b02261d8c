//! Couriers as real processes, each behind its own proxy.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleetwright_api::OperationPolicy;
use fleetwright_lab::{ServerKind, Target};
use fleetwright_rig::courier::DeliveryLog;
use fleetwright_rig::{Deliveries, Process, Proxy, Recorder, Scenario, TestEnv, TestServer};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;

/// A server, a namespace with the kinds and a policy, and a folder.
pub struct CourierEnv {
    target: Option<Arc<Target>>,
    env: TestEnv,
    folder: Option<tempfile::TempDir>,
    pub maps: Api<ConfigMap>,
    pub policies: Api<OperationPolicy>,
}

/// A courier, and the record of its proxy.
pub struct Courier {
    pub process: Process,
    pub recorder: Recorder,
    _door: Proxy,
}

impl CourierEnv {
    pub async fn new(kind: ServerKind) -> Self {
        let target = Arc::new(Target::start(kind).await.unwrap());
        let test_server = TestServer::from(target.clone());
        let env = TestEnv::new(&test_server, &Deliveries { parcels: &[] }.kinds()).await.unwrap();
        let maps = Api::namespaced(env.admin(), env.namespace());
        let policies = Api::namespaced(env.admin(), env.namespace());
        policies.create(&PostParams::default(), &Deliveries::policy()).await.unwrap();
        let folder = tempfile::Builder::new().prefix("fleetwright-rig-").tempdir().unwrap();
        Self { target: Some(target), env, folder: Some(folder), maps, policies }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().expect("taken only by drop").path().join(name)
    }

    /// Starts a courier. Processes with the same identity succeed each other in the lease.
    pub async fn courier(&self, identity: &str, lease: Duration, takes: Duration) -> Courier {
        let recorder = Recorder::default();
        let door = Proxy::start(recorder.wrap(self.env.client().await.unwrap())).await.unwrap();
        let kubeconfig = self.path(&format!("{identity}.kubeconfig"));
        std::fs::write(&kubeconfig, door.kubeconfig()).unwrap();
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--namespace={}", self.env.namespace()),
            format!("--identity={identity}"),
            format!("--lease={}", lease.as_millis()),
            format!("--file={}", self.path("delivered").display()),
            format!("--takes={}", takes.as_millis()),
        ];
        let log = self.path(&format!("{identity}.log"));
        let process = Process::start(env!("CARGO_BIN_EXE_courier"), &arguments, &log).unwrap();
        Courier { process, recorder, _door: door }
    }

    pub async fn bring(&self, name: &str, contents: &str) {
        self.maps.create(&PostParams::default(), &Deliveries::parcel(name, contents)).await.unwrap();
    }

    /// Waits until every parcel is delivered.
    pub async fn all_delivered(&self) {
        soon("every parcel is delivered", async || Deliveries::reached(&self.maps, &self.policies).await).await;
    }

    /// Checks that each operation was carried out at most once, and each parcel's contents were delivered exactly once.
    pub fn assert_once(&self, parcels: usize) {
        let delivered = DeliveryLog::delivered(&self.path("delivered")).unwrap();
        let (mut operations, mut acts) = (HashMap::new(), HashMap::new());
        for [operation, parcel, contents] in &delivered {
            *operations.entry(operation).or_insert(0) += 1;
            *acts.entry((parcel, contents)).or_insert(0) += 1;
        }
        let twice: Vec<_> = operations.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "carried out more than once: {twice:?}");
        let twice: Vec<_> = acts.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "delivered more than once: {twice:?}");
        assert_eq!(acts.len(), parcels);
    }

    pub async fn stop(mut self) {
        if let Some(target) = self.target.take().and_then(Arc::into_inner) {
            target.stop(false).await;
        }
    }
}

impl Drop for CourierEnv {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(folder) = self.folder.take()
        {
            eprintln!("rig: the courier logs and deliveries are in {}", folder.keep().display());
        }
    }
}

/// Waits until the condition holds.
pub async fn soon(awaited: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match holds().await {
            Ok(()) => return,
            Err(why) => assert!(Instant::now() < deadline, "{awaited}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

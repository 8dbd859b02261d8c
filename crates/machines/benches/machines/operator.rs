//! The operator, in a process of its own, with a transport to the hosts' socket.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use fleetwright_kit::serve::Endpoint;
use fleetwright_kit::{Operator, Settings};
use fleetwright_machines::Options;
use fleetwright_transport::{Link, LinkError, ReachError, Route, Transport};
use fleetwright_wire::{Answer, Progress, Request};
use futures::future::BoxFuture;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;

use crate::fleet::NAMESPACE;
use crate::hosts::{Hello, line};

/// Runs until it is killed.
pub(crate) async fn run(kubeconfig: &Path, socket: &Path, listen: SocketAddr, check_every: Duration) -> Result<()> {
    let (kubeconfig, options) = (Kubeconfig::read_from(kubeconfig)?, KubeConfigOptions::default());
    let client = Client::try_from(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)?;
    let endpoint = Endpoint::bind(listen).await?;
    let mut operator = Operator::new(Settings::new("fleetwright", client));
    let transport = Arc::new(Wire(socket.to_owned()));
    let _hosts =
        fleetwright_machines::add(&mut operator, NAMESPACE, transport, Options { check_every, ..Options::default() });
    let (health, metrics) = (operator.health().clone(), operator.metrics().clone());
    tokio::select! {
        ended = operator.run(std::future::pending()) => Ok(ended?),
        () = endpoint.serve(health, metrics, std::future::pending()) => Ok(()),
    }
}

/// A transport of lines over a socket, as SSH would carry them.
struct Wire(PathBuf);

struct WireLink {
    io: Mutex<(BufReader<OwnedReadHalf>, OwnedWriteHalf)>,
    key: String,
    open: AtomicBool,
}

impl Transport for Wire {
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>> {
        Box::pin(async move {
            let gone = |error: &dyn std::fmt::Display| ReachError::Unreachable(error.to_string());
            let stream = UnixStream::connect(&self.0).await.map_err(|error| gone(&error))?;
            let (read, mut write) = stream.into_split();
            let address = route.host.address.clone();
            // In the form of a key: the API rejects any other.
            let key = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{}", address.replace('.', "x"));
            let hello = line(&Hello::Host(address)).map_err(|error| gone(&error))?;
            write.write_all(&hello).await.map_err(|error| gone(&error))?;
            let io = Mutex::new((BufReader::new(read), write));
            let link: Box<dyn Link> = Box::new(WireLink { io, key, open: AtomicBool::new(true) });
            Ok(link)
        })
    }
}

impl Link for WireLink {
    fn ask<'a>(
        &'a self,
        request: &'a Request,
        _: Duration,
        _: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<Answer, LinkError>> {
        Box::pin(async move {
            let answer = async {
                let mut io = self.io.lock().await;
                io.1.write_all(&line(request)?).await?;
                let mut text = String::new();
                io.0.read_line(&mut text).await?;
                anyhow::Ok(serde_json::from_str(&text)?)
            };
            answer.await.map_err(|error: anyhow::Error| {
                self.open.store(false, Ordering::Relaxed);
                LinkError::Lost(error.to_string())
            })
        })
    }

    fn host_key(&self) -> &str {
        &self.key
    }

    fn open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }
}

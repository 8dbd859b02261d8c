//! Forwards connections as kube-proxy does: each new one goes to a backend that is ready at that moment.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// One listening address. Dropping it closes the listener and its connections.
pub(super) struct Forward {
    to: Arc<RwLock<Arc<[SocketAddr]>>>,
    task: AbortHandle,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Forward {
    /// Starts to listen.
    pub(super) async fn start(at: SocketAddr, to: &[SocketAddr]) -> std::io::Result<Self> {
        let listener = listen(at)?;
        let to = Arc::new(RwLock::new(Arc::from(to)));
        let task = tokio::spawn(accept(listener, to.clone())).abort_handle();
        Ok(Self { to, task })
    }

    /// Sets the backends of new connections.
    pub(super) fn to(&self, to: &[SocketAddr]) {
        let mut known = self.to.write().unwrap_or_else(PoisonError::into_inner);
        if **known != *to {
            *known = Arc::from(to);
        }
    }
}

/// Listens on an address that another listener may have used a moment ago.
pub(super) fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(1024)
}

async fn accept(listener: TcpListener, to: Arc<RwLock<Arc<[SocketAddr]>>>) {
    let turn = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let to = to.read().unwrap_or_else(PoisonError::into_inner).clone();
                    connections.spawn(forward_connection(stream, to, turn.clone()));
                }
                // Most likely out of file descriptors: wait until other connections are closed.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward_connection(mut from: TcpStream, to: Arc<[SocketAddr]>, turn: Arc<AtomicUsize>) {
    let first = turn.fetch_add(1, Ordering::Relaxed);
    for step in 0..to.len() {
        // Skip a backend that just stopped: the list of ready backends is updated a moment later.
        let Ok(mut there) = TcpStream::connect(to[(first + step) % to.len()]).await else { continue };
        let _ = (from.set_nodelay(true), there.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut from, &mut there).await;
        return;
    }
}

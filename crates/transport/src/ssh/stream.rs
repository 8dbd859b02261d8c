//! A stream that ends when its owner is dropped.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Dropping it ends the stream that was created with it.
///
/// russh runs a connection in a task of its own. If its server stops in the middle of the key exchange, that task waits for the server alone:
/// dropping the future that waits for it would leave the task and its socket for ever. The stream is the only part that we control.
pub(crate) struct StreamOwner(#[allow(dead_code, reason = "its drop is what is waited for")] oneshot::Sender<()>);

/// The stream. Both halves of it are polled by one task.
pub(crate) struct OwnedStream<S> {
    stream: S,
    owner: Option<oneshot::Receiver<()>>,
}

/// Ties a stream to an owner.
pub(crate) fn owned<S>(stream: S) -> (StreamOwner, OwnedStream<S>) {
    let (sender, owner) = oneshot::channel();
    (StreamOwner(sender), OwnedStream { stream, owner: Some(owner) })
}

impl<S> OwnedStream<S> {
    fn alone(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(owner) = &mut self.owner
            && owner.poll_unpin(context).is_pending()
        {
            return Ok(());
        }
        self.owner = None;
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OwnedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.alone(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OwnedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.alone(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.alone(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

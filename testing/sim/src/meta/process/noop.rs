//! The process of an unknown image: it runs and is ready.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Probe, Process};

pub(super) struct NoopProcess;

impl Process for NoopProcess {
    fn probe(&self, _: &Probe) -> Result<(), String> {
        Ok(())
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn kill(&self) {}
}

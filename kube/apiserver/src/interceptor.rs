//! A hook between a server and its objects, for simulated failures of the storage.

use futures::future::BoxFuture;

/// A request that needs objects.
#[derive(Clone, Copy, Debug)]
pub struct InterceptedRequest<'a> {
    /// `get`, `list`, `watch`, `create`, …
    pub verb: &'a str,
    /// The plural of the resource.
    pub resource: &'a str,
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterceptAction {
    /// The request is handled.
    Continue,
    /// The request is answered as if it were done, without effect.
    Pretend,
    /// The request is refused with this code and message.
    Refuse(u16, String),
}

/// A check of `/readyz` and `/livez`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub name: &'static str,
    /// Whether it is part of `/livez` too.
    pub live: bool,
    /// Whether it is passed.
    pub passed: bool,
}

/// An API that a release removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Its group; empty for the core.
    pub group: String,
    pub version: String,
    /// The plural of the resource.
    pub resource: String,
    /// The first minor without it, such as `1.37`.
    pub release: String,
}

/// Intercepts requests between a server and its objects: storage that is lost, a server with a defect.
pub trait Interceptor: Send + Sync + 'static {
    /// Called before every request that needs objects, also those within the process; it may wait.
    fn intercept<'a>(&'a self, asked: InterceptedRequest<'a>) -> BoxFuture<'a, InterceptAction>;

    /// The checks beyond those of the server itself.
    fn checks(&self) -> Vec<HealthCheck>;

    /// APIs that a release removes: the server's metrics report requests for them.
    fn removals(&self) -> Vec<Removal> {
        Vec::new()
    }
}

//! What stands between a server and its objects, where they are not simply there.

use futures::future::BoxFuture;

/// A request that needs objects.
#[derive(Clone, Copy, Debug)]
pub struct InterceptedRequest<'a> {
    /// `get`, `list`, `watch`, `create`, …
    pub verb: &'a str,
    /// The plural of the resource.
    pub resource: &'a str,
}

/// Whether a request goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterceptAction {
    /// It does.
    Continue,
    /// It is answered as if it had been done, and is not.
    Pretend,
    /// It is answered with this code and this message.
    Refuse(u16, String),
}

/// One of the checks that `/readyz` and `/livez` are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The name.
    pub name: &'static str,
    /// Whether it counts for `/livez` too.
    pub live: bool,
    /// Whether it is passed.
    pub passed: bool,
}

/// An API that a release removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Its group; empty for the core.
    pub group: String,
    /// Its version.
    pub version: String,
    /// The plural of the resource.
    pub resource: String,
    /// The first minor without it, such as `1.37`.
    pub release: String,
}

/// Stands between a server and its objects: storage that can be lost, a server that does not do what it should.
pub trait Interceptor: Send + Sync + 'static {
    /// Asked before every request that needs objects, also those of the process; may take its time.
    fn intercept<'a>(&'a self, asked: InterceptedRequest<'a>) -> BoxFuture<'a, InterceptAction>;

    /// The checks beyond those of the server itself.
    fn checks(&self) -> Vec<HealthCheck>;

    /// APIs that a release removes: who asks for them is told by the server's metrics.
    fn removals(&self) -> Vec<Removal> {
        Vec::new()
    }
}

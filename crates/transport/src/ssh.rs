//! SSH: one connection for each host, with a helper at the end of each of its channels.
//!
//! A channel with a helper is kept after its request was answered, and takes the next one: an observation is one round trip. A request that finds
//! no free channel opens another, so that a hanging step does not block requests for its outcome.

mod dial;
mod keys;
mod script;
mod session;
mod stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fleetwright_wire::{Answer, HOME, PROTOCOL, Progress, Request};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use crate::text::last_line;
use crate::{Helper, Helpers, Link, LinkError, ReachError, Route, Transport};
use dial::{Connection, dial, place};
use keys::Identities;
use script::{Markers, ScriptOutput};
use session::{RequestError, Session};

/// A helper's content is compared with its digest on first contact, and again after this long.
const VERIFY_EVERY: Duration = Duration::from_secs(3600);
/// Most hosts in that record; above, all are compared again.
const MAX_VERIFIED: usize = 100_000;
/// Idle helpers kept per connection.
const IDLE_SESSIONS: usize = 1;

/// Reaches hosts by SSH. Cheap to clone.
#[derive(Clone)]
pub struct Ssh {
    shared: Arc<Shared>,
}

struct Shared {
    helpers: Helpers,
    home: String,
    identities: Identities,
    /// Hosts whose helper's content was compared with its digest, and when.
    verified: Mutex<HashMap<(String, u16), Instant>>,
}

impl Ssh {
    /// A transport that delivers these helpers.
    pub fn new(helpers: Helpers) -> Self {
        Self::with_home(helpers, HOME)
    }

    /// As [`Self::new`], with another directory on hosts than [`HOME`]: for tests whose hosts share a file system. Letters, digits and `/._-` only.
    ///
    /// # Panics
    /// On any other character, which the shell there could interpret.
    pub fn with_home(helpers: Helpers, home: &str) -> Self {
        assert!(
            home.starts_with('/') && home.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)),
            "invalid folder on hosts: {home}"
        );
        let shared =
            Shared { helpers, home: home.to_owned(), identities: Identities::default(), verified: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }
}

impl Transport for Ssh {
    fn connect(&self, route: Arc<Route>) -> BoxFuture<'_, Result<Box<dyn Link>, ReachError>> {
        async move {
            let (connection, way) = dial(&route, &self.shared.identities).await?;
            let host_key = connection.host_key();
            let link =
                SshLink { route, shared: self.shared.clone(), host_key, connection, _way: way, idle: Mutex::default() };
            let session = link.start(Instant::now() + link.route.limits.deliver).await?;
            link.keep(session);
            Ok(Box::new(link) as Box<dyn Link>)
        }
        .boxed()
    }
}

struct SshLink {
    route: Arc<Route>,
    shared: Arc<Shared>,
    host_key: String,
    /// Before the connections to jump hosts: fields are dropped in order, and this one must end first.
    connection: Connection,
    _way: Vec<Connection>,
    idle: Mutex<Vec<Session>>,
}

impl Link for SshLink {
    fn ask<'a>(
        &'a self,
        request: &'a Request,
        within: Duration,
        on_progress: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<Answer, LinkError>> {
        async move {
            let until = Instant::now() + within;
            let mut line = serde_json::to_vec(request).map_err(|error| LinkError::InvalidAnswer(error.to_string()))?;
            line.push(b'\n');
            let mut session = match self.take() {
                Some(session) => session,
                None => {
                    let limit = until.min(Instant::now() + self.route.limits.deliver);
                    self.start(limit).await.map_err(|error| match self.connection.lost() {
                        Some(why) => LinkError::Lost(why),
                        None if Instant::now() >= until => LinkError::TimedOut(within),
                        None => LinkError::Lost(error.to_string()),
                    })?
                }
            };
            let silence = self.route.limits.silence;
            match session.ask(request, Bytes::from(line), (until, within), silence, on_progress).await {
                Ok(answer) => {
                    // The helper removed itself with its other files.
                    if !matches!(answer, Answer::Cleaned) {
                        self.keep(session);
                    }
                    Ok(answer)
                }
                Err(trouble) => Err(trouble.into_link_error(&session, self.connection.lost())),
            }
        }
        .boxed()
    }

    fn host_key(&self) -> &str {
        &self.host_key
    }

    fn open(&self) -> bool {
        !self.connection.handle.is_closed()
    }
}

impl SshLink {
    fn take(&self) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut session) = idle.pop() {
            if session.fit() {
                return Some(session);
            }
        }
        None
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_SESSIONS {
            idle.push(session);
        }
    }

    /// Starts a helper in a channel of its own, and delivers it first if the host does not have it.
    async fn start(&self, until: Instant) -> Result<Session, ReachError> {
        let at = place(&self.route.host);
        let late = || {
            ReachError::NoHelper(format!(
                "{at}: timed out starting the helper: the host is slow or its login shell hangs"
            ))
        };
        let opening = self.connection.handle.channel_open_session();
        let channel = match timeout_at(until, opening).await {
            Err(_) => return Err(late()),
            Ok(Err(error)) => {
                let why = self.connection.lost().unwrap_or_else(|| last_line(error.to_string().as_bytes()));
                return Err(ReachError::Unreachable(format!("{at} did not open an SSH session: {why}")));
            }
            Ok(Ok(channel)) => channel,
        };
        let mut session = Session::new(channel);
        let words = Markers::new();
        let mark = words.mark();
        let root = self.route.host.user == "root";
        let verify = self.unverified();
        let command = script::start(&words, &self.shared.helpers, &self.shared.home, verify, root);
        session.exec(command).await.map_err(|error| ReachError::Unreachable(format!("{at}: {error}")))?;

        let first = match session.word(&mark, until).await {
            Ok(line) => ScriptOutput::parse(&line),
            Err(trouble) => return Err(self.no_word(trouble, &session)),
        };
        match first {
            Some(ScriptOutput::Ready) => {}
            Some(ScriptOutput::Missing { kernel, machine, os }) => {
                let helper = self.helper_for(&kernel, &machine, &os)?;
                self.deliver(&mut session, &mark, &helper, until).await?;
            }
            _ => return Err(ReachError::NoHelper(format!("{at}: unexpected output of the host's shell"))),
        }
        if verify {
            self.verified_now();
        }
        Ok(session)
    }

    async fn deliver(
        &self,
        session: &mut Session,
        mark: &str,
        helper: &Arc<Helper>,
        until: Instant,
    ) -> Result<(), ReachError> {
        let at = place(&self.route.host);
        let packed = helper.packed().await.map_err(|error| {
            ReachError::NoHelper(format!("cannot send the helper {}: {error}", helper.path().display()))
        })?;
        tracing::debug!(
            machine = self.route.machine,
            digest = helper.digest(),
            bytes = packed.len(),
            "delivering the helper"
        );
        let head = Bytes::from(format!("{} {}\n", helper.digest(), packed.len()));
        for part in [head, packed] {
            session.pour(part, until).await.map_err(|trouble| self.no_word(trouble, session))?;
        }
        let said = session.word(mark, until).await.map_err(|trouble| self.no_word(trouble, session))?;
        match ScriptOutput::parse(&said) {
            Some(ScriptOutput::Delivered { version }) => match protocol(&version) {
                Some(PROTOCOL) => Ok(()),
                Some(other) => Err(ReachError::NoHelper(format!(
                    "the helper {} uses protocol {other}, but this operator uses {PROTOCOL}: install the helpers of the operator's version",
                    helper.path().display()
                ))),
                None => Err(ReachError::NoHelper(format!(
                    "the helper {} did not report its protocol, but: {}",
                    helper.path().display(),
                    last_line(version.as_bytes())
                ))),
            },
            Some(ScriptOutput::Failed { at: point }) => {
                session.end(until).await;
                Err(self.not_delivered(&point, session))
            }
            _ => Err(ReachError::NoHelper(format!("{at}: unexpected output of the host's shell"))),
        }
    }

    fn helper_for(&self, kernel: &str, machine: &str, os: &str) -> Result<Arc<Helper>, ReachError> {
        let at = place(&self.route.host);
        let served = self.shared.helpers.architectures().collect::<Vec<_>>().join(", ");
        if kernel != "Linux" {
            return Err(ReachError::Unsupported(format!(
                "{at} runs {}: only Linux is supported ({served})",
                last_line(kernel.as_bytes())
            )));
        }
        if !os.contains("ID=") {
            return Err(ReachError::Unsupported(format!(
                "{at} has no ID in /etc/os-release: a Linux distribution with systemd is required, such as Debian, Ubuntu, Fedora or openEuler"
            )));
        }
        self.shared.helpers.for_machine(machine).cloned().ok_or_else(|| {
            ReachError::Unsupported(format!(
                "{at} has the architecture {}: helpers exist for {served}",
                last_line(machine.as_bytes())
            ))
        })
    }

    fn not_delivered(&self, point: &str, session: &Session) -> ReachError {
        let at = place(&self.route.host);
        let home = &self.shared.home;
        let errors = session.errors();
        let todo = if errors.contains("No space left") || errors.contains("Disk quota exceeded") {
            "free disk space".to_owned()
        } else if errors.contains("Read-only file system") {
            "its file system is read-only, mount it read-write".to_owned()
        } else if errors.contains("not found") {
            "gzip, sha256sum, head and find are required on the host".to_owned()
        } else if point == "run" && errors.contains("ermission denied") {
            "execution is denied, mount that file system without noexec".to_owned()
        } else if point == "run" {
            "it failed to run".to_owned()
        } else if point == "digest" {
            "its checksum does not match, check disk and memory of the host".to_owned()
        } else {
            "check that folder".to_owned()
        };
        ReachError::NoHelper(format!("{at}: cannot install the helper in {home}/helper: {todo} ({errors})"))
    }

    /// The error of a command that ran, and whose script did not send the expected line.
    fn no_word(&self, trouble: RequestError, session: &Session) -> ReachError {
        let hop = &self.route.host;
        let at = place(hop);
        if let Some(why) = self.connection.lost() {
            return ReachError::Unreachable(format!("{at}: connection lost: {why}"));
        }
        let user = last_line(hop.user.as_bytes());
        match trouble {
            RequestError::TimedOut(_) => ReachError::NoHelper(format!(
                "{at}: timed out starting the helper after {:?}: the host is slow, or the login shell of {user} hangs",
                self.route.limits.deliver
            )),
            RequestError::InvalidAnswer(what) => {
                ReachError::NoHelper(format!("{at}: the login shell of {user} prints {what}"))
            }
            RequestError::Ended => {
                let errors = session.errors();
                if hop.user != "root" && (errors.contains("sudo") || session.status().ends_with(" 127")) {
                    return ReachError::SudoRefused(format!(
                        "{user} cannot use sudo without a password on {at} ({errors}): add `{user} ALL=(root) NOPASSWD: ALL` to /etc/sudoers.d, or log in as root"
                    ));
                }
                ReachError::LoginRefused(format!(
                    "{at} accepted the login of {user}, but ran no command ({}): {errors}",
                    session.status()
                ))
            }
        }
    }

    fn unverified(&self) -> bool {
        let verified = self.shared.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let host = (self.route.host.address.clone(), self.route.host.port);
        verified.get(&host).is_none_or(|when| when.elapsed() > VERIFY_EVERY)
    }

    fn verified_now(&self) {
        let mut verified = self.shared.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= MAX_VERIFIED {
            verified.clear();
        }
        verified.insert((self.route.host.address.clone(), self.route.host.port), Instant::now());
    }
}

/// The number in the output of `HELPER version`: `… protocol 1`.
fn protocol(version: &str) -> Option<u32> {
    let mut words = version.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.find(|word| *word == "protocol")?;
    words.next()?.parse().ok()
}

use std::fmt;

use anyhow::Result;
use fleetwright_conformance::Ctx;
use futures::future::LocalBoxFuture;

use crate::harness::ScenarioFn;
use crate::site::JoinSite;
use crate::world::TestFleet;

/// The area of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Impersonating another user.
    Identity,
    /// Gaining rights through objects and their references.
    References,
    /// Getting certificates of other users or hosts.
    Certificates,
    /// Bypassing a check by another spelling.
    Encoding,
    /// Exhausting resources that others need.
    Exhaustion,
    /// Hosts that report falsehoods.
    Hosts,
    /// Users who may write Clusters, or administer one.
    Tenants,
}

impl Area {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Identity,
        Self::References,
        Self::Certificates,
        Self::Encoding,
        Self::Exhaustion,
        Self::Hosts,
        Self::Tenants,
    ];
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Identity => "Identity",
            Self::References => "Escalation through references and RBAC",
            Self::Certificates => "Certificate requests",
            Self::Encoding => "Paths and encodings",
            Self::Exhaustion => "Exhaustion",
            Self::Hosts => "Hostile hosts",
            Self::Tenants => "Hostile tenants",
        })
    }
}

/// One attack, and what must hold afterwards.
#[derive(Clone, Copy)]
pub struct Attempt {
    /// The attack.
    pub area: Area,
    /// The expected result, as a sentence with underscores for spaces.
    pub name: &'static str,
    pub(crate) run: Run,
    /// Whether it runs alone, because it exhausts resources of other attempts.
    pub(crate) alone: bool,
}

impl Attempt {
    /// The name as a sentence.
    pub fn sentence(&self) -> String {
        self.name.replace("_s_", "'s ").replace('_', " ")
    }
}

/// The fixture of an attempt.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// A namespace on a server that attempts share.
    Server(fn(Ctx) -> LocalBoxFuture<'static, Result<()>>),
    /// Machines that join, and the operator that approves them.
    JoinSite(for<'a> fn(&'a JoinSite) -> LocalBoxFuture<'a, Result<()>>),
    /// A meta cluster with the Cluster-Operator.
    Meta(for<'a> fn(&'a TestFleet) -> LocalBoxFuture<'a, Result<()>>),
    /// Simulated hosts with the Machine-Operator.
    Harness(ScenarioFn),
}

/// Builds the list of an area's attempts from their functions: `attempts![Area::Identity, Server; one, two(alone)]`.
macro_rules! attempts {
    (@alone alone) => { true };
    (@alone) => { false };
    ($area:expr, Harness; $($name:ident),* $(,)?) => {
        vec![$($crate::Attempt {
            area: $area,
            name: stringify!($name),
            run: $crate::attempt::Run::Harness(|harness, fleet| Box::pin($name(harness, fleet))),
            alone: false,
        }),*]
    };
    ($area:expr, $with:ident; $($name:ident $(($alone:ident))?),* $(,)?) => {
        vec![$($crate::Attempt {
            area: $area,
            name: stringify!($name),
            run: $crate::attempt::Run::$with(|with| Box::pin($name(with))),
            alone: attempts!(@alone $($alone)?),
        }),*]
    };
}

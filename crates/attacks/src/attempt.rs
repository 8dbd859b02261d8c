use std::fmt;

use anyhow::Result;
use fleetwright_conformance::Ctx;
use futures::future::LocalBoxFuture;

use crate::harness::StoryFn;
use crate::site::JoinSite;
use crate::world::TestFleet;

/// What an attempt is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// To be taken for somebody else.
    Identity,
    /// To get more rights through what objects refer to.
    References,
    /// To get certificates of others.
    Certificates,
    /// To get past a check by another spelling.
    Encoding,
    /// To take what others need.
    Exhaustion,
    /// Hosts that lie.
    Hosts,
    /// Who may write Clusters, or administers one.
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
    /// What is tried.
    pub area: Area,
    /// What holds, as a sentence with underscores for spaces.
    pub name: &'static str,
    pub(crate) run: Run,
    /// Runs when no other attempt does, because it takes what others need.
    pub(crate) alone: bool,
}

impl Attempt {
    /// The name as a sentence.
    pub fn sentence(&self) -> String {
        self.name.replace("_s_", "'s ").replace('_', " ")
    }
}

/// What an attempt works with.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// A namespace of its own on a server that attempts share.
    Server(fn(Ctx) -> LocalBoxFuture<'static, Result<()>>),
    /// Machines that join, and the operator that lets them.
    JoinSite(for<'a> fn(&'a JoinSite) -> LocalBoxFuture<'a, Result<()>>),
    /// A meta cluster with the operator of Clusters.
    Meta(for<'a> fn(&'a TestFleet) -> LocalBoxFuture<'a, Result<()>>),
    /// Simulated hosts with the operator of Machines.
    Harness(StoryFn),
}

/// Makes the list of an area's attempts from their functions: `attempts![Area::Identity, Server; one, two(alone)]`.
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

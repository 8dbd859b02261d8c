//! The protocol between an operator and the helper on a host: requests and answers, one JSON document per line.
//!
//! The operator starts the helper over SSH (`HELPER serve`), writes requests to its standard input and reads answers from its standard
//! output. Each request gets any number of [`Answer::Progress`] and then exactly one other answer. Nothing stays running: the helper exits when
//! its input ends, but never during a step. A step whose connection is lost continues, and its outcome can be requested by its id.

#![deny(missing_docs)]

mod observation;
mod owner;
mod package;
mod step;
pub mod text;

pub use observation::{CheckSeen, ComponentSeen, Deviation, Facts, Installed, MAX_PARTS, Observation};
pub use owner::{Claim, Mark, Owner};
pub use package::{
    Boot, Bytes, Check, Content, Deb, File, Health, Kernel, Method, Package, Remove, Rpm, Script, Source, Tarball, Unit,
};
pub use step::{Apply, Failure, FailureKind, Observe, Outcome, Progress, Step, StepRecord, Verb};

use serde::{Deserialize, Serialize};

/// Version of the protocol. A helper with another version is replaced.
pub const PROTOCOL: u32 = 2;

/// Directory of our files on a host.
pub const HOME: &str = "/var/lib/fleetwright";
/// Directory of unpacked tarballs: `OPT/COMPONENT/VERSION-DIGEST/…`, with a link `OPT/COMPONENT/current`.
pub const OPT: &str = "/opt/fleetwright";

/// Longest line in bytes; the connection of a sender of a longer one is closed.
pub const MAX_LINE: usize = 32 << 20;
/// Bytes of a step's output that a record has.
pub const MAX_TAIL: usize = 4 << 10;

/// A number with its noun, for messages: `1 pod`, `2 pods`.
pub fn plural(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A request of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Observe every managed fact in one round trip. Changes nothing.
    Observe(Box<Observe>),
    /// Run one step, at most once for its id. A host without an owner is claimed by the caller. The answer is [`Answer::Ended`].
    Apply(Box<Apply>),
    /// Read the record of a step. The answer is [`Answer::Recalled`].
    Recall {
        /// Id of the step.
        id: String,
    },
    /// Refuse that id for good, if its step was not started. The answer is [`Answer::Recalled`], with the record: started, or refused.
    Refuse {
        /// Id of the step.
        id: String,
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Read the end of a step's kept output. The answer is [`Answer::Log`].
    Log {
        /// Id of the step.
        id: String,
        /// The most bytes to return.
        bytes: u64,
    },
    /// Remove all of our files: journal, kept versions, the helper itself, and last the owner mark. Refused while components are installed.
    Clean {
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Claim a host without an owner for the caller, and do nothing else. The answer is [`Answer::Claimed`].
    Claim {
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Remove the owner mark; everything else on the host stays. The answer is [`Answer::Released`].
    Release {
        /// The owner and fencing token of the caller.
        claim: Claim,
    },
    /// Change the owner of a host that belongs to exactly `from`, in the epoch of the claim, to the caller, in the next epoch. The answer is
    /// [`Answer::Adopted`].
    Adopt {
        /// The owner and fencing token of the caller. The token is the first of the new epoch.
        claim: Claim,
        /// The present owner.
        from: Owner,
    },
}

/// An answer of the helper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Progress of a request that is still being handled.
    Progress(Progress),
    /// The answer to [`Request::Observe`].
    Observed(Box<Observation>),
    /// The answer to [`Request::Apply`]: the step has ended, now or earlier. Its outcome is [`Outcome::Running`] if another connection started it and
    /// it still runs, and for a reboot, which ends when the host is back: ask again.
    Ended(StepRecord),
    /// The answer to [`Request::Recall`] and [`Request::Refuse`]; none if the id is unknown.
    Recalled(Option<StepRecord>),
    /// The answer to [`Request::Log`].
    Log(Bytes),
    /// The answer to [`Request::Clean`].
    Cleaned,
    /// The answer to [`Request::Release`].
    Released,
    /// The answer to [`Request::Claim`].
    Claimed(Mark),
    /// The answer to [`Request::Adopt`].
    Adopted(Mark),
    /// The request was rejected. Nothing was started.
    Failed(Failure),
}

//! What an operator and the helper on a host say to each other: requests and answers, one JSON document a line.
//!
//! The operator starts the helper over SSH (`HELPER serve`), writes requests to its standard input and reads answers from its standard
//! output. Each request gets any number of [`Answer::Progress`] and then exactly one other answer. Nothing stays running: the helper ends with
//! its input, but never in the middle of a step: a step whose connection is cut goes on, and can be asked after by its id.

mod observation;
mod owner;
mod package;
mod step;

pub use observation::{CheckSeen, ComponentSeen, Deviation, Facts, Installed, MOST_PARTS, Observation};
pub use owner::{Claim, Mark, Owner};
pub use package::{
    Boot, Bytes, Check, Content, Deb, File, Health, Kernel, Method, Package, Remove, Rpm, Script, Source, Tarball, Unit,
};
pub use step::{Apply, Failure, FailureKind, Observe, Outcome, Progress, Step, StepRecord, Verb};

use serde::{Deserialize, Serialize};

/// Both sides speak the same; a helper of another protocol is replaced.
pub const PROTOCOL: u32 = 2;

/// Where everything that is ours lives on a host.
pub const HOME: &str = "/var/lib/fleetwright";
/// Where tarballs are unpacked: `OPT/COMPONENT/VERSION-DIGEST/…`, with a link `OPT/COMPONENT/current`.
pub const OPT: &str = "/opt/fleetwright";

/// No line is longer; who sends a longer one is not listened to any more.
pub const LONGEST_LINE: usize = 32 << 20;
/// How much of a step's output is kept and told.
pub const LONGEST_TAIL: usize = 4 << 10;

/// A number with its noun, for messages: `1 pod`, `2 pods`.
pub fn plural(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// What an operator asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Every managed fact, in one round trip. Changes nothing.
    Observe(Box<Observe>),
    /// Run one step, at most once for its id. A host without an owner belongs to who asks, from then on. The answer is [`Answer::Ended`].
    Apply(Box<Apply>),
    /// What became of that step. The answer is [`Answer::Recalled`].
    Recall {
        /// Its id.
        id: String,
    },
    /// Take nothing under that id any more, if it was not begun. The answer is [`Answer::Recalled`], with the record: begun, or refused for ever.
    Refuse {
        /// Its id.
        id: String,
        /// Who asks.
        claim: Claim,
    },
    /// The kept output of that step, its last bytes. The answer is [`Answer::Log`].
    Log {
        /// Its id.
        id: String,
        /// At most so many bytes.
        bytes: u64,
    },
    /// Leave nothing behind: journal, kept versions, the helper itself, and last the owner mark. Refused while components are installed.
    Clean {
        /// Who asks.
        claim: Claim,
    },
    /// The host without an owner belongs to who asks, and nothing else is done. The answer is [`Answer::Claimed`].
    Claim {
        /// Who asks.
        claim: Claim,
    },
    /// The host belongs to nobody any more; everything else on it stays. The answer is [`Answer::Released`].
    Release {
        /// Who asks.
        claim: Claim,
    },
    /// The host of exactly that owner, in the epoch of the claim, belongs to who asks from now on, in the next epoch. The answer is
    /// [`Answer::Adopted`].
    Adopt {
        /// Who asks. Its fencing token is the first of the new epoch.
        claim: Claim,
        /// Whose it is.
        from: Owner,
    },
}

/// What a host answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The request is being worked on.
    Progress(Progress),
    /// To [`Request::Observe`].
    Observed(Box<Observation>),
    /// To [`Request::Apply`]: the step ended, now or before. Its outcome is [`Outcome::Running`] if another connection began it and it goes on, and
    /// for a boot, which ends when the host is back: ask after it.
    Ended(StepRecord),
    /// To [`Request::Recall`] and [`Request::Refuse`]; none if the id was never heard of.
    Recalled(Option<StepRecord>),
    /// To [`Request::Log`].
    Log(Bytes),
    /// To [`Request::Clean`].
    Cleaned,
    /// To [`Request::Release`].
    Released,
    /// To [`Request::Claim`].
    Claimed(Mark),
    /// To [`Request::Adopt`].
    Adopted(Mark),
    /// The request was not carried out. Nothing was begun.
    Failed(Failure),
}
